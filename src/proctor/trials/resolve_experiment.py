"""Resolve an experiment: select its cases, find its agents, combine its axes.

Promise: every error is found before anything is written, among them a selector that selects
nothing and an id that two suites use. The options of a command line or a caller (`Changes`)
override the experiment. The order of selectors does not matter: cases are sorted by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from proctor.agents.registry import UnknownAgentError, agent_config
from proctor.errors import ProctorError, hint_among
from proctor.spec import (
    Case,
    Configuration,
    JudgeConfig,
    Suite,
    load_configuration,
    load_suite,
    restore_suite,
    select_cases,
)
from proctor.spec.config import find_project_file
from proctor.spec.experiment import SET_CASE, Experiment, NumberRange, Selector
from proctor.spec.located import escaped, plain
from proctor.spec.select import parse_filter
from proctor.spec.suite import AgentRef, same_id
from proctor.spec.validation import first_fault
from proctor.trials._research.design import Around, resolve_research, swept
from proctor.trials._scenario_cases import (
    Scenario,
    ScenarioPool,
    check_parameter,
    check_required,
    laid_over,
    told_at,
)
from proctor.trials.options import RunOptions
from proctor.trials.plan import Axes, axes_of
from proctor.trials.prepare import (
    AgentLike,
    Design,
    Origin,
    RunContext,
    chosen_agents,
    given_agents,
    prepare,
    store_of,
)
from proctor.trials.select_agents import ChosenAgent, choose_agents

DEFAULT_TRIALS = 1
"""Repeats of a seed where nobody says: seeds are the repeats of an experiment."""


@dataclass(frozen=True)
class Changes:
    """What a command line or a caller says otherwise than the experiment; None says nothing."""

    agents: AgentLike | str | list[str] | None = None
    seeds: Any = None
    filter: str = ""
    set: Mapping[str, Any] = field(default_factory=dict[str, Any])


def read_set(texts: Sequence[str]) -> dict[str, Any]:
    """`key=value` as on a command line: numbers, true, false, null and structures as such."""
    found: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise ProctorError("write it as KEY=VALUE", where=f"--set {text}")
        if key.strip() in found:
            raise ProctorError(f"{key.strip()!r} is set twice", where=f"--set {text}")
        found[key.strip()] = _value(value) if key.startswith(SET_CASE) else SetText(value)
    return found


def read_axes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """`name=a,b,c` as on a command line; a value with a comma in it needs a list: `[…]`."""
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not sign or not name.strip() or not values.strip():
            raise ProctorError("write it as NAME=A,B,C", where=f"--axis {text}")
        whole = _value(values)
        parts = [_value(part.strip()) for part in values.split(",")]
        axes[name.strip()] = cast("list[Any]", whole) if isinstance(whole, list) else parts
    return axes


class SetText(str):
    """A value from a command line, to be read as the parameter it is for wants it."""

    __slots__ = ()


def _value(text: str) -> Any:
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return str(text)
    structured = text.lstrip()[:1] in ("[", "{")
    return value if structured or isinstance(value, bool | int | float | None) else str(text)


def changed(experiment: Experiment, changes: Changes) -> Experiment:
    """The experiment as it is to be run."""
    said: dict[str, Any] = {}
    if changes.seeds is not None:
        said["seeds"] = changes.seeds
    if changes.filter:
        said["filter"] = f"{experiment.filter} {changes.filter}".strip()
    if changes.set:
        said["set"] = {**experiment.set, **changes.set}
        said["params"] = {k: v for k, v in experiment.params.items() if k not in changes.set}
        if not said["params"]:
            said["sample"] = None
    if not said:
        return experiment
    try:
        return experiment.changed(**said)
    except ValidationError as error:
        raise option_error(error, "experiment") from None


def option_error(error: ValidationError, otherwise: str) -> ProctorError:
    """What is wrong with what was asked for, at the option it was asked with."""
    fault = first_fault(error)
    name = str(fault.loc[0]) if fault.loc else otherwise
    return ProctorError(fault.message, where=f"--{name}", hint=fault.hint)


class Resolved(NamedTuple):
    """An experiment with every name in it found: its cases as a suite, its agents, its axes."""

    experiment: Experiment
    suite: Suite
    agents: dict[str, AgentLike] | None
    design: Design
    configuration: Configuration


def resolve_experiment(
    experiment: Experiment,
    *,
    changes: Changes | None = None,
    configuration: Configuration | None = None,
) -> Resolved:
    """Find everything an experiment names, importing nothing and building nothing."""
    changes = changes or Changes()
    experiment = changed(experiment, changes)
    base = experiment.folder or Path()
    configuration = configuration or configuration_for(experiment)
    gathered = gather(experiment, configuration, ScenarioPool(configuration))
    written = {name: _written(experiment, name, ref) for name, ref in experiment.agents.items()}
    where = str(experiment.path or experiment.name)
    record = {**gathered.record, **({"agents": written} if written else {})}
    suite = restore_suite(record, folder=base, name=where)
    design = Design(
        name=experiment.name,
        axes=_axes(experiment, gathered),
        output=experiment.output,
        description=experiment.description,
        scenarios=gathered.scenarios,
        origins=gathered.origins,
    )
    agents: dict[str, AgentLike] | None = _agents(
        suite,
        gathered,
        changes.agents,
        configuration,
        lambda name: str(experiment.place_of("agents", name) or where),
    )
    if experiment.research is not None:
        around = Around(suite.cases, gathered.scenarios, design.axes)
        chosen = chosen_agents(suite, configuration, agents)
        found = resolve_research(experiment, around, chosen)
        agents = {**found.agents}
        design = replace(design, research=found.outline)
    return Resolved(experiment, suite, agents, design, configuration)


def prepare_experiment(
    experiment: Experiment,
    *,
    changes: Changes | None = None,
    options: Mapping[str, Any] | None = None,
    configuration: Configuration | None = None,
    smoke: bool = False,
) -> RunContext:
    """Check and resolve everything that can be wrong before the first trial.

    A smoke run is one trial per agent: of the first case, seed and parameters.
    """
    found = resolve_experiment(experiment, changes=changes, configuration=configuration)
    design = found.design
    if smoke:
        design = replace(design, axes=design.axes.first(), research=None)
    return prepare(
        found.suite,
        run_options(found.experiment, options or {}),
        agents=found.agents,
        cases=found.suite.cases[:1] if smoke else None,
        configuration=found.configuration,
        design=design,
    )


def _axes(experiment: Experiment, gathered: Gathered) -> Axes:
    """The axes, with every parameter and value held against every scenario before it is used."""
    scenarios = list(gathered.scenarios.values())
    fixed: dict[str, Any] = {}
    for name, value in parameters_set(experiment).items():
        with told_at(str(experiment.place_of("set", name) or "--set")):
            told = value
            if isinstance(value, SetText):
                told = str(value) if scenarios else _value(value)
            (fixed[name],) = check_parameter(name, [told], scenarios)
    listed: dict[str, Any] = dict(experiment.params)
    for name, axis in experiment.params.items():
        with told_at(str(experiment.place_of("params", name) or "params")):
            values = () if isinstance(axis, NumberRange) else axis
            # As scenarios take them, so that `"7"` and `7` are one cell.
            checked = check_parameter(name, values, scenarios)
            listed[name] = axis if isinstance(axis, NumberRange) else tuple(checked)
    with told_at(str(experiment.place_of("cases") or experiment.name)):
        check_required([*fixed, *experiment.params], scenarios)
    axes = axes_of(*swept(experiment, listed), fixed)
    for name, axis in experiment.params.items():
        if isinstance(axis, NumberRange) and name in axes.params[0]:
            with told_at(str(experiment.place_of("params", name) or "params")):
                check_parameter(name, [each[name] for each in axes.params], scenarios)
    return axes


def configuration_for(experiment: Experiment) -> Configuration:
    """The settings of the project the experiment is in, else of where the user stands."""
    folder = experiment.folder
    inside = folder is not None and find_project_file(folder) is not None
    return load_configuration(folder if inside else None)


def run_options(experiment: Experiment, options: Mapping[str, Any]) -> RunOptions:
    """How the experiment is run: what is asked for wins over what it says."""
    own = experiment.limits.model_dump(exclude_none=True)
    base: dict[str, Any] = {"trials": experiment.trials, "default_trials": DEFAULT_TRIALS, **own}
    given = {name: value for name, value in options.items() if value is not None}
    there = experiment.executor
    if there is not None and given.get("executor", there.kind) == there.kind:
        base |= {"executor": there.kind, "address": there.address, "workers": there.workers}
    try:
        return RunOptions(**{**base, **given})
    except ValidationError as error:
        fault = first_fault(error)
        name = str(fault.loc[0]) if fault.loc else "limits"
        message = fault.message if fault.message.startswith(name) else f"{name}: {fault.message}"
        place = experiment.place_of("limits", name)
        raise ProctorError(message, where=str(place or "limits"), hint=fault.hint) from None


# -- agents --------------------------------------------------------------------------------------


def _written(experiment: Experiment, name: str, ref: AgentRef) -> Any:
    """An agent as it stands in the file, environment variables as references."""
    tree = experiment.tree
    agents = None if tree is None else tree.child("agents")
    own = None if agents is None else agents.child(name)
    if own is not None:
        return plain(own, as_written=True)
    return escaped(ref.model_dump(mode="json", exclude_none=True))


def _agents(
    suite: Suite,
    gathered: Gathered,
    asked: AgentLike | str | list[str] | None,
    configuration: Configuration,
    place: Callable[[str], str | None],
) -> dict[str, AgentLike] | None:
    """Who is put to the test: those asked for, else those of the experiment, else of its suites."""
    if asked is not None and not isinstance(asked, str | list):
        return given_agents(suite, asked, configuration)
    names = [asked] if isinstance(asked, str) else cast("list[str]", asked or [])
    names = names or list(suite.all_agents)
    names = names or list(dict.fromkeys(n for s in gathered.suites for n in s.all_agents))
    if not names:
        return {**choose_agents(suite, (), configuration)}
    found: dict[str, AgentLike] = {}
    for name in names:
        try:
            found[name] = _agent(name, suite, gathered.suites, configuration)
        except UnknownAgentError as error:
            error.where = error.where or ("--agents" if asked else place(name))
            raise
    return found


def _agent(
    name: str, suite: Suite, suites: Sequence[Suite], configuration: Configuration
) -> ChosenAgent:
    own = suite.all_agents.get(name)
    meant = own.name if own is not None and own.kind is None and own.name else name
    if own is None or own.kind is None:
        for source in suites:
            found = source.all_agents.get(meant)
            if found is not None and found.kind is not None:
                return _placed(choose_agents(source, [meant], configuration)[meant], source)
    return choose_agents(suite, [name], configuration)[name]


def _placed(agent: ChosenAgent, source: Suite) -> ChosenAgent:
    """An agent of a suite: its import paths start at the suite's folder, here and on resume."""
    if "base_dir" not in type(agent.config).model_fields:
        return agent
    folder = str(source.folder.resolve())
    if isinstance(agent.written, str):
        kept: dict[str, Any] = {"kind": "python", "target": agent.written}
    else:
        kept = dict(agent.written)
    config = agent_config(
        {**agent.config.model_dump(exclude_none=True), "base_dir": folder}, base_dir=source.folder
    )
    return ChosenAgent(config, {**kept, "base_dir": escaped(folder)})


class Item(NamedTuple):
    """A case that was selected, and the suite or the template it is from."""

    id: str
    tags: tuple[str, ...]
    difficulty: str | None
    type: str | None
    properties: dict[str, Any]
    written: dict[str, Any]
    suite: Suite | None = None
    scenario: Scenario | None = None

    @property
    def source(self) -> str:
        """Where it is from, for messages."""
        return "the catalog" if self.suite is None else str(self.suite.path)


class Gathered(NamedTuple):
    """The cases of an experiment: as a suite's record, and what a suite cannot say of them."""

    record: dict[str, Any]
    suites: tuple[Suite, ...]
    scenarios: dict[str, Scenario]
    origins: dict[str, Origin]


def gather(experiment: Experiment, configuration: Configuration, pool: ScenarioPool) -> Gathered:
    """Every case the experiment is about."""
    base = experiment.folder or Path()
    suites: dict[Path, Suite] = {}
    found: dict[str, Item] = {}
    for number, selector in enumerate(experiment.cases):
        where = str(experiment.place_of("cases", number) or experiment.name)
        with told_at(where):
            items = _selected(selector, base, suites, pool)
        for item in items:
            earlier = found.setdefault(same_id(item.id), item)
            if (earlier.suite, earlier.id) != (item.suite, item.id):
                raise ProctorError(
                    f"the case {item.id!r} is in {earlier.source} and in {item.source}",
                    where=where,
                    hint="an id must be one case's alone in an experiment; exclude one of them",
                )
    chosen = _narrowed(list(found.values()), experiment)
    chosen.sort(key=lambda item: item.id)
    overrides = case_overrides(experiment)
    used = tuple(suite for suite in suites.values() if any(i.suite is suite for i in chosen))
    record = {
        "version": 1,
        **_judges(experiment, used),
        "cases": [laid_over(item.written, overrides) for item in chosen],
    }
    scenarios = {
        item.id: item.scenario._replace(overrides=overrides)
        for item in chosen
        if item.scenario is not None
    }
    return Gathered(record, used, scenarios, _origins(chosen, configuration))


# -- selection -----------------------------------------------------------------------------------


def _selected(
    selector: Selector, base: Path, suites: dict[Path, Suite], pool: ScenarioPool
) -> list[Item]:
    if selector.suite is None:
        return [_of_scenario(scenario) for scenario in pool.select(selector.filter)]
    path = base / Path(selector.suite).expanduser()
    suite = suites.get(path.resolve())
    if suite is None:
        suite = suites[path.resolve()] = load_suite(path, need_agent=False)
    chosen = {case.id for case in select_cases(suite.cases, filter=selector.filter)}
    both = zip(suite.cases, suite.resolved()["cases"], strict=True)
    return [_of_suite(case, written, suite) for case, written in both if case.id in chosen]


def _of_suite(case: Case, written: dict[str, Any], suite: Suite) -> Item:
    return Item(
        case.id, tuple(case.tags), case.difficulty, case.type, case.properties, written, suite=suite
    )


def _of_scenario(scenario: Scenario) -> Item:
    entry = scenario.template
    return Item(
        entry.id,
        entry.tags,
        entry.difficulty,
        entry.type,
        entry.properties,
        escaped(scenario.placeholder()),
        scenario=scenario,
    )


def _narrowed(items: list[Item], experiment: Experiment) -> list[Item]:
    left = items
    for number, text in enumerate(experiment.exclude):
        where = str(experiment.place_of("exclude", number) or experiment.name)
        with told_at(where):
            without = parse_filter(text)
        left = [item for item in left if not without.holds(item)]
    if not left:
        raise ProctorError(
            f"all {len(items)} selected cases are excluded",
            where=str(experiment.place_of("exclude") or experiment.name),
        )
    if not experiment.filter:
        return left
    with told_at(str(experiment.place_of("filter") or "--filter")):
        return select_cases(left, filter=experiment.filter)


# -- what stands in a suite but not in an experiment ---------------------------------------------


def _judges(experiment: Experiment, suites: Iterable[Suite]) -> dict[str, Any]:
    """The judges of the experiment and its suites as they were written; names mean one judge."""
    default: dict[str, Any] = {}
    judges: dict[str, Any] = {}
    known: dict[str, JudgeConfig] = dict(experiment.judges)
    for suite in suites:
        written = suite.resolved()
        for name, config in suite.judges.items():
            if known.setdefault(name, config) != config:
                raise ProctorError(
                    f"two suites of the experiment mean different judges by {name!r}",
                    where=str(suite.path),
                    hint="say which under `judges` of the experiment",
                )
            judges[name] = written["judges"][name]
        if suite.judge is not None:
            if known.setdefault("", suite.judge) != suite.judge and experiment.judge is None:
                raise ProctorError(
                    "two suites of the experiment have different judges",
                    where=str(suite.path),
                    hint="say which under `judge` of the experiment",
                )
            default = {"judge": written["judge"]}
    own = {name: escaped(_dumped(config)) for name, config in experiment.judges.items()}
    if experiment.judge is not None:
        default = {"judge": escaped(_dumped(experiment.judge))}
    both = {**judges, **own}
    return {**default, **({"judges": both} if both else {})}


def _dumped(config: JudgeConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude_unset=True)


def _origins(chosen: Iterable[Item], configuration: Configuration) -> dict[str, Origin]:
    origins: dict[str, Origin] = {}
    for item in chosen:
        if item.suite is not None:
            store = store_of(item.suite, configuration)
            origins[item.id] = Origin(item.suite.folder.resolve(), store.root.resolve())
    return origins


# -- overrides -----------------------------------------------------------------------------------


def parameters_set(experiment: Experiment) -> dict[str, Any]:
    """Of what the experiment sets, the parameters."""
    return {key: value for key, value in experiment.set.items() if not key.startswith(SET_CASE)}


def case_overrides(experiment: Experiment) -> dict[str, Any]:
    """Of what the experiment sets, the fields of cases, nested: `case.cost.max_tokens: 5`."""
    overrides: dict[str, Any] = {}
    for key, value in experiment.set.items():
        if not key.startswith(SET_CASE):
            continue
        first, *rest = key.removeprefix(SET_CASE).split(".")
        fields = [name for name in Case.model_fields if name not in ("id", "input")]
        if first not in fields:
            raise ProctorError(
                f"a case has no field {first!r} to set",
                where=str(experiment.place_of("set", key) or "--set"),
                hint=hint_among(first, fields),
            )
        steps, here = [first, *rest], overrides
        for step in steps[:-1]:
            inner: Any = here.setdefault(step, {})
            here = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
        here[steps[-1]] = escaped(value)
    return overrides
