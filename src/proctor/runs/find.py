"""Find a run by folder, part of its path, tag, or `latest`.

Guarantees: returns one run or raises an error that lists the candidates; never guesses between two
matches.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from proctor.errors import ProctorError, did_you_mean
from proctor.runs.annotations import tagged
from proctor.runs.folder import place_of

LATEST = "latest"

_RUN_ID = re.compile(rb"^run_id: *['\"]?([0-9a-f-]{36})", re.MULTILINE)
_TOP = 512
"""Bytes at the start of a spec that contain its format and the run id."""


def find_run(text: str | Path, root: Path | str) -> Path:
    """Return a run folder by its path, by `<experiment>/<date>_<seq>`, by a tag, or `latest`.

    When several runs have a tag, the most recently tagged one is returned.
    """
    path, root = Path(text), Path(root)
    # A path counts from here first, as in every command, then from the results folder.
    for place in (path, root / path):
        if (place / "_spec_.yaml").is_file():
            return place
    problems: list[str] = []
    tags = tagged(root, problems)
    named = [each.run for each in tags if each.name == str(text)]
    if problems and str(text) != LATEST:
        # A lost tag would select another run without a word.
        raise ProctorError(
            f"cannot tell which run is tagged {str(text)!r}: {problems[0]}",
            hint="name the run by its path, or restore the file",
        )
    # Before the check of folders: a folder that is not a run may have the same name.
    if named:
        return named[-1]
    if path.is_dir():
        raise ProctorError(
            "not a run folder: it has no _spec_.yaml",
            where=str(path),
            hint="name a folder such as results/<experiment>/<date>_<seq>",
        )
    if str(text) == LATEST:
        return latest_run(root)
    runs = [str(run.relative_to(root)) for run in all_runs(root)]
    names = [*dict.fromkeys(each.name for each in tags), *runs]
    known = did_you_mean(str(text), names) or (
        f"{place_of(root)} has {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
        if names
        else f"there are no runs in {place_of(root)}; --results names another folder"
    )
    raise ProctorError(f"no run and no tag is called {str(text)!r}", hint=known)


def all_runs(root: Path | str) -> list[Path]:
    """Return every run folder below a results folder, in the order they started."""
    return sorted((spec.parent for spec in Path(root).glob("**/_spec_.yaml")), key=_start_order)


def latest_run(root: Path | str) -> Path:
    """Return the run that started last."""
    if not (runs := all_runs(root)):
        raise ProctorError(
            f"there are no runs in {place_of(Path(root))}",
            hint="`proctor run suite.yaml` makes one",
        )
    return runs[-1]


def _start_order(run: Path) -> tuple[str, str]:
    # Run ids sort by time. They are at the top of a spec, so the rest need not be parsed.
    with contextlib.suppress(OSError), (run / "_spec_.yaml").open("rb") as file:
        if found := _RUN_ID.search(file.read(_TOP)):
            return (found[1].decode(), str(run))
    return ("", str(run))
