"""`proctor init`: a suite that works, to be changed into one's own."""

from __future__ import annotations

from pathlib import Path

import click

from proctor.cli._command import Command, Example
from proctor.sanitize import printable

EXAMPLES = [
    Example("proctor init", "start in this folder"),
    Example("proctor init evals", "start in a folder of its own"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("directory", default=".", type=click.Path(path_type=Path, file_okay=False))
def init(directory: Path) -> None:
    """Write a suite, an example agent and a CI workflow to start from.

    Nothing that exists is overwritten.
    """
    from proctor.spec.scaffold import scaffold

    written = scaffold(directory)
    for file in written:
        word = "wrote" if file.written else "kept "
        click.echo(printable(f"{word} {file.path}  ({file.what})"))
    suite = printable(str(directory / "suite.yaml"))
    click.echo(f"\nnext:\n  proctor validate {suite}\n  proctor test {suite}")
    click.echo("then put your own agent and your own cases in their place")
