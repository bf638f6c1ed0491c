"""Diagnose traces: what broke, where, and with what confidence.

`proctor.diagnose(trace)` calls this package: the function and the package share a name, and Python
binds the attribute to the package as soon as one of its modules is imported. The module is
therefore callable.
"""

import sys
from types import ModuleType
from typing import Any

from proctor._lazy import imported_when_used

TYPE_CHECKING = False  # type checkers treat it as typing's, which would cost more to import
if TYPE_CHECKING:
    from proctor.diagnose.finding import Category, Diagnosis, Finding
    from proctor.diagnose.methods import diagnose

__all__ = ["Category", "Diagnosis", "Finding", "diagnose"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = imported_when_used(
        __name__,
        {
            "Category": "proctor.diagnose.finding",
            "Diagnosis": "proctor.diagnose.finding",
            "Finding": "proctor.diagnose.finding",
            "diagnose": "proctor.diagnose.methods",
        },
        globals(),
    )


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from proctor.diagnose.methods import diagnose

        return diagnose(*args, **options)


sys.modules[__name__].__class__ = _CallableModule
