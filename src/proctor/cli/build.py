"""`proctor build`: a template, a seed and parameters become a folder."""

from __future__ import annotations

from pathlib import Path

import click

from proctor.cli._command import Command, Example
from proctor.errors import ProctorError
from proctor.sanitize import printable

EXAMPLES = [
    Example("proctor build mutualism.hidden_dependency --seed 7 -o meadow", "into a folder"),
    Example(
        "proctor build mutualism.hidden_dependency@hard --seed 7 --set species=9 -o meadow",
        "a variant, with a parameter of your own",
    ),
    Example("proctor build mutualism.competition --seed 7", "only into the cache; prints where"),
    Example("proctor build catalog/my/scenario/spec.yaml --seed 1", "a template by its file"),
]


def settings_of(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """`--set name=value`, each name once."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{value!r} is not name=value", ctx, param)
        if name.strip() in found:
            raise click.BadParameter(f"{name.strip()!r} is there twice", ctx, param)
        found[name.strip()] = text
    return found


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("name")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Where all its random numbers come from.",
)
@click.option(
    "--set",
    "params",
    metavar="NAME=VALUE",
    multiple=True,
    callback=settings_of,
    help="Give a parameter of the template; may be repeated.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write; it must not exist, or be empty.",
)
@click.option("--no-cache", is_flag=True, help="Build anew, and keep nothing in the cache.")
def build(
    *, name: str, seed: int, params: dict[str, str], out: Path | None, no_cache: bool
) -> None:
    """Build a scenario from a template and a seed.

    NAME is the template's dotted name in a catalog, with @VARIANT where it has some, or the path
    of a template. Prints the folder.
    """
    from proctor.scenarios import build_template, find_template
    from proctor.scenarios.builder import default_cache_folder
    from proctor.scenarios.params import params_from_text

    if no_cache and out is None:
        raise click.UsageError("--no-cache needs a folder to write: add -o DIR")
    template = find_template(name)
    given = params_from_text(template.params, params)
    built = build_template(template, seed, given, out=out, cache=not no_cache)
    if not built.is_kept:
        raise ProctorError(
            "the cache cannot be written", where=str(default_cache_folder()), hint="add -o DIR"
        )
    click.echo(printable(str(built.path)))
