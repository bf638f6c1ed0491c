"""`[tool.proctor]` of a pyproject.toml as a tree.

The standard parser keeps no lines, so they are found again by looking for headers and keys. A key
inside an inline table gets the line of that table: close enough to find it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from proctor.spec.data import tree_of
from proctor.spec.problems import Place, Problem
from proctor.spec.reader import Document

_HEADER = re.compile(r"\s*\[{1,2}\s*(?P<name>[^\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(
    r"""\s*(?P<name>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_TABLE = ("tool", "proctor")


def read_toml(path: Path, environ: Mapping[str, str]) -> Document:
    """The table as a tree; None when the file has none."""
    name = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        data: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+), column (\d+)", str(error))
        place = Place(name, int(at[1]), int(at[2])) if at else Place(name, 1, 1)
        return Document(None, [Problem(place, f"not TOML: {str(error).partition(' (at')[0]}")])
    except (OSError, UnicodeDecodeError) as error:
        return Document(None, [Problem(Place(name, 1, 1), f"cannot be read: {error}")])
    for part in _TABLE:
        data = cast("dict[str, Any]", data).get(part) if isinstance(data, dict) else None
    if data is None:
        return Document(None, [])
    problems: list[Problem] = []
    places = _places(text, name)

    def place_at(path: tuple[str, ...]) -> Place:
        whole = _TABLE + path
        return next(places[whole[:n]] for n in range(len(whole), 0, -1) if whole[:n] in places)

    return Document(tree_of(data, place_at, environ, problems), problems)


def _places(text: str, name: str) -> dict[tuple[str, ...], Place]:
    """Where each header and each key at the start of a line stands."""
    places: dict[tuple[str, ...], Place] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _parts(header["name"])
            found, path = header, table
        elif key := _KEY.match(line):
            found, path = key, (*table, *_parts(key["name"]))
        else:
            continue
        for length in range(1, len(path) + 1):
            places.setdefault(path[:length], Place(name, number, found.start("name") + 1))
    return places


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
