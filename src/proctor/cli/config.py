"""`proctor config`: which settings are in force, and where each came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command, Entry, Example, LazyGroup
from proctor.sanitize import printable

if TYPE_CHECKING:
    from proctor.spec import Configuration

COMMANDS = {
    "show": Entry(
        "proctor.cli.config", "show", "Print every setting and where it came from, keys masked."
    ),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    examples=[Example("proctor config show", "what is set here, and by whom?")],
)
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
    lines = [("setting", "value", "from")]
    lines += [(key, _shown(value), origin) for key, value, origin in rows]
    lines += [(key, "(set)", "environment") for key, state in keys.items() if state == "set"]
    for line in _aligned(lines):
        click.echo(line)


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


def _shown(value: Any) -> str:
    import json

    if isinstance(value, str):
        return value
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def _aligned(lines: list[tuple[str, str, str]]) -> list[str]:
    """Columns side by side, never cut: an origin is there to be copied."""
    safe = [tuple(printable(part) for part in line) for line in lines]
    first, second = (max(len(line[column]) for line in safe) for column in (0, 1))
    # A very long value pushes its own origin aside, not everybody's.
    second = min(second, 40)
    return [f"{key:<{first}}  {value:<{second}}  {origin}" for key, value, origin in safe]
