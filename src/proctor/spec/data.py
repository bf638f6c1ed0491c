"""Build trees of values that did not come from YAML: settings in TOML, suite records."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from proctor.spec.located import SourceLocation, SpecProblem, Tree
from proctor.spec.yaml_reader import YamlDocument, substitute

Location = tuple[str, ...]
"""The keys that lead to a value; list items have the position of their list."""


def tree_of(
    value: Any,
    place_at: Callable[[Location], SourceLocation],
    environ: Mapping[str, str],
    problems: list[SpecProblem],
    path: Location = (),
) -> Tree:
    """Return a value as a tree, with environment variables substituted."""
    place = place_at(path)
    if isinstance(value, dict):
        table = cast("dict[Any, Any]", value)
        inner = {
            str(key): tree_of(item, place_at, environ, problems, (*path, str(key)))
            for key, item in table.items()
        }
        return Tree(place, inner, {key: tree.place for key, tree in inner.items()})
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return Tree(place, [tree_of(v, place_at, environ, problems, path) for v in items])
    if not isinstance(value, str):
        # Dates are what TOML has beyond JSON; no setting takes one.
        known = value is None or isinstance(value, bool | int | float)
        return Tree(place, value if known else str(value))
    text, secrets, found = substitute(value, environ)
    problems.extend(SpecProblem(place, message, hint) for message, hint in found)
    return Tree(place, text, {}, value if secrets else None, secrets, bool(found))


# `[tool.proctor]` of a pyproject.toml as a tree. The standard parser has no line numbers, so they
# are found by searching for headers and keys. A key inside an inline table gets the line of that
# table: close enough to find it.


_HEADER = re.compile(r"\s*\[{1,2}\s*(?P<name>[^\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(
    r"""\s*(?P<name>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_TABLE = ("tool", "proctor")


def read_toml(path: Path, environ: Mapping[str, str]) -> YamlDocument:
    """Return the table as a tree; None when the file has none."""
    name = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        data: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+), column (\d+)", str(error))
        place = SourceLocation(name, int(at[1]), int(at[2])) if at else SourceLocation(name, 1, 1)
        return YamlDocument(
            None, [SpecProblem(place, f"not TOML: {str(error).partition(' (at')[0]}")]
        )
    except (OSError, UnicodeDecodeError) as error:
        return YamlDocument(
            None, [SpecProblem(SourceLocation(name, 1, 1), f"cannot be read: {error}")]
        )
    for part in _TABLE:
        data = cast("dict[str, Any]", data).get(part) if isinstance(data, dict) else None
    if data is None:
        return YamlDocument(None, [])
    problems: list[SpecProblem] = []
    places = _places(text, name)

    def place_at(path: tuple[str, ...]) -> SourceLocation:
        whole = _TABLE + path
        return next(places[whole[:n]] for n in range(len(whole), 0, -1) if whole[:n] in places)

    return YamlDocument(tree_of(data, place_at, environ, problems), problems)


def _places(text: str, name: str) -> dict[tuple[str, ...], SourceLocation]:
    """Return the positions of each header and each key at the start of a line."""
    places: dict[tuple[str, ...], SourceLocation] = {}
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
            places.setdefault(path[:length], SourceLocation(name, number, found.start("name") + 1))
    return places


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
