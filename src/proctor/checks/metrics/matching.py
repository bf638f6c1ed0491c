"""Trajectory matching: were the reference's calls made, and if not, which and where.

Promise: a mode says yes exactly when docs/reference/metrics.md says so, calls are paired as well
as they can be, and a no comes with the calls that were missing, extra, different or out of order.
When both sides are written alike a match takes linear time; explaining a no may take longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from proctor.checks.metrics.arguments import ArgumentRule, ArgumentRules
from proctor.checks.metrics.calls import CallLike, Turn, turns_of
from proctor.checks.metrics.comparison import Aligned, Comparison, Places
from proctor.checks.metrics.outcome import (
    Different,
    Match,
    Pair,
    Placed,
    TurnDifference,
    failed_reason,
    passed_reason,
)
from proctor.errors import ProctorError, hint_among

MatchMode = Literal["strict", "unordered", "superset", "subset", "in_order"]

# A missing call is told as a changed one when the same tool was called otherwise. Of several
# such calls the one that differs least is named; looking at more costs more than it tells.
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
    decide = _MODES.get(mode)
    if decide is None:
        raise ProctorError(
            f"unknown match mode {mode!r}",
            where="match_mode",
            hint=hint_among(mode, _MODES),
        )
    return decide(Comparison(actual, reference, _rules(arguments, tools)))


def match_messages(
    actual: Iterable[Any],
    reference: Iterable[Any],
    *,
    arguments: ArgumentRule | ArgumentRules = "exact",
    tools: Mapping[str, ArgumentRule] | None = None,
) -> Match:
    """Match two transcripts message by message: the mode `strict_messages`.

    Both have as many messages, with the same roles in the same order, and each message asks for
    the same calls, in any order within it. What is said in words is not compared.
    """
    rules = _rules(arguments, tools)
    ours, theirs = turns_of(actual), turns_of(reference)
    whole = Comparison(
        [call for turn in ours for call in turn.calls],
        [call for turn in theirs for call in turn.calls],
        rules,
    )
    pairs: Places = []
    one = other = 0
    for a, r in zip(ours, theirs, strict=False):
        if len(a.calls) == len(r.calls) == 1:  # most messages ask for one call, if any
            pairs += [(one, other)] if whole.accepts(one, other) else []
        elif a.calls and r.calls:
            pairs += whole.paired(
                range(one, one + len(a.calls)), range(other, other + len(r.calls))
            )
        one += len(a.calls)
        other += len(r.calls)
    turns = _turn_differences(ours, theirs)
    if not turns and len(pairs) == len(whole.actual) == len(whole.reference):
        return _passed("strict_messages", whole, pairs)
    moved = whole.paired(*whole.unpaired(pairs))
    different = _nearest(whole, *whole.unpaired([*pairs, *moved]))
    return _failed("strict_messages", whole, Aligned(pairs, different, moved), turns)


def _turn_differences(ours: list[Turn], theirs: list[Turn]) -> tuple[TurnDifference, ...]:
    shared = min(len(ours), len(theirs))
    return (
        *(
            TurnDifference(place, ours[place].role, theirs[place].role)
            for place in range(shared)
            if ours[place].role != theirs[place].role
        ),
        *(TurnDifference(shared + n, turn.role, None) for n, turn in enumerate(ours[shared:])),
        *(TurnDifference(shared + n, None, turn.role) for n, turn in enumerate(theirs[shared:])),
    )


def _rules(
    arguments: ArgumentRule | ArgumentRules, tools: Mapping[str, ArgumentRule] | None
) -> ArgumentRules:
    if not isinstance(arguments, ArgumentRules):
        return ArgumentRules(arguments, tools)
    if tools:
        raise ProctorError("give `tools` inside the ArgumentRules, not beside them")
    return arguments


# -- the modes ------------------------------------------------------------------------------


def _strict(here: Comparison) -> Match:
    places = range(len(here.actual))
    if len(here.actual) == len(here.reference) and all(map(here.accepts, places, places)):
        return _passed("strict", here, [(place, place) for place in places])
    return _failed("strict", here, here.aligned())


def _in_order(here: Comparison) -> Match:
    # The earliest match of each reference call leaves the most room for the next.
    pairs: Places = []
    wanted = len(here.reference)
    for place in range(len(here.actual)):
        if len(pairs) < wanted and here.accepts(place, len(pairs)):
            pairs.append((place, len(pairs)))
    if len(pairs) == wanted:
        return _passed("in_order", here, pairs)
    return _failed("in_order", here, here.aligned())


def _unordered(here: Comparison) -> Match:
    pairs = here.paired()
    return _verdict("unordered", here, pairs, len(pairs) == len(here.actual) == len(here.reference))


def _superset(here: Comparison) -> Match:
    pairs = here.paired()
    return _verdict("superset", here, pairs, len(pairs) == len(here.reference))


def _subset(here: Comparison) -> Match:
    pairs = here.paired()
    return _verdict("subset", here, pairs, len(pairs) == len(here.actual))


_MODES: dict[str, Callable[[Comparison], Match]] = {
    "strict": _strict,
    "unordered": _unordered,
    "superset": _superset,
    "subset": _subset,
    "in_order": _in_order,
}


# -- results --------------------------------------------------------------------------------


def _verdict(mode: str, here: Comparison, pairs: Places, passed: bool) -> Match:
    if passed:
        return _passed(mode, here, pairs)
    return _failed(mode, here, Aligned(pairs, _nearest(here, *here.unpaired(pairs)), []))


def _passed(mode: str, here: Comparison, pairs: Places) -> Match:
    missing, extra = _left(here, pairs)
    reason = passed_reason(mode, len(here.actual), len(here.reference))
    return Match(mode, True, reason, _pairs(here, pairs), missing, extra)


def _failed(
    mode: str, here: Comparison, found: Aligned, turns: tuple[TurnDifference, ...] = ()
) -> Match:
    missing, extra = _left(here, [*found.pairs, *found.different, *found.moved])
    different = tuple(_different(here, *places) for places in found.different)
    moved, pairs = _pairs(here, found.moved), _pairs(here, found.pairs)
    match = Match(mode, False, "", pairs, missing, extra, different, moved, turns)
    names = [call.name for call in here.actual]
    return replace(match, reason=failed_reason(match, len(here.reference), names))


def _pairs(here: Comparison, pairs: Places) -> tuple[Pair, ...]:
    actual = here.actual
    return tuple([Pair(one, other, actual[one].span_id) for one, other in pairs])


def _left(here: Comparison, pairs: Places) -> tuple[tuple[Placed, ...], tuple[Placed, ...]]:
    """The calls no pair holds: missing ones of the reference, extra ones of the actual."""
    if len(pairs) == len(here.actual) == len(here.reference):
        return (), ()
    ours, theirs = here.unpaired(pairs)
    return _placed(here.reference, theirs), _placed(here.actual, ours)


def _placed(calls: Sequence[CallLike], places: Iterable[int]) -> tuple[Placed, ...]:
    chosen = ((place, calls[place]) for place in places)
    return tuple(Placed(place, c.name, c.arguments, c.span_id) for place, c in chosen)


def _different(here: Comparison, one: int, other: int) -> Different:
    actual, reference = here.actual[one], here.reference[other]
    rule = here.rules.of(actual.name)
    arguments = rule.differences(actual.arguments, reference.arguments)
    return Different(actual.name, one, other, actual.span_id, reference.span_id, arguments)


def _nearest(here: Comparison, ours: list[int], theirs: list[int]) -> Places:
    """Pair left-over calls of the same tool, those that differ least first come first served."""
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
