"""What the commands that serve pages share: `--host`, and the extra they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def host_option(function: Decorated) -> Decorated:
    """Add `--host`: this machine alone unless said otherwise."""
    return click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        help="Where to listen; any address but this machine's own demands a token.",
    )(function)


def need_server() -> None:
    """Refuse, with what to install, where the parts of a server are not there."""
    from proctor.imports import needs_extra

    for package in ("starlette", "uvicorn"):
        needs_extra(package, "server")
