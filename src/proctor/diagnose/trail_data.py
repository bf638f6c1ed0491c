"""TRAIL annotation and prediction files, read so that nothing goes missing in silence.

Promise: a file gives an annotation or a problem that says where and why. The one repair is a
comma before a closing bracket, which has one meaning only; it is reported all the same.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from proctor.errors import ProctorError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[\]}])', re.DOTALL)
"""A whole string, so that commas inside one are passed over, or a comma that ends a list."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One error of a gold or prediction file: where, and of which kind."""

    location: str
    label: str


@dataclass(frozen=True, slots=True)
class Annotation:
    """One file: the errors and the scores of one trace."""

    marks: tuple[Mark, ...] = ()
    scores: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class Annotations:
    """A folder of files by trace (the file's stem), with what was wrong in it."""

    by_trace: dict[str, Annotation] = field(default_factory=dict[str, Annotation])
    problems: list[str] = field(default_factory=list[str])


def without_trailing_commas(text: str) -> str:
    """The text without commas that stand right before a closing bracket, outside strings."""
    return _STRING_OR_COMMA.sub(lambda m: "" if m.group() == "," else m.group(), text)


def read_annotations(folder: Path) -> Annotations:
    """Read every `*.json` of a folder, in order of name."""
    if not folder.is_dir():
        raise ProctorError(
            "no such folder", where=str(folder), hint="name the folder of annotation files"
        )
    result = Annotations()
    for path in sorted(folder.glob("*.json")):
        try:
            annotation, repaired = parse_annotation(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            result.problems.append(f"{path.name}: not read: {error}")
            continue
        if repaired:
            result.problems.append(f"{path.name}: trailing comma repaired")
        result.by_trace[path.stem] = annotation
    return result


def parse_annotation(text: str) -> tuple[Annotation, bool]:
    """One file's annotation, and whether a trailing comma had to be taken out.

    Raises ValueError when the text is not JSON or has another shape.
    """
    try:
        data, repaired = json.loads(text), False
    except json.JSONDecodeError:
        data, repaired = json.loads(without_trailing_commas(text)), True
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    document = cast("dict[str, Any]", data)
    scores = _objects(document.get("scores") or [], "scores")
    errors = _objects(document.get("errors") or [], "errors")
    marks = tuple(Mark(str(e.get("location") or ""), str(e.get("category") or "")) for e in errors)
    return Annotation(marks, scores[0] if scores else {}), repaired


def _objects(value: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise ValueError(f"`{name}` is not a list")
    items = cast("list[Any]", value)
    if not all(isinstance(item, dict) for item in items):
        raise ValueError(f"`{name}` holds something other than objects")
    return cast("list[dict[str, Any]]", items)
