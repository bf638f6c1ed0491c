"""`proctor fetch`: bring a stored scenario back."""

from __future__ import annotations

from pathlib import Path

import click

from proctor.cli._command import Command, Example
from proctor.sanitize import printable

EXAMPLES = [
    Example("proctor fetch meadow-7", "into the folder ./meadow-7"),
    Example("proctor fetch meadow-7 -o again", "into another folder"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("name")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write; that of the name when not given.",
)
def fetch(*, name: str, out: Path | None) -> None:
    """Bring a stored scenario back.

    It is verified against the digests it was built with. Prints the folder.
    """
    from proctor.scenarios.scenario import fetch as bring
    from proctor.spec.suite import problem_with_id

    if out is None and problem_with_id(name) is None:
        out = Path(name)
    click.echo(printable(str(bring(name, out))))
