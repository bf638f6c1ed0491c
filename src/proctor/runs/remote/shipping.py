"""Follow a run that is being written, and ship what it has so far.

    <run>/.remote      here: where the run is shipped to, so that a resumed run goes on shipping

Promise: what was shipped can be brought back at any moment and resumed: whole lines of the journal
and every trace they refer to, because traces go first. A store that is away never disturbs the
run; what it missed goes with the next round or at the end. A crash costs the remote copy at most
the last round.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import msgspec

from proctor.errors import ProctorError
from proctor.runs.folder import RunFolder, write_atomic
from proctor.runs.heartbeat import NAME as HEARTBEAT
from proctor.runs.journal import last_line_end
from proctor.runs.remote import REMEMBERED, address, pieces
from proctor.runs.remote.bucket import Bucket, Patience
from proctor.runs.remote.manifest import JOURNAL, NAME, SPEC, Manifest, facts_of
from proctor.runs.remote.transfer import Moved, push, read_manifest
from proctor.runs.remote.waiting import to_end
from proctor.runs.segments import segments

EVERY = 5.0
"""Seconds between rounds: what a lost machine may cost, against two small requests each."""

PIECE = 8 << 20
"""Bytes of a piece at most: it is held in memory while it is sent."""


class Destination(msgspec.Struct, frozen=True):
    """Where a run is shipped to: a prefix, and its name below it."""

    address: str
    name: str

    @property
    def run(self) -> str:
        """The address of the run itself."""
        return address.joined(self.address, self.name)


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
    spec = facts_of(folder.spec_path)
    run_id = str(folder.known_spec().get("run_id") or "")
    manifest = Manifest(run_id=run_id, name=to.name, state="running", files={SPEC: spec})

    async def begun() -> bool:
        bucket = Bucket(to.run, patience)
        if not await bucket.claim(NAME, manifest.encode()):
            return False
        await bucket.put(SPEC, folder.spec_path.read_bytes(), spec.sha256)
        return True

    if not to_end(begun()):
        return False
    write_atomic(folder.path / REMEMBERED, msgspec.json.encode(to))
    return True


class Shipper:
    """Ships a run from a thread of its own while the block lasts."""

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
        self._every = every
        self._bucket = Bucket(to.run, patience)
        self._patience = patience
        self._ends: dict[str, int] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._rounds, name="shipping", daemon=True)
        self._trouble = False

    def __enter__(self) -> Shipper:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def finish(self) -> Moved:
        """Send the run as it ended, complete and with its checksums; call after the block."""
        bucket = Bucket(self._to.address, self._patience)
        return asyncio.run(push(self._folder.path, self._to.name, bucket))

    def _rounds(self) -> None:
        while not self._stop.wait(self._every):
            try:
                asyncio.run(self.ship())
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
        if self._ends is None:
            self._ends = await self._already_there()
        for _, path in segments(self._folder.traces_path):
            name = path.relative_to(self._folder.path).as_posix()
            await self._send(name, path, path.stat().st_size)
        await self._send(JOURNAL, journal, whole)
        await self._say_running()
        beat = await asyncio.to_thread(_read, self._folder.path / HEARTBEAT, 0, PIECE)
        if beat:  # for whoever watches there; last, since nothing depends on it
            await self._bucket.put(HEARTBEAT, beat, hashlib.sha256(beat).hexdigest())

    async def _send(self, name: str, path: Path, end: int) -> None:
        assert self._ends is not None
        start = self._ends.get(name, 0)
        while start < end:
            content = await asyncio.to_thread(_read, path, start, min(PIECE, end - start))
            if not content:  # it became shorter: the next round sees it as it is
                return
            key = pieces.key_of(name, start, content)
            await self._bucket.put(key, content, hashlib.sha256(content).hexdigest())
            start += len(content)
            self._ends[name] = start

    async def _already_there(self) -> dict[str, int]:
        """How far an earlier process came; pieces of what a crash left are taken away."""
        listed = await self._bucket.sizes()
        ends: dict[str, int] = {}
        stale: list[str] = []
        for name, chain in pieces.growing(listed, self._bucket.url).items():
            good = True
            for piece in chain:
                here = _read(self._folder.path / name, piece.start, piece.size)
                good = good and pieces.key_of(name, piece.start, here) == piece.key
                if good:
                    ends[name] = piece.end
                else:
                    stale.append(piece.key)
        await self._bucket.delete(stale)
        return ends

    async def _say_running(self) -> None:
        """A run that had ended and goes on is told by its pieces, now that they are there."""
        before = await read_manifest(self._bucket)
        if before is None or before.state != "running":
            spec = await asyncio.to_thread(self._folder.spec_path.read_bytes)
            facts = facts_of(self._folder.spec_path)
            await self._bucket.put(SPEC, spec, facts.sha256)
            now = Manifest(
                run_id=str(self._folder.read_spec().get("run_id") or ""),
                name=self._to.name,
                state="running",
                files={SPEC: facts},
            )
            content = now.encode()
            await self._bucket.put(NAME, content, hashlib.sha256(content).hexdigest())


def _read(path: Path, start: int, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(size)
    except FileNotFoundError:
        return b""
