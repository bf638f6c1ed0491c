"""`proctor plan`: how many cases and trials would show a difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import PROBABILITY, read_run, readable_runs_option, results_root
from proctor.cli._output import echo_report

EXAMPLES = [
    Example("proctor plan --effect 0.1 --power 0.8", "what would show a drop of 10 points?"),
    Example("proctor plan --effect 0.05 --from latest", "with the noise that a run had"),
    Example("proctor plan --effect 0.1 --cases 40", "how many trials of these 40 cases?"),
]

COUNT = click.IntRange(1)


@click.command(cls=Command, examples=EXAMPLES)
@click.option(
    "--effect",
    type=click.FloatRange(0, 1, min_open=True),
    required=True,
    metavar="X",
    help="The difference of pass rates to find: 0.1 is 10 points.",
)
@click.option(
    "--power",
    type=click.FloatRange(0.5, 1, max_open=True),
    default=0.8,
    show_default=True,
    metavar="X",
    help="How likely it is to be found.",
)
@click.option(
    "--alpha", type=PROBABILITY, default=0.05, show_default=True, metavar="X", help="Error."
)
@click.option("--from", "source", metavar="RUN", help="Take the noise and the cost from a run.")
@click.option("--cases", type=COUNT, metavar="N", help="Plan for this many cases.")
@click.option("--trials", type=COUNT, metavar="N", help="Plan for this many trials a case.")
@click.option(
    "--sigma2", type=PROBABILITY, metavar="X", help="The variance of a trial in its case."
)
@click.option(
    "--omega2", type=PROBABILITY, metavar="X", help="The variance of true case differences."
)
@readable_runs_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(
    effect: float,
    power: float,
    alpha: float,
    source: str | None,
    results: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Say how many cases and trials are needed.

    To show a difference of pass rates. Trials help against the noise of a trial, cases against
    differences between cases; a plan for a population says when only more cases help.
    """
    from proctor import api
    from proctor.report.console_results import render_power
    from proctor.report.figures import document

    run = read_run(source, results_root(results)) if source else None
    found = api.power(effect, alpha=alpha, power=power, run=run, **asked)
    echo_report(document("plan", found) if as_json else render_power(found))
