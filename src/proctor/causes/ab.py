"""Test whether a change helps: two arms of one agent on the same cases and seeds.

Promise: the stated error rate holds for the whole experiment, however often it looks at the
results. The number of looks is fixed before the first trial, and each look has its share of the
error rate (small at first, most of it for the last look), so that stopping early cannot make a
difference out of chance; the interval of a look has the level of its share, so it covers at every
look. Rounds interleave the arms in time: what changes from hour to hour meets both. A change that
never reached the agent is not judged: the traces of the second arm must show it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from proctor.agents.registry import agent_config
from proctor.errors import ProctorError, hint_among
from proctor.results.compare import ArmComparison, MetricDifference, compare_runs
from proctor.runs.folder import RunFolder
from proctor.runs.run import Run
from proctor.sanitize import json_value
from proctor.stats.types import Estimand
from proctor.trace import Trace
from proctor.trials.prepare import ChosenAgent, RunContext
from proctor.trials.resume import RunTrials, extend

DEFAULT_LOOKS, DEFAULT_TRIALS = 4, 20

MAX_TRACES = 50
"""Trials of an arm whose traces are searched for the change: enough to see that it arrives."""

SHORTEST, SNIPPET = 8, 60
"""Characters a text must have to be recognised in a trace, and those that are looked for."""

Verdict = Literal["HELPS", "HURTS", "NO DIFFERENCE SHOWN", "NOT RECEIVED", "INCOMPLETE"]


class ABLook(msgspec.Struct, frozen=True):
    """One look at the results."""

    trials: int
    """Trials per case and arm so far."""
    difference: float | None
    p: float | None
    alpha: float
    """The share of the error rate that this look may spend."""


class ReceivedChange(msgspec.Struct, frozen=True):
    """Whether the traces show a change: in how many trials of each arm."""

    key: str
    seen_a: int
    seen_b: int
    trials: int
    observable: bool

    def __str__(self) -> str:
        if not self.observable:
            return f"{self.key}: the traces cannot show it"
        return (
            f"{self.key}: seen in {self.seen_b} of {self.trials} trials of b, in {self.seen_a} of a"
        )


class ABResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an A/B experiment; `comparison` has every figure."""

    verdict: Verdict
    reason: str
    a: str
    b: str
    alpha: float
    looks: tuple[ABLook, ...]
    planned_looks: int
    comparison: ArmComparison
    received: tuple[ReceivedChange, ...]
    run: str

    @property
    def pass_rate(self) -> MetricDifference:
        """The difference of pass rates, b minus a."""
        return self.comparison.overall


def look_shares(alpha: float, looks: int) -> tuple[float, ...]:
    """Return the error rate of each look; they sum to `alpha`.

    The shares grow with the square of the look: an early look stops only for a large difference,
    and the last has nearly the power of an experiment with a single look. Their sum bounds the
    error rate whatever the dependence between looks, because the tests at each look are valid.
    """
    weights = [number**2 for number in range(1, looks + 1)]
    return tuple(alpha * weight / sum(weights) for weight in weights)


def changed_agent(
    chosen: ChosenAgent, changes: Mapping[str, Any], base_dir: Any = None
) -> ChosenAgent:
    """Return an agent with some options changed; keys are dotted: `tools.0.description`."""
    options: dict[str, Any] = chosen.config.model_dump(mode="json", exclude_unset=True)
    options["kind"] = chosen.config.kind
    for key, value in changes.items():
        *steps, last = key.split(".")
        place: Any = options
        for step in steps:
            place = _inside(place, step, key)
        if isinstance(place, list):
            if not last.isdigit() or int(last) >= len(cast("list[Any]", place)):
                raise ProctorError(f"{key}: there is no item {last!r}")
            place[int(last)] = value
        else:
            place[last] = value
    config = agent_config(options, base_dir=base_dir)
    return ChosenAgent.of(config)


def _inside(place: Any, step: str, key: str) -> Any:
    if isinstance(place, list) and step.isdigit() and int(step) < len(cast("list[Any]", place)):
        return cast("list[Any]", place)[int(step)]
    if isinstance(place, dict):
        return cast("dict[str, Any]", place).setdefault(step, {})
    known = list(cast("dict[str, Any]", place)) if isinstance(place, dict) else []
    raise ProctorError(f"{key}: there is no {step!r}", hint=hint_among(step, known))


def run_ab(
    context: RunContext,
    folder: RunFolder,
    run_trials: RunTrials,
    *,
    changes: Mapping[str, Any],
    trials: int,
    looks: int,
    alpha: float,
    estimand: Estimand = "suite",
) -> ABResult:
    """Run the rounds of an experiment whose context has two agents, a and b, and the first round.

    Stops at the first look whose p-value is below its share of `alpha`.
    """
    a, b = context.agents
    shares = look_shares(alpha, looks)
    per_look = math.ceil(trials / looks)
    done: list[ABLook] = []
    run = run_trials(context, folder)
    while True:
        share = shares[len(done)]
        pair = compare_runs(run, agents=(a, b), estimand=estimand, level=1 - share).pairs[0]
        figure = pair.overall
        done.append(
            ABLook(per_look * (len(done) + 1), figure.difference, figure.test.p_value, share)
        )
        decided = figure.test.p_value is not None and figure.test.p_value <= share
        if decided or len(done) == looks or run.stopped:
            break
        run = run_trials(*extend(folder.path, per_look, looks=looks))
    received = tuple(_received(run, a, b, changes))
    verdict, reason = _verdict(done, decided, run, received)
    return ABResult(
        verdict=verdict,
        reason=reason,
        a=a,
        b=b,
        alpha=alpha,
        looks=tuple(done),
        planned_looks=looks,
        comparison=pair,
        received=received,
        run=str(run.path),
    )


def _verdict(
    looks: Sequence[ABLook], decided: bool, run: Run, received: Sequence[ReceivedChange]
) -> tuple[Verdict, str]:
    last = looks[-1]
    lost = [str(each) for each in received if each.observable and not each.seen_b]
    if lost:
        return "NOT RECEIVED", f"the change never reached arm b: {lost[0]}"
    if run.stopped:
        return "INCOMPLETE", f"the run was stopped: {run.stopped}"
    if decided and last.difference:
        verdict: Verdict = "HELPS" if last.difference > 0 else "HURTS"
        return verdict, f"p {last.p:.4g} at most {last.alpha:.4g}, the share of look {len(looks)}"
    if last.p is None:
        return "NO DIFFERENCE SHOWN", "no case passed in one trial and failed in another"
    return "NO DIFFERENCE SHOWN", f"p {last.p:.4g} above {last.alpha:.4g} at the last look"


# -- did the change arrive? -----------------------------------------------------------------------


def _received(run: Run, a: str, b: str, changes: Mapping[str, Any]) -> Sequence[ReceivedChange]:
    """Look for each change in the traces of both arms."""
    arms: dict[str, list[Trace]] = {a: [], b: []}
    for trial in run.trials:
        traces = arms.get(trial.agent)
        if traces is not None and len(traces) < MAX_TRACES:
            trace = run.readable_trace(trial, [])
            if trace is not None:
                traces.append(trace)
    found: list[ReceivedChange] = []
    for key, value in changes.items():
        seen = {
            arm: [shows_change(trace, key, value) for trace in each] for arm, each in arms.items()
        }
        observable = any(each is not None for each in (*seen[a], *seen[b]))
        found.append(
            ReceivedChange(
                key,
                sum(bool(each) for each in seen[a]),
                sum(bool(each) for each in seen[b]),
                len(arms[b]),
                observable,
            )
        )
    return found


def shows_change(trace: Trace, key: str, value: Any) -> bool | None:
    """Return whether a trace shows an option of the agent; None if it cannot.

    A model is named by its calls. A prompt, a tool description or a skill is text that the model
    received, or that a tool returned from a file; a text of which nothing was recorded cannot be
    seen. Other options (a temperature, a limit) leave no mark.
    """
    last = key.rpartition(".")[2]
    calls = trace.llm_calls
    if last == "model" and isinstance(value, str):
        models = [call.model for call in calls if call.model]
        bare = value.rpartition("/")[2].rpartition(":")[2]
        return any(bare in model or model in bare for model in models) if models else None
    if not isinstance(value, str) or len(value) < SHORTEST:
        return None
    texts = [message.content or "" for call in calls for message in call.input_messages or ()]
    texts += [str(json_value(call.attributes)) for call in calls]
    texts += [str(each.result) for each in trace.tool_calls if each.result is not None]
    if not any(texts):
        return None
    wanted = _plain(value)[:SNIPPET]
    return any(wanted in _plain(text) for text in texts)


def _plain(text: str) -> str:
    return " ".join(text.split())
