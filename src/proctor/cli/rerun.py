"""`proctor rerun`: repeat a run from its spec alone and compare the results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor import api
from proctor.cli._command import Command
from proctor.cli._options import (
    checked_run,
    complete_runs,
    count_option,
    events_option,
    option,
    quiet_option,
)
from proctor.formatting import clipped, plural
from proctor.sanitize import printable

if TYPE_CHECKING:
    from proctor.trials.resume import Rerun


MAX_DIFFERENCES = 20
"""Differences listed; `--json` has more."""


@click.command(cls=Command)
@click.argument("run", shell_complete=complete_runs)
@option("--results", "The results folder for the repeated run.", type=click.Path(path_type=Path))
@count_option("--concurrency", "Trials to run at the same time.")
@quiet_option
@events_option
@click.pass_context
def rerun(
    ctx: click.Context,
    run: str,
    results: Path | None,
    concurrency: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Repeat a run and compare the results.

    RUN is a folder, <experiment>/<date>_<seq>, a tag or `latest`.

    Everything comes from the run's _spec_.yaml: plan, agents, scenarios, settings. Recorded model
    calls are replayed. Timestamps and ids are not compared.

    Exits with 0 if all results are identical, 1 if they differ, 2 if they cannot be compared.

    Examples:
      # is it reproducible?
      proctor rerun results/suite/2026-01-31_001
      # into another folder, as JSON
      proctor rerun RUN --results /tmp/again --json
    """
    import msgspec

    from proctor.cli.run import allow_local_imports, execute_run
    from proctor.runs.folder import find_run
    from proctor.trials.resume import compared, prepare_rerun

    allow_local_imports()
    # Concurrency does not change results, so it is the only option.
    options: dict[str, Any] = {} if concurrency is None else {"concurrency": concurrency}
    first, context, folder = prepare_rerun(
        find_run(run, api.results_root()), results=results, **options
    )
    checked_run(first)
    ended = execute_run(context, folder, quiet=quiet, events=as_json)
    done = compared(first, ended.run)
    if as_json:
        document = {
            "first": str(done.first.path),
            "second": str(done.second.path),
            "identical": done.sameness.identical,
            "changed": done.changed,
            **msgspec.structs.asdict(done.sameness),
        }
        # msgspec writes NaN as null: JSON has no NaN, and results may.
        encoded = msgspec.json.encode(document, enc_hook=str)
        click.echo(msgspec.json.format(encoded, indent=2))
    else:
        _echo(done)
    # An interrupted repetition differs in any case, which says nothing.
    if ended.signal is not None:
        ctx.exit(ended.exit_code)
    ctx.exit(0 if done.sameness.identical else 1)


def _echo(done: Rerun) -> None:
    import msgspec

    same = done.sameness
    # First what changed around the run (versions, code): it may explain the differences.
    for line in done.changed:
        click.echo(printable(f"changed since: {line}"))
    for each in same.differences[:MAX_DIFFERENCES]:
        # As JSON: a status reads "hard_fail", not the representation of an enumeration.
        was, now = (
            clipped(msgspec.json.encode(value, enc_hook=str).decode(), 80)
            for value in (each.first, each.second)
        )
        click.echo(printable(f"  {each.trial}: {each.field} was {was}, is {now}"))
    if len(same.differences) > MAX_DIFFERENCES:
        click.echo("  and more")
    for label, names in (("only before", same.only_first), ("only now", same.only_second)):
        if names:
            click.echo(printable(f"{label}: {plural(len(names), 'trial')}, e.g. {names[0]}"))
    if same.identical:
        click.echo(
            f"identical: {same.compared} of {plural(same.compared, 'trial')}, "
            "ignoring timestamps and ids"
        )
    else:
        equal = same.compared - same.differing
        click.echo(f"not identical: {equal} of {plural(same.compared, 'trial')} the same")
    click.echo(printable(f"stored in {done.second.path}"))
