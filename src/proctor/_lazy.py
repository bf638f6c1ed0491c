"""Import the public names of a package when they are first used (PEP 562).

This module imports nothing itself, because `import proctor` runs it and must cost almost nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for typing's, which would be half of our cost
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def imported_when_used(
    package: str, homes: Mapping[str, str], namespace: dict[str, Any]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package; imported names are cached in `namespace`.

    `homes` maps a public name to the module that defines it, or that it is.
    """

    def found(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import importlib

        module = importlib.import_module(home)
        value = module if home == f"{package}.{name}" else getattr(module, name)
        namespace[name] = value
        return value

    def listed() -> list[str]:
        # Only public names: not the package's own imports, nor modules that happen to be loaded.
        return sorted({*homes, *(name for name in namespace if name.startswith("__"))})

    return found, listed
