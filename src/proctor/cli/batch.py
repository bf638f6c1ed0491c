"""`proctor batch`: cases × agents × seeds, without a file."""

from __future__ import annotations

from typing import Any

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import options_of
from proctor.cli.run import SPELLED, How, begin, find_modules_here, how_options, telling
from proctor.trials.options import RunOptions

EXAMPLES = [
    Example(
        "proctor batch --cases 'mutualism/*' --agents random,scripted --seeds 10",
        "every scenario of a scope, two agents, ten seeds",
    ),
    Example(
        "proctor batch --cases 'difficulty:hard' --agents random --axis species=5,7,9",
        "hard ones, over a parameter",
    ),
    Example("proctor batch --cases suite.yaml --agents a,b --dry-run", "what would that be?"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.option(
    "--cases",
    multiple=True,
    required=True,
    metavar="GLOB",
    help="Names, globs or filters of the catalog, or a suite; may be given again.",
)
@click.option("--exclude", multiple=True, metavar="GLOB", help="Not these.")
@click.option(
    "--axis", "axes", multiple=True, metavar="NAME=A,B", help="A parameter that varies: its values."
)
@options_of(RunOptions, spelled=SPELLED, hidden=("default_trials",))
@how_options
@click.pass_context
def batch(
    ctx: click.Context,
    cases: tuple[str, ...],
    exclude: tuple[str, ...],
    axes: tuple[str, ...],
    **given: Any,
) -> None:
    """Run cases, agents and seeds against each other without a file.

    Exits as `proctor run` does.
    """
    from proctor.trials.experiments import read_axes
    from proctor.trials.targets import Kind, Target, batch_experiment

    how = How(**{name: given.pop(name) for name in How._fields if name in given})
    find_modules_here()
    name = how.name or "batch"
    with telling(how, name) as told:
        experiment = batch_experiment(
            cases, exclude=list(exclude), params=read_axes(axes), name=name
        )
        found = Target(Kind.EXPERIMENTS, experiments=(experiment,))
        ctx.exit(begin(found, how, given, told))
