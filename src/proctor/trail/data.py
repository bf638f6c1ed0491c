"""Read TRAIL annotation and prediction files without losing anything silently.

Guarantees: a file gives an annotation, or a problem with place and reason. The only repair is a
comma before a closing bracket, which is unambiguous; it is reported too. So are entries that cannot
count: no location, an unknown category, a score that is not a number.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from proctor.diagnose.finding import Category, official_label, parse_category
from proctor.diagnose.llm.parse import without_trailing_commas
from proctor.errors import ProctorError
from proctor.formatting import SHOWN_NAMES, and_more

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_NAMES = frozenset(category.value for category in Category)


@dataclass(frozen=True, slots=True)
class Mark:
    """One error of a gold or prediction file: location and category."""

    location: str
    label: str


@dataclass(frozen=True, slots=True)
class Annotation:
    """One file: errors and scores of one trace."""

    marks: tuple[Mark, ...] = ()
    scores: Mapping[str, Any] = field(default_factory=dict[str, Any])
    oddities: tuple[str, ...] = field(default=(), compare=False)
    """Problems: entries that cannot count."""


@dataclass(slots=True)
class Annotations:
    """Files of a folder by trace (the file's stem), with their problems."""

    by_trace: dict[str, Annotation] = field(default_factory=dict[str, Annotation])
    problems: list[str] = field(default_factory=list[str])
    unread: int = 0
    """Unreadable files."""


def read_annotations(folder: Path) -> Annotations:
    """Read every `*.json` file of a folder, ordered by name."""
    if not folder.is_dir():
        raise ProctorError(
            "no such folder", where=str(folder), hint="name the folder of annotation files"
        )
    result = Annotations()
    for path in sorted(folder.glob("*.json")):
        try:
            annotation, repaired = parse_annotation(path.read_text(encoding="utf-8-sig"))
        # RecursionError: deeply nested JSON must not stop the other files.
        except (ValueError, OSError, RecursionError) as error:
            result.problems.append(f"{path.name}: not read: {error}")
            result.unread += 1
            continue
        if repaired:
            result.problems.append(f"{path.name}: trailing comma repaired")
        if annotation.oddities:
            result.problems.append(
                f"{path.name}: {and_more(annotation.oddities, SHOWN_NAMES, str)}"
            )
        result.by_trace[path.stem] = annotation
    return result


def parse_annotation(text: str) -> tuple[Annotation, bool]:
    """Return one file's annotation, and whether a trailing comma was removed.

    Raises ValueError if the text is not JSON or has another shape.
    """
    try:
        data, repaired = json.loads(text), False
    except json.JSONDecodeError:
        # The one repair with a single meaning; it is reported.
        data, repaired = json.loads(without_trailing_commas(text)), True
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    document = cast("dict[str, Any]", data)
    scores = _objects(document.get("scores") or [], "scores")
    errors = _objects(document.get("errors") or [], "errors")
    # Entries that cannot count are kept and reported: dropping them would raise the precision.
    marks = tuple(
        Mark(str(e.get("location") or ""), str(label or ""))
        for e in errors
        # Our own predictions have one entry per span, with further kinds under `also`.
        for label in (e.get("category"), *(cast("list[Any]", e.get("also") or [])))
    )
    # TRAIL writes a list that holds one object.
    scored = scores[0] if scores else {}
    odd = [] if "errors" in document else ["`errors` is missing"]
    odd += [f"errors[{n}]: {why}" for n, mark in enumerate(marks) for why in _odd_mark(mark)]
    odd += [f"{name} is not a number" for name, value in scored.items() if _odd_score(name, value)]
    return Annotation(marks, scored, tuple(odd)), repaired


def _odd_mark(mark: Mark) -> Iterator[str]:
    """Return why an error can never match another."""
    if not mark.location:
        yield "no location"
    known = parse_category(mark.label) or official_label(mark.label) in _NAMES
    if not mark.label:
        yield "no category"
    elif not known:
        yield f"the category {mark.label!r} is not in the taxonomy"


def _odd_score(name: str, value: Any) -> bool:
    """Return whether a score is set but not a number."""
    if not (name == "overall" or name.endswith("_score")) or value is None or value == "":
        return False
    try:
        return not math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return True


def _objects(value: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise ValueError(f"`{name}` is not a list")
    items = cast("list[Any]", value)
    if not all(isinstance(item, dict) for item in items):
        raise ValueError(f"`{name}` holds something other than objects")
    return cast("list[dict[str, Any]]", items)
