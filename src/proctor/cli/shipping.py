"""Runs whose results are to be at an address: claimed there, shipped while they go on."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import click

from proctor.cli.terminal import printable
from proctor.errors import ProctorError
from proctor.runs.remote import REMEMBERED

if TYPE_CHECKING:
    from proctor.runs.folder import RunFolder
    from proctor.runs.remote.shipping import Destination, Shipper

MOST_TAKEN = 1000
"""Numbers that other machines may have taken before one gives up finding a free one."""


class Shipping:
    """Whether a run has arrived where it was to go."""

    arrived = True


def folder_at(far: str, make: Callable[[], RunFolder]) -> RunFolder:
    """A new run folder whose name is free at the address as well."""
    from proctor.runs import audit
    from proctor.runs.remote.shipping import Destination, begin_at
    from proctor.runs.remote.sync import name_of

    taken: list[RunFolder] = []
    try:
        for _ in range(MOST_TAKEN):
            folder = make()
            name = name_of(folder.path, audit.root_of(folder.path))
            try:
                if begin_at(folder, Destination(far, name)):
                    return folder
            except ProctorError:
                taken.append(folder)
                raise
            taken.append(folder)  # kept till the end, so that the next one gets another number
    finally:
        for folder in taken:
            shutil.rmtree(folder.path, ignore_errors=True)
    raise ProctorError("other runs have every name that this one could have", where=far)


@contextlib.contextmanager
def shipped(folder: RunFolder) -> Generator[Shipping]:
    """Ship a run while the block lasts, and whole after it, if it is to be shipped at all."""
    said = Shipping()
    if not (folder.path / REMEMBERED).exists():
        yield said
        return
    from proctor.runs.remote.shipping import Shipper, remembered

    to = remembered(folder.path)
    shipper = Shipper(folder, to, _warn)
    with shipper:
        yield said
    said.arrived = _finished(shipper, folder, to)


def _finished(shipper: Shipper, folder: RunFolder, to: Destination) -> bool:
    try:
        shipper.finish()
    except ProctorError as error:
        _warn(f"the run is safe here and not whole at {to.run}: {error}")
        hint = f"hint: proctor sync {folder.path} {to.address} sends the rest"
        click.echo(printable(hint), err=True)
        return False
    return True


def _warn(text: str) -> None:
    click.echo(f"warning: {printable(text)}", err=True)
