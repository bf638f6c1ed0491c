"""Copy runs to and from an object store, verify them there, and cache what commands read.

Guarantees: files already present with the right checksum are not sent again, so an interrupted
transfer continues, and of a file uploaded in pieces while it grew only the rest is sent; a file is
replaced completely or not at all, and a run is visible only when all of it has arrived (the
manifest is written last, and locally the spec). A file that does not match its checksum is reported
and never put in place. A run is never replaced by another one, nor by an earlier state of itself.

    $XDG_CACHE_HOME/proctor/remote/<address>/<experiment>/<date>_<seq>/
    $XDG_CACHE_HOME/proctor/remote/<address>-runs/…                   for commands that open runs
      .copy-of      the address of the run; next to the experiments, that of all runs

Cached copies reflect the runs as they are in the store now. Only the needed files of each run are
fetched (for a query: Parquet file, spec, facts, notes, and the journal of a running run; to find a
run and its status: the same without Parquet file and journal, plus its last heartbeat), and only
when the checksum differs from the local copy. `with_journal` fetches the journal of a run that is
opened. Trade-off: Parquet files are fetched whole rather than by ranges, so the first query costs
their size and every later one a listing and a manifest per run; commands that need the same copies
wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import IO, NamedTuple

from proctor.background import run_sync
from proctor.errors import ProctorError
from proctor.files import lock_file, replacing, write_atomic
from proctor.runs.folder import (
    CHECKSUMS,
    COPY_OF,
    RunFolder,
    RunFolderError,
    address_of,
    all_runs,
    find_run,
)
from proctor.runs.heartbeat import MAX_BYTES as MAX_BEAT
from proctor.runs.heartbeat import NAME as HEARTBEAT
from proctor.runs.remote import object_store
from proctor.runs.remote.object_store import (
    FORMAT,
    JOURNAL,
    MAX_BYTES,
    NAME,
    ONLY_GROW,
    PIECES,
    SPEC,
    Bucket,
    FileFacts,
    Manifest,
    RemoteError,
    StoreOptions,
    checked,
    decode,
    facts_of,
    facts_of_bytes,
    is_inside,
    run_files,
)
from proctor.user_dirs import user_folder

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


def stored_pieces(listed: Mapping[str, int], where: str) -> dict[str, list[Piece]]:
    """Return the files stored in pieces, with those that join without a gap from the start."""
    found: dict[str, list[Piece]] = {}
    for key, size in listed.items():
        if match := _KEY.fullmatch(key):
            file = match["file"]
            if not is_inside(file):
                raise RemoteError(f"a piece is of a file outside the run: {file!r}", where=where)
            found.setdefault(file, []).append(Piece(int(match["start"]), size, key, match["mark"]))
    chains: dict[str, list[Piece]] = {}
    for file, pieces in found.items():
        chain = chains[file] = []
        end = 0
        # Of two with the same start (an upload whose response was lost) the longer contains both.
        for piece in sorted(pieces, key=lambda piece: (piece.start, -piece.size)):
            if piece.start == end and piece.size:
                chain.append(piece)
                end = piece.end
    return chains


def named_pieces(file: str, names: Sequence[str], size: int, where: str) -> list[Piece]:
    """Return the pieces in a manifest, which join to a file of that size."""
    found = [_KEY.fullmatch(f"{PIECES}/{file}/{name}") for name in names]
    keys = [match for match in found if match]
    starts = [int(match["start"]) for match in keys]
    sizes = [end - start for start, end in pairwise([*starts, size])]
    if len(keys) < len(found) or starts[:1] != [0] or not all(0 < s <= PIECE for s in sizes):
        raise RemoteError(f"the manifest's pieces of {file!r} do not join", where=where)
    rows = zip(starts, sizes, keys, strict=True)
    return [Piece(start, size, match[0], match["mark"]) for start, size, match in rows]


async def pieces_of_file(path: Path, chain: Iterable[Piece]) -> list[Piece]:
    """Return the pieces that the local file starts with: later ones are of another file."""
    return await _matching(
        chain, lambda piece: asyncio.to_thread(read_part, path, piece.start, piece.size)
    )


async def _matching(
    chain: Iterable[Piece], read: Callable[[Piece], Awaitable[bytes | None]]
) -> list[Piece]:
    """Return the pieces before the first whose content is missing or has another checksum."""
    good: list[Piece] = []
    for piece in chain:
        content = await read(piece)
        if content is None or _mark(content) != piece.mark:
            break
        good.append(piece)
    return good


async def add_pieces(bucket: Bucket, file: str, path: Path, chain: list[Piece], end: int) -> None:
    """Send the part of a file beyond its pieces; each piece joins the chain once it is stored."""
    start = chain[-1].end if chain else 0
    while start < end:
        content = await asyncio.to_thread(read_part, path, start, min(PIECE, end - start))
        if not content:  # it became shorter: the next round reads its current state
            return
        chain.append(await _put_piece(bucket, file, start, content))
        start = chain[-1].end


async def merge_small(bucket: Bucket, file: str, path: Path, chain: list[Piece]) -> None:
    """Merge the last pieces into one where they are many and small.

    The merged pieces are kept for concurrent readers.
    """
    # Only at the end of the chain: pieces before a large one have been merged already.
    last = list(takewhile(lambda piece: piece.size < PIECES_SMALL, reversed(chain)))
    size = sum(piece.size for piece in last)
    if len(last) < MANY and size < ENOUGH:
        return
    start = last[-1].start
    content = await asyncio.to_thread(read_part, path, start, size)
    if len(content) == size:
        chain[-len(last) :] = [await _put_piece(bucket, file, start, content)]


async def _put_piece(bucket: Bucket, file: str, start: int, content: bytes) -> Piece:
    mark = _mark(content)
    key = f"{PIECES}/{file}/{start:015d}-{mark}"
    await bucket.put(key, content)
    return Piece(start, len(content), key, mark)


async def fetch(bucket: Bucket, chain: list[Piece], take: Callable[[bytes], object]) -> None:
    """Pass a file's pieces to `take` in order, each verified first."""
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
    except FileNotFoundError:  # a resumed run deletes segments that no trial refers to
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


OnStep = Callable[[TransferStep], None]


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

    def __init__(self, of: int, on_step: OnStep | None) -> None:
        self.files, self.moved, self.bytes = 0, 0, 0
        self._of, self._on_step = of, on_step

    def add(self, name: str, size: int, *, moved: bool) -> None:
        self.files += 1
        self.moved += moved
        self.bytes += size if moved else 0
        if self._on_step is not None:
            self._on_step(TransferStep(name, size, moved, self.files, self._of))

    def result(self, run: Manifest, *, verified: bool = True) -> TransferResult:
        return TransferResult(
            run.name, self.files, self.moved, self.bytes, run.state, verified=verified
        )


async def read_manifest(bucket: Bucket) -> Manifest | None:
    """Return the manifest of the run at an address; None when there is none."""
    content = await bucket.read(NAME, MAX_BYTES)
    return None if content is None else decode(content, bucket.at(NAME))


async def existing_manifest(bucket: Bucket) -> Manifest:
    """Return the manifest of the run at an address; an error when there is none."""
    if (manifest := await read_manifest(bucket)) is not None:
        return manifest
    raise RemoteError(
        f"there is no run here: it has no {NAME}",
        where=bucket.url,
        hint="`proctor runs sync RUN ADDRESS` sends one",
    )


# -- upload ---------------------------------------------------------------------------------------


async def push(
    run: Path, name: str, bucket: Bucket, *, verify: bool = False, on_step: OnStep | None = None
) -> TransferResult:
    """Upload a run named `name` to the bucket's address."""
    folder = RunFolder.open(run)
    # Locked: nothing may write the run between the checksums and the upload.
    with folder.lock():
        run_id = str(folder.read_spec().get("run_id") or "")
        files = dict(run_files(run))
        facts = {n: await asyncio.to_thread(facts_of, path) for n, path in files.items()}
        before = await read_manifest(bucket)
        _refuse_other(before.run_id if before else None, run_id, bucket.url)
        sizes = await bucket.sizes()
        stored = stored_pieces(sizes, bucket.url)
        _refuse_earlier(before, stored, facts, bucket.url)
        if before is None or (before.state == "complete" and before.files != facts):
            # From here until the end the objects belong to no single state of the run.
            unfinished = Manifest(run_id=run_id, name=name, state="replacing", files=facts)
            await bucket.put(NAME, unfinished.encode())
        count = _Count(len(files), on_step)
        joined: dict[str, list[Piece]] = {}

        async def send(each: str) -> None:
            known, path = facts[each], files[each]
            if sizes.get(each) == known.size:
                there = await bucket.sha256(each, by_content=verify)
                if there == known.sha256:
                    count.add(each, known.size, moved=False)
                    return
            if known.size > WHOLE and (chain := stored.get(each)):
                if verify:
                    chain = await _matching(chain, lambda piece: bucket.read(piece.key, piece.size))
                good = joined[each] = await pieces_of_file(path, chain)
                sent = known.size - (good[-1].end if good else 0)
                await add_pieces(bucket, each, path, good, known.size)
                count.add(each, sent or known.size, moved=sent > 0)
                return
            if known.size > SMALL:
                await bucket.put(each, path, known.sha256)
            else:
                content = await asyncio.to_thread(path.read_bytes)
                facts[each] = known = facts_of_bytes(content)
                await bucket.put(each, content, known.sha256)
            count.add(each, known.size, moved=True)

        await bucket.each(send, files)
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
        if before != done:  # an unchanged run costs no write
            await bucket.put(NAME, done.encode())
        # Only after the manifest: until then readers need the pieces it no longer names.
        used = {piece.key for chain in joined.values() for piece in chain}
        unused = (key for key in sizes if key.startswith(f"{PIECES}/") and key not in used)
        await bucket.delete([*unused, *(key for key in sizes if key in joined)])
    return count.result(done, verified=verify)


def _refuse_other(there: str | None, run_id: str, where: str) -> None:
    if there is not None and there != run_id:
        raise RemoteError(
            f"another run is here: {there}, not {run_id}",
            where=where,
            hint="store this one below another prefix or folder",
        )


def _refuse_earlier(
    before: Manifest | None,
    stored: dict[str, list[Piece]],
    facts: dict[str, FileFacts],
    where: str,
) -> None:
    """Reject a shorter version of an append-only file."""
    if before is None:
        return
    for name in ONLY_GROW:
        there = before.files[name].size if name in before.files else 0
        if chain := stored.get(name):
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
    on_step: OnStep | None = None,
) -> TransferResult:
    """Download the run at the bucket's address to its name below `root`; `only` some files of it.

    Every file is verified against the manifest before it is put in place.
    """
    manifest = await existing_manifest(bucket)
    if manifest.state == "replacing":
        raise RemoteError(
            "the upload of this run was not finished",
            where=bucket.url,
            hint="run the same `proctor runs sync` again on the machine that started it",
        )
    target = root / manifest.name
    if (target / SPEC).is_file():
        here = str(RunFolder.open(target).read_spec().get("run_id") or "")
        _refuse_other(here, manifest.run_id, str(target))
    await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
    with RunFolder(target).lock():
        if manifest.state == "running":
            return await _pull_running(bucket, manifest, target, only, on_step)
        wanted = {n: f for n, f in manifest.files.items() if only is None or n in only}
        count = _Count(len(wanted), on_step)

        async def update(name: str) -> None:
            chain = _pieces_in(manifest, name, bucket.url)
            moved = await _update(bucket, name, wanted[name], target, chain)
            count.add(name, wanted[name].size, moved=moved)

        # Append-only files first, since they may be rejected; the spec last, since it makes it a
        # run.
        early = [n for n in wanted if n in ONLY_GROW]
        rest = [n for n in wanted if n not in (*ONLY_GROW, SPEC)]
        for names in (early, rest, [n for n in wanted if n == SPEC]):
            await bucket.each(update, names)
    return count.result(manifest)


def _pieces_in(manifest: Manifest, name: str, where: str) -> list[Piece] | None:
    """Return the pieces of a file; None when it is stored whole."""
    names = manifest.pieces.get(name)
    return named_pieces(name, names, manifest.files[name].size, where) if names else None


async def _receive(
    bucket: Bucket, name: str, chain: list[Piece] | None, file: IO[bytes] | None = None
) -> FileFacts:
    """Read a stored file, into `file` if there is one; return its size and checksum."""
    digest, size = hashlib.sha256(), 0

    def take(block: bytes) -> None:
        nonlocal size
        digest.update(block)
        size += len(block)
        if file is not None:
            file.write(block)

    await (bucket.fetch(name, take) if chain is None else fetch(bucket, chain, take))
    return FileFacts(size, digest.hexdigest())


async def _download(
    bucket: Bucket, name: str, target: Path, chain: list[Piece] | None, known: FileFacts | None
) -> int:
    """Replace a file by the stored one if that is as expected; return its size."""
    path = target / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part, part.open("wb") as file:
            received = await _receive(bucket, name, chain, file)
            if known is not None and received != known:
                raise _damaged(bucket, name, known, received.size)
            file.flush()
            if name in ONLY_GROW and path.is_file():
                _refuse_to_shorten(path, part)
    except OSError as error:
        raise RunFolderError(f"cannot write: {error.strerror}", where=str(path)) from None
    return received.size


def _refuse_to_shorten(path: Path, part: Path) -> None:
    """Reject replacing a file that is not a prefix of the new one: it would lose lines."""
    with path.open("rb") as old, part.open("rb") as new:
        while block := old.read(_COMPARED):
            if new.read(len(block)) != block:
                raise RunFolderError(
                    "the local file has lines that the remote one does not have",
                    where=str(path),
                    hint="sync the other way, or download the run to another folder",
                )


async def _update(
    bucket: Bucket, name: str, known: FileFacts, target: Path, chain: list[Piece] | None
) -> bool:
    """Download one file unless it is present; return whether it was downloaded."""
    path = target / name
    same_size = path.is_file() and path.stat().st_size == known.size
    if same_size and await asyncio.to_thread(facts_of, path) == known:
        return False
    await _download(bucket, name, target, chain, known)
    return True


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
    on_step: OnStep | None,
) -> TransferResult:
    """Download the uploaded part of an unfinished run: whole lines, and the traces they name."""
    stored = stored_pieces(await bucket.sizes(), bucket.url)
    wanted = {n: found for n, found in stored.items() if only is None or n in only}
    count = _Count(len(wanted) + 1, on_step)
    for name in sorted(wanted):  # "traces/…" before "trials.jsonl"
        size = await _download(bucket, name, target, wanted[name], None)
        count.add(name, size, moved=True)
    spec = manifest.files.get(SPEC)
    if spec is None:
        raise RemoteError(f"the run has no {SPEC} yet", where=bucket.url)
    moved = await _update(bucket, SPEC, spec, target, None)
    count.add(SPEC, spec.size, moved=moved)
    return count.result(manifest)


# -- verification ---------------------------------------------------------------------------------


async def check(bucket: Bucket, *, on_step: OnStep | None = None) -> TransferResult:
    """Read every object of a run in the store and compare it with the manifest."""
    manifest = await existing_manifest(bucket)
    if manifest.state != "complete":
        raise RemoteError(
            f"the run is not complete: its manifest says {manifest.state!r}", where=bucket.url
        )
    count = _Count(len(manifest.files), on_step)
    await _check_files(bucket, manifest, count)
    return count.result(manifest)


async def _check_files(bucket: Bucket, manifest: Manifest, count: _Count | None) -> None:
    async def problem_of(name: str) -> RemoteError | None:
        known = manifest.files[name]
        try:
            received = await _receive(bucket, name, _pieces_in(manifest, name, bucket.url))
        except DamagedPieceError as error:
            return error
        if count is not None:
            count.add(name, received.size, moved=False)
        return None if received == known else _damaged(bucket, name, known, received.size)

    # All of them, so that one check reports every damaged object.
    found = await bucket.each(problem_of, manifest.files)
    wrong = [error for error in found if error is not None]
    if len(wrong) > 1:
        listed = ", ".join(str(error.where) for error in wrong)
        raise RemoteError(f"{len(wrong)} objects are damaged: {listed}", hint=wrong[0].hint)
    if wrong:
        raise wrong[0]


# Select the runs of a sync: one, or all below a folder or a prefix. A run keeps its name,
# `<experiment>/<date>_<seq>`, everywhere, so that a folder or prefix of runs is used the same way
# on both sides.


async def upload_runs(
    runs: list[Path],
    root: Path,
    to: str,
    options: StoreOptions,
    *,
    verify: bool = False,
    on_step: OnStep | None = None,
) -> list[TransferResult]:
    """Upload runs to their names below an address, one after the other."""
    moved: list[TransferResult] = []
    for run in runs:
        name = name_of(run, root)
        bucket = Bucket(object_store.joined(object_store.checked(to), name), options)
        moved.append(await push(run, name, bucket, verify=verify, on_step=on_step))
    return moved


async def download_runs(
    source: str, root: Path, options: StoreOptions, *, on_step: OnStep | None = None
) -> list[TransferResult]:
    """Download the run at an address, or all runs below it, to their names below a folder."""
    places = await runs_at(source, options)
    return [await pull(Bucket(place, options), root, on_step=on_step) for place in places]


async def verify_runs(
    source: str, options: StoreOptions, *, on_step: OnStep | None = None
) -> list[TransferResult]:
    """Verify the run at an address, or all runs below it, in the store."""
    places = await runs_at(source, options)
    return [await check(Bucket(place, options), on_step=on_step) for place in places]


async def runs_at(source: str, options: StoreOptions) -> list[str]:
    """Return the addresses of the runs at or below one."""
    bucket = Bucket(source, options)
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


def select_runs(text: str, root: Path) -> list[Path]:
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
    # The name becomes a path wherever the run is downloaded to.
    if not is_inside(name):
        raise RemoteError(f"a run cannot be called {name!r} at a remote place", where=str(run))
    return name


class MirrorOptions(NamedTuple):
    """Files to fetch of each run, and the folder of the copies."""

    ended: frozenset[str]
    running: frozenset[str]
    folder: str = ""


QUERIES = MirrorOptions(
    frozenset({SPEC, "results.parquet", "facts.json", CHECKSUMS, "notes.jsonl", "labels.jsonl"}),
    frozenset({JOURNAL}),
)
"""Files that a query reads."""

RUNS = MirrorOptions(
    frozenset({SPEC, "facts.json", CHECKSUMS, "notes.jsonl", "labels.jsonl", HEARTBEAT}),
    frozenset({HEARTBEAT}),
    "-runs",
)
"""Files needed to find a run and its status."""


def mirrored(url: str, *, reading: MirrorOptions = QUERIES) -> tuple[Path, list[str]]:
    """Return a local copy of the runs at an address, and the problems while fetching it."""
    url = checked(url)
    root = cache_of(url, reading)
    with _locked(root):
        current, problems = run_sync(_fetch_all(url, root, reading), nested=True)
        # A list first, since folders are removed on the way.
        for spec in list(root.rglob(SPEC)):
            if spec.parent not in current:  # no longer in the store, or not accessible
                shutil.rmtree(spec.parent, ignore_errors=True)
        _mark_copy(root, url)
    return root, problems


def with_journal(copy: Path, root: Path) -> Path:
    """Return the copy of a run with its journal: everything a run is derived from."""
    if url := address_of(copy):
        with _locked(root):
            run_sync(pull(Bucket(url), root, only=frozenset({SPEC, JOURNAL})), nested=True)
    return copy


@contextlib.contextmanager
def _locked(root: Path) -> Generator[None]:
    """Lock these copies: without the lock a run held by another process would be left out."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        file = (root / ".lock").open("ab")
    except OSError as error:
        raise RemoteError(
            f"cannot write the cache: {error.strerror}",
            where=str(root),
            hint="set XDG_CACHE_HOME to another folder",
        ) from None
    with file:
        lock_file(file)  # waits: another command may be fetching the same runs
        yield


async def _fetch_all(url: str, root: Path, reading: MirrorOptions) -> tuple[set[Path], list[str]]:
    """Fetch every run at an address; return the current copies and the problems."""
    copies: set[Path] = set()
    problems: list[str] = []
    for place in await runs_at(url, StoreOptions()):
        try:
            copies.add(await _refresh(Bucket(place), root, reading))
        except ProctorError as error:
            problems.append(f"{error}; skipped")
    return copies, problems


async def _refresh(bucket: Bucket, root: Path, reading: MirrorOptions) -> Path:
    """Update the copy of a run to the state in the store; return its folder."""
    manifest = await existing_manifest(bucket)
    copy = root / manifest.name
    ended = manifest.state == "complete"
    # Pieces have no checksum of the whole journal, and an outdated journal would be taken for
    # current. A copy without its spec is not a run; one that was never opened has no journal.
    if (
        not ended
        or not (copy / SPEC).is_file()
        or any(
            (copy / name).is_file() and facts_of(copy / name) != manifest.files.get(name)
            for name in (SPEC, JOURNAL)
        )
    ):
        shutil.rmtree(copy, ignore_errors=True)
    await pull(bucket, root, only=reading.ended if ended else reading.running)
    if not ended and HEARTBEAT in reading.running:
        # The heartbeat has no checksum: it is only displayed.
        beat = await bucket.read(HEARTBEAT, MAX_BEAT)
        write_atomic(copy / HEARTBEAT, beat or b"")
    _mark_copy(copy, bucket.url)
    return copy


def _mark_copy(copy: Path, url: str) -> None:
    write_atomic(copy / COPY_OF, f"{url}\n".encode())


def cache_of(url: str, reading: MirrorOptions = QUERIES) -> Path:
    """Return the folder of the copies of an address; each server has its own."""
    server = os.environ.get("AWS_ENDPOINT_URL", "")
    mark = hashlib.sha256(f"{server} {url}".encode()).hexdigest()[:12]
    # For people who look into the cache; the hash makes the name unique.
    readable = re.sub(r"[^\w.-]+", "-", url).strip("-.")[:80]
    return user_folder("cache", "remote", f"{readable}-{mark}{reading.folder}")
