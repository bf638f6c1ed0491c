"""Numbers about which tools were called, how often and in which order.

The formulas are those of docs/reference/metrics.md. A share of nothing is None, never 0 or 1; two
empty sequences are equal, so their similarity is 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from proctor.checks.metrics.alignment import CallLike, canonical, edit_distance, lcs_length


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
