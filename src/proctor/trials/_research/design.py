"""Resolve the `research` section of an experiment to an outline: levels, variants, axes.

Promise: a level without cases, a parameter that no scenario has and a part that does not exist are
errors before anything is written, with their place in the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, cast

from proctor.agents.registry import agent_config
from proctor.errors import ProctorError, did_you_mean
from proctor.sanitize import map_texts
from proctor.spec import Case, select_cases
from proctor.spec.experiment import Ablation, Axis, Experiment, NumberRange, Research, SampleSpec
from proctor.spec.select import NothingSelectedError
from proctor.trials._research import Outline, Stage, Variant
from proctor.trials._scenario_cases import Scenario, check_parameter, error_at
from proctor.trials.plan import Axes
from proctor.trials.prepare import ChosenAgent


def resolve_research(
    experiment: Experiment,
    cases: Sequence[Case],
    scenarios: Mapping[str, Scenario],
    axes: Axes,
    agents: dict[str, ChosenAgent],
) -> tuple[Outline, dict[str, ChosenAgent]]:
    """Return the outline, and the agents with those that an ablation adds."""
    research = experiment.research
    assert research is not None
    with error_at(experiment.place_of("research", research.kind) or experiment.name):
        if research.ablation is not None:
            return _ablation(research, research.ablation, list(scenarios.values()), axes, agents)
        if research.sweep is not None:
            return Outline(research, space=_space(experiment, list(scenarios.values()))), agents
        return Outline(research, stages=_stages(research, cases, scenarios, axes)), agents


# -- levels --------------------------------------------------------------------------------------


def _stages(
    research: Research, cases: Sequence[Case], scenarios: Mapping[str, Scenario], axes: Axes
) -> tuple[Stage, ...]:
    scale = None if research.adaptive is None else research.adaptive.parameter
    stages: list[Stage] = []
    for number, level in enumerate(research.levels, 1):
        try:
            found = select_cases(cases, filter=level.filter) if level.filter else cases
        except NothingSelectedError:
            known = sorted({case.difficulty for case in cases if case.difficulty})
            raise ProctorError(
                f"no case of the experiment is of the level {level.name!r}",
                hint=did_you_mean(level.name, known)
                or (f"their difficulties are {', '.join(known)}" if known else None),
            ) from None
        ids = tuple(sorted(case.id for case in found))
        own = [scenarios[case] for case in ids if case in scenarios]
        params = {
            name: check_parameter(name, [value], own)[0] for name, value in level.params.items()
        }
        value = float(number if scale is None else params[scale.name])
        stages.append(Stage(level.name, ids, {**axes.params[0], **params}, value))
    for one, other in itertools.pairwise(stages):
        if (one.cases, one.params) == (other.cases, other.params):
            raise ProctorError(f"the levels {one.name!r} and {other.name!r} are the same")
    return tuple(stages)


# -- sweeps --------------------------------------------------------------------------------------


def with_sweep_sample(
    experiment: Experiment, axes: dict[str, Axis]
) -> tuple[Experiment, dict[str, Axis]]:
    """Return the experiment with the sample of its sweep; no axes if an optimiser selects them."""
    sweep = None if experiment.research is None else experiment.research.sweep
    if sweep is None or sweep.sampler == "grid":
        return experiment, axes
    if sweep.sampler == "tpe":
        return experiment, {}
    assert sweep.n is not None
    sample = SampleSpec(n=sweep.n, seed=sweep.seed)
    return experiment.model_copy(update={"sample": sample}), axes


def _space(experiment: Experiment, scenarios: Sequence[Scenario]) -> dict[str, Any] | None:
    """Return the axes for an optimiser, values as scenarios parse them; None without one."""
    assert experiment.research is not None
    assert experiment.research.sweep is not None
    if experiment.research.sweep.sampler != "tpe":
        return None
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
    research: Research,
    ablation: Ablation,
    scenarios: Sequence[Scenario],
    axes: Axes,
    agents: dict[str, ChosenAgent],
) -> tuple[Outline, dict[str, ChosenAgent]]:
    whole = ablation.agent or (next(iter(agents)) if len(agents) == 1 else None)
    if whole is None or whole not in agents:
        message = (
            "say which agent is the whole" if whole is None else f"there is no agent {whole!r}"
        )
        raise ProctorError(message, hint=f"agent: {' or '.join(sorted(agents))}")
    fixed = axes.params[0]
    found = {whole: agents[whole]}
    variants: list[Variant] = []
    for part in ablation.drop:
        name = f"{whole} - {part}"
        found[name] = without(agents[whole], part)
        variants.append(Variant(part, name, dict(fixed)))
    for param, value in ablation.neutral.items():
        (checked,) = check_parameter(param, [value], scenarios)
        if param in fixed and fixed[param] == checked:
            raise ProctorError(f"{param!r} is {checked!r} in the whole already")
        variants.append(Variant(f"{param} (={checked})", whole, {**fixed, param: checked}))
    return Outline(research, whole=whole, variants=tuple(variants)), found


def without(agent: ChosenAgent, part: str) -> ChosenAgent:
    """Return the agent without one of its options, or one item of a list or mapping among them."""
    config = agent.config
    # Defaults are left out of the dump: an option that was never set cannot be dropped.
    options = {"kind": config.kind, **config.model_dump(exclude_none=True, exclude_unset=True)}
    if (base := getattr(config, "base_dir", None)) is not None:
        options["base_dir"] = base
    options = map_texts(options, str)  # a copy that can be changed
    _remove(options, part.split("."), part)
    written = agent.written
    if isinstance(written, Mapping):
        written = map_texts(written, str)
        _remove(written, part.split("."), part)
    return ChosenAgent(agent_config(options, base_dir=options.get("base_dir")), written)


def _remove(holder: Any, steps: Sequence[str], part: str) -> None:
    """Remove the item at the path `steps`; items of a list go by their text or name."""
    step, *rest = steps
    keys: dict[str, Any] = {}
    known: list[str] = []
    if isinstance(holder, dict):
        keys = {key: key for key in cast("dict[str, Any]", holder)}
        known = [key for key in keys if key not in ("kind", "base_dir")]
    elif isinstance(holder, list):
        for index, item in enumerate(cast("list[Any]", holder)):
            if names := _item_names(item):
                keys = {**dict.fromkeys(names, index), **keys}
                known.append(names[-1])
    key = keys.get(step)
    if key is None or step in ("kind", "base_dir"):
        raise ProctorError(
            f"the agent has no option {part!r} to drop",
            hint=did_you_mean(step, known) or (f"known: {', '.join(known)}" if known else None),
        )
    if rest:
        _remove(holder[key], rest, part)
    else:
        del holder[key]


def _item_names(item: Any) -> tuple[str, ...]:
    """Return the names of an item of a list: its text, what follows the colon, its `name`."""
    if isinstance(item, Mapping):
        options = cast("Mapping[str, Any]", item)
        return tuple(
            n for key in ("name", "python", "target") for n in _item_names(options.get(key))
        )
    return () if item is None else (str(item), str(item).rpartition(":")[2])
