"""`proctor case from`: a regression case from a failing trial or trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from proctor import api
from proctor.cli._command import Command, CommandGroup
from proctor.cli._options import complete_runs_or_files, option, settings_redactor
from proctor.errors import EXIT_FAIL, ProctorError
from proctor.sanitize import printable

if TYPE_CHECKING:
    from proctor.diagnose.methods import TrialEvidence
    from proctor.trace import Trace


@click.group(cls=CommandGroup)
def case() -> None:
    """Make a regression case from a failing trial or trace.

    Examples:
      # the trial must have failed, and another of the same case passed
      proctor case from latest:refund/hasty/0/1
    """


@case.command("from", cls=Command)
@click.argument("source", metavar="RUN:TRIAL|TRACE", shell_complete=complete_runs_or_files)
@option("--good RUN:TRIAL|TRACE", "A recording that is right; default: a passing trial.")
@option("--name", "The id of the case; default: from the source.")
@option(
    "--out", "The suite to write.", type=click.Path(path_type=Path), default=Path("regression.yaml")
)
@click.pass_context
def from_(ctx: click.Context, source: str, good: str | None, name: str | None, out: Path) -> None:
    """Write a regression case from a failing trial or trace.

    Checks are proposed from the diagnosis. The case is written only if its checks fail on the
    failing recording and pass on a good one. The recorded tool results are written beside it, as
    mock tools of a chat agent. A suite that this command wrote before gets the case in addition.

    Exits with 1 if no check tells the two recordings apart.

    Examples:
      # from a trial; a passing trial of the same case is the good one
      proctor case from latest:refund/hasty/0/1
      # from traces
      proctor case from failing.json --good right.json --name refund
    """
    from proctor.trials.regression_case import regression_case, write_case

    failing, evidence, passing, stem = _recording(source)
    if evidence is not None and evidence.passed:
        raise ProctorError(
            "the trial passed: there is no failure to keep",
            where=source,
            hint="name a failing trial; this one can be its --good",
        )
    right = _recording(good)[0] if good is not None else passing
    if right is None:
        raise ProctorError(
            "there is no good recording to verify the case with",
            where=source,
            hint="name one with --good: a trace, or RUN:TRIAL",
        )
    try:
        made = regression_case(failing, right, name=name or stem, evidence=evidence)
    except ProctorError as error:
        click.echo(printable(f"no case written: {error}"), err=True)
        ctx.exit(EXIT_FAIL)
    tools = write_case(made, out)
    count = len(made.case["assertions"])
    click.echo(printable(f"wrote {out}: case {made.case['id']}, {count} verified checks"))
    click.echo(printable(f"wrote {tools}: {len(made.tools)} mock tools for a chat agent"))
    click.echo(printable(f"try it: proctor test {out} --agent package.module:function"))
    for why in made.rejected:
        click.echo(printable(f"  rejected: {why}"))


def _recording(source: str) -> tuple[Trace, TrialEvidence | None, Trace | None, str]:
    """Return a trace, what is known about its trial, a passing trial of its case, and a name."""
    from proctor.results.evidence import evidence_of, trajectories_of
    from proctor.runs.run import find_trial
    from proctor.trace.load import load_traces
    from proctor.trials.regression_case import good_recording

    if Path(source).is_file() or ":" not in source:
        found = load_traces(source)
        if len(found) != 1:
            raise ProctorError(f"the file holds {len(found)} traces, not one", where=source)
        return settings_redactor().trace(found[0]), None, None, Path(source).stem
    run, trial = find_trial(source, api.results_root())
    if (trace := run.trace(trial)) is None:
        raise ProctorError(f"the trial {trial.name} has no trace", where=str(run.path))
    evidence = evidence_of(trial, trajectories_of(run, {trial.case}))
    return trace, evidence, good_recording(run, trial), f"{trial.case}-regression"
