"""Upload a run while it is being written.

    <run>/.remote      local: the upload address, so that a resumed run continues uploading

Guarantees: the uploaded part can be downloaded at any moment and resumed: whole lines of the
journal and every trace they refer to, because traces go first. An unavailable store never disturbs
the run; the missing part is sent in the next round or at the end. A crash costs the remote copy at
most the last round. At the end only the missing part is sent.
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
"""Seconds between rounds: the loss if the machine fails, against two small requests each."""


class Destination(msgspec.Struct, frozen=True):
    """Upload destination: a prefix, and the run's name below it."""

    address: str
    name: str

    @property
    def run(self) -> str:
        """The address of the run itself."""
        return object_store.joined(self.address, self.name)


def remembered(run: Path) -> Destination:
    """Read the upload destination of a run."""
    try:
        return msgspec.json.decode((run / REMEMBERED).read_bytes(), type=Destination)
    except (OSError, msgspec.MsgspecError) as error:
        raise ProctorError(
            f"cannot read the upload destination: {error}",
            where=str(run / REMEMBERED),
            hint="delete the file to keep the run on this machine only",
        ) from None


def begin_at(folder: RunFolder, to: Destination, patience: Patience | None = None) -> bool:
    """Claim the run's name in the store; return false when another run has it."""
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
    """Files of a running run in the store, besides its pieces."""

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
    """Upload a run from a thread between `start` and `stop`; `finish` sends the rest."""

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
        """Start uploading."""
        self._rounds.start()

    def stop(self) -> None:
        """Wait for the current round, if any, and start no other."""
        self._rounds.stop()

    def finish(self) -> TransferResult:
        """Upload the finished run, complete and with its checksums; call after `stop`."""
        return run_sync(push(self._folder.path, self._to.name, self._bucket))

    def _round(self) -> None:
        try:
            run_sync(self.ship())
        except (ProctorError, OSError) as error:
            if not self._trouble:  # warn once: the run continues, and so does the upload
                self._warn(f"upload delayed: {error}")
            self._trouble = True
        else:
            self._trouble = False

    async def ship(self) -> None:
        """Upload one round: the new part, traces before the lines that refer to them."""
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
        if beat:  # for remote observers; last, since nothing depends on it
            await self._put(HEARTBEAT, beat)

    async def _send(self, name: str, path: Path, end: int) -> None:
        assert self._chains is not None
        chain = self._chains.setdefault(name, [])
        await transfer.lengthen(self._bucket, name, path, chain, end)
        await transfer.join_small(self._bucket, name, path, chain)

    async def _already_there(self) -> dict[str, list[Piece]]:
        """Return how far an earlier process got; pieces left by a crash are removed."""
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
        """Mark a finished run that continues as running, now that its pieces exist."""
        before = await read_manifest(self._bucket)
        if before is None or before.state != "running":
            running = await asyncio.to_thread(_running, self._folder, self._to)
            await self._put(SPEC, running.spec)
            await self._put(NAME, running.manifest)

    async def _put(self, key: str, content: bytes) -> None:
        await self._bucket.put(key, content, _sha256(content))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Runs with results at an address: claimed there, uploaded while they run. The command and the
# Python API do the same: a name that is free on both sides, rounds during the run, everything at
# the end. Errors of the store are reported through `warn` and never end a run.


Warn = Callable[[str], None]

MOST_TAKEN = 1000
"""Maximum numbers to try, since other machines may have taken them."""


class Shipping:
    """Return whether a run has arrived at its destination."""

    arrived = True


def folder_at(far: str, make: Callable[[], RunFolder]) -> RunFolder:
    """Create a run folder whose name is also free at the address."""
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
            taken.append(folder)  # kept until the end, so that the next one gets another number
    finally:
        for folder in taken:
            shutil.rmtree(folder.path, ignore_errors=True)
    raise ProctorError("no free name: other runs have all candidates", where=far)


def _shipper(folder: RunFolder, warn: Warn) -> tuple[Shipper, Destination] | None:
    """Return the uploader of a run, if it has a destination."""
    if not (folder.path / REMEMBERED).exists():
        return None

    to = remembered(folder.path)
    return Shipper(folder, to, warn), to


@contextlib.contextmanager
def shipped(folder: RunFolder, warn: Warn) -> Generator[Shipping]:
    """Upload a run during the block, and completely after it, if it has a destination."""
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
    """Same as `shipped`, for an event loop, which it never blocks; errors become warnings."""
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
            f"the run is complete here but not at {to.run}: {error}; "
            f"`proctor runs sync {folder.path} {to.address}` sends the rest"
        )
        return False
    return True
