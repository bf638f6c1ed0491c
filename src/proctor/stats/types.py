"""Define the input and output of estimators: counts per case in, a self-explaining result out.

A figure that is not defined is None and `reason` explains why. Bad input (NaN, more passes than
trials) is rejected rather than repaired: a repaired number would look like a measured one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.tables import Tabular

Estimand = Literal["suite", "population"]
"""suite: exactly these cases, only trial noise counts. population: cases drawn from one."""

SUITE_DEFAULT = "estimand suite (default: it assumes nothing about other cases)"
"""How a line begins that says what the figures of a suite are about."""

Alternative = Literal["two-sided", "less", "greater"]
"""`less`: the second arm is lower than the first. `greater`: it is higher."""

LEVEL = 0.95
"""The usual confidence level, used by default."""

RESAMPLES = 9_999
"""With the observed arrangement this makes 10,000: p-values step by a round 0.0001."""

MAX_ERROR_RATE = 0.05
"""Above this share of trials without a verdict the infrastructure was measured, not the agent."""

STOPPED = "stopped early: the rate is biased, and no fixed-n interval or test is valid"
"""Reason for a missing figure after early stopping."""


def bias_of(stopped: bool, undecided: int, trials: int) -> str | None:
    """Return why no interval or test of a rate over these trials is valid; None where it is.

    After an early stop none at a fixed n is. `undecided` trials were not judged for want of an
    observation or a price, although other checks scored them: had one of those failed, they would
    have been judged.
    """
    if stopped:
        return STOPPED
    if undecided <= MAX_ERROR_RATE * trials:
        return None
    return (
        f"{undecided} of {plural(trials, 'trial')} were not judged, but failures among them would"
        " have been: figures of the rest are biased"
    )


TIES = 1e-9
"""Relative tolerance: closer statistics differ by rounding only and count as equal."""


class CaseCounts(NamedTuple):
    """Judged trials of one case, and how many passed; errored trials are counted separately."""

    passes: int
    trials: int
    errors: int = 0

    @property
    def rate(self) -> float:
        """The share that passed; defined only where there are trials: see `judged`."""
        return self.passes / self.trials


@dataclass(frozen=True, slots=True)
class Interval(Tabular):
    """An estimate with its interval.

    `n` counts trials (or values), `cases` the cases they are nested in, `left_out` the cases
    without a judged trial. `n_eff` is set where the interval uses an effective n.
    """

    value: float | None
    low: float | None
    high: float | None
    level: float
    method: str
    estimand: Estimand
    n: int
    cases: int
    left_out: int = 0
    n_eff: float | None = None
    reason: str | None = None

    def without_bounds(self, reason: str) -> Interval:
        """Return the estimate without its interval, and the reason."""
        return replace(self, low=None, high=None, reason=reason)

    def undefined(self, reason: str) -> Interval:
        """Return neither estimate nor interval, and the reason."""
        return replace(self, value=None, low=None, high=None, reason=reason)


@dataclass(frozen=True, slots=True)
class DifferenceTest(Tabular):
    """A test of a second arm against a first; `difference` is second minus first.

    `n` counts the trials of both arms, `cases` the cases in both, `left_out` the cases that
    lack a judged trial in either. `resamples` is None where the p-value is exact.
    """

    difference: float | None
    p_value: float | None
    alternative: Alternative
    method: str
    estimand: Estimand
    n: int
    cases: int
    left_out: int = 0
    resamples: int | None = None
    reason: str | None = None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None without values."""
    return math.fsum(values) / len(values) if values else None


def mean_of_cases(values: Sequence[float], cases: Sequence[Hashable]) -> float | None:
    """Return the mean of the cases' means: a case with more instances does not weigh more."""
    by_case = values_by_case(values, cases)
    return mean([math.fsum(own) / len(own) for own in by_case.values()])


def values_by_case(
    values: Sequence[float], cases: Sequence[Hashable]
) -> dict[Hashable, list[float]]:
    """Return the values of each case's instances, in the order of the cases."""
    found: dict[Hashable, list[float]] = {}
    for case, value in zip(cases, values, strict=True):
        found.setdefault(case, []).append(value)
    return found


def finite(values: Iterable[float], what: str) -> tuple[float, ...]:
    """Return the values after checking that all are finite numbers."""
    numbers = tuple(float(value) for value in values)
    bad = next((at for at, value in enumerate(numbers) if not math.isfinite(value)), None)
    if bad is not None:
        raise ProctorError(
            f"{what}: value {bad + 1} is {numbers[bad]}, not a number",
            hint="leave unscored trials out and count them apart",
        )
    return numbers


def checked(counts: Iterable[tuple[int, ...]], what: str = "counts") -> tuple[CaseCounts, ...]:
    """Return the counts after checking that each one is possible."""
    rows = tuple(CaseCounts(*row) for row in counts)
    for at, row in enumerate(rows):
        if not 0 <= row.passes <= row.trials or row.errors < 0:
            raise ProctorError(
                f"{what}: case {at + 1} has {row.passes} passes of {row.trials} trials"
                f" and {row.errors} errors",
                hint="passes lie between 0 and trials; errors are counted apart, from 0",
            )
    return rows


def judged(counts: Iterable[tuple[int, ...]]) -> tuple[CaseCounts, ...]:
    """Return the cases with at least one judged trial."""
    return tuple(row for row in checked(counts) if row.trials)


class Paired(NamedTuple):
    """Two arms on the cases judged in both."""

    first: tuple[CaseCounts, ...]
    second: tuple[CaseCounts, ...]
    left_out: int

    @property
    def n(self) -> int:
        """The trials of both arms."""
        return sum(row.trials for row in self.first + self.second)

    @property
    def differences(self) -> tuple[float, ...]:
        """Second minus first, case by case."""
        return tuple(b.rate - a.rate for a, b in zip(self.first, self.second, strict=True))

    @property
    def difference(self) -> float | None:
        """The mean of the cases' differences."""
        gaps = self.differences
        return math.fsum(gaps) / len(gaps) if gaps else None


def paired(first: Sequence[tuple[int, ...]], second: Sequence[tuple[int, ...]]) -> Paired:
    """Pair two lists of counts by index; cases not judged in both are left out."""
    same_length(first, second)
    rows = list(zip(checked(first, "first arm"), checked(second, "second arm"), strict=True))
    both = [(a, b) for a, b in rows if a.trials and b.trials]
    return Paired(tuple(a for a, _ in both), tuple(b for _, b in both), len(rows) - len(both))


def same_length(first: Sequence[object], second: Sequence[object]) -> None:
    """Reject arms that cannot be paired."""
    if len(first) != len(second):
        raise ProctorError(
            f"the arms have {len(first)} and {len(second)} cases",
            hint="pair them first: the same case at the same place in both",
        )


def share(value: float, what: str) -> float:
    """Return a number after checking that it is strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ProctorError(f"{what} is {value}", hint=f"{what} lies between 0 and 1")
    return value
