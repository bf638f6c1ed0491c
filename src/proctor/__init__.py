"""Proctor puts LLM agents through repeated, traced, honestly counted trials.

The public names below are imported when first used, so that `import proctor` costs next to
nothing; the price is a table that must name each of them twice.
"""

from proctor._lazy import imported_when_used

TYPE_CHECKING = False  # type checkers take it for typing's, which would be half of our cost
if TYPE_CHECKING:
    from proctor import api, results
    from proctor.api import arun, compare, gate, run
    from proctor.diagnose.methods import diagnose
    from proctor.runs.run import Run
    from proctor.scenarios.build import build
    from proctor.scenarios.scenario import fetch, store
    from proctor.spec import Case, Suite, load_suite
    from proctor.spec.experiment import Experiment
    from proctor.trace import Span, SpanQuery, Trace
    from proctor.trace.capture import (
        capture,
        handoff,
        llm_call,
        planning,
        retrieval,
        span,
        tool,
        tool_call,
    )
    from proctor.trace.load import load_traces

__version__ = "0.1.0"

__all__ = [
    "Case",
    "Experiment",
    "Run",
    "Span",
    "SpanQuery",
    "Suite",
    "Trace",
    "__version__",
    "api",
    "arun",
    "build",
    "capture",
    "compare",
    "diagnose",
    "fetch",
    "gate",
    "handoff",
    "llm_call",
    "load_suite",
    "load_traces",
    "planning",
    "results",
    "retrieval",
    "run",
    "span",
    "store",
    "tool",
    "tool_call",
]

_HOME_OF = {
    "Case": "proctor.spec",
    "Experiment": "proctor.spec.experiment",
    "Run": "proctor.runs.run",
    "Span": "proctor.trace",
    "SpanQuery": "proctor.trace",
    "Suite": "proctor.spec",
    "Trace": "proctor.trace",
    "api": "proctor.api",
    "arun": "proctor.api",
    "build": "proctor.scenarios.build",
    "capture": "proctor.trace.capture",
    "compare": "proctor.api",
    "diagnose": "proctor.diagnose",
    "fetch": "proctor.scenarios.scenario",
    "gate": "proctor.api",
    "handoff": "proctor.trace.capture",
    "llm_call": "proctor.trace.capture",
    "load_suite": "proctor.spec",
    "load_traces": "proctor.trace.load",
    "planning": "proctor.trace.capture",
    "results": "proctor.results",
    "retrieval": "proctor.trace.capture",
    "run": "proctor.api",
    "span": "proctor.trace.capture",
    "store": "proctor.scenarios.scenario",
    "tool": "proctor.trace.capture",
    "tool_call": "proctor.trace.capture",
}
"""Public name → the module that defines it, or that it is."""

if not TYPE_CHECKING:  # else a type checker would believe that any name exists
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())
