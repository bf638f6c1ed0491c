"""Diagnose a trace: find what broke, where, and how badly.

Promise: every finding names a span of the trace and quotes text from it; `Diagnosis.method` says
what produced the findings. The offline methods are deterministic, need no provider and take
milliseconds. A method that calls a model falls back to the offline findings, so there is always an
answer, and gets them as leads only on request.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast, overload

from proctor.background import run_sync
from proctor.errors import ProctorError, hint_among

if TYPE_CHECKING:
    from proctor.diagnose.finding import Diagnosis
    from proctor.diagnose.llm.detector import DetectorOptions
    from proctor.llm.chat_model import ChatModel
    from proctor.trace import Trace

OfflineMethod = Literal["offline", "off", "rules", "learned"]
ModelMethod = Literal["single_pass", "agentic", "on"]

# Name that users write → method. `rules` needs no training, `learned` is the shipped detector
# alone, `offline` is both; the others call a model.
METHODS: dict[OfflineMethod | ModelMethod, str] = {
    "offline": "offline",
    "off": "offline",
    "rules": "rules",
    "learned": "learned",
    "single_pass": "single_pass",
    "agentic": "agentic",
    "on": "agentic",
}

_CALL_A_MODEL = ("single_pass", "agentic")


class ModelOptions(TypedDict, total=False):
    """Options of the methods that call a model; the budget is for one trace."""

    prompt_version: str
    """The shipped prompt to use."""
    evidence: Literal["strict", "off"]
    """Whether quotes must appear verbatim in their span."""
    leads: Literal["none", "offline"]
    """Whether the prompts show what the offline detector found."""
    limit: int
    """Characters of the trace in one prompt."""
    max_reply_tokens: int
    """Tokens of one reply."""
    max_calls: int
    """Calls, repairs of malformed replies included."""
    max_cost_usd: float | None
    """Dollars."""
    max_seconds: float
    """Seconds."""
    parallel: int
    """Calls at a time."""


@overload
def diagnose(trace: Trace, method: OfflineMethod = "offline") -> Diagnosis: ...
@overload
def diagnose(
    trace: Trace, method: ModelMethod, *, model: ChatModel | str, **options: Unpack[ModelOptions]
) -> Diagnosis: ...
def diagnose(
    trace: Trace,
    method: OfflineMethod | ModelMethod = "offline",
    *,
    model: ChatModel | str | None = None,
    **options: Unpack[ModelOptions],
) -> Diagnosis:
    """Find what broke in a trace: findings, scores, how sure, how long it took.

    `model` and `options` are for the methods that call one. Inside a running event loop these
    block it until the model has replied; await `proctor.diagnose.methods.adiagnose` instead.

        for finding in proctor.diagnose(trace).findings:
            print(finding.category, finding.location, finding.evidence)
    """
    if not calls_model(method):
        return diagnose_offline(trace, method)
    # nested: notebooks call this inside a running event loop.
    return run_sync(adiagnose(trace, method, detector_options(model, **options)), nested=True)


async def adiagnose(
    trace: Trace, method: str = "offline", how: DetectorOptions | None = None
) -> Diagnosis:
    """Find what broke in a trace; `how` configures the model for methods that call one."""
    if not calls_model(method):
        return diagnose_offline(trace, method)
    from proctor.diagnose.llm import detector

    look = detector.agentic if _method(method) == "agentic" else detector.single_pass
    return await look(trace, how or detector_options(None), diagnose_offline(trace, "offline"))


def diagnose_offline(trace: Trace, method: str = "offline") -> Diagnosis:
    """Find what broke in a trace by rules and the shipped detector, without any model."""
    # Imported here: the command line reads METHODS from this module at every start.
    from proctor.diagnose._steps import read_steps
    from proctor.diagnose.finding import Diagnosis
    from proctor.diagnose.quotes import scores_of
    from proctor.diagnose.rules import RULES, apply_rules

    chosen = _method(method)
    started = perf_counter()
    steps = read_steps(trace)
    # Rules run for `learned` too: agreement with them is one of its inputs.
    findings = apply_rules(steps, RULES)
    seconds = {"rules": perf_counter() - started}
    values: list[float] | None = None
    if chosen != "rules":
        from proctor.diagnose.learned.detector import detectors, find
        from proctor.diagnose.learned.text_features import rows_of

        started = perf_counter()
        found = find(detectors(), rows_of(steps, findings), findings, chosen)
        order = steps.trace.index.position
        findings = sorted(found.findings, key=lambda f: (order[f.location], f.category))
        values = found.scores
        seconds["learned"] = perf_counter() - started
    # A trace without steps was not judged: it has no scores, rather than full marks.
    seen = bool(steps.steps or steps.strays or findings)
    scores = scores_of(findings, values) if seen else {}
    notes = () if seen else ("no scores: the trace has no model call, no tool call and no error",)
    return Diagnosis(trace.trace_id, chosen, tuple(findings), scores, seconds, notes)


def detector_options(model: ChatModel | str | None, **how: Any) -> DetectorOptions:
    """Return the options of a detector that calls a model, named or given."""
    from proctor.diagnose.llm.detector import DetectorOptions
    from proctor.llm.providers import get_model

    if model is None:
        raise ProctorError(
            "this method calls a model, and none is named",
            hint="name one, such as openai:gpt-4o-mini; the method `offline` needs none",
        )
    return DetectorOptions(model=get_model(model) if isinstance(model, str) else model, **how)


def calls_model(method: str) -> bool:
    """Return whether a method calls a model; an unknown name is an error that lists all."""
    return _method(method) in _CALL_A_MODEL


def _method(name: str) -> str:
    found = cast("dict[str, str]", METHODS).get(name)
    if found is None:
        raise ProctorError(f"unknown diagnosis method {name!r}", hint=hint_among(name, [*METHODS]))
    return found
