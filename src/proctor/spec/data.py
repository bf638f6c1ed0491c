"""Trees of values that did not come from YAML: settings in TOML, the record of a suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from proctor.spec.problems import Place, Problem
from proctor.spec.scalars import substitute
from proctor.spec.tree import Tree

Path = tuple[str, ...]
"""The keys on the way to a value; items of a list are at the place of the list."""


def tree_of(
    value: Any,
    place_at: Callable[[Path], Place],
    environ: Mapping[str, str],
    problems: list[Problem],
    path: Path = (),
) -> Tree:
    """A value as a tree, with environment variables put in."""
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
    problems.extend(Problem(place, message, hint) for message, hint in found)
    return Tree(place, text, {}, value if secrets else None, secrets, bool(found))
