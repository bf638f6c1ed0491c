"""Validate everything a run needs and build its `RunContext`.

Promise: everything that can be wrong is an error here, before the first trial. What the run folder
records of it is lossless: a run is resumed and repeated from its folder alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from proctor.agents.base import AgentConfig
from proctor.agents.registry import agent_config
from proctor.checks.judge import Judge, JudgeCache, default_cache_folder
from proctor.checks.judge_checks import DEFAULT_JUDGE
from proctor.errors import ProctorError
from proctor.llm.chat_model import ClosingModel
from proctor.llm.prices import PriceTable
from proctor.llm.providers import get_model
from proctor.runs.baselines import BaselineStore
from proctor.runs.folder import OUTPUT
from proctor.runs.provenance import new_run_id, provenance
from proctor.spec import (
    Case,
    Configuration,
    SourceLocation,
    Suite,
    checks_of,
    load_configuration,
)
from proctor.spec.located import plain
from proctor.trace import Trace
from proctor.trace.redact import Redactor, default_redactor
from proctor.trials._research.rounds import Outline, Unfolding, unfolding_of
from proctor.trials._scenario_cases import (
    Scenario,
    restored_scenarios,
    scenarios_record,
    staged_case,
)
from proctor.trials.options import RunOptions
from proctor.trials.plan import Axes, Plan, plan_trials
from proctor.trials.run_trial import PreparedCase
from proctor.trials.select_agents import ChosenAgent, choose_agents

if TYPE_CHECKING:
    from proctor.agents.checkpoint import CheckpointStore
    from proctor.llm.retry import Transient


class Origin(NamedTuple):
    """The suite a case was taken from: what its import paths and baselines start from."""

    folder: Path
    baselines: Path

    def record(self) -> dict[str, str]:
        """What the run folder keeps of it."""
        return {"folder": str(self.folder), "baselines": str(self.baselines)}


@dataclass(frozen=True)
class Design:
    """An experiment made ready to be planned."""

    name: str
    axes: Axes
    output: str = OUTPUT
    description: str | None = None
    scenarios: Mapping[str, Scenario] = field(default_factory=dict[str, Scenario])
    """By case id; the other cases are those of suites."""
    origins: Mapping[str, Origin] = field(default_factory=dict[str, Origin])
    """By case id, of those that come from suites."""
    research: Outline | None = None
    """How trials are chosen from results so far, where not all are planned beforehand."""

    def record(self) -> dict[str, Any]:
        """What the run folder keeps of it."""
        return {
            "name": self.name,
            **({"description": self.description} if self.description else {}),
            "output": self.output,
            **self.axes.record(),
            "scenarios": scenarios_record(self.scenarios),
            "origins": {case: origin.record() for case, origin in sorted(self.origins.items())},
            **({} if self.research is None else {"research": self.research.record()}),
        }

    @classmethod
    def restored(cls, record: Mapping[str, Any]) -> Design:
        """The design of a run folder."""
        origins: Mapping[str, Mapping[str, str]] = record.get("origins") or {}
        return cls(
            name=str(record["name"]),
            axes=Axes.restored(record),
            output=str(record.get("output", OUTPUT)),
            description=record.get("description"),
            scenarios=restored_scenarios(record.get("scenarios") or {}),
            origins={
                case: Origin(Path(each["folder"]), Path(each["baselines"]))
                for case, each in origins.items()
            },
            research=Outline.restored(record["research"]) if "research" in record else None,
        )


def store_of(suite: Suite, configuration: Configuration | None = None) -> BaselineStore:
    """The baselines of a suite: where it says, else where the settings say, else beside it."""
    if "baselines" not in suite.model_fields_set:
        configured = (configuration or load_configuration(suite.folder)).baselines
        if configured is not None:
            return BaselineStore(configured)
    return BaselineStore(suite.folder / Path(suite.baselines).expanduser())


def baseline_for(suite: Suite, case_id: str, agent_name: str) -> Trace | None:
    """What the agent did for a case when it was last saved; None when it never was."""
    return _newest(store_of(suite), case_id, agent_name)


def baselines_in(
    folder: Path, cases: Iterable[str], agents: Iterable[str]
) -> dict[str, dict[str, Trace]]:
    """Case id → agent → what that agent did for the case when it was last saved."""
    store, names = BaselineStore(folder), list(agents)
    if not store.root.is_dir():
        return {}
    saved: dict[str, dict[str, Trace]] = {}
    for case in cases:
        for agent in names:
            if (trace := _newest(store, case, agent)) is not None:
                saved.setdefault(case, {})[agent] = trace
    return saved


def _newest(store: BaselineStore, case_id: str, agent_name: str) -> Trace | None:
    problems: list[str] = []
    found = store.load(agent_name, case_id, problems=problems)
    for problem in problems:
        logging.getLogger("proctor").warning("%s; skipped", problem)
    return None if found is None else found.trace


AgentLike = ChosenAgent | AgentConfig | Mapping[str, Any] | Callable[..., Any]


class NamedAgents(dict[str, "AgentLike | str"]):
    """Several agents by name; a text is the name of an agent that is defined elsewhere."""


def several_agents(
    agents: Sequence[AgentLike | str] | Mapping[str, AgentLike | str],
) -> list[str] | NamedAgents:
    """Return agents by name, from a list or a mapping; names alone stay a list."""
    if isinstance(agents, Mapping):
        return NamedAgents(agents)
    listed = [agents] if isinstance(agents, str) else list(agents)
    names = [agent if isinstance(agent, str) else _agent_name(agent) for agent in listed]
    if all(isinstance(agent, str) for agent in listed):
        return names
    if twice := [name for name in names if names.count(name) > 1]:
        raise ProctorError(
            f"two agents are called {twice[0]!r}", hint="name them: agents={'first': …}"
        )
    return NamedAgents(zip(names, listed, strict=True))


@dataclass
class RunContext:
    """What the trials of a run share: read-only, and the same in this process and on a worker.

    `checkpoints` and `on_transient` are the exception: whoever runs the trials sets them.
    """

    suite: Suite
    options: RunOptions
    configuration: Configuration
    agents: dict[str, AgentConfig]
    cases: dict[str, PreparedCase]
    judges: dict[str, Judge] = field(default_factory=dict[str, Judge])
    prices: PriceTable | None = None
    redactor: Redactor | None = None
    written: dict[str, Any] = field(default_factory=dict[str, Any])
    """The agents as a run folder records them."""
    plan: Plan = field(default_factory=lambda: Plan((), {}))
    """Every trial of the run; empty on a worker, which is sent the trials one by one."""
    design: Design | None = None
    """What an experiment adds: axes, scenarios, where its cases come from."""
    unfolding: Unfolding | None = None
    """The rounds, where trials are chosen from results so far."""
    checkpoints: CheckpointStore | None = None
    """Where agents save the state of trials that can be resumed."""
    on_transient: Callable[[str, Transient], None] | None = None
    """Called with the agent and the reason at every failure that may pass."""
    clock: Callable[[], int] = time.time_ns
    sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep

    @property
    def name(self) -> str:
        """The name of its runs."""
        return self.design.name if self.design is not None else suite_name(self.suite)

    @property
    def output(self) -> str:
        """The path of its runs below the results folder."""
        return self.design.output if self.design is not None else OUTPUT


def prepare(
    suite: Suite,
    options: RunOptions,
    *,
    agents: Mapping[str, AgentLike] | None = None,
    cases: Sequence[Case] | None = None,
    configuration: Configuration | None = None,
    design: Design | None = None,
) -> RunContext:
    """Check and resolve everything that can be wrong before the first trial.

    The configuration is that of the suite's folder unless one is given; options win over it.
    """
    configuration = configuration or load_configuration(suite.folder)
    options = options.within(configuration.settings.limits)
    chosen = list(suite.cases if cases is None else cases)
    found = chosen_agents(suite, configuration, agents)
    configs = {name: agent.config for name, agent in found.items()}
    context = context_for(suite, options, configs, chosen, configuration, design)
    context.written = {name: agent.written for name, agent in found.items()}
    if design is not None and design.research is not None:
        context.unfolding = unfolding_of(design.research, chosen, configs, design.axes, options)
        context.plan = context.unfolding.plan
    else:
        context.plan = plan_trials(
            chosen, configs, options, None if design is None else design.axes
        )
    return context


def context_for(
    suite: Suite,
    options: RunOptions,
    agents: dict[str, AgentConfig],
    cases: Sequence[Case],
    configuration: Configuration,
    design: Design | None = None,
) -> RunContext:
    """Build what runs the trials of these cases, here or on a worker, without a plan."""
    settings = configuration.settings
    prices = settings.price_table()
    redactor = default_redactor()
    if (patterns := settings.redaction.patterns) or suite.secrets:
        # Under names that say what they are, since a redactor goes by the names of variables.
        held = {f"SUITE_{index}_SECRET": text for index, text in enumerate(sorted(suite.secrets))}
        redactor = Redactor(patterns, {**os.environ, **held})
    default = suite.judge or settings.judge
    judges = {**({} if default is None else {DEFAULT_JUDGE: default}), **suite.judges}
    return RunContext(
        suite=suite,
        options=options,
        configuration=configuration,
        agents=agents,
        cases=_prepared_cases(suite, cases, agents, configuration, design),
        judges={
            # Making a judge costs nothing: its models are loaded at the first question.
            name: Judge(
                [
                    get_model(
                        model,
                        base_url=config.base_url,
                        api_key_env=config.api_key_env,
                        prices=prices,
                    )
                    for model in config.models
                ],
                settings=config.settings,
                cache=JudgeCache(default_cache_folder()) if config.cache else None,
            )
            for name, config in judges.items()
        },
        prices=prices,
        redactor=redactor,
        design=design,
    )


@asynccontextmanager
async def closing(judges: Mapping[str, Judge]) -> AsyncGenerator[None]:
    """Close the connections of judges at the end, in the event loop they were opened in."""
    try:
        yield
    finally:
        for judge in judges.values():
            for model in judge.models:
                if isinstance(model, ClosingModel):
                    await model.aclose()


def _prepared_cases(
    suite: Suite,
    chosen: Sequence[Case],
    agents: Iterable[str],
    configuration: Configuration,
    design: Design | None,
) -> dict[str, PreparedCase]:
    """Cases with their checks and baselines; those of an experiment as where they came from."""
    if design is None:
        folder = configuration.baselines
        if folder is None or "baselines" in suite.model_fields_set:
            folder = suite.folder / Path(suite.baselines).expanduser()
        saved = baselines_in(folder, [c.id for c in chosen], agents) if folder.is_dir() else {}
        return {case.id: prepared_case(case, saved.get(case.id)) for case in chosen}
    prepared: dict[str, PreparedCase] = {}
    for case in chosen:
        scenario = design.scenarios.get(case.id)
        origin = design.origins.get(case.id)
        if scenario is not None:
            prepared[case.id] = staged_case(scenario, case)
            continue
        if origin is not None:
            case.put(case.place or SourceLocation(suite_name(suite)), origin.folder)
        saved = {} if origin is None else baselines_in(origin.baselines, [case.id], agents)
        prepared[case.id] = prepared_case(case, saved.get(case.id))
    return prepared


def chosen_agents(
    suite: Suite, configuration: Configuration, agents: Mapping[str, AgentLike] | None
) -> dict[str, ChosenAgent]:
    """The agents that are put to the test, each with how it is kept."""
    if agents:
        found = {
            name: a if isinstance(a, ChosenAgent) else ChosenAgent.of(_config(a, suite.folder))
            for name, a in agents.items()
        }
    else:
        found = choose_agents(suite, (), configuration)
    for agent in found.values():
        # Code that cannot be imported is one error now, not one for every trial.
        agent.config.version()
    return found


def _config(
    agent: AgentConfig | Mapping[str, Any] | Callable[..., Any], folder: Path
) -> AgentConfig:
    return agent if isinstance(agent, AgentConfig) else agent_config(agent, base_dir=folder)


def prepared_case(case: Case, baselines: Mapping[str, Trace] | None = None) -> PreparedCase:
    """A case with its checks planned once."""
    return PreparedCase(
        case=case,
        input=case.input,
        checks=checks_of(case),
        threshold=case.threshold,
        baselines=baselines or {},
    )


def given_agents(
    suite: Suite,
    agent: AgentLike | str | list[str] | None,
    configuration: Configuration,
) -> dict[str, AgentLike] | None:
    """Agents by name, from whatever a caller says is under test; None leaves it to the suite."""
    if agent is None:
        return None
    if isinstance(agent, NamedAgents):
        return {
            name: choose_agents(suite, [each], configuration)[each]
            if isinstance(each, str)
            else each
            for name, each in agent.items()
        }
    if isinstance(agent, str | list):
        names = [agent] if isinstance(agent, str) else cast("list[str]", agent)
        return {**choose_agents(suite, names, configuration)} if names else None
    return {_agent_name(agent): agent}


def suite_name(suite: Suite) -> str:
    """What runs of a suite are kept under: the name of its file."""
    return suite.path.stem if suite.path is not None else "suite"


def _agent_name(agent: AgentLike) -> str:
    if isinstance(agent, ChosenAgent):
        agent = agent.config
    if isinstance(agent, AgentConfig):
        return str(agent.model_dump().get("target", agent.kind))
    if isinstance(agent, Mapping):
        options = dict(cast("Mapping[str, Any]", agent))
        return str(options.get("target") or options.get("kind"))
    called = getattr(agent, "__name__", None) or getattr(agent, "name", None)
    return called if isinstance(called, str) and called else type(agent).__name__


# -- the record of a run, from which it is resumed and repeated: no secret is in it --------------

KEPT_SETTINGS = ("judge", "prices", "redaction")
"""Settings that change results; limits are among the options, agents in the suite."""


def spec_record(context: RunContext) -> dict[str, Any]:
    """What the folder keeps so that the run can be resumed and repeated."""
    suite = context.suite
    redact = (context.redactor or default_redactor()).value
    return {
        "run_id": new_run_id(),
        "name": context.name,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "provenance": provenance(suite.folder),
        "base_dir": str(suite.folder.resolve()),
        "options": context.options.record(),
        "agents": {
            name: redact(
                {**config.model_dump(mode="json", exclude_none=True), "version": config.version()}
            )
            for name, config in context.agents.items()
        },
        "settings": _without_secrets(written_settings(context.configuration)),
        **({} if context.design is None else {"experiment": context.design.record()}),
        "suite": written_suite(context, _without_secrets(context.written)),
        "cells": context.plan.record(),
        "stopped": None,
    }


def memory_record(context: RunContext, plan: Plan, stopped: str | None) -> dict[str, Any]:
    """Return what reports read of a run that is not kept; provenance would cost more than it."""
    return {
        "run_id": new_run_id(),
        "name": context.name,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "options": context.options.record(),
        "suite": written_suite(context, _without_secrets(context.written)),
        "cells": plan.record(),
        "stopped": stopped,
    }


def written_settings(configuration: Configuration) -> dict[str, Any]:
    """Return the settings that results depend on, as they were written."""
    found = {key: configuration.tree.child(key) for key in KEPT_SETTINGS}
    return {key: plain(tree, as_written=True) for key, tree in found.items() if tree is not None}


def written_suite(context: RunContext, agents: Mapping[str, Any]) -> dict[str, Any]:
    """Return the suite as it ran: its selected cases, and these agents as they were written."""
    whole = context.suite.resolved()
    cases = [
        written
        for case, written in zip(context.suite.cases, whole["cases"], strict=True)
        if case.id in context.cases
    ]
    rest = {key: value for key, value in whole.items() if key not in ("agent", "agents", "cases")}
    return {**rest, "agents": agents, "cases": cases}


def _without_secrets(value: Any) -> Any:
    """What somebody wrote, with secrets out of it; references to variables hold none."""
    if isinstance(value, dict):
        options = cast("dict[str, Any]", value)
        return {key: _without_secrets(item) for key, item in options.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(item) for item in cast("list[Any]", value)]
    return default_redactor().text(value) if isinstance(value, str) else value
