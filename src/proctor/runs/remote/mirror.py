"""What queries read of runs at an address, kept in a cache on this machine.

    $XDG_CACHE_HOME/proctor/remote/<address>/<experiment>/<date>_<seq>/

Promise: an answer is of the runs as they are at the store now. Of each run only what a query reads
is fetched (columns, spec, facts, notes; of one that goes on, its journal), and only when its
checksum is not that of the copy here. The price: the columns come whole rather than by ranges, so
that the first query costs their size and every later one a listing and a manifest per run.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

from proctor.errors import ProctorError
from proctor.places import user_folder
from proctor.runs.remote.address import checked
from proctor.runs.remote.bucket import Bucket, Patience
from proctor.runs.remote.manifest import JOURNAL, SPEC, Manifest, RemoteError, facts_of
from proctor.runs.remote.sync import runs_at
from proctor.runs.remote.transfer import pull, read_manifest
from proctor.runs.remote.waiting import to_end

READ = frozenset({SPEC, "results.parquet", "facts.json", "notes.jsonl"})
"""What a query reads of a run that has ended."""


def mirrored(url: str, patience: Patience | None = None) -> tuple[Path, list[str]]:
    """A folder of runs like the one at an address, and what could not be had of it."""
    return to_end(_mirrored(checked(url), patience or Patience()))


async def _mirrored(url: str, patience: Patience) -> tuple[Path, list[str]]:
    root = cache_of(url)
    problems: list[str] = []
    kept: set[Path] = set()
    for place in await runs_at(url, patience):
        try:
            kept.add(root / await _fresh(Bucket(place, patience), root))
        except ProctorError as error:
            problems.append(f"{error}; skipped")
    for spec in list(root.rglob(SPEC)) if root.is_dir() else []:
        if spec.parent not in kept:  # no longer at the store, or not to be had
            shutil.rmtree(spec.parent, ignore_errors=True)
    return root, problems


async def _fresh(bucket: Bucket, root: Path) -> str:
    """Make the copy of a run what the store has; its name."""
    manifest = await read_manifest(bucket)
    if manifest is None:
        raise RemoteError("the run is gone", where=bucket.url)
    copy = root / manifest.name
    ended = manifest.state == "complete"
    # Pieces have no checksum to compare a whole journal with, and a copy of one that has ended
    # since would be taken for the truth.
    if not ended or (copy / JOURNAL).exists() or not _is_of(copy, manifest):
        shutil.rmtree(copy, ignore_errors=True)
    return (await pull(bucket, root, only=READ if ended else frozenset({JOURNAL}))).name


def _is_of(copy: Path, manifest: Manifest) -> bool:
    known = manifest.files.get(SPEC)
    path = copy / SPEC
    return path.is_file() and facts_of(path) == known


def cache_of(url: str) -> Path:
    """The folder of the copies of what is at an address; other servers have other folders."""
    server = os.environ.get("AWS_ENDPOINT_URL", "")
    mark = hashlib.sha256(f"{server} {url}".encode()).hexdigest()[:12]
    words = re.sub(r"[^\w.-]+", "-", url).strip("-.")[:80]
    return user_folder("cache", "remote", f"{words}-{mark}")
