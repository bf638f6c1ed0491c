"""When a cell needs no more trials.

Promise: a stop is decided on trials in the order of the plan, never of their finishing, so a
concurrent run stops where a sequential one would; trials that had started beyond that point are
kept but not counted. Infrastructure errors are never zeros: they only mean one trial less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from proctor.errors import ProctorError, did_you_mean
from proctor.runs.model import CellKey, Trial, TrialStatus


class Seen(NamedTuple):
    """What a rule may know of a finished trial."""

    number: int
    status: TrialStatus
    score: float | None

    @classmethod
    def of(cls, trial: Trial) -> Seen:
        """The part of a trial that decides."""
        return cls(trial.index, trial.status, trial.score)


class CellPlan(NamedTuple):
    """What a rule knows of a cell beforehand."""

    trials: int
    threshold: float


class Stop(NamedTuple):
    """After how many trials of its plan a cell was decided, and why."""

    after: int
    reason: str


StoppingRule = Callable[[Sequence[Seen], CellPlan], str | None]
"""A reason to stop after these trials of a cell (a prefix of its plan), or None to go on."""


def hard_fail(prefix: Sequence[Seen], _plan: CellPlan) -> str | None:
    """The first blocking failure decides the verdict."""
    if prefix and prefix[-1].status == TrialStatus.HARD_FAIL:
        return f"hard fail in trial {prefix[-1].number}"
    return None


def out_of_reach(prefix: Sequence[Seen], plan: CellPlan) -> str | None:
    """Even perfect scores in all remaining trials would leave the mean below the threshold."""
    scores = [seen.score for seen in prefix if seen.status.judged and seen.score is not None]
    lost = sum(1 for seen in prefix if not seen.status.judged)
    possible = plan.trials - lost
    if not scores or possible <= 0:
        return None
    best = (sum(scores) + possible - len(scores)) / possible
    if best < plan.threshold:
        return f"threshold {plan.threshold:g} out of reach: at best {best:.3f}"
    return None


RULES: dict[str, StoppingRule] = {"hard_fail": hard_fail, "out_of_reach": out_of_reach}
"""Stopping rules by the names they are kept under in a run's spec."""


def rules_named(names: Iterable[str]) -> tuple[StoppingRule, ...]:
    """Rules by name."""
    found: list[StoppingRule] = []
    for name in names:
        if name not in RULES:
            raise ProctorError(f"unknown stopping rule {name!r}", hint=did_you_mean(name, RULES))
        found.append(RULES[name])
    return tuple(found)


def find_stop(
    ordered: Sequence[Seen], plan: CellPlan, rules: Sequence[StoppingRule]
) -> Stop | None:
    """Where a cell was decided, given its trials in the order of the plan."""
    for end in range(1, len(ordered) + 1) if rules else ():
        for rule in rules:
            reason = rule(ordered[:end], plan)
            if reason is not None:
                return Stop(end, reason)
    return None


class EarlyStop:
    """Follows the cells of a run in progress and says which are decided."""

    def __init__(self, rules: Sequence[StoppingRule]) -> None:
        self._rules = rules
        self._waiting: dict[CellKey, dict[int, Seen]] = {}
        self._prefix: dict[CellKey, list[Seen]] = {}
        self._stops: dict[CellKey, Stop] = {}

    def stopped(self, cell: CellKey) -> bool:
        """Whether no further trial of the cell should start."""
        return cell in self._stops

    def add(self, trial: Trial, position: int, plan: CellPlan) -> None:
        """Take a finished trial; `position` is its place in the plan of its cell."""
        cell = trial.cell
        if not self._rules or cell in self._stops:
            return
        waiting = self._waiting.setdefault(cell, {})
        prefix = self._prefix.setdefault(cell, [])
        waiting[position] = Seen.of(trial)
        while (following := waiting.pop(len(prefix), None)) is not None:
            prefix.append(following)
            reasons = (rule(prefix, plan) for rule in self._rules)
            if (reason := next(filter(None, reasons), None)) is not None:
                self._stops[cell] = Stop(len(prefix), reason)
                del self._waiting[cell], self._prefix[cell]
                return
