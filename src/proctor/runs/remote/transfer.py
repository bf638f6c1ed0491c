"""Upload a run to an object store, download it, and verify it there.

Guarantees: files already present with the right checksum are not sent again, so an interrupted
transfer continues, and of a file uploaded in pieces while it grew only the rest is sent; a file is
replaced completely or not at all, and a run is visible only when all of it has arrived (the
manifest is written last, and locally the spec). A file that does not match its checksum is reported
and never put in place. A run is never replaced by another one, nor by an earlier state of itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise, takewhile
from pathlib import Path
from typing import IO, NamedTuple

from proctor.files import replacing
from proctor.runs.find import all_runs, find_run
from proctor.runs.folder import RunFolder, RunFolderError
from proctor.runs.remote import object_store
from proctor.runs.remote.manifest import (
    FORMAT,
    MOST_BYTES,
    NAME,
    ONLY_GROW,
    PIECES,
    SPEC,
    FileFacts,
    Manifest,
    RemoteError,
    decode,
    facts_of,
    is_inside,
    run_files,
)
from proctor.runs.remote.object_store import Bucket, Patience

# Files stored in pieces, because they grew while they were uploaded. A piece is named by its start
# and a prefix of its SHA-256, and never changes. A reassembled file has no gap and no byte without
# a matching checksum; pieces after a gap are ignored. Trade-off: small pieces are sent once more,
# merged, so that a long run does not end as thousands of objects.


MARK = 16
"""Hexadecimal digits of the checksum in a name: 64 bits are enough to detect damage."""

PIECE = 8 << 20
"""Maximum bytes of a piece: it is held in memory while it is sent."""

PIECES_SMALL = 1 << 20
"""Bytes below which a piece is small: requests for it cost more than its bytes."""

MANY, ENOUGH = 64, 4 << 20
"""Small adjacent pieces are merged at this number, or at this total size, so that merged pieces are
rarely merged again.
"""

_KEY = re.compile(rf"{PIECES}/(?P<file>.+)/(?P<start>\d{{15}})-(?P<mark>[0-9a-f]{{{MARK}}})")


_COMPARED = 1 << 20
"""Bytes of two files compared per read."""


class DamagedPieceError(RemoteError):
    """A piece does not match the checksum in its name."""


class Piece(NamedTuple):
    """Bytes of a file, beginning at `start`."""

    start: int
    size: int
    key: str
    mark: str

    @property
    def end(self) -> int:
        """The start of the next piece."""
        return self.start + self.size

    @property
    def name(self) -> str:
        """The name of the piece among those of its file."""
        return self.key.rpartition("/")[2]


def piece_of(file: str, start: int, content: bytes) -> Piece:
    """Return the piece for a part of a file; its key is below its run."""
    mark = _mark(content)
    return Piece(start, len(content), f"{PIECES}/{file}/{start:015d}-{mark}", mark)


def growing(listed: Mapping[str, int], where: str) -> dict[str, list[Piece]]:
    """Return the files that have pieces: those that join without a gap, from the start."""
    found: dict[str, list[Piece]] = {}
    for key, size in listed.items():
        if match := _KEY.fullmatch(key):
            file = match["file"]
            if not is_inside(file):
                raise RemoteError(f"a piece is of a file outside the run: {file!r}", where=where)
            found.setdefault(file, []).append(Piece(int(match["start"]), size, key, match["mark"]))
    return {file: _joined(all_of) for file, all_of in found.items()}


def _joined(found: list[Piece]) -> list[Piece]:
    chain: list[Piece] = []
    end = 0
    # Of two with the same start (an upload whose response was lost) the longer contains both.
    for piece in sorted(found, key=lambda piece: (piece.start, -piece.size)):
        if piece.start == end and piece.size:
            chain.append(piece)
            end = piece.end
    return chain


def named(file: str, names: Sequence[str], size: int, where: str) -> list[Piece]:
    """Return the pieces in a manifest, which join to a file of that size."""
    found = [_KEY.fullmatch(f"{PIECES}/{file}/{name}") for name in names]
    keys = [match for match in found if match]
    starts = [int(match["start"]) for match in keys]
    sizes = [end - start for start, end in pairwise([*starts, size])]
    if len(keys) < len(found) or starts[:1] != [0] or not all(0 < s <= PIECE for s in sizes):
        raise RemoteError(f"the manifest's pieces of {file!r} do not join", where=where)
    rows = zip(starts, sizes, keys, strict=True)
    return [Piece(start, size, match[0], match["mark"]) for start, size, match in rows]


def that_are_of(path: Path, chain: Iterable[Piece]) -> list[Piece]:
    """Return the pieces that the local file starts with: later ones are of another file."""
    good: list[Piece] = []
    for piece in chain:
        here = read_part(path, piece.start, piece.size)
        if len(here) < piece.size or _mark(here) != piece.mark:
            break
        good.append(piece)
    return good


async def that_are_whole(bucket: Bucket, chain: Iterable[Piece]) -> list[Piece]:
    """Return the intact pieces in the store, up to the first missing or damaged one."""
    good: list[Piece] = []
    for piece in chain:
        content = await bucket.read(piece.key, piece.size)
        if content is None or _mark(content) != piece.mark:
            break
        good.append(piece)
    return good


async def lengthen(bucket: Bucket, file: str, path: Path, chain: list[Piece], end: int) -> None:
    """Send the part of a file beyond its pieces; each piece joins the chain once it is stored."""
    start = chain[-1].end if chain else 0
    while start < end:
        content = await asyncio.to_thread(read_part, path, start, min(PIECE, end - start))
        if not content:  # it became shorter: the next round reads its current state
            return
        chain.append(await _put(bucket, piece_of(file, start, content), content))
        start = chain[-1].end


async def join_small(bucket: Bucket, file: str, path: Path, chain: list[Piece]) -> None:
    """Merge the last pieces into one where they are many and small.

    The merged pieces are kept for concurrent readers.
    """
    last = list(takewhile(lambda piece: piece.size < PIECES_SMALL, reversed(chain)))
    size = sum(piece.size for piece in last)
    if len(last) < MANY and size < ENOUGH:
        return
    start = last[-1].start
    content = await asyncio.to_thread(read_part, path, start, size)
    if len(content) == size:
        joined = await _put(bucket, piece_of(file, start, content), content)
        chain[-len(last) :] = [joined]


async def _put(bucket: Bucket, piece: Piece, content: bytes) -> Piece:
    await bucket.put(piece.key, content, hashlib.sha256(content).hexdigest())
    return piece


async def fetch(bucket: Bucket, chain: list[Piece], take: Callable[[bytes], object]) -> None:
    """Yield a file's pieces in order, each verified first."""
    for piece in chain:
        content = await bucket.read(piece.key, piece.size)
        if content is None:
            raise RemoteError(
                "the piece is gone",
                where=bucket.at(piece.key),
                hint="another process may have sent the run: try again",
            )
        if _mark(content) != piece.mark:
            raise DamagedPieceError(
                "the piece is damaged: its checksum is wrong",
                where=bucket.at(piece.key),
                hint="upload it again: `proctor runs sync RUN ADDRESS --verify`; for a run "
                "that had not ended, delete the piece to download what came before it",
            )
        take(content)


def read_part(path: Path, start: int, size: int) -> bytes:
    """Return bytes of a file; fewer, or none, where it does not have them."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(size)
    except FileNotFoundError:
        return b""


def _mark(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:MARK]


SMALL = 4 << 20
"""Bytes up to which a file is read once for both checksum and upload, so that both match even if a
note is appended at the same time.
"""

WHOLE = 1 << 20
"""Bytes up to which a file in pieces is finally sent whole: one request, like the rest of it, and
other tools find it under its name.
"""


class TransferStep(NamedTuple):
    """A finished file."""

    name: str
    size: int
    moved: bool
    done: int
    of: int


Tell = Callable[[TransferStep], None]


class TransferResult(NamedTuple):
    """Result of a transfer."""

    name: str
    files: int
    moved: int
    bytes_moved: int
    state: str
    verified: bool = False


class _Count:
    """Count finished files and report progress."""

    def __init__(self, of: int, tell: Tell | None) -> None:
        self.files, self.moved, self.bytes = 0, 0, 0
        self._of, self._tell = of, tell

    def add(self, name: str, size: int, *, moved: bool) -> None:
        self.files += 1
        self.moved += moved
        self.bytes += size if moved else 0
        if self._tell is not None:
            self._tell(TransferStep(name, size, moved, self.files, self._of))


async def read_manifest(bucket: Bucket) -> Manifest | None:
    """Return the manifest of the run at an address; None when there is none."""
    content = await bucket.read(NAME, MOST_BYTES)
    return None if content is None else decode(content, bucket.at(NAME))


# -- upload ---------------------------------------------------------------------------------------


async def push(
    run: Path, name: str, bucket: Bucket, *, verify: bool = False, tell: Tell | None = None
) -> TransferResult:
    """Upload a run named `name` to the bucket's address."""
    folder = RunFolder.open(run)
    with folder.lock():
        run_id = str(folder.read_spec().get("run_id") or "")
        files = dict(run_files(run))
        facts = {n: await asyncio.to_thread(facts_of, path) for n, path in files.items()}
        before = await read_manifest(bucket)
        _refuse_other(before.run_id if before else None, run_id, bucket.url)
        sizes = await bucket.sizes()
        shipped = growing(sizes, bucket.url)
        _refuse_earlier(before, shipped, facts, bucket.url)
        if before is None or (before.state == "complete" and before.files != facts):
            unfinished = Manifest(run_id=run_id, name=name, state="replacing", files=facts)
            await _put_manifest(bucket, unfinished)
        count = _Count(len(files), tell)
        joined: dict[str, list[Piece]] = {}

        async def send(each: str) -> None:
            known, path = facts[each], files[each]
            if sizes.get(each) == known.size:
                there = await bucket.sha256(each, by_content=verify)
                if there == known.sha256:
                    count.add(each, known.size, moved=False)
                    return
            if known.size > WHOLE and (chain := shipped.get(each)):
                if verify:
                    chain = await that_are_whole(bucket, chain)
                joined[each], sent = await _send_rest(bucket, each, path, chain, known.size)
                count.add(each, sent or known.size, moved=sent > 0)
                return
            facts[each] = known = await _send(bucket, each, path, known)
            count.add(each, known.size, moved=True)

        await bucket.each([lambda e=each: send(e) for each in files])
        done = Manifest(
            format=FORMAT if joined else 1,
            run_id=run_id,
            name=name,
            state="complete",
            files=facts,
            pieces={each: [piece.name for piece in joined[each]] for each in sorted(joined)},
        )
        if verify:
            await _check_files(bucket, done, None)
        if before != done:
            await _put_manifest(bucket, done)
        await bucket.delete(_not_needed(sizes, joined))
    return TransferResult(name, count.files, count.moved, count.bytes, done.state, verify)


async def _send_rest(
    bucket: Bucket, file: str, path: Path, chain: list[Piece], end: int
) -> tuple[list[Piece], int]:
    """Send the missing rest of a file in pieces; return all pieces and the bytes sent."""
    good = await asyncio.to_thread(that_are_of, path, chain)
    there = good[-1].end if good else 0
    await lengthen(bucket, file, path, good, end)
    return good, end - there


def _not_needed(listed: Iterable[str], joined: dict[str, list[Piece]]) -> list[str]:
    """Return objects not in the manifest: pieces of other files, and files now in pieces."""
    used = {piece.key for chain in joined.values() for piece in chain}
    return [
        key for key in listed if key in joined or (key.startswith(f"{PIECES}/") and key not in used)
    ]


async def _send(bucket: Bucket, key: str, path: Path, known: FileFacts) -> FileFacts:
    if known.size > SMALL:
        await bucket.put(key, path, known.sha256)
        return known
    content = await asyncio.to_thread(path.read_bytes)
    now = FileFacts(len(content), hashlib.sha256(content).hexdigest())
    await bucket.put(key, content, now.sha256)
    return now


async def _put_manifest(bucket: Bucket, manifest: Manifest) -> None:
    content = manifest.encode()
    await bucket.put(NAME, content, hashlib.sha256(content).hexdigest())


def _refuse_other(there: str | None, run_id: str, where: str) -> None:
    if there is not None and there != run_id:
        raise RemoteError(
            f"another run is here: {there}, not {run_id}",
            where=where,
            hint="store this one below another prefix or folder",
        )


def _refuse_earlier(
    before: Manifest | None,
    shipped: dict[str, list[Piece]],
    facts: dict[str, FileFacts],
    where: str,
) -> None:
    """Reject a shorter version of an append-only file."""
    if before is None:
        return
    for name in ONLY_GROW:
        there = before.files[name].size if name in before.files else 0
        if chain := shipped.get(name):
            there = max(there, chain[-1].end)
        if there > (facts[name].size if name in facts else 0):
            raise RemoteError(
                f"the {name} here is longer than the one that would replace it",
                where=where,
                hint="sync the other way first",
            )


# -- download -------------------------------------------------------------------------------------


async def pull(
    bucket: Bucket,
    root: Path,
    *,
    only: frozenset[str] | None = None,
    tell: Tell | None = None,
) -> TransferResult:
    """Download the run at the bucket's address to its name below `root`; `only` some files of it.

    Every file is verified against the manifest before it is put in place.
    """
    manifest = await read_manifest(bucket)
    if manifest is None:
        raise RemoteError(
            f"there is no run here: it has no {NAME}",
            where=bucket.url,
            hint="`proctor runs sync RUN ADDRESS` sends one",
        )
    if manifest.state == "replacing":
        raise RemoteError(
            "the upload of this run was not finished",
            where=bucket.url,
            hint="run the same `proctor runs sync` again on the machine that started it",
        )
    target = root / manifest.name
    _refuse_other(_run_id_of(target), manifest.run_id, str(target))
    await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
    with RunFolder(target).lock():
        if manifest.state == "running":
            return await _pull_running(bucket, manifest, target, only, tell)
        wanted = {n: f for n, f in manifest.files.items() if only is None or n in only}
        count = _Count(len(wanted), tell)

        async def bring(name: str) -> None:
            chain = _pieces_of(manifest, name, bucket.url)
            moved = await _bring(bucket, name, wanted[name], target, chain)
            count.add(name, wanted[name].size, moved=moved)

        # Append-only files first, since they may be rejected; the spec last, since it makes it a
        # run.
        early = [n for n in wanted if n in ONLY_GROW]
        rest = [n for n in wanted if n not in (*ONLY_GROW, SPEC)]
        for names in (early, rest, [n for n in wanted if n == SPEC]):
            await bucket.each([lambda n=name: bring(n) for name in names])
    return TransferResult(
        manifest.name, count.files, count.moved, count.bytes, manifest.state, True
    )


def _run_id_of(target: Path) -> str | None:
    """Return the id of the run at the destination, if there is one."""
    if not (target / SPEC).is_file():
        return None
    return str(RunFolder.open(target).read_spec().get("run_id") or "")


def _pieces_of(manifest: Manifest, name: str, where: str) -> list[Piece]:
    """Return the pieces of a file; none when it is stored whole."""
    names = manifest.pieces.get(name)
    return named(name, names, manifest.files[name].size, where) if names else []


class _Download:
    """A file being written: counts and hashes its content."""

    def __init__(self, path: Path, part: Path, file: IO[bytes]) -> None:
        self._path, self._part, self._file = path, part, file
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        """The checksum of the content so far."""
        return self._digest.hexdigest()

    def write(self, block: bytes) -> None:
        """Add to the file."""
        self._file.write(block)
        self._digest.update(block)
        self.size += len(block)

    def refuse_to_shorten(self) -> None:
        """Reject replacing a file that is not a prefix of this one: it would lose lines."""
        self._file.flush()
        if not self._path.is_file():
            return
        with self._path.open("rb") as old, self._part.open("rb") as new:
            while block := old.read(_COMPARED):
                if new.read(len(block)) != block:
                    raise RunFolderError(
                        "the local file has lines that the remote one does not have",
                        where=str(self._path),
                        hint="sync the other way, or download the run to another folder",
                    )


@contextmanager
def _download(path: Path) -> Generator[_Download]:
    """Yield a file to write to, which replaces `path` when the block succeeds."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part, part.open("wb") as file:
            yield _Download(path, part, file)
    except OSError as error:
        raise RunFolderError(f"cannot write: {error.strerror}", where=str(path)) from None


async def _bring(
    bucket: Bucket, name: str, known: FileFacts, target: Path, chain: list[Piece]
) -> bool:
    """Download one file unless it is present; return whether it was downloaded."""
    path = target / name
    if await asyncio.to_thread(_is_here, path, known):
        return False
    with _download(path) as download:
        if chain:
            await fetch(bucket, chain, download.write)
        else:
            await bucket.fetch(name, download.write)
        if FileFacts(download.size, download.sha256) != known:
            raise _damaged(bucket, name, known, download.size)
        if name in ONLY_GROW:
            download.refuse_to_shorten()
    return True


def _is_here(path: Path, known: FileFacts) -> bool:
    return path.is_file() and path.stat().st_size == known.size and facts_of(path) == known


def _damaged(bucket: Bucket, name: str, known: FileFacts, size: int) -> RemoteError:
    what = f"{size} bytes, {known.size} expected" if size != known.size else "its checksum is wrong"
    return RemoteError(
        f"the object is damaged: {what}",
        where=bucket.at(name),
        hint="nothing was replaced; repeat the upload: `proctor runs sync RUN ADDRESS --verify`",
    )


async def _pull_running(
    bucket: Bucket,
    manifest: Manifest,
    target: Path,
    only: frozenset[str] | None,
    tell: Tell | None,
) -> TransferResult:
    """Download what was uploaded of an unfinished run: whole lines, and every trace they
    refer to.
    """
    listed = await bucket.sizes()
    growing_ = growing(listed, bucket.url)
    wanted = {n: found for n, found in growing_.items() if only is None or n in only}
    count = _Count(len(wanted) + 1, tell)
    for name in sorted(wanted):  # "traces/…" before "trials.jsonl"
        with _download(target / name) as download:
            await fetch(bucket, wanted[name], download.write)
            if name in ONLY_GROW:
                download.refuse_to_shorten()
            count.add(name, download.size, moved=True)
    spec = manifest.files.get(SPEC)
    if spec is None:
        raise RemoteError(f"the run has no {SPEC} yet", where=bucket.url)
    moved = await _bring(bucket, SPEC, spec, target, [])
    count.add(SPEC, spec.size, moved=moved)
    return TransferResult(
        manifest.name, count.files, count.moved, count.bytes, manifest.state, True
    )


# -- verification ---------------------------------------------------------------------------------


async def check(bucket: Bucket, *, tell: Tell | None = None) -> TransferResult:
    """Read every object of a run in the store and compare it with the manifest."""
    manifest = await read_manifest(bucket)
    if manifest is None:
        raise RemoteError(f"there is no run here: it has no {NAME}", where=bucket.url)
    if manifest.state != "complete":
        raise RemoteError(
            f"the run is not complete: its manifest says {manifest.state!r}", where=bucket.url
        )
    count = _Count(len(manifest.files), tell)
    await _check_files(bucket, manifest, count)
    return TransferResult(manifest.name, count.files, 0, 0, manifest.state, True)


async def _check_files(bucket: Bucket, manifest: Manifest, count: _Count | None) -> None:
    async def look(name: str, known: FileFacts) -> RemoteError | None:
        chain = _pieces_of(manifest, name, bucket.url)
        digest, size = hashlib.sha256(), 0

        def take(block: bytes) -> None:
            nonlocal size
            digest.update(block)
            size += len(block)

        try:
            await (fetch(bucket, chain, take) if chain else bucket.fetch(name, take))
        except DamagedPieceError as error:
            return error
        if count is not None:
            count.add(name, size, moved=False)
        if FileFacts(size, digest.hexdigest()) == known:
            return None
        return _damaged(bucket, name, known, size)

    jobs = [lambda n=n, k=k: look(n, k) for n, k in manifest.files.items()]
    wrong = [error for error in await bucket.each(jobs) if error is not None]
    if len(wrong) > 1:
        listed = ", ".join(str(error.where) for error in wrong)
        raise RemoteError(f"{len(wrong)} objects are damaged: {listed}", hint=wrong[0].hint)
    if wrong:
        raise wrong[0]


# Select the runs of a sync: one, or all below a folder or a prefix. A run keeps its name,
# `<experiment>/<date>_<seq>`, everywhere, so that a folder or prefix of runs is used the same way
# on both sides.


async def send(
    runs: list[Path],
    root: Path,
    to: str,
    patience: Patience,
    *,
    verify: bool = False,
    tell: Tell | None = None,
) -> list[TransferResult]:
    """Upload runs to their names below an address, one after the other."""
    moved: list[TransferResult] = []
    for run in runs:
        name = name_of(run, root)
        bucket = Bucket(object_store.joined(object_store.checked(to), name), patience)
        moved.append(await push(run, name, bucket, verify=verify, tell=tell))
    return moved


async def bring(
    source: str, root: Path, patience: Patience, *, tell: Tell | None = None
) -> list[TransferResult]:
    """Download the run at an address, or all runs below it, to their names below a folder."""
    places = await runs_at(source, patience)
    return [await pull(Bucket(place, patience), root, tell=tell) for place in places]


async def look_over(
    source: str, patience: Patience, *, tell: Tell | None = None
) -> list[TransferResult]:
    """Verify the run at an address, or all runs below it, in the store."""
    places = await runs_at(source, patience)
    return [await check(Bucket(place, patience), tell=tell) for place in places]


async def runs_at(source: str, patience: Patience) -> list[str]:
    """Return the addresses of the runs at or below one."""
    bucket = Bucket(source, patience)
    listed = await bucket.sizes()
    if NAME in listed:
        return [bucket.url]
    found = sorted(key.removesuffix(f"/{NAME}") for key in listed if key.endswith(f"/{NAME}"))
    if not found:
        raise RemoteError(
            f"there is no run here: nothing has a {NAME}",
            where=bucket.url,
            hint="`proctor runs sync RUN ADDRESS` sends one",
        )
    return [object_store.joined(bucket.url, name) for name in found]


def runs_meant(text: str, root: Path) -> list[Path]:
    """Return the run with this name or path, or every run of that folder."""
    place = Path(text)
    if place.is_dir() and not (place / "_spec_.yaml").is_file() and (runs := all_runs(place)):
        return runs
    return [find_run(text, root)]


def name_of(run: Path, root: Path) -> str:
    """Return a run's name: its path below the folder of runs, else its last two folders."""
    full = run.resolve()
    name = "/".join(full.parts[-2:])
    base = root.resolve()
    if full != base and full.is_relative_to(base):
        name = full.relative_to(base).as_posix()
    if not is_inside(name):
        raise RemoteError(f"a run cannot be called {name!r} at a remote place", where=str(run))
    return name
