"""Proctor runs your agent many times, records every step, and tells you what broke.

    run = proctor.run("suite.yaml", agent=answer, trials=10)
    change = proctor.compare("main", run)

Public names are imported when first used, so that `import proctor` costs next to nothing; the
price is that each of them is named twice below.
"""

from proctor._lazy import imported_when_used

TYPE_CHECKING = False  # type checkers treat it as typing's, which would be half of our cost
if TYPE_CHECKING:
    from proctor import agents, api, checks, results, scenarios, trail
    from proctor.api import arun, check, compare, evaluate, gate, run
    from proctor.diagnose.finding import Diagnosis
    from proctor.diagnose.methods import diagnose
    from proctor.errors import ProctorError
    from proctor.gateway.observe import capture
    from proctor.runs.run import Run
    from proctor.runs.trial import Trial
    from proctor.server.ingest import store_traces
    from proctor.spec import Case, Suite, load_suite
    from proctor.spec.experiment import Experiment
    from proctor.trace import Span, SpanQuery, Trace
    from proctor.trace.capture import span, tool
    from proctor.trace.load import load_traces

__version__ = "0.2.0"

__all__ = [
    "Case",
    "Diagnosis",
    "Experiment",
    "ProctorError",
    "Run",
    "Span",
    "SpanQuery",
    "Suite",
    "Trace",
    "Trial",
    "__version__",
    "agents",
    "api",
    "arun",
    "capture",
    "check",
    "checks",
    "compare",
    "diagnose",
    "evaluate",
    "gate",
    "load_suite",
    "load_traces",
    "results",
    "run",
    "scenarios",
    "span",
    "store_traces",
    "tool",
    "trail",
]

_NAMES_IN = {
    "proctor": "agents api checks diagnose results scenarios trail",
    "proctor.api": "arun check compare evaluate gate run",
    "proctor.diagnose.finding": "Diagnosis",
    "proctor.errors": "ProctorError",
    "proctor.gateway.observe": "capture",
    "proctor.runs.run": "Run",
    "proctor.runs.trial": "Trial",
    "proctor.server.ingest": "store_traces",
    "proctor.spec": "Case Suite load_suite",
    "proctor.spec.experiment": "Experiment",
    "proctor.trace": "Span SpanQuery Trace",
    "proctor.trace.capture": "span tool",
    "proctor.trace.load": "load_traces",
}
"""Module → the public names it defines; `proctor` itself has the public modules."""

_HOME_OF = {
    name: f"proctor.{name}" if module == "proctor" else module
    for module, names in _NAMES_IN.items()
    for name in names.split()
}

if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())
