"""`--log-file` and `--log-level`, the same for every command that may go on for hours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_LEVEL = "proctor.log_level"
_CHOICES = ("debug", "info", "warning", "error")


def log_options(function: Decorated) -> Decorated:
    """Add both options; the log is open while the command runs."""
    level = click.option(
        "--log-level",
        type=click.Choice(_CHOICES),
        default="info",
        show_default=True,
        is_eager=True,
        expose_value=False,
        callback=_remember,
        help="What is worth a line of it.",
    )
    file = click.option(
        "--log-file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        expose_value=False,
        callback=_open,
        help="Log to this file; it is begun anew every 10 MB, five older ones are kept.",
    )
    return file(level(function))


def _remember(ctx: click.Context, _param: click.Parameter, value: str) -> None:
    ctx.meta[_LEVEL] = value


def _open(ctx: click.Context, _param: click.Parameter, value: Path | None) -> None:
    if value is None:
        return
    from proctor.ops.logs import logging_to

    ctx.with_resource(logging_to(value, ctx.meta[_LEVEL]))
