"""What a match has to say: a verdict, the calls it is about, and one line a person can act on.

Promise: every call that counts against the verdict is listed with its place and span id. The
line names the first few; names and values in it are shortened and free of control characters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from proctor.checks.metrics.arguments import ABSENT, ArgumentDifference
from proctor.words import and_more, clipped, plural

Item = TypeVar("Item")

# Long enough to recognise a call by, short enough for three of them in a line.
_VALUE_CHARS = 60
_SHOWN = 3


class Pair(NamedTuple):
    """An actual call and the reference call it stands for, by position; the actual's span."""

    actual: int
    reference: int
    span_id: str | None


class Placed(NamedTuple):
    """One call of a sequence: where it stands, what it is, and the span it was seen in."""

    position: int
    name: str
    arguments: Any
    span_id: str | None


class Different(NamedTuple):
    """A call of the right tool whose arguments the rule refuses, and which of them.

    `arguments` is empty when a user's function refused arguments that are equal.
    """

    name: str
    actual: int
    reference: int
    span_id: str | None
    reference_span_id: str | None
    arguments: tuple[ArgumentDifference, ...]


class TurnDifference(NamedTuple):
    """A message whose role is not the reference's; None where a side has no such message."""

    position: int
    actual: str | None
    reference: str | None


@dataclass(frozen=True, slots=True)
class Match:
    """The result of matching; true in a condition exactly when it passed.

    `missing` are reference calls no call stands for, `extra` calls that stand for none,
    `moved` calls that are right but out of order. Under `superset` and `in_order` extra calls
    are allowed, under `subset` missing ones are: they are listed, and count against nothing.
    """

    mode: str
    passed: bool
    reason: str
    pairs: tuple[Pair, ...]
    missing: tuple[Placed, ...] = ()
    extra: tuple[Placed, ...] = ()
    different: tuple[Different, ...] = ()
    moved: tuple[Pair, ...] = ()
    turns: tuple[TurnDifference, ...] = ()

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
    "subset": "every one of {actual} calls stands in the reference of {reference}",
    "in_order": "all {reference} reference calls were made in order, among {actual} calls",
    "strict_messages": "every message is as in the reference, with its {reference} calls",
}


def passed_reason(mode: str, actual: int, reference: int) -> str:
    """The line for a match that passed."""
    return f"{mode}: " + _PASSED[mode].format(actual=actual, reference=reference)


def failed_reason(match: Match, reference: int, names: Sequence[str]) -> str:
    """The line for a match that did not pass.

    `reference` is the number of reference calls, `names` are the tools of the actual calls.
    """
    mode, missing, extra = match.mode, match.missing, match.extra
    different, moved, turns = match.different, match.moved, match.turns
    parts = [_few(turns, _turn)] if turns else []
    if missing and mode not in MISSING_ALLOWED:
        parts.append(
            f"{len(missing)} of {reference} reference calls missing: {_few(missing, _lacks)}"
        )
    if different:
        parts.append(
            f"{plural(len(different), 'call')} with other arguments: {_few(different, _differs)}"
        )
    if moved:

        def moves(pair: Pair) -> str:
            place = _at(pair.actual, pair.span_id)
            return f"{_name(names[pair.actual])} ({place}, reference call {pair.reference + 1})"

        parts.append(f"{plural(len(moved), 'call')} out of order: {_few(moved, moves)}")
    if extra and mode not in EXTRA_ALLOWED:
        parts.append(f"{plural(len(extra), 'call')} not in the reference: {_few(extra, _exceeds)}")
    return f"{mode}: " + "; ".join(parts)


def printable(text: str) -> str:
    """Text on one line, whatever it held: what cannot be printed is written as its escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shortened(value: Any) -> str:
    """A value as a reader recognises it: JSON where it has such a form, cut at the end."""
    if value is ABSENT:
        return "absent"
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    if isinstance(value, str):
        text = f'"{text}"'
    return clipped(printable(text[: _VALUE_CHARS * 2]), _VALUE_CHARS)


def _few(items: Sequence[Item], text: Callable[[Item], str]) -> str:
    return and_more(items, _SHOWN, text)


def _lacks(call: Placed) -> str:
    return f"{_call(call)} (reference call {call.position + 1})"


def _exceeds(call: Placed) -> str:
    return f"{_call(call)} ({_at(call.position, call.span_id)})"


def _name(name: str) -> str:
    return printable(name[:_VALUE_CHARS])


def _call(call: Placed) -> str:
    if call.arguments in (None, "", {}):
        return _name(call.name)
    if isinstance(call.arguments, str):
        # JSON text: quoting it once more would only make it harder to read.
        return f"{_name(call.name)} {printable(call.arguments[:_VALUE_CHARS])}"
    return f"{_name(call.name)} {shortened(call.arguments)}"


def _at(position: int, span_id: str | None) -> str:
    where = f"call {position + 1}"
    return where if span_id is None else f"{where}, span {printable(span_id)}"


def _differs(call: Different) -> str:
    place = f"{_name(call.name)} ({_at(call.actual, call.span_id)})"
    if not call.arguments:
        return f"{place} refused against reference call {call.reference + 1}"
    return f"{place} {_few(call.arguments, _change)}"


def _change(difference: ArgumentDifference) -> str:
    path = printable(difference.path[:_VALUE_CHARS]) or "arguments"
    return f"{path} is {shortened(difference.actual)}, reference {shortened(difference.reference)}"


def _turn(turn: TurnDifference) -> str:
    place = f"message {turn.position + 1}"
    if turn.actual is None:
        return f"{place} ({_name(turn.reference or '')}) missing"
    if turn.reference is None:
        return f"{place} ({_name(turn.actual)}) not in the reference"
    return f"{place} is from {_name(turn.actual)}, reference {_name(turn.reference)}"
