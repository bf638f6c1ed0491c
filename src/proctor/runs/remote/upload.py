"""Upload a run while it is being written.

    <run>/.remote      local: the upload address, so that a resumed run continues uploading

Guarantees: the uploaded part can be downloaded at any moment and resumed: whole lines of the
journal and every trace they refer to, because traces go first. An unavailable store never disturbs
the run; the missing part is sent in the next round or at the end, and errors of the store are
reported through `warn`. A crash costs the remote copy at most the last round. At the end only the
missing part is sent. The command and the Python API share all of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import warnings
from collections.abc import AsyncGenerator, Callable, Generator

import msgspec

from proctor.background import PeriodicWork, run_sync
from proctor.errors import ProctorError
from proctor.files import read_bounded, write_atomic
from proctor.runs import audit
from proctor.runs.folder import RunFolder
from proctor.runs.heartbeat import NAME as HEARTBEAT
from proctor.runs.journal import last_line_end
from proctor.runs.remote import REMEMBERED, object_store, transfer
from proctor.runs.remote.object_store import (
    JOURNAL,
    NAME,
    SPEC,
    Bucket,
    Manifest,
    facts_of_bytes,
)
from proctor.runs.remote.transfer import PIECE, Piece, name_of, push, read_manifest, read_part
from proctor.runs.segments import segments

EVERY = 5.0
"""Seconds between rounds: the loss if the machine fails, against two small requests each."""

MAX_NAMES = 1000
"""Maximum numbers to try, since other machines may have taken them."""

Warn = Callable[[str], None]


class Destination(msgspec.Struct, frozen=True):
    """Upload destination: a prefix, and the run's name below it."""

    address: str
    name: str

    @property
    def run(self) -> str:
        """The address of the run itself."""
        return object_store.joined(self.address, self.name)


def reserve_name(folder: RunFolder, to: Destination) -> bool:
    """Reserve the run's name in the store; return false when another run has it."""
    spec, manifest = _running_files(folder, to)

    async def reserve() -> bool:
        bucket = Bucket(to.run)
        if not await bucket.create(NAME, manifest):
            return False
        await bucket.put(SPEC, spec)
        return True

    if not run_sync(reserve(), nested=True):
        return False
    write_atomic(folder.path / REMEMBERED, msgspec.json.encode(to))
    return True


def _running_files(folder: RunFolder, to: Destination) -> tuple[bytes, bytes]:
    """Return spec and manifest of a running run: its files in the store besides the pieces."""
    spec = folder.spec_path.read_bytes()
    manifest = Manifest(
        run_id=str(folder.known_spec().get("run_id") or ""),
        name=to.name,
        state="running",
        files={SPEC: facts_of_bytes(spec)},
    )
    return spec, manifest.encode()


class Uploader:
    """Upload a run from a thread between `start` and `stop`; `finish` sends the rest."""

    def __init__(self, folder: RunFolder, to: Destination, warn: Warn) -> None:
        self._folder = folder
        self._to = to
        self._warn = warn
        self._bucket = Bucket(to.run)
        self._chains: dict[str, list[Piece]] | None = None
        self._rounds = PeriodicWork(self._round, every=EVERY, name="upload")
        self.start = self._rounds.start
        # Waits for the current round, if any.
        self.stop = self._rounds.stop
        self._failing = False

    def finish(self) -> bool:
        """Upload the finished run, complete and with its checksums; return whether it arrived.

        Call it after `stop`.
        """
        try:
            run_sync(push(self._folder.path, self._to.name, self._bucket))
        except ProctorError as error:
            self._warn(
                f"the run is complete here but not at {self._to.run}: {error}; "
                f"`proctor runs sync {self._folder.path} {self._to.address}` sends the rest"
            )
            return False
        return True

    def _round(self) -> None:
        try:
            run_sync(self.upload_round())
        except (ProctorError, OSError) as error:
            if not self._failing:  # warn once: the run continues, and so does the upload
                self._warn(f"upload delayed: {error}")
            self._failing = True
        else:
            self._failing = False

    async def upload_round(self) -> None:
        """Upload the new part, traces before the lines that refer to them."""
        journal = self._folder.journal_path
        # Measured before the traces are listed: every trace of these lines is in a segment by now.
        whole = last_line_end(journal, journal.stat().st_size) if journal.is_file() else 0
        if self._chains is None:
            self._chains = await self._uploaded_pieces()
        growing = [
            (path.relative_to(self._folder.path).as_posix(), path, path.stat().st_size)
            for _, path in segments(self._folder.traces_path)
        ]
        for name, path, end in [*growing, (JOURNAL, journal, whole)]:
            chain = self._chains.setdefault(name, [])
            await transfer.add_pieces(self._bucket, name, path, chain, end)
            await transfer.merge_small(self._bucket, name, path, chain)
        before = await read_manifest(self._bucket)
        if before is None or before.state != "running":
            # A finished run that continues: marked as running only now that its pieces exist.
            spec, manifest = await asyncio.to_thread(_running_files, self._folder, self._to)
            await self._bucket.put(SPEC, spec)
            await self._bucket.put(NAME, manifest)
        beat = await asyncio.to_thread(read_part, self._folder.path / HEARTBEAT, 0, PIECE)
        if beat:  # for remote observers; last, since nothing depends on it
            await self._bucket.put(HEARTBEAT, beat)

    async def _uploaded_pieces(self) -> dict[str, list[Piece]]:
        """Return how far an earlier process got; pieces left by a crash are removed."""
        listed = await self._bucket.sizes()
        found: dict[str, list[Piece]] = {}
        stale: list[str] = []
        for name, chain in transfer.stored_pieces(listed, self._bucket.url).items():
            good = found[name] = await transfer.pieces_of_file(self._folder.path / name, chain)
            stale += [piece.key for piece in chain[len(good) :]]
        await self._bucket.delete(stale)
        return found


def folder_at(address: str, make: Callable[[], RunFolder]) -> RunFolder:
    """Create a run folder whose name is also free at the address."""
    taken: list[RunFolder] = []
    try:
        for _ in range(MAX_NAMES):
            folder = make()
            # Kept until the end, so that the next one gets another number.
            taken.append(folder)
            name = name_of(folder.path, audit.root_of(folder.path))
            if reserve_name(folder, Destination(address, name)):
                return taken.pop()
    finally:
        for folder in taken:
            shutil.rmtree(folder.path, ignore_errors=True)
    raise ProctorError("no free name: other runs have all candidates", where=address)


def _uploader(folder: RunFolder, warn: Warn) -> Uploader | None:
    """Return the uploader of a run, if it has a destination."""
    path = folder.path / REMEMBERED
    if not path.exists():
        return None
    try:
        to = msgspec.json.decode(read_bounded(path, PIECE), type=Destination)
    except (OSError, ProctorError, msgspec.MsgspecError) as error:
        raise ProctorError(
            f"cannot read the upload destination: {error}",
            where=str(path),
            hint="delete the file to keep the run on this machine only",
        ) from None
    return Uploader(folder, to, warn)


class UploadState:
    """Whether a run has arrived at its destination, known after the upload."""

    arrived = True


@contextlib.contextmanager
def uploading(folder: RunFolder, warn: Warn) -> Generator[UploadState]:
    """Upload a run during the block, and completely after it, if it has a destination."""
    state = UploadState()
    uploader = _uploader(folder, warn)
    if uploader is None:
        yield state
        return
    uploader.start()
    try:
        yield state
    finally:
        uploader.stop()
    state.arrived = uploader.finish()


@contextlib.asynccontextmanager
async def uploading_async(folder: RunFolder) -> AsyncGenerator[None]:
    """Same as `uploading`, for an event loop, which it never blocks; errors become warnings."""
    uploader = _uploader(folder, lambda text: warnings.warn(text, stacklevel=2))
    if uploader is None:
        yield
        return
    uploader.start()
    try:
        yield
    finally:
        await asyncio.to_thread(uploader.stop)
    await asyncio.to_thread(uploader.finish)
