"""Diagnosis: what broke in a trace, where, and how well a detector tells it.

`proctor.diagnose(trace)` calls this package: the room and the verb have one name, and the module
answers to both. The taxonomy and the scorer depend on nothing but the standard library.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proctor.diagnose.finding import Diagnosis
    from proctor.trace import Trace


class _Verb(ModuleType):
    """A package that can be called."""

    def __call__(self, trace: "Trace", method: str = "offline", **how: Any) -> "Diagnosis":
        """Find what broke in a trace; see `proctor.diagnose.methods.diagnose`."""
        from proctor.diagnose.methods import diagnose

        return diagnose(trace, method, **how)


sys.modules[__name__].__class__ = _Verb
