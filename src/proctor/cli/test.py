"""`proctor test`: every case of suites once, and what came of it in the formats asked for."""

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
    Example("proctor test suite.yaml --traces traces/", "judge recorded traces, run nothing"),
    Example(
        "proctor test suite.yaml --format junit -o junit.xml --format console",
        "a file for CI, a table for you",
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
    help="Only these cases, such as difficulty:hard.",
)
@click.option("--agent", "agents", multiple=True, metavar="AGENT", help="Try this one instead.")
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(list(FORMATS)),
    help="How to tell; may be given several times.  [default: console]",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FILE",
    help="Where to: the first -o is for the first --format, and so on.",
)
@click.option("--traces", multiple=True, metavar="PATH", help="Judge these traces, run nothing.")
@click.option(
    "--map",
    "map_file",
    type=click.Path(path_type=Path),
    help="With --traces: a YAML file of `case-id: trace-id-or-file`.",
)
@click.option("--concurrency", type=click.IntRange(min=1), help="Cases at a time.")
@click.option("--timeout", type=POSITIVE, help="Seconds for one case.")
@click.option("--fail-fast", is_flag=True, help="Begin no more cases once one has not passed.")
@click.pass_context
def test(
    ctx: click.Context,
    suites: tuple[Path, ...],
    formats: tuple[str, ...],
    outputs: tuple[str, ...],
    **wish: Any,
) -> None:
    """Try every case of suites once and judge what the agent did.

    Exits with 0 when all passed, 1 when a check that counts failed, 2 when something could not be
    judged (an agent that crashed, a missing trace, a suite that cannot be read).
    """
    from proctor.cli.run import find_modules_here
    from proctor.report.outputs import plan_outputs, write_outputs
    from proctor.report.trying import Wish
    from proctor.spec import SpecError
    from proctor.trials.loop import run_to_end

    planned = plan_outputs(formats, outputs, os.environ)
    find_modules_here()
    try:
        report = run_to_end(_tried(suites, Wish(**wish)))
    except SpecError as error:
        print_problems(error.problems)
        ctx.exit(EXIT_CANNOT_JUDGE)
    write_outputs(report, planned, os.environ)
    ctx.exit(report.exit_code)


async def _tried(suites: tuple[Path, ...], wish: Wish) -> Report:
    """The report, with progress for people and signals taken as a wish to stop."""
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
