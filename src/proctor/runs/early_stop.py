"""Decide when a cell needs no more trials.

Guarantees: a stop is decided on trials in plan order, never in finishing order, so a concurrent run
stops where a sequential one would; trials started beyond that point are stored but not counted.
Infrastructure errors are never zeros: they only mean one trial less. Two rules cost nothing; the
sequential test may err, at a rate that is part of its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from proctor.errors import ProctorError, hint_among
from proctor.runs.trial import CellKey, Trial, TrialStatus

SEQUENTIAL_ALPHA = 0.05
"""Default error rate of the sequential test."""


class FinishedTrial(NamedTuple):
    """The fields of a finished trial that a rule uses."""

    number: int
    status: TrialStatus
    score: float | None

    @classmethod
    def of(cls, trial: Trial) -> FinishedTrial:
        """Return the fields of a trial that decide."""
        return cls(trial.index, trial.status, trial.score)


class CellPlan(NamedTuple):
    """The settings of a cell that a rule uses."""

    trials: int
    threshold: float
    stopped: str | None = None
    """Why the cell stopped before it was imported; its rules are not known here."""


class Stop(NamedTuple):
    """The number of planned trials after which a cell was decided, and the reason."""

    after: int
    reason: str


class CellTally:
    """The trials of a cell so far, in plan order, as rules use them.

    Counts are kept as trials are added: a rule that looks after every trial must not read all
    earlier ones again.
    """

    def __init__(self, trials: Iterable[FinishedTrial] = ()) -> None:
        self.last: FinishedTrial | None = None
        self.trials = 0
        self.scores = 0
        """Judged trials with a score."""
        self.not_judged = 0
        self.failed = False
        """Whether a judged trial did not pass."""
        self._sum = 0
        for trial in trials:
            self.add(trial)

    def add(self, trial: FinishedTrial) -> None:
        """Add the next trial of the plan."""
        self.last = trial
        self.trials += 1
        if not trial.status.judged:
            self.not_judged += 1
            return
        self.failed = self.failed or trial.status != TrialStatus.PASSED
        if trial.score is not None:
            self.scores += 1
            numerator, denominator = trial.score.as_integer_ratio()
            self._sum += numerator * (_UNIT // denominator)

    @property
    def total(self) -> float:
        """The sum of the scores, rounded once: the order of the additions does not matter."""
        return self._sum / _UNIT


_UNIT = 2**1074
"""Every float is a whole multiple of one over this."""


StoppingRule = Callable[[CellTally, CellPlan], str | None]
"""Return a reason to stop after these trials of a cell (a prefix of its plan), or None."""


def hard_fail(seen: CellTally, _plan: CellPlan) -> str | None:
    """The first blocking failure decides the verdict."""
    if seen.last is not None and seen.last.status == TrialStatus.HARD_FAIL:
        return f"hard fail in trial {seen.last.number}"
    return None


def out_of_reach(seen: CellTally, plan: CellPlan) -> str | None:
    """Perfect scores in all remaining trials would still leave the mean below the threshold."""
    # A trial without a verdict takes no part in the mean, so fewer scores remain possible.
    possible = plan.trials - seen.not_judged
    if not seen.scores or possible <= 0:
        return None
    best = (seen.total + possible - seen.scores) / possible
    # A cell all of whose trials passed has passed, whatever its mean.
    if best < plan.threshold and seen.failed:
        return f"threshold {plan.threshold:g} out of reach: at best {best:.3f}"
    return None


class Sequential:
    """Stop once the mean score is reliably on one side of the threshold.

    Two Beta-mixture e-processes are tracked, one against "at least the threshold" and one against
    "at most"; the first to reach 1/alpha decides. Each is wrong with probability at most alpha
    however often one looks. Scores between 0 and 1 count as fractions of a pass, which keeps that
    bound: on [0, 1] the likelihood ratio lies below its chord between fail and pass.
    """

    def __init__(self, alpha: float = SEQUENTIAL_ALPHA) -> None:
        if not 0 < alpha < 0.5:
            raise ProctorError(
                f"the error rate of the sequential test is {alpha:g}",
                hint="an error rate lies above 0 and below 0.5, such as sequential:0.05",
            )
        self.alpha = alpha

    def __call__(self, seen: CellTally, plan: CellPlan) -> str | None:
        """Return the side of the threshold that the scores so far have settled on."""
        from proctor.stats.sequential import EProcess

        last = seen.last
        if last is None or not last.status.judged or last.score is None:
            return None  # nothing new was observed
        if not 0 < plan.threshold < 1:
            return None  # no mean lies beyond the ends, so there is nothing to distinguish
        n, total = seen.scores, seen.total
        # The second side mirrors the first: lost scores, against one minus the threshold.
        sides = (("below", total, plan.threshold), ("above", n - total, 1 - plan.threshold))
        for side, gained, required in sides:
            process, alarm = EProcess(required), -math.log(self.alpha)
            if process.log_e_at_most(gained, n) < alarm:
                continue
            evidence = process.log_e(gained, n)
            if evidence >= alarm:
                # exp(710) overflows.
                size = f"{math.exp(evidence):.3g}" if evidence < 700 else "beyond any doubt"
                return (
                    f"mean score {total / n:.3f} {side} the threshold {plan.threshold:g}"
                    f" (sequential test, alpha {self.alpha:g}: E {size} after {n} scores)"
                )
        return None


FREE_RULES: dict[str, StoppingRule] = {"hard_fail": hard_fail, "out_of_reach": out_of_reach}
"""Rules that only stop decided cells: no error rate, no parameter."""

RULES = (*FREE_RULES, "sequential")
"""Every rule by its name in a run's spec; `sequential:ALPHA` includes its error rate."""


def rule_named(text: str) -> StoppingRule:
    """Parse one rule: its name, and for the sequential test its error rate after a colon."""
    name, colon, parameter = text.partition(":")
    if name == "sequential":
        if not colon:
            return Sequential()
        try:
            return Sequential(float(parameter))
        except ValueError:
            raise ProctorError(
                f"{parameter!r} is not an error rate", hint="such as sequential:0.05"
            ) from None
    if name not in FREE_RULES or colon:
        known = hint_among(name, RULES)
        hint = f"`{name}` takes no parameter" if name in FREE_RULES else known
        raise ProctorError(f"unknown stopping rule {text!r}", hint=hint)
    return FREE_RULES[name]


def rules_named(names: Iterable[str]) -> tuple[StoppingRule, ...]:
    """Parse several rules."""
    return tuple(rule_named(name) for name in names)


def find_stop(
    ordered: Sequence[FinishedTrial], plan: CellPlan, rules: Sequence[StoppingRule]
) -> Stop | None:
    """Return where a cell was decided, given its trials in plan order."""
    if plan.stopped is not None:
        # An import plans the trials that counted in its source.
        return Stop(plan.trials, plan.stopped)
    seen = CellTally()
    for trial in ordered if rules else ():
        seen.add(trial)
        for rule in rules:
            reason = rule(seen, plan)
            if reason is not None:
                return Stop(seen.trials, reason)
    return None


def stopped_early(stop: Stop | None, plan: CellPlan) -> str | None:
    """Return why a cell ended before its plan; None where it did not.

    A cell that its last planned trial decided has all its trials: nothing is biased.
    """
    if stop is not None and stop.after < plan.trials:
        return stop.reason
    return plan.stopped


class EarlyStop:
    """Track the cells of a run in progress and report which are decided."""

    def __init__(self, rules: Sequence[StoppingRule]) -> None:
        self._rules = rules
        self._waiting: dict[CellKey, dict[int, FinishedTrial]] = {}
        self._seen: dict[CellKey, CellTally] = {}
        self._decided: set[CellKey] = set()

    def stopped(self, cell: CellKey) -> bool:
        """Return whether no further trial of the cell should start."""
        return cell in self._decided

    def add(self, trial: Trial, position: int, plan: CellPlan) -> None:
        """Add a finished trial; `position` is its index in the plan of its cell."""
        cell = trial.cell
        if not self._rules or cell in self._decided:
            return
        waiting = self._waiting.setdefault(cell, {})
        seen = self._seen.setdefault(cell, CellTally())
        waiting[position] = FinishedTrial.of(trial)
        # Trials finish in any order, and rules see them in plan order: up to the first gap.
        while (following := waiting.pop(seen.trials, None)) is not None:
            seen.add(following)
            if any(rule(seen, plan) for rule in self._rules):
                self._decided.add(cell)
                del self._waiting[cell], self._seen[cell]
                return
