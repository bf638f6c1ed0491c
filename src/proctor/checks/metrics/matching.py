"""Trajectory matching: were the calls of a reference made, and if not, which; and tool usage.

A mode passes exactly when docs/reference/metrics.md says so. Calls are paired as well as possible,
and a failure lists the calls that are missing, extra, different or out of order, with their spans.
A match takes linear time when both sides are written alike; explaining a failure may take longer.

Tool usage: which tools were called, how often and in which order. A share of nothing is None, never
0 or 1; two empty sequences are equal, so their similarity is 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from proctor.checks.metrics.alignment import (
    ABSENT,
    Aligned,
    ArgumentDifference,
    ArgumentRule,
    ArgumentRules,
    CallAlignment,
    CallLike,
    Places,
    canonical,
    edit_distance,
    lcs_length,
)
from proctor.errors import ProctorError, hint_among
from proctor.formatting import and_more, clipped, plural
from proctor.sanitize import printable

Item = TypeVar("Item")

# Long enough to recognise a call by, short enough for three of them in a line.
_VALUE_CHARS = 60
_SHOWN = 3


class MatchedCalls(NamedTuple):
    """An actual call and the reference call it matches, by position; the span of the actual."""

    actual: int
    reference: int
    span_id: str | None


class PositionedCall(NamedTuple):
    """One call of a sequence: its position, tool, arguments and span."""

    position: int
    name: str
    arguments: Any
    span_id: str | None


class Different(NamedTuple):
    """A call of the right tool with other arguments, and which of them differ.

    `arguments` is empty when a user's function rejected arguments that are equal.
    """

    name: str
    actual: int
    reference: int
    span_id: str | None
    reference_span_id: str | None
    arguments: tuple[ArgumentDifference, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """The result of matching; true in a condition exactly when it passed.

    `missing` are reference calls without a match, `extra` calls that match none,
    `moved` calls that match but are out of order. Under `superset` and `in_order` extra calls
    are allowed, under `subset` missing ones are: they are listed, and do not count
    against the match.
    """

    mode: str
    passed: bool
    reason: str
    pairs: tuple[MatchedCalls, ...]
    missing: tuple[PositionedCall, ...] = ()
    extra: tuple[PositionedCall, ...] = ()
    different: tuple[Different, ...] = ()
    moved: tuple[MatchedCalls, ...] = ()

    def __bool__(self) -> bool:
        return self.passed

    @property
    def span_ids(self) -> tuple[str, ...]:
        """Spans of the calls that count against the verdict, each once."""
        if self.passed:
            return ()
        extra = () if self.mode in EXTRA_ALLOWED else self.extra
        found = (call.span_id for group in (self.different, self.moved, extra) for call in group)
        return tuple(dict.fromkeys(span_id for span_id in found if span_id is not None))


EXTRA_ALLOWED = frozenset({"superset", "in_order"})
MISSING_ALLOWED = frozenset({"subset"})

_PASSED = {
    "strict": "all {reference} calls are those of the reference, in order",
    "unordered": "all {reference} calls are those of the reference",
    "superset": "every one of {reference} reference calls was made, among {actual} calls",
    "subset": "every one of {actual} calls is in the reference of {reference}",
    "in_order": "all {reference} reference calls were made in order, among {actual} calls",
}


def _failed_reason(match: Match, reference: int, names: Sequence[str]) -> str:
    """Return what counts against a match, the first few of each kind.

    `reference` is the number of reference calls, `names` are the tools of the actual calls.
    """
    missing, extra, different, moved = match.missing, match.extra, match.different, match.moved
    parts: list[str] = []
    if missing and match.mode not in MISSING_ALLOWED:
        listed = _few(missing, lambda c: f"{_call(c)} (reference call {c.position + 1})")
        parts.append(f"{len(missing)} of {reference} reference calls missing: {listed}")
    if different:
        listed = _few(different, _differences)
        parts.append(f"{plural(len(different), 'call')} with other arguments: {listed}")
    if moved:
        listed = _few(
            moved,
            lambda pair: (
                f"{_name(names[pair.actual])} ({_at(pair.actual, pair.span_id)}, "
                f"reference call {pair.reference + 1})"
            ),
        )
        parts.append(f"{plural(len(moved), 'call')} out of order: {listed}")
    if extra and match.mode not in EXTRA_ALLOWED:
        listed = _few(extra, lambda c: f"{_call(c)} ({_at(c.position, c.span_id)})")
        parts.append(f"{plural(len(extra), 'call')} not in the reference: {listed}")
    return f"{match.mode}: " + "; ".join(parts)


def shortened(value: Any) -> str:
    """Return a short form of a value: its JSON, cut at the end, without control characters."""
    if value is ABSENT:
        return "absent"
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    if isinstance(value, str):
        text = f'"{text}"'
    # Cut before sanitising as well: a value may have megabytes.
    return clipped(printable(text[: _VALUE_CHARS * 2]), _VALUE_CHARS)


def _few(items: Sequence[Item], text: Callable[[Item], str]) -> str:
    return and_more(items, _SHOWN, text)


def _name(name: str) -> str:
    return printable(name[:_VALUE_CHARS])


def _call(call: PositionedCall) -> str:
    if call.arguments in (None, "", {}):
        return _name(call.name)
    if isinstance(call.arguments, str):
        # JSON text: quoting it once more would only make it harder to read.
        return f"{_name(call.name)} {printable(call.arguments[:_VALUE_CHARS])}"
    return f"{_name(call.name)} {shortened(call.arguments)}"


def _at(position: int, span_id: str | None) -> str:
    where = f"call {position + 1}"
    return where if span_id is None else f"{where}, span {printable(span_id)}"


def _differences(call: Different) -> str:
    place = f"{_name(call.name)} ({_at(call.actual, call.span_id)})"
    if not call.arguments:
        return f"{place} refused against reference call {call.reference + 1}"

    def change(found: ArgumentDifference) -> str:
        path = printable(found.path[:_VALUE_CHARS]) or "arguments"
        return f"{path} is {shortened(found.actual)}, reference {shortened(found.reference)}"

    return f"{place} {_few(call.arguments, change)}"


MatchMode = Literal["strict", "unordered", "superset", "subset", "in_order"]

# A missing call is reported as a different one when the same tool was called with other arguments.
# Of several such calls the one that differs least is named; comparing all would be quadratic.
_NEAREST_OF = 32


def match_calls(
    actual: Sequence[CallLike],
    reference: Sequence[CallLike],
    *,
    mode: MatchMode = "strict",
    arguments: ArgumentRule | ArgumentRules = "exact",
    tools: Mapping[str, ArgumentRule] | None = None,
) -> Match:
    """Match the calls an agent made with those of a reference.

    `arguments` is the rule for every tool, `tools` the rules of tools that differ from it.
    """
    if mode not in get_args(MatchMode):
        raise ProctorError(
            f"unknown match mode {mode!r}",
            where="match_mode",
            hint=hint_among(mode, get_args(MatchMode)),
        )
    here = CallAlignment(actual, reference, _rules(arguments, tools))
    if mode == "strict":
        places = range(len(actual))
        if len(actual) == len(reference) and all(map(here.accepts, places, places)):
            return _passed(mode, here, [(place, place) for place in places])
        return _failed(mode, here, here.aligned())
    if mode == "in_order":
        # The earliest match of each reference call leaves the most room for the next.
        pairs: Places = []
        for place in range(len(actual)):
            if len(pairs) < len(reference) and here.accepts(place, len(pairs)):
                pairs.append((place, len(pairs)))
        if len(pairs) == len(reference):
            return _passed(mode, here, pairs)
        return _failed(mode, here, here.aligned())
    pairs = here.paired()
    all_made = len(pairs) == len(reference)
    all_wanted = len(pairs) == len(actual)
    if {"superset": all_made, "subset": all_wanted}.get(mode, all_made and all_wanted):
        return _passed(mode, here, pairs)
    return _failed(mode, here, Aligned(pairs, _nearest(here, *here.unpaired(pairs)), []))


def _rules(
    arguments: ArgumentRule | ArgumentRules, tools: Mapping[str, ArgumentRule] | None
) -> ArgumentRules:
    if not isinstance(arguments, ArgumentRules):
        return ArgumentRules(arguments, tools)
    if tools:
        raise ProctorError("give `tools` inside the ArgumentRules, not beside them")
    return arguments


# -- results --------------------------------------------------------------------------------


def _passed(mode: str, here: CallAlignment, pairs: Places) -> Match:
    missing, extra = _left(here, pairs)
    reason = _PASSED[mode].format(actual=len(here.actual), reference=len(here.reference))
    return Match(mode, True, f"{mode}: {reason}", _pairs(here, pairs), missing, extra)


def _failed(mode: str, here: CallAlignment, found: Aligned) -> Match:
    missing, extra = _left(here, [*found.pairs, *found.different, *found.moved])
    different: list[Different] = []
    for one, other in found.different:
        a, r = here.actual[one], here.reference[other]
        arguments = here.rules.of(a.name).differences(a.arguments, r.arguments)
        different.append(Different(a.name, one, other, a.span_id, r.span_id, arguments))
    moved, pairs = _pairs(here, found.moved), _pairs(here, found.pairs)
    match = Match(mode, False, "", pairs, missing, extra, tuple(different), moved)
    names = [call.name for call in here.actual]
    return replace(match, reason=_failed_reason(match, len(here.reference), names))


def _pairs(here: CallAlignment, pairs: Places) -> tuple[MatchedCalls, ...]:
    actual = here.actual
    return tuple([MatchedCalls(one, other, actual[one].span_id) for one, other in pairs])


def _left(
    here: CallAlignment, pairs: Places
) -> tuple[tuple[PositionedCall, ...], tuple[PositionedCall, ...]]:
    """Return the calls in no pair: missing ones of the reference, extra actual ones."""
    if len(pairs) == len(here.actual) == len(here.reference):
        return (), ()
    ours, theirs = here.unpaired(pairs)
    return _placed(here.reference, theirs), _placed(here.actual, ours)


def _placed(calls: Sequence[CallLike], places: Iterable[int]) -> tuple[PositionedCall, ...]:
    chosen = ((place, calls[place]) for place in places)
    return tuple(PositionedCall(place, c.name, c.arguments, c.span_id) for place, c in chosen)


def _nearest(here: CallAlignment, ours: list[int], theirs: list[int]) -> Places:
    """Pair the remaining calls of the same tool: each takes the one that differs least."""
    pairs: Places = []
    for name, (left, right) in here.by_tool(ours, theirs).items():
        rule = here.rules.of(name)
        for other in right:
            if not left:
                break
            wanted = here.reference[other].arguments
            near = min(
                left[:_NEAREST_OF],
                key=lambda one: len(rule.differences(here.actual[one].arguments, wanted)),
            )
            left.remove(near)
            pairs.append((near, other))
    return sorted(pairs)


class ToolStreak(NamedTuple):
    """The same tool called several times in a row: `length` calls from position `start`."""

    tool: str
    start: int
    length: int


class Loops(NamedTuple):
    """Consecutive repeats. `repeats` counts calls of the same tool as the call before.

    `longest` is the length of the longest stretch of one tool: 0 without calls, 1 when no tool
    follows itself. `runs` are the stretches of two or more.
    """

    longest: int
    repeats: int
    runs: tuple[ToolStreak, ...]


class RepeatedToolCall(NamedTuple):
    """A call (by position) that repeats an earlier one: same tool, same input."""

    tool: str
    position: int
    first: int
    span_id: str | None


class Redundancy(NamedTuple):
    """Calls that repeat an earlier call, and their share of all calls (None without calls)."""

    share: float | None
    repeats: tuple[RepeatedToolCall, ...]


def tool_recall(expected: Iterable[str], used: Iterable[str]) -> float | None:
    """|E ∩ U| / |E|: the share of expected tools that were used; None when none is expected."""
    wanted = set(expected)
    return len(wanted.intersection(used)) / len(wanted) if wanted else None


def tool_precision(expected: Iterable[str], used: Iterable[str]) -> float | None:
    """|E ∩ U| / |U|: the share of used tools that were expected; None when none was used."""
    called = set(used)
    return len(called.intersection(expected)) / len(called) if called else None


def sequence_similarity(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """2·|LCS| / (|A| + |B|); 1 when both are empty, because they are the same sequence."""
    total = len(a) + len(b)
    return 2 * lcs_length(a, b) / total if total else 1.0


def edit_similarity(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """1 − ED / max(|A|, |B|); 1 when both are empty, because they are the same sequence."""
    longest = max(len(a), len(b))
    return 1 - edit_distance(a, b) / longest if longest else 1.0


def loops(names: Sequence[str]) -> Loops:
    """Find the calls of a tool directly after itself."""
    runs: list[ToolStreak] = []
    start = longest = 0
    # One position past the end closes the last run.
    for position in range(1, len(names) + 1):
        if position < len(names) and names[position] == names[start]:
            continue
        length = position - start
        longest = max(longest, length)
        if length > 1:
            runs.append(ToolStreak(names[start], start, length))
        start = position
    return Loops(longest, sum(run.length - 1 for run in runs), tuple(runs))


def redundancy(calls: Sequence[CallLike]) -> Redundancy:
    """Find the calls that repeat an earlier one: same tool, equal arguments, anywhere before."""
    first: dict[Hashable, int] = {}
    repeats: list[RepeatedToolCall] = []
    for position, call in enumerate(calls):
        seen = first.setdefault((call.name, canonical(call.arguments)), position)
        if seen != position:
            repeats.append(RepeatedToolCall(call.name, position, seen, call.span_id))
    return Redundancy(len(repeats) / len(calls) if calls else None, tuple(repeats))
