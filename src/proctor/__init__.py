"""Proctor puts LLM agents through repeated, traced, honestly counted trials.

The public names below are imported when first used, so that `import proctor` costs next to
nothing; the price is a table that must name each of them twice.
"""

TYPE_CHECKING = False  # type checkers take it for typing's, which would be half of our cost
if TYPE_CHECKING:
    from proctor.trace import Span, SpanQuery, Trace, load_traces

__version__ = "0.1.0"

__all__ = ["Span", "SpanQuery", "Trace", "__version__", "load_traces"]

_HOME_OF = {
    "Span": "proctor.trace",
    "SpanQuery": "proctor.trace",
    "Trace": "proctor.trace",
    "load_traces": "proctor.trace",
}
"""Public name → the module that defines it."""

if not TYPE_CHECKING:  # else a type checker would believe that any name exists

    def __getattr__(name: str) -> object:
        """Import a public name from its home and remember it here (PEP 562)."""
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'proctor' has no attribute {name!r}")
        import importlib

        value = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
