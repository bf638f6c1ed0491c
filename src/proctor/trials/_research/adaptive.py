"""Adaptive difficulty: each next trial is as hard as the results so far suggest.

One trial of each agent at a time. A staircase or the posterior of the agent's threshold selects the
difficulty. Either way the result is the posterior of all its trials, on the scale of the parameter
(or of levels, 1 for the easiest).

Staircase: harder after `down` passes in a row, easier after one failure. It settles where a run of
`down` passes is as likely as not: at a pass rate of 0.5 to the power of 1/down (0.71 for two). The
estimate is the mean of the difficulties at which it turned, without the first turns, which depend
on where it began. Its standard error treats turns as independent, which neighbouring turns are not
quite; the posterior of the same trials does not need that.

Posterior: at difficulty x (larger is harder) a trial passes with probability

    guess + (1 - guess - lapse) · logistic(offset - (x - threshold) / spread)

where the offset makes that probability the target rate at the threshold. The priors are flat: the
threshold is uniform over the scale and half of it beyond either end, the spread uniform in the
logarithm from a twentieth of the scale to the whole. Selecting trials by earlier results does not
change the posterior (the selection does not enter the likelihood), so it is valid at any stop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

# This module is imported only for adaptive research, so numpy costs nothing otherwise.
import numpy as np

from proctor.formatting import level_of, percent
from proctor.runs.trial import Trial
from proctor.spec.experiment import Adaptive
from proctor.trials._research import (
    Course,
    CourseResult,
    Round,
    Setup,
    Stage,
    planned,
    side_by_side,
)

Grid = np.ndarray[Any, np.dtype[np.float64]]


LEFT_OUT = 2
"""Turns at the beginning that are not averaged: one up and one down, on the way from the start."""


class Settled(NamedTuple):
    """The mean of the turns; None where there were too few, an error needs two of them."""

    estimate: float | None
    standard_error: float | None
    turns: int
    averaged: int


class Staircase:
    """The position of one agent on the scale."""

    def __init__(self, scale: Sequence[float], down: int) -> None:
        self._scale = scale
        self._down = down
        self._row = 0
        self._way = 0
        self.at = 0
        self.turned: list[float] = []
        self.stuck = 0
        """Moves in a row that the end of the scale did not allow."""

    def add(self, passed: bool) -> str:
        """Add a judged trial and return the decision."""
        if passed:
            self._row += 1
            if self._row < self._down:
                return f"passed {self._row} of {self._down} in a row"
            return self._move(1, f"passed {self._down} in a row")
        return self._move(-1, "failed")

    def _move(self, way: int, why: str) -> str:
        self._row = 0
        word = "harder" if way > 0 else "easier"
        if self._way and way != self._way:
            self.turned.append(self._scale[self.at])
            why += f", turn {len(self.turned)}"
        self._way = way
        following = self.at + way
        if not 0 <= following < len(self._scale):
            self.stuck += 1
            return f"{why}: it gets no {word}"
        self.stuck = 0
        self.at = following
        return f"{why}: {word}"

    def settled(self) -> Settled:
        """Return the estimate from the turns."""
        kept = self.turned[LEFT_OUT:]
        # As many ups as downs; otherwise the mean would be biased to one side.
        kept = kept[len(kept) % 2 :]
        if not kept:
            return Settled(None, None, len(self.turned), 0)
        error = stdev(kept) / math.sqrt(len(kept)) if len(kept) > 1 else None
        return Settled(fmean(kept), error, len(self.turned), len(kept))


PLACES = 241
"""Thresholds in the grid: steps of less than a hundredth of the scale."""

SPREADS = 15
"""Spreads in the grid, each a quarter wider than the one before."""

BEYOND = 0.5
"""How far the grid extends beyond either end of the scale, in lengths of the scale."""

EVEN = 1e-9
"""Expected entropies closer than this are a tie: the last bits of a float decide nothing."""


class ObservedDifficulty(NamedTuple):
    """One judged trial: how hard it was, and whether it passed."""

    difficulty: float
    passed: bool


class ThresholdEstimate(NamedTuple):
    """Posterior median of the threshold and a central credible interval, on the difficulty scale.

    `below` and `above` are the probabilities that it lies beyond the easy and the hard end.
    """

    median: float
    low: float
    high: float
    below: float
    above: float


class Posterior:
    """The posterior of one agent's threshold after the trials so far."""

    def __init__(self, scale: Sequence[float], rules: Adaptive) -> None:
        self._scale = np.asarray(scale, dtype=float)
        self._ends = (min(scale), max(scale))
        self._rules = rules
        length = self._ends[1] - self._ends[0]
        edge = BEYOND * length
        self._places = np.linspace(self._ends[0] - edge, self._ends[1] + edge, PLACES)
        self._spreads = np.geomspace(length / 20, length, SPREADS)
        self._log = np.zeros((PLACES, SPREADS))
        self._passes = self._chances()

    def add(self, seen: ObservedDifficulty) -> None:
        """Add a judged trial."""
        at = int(np.argmin(np.abs(self._scale - seen.difficulty)))
        chance = self._passes[at] if seen.passed else 1 - self._passes[at]
        self._log += np.log(np.clip(chance, 1e-300, None))

    def estimate(self, confidence: float) -> ThresholdEstimate:
        """Return the estimate of the threshold."""
        weights = self._weights().sum(axis=1)
        total = np.cumsum(weights) - weights / 2
        tail = (1 - confidence) / 2
        low, median, high = (
            float(np.interp(q, total, self._places)) for q in (tail, 0.5, 1 - tail)
        )
        below = float(weights[self._places < self._ends[0]].sum())
        above = float(weights[self._places > self._ends[1]].sum())
        return ThresholdEstimate(median, low, high, below, above)

    def most_informative(self) -> int:
        """Return the level whose next trial is expected to reduce the entropy most.

        It is the entropy of the threshold, averaged over its spread. A tie goes to the easier
        level.
        """
        weights = self._weights()
        expected: list[float] = []
        for chances in self._passes:
            passed = weights * chances
            failed = weights - passed
            expected.append(_entropy(passed.sum(axis=1)) + _entropy(failed.sum(axis=1)))
        best = min(expected)
        return int(np.flatnonzero(np.asarray(expected) <= best + EVEN)[0])

    def _weights(self) -> Grid:
        weights = np.exp(self._log - self._log.max())
        return weights / weights.sum()

    def _chances(self) -> Grid:
        """Return the probability to pass at every level (first axis), threshold and spread."""
        rules = self._rules
        room = 1 - rules.guess - rules.lapse
        share = (rules.sought - rules.guess) / room
        offset = math.log(share / (1 - share))
        gap = self._scale[:, None, None] - self._places[None, :, None]
        inside = np.clip(offset - gap / self._spreads[None, None, :], -700, 700)
        return rules.guess + room / (1 + np.exp(-inside))


def _entropy(weights: Grid) -> float:
    """Return the entropy of an unnormalised distribution, times its weight."""
    total = float(weights.sum())
    if total <= 0:
        return 0.0
    shares = weights / total
    return -total * float((shares * np.log(np.clip(shares, 1e-300, None))).sum())


STUCK = 3
"""Moves against an end of the scale after which a staircase stops: the threshold is beyond it."""


def adaptive(setup: Setup) -> Course:
    """Run all agents, each at its own difficulty."""
    rules = setup.outline.research.adaptive
    assert rules is not None
    by_agent, lines = yield from side_by_side(
        {agent: _of_agent(agent, rules, setup) for agent in setup.agents}
    )
    facts: dict[str, Any] = {
        "method": rules.method,
        "estimates": f"the difficulty at which the pass rate is {rules.sought:.3g}",
        "target": rules.sought,
        "scale": [{"level": s.name, "value": s.value} for s in setup.outline.stages],
        "agents": by_agent,
    }
    return CourseResult(facts, lines)


def _of_agent(agent: str, rules: Adaptive, setup: Setup) -> Course:
    stages = setup.outline.stages
    # Difficulty grows from one stage to the next, also where the parameter falls.
    sign = 1.0 if stages[-1].value > stages[0].value else -1.0
    scale = [sign * stage.value for stage in stages]
    stairs, posterior = Staircase(scale, rules.down), Posterior(scale, rules)
    at = 0 if rules.method == "staircase" else posterior.most_informative()
    decided = f"{agent}: begins with {stages[at].name}"
    seen: list[tuple[Stage, Trial]] = []
    ended = f"{rules.max_trials} trials are all there are"
    while len(seen) < rules.max_trials:
        stage, number = stages[at], len(seen)
        case = stage.cases[number % len(stage.cases)]
        # Every trial has its own seed, because trials of one scenario would be correlated.
        following = planned(case, agent, stage.params, setup.seed(number))
        (trial,) = yield Round([following], (decided,))
        seen.append((stage, trial))
        if not trial.status.judged:
            decided = f"{agent}: {stage.name} could not be judged, again"
            continue
        posterior.add(ObservedDifficulty(scale[at], trial.passed))
        why = "passed" if trial.passed else "failed"
        if rules.method == "staircase":
            why = stairs.add(trial.passed)
        if (reason := _end_reason(rules, stairs, posterior)) is not None:
            ended = reason
            break
        at = stairs.at if rules.method == "staircase" else posterior.most_informative()
        decided = f"{agent}: {stage.name} {why} → {stages[at].name}"
    return _found(agent, rules, seen, (stairs, posterior, sign), ended)


def _end_reason(rules: Adaptive, stairs: Staircase, posterior: Posterior) -> str | None:
    """Return why there is no further trial, or None."""
    if rules.method == "staircase":
        if len(stairs.turned) >= rules.reversals:
            return f"it turned {len(stairs.turned)} times"
        if stairs.stuck >= STUCK:
            return f"it was at the end of the scale for {stairs.stuck} moves"
        return None
    if rules.precision is None:
        return None
    known = posterior.estimate(rules.confidence)
    if known.high - known.low <= rules.precision:
        return f"the credible interval is no wider than {rules.precision:g}"
    return None


def _found(
    agent: str,
    rules: Adaptive,
    seen: Sequence[tuple[Stage, Trial]],
    ways: tuple[Staircase, Posterior, float],
    ended: str,
) -> CourseResult:
    stairs, posterior, sign = ways
    known = posterior.estimate(rules.confidence)
    low, high = sorted((sign * known.low, sign * known.high))
    facts: dict[str, Any] = {
        "trials": len(seen),
        "judged": sum(trial.status.judged for _, trial in seen),
        "passed": sum(trial.passed for _, trial in seen),
        "ended": ended,
        "posterior": {
            "median": sign * known.median,
            "low": low,
            "high": high,
            "confidence": rules.confidence,
            "easier_than_the_scale": known.below,
            "harder_than_the_scale": known.above,
        },
        "path": [
            {
                "level": stage.name,
                "value": stage.value,
                "passed": trial.passed if trial.status.judged else None,
            }
            for stage, trial in seen
        ],
    }
    result = (
        f"posterior median {sign * known.median:.3g}, {level_of(rules.confidence)} between "
        f"{low:.3g} and {high:.3g}"
    )
    if max(known.below, known.above) > 0.5:
        end = "easier" if known.below > known.above else "harder"
        result += f" (more likely than not {end} than the scale)"
    if rules.method == "staircase":
        settled = stairs.settled()
        mean = None if settled.estimate is None else sign * settled.estimate
        facts["staircase"] = {**settled._asdict(), "estimate": mean}
        error = settled.standard_error
        result = (
            ("no estimate from the turns" if mean is None else f"turns around {mean:.3g}")
            + ("" if error is None else f" (standard error {error:.2g})")
            + f"; {result}"
        )
    what = "level" if rules.parameter is None else rules.parameter.name
    line = f"{agent}: {what} that is passed {percent(rules.sought)} of the time: {result}; "
    return CourseResult(facts, (f"{line}{facts['judged']} judged trials, {ended}",))
