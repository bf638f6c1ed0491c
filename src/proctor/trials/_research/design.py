"""Resolve the `research` section of an experiment to an outline: levels, variants, axes.

Promise: a level without cases, a parameter that no scenario has and a part that does not exist are
errors before anything is written, with their place in the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from proctor.agents.base import AgentConfig
from proctor.agents.registry import agent_config
from proctor.errors import ProctorError, did_you_mean
from proctor.spec import Case, select_cases
from proctor.spec.experiment import Axis, Experiment, NumberRange, SampleSpec
from proctor.spec.research import Ablation, Research
from proctor.trials._research.rounds import Outline, Stage, Variant
from proctor.trials._scenario_cases import Scenario, check_parameter, told_at
from proctor.trials.plan import Axes
from proctor.trials.select_agents import ChosenAgent


class ResolvedResearch(NamedTuple):
    """The outline, and the agents with those that an ablation adds."""

    outline: Outline
    agents: dict[str, ChosenAgent]


class Around(NamedTuple):
    """What the experiment is about besides research."""

    cases: Sequence[Case]
    scenarios: Mapping[str, Scenario]
    axes: Axes


def resolve_research(
    experiment: Experiment, around: Around, agents: dict[str, ChosenAgent]
) -> ResolvedResearch:
    """Find everything that research names."""
    research = experiment.research
    assert research is not None
    where = experiment.place_of("research", research.kind) or experiment.name
    with told_at(str(where)):
        if research.ablation is not None:
            return _ablation(research, research.ablation, around, agents)
        if research.sweep is not None:
            return ResolvedResearch(Outline(research, space=_space(experiment, around)), agents)
        return ResolvedResearch(Outline(research, stages=_stages(research, around)), agents)


# -- levels --------------------------------------------------------------------------------------


def _stages(research: Research, around: Around) -> tuple[Stage, ...]:
    scale = None if research.adaptive is None else research.adaptive.parameter
    stages: list[Stage] = []
    for number, level in enumerate(research.levels, 1):
        cases = _cases_of(level.name, level.filter, around.cases)
        scenarios = [around.scenarios[id_] for id_ in cases if id_ in around.scenarios]
        params = {
            name: check_parameter(name, [value], scenarios)[0]
            for name, value in level.params.items()
        }
        value = float(number if scale is None else params[scale.name])
        stages.append(Stage(level.name, cases, {**around.axes.params[0], **params}, value))
    for one, other in itertools.pairwise(stages):
        if (one.cases, one.params) == (other.cases, other.params):
            raise ProctorError(f"the levels {one.name!r} and {other.name!r} are the same")
    return tuple(stages)


def _cases_of(name: str, text: str, cases: Sequence[Case]) -> tuple[str, ...]:
    try:
        found = select_cases(list(cases), filter=text) if text else list(cases)
    except ProctorError as error:
        if not error.message.startswith("none of"):
            raise
        there = sorted({case.difficulty for case in cases if case.difficulty})
        raise ProctorError(
            f"no case of the experiment is of the level {name!r}",
            hint=did_you_mean(name, there)
            or (f"their difficulties are {', '.join(there)}" if there else None),
        ) from None
    return tuple(sorted(case.id for case in found))


# -- sweeps --------------------------------------------------------------------------------------


def swept(experiment: Experiment, axes: dict[str, Axis]) -> tuple[Experiment, dict[str, Axis]]:
    """The experiment with the draw its sweep asks for; no axes where an optimiser chooses."""
    sweep = None if experiment.research is None else experiment.research.sweep
    if sweep is None or sweep.sampler == "grid":
        return experiment, axes
    if sweep.sampler == "tpe":
        return experiment, {}
    assert sweep.n is not None
    sample = SampleSpec(n=sweep.n, seed=sweep.seed)
    return experiment.model_copy(update={"sample": sample}), axes


def _space(experiment: Experiment, around: Around) -> dict[str, Any] | None:
    """The axes for an optimiser, values as scenarios take them; None where all is drawn before."""
    assert experiment.research is not None
    assert experiment.research.sweep is not None
    if experiment.research.sweep.sampler != "tpe":
        return None
    scenarios = list(around.scenarios.values())
    space: dict[str, Any] = {}
    for name, axis in sorted(experiment.params.items()):
        if isinstance(axis, NumberRange):
            ends = [int(v) if axis.integer else v for v in (axis.low, axis.high)]
            check_parameter(name, ends, scenarios)
            space[name] = axis.model_dump(mode="json")
        else:
            space[name] = check_parameter(name, axis, scenarios)
    return space


# -- ablation ------------------------------------------------------------------------------------


def _ablation(
    research: Research, ablation: Ablation, around: Around, agents: dict[str, ChosenAgent]
) -> ResolvedResearch:
    whole = ablation.agent or (next(iter(agents)) if len(agents) == 1 else None)
    if whole is None or whole not in agents:
        message = (
            "say which agent is the whole" if whole is None else f"there is no agent {whole!r}"
        )
        raise ProctorError(message, hint=f"agent: {' or '.join(sorted(agents))}")
    fixed = around.axes.params[0]
    scenarios = list(around.scenarios.values())
    made = {whole: agents[whole]}
    variants: list[Variant] = []
    for part in ablation.drop:
        name = f"{whole} - {part}"
        made[name] = without(agents[whole], part)
        variants.append(Variant(part, name, dict(fixed)))
    for param, value in ablation.neutral.items():
        (checked,) = check_parameter(param, [value], scenarios)
        if param in fixed and fixed[param] == checked:
            raise ProctorError(f"{param!r} is {checked!r} in the whole already")
        variants.append(Variant(f"{param} (={checked})", whole, {**fixed, param: checked}))
    return ResolvedResearch(Outline(research, whole=whole, variants=tuple(variants)), made)


def without(agent: ChosenAgent, part: str) -> ChosenAgent:
    """An agent that lacks one of its options, or one item of a list or mapping among them."""
    options = _options(agent.config)
    _take_out(options, part.split("."), part)
    written = agent.written
    if isinstance(written, Mapping):
        written = _copied(cast("Mapping[str, Any]", written))
        _take_out(written, part.split("."), part)
    return ChosenAgent(agent_config(options, base_dir=options.get("base_dir")), written)


def _options(config: AgentConfig) -> dict[str, Any]:
    """What was said of it; what it has by default cannot be left out."""
    options = config.model_dump(exclude_none=True, exclude_unset=True)
    base = getattr(config, "base_dir", None)
    given = {"kind": config.kind, **options, **({} if base is None else {"base_dir": base})}
    return _copied(given)


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in cast("Sequence[Any]", value)]
    return value


def _take_out(holder: Any, steps: Sequence[str], part: str) -> None:
    step, *rest = steps
    key = _find(holder, step)
    if key is None or step in ("kind", "base_dir"):
        there = _names(holder)
        raise ProctorError(
            f"the agent has no option {part!r} to drop",
            hint=did_you_mean(step, there) or (f"there are {', '.join(there)}" if there else None),
        )
    if rest:
        _take_out(holder[key], rest, part)
    else:
        del holder[key]


def _find(holder: Any, step: str) -> Any:
    """The key or the place of what a step names: an item of a list goes by its text or name."""
    if isinstance(holder, Mapping):
        return step if step in holder else None
    if not isinstance(holder, list):
        return None
    items = cast("list[Any]", holder)
    return next((at for at, item in enumerate(items) if step in _called(item)), None)


def _called(item: Any) -> tuple[str, ...]:
    """What an item of a list goes by: its words, what follows the colon, its `name`."""
    if isinstance(item, Mapping):
        named = cast("Mapping[str, Any]", item)
        keys = ("name", "python", "target")
        return tuple(word for key in keys for word in _called(named.get(key)))
    return () if item is None else (str(item), str(item).rpartition(":")[2])


def _names(holder: Any) -> list[str]:
    if isinstance(holder, Mapping):
        keys = cast("Mapping[str, Any]", holder)
        return [key for key in keys if key not in ("kind", "base_dir")]
    if isinstance(holder, list):
        return [name[-1] for item in cast("list[Any]", holder) if (name := _called(item))]
    return []
