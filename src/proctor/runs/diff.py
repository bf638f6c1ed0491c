"""Compare what an agent does with what it did: two traces of one case.

Promise: a pure function of its two sides; every change is named once, in its tier, with the
values before and after. Severities are a policy, written down in docs/how-to/baselines.md: only
what is clearly worse is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from proctor.checks.base import Layer, handoffs_of
from proctor.checks.metrics import ABSENT, Match, match_calls, sequence_similarity
from proctor.checks.metrics.matching import shortened
from proctor.checks.path import offered_handoffs
from proctor.runs.baselines import Precheck, models_of
from proctor.runs.diff_cost import cost_changes
from proctor.runs.diff_facts import CUT_SHORT, error_lines, guardrails, routing, stop_reason
from proctor.runs.diff_model import CaseDiff, Change, ChangeKind, Severity
from proctor.runs.diff_words import word_changes
from proctor.sanitize import json_value, line
from proctor.trace import Trace
from proctor.words import and_more

LEAST_SIMILARITY = 0.5
"""Below it less than half of both sequences is shared: another way altogether, an error."""

MORE_STEPS = 1.5
LEAST_MORE_STEPS = 3
"""Steps warn when they grow by more than half and by at least so many: one retry is no trend."""

_SHOWN = 8
"""Names told in one line; all of them stand in `before` and `after`."""


class Side(NamedTuple):
    """One of the two things compared."""

    trace: Trace
    answer: str
    precheck: Precheck


def compare(before: Side, after: Side) -> tuple[Change, ...]:
    """Everything that changed, by tier."""
    return (
        *_correctness(before, after),
        *_path(before.trace, after.trace),
        *cost_changes(before.trace, after.trace),
    )


def compare_case(
    case: str, agent: str, before: Side, after: Side, *, case_changed: bool = False
) -> CaseDiff:
    """`compare`, with the name of the case and how alike the tool sequences are."""
    return CaseDiff(
        case=case,
        agent=agent,
        changes=compare(before, after),
        similarity=sequence_similarity(before.trace.tool_sequence, after.trace.tool_sequence),
        case_changed=case_changed,
    )


# -- correctness -----------------------------------------------------------------------------------


def _correctness(before: Side, after: Side) -> Iterator[Change]:
    old, new = before.precheck, after.precheck
    if old.passed != new.passed and old.status.judged and new.status.judged:
        worse = old.passed
        why = f": {line(new.reasons[0])}" if worse and new.reasons else ""
        yield _change(
            ChangeKind.VERDICT,
            Severity.ERROR if worse else Severity.INFO,
            f"the checks {'passed' if old.passed else 'failed'} and now "
            f"{'pass' if new.passed else 'fail'}{why}",
            str(old.status),
            str(new.status),
            tier=Layer.CORRECTNESS,
        )
    if before.answer != after.answer:
        yield _answer(before, after)


def _answer(before: Side, after: Side) -> Change:
    words = word_changes(before.answer, after.answer)
    changed = [each for each in words if each.op != "equal"]
    checked = after.precheck.passed and after.precheck.judged
    if not after.answer.strip() and before.answer.strip():
        severity, message = Severity.ERROR, "the answer is empty now"
    elif not any(each.text.strip() for each in changed):
        severity, message = Severity.INFO, "the answer differs in white space only"
    else:
        severity = Severity.INFO if checked else Severity.WARNING
        why = "; it still passes its checks" if checked else ""
        removed, added = (_words(words, op) for op in ("removed", "added"))
        noun = "word" if added == 1 else "words"
        message = f"the answer changed: {added} {noun} added, {removed} removed{why}"
    return Change(
        tier=Layer.CORRECTNESS,
        kind=ChangeKind.ANSWER,
        severity=severity,
        message=message,
        before=before.answer,
        after=after.answer,
        words=words,
    )


def _words(words: Sequence[Any], op: str) -> int:
    return sum(len(each.text.split()) for each in words if each.op == op)


# -- path ------------------------------------------------------------------------------------------


def _path(before: Trace, after: Trace) -> Iterator[Change]:
    match = match_calls(after.tool_calls, before.tool_calls, mode="strict", arguments="exact")
    yield from _tools(match, before, after)
    yield from _arguments(match)
    yield from _steps(before, after)
    yield from _handoffs(before, after)
    yield from _guardrails(before, after)
    old, new = routing(before), routing(after)
    if old != new:
        yield _sequence_change(ChangeKind.ROUTING, "agents", old, new)
    yield from _stopped(before, after)
    models = list(models_of(before)), list(models_of(after))
    if models[0] != models[1] and all(models):
        yield _change(
            ChangeKind.MODEL,
            Severity.WARNING,
            f"model: {_few(models[0])} → {_few(models[1])}",
            *models,
        )
    yield from _errors(before, after)


def _tools(match: Match, before: Trace, after: Trace) -> Iterator[Change]:
    old, new = before.tool_sequence, after.tool_sequence
    if match.extra:
        names = [call.name for call in match.extra]
        ids = tuple(call.span_id for call in match.extra if call.span_id)
        message = f"tools added: {_counted(names)}"
        yield _change(ChangeKind.TOOLS_ADDED, Severity.WARNING, message, None, names, ids)
    if match.missing:
        names = [call.name for call in match.missing]
        message = f"tools removed: {_counted(names)}"
        yield _change(ChangeKind.TOOLS_REMOVED, Severity.WARNING, message, names, None)
    if match.moved:
        ids = tuple(pair.span_id for pair in match.moved if pair.span_id)
        moved = _counted([new[pair.actual] for pair in match.moved])
        message = f"tools reordered: {moved}; {_few(old)} → {_few(new)}"
        yield _change(ChangeKind.TOOLS_REORDERED, Severity.WARNING, message, old, new, ids)
    similarity = sequence_similarity(old, new)
    if similarity < 1:
        severe = similarity < LEAST_SIMILARITY
        yield _change(
            ChangeKind.SEQUENCE,
            Severity.ERROR if severe else Severity.INFO,
            f"sequence similarity {similarity:.2f}: {_few(old) or 'no tools'} → "
            f"{_few(new) or 'no tools'}"
            + (f"; below {LEAST_SIMILARITY:g}: another way altogether" if severe else ""),
            old,
            new,
        )


def _arguments(match: Match) -> Iterator[Change]:
    for call in match.different:
        for each in call.arguments:
            where = f"{line(call.name, 60)} (call {call.actual + 1}).{line(each.path, 60)}"
            yield _change(
                ChangeKind.ARGUMENTS,
                Severity.WARNING,
                f"argument {where.rstrip('.')}: {line(shortened(each.reference))} → "
                f"{line(shortened(each.actual))}",
                None if each.reference is ABSENT else json_value(each.reference),
                None if each.actual is ABSENT else json_value(each.actual),
                () if call.span_id is None else (call.span_id,),
            )


def _steps(before: Trace, after: Trace) -> Iterator[Change]:
    old, new = _counts(before), _counts(after)
    if old == new:
        return
    told = [f"{name} {old[name]} → {new[name]}" for name in old if old[name] != new[name]]
    grown = any(
        new[name] > MORE_STEPS * old[name] and new[name] - old[name] >= LEAST_MORE_STEPS
        for name in old
    )
    severity = Severity.WARNING if grown else Severity.INFO
    yield _change(ChangeKind.STEPS, severity, f"steps: {', '.join(told)}", old, new)


def _counts(trace: Trace) -> dict[str, int]:
    return {
        "spans": len(trace.spans),
        "model calls": len(trace.llm_calls),
        "tool calls": len(trace.tool_calls),
    }


def _handoffs(before: Trace, after: Trace) -> Iterator[Change]:
    old, new = ([h.target or "?" for h in handoffs_of(side)] for side in (before, after))
    if old != new:
        yield _sequence_change(ChangeKind.HANDOFFS, "handoffs", old, new)
    could, can = offered_handoffs(before), offered_handoffs(after)
    if could is None or can is None or set(could) == set(can):
        return
    lost, won = [n for n in could if n not in can], [n for n in can if n not in could]
    parts = [f"no longer {_few(lost)}"] if lost else []
    parts += [f"newly {_few(won)}"] if won else []
    yield _change(
        ChangeKind.AVAILABLE_HANDOFFS,
        Severity.WARNING if lost else Severity.INFO,
        f"available handoffs: {', '.join(parts)}",
        could,
        can,
    )


def _guardrails(before: Trace, after: Trace) -> Iterator[Change]:
    old, new = ([str(each) for each in guardrails(side)] for side in (before, after))
    if old == new:
        return
    gone = {g.name for g in guardrails(before)} - {g.name for g in guardrails(after)}
    lost = f"; {_few(sorted(gone))} did not run" if gone else ""
    yield _change(
        ChangeKind.GUARDRAILS,
        Severity.ERROR if gone else Severity.WARNING,
        f"guardrails: {_few(old) or 'none'} → {_few(new) or 'none'}{lost}",
        old,
        new,
    )


def _stopped(before: Trace, after: Trace) -> Iterator[Change]:
    old, new = stop_reason(before), stop_reason(after)
    if old == new:
        return
    if old is None or new is None:
        severity = Severity.INFO
    else:
        severity = Severity.ERROR if new in CUT_SHORT else Severity.WARNING
    told = f"{line(old or 'unknown', 40)} → {line(new or 'unknown', 40)}"
    yield _change(ChangeKind.STOP_REASON, severity, f"stop reason: {told}", old, new)


def _errors(before: Trace, after: Trace) -> Iterator[Change]:
    old, new = error_lines(before), error_lines(after)
    came, went = Counter(new) - Counter(old), Counter(old) - Counter(new)
    if came:
        told = f"errors that were not there: {_counted(list(came.elements()))}"
        yield _change(ChangeKind.ERRORS, Severity.WARNING, told, old, new)
    if went:
        told = f"errors gone: {_counted(list(went.elements()))}"
        yield _change(ChangeKind.ERRORS, Severity.INFO, told, old, new)


# -- words -----------------------------------------------------------------------------------------


def _change(
    kind: ChangeKind,
    severity: Severity,
    message: str,
    before: Any,
    after: Any,
    span_ids: tuple[str, ...] = (),
    *,
    tier: Layer = Layer.PATH,
) -> Change:
    return Change(
        tier=tier,
        kind=kind,
        severity=severity,
        message=message,
        before=before,
        after=after,
        span_ids=span_ids,
    )


def _sequence_change(kind: ChangeKind, what: str, old: list[str], new: list[str]) -> Change:
    message = f"{what}: {_few(old) or 'none'} → {_few(new) or 'none'}"
    return _change(kind, Severity.WARNING, message, old, new)


def _few(names: Sequence[str]) -> str:
    return and_more(names, _SHOWN, lambda name: line(name, 60))


def _counted(names: Sequence[str]) -> str:
    return _few([name if n == 1 else f"{name} ×{n}" for name, n in Counter(names).items()])
