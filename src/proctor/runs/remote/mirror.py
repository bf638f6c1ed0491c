"""Cache on this machine what commands read of runs in an object store.

    $XDG_CACHE_HOME/proctor/remote/<address>/<experiment>/<date>_<seq>/
    $XDG_CACHE_HOME/proctor/remote/<address>-runs/…                   for commands that open runs
      .copy-of      the address of the run; next to the experiments, that of all runs

Guarantees: an answer reflects the runs as they are in the store now. Only the needed files of each
run are fetched (for a query: Parquet file, spec, facts, notes, and the journal of a running run; to
find a run and its status: the same without Parquet file and journal, plus its last heartbeat), and
only when the checksum differs from the local copy. `with_journal` fetches the journal of a run that
is opened. Trade-off: Parquet files are fetched whole rather than by ranges, so the first query
costs their size and every later one a listing and a manifest per run; commands that need the same
copies wait for each other.
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
from proctor.runs.folder import CHECKSUMS, COPY_OF, address_of
from proctor.runs.heartbeat import MAX_BYTES as MAX_BEAT
from proctor.runs.heartbeat import NAME as HEARTBEAT
from proctor.runs.remote.object_store import (
    JOURNAL,
    SPEC,
    Bucket,
    RemoteError,
    StoreOptions,
    checked,
    facts_of,
)
from proctor.runs.remote.transfer import existing_manifest, pull, runs_at
from proctor.user_dirs import user_folder


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


def mirrored(
    url: str, options: StoreOptions | None = None, *, reading: MirrorOptions = QUERIES
) -> tuple[Path, list[str]]:
    """Return a local copy of the runs at an address, and the problems while fetching it."""
    url = checked(url)
    root = cache_of(url, reading)
    with _locked(root):
        work = _fetch_all(url, root, options or StoreOptions(), reading)
        current, problems = run_sync(work, nested=True)
        # A list first, since folders are removed on the way.
        for spec in list(root.rglob(SPEC)):
            if spec.parent not in current:  # no longer in the store, or not accessible
                shutil.rmtree(spec.parent, ignore_errors=True)
        _mark(root, url)
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


async def _fetch_all(
    url: str, root: Path, options: StoreOptions, reading: MirrorOptions
) -> tuple[set[Path], list[str]]:
    """Fetch every run at an address; return the current copies and the problems."""
    copies: set[Path] = set()
    problems: list[str] = []
    for place in await runs_at(url, options):
        try:
            copies.add(await _refresh(Bucket(place, options), root, reading))
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
    _mark(copy, bucket.url)
    return copy


def _mark(copy: Path, url: str) -> None:
    write_atomic(copy / COPY_OF, f"{url}\n".encode())


def cache_of(url: str, reading: MirrorOptions = QUERIES) -> Path:
    """Return the folder of the copies of an address; each server has its own."""
    server = os.environ.get("AWS_ENDPOINT_URL", "")
    mark = hashlib.sha256(f"{server} {url}".encode()).hexdigest()[:12]
    # For people who look into the cache; the hash makes the name unique.
    readable = re.sub(r"[^\w.-]+", "-", url).strip("-.")[:80]
    return user_folder("cache", "remote", f"{readable}-{mark}{reading.folder}")
