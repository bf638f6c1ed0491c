"""Diagnose a trace: find what broke, where, and how badly.

Promise: every finding names a span of the trace and quotes text from it; `Diagnosis.method` says
what produced the findings. The offline methods are deterministic, need no provider and take
milliseconds. A method that calls a model falls back to the offline findings, so there is always an
answer, and gets them as leads only on request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast, overload

from proctor.background import run_sync
from proctor.errors import ProctorError, hint_among

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from proctor.checks.base import CheckResult
    from proctor.diagnose._steps import Act, Steps
    from proctor.diagnose.finding import Diagnosis, Finding, RootCause
    from proctor.diagnose.llm.detector import DetectorOptions
    from proctor.llm.chat_model import ChatModel
    from proctor.trace import Trace

OfflineMethod = Literal["offline", "off", "rules", "learned"]
ModelMethod = Literal[
    "single_pass", "agentic", "on", "all_at_once", "step_by_step", "binary_search"
]

# Name that users write → method. `rules` needs no training, `learned` is the shipped detector
# alone, `offline` is both; the others call a model, the last three only to name the decisive step.
METHODS: dict[OfflineMethod | ModelMethod, str] = {
    "offline": "offline",
    "off": "offline",
    "rules": "rules",
    "learned": "learned",
    "single_pass": "single_pass",
    "agentic": "agentic",
    "on": "agentic",
    "all_at_once": "all_at_once",
    "step_by_step": "step_by_step",
    "binary_search": "binary_search",
}

_CALL_A_MODEL = ("single_pass", "agentic", "all_at_once", "step_by_step", "binary_search")


@dataclass(frozen=True, slots=True)
class TrialEvidence:
    """What is known about the trial of a trace, besides the trace.

    evidence = TrialEvidence(checks=trial.checks)
    diagnose_offline(run.trace(trial), evidence=evidence)
    """

    checks: Sequence[CheckResult] = ()
    error: str = ""
    """Why the trial could not be judged."""
    contrast: Callable[[Steps], Iterable[Finding]] | None = None
    """Finds where the trace differs from passing trials of its case."""
    instead: Callable[[Steps, RootCause], str] | None = None
    """Says what passing trials do at a step."""

    passed: bool = False
    """Whether the trial passed: then no step of it is decisive."""


class ModelOptions(TypedDict, total=False):
    """Options of the methods that call a model; the budget is for one trace."""

    prompt_version: str
    """The shipped prompt to use, or the path of a text file."""
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
    reasoning_effort: str | None
    """Effort of models that reason: minimal, low, medium or high."""
    agents: int
    """Parts of a trace that `agentic` investigates at most."""
    chunk: int
    """Spans of a part, until there are that many parts."""


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
    from proctor.trace import Trace  # where METHODS is read, nothing else is needed

    if not isinstance(cast("object", trace), Trace):
        raise ProctorError(
            f"diagnose takes a trace, not {type(trace).__name__}",
            hint="read a file with proctor.load_traces(path), which returns a list of traces",
        )
    for name, value in {"model": model, **options}.items():
        if value is not None and (why := why_unused(method, name)):
            raise ProctorError(f"{name} has no effect: the method {method!r} {why}")
    if not calls_model(method):
        return diagnose_offline(trace, method)
    # nested: notebooks call this inside a running event loop.
    return run_sync(adiagnose(trace, method, detector_options(model, **options)), nested=True)


async def adiagnose(
    trace: Trace,
    method: str = "offline",
    how: DetectorOptions | None = None,
    evidence: TrialEvidence | None = None,
) -> Diagnosis:
    """Find what broke in a trace; `how` configures the model for methods that call one."""
    if not calls_model(method):
        return diagnose_offline(trace, method, evidence)
    from proctor.diagnose.llm import detector

    look = {
        "single_pass": detector.single_pass,
        "agentic": detector.agentic,
        "all_at_once": detector.all_at_once,
        "step_by_step": detector.step_by_step,
        "binary_search": detector.binary_search,
    }[_method(method)]
    offline = diagnose_offline(trace, "offline", evidence)
    return await look(trace, how or detector_options(None), offline)


def diagnose_offline(
    trace: Trace, method: str = "offline", evidence: TrialEvidence | None = None
) -> Diagnosis:
    """Find what broke in a trace by rules and the shipped detector, without any model.

    `evidence` is what is known about the trial of the trace: its checks, how it differs from
    passing trials.
    """
    # Imported here: the command line reads METHODS from this module at every start.
    from proctor.diagnose import attribution
    from proctor.diagnose._steps import read_steps
    from proctor.diagnose.finding import Diagnosis, scores_of
    from proctor.diagnose.rules import EVIDENCE, RULES, apply_rules, remaining_failures
    from proctor.trace.model import EVALUATION

    chosen = _method(method)
    started = perf_counter()
    steps = read_steps(trace)
    # Rules run for `learned` too: agreement with them is one of its inputs.
    findings = apply_rules(steps, RULES)
    seconds = {"rules": perf_counter() - started}
    values: list[float] | None = None
    notes = [f"the trace was read with a problem: {problem}" for problem in trace.problems[:5]]
    looked = ["learned"] if chosen == "learned" else ["rules"]
    if chosen != "rules":
        started = perf_counter()
        known = False
        if may_know(steps):
            from proctor.diagnose.learned.detector import detectors, find
            from proctor.diagnose.learned.features import rows_of

            found = find(detectors(), rows_of(steps, findings), findings, chosen)
            findings, values, known = found.findings, found.scores, found.scores is not None
        elif chosen == "learned":
            findings = []
        seconds["learned"] = perf_counter() - started
        if known and chosen == "offline":
            looked.append("learned")
        elif not known:
            notes.append("learned detector: not applicable to this kind of trace")
            looked = ["rules"] if chosen == "offline" else []
    if values is None and chosen != "learned":
        started = perf_counter()
        findings += apply_rules(steps, EVIDENCE)
        findings += remaining_failures(steps, findings)
        seconds["evidence"] = perf_counter() - started
    if any(event.name == EVALUATION for span in trace.spans for event in span.events):
        from proctor.checks.base import recorded_results
        from proctor.diagnose.evidence import check_findings

        findings += check_findings(steps, recorded_results(trace))
        looked.append("evaluations in the trace")
    if evidence is not None:
        from proctor.diagnose.evidence import check_findings, quality_findings, recording_findings

        findings += check_findings(steps, evidence.checks)
        findings += recording_findings(steps, evidence.error)
        findings += quality_findings(steps)
        looked.append("checks")
        if evidence.contrast is not None:
            findings += evidence.contrast(steps)
            looked.append("contrast")
    if not (steps.steps or steps.strays or findings):
        notes.append("the trace has no model call, no tool call and no error")
    findings = attribution.placed(steps, findings)
    causes = attribution.root_causes(steps, findings) if chosen != "learned" else ()
    if evidence is not None and evidence.passed:
        causes = ()
    findings = attribution.linked(findings, causes[0] if causes else None)
    if evidence is not None and evidence.instead is not None:
        causes = tuple(replace(cause, instead=evidence.instead(steps, cause)) for cause in causes)
    if steps.is_group_chat:
        notes.append("a group chat: step N is message N of the log, counted from 0")
    if values is None:
        notes.append("scores: unknown, no detector that gives scores is competent for this trace")
    return Diagnosis(
        trace.trace_id,
        "offline" if looked[:2] == ["rules", "learned"] else looked[0] if looked else chosen,
        tuple(findings),
        scores_of(findings, values) if values is not None else {},
        seconds,
        tuple(notes),
        looked=tuple(looked),
        candidates=causes,
    )


def with_tests(found: Diagnosis, tested: Mapping[int, str]) -> Diagnosis:
    """Return a diagnosis whose findings say what experiments showed about their steps."""
    if not tested:
        return found
    return replace(
        found,
        findings=tuple(replace(f, tested=tested.get(f.step or -1, "")) for f in found.findings),
        candidates=tuple(replace(c, tested=tested.get(c.step, "")) for c in found.candidates),
    )


def acts_of(trace: Trace) -> list[Act]:
    """Return the numbered steps of a trace, as every diagnosis counts them."""
    from proctor.diagnose._steps import read_steps

    return read_steps(trace).acts


def act_at(trace: Trace, step: int) -> Act:
    """Return a step of a trace, or say which steps there are."""
    acts = acts_of(trace)
    act = next((act for act in acts if act.number == step), None)
    if act is None:
        numbers = f"{acts[0].number} to {acts[-1].number}" if acts else "none"
        raise ProctorError(f"there is no step {step}", hint=f"steps of the trial: {numbers}")
    return act


def may_know(steps: Steps) -> bool:
    """Return whether the learned detector may know this kind of trace: it was trained on agents
    whose prompt lists their tools or requests a plan. Its own measure of likeness decides.
    """
    from proctor.diagnose._steps import offered_in

    return any(step.plans or offered_in(step.rules) for step in steps.steps)


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


def why_unused(method: str, option: str) -> str:
    """Return why a method ignores an option of the methods that call a model; empty if it does not.

    An option without effect is refused: its user would believe that the figures depend on it.
    """
    if not calls_model(method):
        return "calls no model"
    ignored = option in ("agents", "chunk") and _method(method) != "agentic"
    return "investigates no parts" if ignored else ""


def _method(name: str) -> str:
    found = cast("dict[str, str]", METHODS).get(name)
    if found is None:
        raise ProctorError(f"unknown diagnosis method {name!r}", hint=hint_among(name, [*METHODS]))
    return found
