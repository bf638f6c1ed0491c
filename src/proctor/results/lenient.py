"""Parts of documents that others wrote (a spec, a log), taken for what they should be.

Promise: nothing here raises; a part of another kind counts as one that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is a mapping, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """The value where it is a list, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_text(value: Any) -> str | None:
    """The value as text; None stays None."""
    return None if value is None else str(value)
