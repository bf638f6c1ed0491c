"""Compare two traces of one case: the agent's previous and current behaviour.

Guarantees: a pure function of its two sides. Every change is reported once, in its tier
(correctness, path, cost), with the values before and after. Severities are a policy, documented in
docs/how-to/baselines.md: only a clear regression is an `error` and fails the gate, a `warning`
should be read, an `info` is only reported. Every output format of a diff is built from the records
below.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple, cast

import msgspec

from proctor.checks.base import Layer, handoffs_of, offered_handoffs
from proctor.checks.metrics import ABSENT, Match, match_calls, sequence_similarity
from proctor.checks.metrics.alignment import lcs_alignment, positions_of
from proctor.checks.metrics.matching import shortened
from proctor.formatting import and_more, dollars
from proctor.runs.baselines import Precheck, models_of
from proctor.sanitize import json_value, line
from proctor.trace import Span, SpanKind, Trace
from proctor.trace.conventions.values import structure

LEAST_SIMILARITY = 0.5
"""Below this similarity less than half of both sequences is shared: a different path, an error."""

MORE_STEPS = 1.5
LEAST_MORE_STEPS = 3
"""Steps warn when they grow by more than half and by at least this many: one retry is no trend."""

WARNING_RATIO, ERROR_RATIO = 1.5, 2.0
"""D4: growth of tokens, cost or latency over the first is a spike; over the second it fails."""

REPORTED_RATIO = 1.1
"""A figure that moved by less than a tenth is not worth a line."""

MAX_PAIRS = 100_000_000
"""Maximum word pairs to align (10,000 by 10,000, 12 MB); beyond it the differing middle is reported
as replaced.
"""

_SHOWN = 8
"""Names listed in one line; `before` and `after` contain all of them."""

_ROUNDING = 1e-9
"""Tolerance, so that exactly 1.5 times is not above the limit because of rounding."""


# -- records ---------------------------------------------------------------------------------------


class Severity(StrEnum):
    """Severity of a change, from none to failing the gate."""

    NONE = "none"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# Members of a StrEnum would sort by their texts.
_RANK = {severity: rank for rank, severity in enumerate(Severity)}


def gravest(severities: Iterable[Severity]) -> Severity:
    """Return the highest severity; none when there are no changes."""
    return max(severities, key=_RANK.__getitem__, default=Severity.NONE)


class ChangeKind(StrEnum):
    """Everything a comparison considers."""

    VERDICT = "verdict"
    ANSWER = "answer"
    TOOLS_ADDED = "tools_added"
    TOOLS_REMOVED = "tools_removed"
    TOOLS_REORDERED = "tools_reordered"
    ARGUMENTS = "arguments"
    SEQUENCE = "sequence"
    STEPS = "steps"
    HANDOFFS = "handoffs"
    AVAILABLE_HANDOFFS = "available_handoffs"
    GUARDRAILS = "guardrails"
    STOP_REASON = "stop_reason"
    ROUTING = "routing"
    MODEL = "model"
    ERRORS = "errors"
    TOKENS = "tokens"
    COST = "cost"
    LATENCY = "latency"


class WordChange(msgspec.Struct, frozen=True):
    """A segment of text: `equal`, `removed` or `added`."""

    op: str
    text: str


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change; `message` describes it in one line, with agent output only in sanitised form."""

    tier: Layer
    kind: ChangeKind
    severity: Severity
    message: str
    before: Any = None
    after: Any = None
    words: tuple[WordChange, ...] = ()
    span_ids: tuple[str, ...] = ()


class CaseDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Changes in one case. `similarity` is that of the tool sequences, 0 to 1."""

    case: str
    agent: str
    changes: tuple[Change, ...]
    similarity: float
    case_changed: bool = False
    notes: tuple[str, ...] = ()

    @property
    def severity(self) -> Severity:
        """The highest severity of all changes."""
        return gravest(change.severity for change in self.changes)

    def tier(self, tier: Layer) -> tuple[Change, ...]:
        """Return the changes of one tier, most severe first."""
        mine = [change for change in self.changes if change.tier == tier]
        return tuple(sorted(mine, key=lambda change: -_RANK[change.severity]))

    @property
    def tiers(self) -> dict[Layer, Severity]:
        """The highest severity of each tier."""
        return {tier: gravest(change.severity for change in self.tier(tier)) for tier in Layer}


class NotCompared(msgspec.Struct, frozen=True):
    """A case that could not be compared, and the reason."""

    case: str
    agent: str
    reason: str


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """Every case compared with a version; `compared` is None for the current behaviour."""

    baseline: str
    compared: str | None
    cases: tuple[CaseDiff, ...]
    not_compared: tuple[NotCompared, ...] = ()
    notes: tuple[str, ...] = ()
    suite: str | None = None

    @property
    def severity(self) -> Severity:
        """The highest severity of all cases."""
        return gravest(case.severity for case in self.cases)

    @property
    def exit_code(self) -> int:
        """1 with an error, else 2 when something could not be compared, else 0."""
        if self.severity == Severity.ERROR:
            return 1
        return 2 if self.not_compared or not self.cases else 0

    def count(self, severity: Severity) -> int:
        """Count the cases with this highest severity."""
        return sum(case.severity == severity for case in self.cases)


class Side(NamedTuple):
    """One side of a comparison."""

    trace: Trace
    answer: str
    precheck: Precheck


# -- the comparison --------------------------------------------------------------------------------


def compare_case(
    case: str, agent: str, before: Side, after: Side, *, case_changed: bool = False
) -> CaseDiff:
    """Compare two sides of a case."""
    return CaseDiff(
        case=case,
        agent=agent,
        changes=compare(before, after),
        similarity=sequence_similarity(before.trace.tool_sequence, after.trace.tool_sequence),
        case_changed=case_changed,
    )


def compare(before: Side, after: Side) -> tuple[Change, ...]:
    """Return all changes, tier by tier."""
    return (
        *_correctness(before, after),
        *_path(before.trace, after.trace),
        *cost_changes(before.trace, after.trace),
    )


def _correctness(before: Side, after: Side) -> Iterator[Change]:
    old, new = before.precheck, after.precheck
    if old.passed != new.passed and old.status.judged and new.status.judged:
        reason = f": {line(new.reasons[0])}" if old.passed and new.reasons else ""
        yield Change(
            tier=Layer.CORRECTNESS,
            kind=ChangeKind.VERDICT,
            severity=Severity.ERROR if old.passed else Severity.INFO,
            message=f"the checks {'passed' if old.passed else 'failed'} and now "
            f"{'pass' if new.passed else 'fail'}{reason}",
            before=str(old.status),
            after=str(new.status),
        )
    if before.answer == after.answer:
        return
    words = word_changes(before.answer, after.answer)
    checked = new.passed and new.judged
    if not after.answer.strip() and before.answer.strip():
        severity, message = Severity.ERROR, "the answer is empty now"
    elif not any(each.text.strip() for each in words if each.op != "equal"):
        severity, message = Severity.INFO, "the answer differs in white space only"
    else:
        severity = Severity.INFO if checked else Severity.WARNING
        added, removed = (
            sum(len(each.text.split()) for each in words if each.op == op)
            for op in ("added", "removed")
        )
        message = (
            f"the answer changed: {added} {'word' if added == 1 else 'words'} added, "
            f"{removed} removed{'; it still passes its checks' if checked else ''}"
        )
    yield Change(
        tier=Layer.CORRECTNESS,
        kind=ChangeKind.ANSWER,
        severity=severity,
        message=message,
        before=before.answer,
        after=after.answer,
        words=words,
    )


def _path(before: Trace, after: Trace) -> Iterator[Change]:
    """Yield path changes: tools, arguments, steps, handoffs, guardrails, models."""
    # The previous behaviour is the reference, so `extra` and `missing` read as added and removed.
    match = match_calls(after.tool_calls, before.tool_calls, mode="strict", arguments="exact")
    yield from _tools(match, before.tool_sequence, after.tool_sequence)
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
    yield from _steps(before, after)
    yield from _handoffs(before, after)
    yield from _guardrails(before, after)
    if (old := routing(before)) != (new := routing(after)):
        message = f"agents: {_few(old) or 'none'} → {_few(new) or 'none'}"
        yield _change(ChangeKind.ROUTING, Severity.WARNING, message, old, new)
    if (was := stop_reason(before)) != (now := stop_reason(after)):
        severity = Severity.ERROR if now in CUT_SHORT else Severity.WARNING
        if was is None or now is None:  # a trace that does not record it proves no change
            severity = Severity.INFO
        message = f"stop reason: {line(was or 'unknown', 40)} → {line(now or 'unknown', 40)}"
        yield _change(ChangeKind.STOP_REASON, severity, message, was, now)
    old, new = list(models_of(before)), list(models_of(after))
    if old != new and old and new:  # unknown on one side is no change
        message = f"model: {_few(old)} → {_few(new)}"
        yield _change(ChangeKind.MODEL, Severity.WARNING, message, old, new)
    old, new = error_lines(before), error_lines(after)
    if came := Counter(new) - Counter(old):
        message = f"errors that were not there: {_counted(came.elements())}"
        yield _change(ChangeKind.ERRORS, Severity.WARNING, message, old, new)
    if went := Counter(old) - Counter(new):
        message = f"errors gone: {_counted(went.elements())}"
        yield _change(ChangeKind.ERRORS, Severity.INFO, message, old, new)


def _tools(match: Match, old: list[str], new: list[str]) -> Iterator[Change]:
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
        moved = _counted(new[pair.actual] for pair in match.moved)
        message = f"tools reordered: {moved}; {_few(old)} → {_few(new)}"
        yield _change(ChangeKind.TOOLS_REORDERED, Severity.WARNING, message, old, new, ids)
    similarity = sequence_similarity(old, new)
    if similarity < 1:
        severe = similarity < LEAST_SIMILARITY
        note = f"; below {LEAST_SIMILARITY:g}: another way altogether" if severe else ""
        yield _change(
            ChangeKind.SEQUENCE,
            Severity.ERROR if severe else Severity.INFO,
            f"sequence similarity {similarity:.2f}: {_few(old) or 'no tools'} → "
            f"{_few(new) or 'no tools'}{note}",
            old,
            new,
        )


def _steps(before: Trace, after: Trace) -> Iterator[Change]:
    old, new = (
        {
            "spans": len(trace.spans),
            "model calls": len(trace.llm_calls),
            "tool calls": len(trace.tool_calls),
        }
        for trace in (before, after)
    )
    changed = [name for name in old if old[name] != new[name]]
    if changed:
        grown = any(
            new[name] > MORE_STEPS * old[name] and new[name] - old[name] >= LEAST_MORE_STEPS
            for name in changed
        )
        message = f"steps: {', '.join(f'{name} {old[name]} → {new[name]}' for name in changed)}"
        severity = Severity.WARNING if grown else Severity.INFO
        yield _change(ChangeKind.STEPS, severity, message, old, new)


def _handoffs(before: Trace, after: Trace) -> Iterator[Change]:
    old, new = ([h.target or "?" for h in handoffs_of(side)] for side in (before, after))
    if old != new:
        message = f"handoffs: {_few(old) or 'none'} → {_few(new) or 'none'}"
        yield _change(ChangeKind.HANDOFFS, Severity.WARNING, message, old, new)
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
    ran, runs = guardrails(before), guardrails(after)
    old, new = [str(each) for each in ran], [str(each) for each in runs]
    if old != new:
        gone = {each.name for each in ran} - {each.name for each in runs}
        note = f"; {_few(sorted(gone))} did not run" if gone else ""
        yield _change(
            ChangeKind.GUARDRAILS,
            Severity.ERROR if gone else Severity.WARNING,
            f"guardrails: {_few(old) or 'none'} → {_few(new) or 'none'}{note}",
            old,
            new,
        )


# -- tokens, cost and time -------------------------------------------------------------------------


class ComparedFigure(NamedTuple):
    """A metric compared as a ratio. Growth below `floor` is noise and never warns."""

    kind: ChangeKind
    name: str
    floor: float
    text: Callable[[float], str]


TOKENS = ComparedFigure(ChangeKind.TOKENS, "tokens", 100, "{:,.0f} tokens".format)
"""Fewer than 100 tokens more is a sentence."""
COST = ComparedFigure(ChangeKind.COST, "cost", 0.0001, dollars)
"""A hundredth of a cent: the price of about a hundred tokens of a small model."""
LATENCY = ComparedFigure(ChangeKind.LATENCY, "latency", 100, "{:,.0f} ms".format)
"""A tenth of a second: scheduling and networks move a fast agent by as much."""


def cost_changes(before: Trace, after: Trace) -> Iterator[Change]:
    """Yield changes of tokens, cost and latency."""
    old, new = before.usage, after.usage
    yield from ratio_change(TOKENS, old.total_tokens, new.total_tokens)
    yield from ratio_change(COST, old.cost_usd, new.cost_usd, (old.unpriced > 0, new.unpriced > 0))
    was, now = (
        None if trace.duration is None else round(trace.duration * 1000, 3)
        for trace in (before, after)
    )
    yield from ratio_change(LATENCY, was, now)


def ratio_change(
    figure: ComparedFigure,
    old: float | None,
    new: float | None,
    partial: tuple[bool, bool] = (False, False),
) -> Iterator[Change]:
    """Yield the change of one metric if it is notable; an unknown value is never guessed.

    `partial` names the sides whose value is a lower bound. A lower bound in the baseline proves no
    spike; a newer lower bound that is already too high does.
    """

    def over(small: float, large: float, ratio: float) -> bool:
        return large > small * ratio * (1 + _ROUNDING)

    if old == new:
        return
    if old is None or new is None:
        severity = Severity.INFO
        if old is None:
            text = f" was not known (now {figure.text(new or 0)})"
        else:
            text = f" is no longer known (was {figure.text(old)})"
    else:
        limit = next((limit for limit in (ERROR_RATIO, WARNING_RATIO) if over(old, new, limit)), 0)
        moved = over(old, new, REPORTED_RATIO) or over(new, old, REPORTED_RATIO)
        note = ""
        if limit and new - old >= figure.floor:
            severity = Severity.ERROR if limit == ERROR_RATIO else Severity.WARNING
            note = f", over {limit:g}×"
            if partial[0]:
                severity, note = Severity.INFO, "; not all calls of the baseline have a known price"
        elif moved and abs(new - old) >= figure.floor / 10:
            severity = Severity.INFO
            if limit:
                note = f"; growth below {figure.text(figure.floor)} is not counted as a spike"
        else:
            return
        least = ["at least " if side else "" for side in partial]
        ratio = f" ({new / old:.2f}×)" if old > 0 else ""
        text = f": {least[0]}{figure.text(old)} → {least[1]}{figure.text(new)}{ratio}{note}"
    yield Change(
        tier=Layer.COST,
        kind=figure.kind,
        severity=severity,
        message=f"{figure.name}{text}",
        before=old,
        after=new,
    )


# -- facts read from a trace -----------------------------------------------------------------------

_REASONS = (
    "gen_ai.response.finish_reasons",
    "gen_ai.completion.0.finish_reason",
    "ai.response.finishReason",
    "llm.finish_reason",
    "llm.response.finish_reason",
    "gen_ai.response.stop_reason",
    "finish_reason",
    "stop_reason",
)
"""Attributes with the finish reason of a model: OpenTelemetry, OpenLLMetry, Vercel,
OpenInference.
"""

_MESSAGES = ("gen_ai.output.messages", "output.value")

_ONE_WORD = {
    "end_turn": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "tool_calls": "tool_call",
    "tool_use": "tool_call",
    "tool-calls": "tool_call",
    "function_call": "tool_call",
    "content-filter": "content_filter",
    "safety": "content_filter",
}
"""Provider-specific finish reasons → the one used here."""

CUT_SHORT = frozenset({"length", "content_filter", "error"})
"""Finish reasons after which the answer is incomplete."""


class Guardrail(NamedTuple):
    """A guardrail that ran, and whether it triggered."""

    name: str
    tripped: bool

    def __str__(self) -> str:
        return f"{self.name} (tripped)" if self.tripped else self.name


def stop_reason(trace: Trace) -> str | None:
    """Return the normalised finish reason of the last model call; None if the trace has none."""
    if not trace.llm_calls:
        return None
    attributes = trace.llm_calls[-1].attributes
    found = (_word(attributes.get(key)) for key in _REASONS)
    beside = (_reason_in_messages(structure(attributes.get(key))) for key in _MESSAGES)
    return next(filter(None, found), None) or next(filter(None, beside), None)


def guardrails(trace: Trace) -> list[Guardrail]:
    """Return the guardrails that ran, in order."""
    return [Guardrail(s.name, _tripped(s)) for s in trace.of_kind(SpanKind.GUARDRAIL)]


def routing(trace: Trace) -> list[str]:
    """Return the active agents in order; consecutive work of one agent counts once."""
    names = [
        span.agent_name or (span.name if span.kind == SpanKind.AGENT and span.parent_id else None)
        for span in trace.index.spans
    ]
    return [name for name, _ in groupby(name for name in names if name)]


def error_lines(trace: Trace) -> list[str]:
    """Return the innermost errors: the failed operation and the error type."""
    failed = trace.errors
    # A failed call fails the spans around it: only the innermost one names the cause.
    around = {span.parent_id for span in failed}
    return [
        f"{span.tool_name or span.name}: {span.error_type or span.status}"
        for span in failed
        if span.span_id not in around
    ]


def _word(value: Any) -> str | None:
    value = structure(value)
    if isinstance(value, list | tuple) and value:
        value = cast("Any", value[-1])
    if not isinstance(value, str) or not value:
        return None
    plain = value.rpartition(".")[2].casefold()  # FinishReason.STOP
    return _ONE_WORD.get(plain, plain)


def _reason_in_messages(value: Any) -> str | None:
    """Return the finish reason beside the last message (ours, OpenTelemetry's, OpenAI's)."""
    if isinstance(value, Mapping):
        value = cast("Mapping[str, Any]", value).get("choices")
    if not isinstance(value, list) or not value:
        return None
    last: Any = cast("list[Any]", value)[-1]
    if not isinstance(last, Mapping):
        return None
    fields = cast("Mapping[str, Any]", last)
    return _word(fields.get("finish_reason")) or _word(fields.get("stop_reason"))


def _tripped(span: Span) -> bool:
    if span.failed:
        return True
    sources: tuple[Any, ...] = (span.attributes, structure(span.output))
    return any(
        str(key).endswith(("triggered", "tripped")) and value in (True, "true", "True")
        for source in sources
        if isinstance(source, Mapping)
        for key, value in cast("Mapping[Any, Any]", source).items()
    )


# -- texts -----------------------------------------------------------------------------------------

# A word, a character of a script without word breaks, or punctuation; then its white space.
_WORD = re.compile(
    r"(?:[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
    r"|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
    r"|[^\w\s])\s*|\s+"
)


def word_changes(before: str, after: str) -> tuple[WordChange, ...]:
    """Return the segments that both texts share and those of only one, in order.

    Together they reproduce both texts, with the white space of the newer one. Texts without spaces
    between words (Chinese, Japanese, Korean) are compared by character.
    """
    old, new = _WORD.findall(before), _WORD.findall(after)
    olds, news = [word.strip() for word in old], [word.strip() for word in new]
    shortest = min(len(olds), len(news))
    start = end = 0  # common words at the start and end need no alignment
    while start < shortest and olds[start] == news[start]:
        start += 1
    while end < shortest - start and olds[-1 - end] == news[-1 - end]:
        end += 1
    left, right = len(olds) - end, len(news) - end
    pairs = [(n, n) for n in range(start)]
    if (left - start) * (right - start) <= MAX_PAIRS:
        places = positions_of(news[start:right])
        rows = [places.get(word, 0) for word in olds[start:left]]
        pairs += [(start + i, start + j) for i, j in lcs_alignment(rows, right - start)]
    pairs += [(left + n, right + n) for n in range(end)]
    marked: list[tuple[str, str]] = []
    i = j = 0
    # The last pair lies behind both texts: what follows the last common word is marked there.
    for one, other in [*pairs, (len(old), len(new))]:
        marked += [("removed", word) for word in old[i:one]]
        marked += [("added", word) for word in new[j:other]]
        if one < len(old):
            marked.append(("equal", new[other]))
        i, j = one + 1, other + 1
    return tuple(
        WordChange(op, "".join(word for _, word in group))
        for op, group in groupby(marked, key=lambda each: each[0])
    )


def _change(
    kind: ChangeKind,
    severity: Severity,
    message: str,
    before: Any,
    after: Any,
    span_ids: tuple[str, ...] = (),
) -> Change:
    return Change(
        tier=Layer.PATH,
        kind=kind,
        severity=severity,
        message=message,
        before=before,
        after=after,
        span_ids=span_ids,
    )


def _few(names: Sequence[str]) -> str:
    return and_more(names, _SHOWN, lambda name: line(name, 60))


def _counted(names: Iterable[str]) -> str:
    return _few([name if n == 1 else f"{name} ×{n}" for name, n in Counter(names).items()])
