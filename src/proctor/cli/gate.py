"""`proctor gate`: is a run worse than its baseline, or is it noise?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import (
    PROBABILITY,
    read_run,
    readable_runs_option,
    record_audit,
    results_root,
)
from proctor.cli._output import echo_report

if TYPE_CHECKING:
    from proctor.results.gate import GateResult, Policy
    from proctor.runs.folder import RunFolder
    from proctor.runs.run import Run
    from proctor.stats.gate import GateRule
    from proctor.trials.prepare import RunContext

EXAMPLES = [
    Example("proctor gate latest --baseline baseline", "against the run tagged baseline"),
    Example("proctor gate latest --baseline shop/2026-01-31_001 --margin 0.1", "10 points matter"),
    Example("proctor gate latest --baseline baseline --inconclusive extend", "run more trials"),
    Example("proctor gate latest --baseline baseline --must-pass 'safety-*'", "no failure at all"),
    Example(
        "proctor gate latest --baseline s3://bucket/results/shop/2026-01-31_001",
        "against a run in an object store",
    ),
]


class How(NamedTuple):
    """What to do when it is inconclusive, and how loudly."""

    inconclusive: Policy
    extend_by: int | None
    extend_rounds: int
    must_pass: tuple[str, ...]
    quiet: bool
    as_json: bool


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("run")
@click.option("--baseline", required=True, metavar="RUN|TAG", help="What to hold it against.")
@click.option(
    "--margin",
    type=PROBABILITY,
    default=0.05,
    show_default=True,
    metavar="X",
    help="The smallest drop of the pass rate that matters: 0.05 is 5 points.",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 0.5, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    metavar="X",
    help="How often a run without a change may be called a regression.",
)
@click.option(
    "--max-errors",
    type=click.FloatRange(0, 1),
    default=0.05,
    show_default=True,
    metavar="X",
    help="The share of errored trials from which nothing is judged.",
)
@click.option(
    "--inconclusive",
    type=click.Choice(("pass", "fail", "extend")),
    default="pass",
    show_default=True,
    help="What an inconclusive gate comes to; `extend` runs more trials and judges again.",
)
@click.option(
    "--extend-by",
    type=click.IntRange(1),
    metavar="N",
    help="Trials added to each case (for each seed where there are several); as many as were "
    "planned when absent.",
)
@click.option(
    "--extend-rounds",
    type=click.IntRange(1, 10),
    default=1,
    show_default=True,
    metavar="N",
    help="How often it may be extended; each look then gets its share of alpha.",
)
@click.option("--must-pass", multiple=True, metavar="PATTERN", help="Cases that may never fail.")
@readable_runs_option
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def gate(
    ctx: click.Context,
    *,
    run: str,
    baseline: str,
    margin: float,
    alpha: float,
    max_errors: float,
    results: Path | None,
    **how: Any,
) -> None:
    """Say whether a run is worse than its baseline.

    REGRESSION, NO REGRESSION or INCONCLUSIVE, at a stated error rate. Exits with 0 when it
    passes, 1 for a regression, 2 when it could not be judged: not comparable, too many errors,
    or still inconclusive after it was extended.
    """
    from proctor.runs.folder import address_of
    from proctor.stats.gate import GateRule

    chosen = How(**how)
    if chosen.extend_by is not None and chosen.inconclusive != "extend":
        raise click.UsageError("--extend-by is for --inconclusive extend")
    root = results_root(results)
    runs = (read_run(run, root), read_run(baseline, root))
    far = address_of(runs[0].path)
    if chosen.inconclusive == "extend":
        _refuse_far(runs)
    rule = GateRule(margin=margin, alpha=alpha, max_error_rate=max_errors)
    facts, signal = _judged(runs, rule, chosen)
    code = facts.exit_code(chosen.inconclusive) if signal is None else 128 + signal
    _tell(facts, code, chosen)
    record_audit(
        "gate",
        root if far is None else results_root(None),
        run=far or runs[0].path,
        run_id=runs[0].run_id,
        outcome=f"{facts.verdict}: {facts.reason}",
        exit_code=code,
    )
    ctx.exit(code)


def _refuse_far(runs: tuple[Run, Run]) -> None:
    """Trials are added to runs that are here, not to copies."""
    from proctor.errors import ProctorError
    from proctor.runs.folder import address_of

    for run in runs:
        if address := address_of(run.path):
            raise ProctorError(
                "a run at an address cannot be extended",
                where=address,
                hint="`proctor sync ADDRESS FOLDER` brings it here",
            )


def _judged(runs: tuple[Run, Run], rule: GateRule, how: How) -> tuple[GateResult, int | None]:
    """The judgement, and the signal that ended its extension, if one did."""
    if how.inconclusive != "extend":
        from proctor import api

        found = api.gate(
            *runs,
            margin=rule.margin,
            alpha=rule.alpha,
            max_error_rate=rule.max_error_rate,
            must_pass=how.must_pass,
        )
        return found, None
    from proctor.cli.carrying import Carried, carry_out_here
    from proctor.cli.run import find_modules_here
    from proctor.trials.extend import Extending, judge_extending

    find_modules_here()
    carried: list[Carried] = []

    def carry(ready: RunContext, folder: RunFolder) -> Run:
        carried.append(carry_out_here(ready, folder, quiet=how.quiet, events=how.as_json))
        return carried[-1].run

    facts = judge_extending(
        *runs,
        carry,
        rule=rule,
        extending=Extending(how.extend_rounds, how.extend_by),
        must_pass=how.must_pass,
    )
    return facts, carried[-1].signal if carried else None


def _tell(facts: GateResult, code: int, how: How) -> None:
    from proctor.report.console_results import render_gate
    from proctor.report.figures import document

    if how.as_json:
        more = {"exit_code": code, "policy": how.inconclusive, "error_rate": facts.error_rate}
        echo_report(document("gate", facts, **more))
    else:
        echo_report(render_gate(facts))
