"""Find the runs below a folder, and the file to read each one's trials from.

Guarantees: a run is read from its Parquet file only while that contains everything its journal
does; a run that is running, was resumed or crashed is read from its journal. An unreadable folder
is reported and skipped, never fatal, unless it is the one run requested by path. Nothing is locked
or written.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from proctor.errors import ProctorError, did_you_mean
from proctor.results.metadata import NAME as FACTS
from proctor.results.metadata import RunFacts, facts_of_spec, read_facts
from proctor.runs.folder import RunFolder, check_files, is_experiment

SPEC, JOURNAL, PARQUET = "_spec_.yaml", "trials.jsonl", "results.parquet"
NOTES = "notes.jsonl"

LATEST = "latest"

# Search depth below the root: an output path has two or three parts.
_MAX_DEPTH = 8


class DiscoveredRun(NamedTuple):
    """A readable run. `live` runs are read from their journal; `problems` are what is damaged."""

    path: Path
    name: str
    facts: RunFacts
    live: bool
    tags: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """The file its trials are read from."""
        return self.path / (JOURNAL if self.live else PARQUET)


class Skipped(NamedTuple):
    """A skipped folder and the reason."""

    path: Path
    why: str

    def __str__(self) -> str:
        return f"{self.path}: skipped: {self.why}"


class Discovery(NamedTuple):
    """Runs and skipped folders below a root."""

    runs: list[DiscoveredRun]
    skipped: list[Skipped]


def discover(root: Path, patterns: Sequence[str] = ()) -> Discovery:
    """Return the runs below `root` (or `root` itself, if it is a run), by name.

    A pattern is a glob over a run's name (`suite/2026-11-*`), its experiment, its id or its tags;
    or the path of a run folder, or of any folder with runs; or `latest`, the run that started last
    (one of an experiment such as `ab` only if there is no other).
    """
    if not root.is_dir() and not patterns:
        raise ProctorError(
            "the folder does not exist",
            where=str(root),
            hint="`proctor run` writes runs to ./results; --results names another folder",
        )
    result = Discovery([], [])
    # A folder without runs is not the match: a project may have a folder named like an experiment.
    globs = [p for p in patterns if not (Path(p).is_dir() and _collect(result, Path(p), root))]
    if globs or not patterns:
        below = Discovery([], [])
        if root.is_dir():
            _collect(below, root, root, strict=not patterns)
        matches = [run for run in below.runs if not globs or _matches(run, globs)]
        if LATEST in globs and below.runs and not any(_matches(run, [LATEST]) for run in matches):
            # A run tagged or named `latest` wins over the newest one.
            matches.append(
                max(
                    below.runs,
                    key=lambda run: (not is_experiment(run.path), run.facts.run_id, run.name),
                )
            )
        if globs and not matches and not result.runs:
            for path, why in below.skipped:
                if any(fnmatch.fnmatchcase(_name(path, root), g.rstrip("/")) for g in globs):
                    raise ProctorError(why, where=str(path))  # it exists, but cannot be read
            names = {n for run in below.runs for n in (run.name, run.facts.name, *run.tags)}
            listed = ", ".join(sorted(names)[:5]) or "none"
            hint = did_you_mean(globs[0], names) or f"known: {listed}"
            raise ProctorError(f"no run matches {' '.join(globs)}", where=str(root), hint=hint)
        result.runs.extend(matches)
        result.skipped.extend(below.skipped)
    # Two patterns may match one run, which must not be counted twice.
    by_path = {str(run.path): run for run in result.runs}
    return Discovery(sorted(by_path.values(), key=lambda run: run.name), result.skipped)


def _matches(run: DiscoveredRun, globs: Sequence[str]) -> bool:
    names = (run.name, run.facts.name, run.facts.run_id, run.path.name, *run.tags)
    return any(
        fnmatch.fnmatchcase(name, glob) or run.name.startswith(f"{glob.rstrip('/')}/")
        for glob in globs
        for name in names
    )


def _collect(result: Discovery, folder: Path, root: Path, *, strict: bool = True) -> bool:
    """Add the runs below a folder; return whether it contains a run or something like one.

    With `strict`, a folder that is itself an unreadable run is an error: the user named it.
    """
    # One damaged run among many must not stop a query, but one that was named must not be ignored.
    requested = strict and (folder / SPEC).is_file()
    before = len(result.runs) + len(result.skipped)
    for path, annotated in run_folders(folder, result.skipped):
        try:
            result.runs.append(read_run(path, root, annotated=annotated))
        except ProctorError as error:
            if requested:
                raise
            hint = f" ({error.hint})" if error.hint else ""
            result.skipped.append(Skipped(path, f"{error.message}{hint}"))
    return len(result.runs) + len(result.skipped) > before


def run_folders(root: Path, skipped: list[Skipped]) -> Iterator[tuple[Path, bool]]:
    """Return folders with a spec, in order, and whether the run has annotations.

    Folders that look like a run but have no spec are reported.
    """
    seen: set[tuple[int, int]] = set()
    waiting = [(str(root), 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            here = os.stat(folder)  # noqa: PTH116 (thousands of folders: pathlib is slower)
            with os.scandir(folder) as listing:
                entries = {entry.name: entry for entry in listing}
        except OSError as error:
            skipped.append(Skipped(Path(folder), f"cannot be read: {error.strerror}"))
            continue
        if (here.st_dev, here.st_ino) in seen:  # a symlink loop
            continue
        seen.add((here.st_dev, here.st_ino))
        if SPEC in entries:
            # A built scenario also has a spec, but next to a manifest.
            if "_manifest_.yaml" not in entries:
                yield Path(folder), NOTES in entries
            continue
        if JOURNAL in entries or PARQUET in entries:
            skipped.append(Skipped(Path(folder), f"not a run folder: it has no {SPEC}"))
            continue
        if depth < _MAX_DEPTH:
            below = [e.path for n, e in entries.items() if not n.startswith(".") and e.is_dir()]
            # Reversed, because the last one is visited first.
            waiting.extend((path, depth + 1) for path in sorted(below, reverse=True))


def read_run(folder: Path, root: Path, *, annotated: bool = True) -> DiscoveredRun:
    """Read one run, from its facts.json while that is valid, else from its spec."""
    name, noted = _name(folder, root), list[str]()
    tags: tuple[str, ...] = ()
    if annotated:
        from proctor.runs.annotations import tags_of

        tags = tags_of(folder, noted)
    state = check_files(folder, (FACTS, PARQUET))
    problems = (*map(str, state.damage), *noted)
    damaged = {Path(each.where).name for each in state.damage}
    facts = read_facts(folder) if state.checksums and FACTS not in damaged else None
    if facts is not None:
        live = not state.current or PARQUET in damaged
        return DiscoveredRun(folder, name, facts, live, tags, problems)
    spec = RunFolder.open(folder).read_spec()
    try:
        facts = facts_of_spec(spec)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProctorError(
            f"the spec is not a run spec: {type(error).__name__} {error}",
            where=str(folder / SPEC),
        ) from None
    # Without facts nothing says that the Parquet file is complete; the journal always is.
    live = (folder / JOURNAL).is_file() or not (folder / PARQUET).is_file()
    return DiscoveredRun(folder, name, facts, live, tags, problems)


def _name(folder: Path, root: Path) -> str:
    """Return a run's name: its path below the root, else its last two folders."""
    try:
        relative = folder.relative_to(root)
        if relative.parts:
            return relative.as_posix()
    except ValueError:
        pass
    parts = folder.resolve().parts
    return "/".join(parts[-2:])
