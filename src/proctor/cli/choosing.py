"""Which runs a command is about: named by path, by tag, or the latest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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
    found = folder_or_address(value)
    if isinstance(found, str):
        return _copies(found, single=single)
    if found.is_file():
        raise click.BadParameter(f"Directory {value!r} is a file.")
    return found


def _copies(address: str, *, single: bool) -> Path:
    """Copies of the runs at an address: of what queries read, or of what finds `single` ones."""
    from proctor.cli.terminal import printable
    from proctor.runs.remote.mirror import QUERIES, RUNS, mirrored

    root, problems = mirrored(address, reading=RUNS if single else QUERIES)
    for problem in problems:
        click.echo(f"warning: {printable(problem)}", err=True)
    return root


def root_of(results: Path | None) -> Path:
    """The folder of runs that is meant."""
    if results is not None:
        return results
    from proctor.spec import load_configuration

    return load_configuration().results


def open_run(text: str, root: Path) -> Run:
    """A run by its path, by `<experiment>/<date>_<seq>`, by a tag, or `latest`."""
    from proctor.runs.find import find_run
    from proctor.runs.run import Run

    return Run(find_run(text, root))


class Located(NamedTuple):
    """The folder of a run, which may be a copy, and the folder of runs it is below."""

    run: Path
    root: Path


def locate_run(text: str, root: Path) -> Located:
    """A run as `open_run` names it, or by its address: only to be read."""
    from proctor.runs.find import all_runs, find_run

    address = folder_or_address(text)
    if isinstance(address, Path):
        return Located(find_run(text, root), root)
    from proctor.errors import ProctorError

    root = _copies(address, single=True)
    runs = all_runs(root)
    if len(runs) == 1:
        return Located(runs[0], root)
    some = f"name one, such as {address}/{runs[0].relative_to(root).as_posix()}" if runs else None
    raise ProctorError(f"{len(runs)} runs can be read here, not one", where=address, hint=some)


def read_run(text: str, root: Path) -> Run:
    """A run as `open_run` names it, or by its address: only to be read."""
    from proctor.runs.folder import address_of
    from proctor.runs.run import Run

    found = locate_run(text, root)
    if address_of(found.run) is None:
        return Run(found.run)
    from proctor.runs.remote.mirror import with_journal

    return Run(with_journal(found.run, found.root))


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
