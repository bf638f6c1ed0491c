"""`proctor test`: run each case of suites once and report the result in one or more formats."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import POSITIVE
from proctor.cli.validate import print_problems
from proctor.errors import EXIT_CANNOT_JUDGE
from proctor.report.formats import FORMATS

if TYPE_CHECKING:
    from proctor.report.facts import Report
    from proctor.report.trying import Wish

EXAMPLES = [
    Example("proctor test suite.yaml", "is the agent right?"),
    Example("proctor test suite.yaml --tags smoke --filter '!difficulty:hard'", "some cases only"),
    Example("proctor test suite.yaml --traces traces/", "check recorded traces, run nothing"),
    Example(
        "proctor test suite.yaml --format junit -o junit.xml --format console",
        "a file for CI and a table",
    ),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("suites", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--tags", multiple=True, metavar="A,B", help="Only cases with one of these tags.")
@click.option(
    "--filter",
    "expression",
    default="",
    metavar="EXPR",
    help="Only matching cases, e.g. difficulty:hard.",
)
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="AGENT",
    help="Override the suite's agent; repeatable.",
)
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(list(FORMATS)),
    help="Output format; repeatable.  [default: console]",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FILE",
    help="Output file; the first -o is for the first --format, and so on.",
)
@click.option("--traces", multiple=True, metavar="PATH", help="Check these traces, run nothing.")
@click.option(
    "--map",
    "map_file",
    type=click.Path(path_type=Path),
    help="With --traces: a YAML file with `case-id: trace-id-or-file`.",
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), metavar="N", help="Cases to run at the same time."
)
@click.option("--timeout", type=POSITIVE, metavar="SECONDS", help="Time limit per case.")
@click.option("--fail-fast", is_flag=True, help="Start no more cases after one has not passed.")
@click.pass_context
def test(
    ctx: click.Context,
    suites: tuple[Path, ...],
    formats: tuple[str, ...],
    outputs: tuple[str, ...],
    **wish: Any,
) -> None:
    """Run each case once and check the result.

    Nothing is stored. (`validate` only reads the files, `run` stores every trial, `scenario check`
    builds scenarios and solves them.) Exits with 0 if all cases passed, 1 if a blocking check
    failed, 2 if something could not be judged (a crashed agent, a missing trace, an invalid suite).
    """
    from proctor.background import run_sync
    from proctor.cli.run import find_modules_here
    from proctor.report.outputs import plan_outputs, write_outputs
    from proctor.report.trying import Wish
    from proctor.spec import SpecError

    planned = plan_outputs(formats, outputs, os.environ)
    find_modules_here()
    try:
        report = run_sync(_tried(suites, Wish(**wish)))
    except SpecError as error:
        print_problems(error.problems)
        ctx.exit(EXIT_CANNOT_JUDGE)
    write_outputs(report, planned, os.environ)
    ctx.exit(report.exit_code)


async def _tried(suites: tuple[Path, ...], wish: Wish) -> Report:
    """Run the cases with a progress display; Ctrl-C stops them in order."""
    from proctor.cli._output import stdout_reserved
    from proctor.cli._signals import StopRequest
    from proctor.cli.ticker import Ticker
    from proctor.report.trying import plan_tries, try_all

    with stdout_reserved():
        tries = plan_tries(suites, wish)
        ticker = Ticker(sum(len(each.plan) for each in tries))
        stop = StopRequest()
        with stop.listening():
            async with ticker.running():
                report = await try_all(
                    tries, stop=stop.event, on_finished=ticker.finished, fail_fast=wish.fail_fast
                )
    return report if stop.signal is None else report.interrupted(stop.signal)
