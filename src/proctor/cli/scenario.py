"""`proctor scenario`: build scenarios from templates, check, store and fetch them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from proctor.cli._command import CommandGroup
from proctor.cli._options import FOLDER, filter_option, json_option, key_values, option
from proctor.cli._output import echo_json, stdout_reserved
from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.sanitize import printable
from proctor.tables import table

if TYPE_CHECKING:
    from proctor.scenarios import Template
    from proctor.spec import Configuration
    from proctor.trials.scenario_check import Checked


@click.group(cls=CommandGroup)
def scenario() -> None:
    """Build, check, store and fetch scenarios.

    Examples:
      # build one into a folder
      proctor scenario build mutualism.hidden_dependency --seed 7 -o meadow
      # can all of them be built and solved?
      proctor scenario check catalog/
    """


@scenario.command()
@click.argument("name")
@option("--seed", "The seed of all its random numbers.", type=click.IntRange(min=0), default=0)
@option(
    "--set NAME=VALUE",
    "params",
    "Set a parameter of the template; repeatable.",
    multiple=True,
    callback=key_values,
)
@option("-o", "--out", "The folder to write; it must not exist, or be empty.", type=FOLDER)
@option("--no-cache", "Build again, and cache nothing.", is_flag=True)
def build(
    *, name: str, seed: int, params: dict[str, str], out: Path | None, no_cache: bool
) -> None:
    """Build a scenario from a template and a seed.

    NAME is the template's dotted name in a catalog, with @VARIANT if it has variants, or the path
    of a template. Prints the folder.

    Examples:
      # build into a folder
      proctor scenario build mutualism.hidden_dependency --seed 7 -o meadow
      # a variant, with your own parameter
      proctor scenario build mutualism.hidden_dependency@hard --seed 7 --set species=9 -o meadow
      # build into the cache and print the path
      proctor scenario build mutualism.competition --seed 7
      # a template file
      proctor scenario build catalog/my/scenario/spec.yaml --seed 1
    """
    from proctor.scenarios import build_template, find_template
    from proctor.scenarios.builder import default_cache_folder
    from proctor.scenarios.params import params_from_text

    # The result would be lost: it would be in no folder and in no cache.
    if no_cache and out is None:
        raise click.UsageError("--no-cache needs a folder to write: add -o DIR")
    template = find_template(name)
    # The template knows the types, so that `species=9` becomes a number.
    given = params_from_text(template.params, params)
    built = build_template(template, seed, given, out=out, cache=not no_cache)
    if not built.is_kept:
        raise ProctorError(
            "the cache cannot be written", where=str(default_cache_folder()), hint="add -o DIR"
        )
    click.echo(printable(str(built.path)))


@scenario.command()
@click.argument("catalog", required=False)
# Five are enough to notice a value that is sometimes out of bounds, and quick on every commit.
@option("--seeds SEEDS", "A count, a range 1..10, or a list 1,5,9.", default="5")
@filter_option("scenarios")
@json_option
@click.pass_context
def check(
    ctx: click.Context, catalog: str | None, seeds: str, expression: str, as_json: bool
) -> None:
    """Check that scenarios can be built and solved.

    CATALOG is a folder of templates, a scope or a scenario; by default all scenarios. Each is built
    for every seed and run with a random agent, and its declared solution must reach the declared
    score. (`validate` only reads files; `test` runs each case of a suite once and stores nothing.)

    Exits with 0 if all are fit for use, 1 if one is not, 2 if nothing could be checked.

    Examples:
      # every scenario of a folder
      proctor scenario check catalog/
      # a scope, with many seeds
      proctor scenario check mutualism --seeds 100
      # some of all, as JSON
      proctor scenario check --filter difficulty:hard --json
    """
    from proctor.background import run_sync
    from proctor.spec.experiment import read_seeds
    from proctor.trials.scenario_check import acheck

    try:
        wanted = read_seeds(seeds)
    except ValueError as error:
        raise ProctorError(str(error), where="--seeds") from None
    templates, unreadable, configuration = _templates(catalog, expression)
    # Worlds and agents of users may print, which would break the JSON document.
    with stdout_reserved():
        checked = run_sync(acheck(templates, wanted, configuration))
    found = [*checked, *unreadable]
    unfit = sum(not each.fit for each in found)
    if as_json:
        echo_json({"fit": not unfit, "scenarios": found})
    else:
        _echo_checked(found)
    ctx.exit(1 if unfit else 0)


def _templates(
    name: str | None, expression: str
) -> tuple[list[Template], list[Checked], Configuration]:
    """Return the selected templates, those that cannot be read, and the settings they are under."""
    from proctor.scenarios import Catalog, catalog_for
    from proctor.spec import load_configuration, select_cases
    from proctor.trials.scenario_check import readable

    # A folder wins over a scope of the same name: it is what the user sees.
    folder = Path(name) if name is not None and Path(name).is_dir() else None
    if folder is None:
        configuration = load_configuration()
        templates, unreadable = readable(catalog_for(configuration), name)
    else:
        # As if the folder were the project's catalog, so that its templates are found by name.
        configuration = load_configuration(folder, flags={"catalog": str(folder)})
        templates, unreadable = readable(Catalog([folder]))
        if not templates and not unreadable:
            raise ProctorError(
                "no scenarios in this folder",
                where=str(folder),
                hint="the scenario `a.b` is the file a/b/spec.yaml",
            )
    return select_cases(templates, filter=expression), unreadable, configuration


def _echo_checked(found: list[Checked]) -> None:
    from proctor.trials.scenario_check import table as sanity_rows

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


@scenario.command()
@click.argument("name")
@click.argument("folder", metavar="DIR", type=FOLDER)
@option("--force", "Replace another scenario of that name.", is_flag=True)
def store(*, name: str, folder: Path, force: bool) -> None:
    """Store a built scenario under a name.

    The folder must be unchanged since `proctor scenario build` wrote it. Prints its path in the
    storage.

    Examples:
      # store the built folder `meadow`
      proctor scenario store meadow-7 meadow
      # replace what has the name
      proctor scenario store meadow-7 meadow --force
    """
    from proctor.scenarios.scenario import store as store_scenario

    click.echo(printable(str(store_scenario(name, folder, replace=force))))


@scenario.command()
@click.argument("name")
@option("-o", "--out", "The folder to write.  [default: NAME]", type=FOLDER)
def fetch(*, name: str, out: Path | None) -> None:
    """Fetch a stored scenario.

    It is verified against the digests from its build. Prints the folder.

    Examples:
      # into the folder ./meadow-7
      proctor scenario fetch meadow-7
      # into another folder
      proctor scenario fetch meadow-7 -o again
    """
    from proctor.scenarios.scenario import fetch as fetch_scenario
    from proctor.spec.suite import problem_with_id

    # A bad name is left to `fetch`, whose error explains names; it must not become a path here.
    if out is None and problem_with_id(name) is None:
        out = Path(name)
    click.echo(printable(str(fetch_scenario(name, out))))
