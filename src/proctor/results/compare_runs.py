"""Which arms of which runs are set side by side: two runs of the same agents, or two agents.

Promise: an agent is compared with itself in the other run, or with the one that was named; cases
that changed between the runs are left out by hash, and everything without a partner is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from proctor.errors import ProctorError
from proctor.results.comparability import changed_cases, remarks
from proctor.results.comparison import ArmComparison, Given, MetricDifference, compare_arms
from proctor.results.flakiness import judge_votes
from proctor.results.outcomes import AgentOutcomes, outcomes_of, pick
from proctor.runs.folder import run_name
from proctor.runs.run import Run
from proctor.stats.kinds import LEVEL
from proctor.words import plural


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Every pair that was compared, and what had no partner."""

    first: str
    second: str
    pairs: tuple[ArmComparison, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    level: float
    notes: tuple[str, ...] = ()

    @property
    def pass_rate(self) -> MetricDifference:
        """The pass rates of the two that were compared; with several pairs, read `pairs`."""
        if len(self.pairs) != 1:
            raise ProctorError(
                f"{plural(len(self.pairs), 'pair')} of agents were compared, not one",
                hint="read comparison.pairs, or name two agents: compare(…, agents=[a, b])",
            )
        return self.pairs[0].overall


def compare_runs(
    first: Run,
    second: Run | None = None,
    *,
    agents: Sequence[str] = (),
    cases: str | None = None,
    level: float = LEVEL,
    seed: int = 0,
) -> Comparison:
    """Compare two runs, agent by agent; or two agents (`agents`) of one run or of two."""
    other = first if second is None else second
    if agents and len(agents) != 2:
        raise ProctorError(
            f"{len(agents)} agents were named",
            hint="name two: --agents a,b; where a name holds a comma, give --agents twice",
        )
    if not agents and second is None:
        raise ProctorError("one run alone has nothing to be compared with", hint="--agents a,b")
    before = outcomes_of(first)
    after = before if second is None else outcomes_of(second)
    pairs, only = _paired(before, after, agents)
    if cases is not None and not _any_case(pairs, cases):
        raise ProctorError(f"no case matches {cases!r}", hint="such as --cases 'refund-*'")
    changed = changed_cases(first.spec, other.spec) if second is not None else {}
    return Comparison(
        first=run_name(first.path),
        second=run_name(other.path),
        pairs=tuple(
            compare_arms(
                *_named(a, b, first, second),
                incomparable=changed,
                pattern=cases,
                level=level,
                seed=seed,
            )
            for a, b in pairs
        ),
        only_first=only[0],
        only_second=only[1],
        level=level,
        notes=_notes(first.spec, second.spec if second is not None else None),
    )


def _notes(first: Mapping[str, Any], second: Mapping[str, Any] | None) -> tuple[str, ...]:
    return () if second is None else tuple(remarks(first, second))


def _paired(
    before: Sequence[AgentOutcomes], after: Sequence[AgentOutcomes], agents: Sequence[str]
) -> tuple[list[tuple[AgentOutcomes, AgentOutcomes]], tuple[tuple[str, ...], tuple[str, ...]]]:
    if agents:
        return [(_one(before, agents[0]), _one(after, agents[1]))], ((), ())
    if len(before) == len(after) == 1:
        return [(before[0], after[0])], ((), ())
    a = {(arm.agent, arm.params): arm for arm in before}
    b = {(arm.agent, arm.params): arm for arm in after}
    both = sorted(a.keys() & b.keys())
    if not both:
        names = [sorted(arm.name for arm in side) for side in (before, after)]
        raise ProctorError(
            f"no agent is in both runs: {', '.join(names[0])}; {', '.join(names[1])}",
            hint="name one of each: --agents a,b",
        )
    return [(a[key], b[key]) for key in both], (
        tuple(a[key].name for key in sorted(a.keys() - b.keys())),
        tuple(b[key].name for key in sorted(b.keys() - a.keys())),
    )


def _one(arms: Sequence[AgentOutcomes], name: str) -> AgentOutcomes:
    """An agent by its name, with its parameters where there are several; a beginning will do."""
    for fits in (
        [arm for arm in arms if arm.name == name],
        [arm for arm in arms if arm.agent == name],
        [arm for arm in arms if arm.name.startswith(name)],
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            told = "; ".join(sorted(arm.name for arm in fits))
            raise ProctorError(
                f"{name!r} may be any of {len(fits)}: {told}",
                hint="write as much of the name as tells it from the others, in quotes",
            )
    return pick(arms, name)


def _named(
    a: AgentOutcomes, b: AgentOutcomes, first: Run, second: Run | None
) -> tuple[Given, Given]:
    other = first if second is None else second
    names = (a.name, b.name)
    if a.name == b.name:
        names = (f"{a.name} @ {run_name(first.path)}", f"{b.name} @ {run_name(other.path)}")
    if names[0] == names[1]:
        names = (f"{names[0]} (first)", f"{names[1]} (second)")
    votes = (judge_votes(first), judge_votes(other))
    return Given(names[0], a, votes[0]), Given(names[1], b, votes[1])


def _any_case(pairs: Sequence[tuple[AgentOutcomes, AgentOutcomes]], pattern: str) -> bool:
    from fnmatch import fnmatchcase

    return any(
        fnmatchcase(case.case, pattern) for arms in pairs for arm in arms for case in arm.cases
    )
