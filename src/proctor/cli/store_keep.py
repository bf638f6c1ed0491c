"""`proctor store NAME DIR`: keep a built scenario under a name."""

from __future__ import annotations

from pathlib import Path

import click

from proctor.cli._command import Command, Example
from proctor.sanitize import printable

EXAMPLES = [
    Example("proctor store meadow-7 meadow", "keep the built folder `meadow`"),
    Example("proctor store meadow-7 meadow --force", "in place of what has the name"),
]


@click.command(name="keep", cls=Command, examples=EXAMPLES)
@click.argument("name")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--force", is_flag=True, help="Replace another scenario of that name.")
def keep(*, name: str, folder: Path, force: bool) -> None:
    """Keep a built scenario under a name.

    The folder must be as `proctor build` wrote it. Prints where it is kept.
    """
    from proctor.scenarios.scenario import store

    click.echo(printable(str(store(name, folder, replace=force))))
