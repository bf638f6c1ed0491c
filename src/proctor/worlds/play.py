"""Play one episode, an agent and a world, turn by turn, and score it.

Guarantees: the same agent instance plays the whole episode; every step is a tool span (named by the
action, with its arguments and result), so that path checks, quality and diagnosis treat worlds like
tools; an episode always ends. An invalid action is reported to the agent, recorded as a failed call
and requested again, `MAX_INVALID` times; then the episode ends and is scored in its current state.
A failing world is an error of the trial, never of the agent.

The score, in 0..1, is the world's own `score`, or a rule of the suite: a range of the total reward,
of the last reward or of the steps, or a function of the trajectory and the truth. A world without
either is unscored, never zero.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, cast

import msgspec
from pydantic import Field

from proctor.agents.actions import Actions, ActionTurn, BadAction, call_of, understand
from proctor.agents.base import Agent, AgentError, AgentRequest
from proctor.background import threads
from proctor.checks.base import Check, CheckContext, CheckResult, unscored
from proctor.errors import ProctorError, hint_among
from proctor.formatting import plural
from proctor.gateway.prefix import current_prefix
from proctor.imports import load_object
from proctor.sanitize import json_value
from proctor.trace import Span, SpanStatus
from proctor.trace.capture import capture, current_trace, held_tool, span
from proctor.worlds._base import (
    EpisodeOutcome,
    InvalidAction,
    Scores,
    Step,
    Trajectory,
    World,
    WorldError,
)

MAX_INVALID = 3
"""Maximum consecutive invalid actions: enough to learn from the message, not to guess."""

DEFAULT_MAX_STEPS = 1000
"""Step limit if neither the world nor the user sets one: every episode must end."""

MAX_SAID = 2000
"""Characters stored of an invalid answer: enough to recognise it."""

HISTORY = 50
"""Past steps included in each turn. Agents without memory need them; more cost tokens."""

Truth = Mapping[str, Any]


async def episode(
    world_factory: Callable[[], World],
    agent: Agent,
    request: AgentRequest,
    *,
    seed: int,
    max_steps: int | None = None,
    scoring: Scoring = None,
    truth: Truth | None = None,
) -> EpisodeOutcome:
    """Run an agent in a world for one trial and return every step.

    The outcome is in the metadata of the trace under `world`, too; the answer is the agent's last
    action, or the world's `info["answer"]`.
    """
    check_scoring(scoring)
    outcome = EpisodeOutcome(trajectory=Trajectory(seed))
    world = await _call_world(world_factory)
    try:
        with span("episode", attributes={"world.seed": seed}) as record:
            # The suite's limit wins over the world's own.
            limit = max_steps or getattr(world, "max_steps", None) or DEFAULT_MAX_STEPS
            game = _Game(world, agent, request, outcome, limit)
            seen = await game.begin()
            # After the reset, because a world may draw its truth from the seed.
            known_truth: Truth = truth if truth is not None else getattr(world, "truth", None) or {}
            # Only scripted agents take the truth: no other agent may see it.
            set_truth = getattr(agent, "set_truth", None)
            if set_truth is not None:
                set_truth(known_truth)
            await game.play(seen)
            scores = await _call_world(scored, world, outcome.trajectory, scoring, known_truth)
            outcome.score, outcome.reason = scores.score, scores.reason
            outcome.scores = dict(scores.parts)
            record.output = outcome.answer
        # Optional hook: most kinds have nothing to do at the end.
        ended = getattr(agent, "ended", None)
        if ended is not None:
            await ended(outcome)
    finally:
        # Also after a failure: the trace shows how far the episode got.
        trace = current_trace()
        if trace is not None:
            trace.metadata["world"] = outcome.summary()
            # In a world, actions are the tool calls.
            trace.observe("tool_calls", "arguments")
        # The episode is over: a world that fails to close must not change its outcome.
        with suppress(Exception):
            await _call_world(world.close)
    return outcome


class _Observation(NamedTuple):
    """Result of a reset or a step."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    actions: Actions


class _Game:
    """A running episode."""

    def __init__(
        self,
        world: World,
        agent: Agent,
        request: AgentRequest,
        outcome: EpisodeOutcome,
        max_steps: int,
    ) -> None:
        self._world = world
        self._agent = agent
        self._request = request
        self._outcome = outcome
        self._max_steps = max_steps
        self._history: list[dict[str, Any]] = []
        self._last: dict[str, Any] | None = None
        self._looks = bool(getattr(agent, "looks", False))
        self._quick = bool(getattr(world, "quick", False))
        self._deadline = None if request.timeout is None else time.monotonic() + request.timeout

    async def begin(self) -> _Observation:
        """Reset the world."""
        trajectory = self._outcome.trajectory

        def reset() -> _Observation:
            observation, info = self._world.reset(seed=trajectory.seed)
            actions = json_value(self._world.actions())
            return _Observation(
                json_value(observation), 0.0, False, False, json_value(info), actions
            )

        seen = await _call_world(reset, quick=self._quick)
        trajectory.first = seen.observation
        if seen.info:
            self._last = {"info": json_value(seen.info)}
        return seen

    async def play(self, seen: _Observation) -> None:
        """Play from the first observation to the end."""
        outcome, trajectory = self._outcome, self._outcome.trajectory
        while len(trajectory.steps) < self._max_steps:
            step = await self._step(seen)
            if step is None:
                outcome.ended = "no_valid_action"
                return
            action, seen = step
            trajectory.steps.append(Step(action, *seen[:5]))
            answer = str(seen.info["answer"]) if "answer" in seen.info else action
            # Readers, and checks of the answer, expect text.
            is_text = isinstance(answer, str)
            outcome.answer = answer if is_text else msgspec.json.encode(answer).decode()
            self._remember(action, seen)
            if seen.terminated or seen.truncated:
                outcome.ended = "terminated" if seen.terminated else "truncated"
                return
        outcome.ended = "max_steps"

    async def _step(self, seen: _Observation) -> tuple[Any, _Observation] | None:
        """Return the next accepted action and its result; None if there was none."""
        step: Span
        for _ in range(1 + MAX_INVALID):
            answer = await self._next_answer(seen)
            try:
                action = understand(answer, seen.actions)
            except BadAction as problem:
                name = problem.call or "invalid_action"
                with capture.tool_call(name, {"said": _stored_answer(answer)}) as step:
                    self._refuse(step, answer, str(problem))
                continue
            call = call_of(action)
            prefix = current_prefix()
            if prefix is not None and (other := prefix.action(understand, seen.actions)):
                action = other
                call = call_of(action)
            with capture.tool_call(call.name, call.arguments) as step:
                try:
                    after = await _call_world(_perform, self._world, action, quick=self._quick)
                except InvalidAction as problem:
                    self._refuse(step, answer, str(problem))
                    continue
                step.tool_output = _result(after)
                if prefix is not None:
                    prefix.observed(held_tool.get(), step.tool_output)
            return action, after
        return None

    async def _next_answer(self, seen: _Observation) -> Any:
        turn = ActionTurn(
            self._request,
            observation=json_value(seen.observation),
            # A copy, so that the agent cannot change the valid actions.
            actions=json_value(seen.actions),
            step=len(self._outcome.trajectory.steps),
            max_steps=self._max_steps,
            last=self._last,
            history=self._history[-HISTORY:],
        )
        # Rendering can be slow, so only agents that look at pictures pay for it.
        if self._looks:
            turn.picture = await _call_world(self._world.render)
        # The timeout is of the whole episode: each turn gets what is left of it.
        if self._deadline is not None:
            turn.timeout = max(0.0, self._deadline - time.monotonic())
        if (prefix := current_prefix()) is not None and prefix.replaying:
            turn.seed = prefix.seed  # up to the step, chance is that of the recorded trial
        reply = await self._agent.run(turn)
        if reply.trace is not None:
            raise AgentError(
                "a recorded trace cannot act in a world",
                category="",
                hint="use an agent that can act in turns",
            )
        return reply.answer if reply.output is None else reply.output

    def _refuse(self, step: Span, answer: Any, problem: str) -> None:
        """Record an invalid action as a failed call, and report it in the next turn."""
        step.status = SpanStatus.ERROR
        step.error_type = "InvalidAction"
        step.error_message = problem
        self._outcome.trajectory.invalid_actions += 1
        self._last = {"error": problem, "said": _stored_answer(answer)}

    def _remember(self, action: Any, seen: _Observation) -> None:
        facts: dict[str, Any] = {
            "step": len(self._history),
            "action": json_value(action),
            "observation": json_value(seen.observation),
            "reward": seen.reward,
        }
        self._history.append(facts)
        self._last = {"action": facts["action"], "reward": seen.reward}
        if seen.info:
            self._last["info"] = json_value(seen.info)


def _stored_answer(answer: Any) -> Any:
    """Return the answer cut to the stored length."""
    if isinstance(answer, str) and len(answer) > MAX_SAID:
        return answer[:MAX_SAID] + "… [cut]"
    return json_value(answer)


def _result(seen: _Observation) -> dict[str, Any]:
    """Return the result of a step for its span."""
    result: dict[str, Any] = {"observation": seen.observation, "reward": seen.reward}
    if seen.info:
        result["info"] = seen.info
    if seen.terminated or seen.truncated:
        result["ended"] = "terminated" if seen.terminated else "truncated"
    return result


# -- calls to the world --------------------------------------------------------------------------


async def _call_world(function: Callable[..., Any], *args: Any, quick: bool = False) -> Any:
    """Call the world, in a thread unless it is quick; its failures become `WorldError`."""
    try:
        return function(*args) if quick else await threads.run(function, *args)
    # Already in our terms; an invalid action is the agent's, not the world's failure.
    except (ProctorError, InvalidAction):
        raise
    except Exception as error:
        raise WorldError(f"the world failed: {type(error).__name__}: {error}") from error


def _perform(world: World, action: Any) -> _Observation:
    observation, reward, terminated, truncated, info = world.step(action)
    # NaN and infinity would spoil every sum and cannot be stored as JSON.
    if not math.isfinite(reward):
        raise WorldError(f"the world returned the reward {reward}")
    over = terminated or truncated
    # A finished world need not answer any more.
    actions = cast("Actions", [] if over else json_value(world.actions()))
    return _Observation(
        json_value(observation), reward, terminated, truncated, json_value(info), actions
    )


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
