"""Which runs a command is about: named by path, by tag, or the latest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from proctor.runs.run import Run

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def results_option(function: Decorated) -> Decorated:
    """Add `--results`."""
    option = click.option(
        "--results",
        type=click.Path(path_type=Path, file_okay=False),
        help="The folder of runs; that of the settings when absent.",
    )
    return option(function)


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
