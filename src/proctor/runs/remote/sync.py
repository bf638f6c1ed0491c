"""Which runs a sync is about: one, or all below a folder or a prefix.

Promise: a run keeps its name, `<experiment>/<date>_<seq>`, wherever it goes, so that a folder or
prefix of runs is used the same way on both sides.
"""

from __future__ import annotations

from pathlib import Path

from proctor.runs.find import all_runs, find_run
from proctor.runs.remote import address
from proctor.runs.remote.bucket import Bucket, Patience
from proctor.runs.remote.manifest import NAME, RemoteError, is_inside
from proctor.runs.remote.transfer import Moved, Tell, check, pull, push


async def send(
    runs: list[Path],
    root: Path,
    to: str,
    patience: Patience,
    *,
    verify: bool = False,
    tell: Tell | None = None,
) -> list[Moved]:
    """Send runs to their names below an address, one after the other."""
    moved: list[Moved] = []
    for run in runs:
        name = name_of(run, root)
        bucket = Bucket(address.joined(address.checked(to), name), patience)
        moved.append(await push(run, name, bucket, verify=verify, tell=tell))
    return moved


async def bring(
    source: str, root: Path, patience: Patience, *, tell: Tell | None = None
) -> list[Moved]:
    """Bring the run at an address, or all runs below it, to their names below a folder."""
    places = await runs_at(source, patience)
    return [await pull(Bucket(place, patience), root, tell=tell) for place in places]


async def look_over(source: str, patience: Patience, *, tell: Tell | None = None) -> list[Moved]:
    """Check the run at an address, or all runs below it, where they are."""
    places = await runs_at(source, patience)
    return [await check(Bucket(place, patience), tell=tell) for place in places]


async def runs_at(source: str, patience: Patience) -> list[str]:
    """The addresses of the runs at or below one."""
    bucket = Bucket(source, patience)
    listed = await bucket.sizes()
    if NAME in listed:
        return [bucket.url]
    found = sorted(key.removesuffix(f"/{NAME}") for key in listed if key.endswith(f"/{NAME}"))
    if not found:
        raise RemoteError(
            f"there is no run here: nothing has a {NAME}",
            where=bucket.url,
            hint="`proctor sync RUN ADDRESS` sends one",
        )
    return [address.joined(bucket.url, name) for name in found]


def runs_meant(text: str, root: Path) -> list[Path]:
    """The run that a text names, or every run of the folder that it is."""
    place = Path(text)
    if place.is_dir() and not (place / "_spec_.yaml").is_file() and (runs := all_runs(place)):
        return runs
    return [find_run(text, root)]


def name_of(run: Path, root: Path) -> str:
    """A run's name: its place below the folder of runs, else its last two folders."""
    full = run.resolve()
    name = "/".join(full.parts[-2:])
    base = root.resolve()
    if full != base and full.is_relative_to(base):
        name = full.relative_to(base).as_posix()
    if not is_inside(name):
        raise RemoteError(f"a run cannot be called {name!r} at a remote place", where=str(run))
    return name
