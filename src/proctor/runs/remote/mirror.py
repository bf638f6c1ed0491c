"""What commands read of runs at an address, kept in a cache on this machine.

    $XDG_CACHE_HOME/proctor/remote/<address>/<experiment>/<date>_<seq>/
    $XDG_CACHE_HOME/proctor/remote/<address>-runs/…                        for those that open runs
      .copy-of      the address of the run; beside the experiments, that of all of them

Promise: an answer is of the runs as they are at the store now. Of each run only what is read is
fetched (for a query columns, spec, facts, notes, and of one that goes on its journal; to find a run
and say how it is, the same without columns and journal, and its last beat), and only when its
checksum is not that of the copy here. The journal of a run that is opened comes by `with_journal`.
The price: the columns come whole rather than by ranges, so that the first query costs their size
and every later one a listing and a manifest per run; commands that want the same copies at once
wait for each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from proctor.background import run_sync
from proctor.errors import ProctorError
from proctor.files import lock_file, write_atomic
from proctor.runs.folder import COPY_OF, address_of
from proctor.runs.heartbeat import MOST_BYTES as MOST_BEAT
from proctor.runs.heartbeat import NAME as HEARTBEAT
from proctor.runs.remote.manifest import JOURNAL, SPEC, Manifest, RemoteError, facts_of
from proctor.runs.remote.object_store import Bucket, Patience, checked
from proctor.runs.remote.transfer import pull, read_manifest, runs_at
from proctor.user_dirs import user_folder


class MirrorOptions(NamedTuple):
    """What is read of each run, and the folder of its copies."""

    ended: frozenset[str]
    running: frozenset[str]
    folder: str = ""


QUERIES = MirrorOptions(
    frozenset({SPEC, "results.parquet", "facts.json", "notes.jsonl"}), frozenset({JOURNAL})
)
"""What a query reads."""

RUNS = MirrorOptions(
    frozenset({SPEC, "facts.json", "notes.jsonl", HEARTBEAT}), frozenset({HEARTBEAT}), "-runs"
)
"""What it takes to find a run and to say how it is."""


def mirrored(
    url: str, patience: Patience | None = None, *, reading: MirrorOptions = QUERIES
) -> tuple[Path, list[str]]:
    """A folder of runs like the one at an address, and what could not be had of it."""
    url = checked(url)
    root = cache_of(url, reading)
    with _alone(root):
        kept, problems = run_sync(_brought(url, root, patience or Patience(), reading), nested=True)
        for spec in list(root.rglob(SPEC)):
            if spec.parent not in kept:  # no longer at the store, or not to be had
                shutil.rmtree(spec.parent, ignore_errors=True)
        _mark(root, url)
    return root, problems


def with_journal(copy: Path, root: Path) -> Path:
    """The copy of a run below a mirror, with its journal: all that a run is derived from."""
    if url := address_of(copy):
        with _alone(root):
            run_sync(pull(Bucket(url), root, only=frozenset({SPEC, JOURNAL})), nested=True)
    return copy


@contextlib.contextmanager
def _alone(root: Path) -> Generator[None]:
    """Be the one that changes these copies: a run that another process holds would be left out."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        file = (root / ".lock").open("ab")
    except OSError as error:
        raise RemoteError(
            f"copies cannot be kept here: {error.strerror}",
            where=str(root),
            hint="XDG_CACHE_HOME names another folder",
        ) from None
    with file:
        lock_file(file)
        yield


async def _brought(
    url: str, root: Path, patience: Patience, reading: MirrorOptions
) -> tuple[set[Path], list[str]]:
    """Bring every run at an address; the copies there are now, and what could not be had."""
    kept: set[Path] = set()
    problems: list[str] = []
    for place in await runs_at(url, patience):
        try:
            kept.add(await _fresh(Bucket(place, patience), root, reading))
        except ProctorError as error:
            problems.append(f"{error}; skipped")
    return kept, problems


async def _fresh(bucket: Bucket, root: Path, reading: MirrorOptions) -> Path:
    """Make the copy of a run what the store has; its folder."""
    manifest = await read_manifest(bucket)
    if manifest is None:
        raise RemoteError("the run is gone", where=bucket.url)
    copy = root / manifest.name
    ended = manifest.state == "complete"
    # Pieces have no checksum to compare a whole journal with, and the journal of a run that has
    # ended or grown since would be taken for the truth.
    if not ended or not _is_of(copy, manifest):
        shutil.rmtree(copy, ignore_errors=True)
    await pull(bucket, root, only=reading.ended if ended else reading.running)
    if not ended and HEARTBEAT in reading.running:
        # It is told, not kept: no checksum to wait for.
        beat = await bucket.read(HEARTBEAT, MOST_BEAT)
        write_atomic(copy / HEARTBEAT, beat or b"")
    _mark(copy, bucket.url)
    return copy


def _mark(copy: Path, url: str) -> None:
    write_atomic(copy / COPY_OF, f"{url}\n".encode())


def _is_of(copy: Path, manifest: Manifest) -> bool:
    spec, journal = copy / SPEC, copy / JOURNAL
    if not spec.is_file() or facts_of(spec) != manifest.files.get(SPEC):
        return False
    return not journal.is_file() or facts_of(journal) == manifest.files.get(JOURNAL)


def cache_of(url: str, reading: MirrorOptions = QUERIES) -> Path:
    """The folder of the copies of what is at an address; other servers have other folders."""
    server = os.environ.get("AWS_ENDPOINT_URL", "")
    mark = hashlib.sha256(f"{server} {url}".encode()).hexdigest()[:12]
    words = re.sub(r"[^\w.-]+", "-", url).strip("-.")[:80]
    return user_folder("cache", "remote", f"{words}-{mark}{reading.folder}")
