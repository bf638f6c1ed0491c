"""Public names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def imported_when_used(
    package: str, homes: Mapping[str, str], namespace: dict[str, Any]
) -> Callable[[str], Any]:
    """A package's `__getattr__`: looks a name up at its home and remembers it in `namespace`.

    `homes` is public name → the module that defines it.
    """

    def found(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import importlib

        value = getattr(importlib.import_module(home), name)
        namespace[name] = value
        return value

    return found
