"""Send a run to a remote place, bring it back, and check it there.

Promise: what is there already with the right checksum is not sent again, so a transfer that was
cut goes on where it was, and of a file that was shipped in pieces while it grew only the rest is
sent; a file is replaced wholly or not at all, and a run is one only when all of it has come (the
manifest goes last, and locally the spec does). What does not match its checksum is named and never
put in place. A run is never replaced by another one, nor by an earlier state of itself.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from proctor.runs.folder import RunFolder
from proctor.runs.remote import pieces
from proctor.runs.remote.aside import Aside
from proctor.runs.remote.bucket import Bucket
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
    run_files,
)
from proctor.runs.remote.pieces import Piece

SMALL = 4 << 20
"""Bytes up to which a file is read once, for its checksum and to be sent: then both are of the
same moment even where somebody appends a note."""

WHOLE = 1 << 20
"""Bytes up to which a file that came in pieces is sent whole after all: one request, as the rest of
it would be, and other tools find it under its name."""


class Step(NamedTuple):
    """A file that has been dealt with."""

    name: str
    size: int
    moved: bool
    done: int
    of: int


Tell = Callable[[Step], None]


class Moved(NamedTuple):
    """What a transfer came to."""

    name: str
    files: int
    moved: int
    bytes_moved: int
    state: str
    verified: bool = False


class _Count:
    """Counts files as they are done, and tells."""

    def __init__(self, of: int, tell: Tell | None) -> None:
        self.files, self.moved, self.bytes = 0, 0, 0
        self._of, self._tell = of, tell

    def add(self, name: str, size: int, *, moved: bool) -> None:
        self.files += 1
        self.moved += moved
        self.bytes += size if moved else 0
        if self._tell is not None:
            self._tell(Step(name, size, moved, self.files, self._of))


async def read_manifest(bucket: Bucket) -> Manifest | None:
    """The manifest of the run at a place; None when there is none."""
    content = await bucket.read(NAME, MOST_BYTES)
    return None if content is None else decode(content, bucket.at(NAME))


# -- sending -------------------------------------------------------------------------------------


async def push(
    run: Path, name: str, bucket: Bucket, *, verify: bool = False, tell: Tell | None = None
) -> Moved:
    """Send a run called `name` to the bucket's address."""
    folder = RunFolder.open(run)
    with folder.lock():
        run_id = str(folder.read_spec().get("run_id") or "")
        files = dict(run_files(run))
        facts = {n: await asyncio.to_thread(facts_of, path) for n, path in files.items()}
        before = await read_manifest(bucket)
        _refuse_other(before.run_id if before else None, run_id, bucket.url)
        sizes = await bucket.sizes()
        shipped = pieces.growing(sizes, bucket.url)
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
                    chain = await pieces.that_are_whole(bucket, chain)
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
    return Moved(name, count.files, count.moved, count.bytes, done.state, verify)


async def _send_rest(
    bucket: Bucket, file: str, path: Path, chain: list[Piece], end: int
) -> tuple[list[Piece], int]:
    """Send what is not there of a file that came in pieces: all of these, and the bytes sent."""
    good = await asyncio.to_thread(pieces.that_are_of, path, chain)
    there = good[-1].end if good else 0
    await pieces.lengthen(bucket, file, path, good, end)
    return good, end - there


def _not_needed(listed: Iterable[str], joined: dict[str, list[Piece]]) -> list[str]:
    """Objects that the manifest has no use for: pieces of other files, and files now in pieces."""
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
            hint="keep this one below another prefix or folder",
        )


def _refuse_earlier(
    before: Manifest | None,
    shipped: dict[str, list[Piece]],
    facts: dict[str, FileFacts],
    where: str,
) -> None:
    """Files that only grow must not become shorter."""
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


# -- bringing back -------------------------------------------------------------------------------


async def pull(
    bucket: Bucket,
    root: Path,
    *,
    only: frozenset[str] | None = None,
    tell: Tell | None = None,
) -> Moved:
    """Bring the run at the bucket's address to its name below `root`; `only` some files of it.

    Every file is checked against the manifest before it is put in place.
    """
    manifest = await read_manifest(bucket)
    if manifest is None:
        raise RemoteError(
            f"there is no run here: it has no {NAME}",
            where=bucket.url,
            hint="`proctor sync RUN ADDRESS` sends one",
        )
    if manifest.state == "replacing":
        raise RemoteError(
            "the upload of this run was not finished",
            where=bucket.url,
            hint="run the same `proctor sync` again where it was begun",
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

        # What grows first, since it may be refused; the spec last, since it makes a run of it.
        early = [n for n in wanted if n in ONLY_GROW]
        rest = [n for n in wanted if n not in (*ONLY_GROW, SPEC)]
        for names in (early, rest, [n for n in wanted if n == SPEC]):
            await bucket.each([lambda n=name: bring(n) for name in names])
    return Moved(manifest.name, count.files, count.moved, count.bytes, manifest.state, True)


def _run_id_of(target: Path) -> str | None:
    """The id of the run that stands where another is to go, if one does."""
    if not (target / SPEC).is_file():
        return None
    return str(RunFolder.open(target).read_spec().get("run_id") or "")


def _pieces_of(manifest: Manifest, name: str, where: str) -> list[Piece]:
    """The pieces that a file is there in; none when it is there as it is."""
    names = manifest.pieces.get(name)
    return pieces.named(name, names, manifest.files[name].size, where) if names else []


async def _bring(
    bucket: Bucket, name: str, known: FileFacts, target: Path, chain: list[Piece]
) -> bool:
    """Bring one file, unless it is here; whether it had to be."""
    path = target / name
    if await asyncio.to_thread(_is_here, path, known):
        return False
    with Aside(path) as aside:
        if chain:
            await pieces.fetch(bucket, chain, aside.write)
        else:
            await bucket.fetch(name, aside.write)
        if FileFacts(aside.size, aside.sha256) != known:
            raise _damaged(bucket, name, known, aside.size)
        if name in ONLY_GROW:
            aside.refuse_to_shorten()
        aside.put_in_place()
    return True


def _is_here(path: Path, known: FileFacts) -> bool:
    return path.is_file() and path.stat().st_size == known.size and facts_of(path) == known


def _damaged(bucket: Bucket, name: str, known: FileFacts, size: int) -> RemoteError:
    what = f"{size} bytes, {known.size} expected" if size != known.size else "its checksum is wrong"
    return RemoteError(
        f"the object is damaged: {what}",
        where=bucket.at(name),
        hint="nothing was replaced; send the run again with `proctor sync RUN ADDRESS --verify`",
    )


async def _pull_running(
    bucket: Bucket,
    manifest: Manifest,
    target: Path,
    only: frozenset[str] | None,
    tell: Tell | None,
) -> Moved:
    """What was shipped of a run that had not ended: whole lines, and every trace they refer to."""
    listed = await bucket.sizes()
    growing = pieces.growing(listed, bucket.url)
    wanted = {n: found for n, found in growing.items() if only is None or n in only}
    count = _Count(len(wanted) + 1, tell)
    for name in sorted(wanted):  # "traces/…" before "trials.jsonl"
        with Aside(target / name) as aside:
            await pieces.fetch(bucket, wanted[name], aside.write)
            if name in ONLY_GROW:
                aside.refuse_to_shorten()
            aside.put_in_place()
        count.add(name, aside.size, moved=True)
    spec = manifest.files.get(SPEC)
    if spec is None:
        raise RemoteError(f"the run has no {SPEC} yet", where=bucket.url)
    moved = await _bring(bucket, SPEC, spec, target, [])
    count.add(SPEC, spec.size, moved=moved)
    return Moved(manifest.name, count.files, count.moved, count.bytes, manifest.state, True)


# -- checking ------------------------------------------------------------------------------------


async def check(bucket: Bucket, *, tell: Tell | None = None) -> Moved:
    """Read every object of a run where it is and compare it with the manifest."""
    manifest = await read_manifest(bucket)
    if manifest is None:
        raise RemoteError(f"there is no run here: it has no {NAME}", where=bucket.url)
    if manifest.state != "complete":
        raise RemoteError(
            f"the run is not complete: its manifest says {manifest.state!r}", where=bucket.url
        )
    count = _Count(len(manifest.files), tell)
    await _check_files(bucket, manifest, count)
    return Moved(manifest.name, count.files, 0, 0, manifest.state, True)


async def _check_files(bucket: Bucket, manifest: Manifest, count: _Count | None) -> None:
    async def look(name: str, known: FileFacts) -> RemoteError | None:
        chain = _pieces_of(manifest, name, bucket.url)
        digest, size = hashlib.sha256(), 0

        def take(block: bytes) -> None:
            nonlocal size
            digest.update(block)
            size += len(block)

        try:
            await (pieces.fetch(bucket, chain, take) if chain else bucket.fetch(name, take))
        except pieces.DamagedPieceError as error:
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
