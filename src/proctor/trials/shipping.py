"""Runs whose results are to be at an address: claimed there, shipped while they go on.

Promise: the command and Python's calls do the same: a name that is free on both sides, rounds
while the run goes on, all of it at the end. What goes wrong at the store is told through `warn`
and never ends a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import warnings
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING

from proctor.errors import ProctorError
from proctor.runs import audit
from proctor.runs.remote import REMEMBERED

if TYPE_CHECKING:
    from proctor.runs.folder import RunFolder
    from proctor.runs.remote.shipping import Destination, Shipper

Warn = Callable[[str], None]

MOST_TAKEN = 1000
"""Numbers that other machines may have taken before one gives up finding a free one."""


class Shipping:
    """Whether a run has arrived where it was to go."""

    arrived = True


def folder_at(far: str, make: Callable[[], RunFolder]) -> RunFolder:
    """A new run folder whose name is free at the address as well."""
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


def _shipper(folder: RunFolder, warn: Warn) -> tuple[Shipper, Destination] | None:
    """What ships a run, if it is to be shipped at all."""
    if not (folder.path / REMEMBERED).exists():
        return None
    from proctor.runs.remote.shipping import Shipper, remembered

    to = remembered(folder.path)
    return Shipper(folder, to, warn), to


@contextlib.contextmanager
def shipped(folder: RunFolder, warn: Warn) -> Generator[Shipping]:
    """Ship a run while the block lasts, and whole after it, if it is to be shipped at all."""
    said = Shipping()
    found = _shipper(folder, warn)
    if found is None:
        yield said
        return
    shipper, to = found
    shipper.start()
    try:
        yield said
    finally:
        shipper.stop()
    said.arrived = _finished(shipper, folder, to, warn)


@contextlib.asynccontextmanager
async def shipped_meanwhile(folder: RunFolder) -> AsyncGenerator[None]:
    """`shipped`, inside an event loop, which it never keeps waiting; trouble is a warning."""
    found = _shipper(folder, _warn)
    if found is None:
        yield
        return
    shipper, to = found
    shipper.start()
    try:
        yield
    finally:
        await asyncio.to_thread(shipper.stop)
    await asyncio.to_thread(_finished, shipper, folder, to, _warn)


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def _finished(shipper: Shipper, folder: RunFolder, to: Destination, warn: Warn) -> bool:
    try:
        shipper.finish()
    except ProctorError as error:
        warn(
            f"the run is safe here and not whole at {to.run}: {error}; "
            f"`proctor sync {folder.path} {to.address}` sends the rest"
        )
        return False
    return True
