"""Name the decisive step: which agent made the error from which the others follow.

Two kinds of traces. Where findings point at acts, the decisive one is the earliest of the
strongest: an act of the agent weighs more than a failure around it, a symptom (a failed check on
the answer) less than either. A group chat has only messages (`group_chat.py`).

Weights are set by hand and checked on made-up failures (tests/planted.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from proctor.diagnose._steps import plain
from proctor.diagnose._values import changes, entries_of, hands_over, tool_name
from proctor.diagnose.finding import SHOWN_FROM, WITHOUT_EVIDENCE, Finding, Impact, RootCause
from proctor.diagnose.group_chat import (
    CLEAR,
    FAILED_KEYS,
    MAX_CANDIDATES,
    chat_causes,
)
from proctor.sanitize import line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from proctor.diagnose._steps import Act, StepCall, Steps
    from proctor.trace import Span

# How strongly a kind of finding points at the cause, by the beginning of its detector's name.
# Acts of an agent first, then failures around it, then symptoms.
WEIGHTS = {
    "check:forbidden_tools": 1.0,
    "check:tool_not_called": 1.0,
    "rule:forbidden_call": 1.0,
    "contrast": 1.0,
    "rule:forbidden_act": 1.0,
    "rule:argument_from_nowhere": 0.95,
    "rule:argument_contradicts_request": 0.95,
    "rule:wrong_record": 0.95,
    "rule:wrong_handoff": 0.95,
    "rule:opposite_argument": 0.95,
    "rule:wrong_unit": 0.95,
    "rule:superseded_value": 0.9,
    "rule:unrequested_harm": 0.9,
    "rule:failure_called_success": 0.9,
    "rule:answer_form": 0.7,
    "rule:loop": 0.7,
    "rule:ungrounded_values": 0.9,
    "rule:claimed_call": 0.9,
    "rule:claimed_act": 0.9,
    "rule:wrong_equation": 0.9,
    "rule:crossed_value": 0.9,
    "rule:over_limit": 1.0,
    "rule:answer_from_nothing": 0.8,
    "rule:report_overruled": 0.8,
    "rule:answer_without_work": 0.8,
    "rule:ignored_error": 0.8,
    "rule:required_call_missing": 0.75,
    "rule:plan_not_executed": 0.7,
    "rule:malformed_call": 0.7,
    "rule:missing_resource": 0.7,
    "rule:system_fault": 0.7,
    "rule:failed_call": 0.7,
    "rule:logged_fault": 0.7,
    "rule:identical_calls": 0.5,
    "rule:repeated_call": 0.5,
    "recording": 0.9,
    "check:": 0.25,
    "quality:": 0.15,
    "learned": 0.5,
}
OTHER_WEIGHT = 0.6

# An earlier finding wins over a stronger later one if it is nearly as strong.
NEARLY = 0.75


def root_causes(steps: Steps, findings: Sequence[Finding]) -> tuple[RootCause, ...]:
    """Return up to three probable causes, the most probable first.

    Without findings, it is the step to look at first *if* the run failed, of little confidence.
    """
    if steps.is_group_chat:
        return chat_causes(steps)
    return _caused_by_findings(steps, findings) or _without_evidence(steps)


def placed(steps: Steps, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with agent and step, one per span: the others become its `also`."""
    best: dict[str, Finding] = {}
    for finding in sorted(findings, key=_strength, reverse=True):
        act = steps.act_of(finding.location)
        first = best.get(finding.location)
        if first is None:
            best[finding.location] = replace(
                finding,
                agent=act.agent if act is not None else "",
                step=act.number if act is not None else None,
            )
            continue
        if finding.category != first.category and finding.category not in first.also:
            first = replace(first, also=(*first.also, finding.category))
        if finding.detector.startswith("check:"):
            # A failed check is a fact with a reason of its own: it stays visible.
            first = replace(
                first,
                description=f"{first.description}; {finding.description}",
                detector=f"{first.detector}+{finding.detector}",
            )
        best[finding.location] = first
    order = steps.trace.index.position
    # The answer of plain code is on the span around everything: its step comes last.
    return sorted(best.values(), key=lambda f: (f.step or 0, order.get(f.location, 0)))


def linked(findings: Sequence[Finding], cause: RootCause | None) -> list[Finding]:
    """Return the findings, the later ones with the cause from which they follow."""
    if cause is None:
        return list(findings)
    later = set(cause.follows)
    return [
        replace(f, caused_by=(*f.caused_by, cause.location))
        if f.location in later and cause.location not in f.caused_by
        else f
        for f in findings
    ]


def _weight(finding: Finding) -> float:
    name = finding.detector
    known = (weight for key, weight in WEIGHTS.items() if name.startswith(key))
    return next(known, OTHER_WEIGHT)


def _strength(finding: Finding) -> float:
    harm = {Impact.HIGH: 1.0, Impact.MEDIUM: 0.9, Impact.LOW: 0.6}[finding.impact]
    return _weight(finding) * finding.confidence * harm


def _caused_by_findings(steps: Steps, findings: Sequence[Finding]) -> tuple[RootCause, ...]:
    located = [f for f in findings if f.step is not None and f.confidence >= SHOWN_FROM]
    if not located:
        return ()
    strongest = max(map(_strength, located))
    near = [f for f in located if _strength(f) >= NEARLY * strongest]
    first = min(near, key=lambda f: (f.step or 0, -_strength(f)))
    ranked = sorted(located, key=lambda f: (f is not first, -_strength(f), f.step or 0))
    chosen: list[Finding] = []
    for finding in ranked:
        if all(finding.step != other.step for other in chosen):
            chosen.append(finding)
    rivals = [f for f in chosen[1:] if _strength(f) * CLEAR > _strength(first)]
    symptoms = [f for f in rivals if not _explained(f, first)]
    return tuple(_cause(steps, finding, located) for finding in [first, *symptoms][:MAX_CANDIDATES])


def _without_evidence(steps: Steps) -> tuple[RootCause, ...]:
    """Return the last act that changed something, or the answer, where nothing was found.

    A mistake that no evidence shows lies more often there than anywhere else.
    """
    facts = steps.trace.metadata
    answer = next((act for act in reversed(steps.acts) if act.answers), None)
    failed = any(facts.get(key) is False for key in FAILED_KEYS)
    # Without a model call it is a program's trace: nobody chose a step.
    if any(facts.get(key) is True for key in FAILED_KEYS) or not (steps.steps or failed):
        return ()
    made = ((act, call) for act in reversed(steps.acts) for call in act.calls)
    agents = {tool_name(act.agent) for act in steps.acts}
    act, call = next(
        (
            (act, call)
            for act, call in made
            if changes(call.name) and hands_over(call.name) not in agents
        ),
        (answer or (steps.acts[-1] if steps.acts else None), None),
    )
    if act is None:
        return ()
    said = "the log says that its answer is wrong" if failed else "no sign of an error"
    where = "the answer" if call is None else "the last step that changed something"
    shown = act.text or act.span.name if call is None else f"calls {_shown_call(call)}"
    return (
        RootCause(
            agent=act.agent,
            step=act.number,
            location=act.span.span_id,
            what=line(shown, 160),
            why=f"{said}, and nothing points elsewhere: this is {where}",
            confidence=WITHOUT_EVIDENCE,
            evidence=(act.text if call is None else call.arguments)[:240].strip(),
        ),
    )


def _shown_call(call: StepCall) -> str:
    given = ", ".join(
        f"{key}={value}" if key else f"{value}" for key, value in entries_of(call.arguments)
    )
    return f"{call.name}({given})"


def _explained(finding: Finding, cause: Finding) -> bool:
    """Return whether a finding follows from the cause, or is a reason for it."""
    return finding.location in cause.caused_by or cause.location in finding.caused_by


def _cause(steps: Steps, finding: Finding, findings: Sequence[Finding]) -> RootCause:
    here = finding.step or 0
    follows = [f.location for f in findings if (f.step or 0) > here]
    reasons = _reasons(steps, finding)
    why = "the earliest act that explains the failure" if follows else "the strongest evidence"
    if any(f.detector.startswith("check:") and f.location != finding.location for f in findings):
        why = "the failed checks follow from it" if follows else why
    return RootCause(
        agent=finding.agent,
        step=finding.step or 0,
        location=finding.location,
        what=finding.description,
        why=why,
        confidence=min(0.95, finding.confidence * (0.5 + _weight(finding) / 2)),
        evidence=finding.evidence,
        because=tuple(reasons),
        follows=tuple(follows),
    )


def _reasons(steps: Steps, finding: Finding) -> list[str]:
    """Describe the earlier acts that led to a finding, equal calls together."""
    acts = [
        act
        for span_id in finding.caused_by
        if (act := steps.act_of(span_id)) is not None and act.span.span_id != finding.location
    ]
    groups: list[list[Act]] = []
    for act in acts:
        if groups and _call_key(groups[-1][-1]) == _call_key(act):
            groups[-1].append(act)
        else:
            groups.append([act])
    return [_describe(group) for group in groups[:MAX_CANDIDATES]]


def _call_key(act: Act) -> tuple[str, ...]:
    return tuple(f"{call.name}({call.arguments})" for call in act.calls)


def _describe(group: Sequence[Act]) -> str:
    first, last = group[0].number, group[-1].number
    place = f"step {first}" if len(group) == 1 else f"steps {first}–{last}"
    if not (group[0].calls or group[0].tools):
        return f"{place}: {line(group[0].text or group[0].span.name, 100)}"
    results = {_shown_result(tool) for act in group for tool in act.tools}
    name = group[0].calls[0].name if group[0].calls else group[0].span.name
    outcome = next(iter(results)) if len(results) == 1 else "different results"
    if len(group) == 1:
        return f"{place}: {line(name, 60)} → {line(outcome, 100)}"
    return f"{place}: the same call with the same arguments, always {line(outcome, 80)}"


def _shown_result(tool: Span) -> str:
    if tool.failed:
        return tool.error_message or tool.error_type or "an error"
    return plain(tool.tool_output) or "nothing"
