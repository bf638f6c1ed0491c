"""`proctor compare` and `proctor leaderboard`: two runs or agents, and many agents ranked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from proctor import api
from proctor.cli import _options
from proctor.cli._command import Command
from proctor.cli._options import option
from proctor.cli._output import echo_report
from proctor.errors import ProctorError

if TYPE_CHECKING:
    from proctor.runs.run import Run


@click.command(cls=Command)
@click.argument("runs", nargs=-1, metavar="RUN_A [RUN_B]...", shell_complete=_options.complete_runs)
@option(
    "--agents A,B",
    "Compare agents of one run, or one agent of each run. Unambiguous prefixes work.",
    multiple=True,
)
@option(
    "--cases PATTERN",
    "Only cases whose id matches, e.g. 'x*'.",
)
@_options.estimand_option
@option("--level X", "The confidence level of intervals.", type=_options.PROBABILITY, default=0.95)
@option("--seed N", "The seed of resampling.", type=int, default=0)
@_options.readable_runs_option
@_options.json_option
def compare(
    *, runs: tuple[str, ...], agents: tuple[str, ...], root: Path, as_json: bool, **how: Any
) -> None:
    """Compare two or more runs or agents.

    Compares case by case and overall. A run is a folder, <experiment>/<date>_<seq>, a tag, `latest`
    or an address. Only instances (a case under one seed) that are the same in both are paired; the
    others are listed. Three or more are compared pair by pair, with p-values corrected by Holm.

    Examples:
      # what changed since the run tagged `main`?
      proctor compare main latest
      # two agents of one run
      proctor compare latest --agents fast,careful
      # three agents: every pair
      proctor compare latest --agents fast,careful,cheap
      # about cases like these, not only about these
      proctor compare main latest --estimand population
      # one agent, two settings
      proctor compare latest --agents 'fast (t=0),fast (t=1)'
      # some cases only
      proctor compare shop/2026-01-31_001 shop/2026-01-31_002 --cases 'refund-*'
    """

    from proctor.report.console_results import render_comparison
    from proctor.report.figures import document

    if not runs and not agents:
        raise click.UsageError("name two runs, or two agents of one run with --agents A,B")
    if len(agents) == 1:
        # A comma in parentheses belongs to an agent's parameters.
        agents = tuple(part.strip() for part in re.split(r",(?![^(]*\))", agents[0]))
    opened = [_open(text, runs, root) for text in runs or ("latest",)]
    found = api.compare(*opened, agents=agents, **how)
    echo_report(document("comparison", found) if as_json else render_comparison(found))


def _open(text: str, runs: tuple[str, ...], root: Path) -> Run:
    """Open a run; if an agent was named instead, hint how to compare agents."""

    try:
        return _options.read_run(text, root)
    except ProctorError as error:
        # `proctor compare fast careful` is a frequent mistake: both are agents, not runs.
        try:
            agents = {cell.agent for cell in _options.read_run("latest", root).cells}
        except ProctorError:
            agents = set[str]()
        if text in agents:
            error.hint = f"{text} is an agent: proctor compare latest --agents {','.join(runs)}"
        raise


@click.command(cls=Command)
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=_options.complete_runs)
@option("--metric", "The metric to rank by.", choices=get_args(api.Metric), default="pass_rate")
@option(
    "--alpha X",
    "The significance level of all pairwise tests together.",
    type=_options.PROBABILITY,
    default=0.05,
)
@_options.estimand_option
@option("--seed N", "The seed of resampling.", type=int, default=0)
@_options.readable_runs_option
@_options.json_option
def leaderboard(*, runs: tuple[str, ...], root: Path, as_json: bool, **how: Any) -> None:
    """Rank agents, with rank ranges.

    Ranks the agents of the given runs, or of the latest. Agents without a significant difference
    share ranks. Agents are paired by instance: the same case under the same seed.

    Examples:
      # the agents of the latest run
      proctor leaderboard
      # of several runs
      proctor leaderboard shop/2026-01-31_001 shop/2026-01-31_002
      # the cheapest first
      proctor leaderboard --metric cost_usd
      # runs in an object store
      proctor leaderboard --results s3://bucket/results
    """
    from proctor.report.console_results import render_leaderboard
    from proctor.report.figures import document
    from proctor.runs.folder import place_of

    opened = [_options.read_run(text, root) for text in runs or ("latest",)]
    board = api.leaderboard(*opened, **how)
    if as_json:
        echo_report(document("leaderboard", board, runs=[place_of(run.path) for run in opened]))
    else:
        echo_report(render_leaderboard(board))
