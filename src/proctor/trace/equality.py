"""When two attribute values are the same.

Promise: a structure equals its JSON text, a list equals a tuple, booleans equal only booleans,
and nothing else is converted. No text, however broken or deep, raises.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

_CONTAINERS = (dict, list, tuple)


def same(actual: Any, expected: Any) -> bool:
    """Equality of attribute values.

    A list equals a tuple; a mapping or list equals its JSON text (that is how instrumentations
    write them); booleans equal only booleans; other primitives are never decoded.
    """
    if isinstance(actual, str) and isinstance(expected, _CONTAINERS):
        return _same_as_json(actual, expected)
    if isinstance(expected, str) and isinstance(actual, _CONTAINERS):
        return _same_as_json(expected, actual)
    if isinstance(actual, bool) or isinstance(expected, bool):
        return actual is expected
    if isinstance(actual, dict) and isinstance(expected, dict):
        held, wanted = cast(dict[Any, Any], actual), cast(dict[Any, Any], expected)
        return held.keys() == wanted.keys() and all(same(held[k], wanted[k]) for k in wanted)
    if isinstance(actual, list | tuple) and isinstance(expected, list | tuple):
        items, others = cast(Sequence[Any], actual), cast(Sequence[Any], expected)
        return len(items) == len(others) and all(map(same, items, others))
    return bool(actual == expected)


def may_be_json(text: str) -> bool:
    """Whether a text can be a JSON object or array, by a look at how it begins."""
    return text.lstrip()[:1] in ("{", "[")


def _same_as_json(text: str, structure: Any) -> bool:
    if not may_be_json(text):
        return False
    try:
        # The standard library's decoder, because producers also write NaN and lone surrogates.
        return same(json.loads(text), structure)
    except (ValueError, RecursionError):
        return False
