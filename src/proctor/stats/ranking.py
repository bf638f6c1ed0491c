"""Rank agents by sets of possible places.

An agent's best place is 1 + the agents significantly better, its worst is all − those significantly
worse, by paired tests on shared instances, Holm over all pairs. Agents are listed by mean; those
without a significant difference share places. For an agent whose rate is biased (trials stopped
early) no test is valid, so none is made; it may hold any place that the others leave.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

from proctor.errors import ProctorError
from proctor.stats.compare import paired_means
from proctor.stats.types import RESAMPLES, DifferenceTest, Estimand, finite, mean, share

# Adjusted p-values for multiple tests. Holm controls the probability of a single false alarm (for
# gates). Benjamini–Hochberg controls the share of false discoveries (for lists of cases to look
# at); e-BH does so for e-values.


def fisher_exact(a: int, b: int, c: int, d: int) -> float:
    """Return the two-sided p-value of Fisher's exact test of the table [[a, b], [c, d]].

    The sum over all tables with the same margins that are at most as probable as this one. Exact
    integers, so that equally probable tables are never lost to rounding.
    """
    rows, first, total = a + b, a + c, a + b + c + d
    ways = {
        k: comb(first, k) * comb(total - first, rows - k)
        for k in range(max(0, rows + first - total), min(rows, first) + 1)
    }
    extreme = sum(count for count in ways.values() if count <= ways[a])
    return extreme / comb(total, rows)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's step-down adjusted p-values, in input order."""
    values = _checked_p_values(p_values)
    adjusted, highest = [0.0] * len(values), 0.0
    for rank, at in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, values[at] * (len(values) - rank)))
        adjusted[at] = highest
    return tuple(adjusted)


def adjusted(
    p_values: Sequence[float | None],
    method: Callable[[Sequence[float]], tuple[float, ...]] = holm,
) -> tuple[float | None, ...]:
    """Return adjusted p-values; a test without one never differed, and still counts as a test."""
    found = method([1.0 if p is None else p for p in p_values])
    return tuple(None if p is None else q for p, q in zip(p_values, found, strict=True))


def benjamini_hochberg(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Benjamini and Hochberg's step-up adjusted p-values, in input order."""
    values = _checked_p_values(p_values)
    adjusted, lowest = [0.0] * len(values), 1.0
    order = sorted(range(len(values)), key=values.__getitem__)
    for rank in range(len(values), 0, -1):
        at = order[rank - 1]
        lowest = min(lowest, values[at] * len(values) / rank)
        adjusted[at] = lowest
    return tuple(adjusted)


def e_benjamini_hochberg(e_values: Sequence[float], q: float = 0.10) -> tuple[bool, ...]:
    """Select e-values by e-BH, valid under any dependence between them."""
    values = finite(e_values, "e-values")
    if any(value < 0 for value in values):
        raise ProctorError("an e-value is below 0", hint="e-values are 0 or more")
    order = sorted(values, reverse=True)
    needed = len(values) / share(q, "q")
    named = max((rank for rank, e in enumerate(order, 1) if rank * e >= needed), default=0)
    return tuple(bool(named) and value >= order[named - 1] for value in values)


def _checked_p_values(p_values: Sequence[float]) -> tuple[float, ...]:
    values = finite(p_values, "p-values")
    for value in values:
        if not 0 <= value <= 1:
            raise ProctorError(f"{value} is not a p-value", hint="p-values lie between 0 and 1")
    return values


@dataclass(frozen=True, slots=True)
class RankRange:
    """One agent: its mean over the shared cases and the places it may hold."""

    agent: str
    mean: float | None
    best: int
    worst: int


@dataclass(frozen=True, slots=True)
class PairedTest:
    """One paired test, second minus first, with its p-value after Holm."""

    first: str
    second: str
    test: DifferenceTest
    adjusted: float | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Places by mean, best first; `left_out` lists the cases that not every agent has."""

    places: tuple[RankRange, ...]
    pairs: tuple[PairedTest, ...]
    alpha: float
    n: int
    cases: int
    left_out: tuple[str, ...]
    method: str = "rank sets by paired tests, Holm"
    estimand: Estimand = "population"
    reason: str | None = None


def rank_sets(
    scores: Mapping[str, Mapping[str, float]],
    *,
    alpha: float = 0.05,
    resamples: int = RESAMPLES,
    seed: int = 0,
    biased: Mapping[str, str] | None = None,
    test: Callable[[str, str, Sequence[str]], DifferenceTest] | None = None,
) -> Ranking:
    """Rank agents by their mean score per case (agent → case → mean), higher is better.

    `test` compares two agents on the shared cases; by default over cases, for a population.
    `biased` maps agents for whom no test is valid to the reason. Where that leaves no pair to test,
    `reason` explains it, and the places carry no information.
    """
    share(alpha, "alpha")
    agents = list(scores)
    every = {case: None for agent in agents for case in scores[agent]}
    # Means over different cases cannot be ranked: an agent would win by skipping the hard ones.
    shared = [case for case in every if all(case in scores[agent] for agent in agents)]
    among = set(shared)
    left_out = tuple(case for case in every if case not in among)
    rows = {
        agent: finite((scores[agent][case] for case in shared), f"agent {agent}")
        for agent in agents
    }
    pairs: list[PairedTest] = []
    valid: list[int] = []
    invalid: dict[str, None] = {}
    for a, b in itertools.combinations(agents, 2):
        if test is None:
            found = paired_means(rows[a], rows[b], resamples=resamples, seed=seed)
        else:
            found = test(a, b, shared)
        if why := (biased or {}).get(a) or (biased or {}).get(b):
            found = replace(found, p_value=None, reason=why)
            invalid[why] = None
        else:
            valid.append(len(pairs))
        pairs.append(PairedTest(a, b, found, None))
    for at, value in zip(valid, adjusted([pairs[at].test.p_value for at in valid]), strict=True):
        pairs[at] = replace(pairs[at], adjusted=value)
    better = dict.fromkeys(agents, 0)
    worse = dict.fromkeys(agents, 0)
    for pair in pairs:
        gap = pair.test.difference
        # Equal means cannot order a pair, whatever its test says.
        if pair.adjusted is None or pair.adjusted > alpha or not gap:
            continue
        winner, loser = (pair.second, pair.first) if gap > 0 else (pair.first, pair.second)
        better[loser] += 1
        worse[winner] += 1
    places = [
        RankRange(agent, mean(rows[agent]), 1 + better[agent], len(agents) - worse[agent])
        for agent in agents
    ]
    places.sort(key=lambda place: (-(place.mean or 0.0), place.agent))
    why = None if shared or not agents else "no case was run by every agent"
    if why is None and pairs and not valid:
        why = "; ".join(invalid)
    n = len(shared) * len(agents)
    return Ranking(tuple(places), tuple(pairs), alpha, n, len(shared), left_out, reason=why)
