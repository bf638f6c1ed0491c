"""Which runs a command is about: named by path, by tag, or the latest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from proctor.runs.run import Run


def folder_or_address(value: str) -> Path | str:
    """A folder of runs: a path, or an address such as s3://bucket/prefix, which stays text."""
    if ":/" not in value:  # spares the import
        return Path(value)
    from proctor.runs.remote.address import checked, is_address

    return checked(value) if is_address(value) else Path(value)


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def results_option(function: Decorated) -> Decorated:
    """Add `--results`."""
    option = click.option(
        "--results",
        type=click.Path(path_type=Path, file_okay=False),
        callback=_here,
        help="The folder of runs; that of the settings when absent.",
    )
    return option(function)


def _here(ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path | None:
    """A folder; an address would otherwise become one with a strange name."""
    if value is None or ":" not in str(value):
        return value
    from proctor.errors import ProctorError
    from proctor.runs.remote.address import is_address

    if not is_address(value.as_posix()):
        return value
    raise ProctorError(
        f"`{ctx.command_path}` works on runs that are here, not at an address",
        hint="`proctor sync ADDRESS FOLDER` brings them; `results`, `sql`, `export`, `status`, "
        "`leaderboard`, `compare`, `gate` and `plan` read there",
    )


def readable_results_option(function: Decorated) -> Decorated:
    """Add `--results` to a command that only reads: an address does as well as a folder."""
    return _reading_option(_readable)(function)


def readable_runs_option(function: Decorated) -> Decorated:
    """Add `--results` to a command that looks at single runs, with `read_run`, here or there."""
    return _reading_option(_with_runs)(function)


def _reading_option(callback: Callable[..., Path | None]) -> Callable[[Decorated], Decorated]:
    return click.option(
        "--results",
        metavar="PATH",
        callback=callback,
        help="The folder of runs, or an address (s3://…); that of the settings when absent.",
    )


def _readable(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Path | None:
    return None if value is None else _folder_for(value, single=False)


def _with_runs(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Path | None:
    return None if value is None else _folder_for(value, single=True)


def _folder_for(value: str, *, single: bool) -> Path:
    """The folder that is meant, or one with copies of what is at the address that is."""
    from proctor import api

    if Path(value).is_file():
        raise click.BadParameter(f"Directory {value!r} is a file.")
    return api.results_root(value, copy="runs" if single else "queries", warn=warn)


def root_of(results: Path | None) -> Path:
    """Return the folder of runs: `--results`, else that of the settings."""
    from proctor import api

    return api.results_root(results)


def open_run(text: str, root: Path) -> Run:
    """A run by its path, by `<experiment>/<date>_<seq>`, by a tag, or `latest`."""
    from proctor.runs.find import find_run
    from proctor.runs.run import Run

    return Run(find_run(text, root))


def read_run(text: str, root: Path) -> Run:
    """Open a run as `open_run` does, or by its address, for reading only."""
    from proctor import api

    return api.open_run(text, results=root, warn=warn)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    from proctor.cli.terminal import printable

    click.echo(f"warning: {printable(text)}", err=True)


def put_on_record(command: str, root: Path, **facts: Any) -> None:
    """Write to the audit log; one that cannot be written is told, and changes nothing else."""
    from proctor.cli.terminal import printable
    from proctor.runs import audit

    if problem := audit.record(command, root, **facts):
        click.echo(f"warning: {printable(problem)}", err=True)


def tell(text: str) -> None:
    """Print a report, in colour where a terminal wants it."""
    from proctor.cli.colour import wants_colour

    click.echo(text, color=wants_colour())
