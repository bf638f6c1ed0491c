"""The run that a person means: a folder, a part of its path, a tag, or the latest.

Promise: one run or an error that says what there is; nothing is guessed between two that fit.
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
"""Bytes of a spec that hold its format and the id of the run."""


def find_run(text: str | Path, root: Path | str) -> Path:
    """A run folder by its path, by `<experiment>/<date>_<seq>`, by a tag, or `latest`.

    Where several runs carry a tag, the one tagged last is meant.
    """
    path, root = Path(text), Path(root)
    for place in (path, root / path):
        if (place / "_spec_.yaml").is_file():
            return place
    tags = tagged(root)
    named = [each.run for each in tags if each.name == str(text)]
    if named:  # also where a folder that is no run has the same name
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
    """Every run folder below a folder of runs, in the order they began."""
    return sorted((spec.parent for spec in Path(root).glob("**/_spec_.yaml")), key=_began)


def latest_run(root: Path | str) -> Path:
    """The run that began last."""
    if not (runs := all_runs(root)):
        raise ProctorError(
            f"there are no runs in {place_of(Path(root))}",
            hint="`proctor run suite.yaml` makes one",
        )
    return runs[-1]


def _began(run: Path) -> tuple[str, str]:
    """Ids of runs are in the order of time, and stand at the top of a spec."""
    with contextlib.suppress(OSError), (run / "_spec_.yaml").open("rb") as file:
        if found := _RUN_ID.search(file.read(_TOP)):
            return (found[1].decode(), str(run))
    return ("", str(run))
