"""Follow a run that is being written, and ship what it has so far.

    <run>/.remote      here: where the run is shipped to, so that a resumed run goes on shipping

Promise: what was shipped can be brought back at any moment and resumed: whole lines of the journal
and every trace they refer to, because traces go first. A store that is away never disturbs the
run; what it missed goes with the next round or at the end. A crash costs the remote copy at most
the last round. At the end only what has not been shipped is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import warnings
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import NamedTuple

import msgspec

from proctor.background import PeriodicWork, run_sync
from proctor.errors import ProctorError
from proctor.files import write_atomic
from proctor.runs import audit
from proctor.runs.folder import RunFolder
from proctor.runs.heartbeat import NAME as HEARTBEAT
from proctor.runs.journal import last_line_end
from proctor.runs.remote import REMEMBERED, object_store, transfer
from proctor.runs.remote.manifest import JOURNAL, NAME, SPEC, FileFacts, Manifest
from proctor.runs.remote.object_store import Bucket, Patience
from proctor.runs.remote.transfer import (
    PIECE,
    Piece,
    TransferResult,
    push,
    read_manifest,
    read_part,
)
from proctor.runs.segments import segments

EVERY = 5.0
"""Seconds between rounds: what a lost machine may cost, against two small requests each."""


class Destination(msgspec.Struct, frozen=True):
    """Where a run is shipped to: a prefix, and its name below it."""

    address: str
    name: str

    @property
    def run(self) -> str:
        """The address of the run itself."""
        return object_store.joined(self.address, self.name)


def remembered(run: Path) -> Destination:
    """Where a run is shipped to."""
    try:
        return msgspec.json.decode((run / REMEMBERED).read_bytes(), type=Destination)
    except (OSError, msgspec.MsgspecError) as error:
        raise ProctorError(
            f"cannot tell where the run is shipped to: {error}",
            where=str(run / REMEMBERED),
            hint="delete the file to keep the run here only",
        ) from None


def begin_at(folder: RunFolder, to: Destination, patience: Patience | None = None) -> bool:
    """Take the run's place at the store; false when another run has it."""
    running = _running(folder, to)

    async def begun() -> bool:
        bucket = Bucket(to.run, patience)
        if not await bucket.claim(NAME, running.manifest):
            return False
        await bucket.put(SPEC, running.spec, _sha256(running.spec))
        return True

    if not run_sync(begun(), nested=True):
        return False
    write_atomic(folder.path / REMEMBERED, msgspec.json.encode(to))
    return True


class _Running(NamedTuple):
    """What stands at the store of a run that goes on, beside its pieces."""

    spec: bytes
    manifest: bytes


def _running(folder: RunFolder, to: Destination) -> _Running:
    spec = folder.spec_path.read_bytes()
    manifest = Manifest(
        run_id=str(folder.known_spec().get("run_id") or ""),
        name=to.name,
        state="running",
        files={SPEC: FileFacts(len(spec), _sha256(spec))},
    )
    return _Running(spec, manifest.encode())


class Shipper:
    """Ships a run from a thread of its own between `start` and `stop`; `finish` sends the rest."""

    def __init__(
        self,
        folder: RunFolder,
        to: Destination,
        warn: Callable[[str], None],
        *,
        every: float = EVERY,
        patience: Patience | None = None,
    ) -> None:
        self._folder = folder
        self._to = to
        self._warn = warn
        self._bucket = Bucket(to.run, patience)
        self._chains: dict[str, list[Piece]] | None = None
        self._rounds = PeriodicWork(self._round, every=every, name="shipping")
        self._trouble = False

    def start(self) -> None:
        """Begin to ship."""
        self._rounds.start()

    def stop(self) -> None:
        """Wait for the round that is under way, if any, and begin no other."""
        self._rounds.stop()

    def finish(self) -> TransferResult:
        """Send the run as it ended, complete and with its checksums; call after `stop`."""
        return run_sync(push(self._folder.path, self._to.name, self._bucket))

    def _round(self) -> None:
        try:
            run_sync(self.ship())
        except (ProctorError, OSError) as error:
            if not self._trouble:  # once: the run goes on, and so do we
                self._warn(f"shipping waits: {error}")
            self._trouble = True
        else:
            self._trouble = False

    async def ship(self) -> None:
        """One round: what has come since the last, traces before the lines that refer to them."""
        journal = self._folder.journal_path
        whole = last_line_end(journal, journal.stat().st_size) if journal.is_file() else 0
        if self._chains is None:
            self._chains = await self._already_there()
        for _, path in segments(self._folder.traces_path):
            name = path.relative_to(self._folder.path).as_posix()
            await self._send(name, path, path.stat().st_size)
        await self._send(JOURNAL, journal, whole)
        await self._say_running()
        beat = await asyncio.to_thread(read_part, self._folder.path / HEARTBEAT, 0, PIECE)
        if beat:  # for whoever watches there; last, since nothing depends on it
            await self._put(HEARTBEAT, beat)

    async def _send(self, name: str, path: Path, end: int) -> None:
        assert self._chains is not None
        chain = self._chains.setdefault(name, [])
        await transfer.lengthen(self._bucket, name, path, chain, end)
        await transfer.join_small(self._bucket, name, path, chain)

    async def _already_there(self) -> dict[str, list[Piece]]:
        """How far an earlier process came; pieces of what a crash left are taken away."""
        listed = await self._bucket.sizes()
        found: dict[str, list[Piece]] = {}
        stale: list[str] = []
        for name, chain in transfer.growing(listed, self._bucket.url).items():
            path = self._folder.path / name
            good = found[name] = await asyncio.to_thread(transfer.that_are_of, path, chain)
            stale += [piece.key for piece in chain[len(good) :]]
        await self._bucket.delete(stale)
        return found

    async def _say_running(self) -> None:
        """A run that had ended and goes on is told by its pieces, now that they are there."""
        before = await read_manifest(self._bucket)
        if before is None or before.state != "running":
            running = await asyncio.to_thread(_running, self._folder, self._to)
            await self._put(SPEC, running.spec)
            await self._put(NAME, running.manifest)

    async def _put(self, key: str, content: bytes) -> None:
        await self._bucket.put(key, content, _sha256(content))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Runs whose results are to be at an address: claimed there, shipped while they go on.
#
# Promise: the command and Python's calls do the same: a name that is free on both sides, rounds
# while the run goes on, all of it at the end. What goes wrong at the store is told through
# `warn` and never ends a run.


Warn = Callable[[str], None]

MOST_TAKEN = 1000
"""Numbers that other machines may have taken before one gives up finding a free one."""


class Shipping:
    """Whether a run has arrived where it was to go."""

    arrived = True


def folder_at(far: str, make: Callable[[], RunFolder]) -> RunFolder:
    """A new run folder whose name is free at the address as well."""
    from proctor.runs.remote.transfer import name_of

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
            f"`proctor runs sync {folder.path} {to.address}` sends the rest"
        )
        return False
    return True
