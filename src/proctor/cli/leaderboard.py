"""`proctor leaderboard`: agents by how well they did, with the places each may hold."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from proctor.api import Metric
from proctor.cli._command import Command, Example
from proctor.cli._options import PROBABILITY, read_run, readable_runs_option, results_root
from proctor.cli._output import echo_report

EXAMPLES = [
    Example("proctor leaderboard", "the agents of the latest run"),
    Example("proctor leaderboard shop/2026-01-31_001 shop/2026-01-31_002", "of several runs"),
    Example("proctor leaderboard --metric cost_usd", "the cheapest first"),
    Example("proctor leaderboard --results s3://bucket/results", "of runs in an object store"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option(
    "--metric",
    type=click.Choice(get_args(Metric)),
    default="pass_rate",
    help="What agents are ranked by.",
)
@click.option(
    "--alpha",
    type=PROBABILITY,
    default=0.05,
    show_default=True,
    metavar="X",
    help="The error rate of all tests that tell agents apart, together.",
)
@click.option("--seed", type=int, default=0, metavar="N", help="Seed of resampling.")
@readable_runs_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def leaderboard(
    runs: tuple[str, ...],
    metric: Metric,
    alpha: float,
    seed: int,
    results: Path | None,
    as_json: bool,
) -> None:
    """Rank agents, with the places each may hold.

    Those of some runs; without a run, of the latest. Agents that paired tests do not tell apart
    share places. Intervals are clustered by case.
    """
    from proctor import api
    from proctor.report.console_results import render_leaderboard
    from proctor.report.figures import document
    from proctor.runs.folder import place_of

    root = results_root(results)
    opened = [read_run(text, root) for text in runs or ("latest",)]
    board = api.leaderboard(*opened, metric=metric, alpha=alpha, seed=seed)
    told = [place_of(run.path) for run in opened]
    echo_report(document("leaderboard", board, runs=told) if as_json else render_leaderboard(board))
