"""Lines of a trace in colour, for terminals only.

Kind and failure carry colour; everything also stands in the text itself, so nothing is lost
without it. `NO_COLOR` is respected.
"""

import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from proctor.trace.render import Line

_KIND_COLOURS = {
    "agent": "magenta",
    "planning": "magenta",
    "llm": "blue",
    "tool": "cyan",
    "retrieval": "green",
    "handoff": "yellow",
    "guardrail": "yellow",
}


def wants_colour() -> bool:
    """Whether standard output is a terminal and its user has not declined colour."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def painted(line: "Line") -> str:
    """A line of a tree with its parts in colour."""
    failed = bool(line.error)
    name = click.style(line.name, bold=True, fg="red" if failed else None)
    kind = click.style(line.kind, fg=_KIND_COLOURS.get(line.kind)) + " " if line.kind else ""
    parts = (
        f"{click.style(line.indent, dim=True)}{line.mark} {kind}{name}",
        click.style(line.detail, dim=True) if line.detail else "",
        click.style(line.error, fg="red") if line.error else "",
    )
    return "  ".join(part for part in parts if part)
