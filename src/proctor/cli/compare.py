"""`proctor compare`: two runs, or two agents, on the same cases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import PROBABILITY, read_run, readable_runs_option, results_root
from proctor.cli._output import echo_report

if TYPE_CHECKING:
    from proctor.runs.run import Run

EXAMPLES = [
    Example("proctor compare baseline latest", "did the agent change since the tagged run?"),
    Example("proctor compare latest --agents fast,careful", "two agents of one run"),
    Example("proctor compare latest --agents 'fast (t=0),fast (t=1)'", "one agent, two settings"),
    Example("proctor compare shop/2026-01-31_001 shop/2026-01-31_002 --cases 'refund-*'", "some"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("runs", nargs=-1, metavar="RUN_A [RUN_B]")
@click.option(
    "--agents",
    multiple=True,
    metavar="A,B",
    help="Compare these two: of one run, or one of each. The beginning of a name will do.",
)
@click.option("--cases", metavar="PATTERN", help="Only cases whose id matches, such as 'x*'.")
@click.option(
    "--level",
    type=PROBABILITY,
    default=0.95,
    show_default=True,
    metavar="X",
    help="The confidence level of intervals.",
)
@click.option("--seed", type=int, default=0, metavar="N", help="Seed of resampling.")
@readable_runs_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def compare(
    *,
    runs: tuple[str, ...],
    agents: tuple[str, ...],
    cases: str | None,
    level: float,
    seed: int,
    results: Path | None,
    as_json: bool,
) -> None:
    """Compare two runs or two agents.

    Case by case and overall, with what was left out. A run is a folder,
    <experiment>/<date>_<seq>, a tag, `latest` or an address. Pairs the same cases; cases that
    changed between the runs are left out and named.
    """
    from proctor import api
    from proctor.report.console_results import render_comparison
    from proctor.report.figures import document

    if len(runs) > 2 or (not runs and not agents):
        raise click.UsageError("name two runs, or --agents A,B of one")
    root = results_root(results)
    names = _names(agents[0]) if len(agents) == 1 else agents
    opened = [_opened(text, runs, root) for text in runs or ("latest",)]
    second = opened[1] if len(opened) > 1 else None
    found = api.compare(opened[0], second, agents=names, cases=cases, level=level, seed=seed)
    echo_report(document("comparison", found) if as_json else render_comparison(found))


def _opened(text: str, runs: tuple[str, ...], root: Path) -> Run:
    """A run by its name; where two agents stand instead of runs, say how to compare them."""
    from proctor.errors import ProctorError

    try:
        return read_run(text, root)
    except ProctorError as error:
        try:
            known = {cell.agent for cell in read_run("latest", root).cells}
        except ProctorError:
            known = set[str]()
        if text in known:
            error.hint = f"{text} is an agent: proctor compare latest --agents {','.join(runs)}"
        raise


def _names(text: str) -> tuple[str, ...]:
    """Names between commas; those within parentheses belong to an agent's parameters."""
    import re

    return tuple(part.strip() for part in re.split(r",(?![^(]*\))", text))
