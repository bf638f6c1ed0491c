"""Score an episode in 0..1, and check the score.

The rule is the world's own `score`, or one given in the suite: a range of the total reward, of the
last reward or of the steps, or a function of the trajectory and the truth. A world without either
is unscored, never zero.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from pydantic import Field

from proctor.checks.base import Check, CheckContext, CheckResult, unscored
from proctor.errors import hint_among
from proctor.formatting import plural
from proctor.imports import load_object
from proctor.worlds._base import Scores, Trajectory, World, WorldError

Scoring = Mapping[str, Any] | str | Callable[..., Any] | None
"""`{total_reward: [low, high]}`, an import path, a function `(trajectory, truth)`, or None."""

_MEASURES: dict[str, Callable[[Trajectory], float | None]] = {
    "total_reward": lambda trajectory: trajectory.total_reward,
    "last_reward": lambda trajectory: trajectory.steps[-1].reward if trajectory.steps else None,
    "steps": lambda trajectory: float(len(trajectory.steps)),
}
"""Values a range may refer to."""


def check_scoring(scoring: Scoring) -> None:
    """Raise for an invalid rule, before an episode is played."""
    if isinstance(scoring, Mapping):
        _range_of(cast("Mapping[str, Any]", scoring))
    elif isinstance(scoring, str):
        load_object(scoring)


def scored(
    world: World, trajectory: Trajectory, scoring: Scoring, truth: Mapping[str, Any]
) -> Scores:
    """Return the scores of an episode. A rule that raises is an error of the world."""
    if isinstance(scoring, Mapping):
        name, low, high = _range_of(cast("Mapping[str, Any]", scoring))
        value, words = _MEASURES[name](trajectory), name.replace("_", " ")
        if value is None:
            return Scores(None, reason=f"no {words}: the episode has no steps")
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return Scores(share, reason=f"{words} {value:g} on a scale from {low:g} to {high:g}")
    rule = load_object(scoring) if isinstance(scoring, str) else scoring
    try:
        if rule is None:
            result = world.score(truth)
        # Rules that do not need the truth may leave it out.
        elif len(inspect.signature(rule).parameters) == 1:
            result = rule(trajectory)
        else:
            result = rule(trajectory, truth)
    except Exception as error:
        raise WorldError(f"scoring failed: {type(error).__name__}: {error}") from error
    return as_scores(result)


def _range_of(scoring: Mapping[str, Any]) -> tuple[str, float, float]:
    if len(scoring) != 1:
        raise WorldError("scoring takes one rule", hint=f"one of {', '.join(_MEASURES)}")
    ((name, bounds),) = scoring.items()
    if name not in _MEASURES:
        raise WorldError(f"unknown scoring rule {name!r}", hint=hint_among(name, _MEASURES))
    # A list of another length or of other types is reported like two equal bounds.
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high)) or low == high:
        raise WorldError(
            f"{name} needs two different numbers, not {bounds!r}",
            hint=f"{{{name}: [0, 100]}}: what scores 0, what scores 1",
        )
    return name, low, high


def as_scores(result: Any) -> Scores:
    """Parse the result of a rule: a number, or parts (`score` is the total, else their mean)."""
    if isinstance(result, Scores):
        return _bounded(result)
    if result is None:
        return Scores(None, reason="the world has no score of its own; give it a scoring rule")
    if isinstance(result, Mapping):
        entries = dict(cast("Mapping[str, Any]", result))
        reason = str(entries.pop("reason", ""))
        total = entries.pop("score", None)
        parts = {name: float(value) for name, value in entries.items()}
        if total is None and parts:
            total = sum(parts.values()) / len(parts)
        return _bounded(Scores(None if total is None else float(total), parts, reason))
    return _bounded(Scores(float(result)))


def _bounded(scores: Scores) -> Scores:
    """Reject a total outside 0..1 instead of guessing a scale."""
    total = scores.score
    if total is None or 0.0 <= total <= 1.0:
        return scores
    return Scores(None, scores.parts, f"the score {total} lies outside 0..1")


# -- the check -----------------------------------------------------------------------------------


class WorldScore(Check):
    """Check that the score of the episode reaches a threshold.

    Example: `WorldScore(0.9)`.
    """

    name: ClassVar[str] = "world"
    threshold: float = Field(default=1.0, kw_only=False)

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Read the score that `play` left in the trace."""
        world = ctx.trace.metadata.get("world")
        if not isinstance(world, Mapping):
            return unscored("no episode was played in this trial")
        facts = cast("Mapping[str, Any]", world)
        score, reason = facts.get("score"), str(facts.get("reason") or "")
        if score is None:
            return unscored(reason or "the world returned no score")
        parts = cast("Mapping[str, float]", facts.get("scores") or {})
        listed = ", ".join(f"{name} {value:.3g}" for name, value in parts.items())
        steps = int(facts.get("steps") or 0)
        summary = f"{score:.3g} after {plural(steps, 'step')} ({facts.get('ended')})"
        return CheckResult(
            score=float(score),
            passed=score >= self.threshold,
            reason="; ".join(part for part in (summary, reason, listed) if part),
            expected=self.threshold,
            actual=score,
        )


def world_check(
    *, threshold: float = 1.0, weight: float = 1.0, blocking: bool = False
) -> WorldScore:
    """Return the check `world`, which by default does not block."""
    return WorldScore(threshold, weight=weight, required=blocking)
