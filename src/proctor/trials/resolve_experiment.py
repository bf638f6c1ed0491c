"""Resolve an experiment: select its cases, find its agents, combine its axes.

Promise: every error is found before anything is written, among them a selector that selects
nothing and an id that two suites use. The order of selectors does not matter: cases are sorted by
id. Seeds, filters and settings of a command line or a caller override the experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from proctor.agents.registry import UnknownAgentError, agent_config
from proctor.errors import ProctorError, hint_among
from proctor.files import load_yaml
from proctor.runs.case_rows import merge
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
from proctor.spec.suite import same_id
from proctor.spec.validation import first_fault
from proctor.trials._research import Outline
from proctor.trials._research.design import resolve_research, with_sweep_sample
from proctor.trials._scenario_cases import (
    Scenario,
    ScenarioPool,
    check_parameter,
    check_required,
    error_at,
)
from proctor.trials.options import RunOptions
from proctor.trials.plan import Axes, axes_of
from proctor.trials.prepare import (
    AgentLike,
    ChosenAgent,
    Design,
    GivenAgents,
    Origin,
    RunContext,
    choose_agents,
    chosen_agents,
    prepare,
    store_of,
)

DEFAULT_TRIALS = 1
"""Trials per seed unless the experiment sets them: its seeds are the repeats."""


class SetText(str):
    """A value from a command line; the parameter it is for decides how to parse it."""

    __slots__ = ()


def read_set(texts: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value` options; numbers, true, false, null and structures as YAML reads them."""
    found: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise ProctorError("write it as KEY=VALUE", where=f"--set {text}")
        if key.strip() in found:
            raise ProctorError(f"{key.strip()!r} is set twice", where=f"--set {text}")
        found[key.strip()] = option_value(value) if key.startswith(SET_CASE) else SetText(value)
    return found


def read_axes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Parse `name=a,b,c` options; a value with a comma in it needs a list: `[…]`."""
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not sign or not name.strip() or not values.strip():
            raise ProctorError("write it as NAME=A,B,C", where=f"--axis {text}")
        whole = option_value(values)
        parts = [option_value(part.strip()) for part in values.split(",")]
        axes[name.strip()] = cast("list[Any]", whole) if isinstance(whole, list) else parts
    return axes


def option_value(text: str) -> Any:
    """Parse numbers, true, false, null, lists and mappings; everything else is text."""
    import yaml

    try:
        value = load_yaml(text)
    except yaml.YAMLError:
        return text
    # YAML would also read dates and `a: b`, which users of the command line mean as text.
    structured = text.lstrip()[:1] in ("[", "{")
    return value if structured or isinstance(value, bool | int | float | None) else text


def override(
    experiment: Experiment,
    *,
    seeds: Any = None,
    expression: str = "",
    settings: Mapping[str, Any] | None = None,
) -> Experiment:
    """Return the experiment with the seeds, filter and settings of a command line or a caller."""
    changes: dict[str, Any] = {}
    if seeds is not None:
        changes["seeds"] = seeds
    if expression:
        changes["filter"] = f"{experiment.filter} {expression}".strip()
    if settings:
        changes["set"] = {**experiment.set, **settings}
        changes["params"] = {k: v for k, v in experiment.params.items() if k not in settings}
        if not changes["params"]:
            changes["sample"] = None
    if not changes:
        return experiment
    try:
        return experiment.changed(**changes)
    except ValidationError as error:
        raise option_error(error, "experiment") from None


def option_error(error: ValidationError, default: str) -> ProctorError:
    """Return the first fault as an error at the option that caused it."""
    fault = first_fault(error)
    name = str(fault.loc[0]) if fault.loc else default
    return ProctorError(fault.message, where=f"--{name}", hint=fault.hint)


class Resolved(NamedTuple):
    """An experiment with every name in it found: its cases as a suite, its agents, its axes."""

    experiment: Experiment
    suite: Suite
    agents: GivenAgents
    design: Design
    configuration: Configuration


def resolve_experiment(
    experiment: Experiment,
    *,
    agents: GivenAgents | None = None,
    configuration: Configuration | None = None,
) -> Resolved:
    """Find everything an experiment names, importing nothing and building nothing."""
    if configuration is None:
        # The settings of the experiment's project; outside a project, of the current folder.
        folder = experiment.folder
        inside = folder is not None and find_project_file(folder) is not None
        configuration = load_configuration(folder if inside else None)
    selected = _select(experiment, configuration)
    where = str(experiment.path or experiment.name)
    tree = None if experiment.tree is None else experiment.tree.child("agents")
    written: dict[str, Any] = {}
    for name, ref in experiment.agents.items():
        # As written in the file, so that environment variables stay references.
        own = None if tree is None else tree.child(name)
        options = ref.model_dump(mode="json", exclude_none=True)
        written[name] = escaped(options) if own is None else plain(own, as_written=True)
    record = {**selected.record, **({"agents": written} if written else {})}
    suite = restore_suite(record, folder=experiment.folder or Path(), name=where)
    axes = _axes(experiment, list(selected.scenarios.values()))
    found = _agents(
        suite,
        selected.suites,
        agents,
        configuration,
        lambda name: str(experiment.place_of("agents", name) or where),
    )
    outline: Outline | None = None
    if experiment.research is not None:
        chosen = chosen_agents(suite, configuration, found)
        outline, with_variants = resolve_research(
            experiment, suite.cases, selected.scenarios, axes, chosen
        )
        found = with_variants
    design = Design(
        name=experiment.name,
        axes=axes,
        output=experiment.output,
        description=experiment.description,
        scenarios=selected.scenarios,
        origins=selected.origins,
        research=outline,
    )
    return Resolved(experiment, suite, found, design, configuration)


def prepare_experiment(
    experiment: Experiment,
    *,
    agents: GivenAgents | None = None,
    options: Mapping[str, Any] | None = None,
    configuration: Configuration | None = None,
    smoke: bool = False,
) -> RunContext:
    """Check and resolve everything that can be wrong before the first trial.

    A smoke run is one trial per agent: of the first case, seed and parameters.
    """
    found = resolve_experiment(experiment, agents=agents, configuration=configuration)
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


def run_options(experiment: Experiment, options: Mapping[str, Any]) -> RunOptions:
    """Return the options of a run: those given override those of the experiment."""
    own = experiment.limits.model_dump(exclude_none=True)
    base: dict[str, Any] = {"trials": experiment.trials, "default_trials": DEFAULT_TRIALS, **own}
    given = {name: value for name, value in options.items() if value is not None}
    executor = experiment.executor
    # The address and workers of another executor would be refused as options without effect.
    if executor is not None and given.get("executor", executor.kind) == executor.kind:
        base |= {name: getattr(executor, name) for name in ("address", "workers")}
        base["executor"] = executor.kind
    try:
        return RunOptions(**{**base, **given})
    except ValidationError as error:
        fault = first_fault(error)
        name = str(fault.loc[0]) if fault.loc else "limits"
        message = fault.message if fault.message.startswith(name) else f"{name}: {fault.message}"
        place = experiment.place_of("limits", name)
        raise ProctorError(message, where=str(place or "limits"), hint=fault.hint) from None


def _axes(experiment: Experiment, scenarios: Sequence[Scenario]) -> Axes:
    """Return the axes, with every parameter and value checked against every scenario."""
    fixed: dict[str, Any] = {}
    for name, value in experiment.set.items():
        if name.startswith(SET_CASE):
            continue
        with error_at(experiment.place_of("set", name) or "--set"):
            parsed = value
            if isinstance(value, SetText):
                # A scenario parses the text itself, by the type of its parameter.
                # The spec is written as YAML, which has no form for our subclass of str.
                text = str(value)
                parsed = text if scenarios else option_value(text)
            (fixed[name],) = check_parameter(name, [parsed], scenarios)
    listed: dict[str, Any] = dict(experiment.params)
    for name, axis in experiment.params.items():
        with error_at(experiment.place_of("params", name) or "params"):
            values = () if isinstance(axis, NumberRange) else axis
            # As scenarios parse them, so that `"7"` and `7` are one cell.
            checked = check_parameter(name, values, scenarios)
            listed[name] = axis if isinstance(axis, NumberRange) else tuple(checked)
    with error_at(experiment.place_of("cases") or experiment.name):
        check_required([*fixed, *experiment.params], scenarios)
    axes = axes_of(*with_sweep_sample(experiment, listed), fixed)
    # Values drawn from a range are known only now.
    for name, axis in experiment.params.items():
        if isinstance(axis, NumberRange) and name in axes.params[0]:
            with error_at(experiment.place_of("params", name) or "params"):
                check_parameter(name, [each[name] for each in axes.params], scenarios)
    return axes


# -- agents --------------------------------------------------------------------------------------


def _agents(
    suite: Suite,
    suites: Sequence[Suite],
    given: GivenAgents | None,
    configuration: Configuration,
    place: Callable[[str], str | None],
) -> GivenAgents:
    """Return the agents to test: those given, else the experiment's, else those of its suites."""
    sources = [suite] if suite.all_agents else suites
    named = given or {name: name for source in sources for name in source.all_agents}
    if not named:
        return choose_agents(suite, (), configuration)
    found: dict[str, AgentLike] = {}
    for name, agent in named.items():
        if not isinstance(agent, str):
            found[name] = agent
            continue
        try:
            found[name] = _agent(agent, suite, suites, configuration)
        except UnknownAgentError as error:
            error.where = error.where or ("--agents" if given else place(name))
            raise
    return found


def _agent(
    name: str, suite: Suite, suites: Sequence[Suite], configuration: Configuration
) -> ChosenAgent:
    own = suite.all_agents.get(name)
    if own is None or own.kind is None:
        target = own.name if own is not None and own.name else name
        for source in suites:
            found = source.all_agents.get(target)
            if found is not None and found.kind is not None:
                return _placed(choose_agents(source, [target], configuration)[target], source)
    return choose_agents(suite, [name], configuration)[name]


def _placed(agent: ChosenAgent, source: Suite) -> ChosenAgent:
    """Return an agent of a suite whose import paths start at the suite's folder, also on resume."""
    if "base_dir" not in type(agent.config).model_fields:
        return agent
    folder = str(source.folder.resolve())
    short = isinstance(agent.written, str)
    options = {"kind": "python", "target": agent.written} if short else dict(agent.written)
    config = agent_config(
        {**agent.config.model_dump(exclude_none=True), "base_dir": folder}, base_dir=source.folder
    )
    return ChosenAgent(config, {**options, "base_dir": escaped(folder)})


# -- cases ---------------------------------------------------------------------------------------


class Item(NamedTuple):
    """A selected case, and the suite or the template it is from."""

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
        """The catalog or the suite's file, for messages."""
        return "the catalog" if self.suite is None else str(self.suite.path)


class SelectedCases(NamedTuple):
    """The cases of an experiment as the record of a suite, and what a suite does not hold."""

    record: dict[str, Any]
    suites: tuple[Suite, ...]
    scenarios: dict[str, Scenario]
    origins: dict[str, Origin]


def _select(experiment: Experiment, configuration: Configuration) -> SelectedCases:
    pool = ScenarioPool(configuration)
    suites: dict[Path, Suite] = {}
    found: dict[str, Item] = {}
    for number, selector in enumerate(experiment.cases):
        where = str(experiment.place_of("cases", number) or experiment.name)
        with error_at(where):
            items = _items(selector, experiment.folder or Path(), suites, pool)
        for item in items:
            earlier = found.setdefault(same_id(item.id), item)
            if (earlier.suite, earlier.id) != (item.suite, item.id):
                raise ProctorError(
                    f"the case {item.id!r} is in {earlier.source} and in {item.source}",
                    where=where,
                    hint="an id must be one case's alone in an experiment; exclude one of them",
                )
    items = list(found.values())
    for number, text in enumerate(experiment.exclude):
        with error_at(experiment.place_of("exclude", number) or experiment.name):
            excluded = parse_filter(text)
        items = [item for item in items if not excluded.holds(item)]
    if not items:
        raise ProctorError(
            f"all {len(found)} selected cases are excluded",
            where=str(experiment.place_of("exclude") or experiment.name),
        )
    if experiment.filter:
        with error_at(experiment.place_of("filter") or "--filter"):
            items = select_cases(items, filter=experiment.filter)
    items.sort(key=lambda item: item.id)
    overrides = _case_overrides(experiment)
    used = tuple(suite for suite in suites.values() if any(i.suite is suite for i in items))
    return SelectedCases(
        record={
            "version": 1,
            **_judges(experiment, used),
            **_shared_settings(used),
            "cases": [merge(item.written, overrides) for item in items],
        },
        suites=used,
        scenarios={
            item.id: item.scenario._replace(overrides=overrides)
            for item in items
            if item.scenario is not None
        },
        origins={
            item.id: Origin(
                item.suite.folder.resolve(),
                store_of(item.suite, configuration).root.resolve(),
                item.suite.baseline,
            )
            for item in items
            if item.suite is not None
        },
    )


def _items(
    selector: Selector, base: Path, suites: dict[Path, Suite], pool: ScenarioPool
) -> list[Item]:
    """Return the cases of one selector; each suite is loaded once."""
    if selector.suite is None:
        return [
            Item(
                scenario.id,
                scenario.template.tags,
                scenario.template.difficulty,
                scenario.template.type,
                scenario.template.properties,
                escaped(scenario.placeholder()),
                scenario=scenario,
            )
            for scenario in pool.select(selector.filter)
        ]
    path = (base / Path(selector.suite).expanduser()).resolve()
    suite = suites.get(path)
    if suite is None:
        suite = suites[path] = load_suite(
            base / Path(selector.suite).expanduser(), need_agent=False
        )
    selected = {case.id for case in select_cases(suite.cases, filter=selector.filter)}
    return [
        Item(
            case.id,
            tuple(case.tags),
            case.difficulty,
            case.type,
            case.properties,
            written,
            suite=suite,
        )
        for case, written in zip(suite.cases, suite.resolved()["cases"], strict=True)
        if case.id in selected
    ]


def _judges(experiment: Experiment, suites: Iterable[Suite]) -> dict[str, Any]:
    """Return the judges of the experiment and its suites as written; a name means one judge."""
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
    for name, config in experiment.judges.items():
        judges[name] = escaped(config.model_dump(mode="json", exclude_unset=True))
    if experiment.judge is not None:
        default = {"judge": escaped(experiment.judge.model_dump(mode="json", exclude_unset=True))}
    return {**default, **({"judges": judges} if judges else {})}


def _shared_settings(suites: Iterable[Suite]) -> dict[str, Any]:
    """Return the settings of suites that hold for a whole run; two suites may not differ.

    A suite without a sandbox gets that of the others: what one needs must not be lost.
    """
    shared: dict[str, Any] = {}
    for suite in suites:
        for name in ("sandbox", "on_agent_error"):
            if getattr(suite, name) is None:
                continue
            written = suite.resolved()[name]
            if shared.setdefault(name, written) != written:
                raise ProctorError(
                    f"two suites of the experiment have a different `{name}`",
                    where=str(suite.path),
                    hint="run them as two experiments, or write it the same in both",
                )
    return shared


def _case_overrides(experiment: Experiment) -> dict[str, Any]:
    """Return the case fields that the experiment sets, nested: `case.cost.max_tokens: 5`."""
    overrides: dict[str, Any] = {}
    for key, value in experiment.set.items():
        if not key.startswith(SET_CASE):
            continue
        steps = key.removeprefix(SET_CASE).split(".")
        fields = [name for name in Case.model_fields if name not in ("id", "input")]
        if steps[0] not in fields:
            raise ProctorError(
                f"a case has no field {steps[0]!r} to set",
                where=str(experiment.place_of("set", key) or "--set"),
                hint=hint_among(steps[0], fields),
            )
        here = overrides
        for step in steps[:-1]:
            inner: Any = here.setdefault(step, {})
            here = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
        here[steps[-1]] = escaped(value)
    return overrides
