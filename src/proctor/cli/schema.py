"""`proctor schema`: the JSON Schema of what users write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from proctor.cli.lazy import Command, Example
from proctor.errors import ProctorError

EXAMPLES = [
    Example("proctor schema -o .proctor/suite.schema.json", "for the editor, beside the suite"),
    Example("proctor schema --kind config", "the schema of proctor.yaml"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.option(
    "--kind", type=click.Choice(["suite", "config"]), default="suite", help="Which kind of file."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file."
)
def schema(kind: Any, output: Path | None) -> None:
    """Print the JSON Schema of suites or settings."""
    import json

    from proctor.spec import schema_of

    text = json.dumps(schema_of(kind), indent=2) + "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(output)) from None
