"""`proctor check`: are the scenarios of a catalog fit to measure with?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from proctor.cli._command import Command, Example
from proctor.cli.list import FILTER
from proctor.errors import ProctorError
from proctor.sanitize import printable
from proctor.tables import table
from proctor.words import plural

if TYPE_CHECKING:
    from proctor.scenarios import Template
    from proctor.spec import Configuration
    from proctor.trials.sanity import Checked

EXAMPLES = [
    Example("proctor check catalog/", "every scenario of a folder"),
    Example("proctor check mutualism --seeds 100", "a scope, over many seeds"),
    Example("proctor check --filter difficulty:hard --json", "some of all, for a program"),
]

DEFAULT_SEEDS = "5"
"""Enough that a value drawn out of bounds now and then shows; quick enough for every commit."""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("catalog", required=False)
@click.option("--seeds", default=DEFAULT_SEEDS, metavar="SEEDS", help="A count, 1..10, or a list.")
@FILTER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def check(
    ctx: click.Context, catalog: str | None, seeds: str, expression: str, as_json: bool
) -> None:
    """Check that scenarios build, and can be solved.

    CATALOG is a folder of templates, a scope or a scenario; every scenario there is when absent.
    Each is built for every seed, chance is put to it, and the solution it declares must score as
    declared.

    Exits with 0 when all are fit, 1 when one is not, 2 when nothing could be checked.
    """
    from proctor.cli._output import stdout_reserved
    from proctor.cli.run import find_modules_here
    from proctor.spec.experiment import read_seeds
    from proctor.trials.loop import run_to_end
    from proctor.trials.sanity import acheck

    find_modules_here()
    try:
        wanted = read_seeds(seeds)
    except ValueError as error:
        raise ProctorError(str(error), where="--seeds") from None
    meant = _found(catalog, expression)
    with stdout_reserved():
        done = run_to_end(acheck(meant.templates, wanted, meant.configuration))
    found = [*done, *meant.broken]
    unfit = sum(not each.fit for each in found)
    if as_json:
        import msgspec

        document = {"fit": not unfit, "scenarios": found}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        _tell(found)
    ctx.exit(1 if unfit else 0)


class _Found(NamedTuple):
    """The templates meant, those that cannot be read, and the settings their names hold under."""

    templates: list[Template]
    broken: list[Checked]
    configuration: Configuration


def _found(name: str | None, expression: str) -> _Found:
    from proctor.scenarios import Catalog, catalog_for
    from proctor.spec import load_configuration, select_cases
    from proctor.trials.sanity import readable

    folder = Path(name) if name is not None and Path(name).is_dir() else None
    if folder is None:
        configuration = load_configuration()
        templates, broken = readable(catalog_for(configuration), name)
    else:
        configuration = load_configuration(folder, flags={"catalog": str(folder)})
        templates, broken = readable(Catalog([folder]))
        if not templates and not broken:
            raise ProctorError(
                "there is no scenario in this folder",
                where=str(folder),
                hint="a scenario `a.b` is a file a/b/spec.yaml in it",
            )
    return _Found(select_cases(templates, filter=expression), broken, configuration)


def _tell(found: list[Checked]) -> None:
    from proctor.trials.sanity import table as sanity_rows

    head, *rows = sanity_rows(found)
    for line in table(head, rows, indent=""):
        click.echo(printable(line))
    for each in found:
        for problem in each.problems:
            click.echo(printable(f"{each.case}: {problem}"), err=True)
        for note in each.notes:
            click.echo(printable(f"{each.case}: note: {note}"), err=True)
    fit = sum(each.fit for each in found)
    verb = "is" if len(found) == 1 else "are"
    click.echo(f"{fit} of {plural(len(found), 'scenario')} {verb} fit")
