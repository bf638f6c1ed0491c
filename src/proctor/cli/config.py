"""`proctor config`: which settings are in force, and where each came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from proctor.cli.lazy import Command, Entry, Example, LazyGroup
from proctor.cli.terminal import printable

if TYPE_CHECKING:
    from proctor.spec import Configuration

COMMANDS = {
    "show": Entry(
        "proctor.cli.config", "show", "Print every setting and where it came from, keys masked."
    ),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def config() -> None:
    """Look at the settings in force."""


@click.command(
    cls=Command,
    examples=[
        Example("proctor config show", "what is set here, and by whom?"),
        Example("proctor config show --json", "the same for a program to read"),
    ],
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(as_json: bool) -> None:
    """Print every setting and where it came from, keys masked."""
    import os

    from proctor.spec import load_configuration
    from proctor.spec.config import provider_keys

    configuration = load_configuration()
    rows = _rows(configuration)
    keys = provider_keys(os.environ)
    if as_json:
        import json

        document = {
            "files": [str(path) for path in configuration.files],
            "settings": {key: {"value": value, "from": origin} for key, value, origin in rows},
            "keys": keys,
        }
        click.echo(json.dumps(document, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for key, value, origin in rows:
        shown = "" if value is None else value if isinstance(value, str) else _json(value)
        table.add_row(*(Text(printable(part)) for part in (key, shown, origin)))
    for name, state in keys.items():
        if state == "set":
            table.add_row(Text(name), Text("(set)"), Text("environment"))
    Console(soft_wrap=True).print(table)


MASK = "(hidden)"


def _rows(configuration: Configuration) -> list[tuple[str, Any, str]]:
    """Key, value and origin of every setting; what is or may be a secret is masked."""
    from proctor.trace.redact import Redactor

    redactor = Redactor()
    rows: list[tuple[str, Any, str]] = []
    for entry in configuration.values():
        last = entry.key.rpartition(".")[2]
        value = MASK if entry.secret else entry.value
        # Named as it is, so that a key is known by its name as well as by its looks.
        shown: Any = redactor.value({last: value})
        rows.append((entry.key, next(iter(shown.values())), str(entry.origin)))
    return rows


def _json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)
