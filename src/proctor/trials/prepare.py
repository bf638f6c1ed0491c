"""Validate everything a run needs, select its agents, and build its `RunContext`.

Promise: everything that can be wrong is an error here, before the first trial. What the run folder
records of it is lossless: a run is resumed and repeated from its folder alone. Agents are those of
the suite, of the settings, or named on the command line; each is recorded as written, with
environment variables as references, so that the folder contains no secret.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec.structs import replace as replace_fields

from proctor import imports
from proctor.agents.base import AgentConfig
from proctor.agents.ensemble import EnsembleAgentConfig
from proctor.agents.registry import (
    UnknownAgentError,
    agent_config,
    find_agent,
    named_agents,
    resolve_agent,
)
from proctor.checks.judge import Judge, JudgeCache, default_cache_folder
from proctor.checks.judge_checks import DEFAULT_JUDGE
from proctor.errors import ProctorError, did_you_mean
from proctor.imports import IMPORT_PATH
from proctor.llm.chat_model import ClosingModel
from proctor.llm.prices import PriceTable, load_published_prices
from proctor.llm.providers import NamedModel, get_model
from proctor.runs.baselines import BaselineStore, LoadedBaseline
from proctor.runs.folder import OUTPUT
from proctor.runs.provenance import new_run_id, provenance
from proctor.sanitize import map_texts
from proctor.spec import (
    Case,
    Configuration,
    SourceLocation,
    Suite,
    checks_of,
    load_configuration,
)
from proctor.spec.located import Tree, escaped, plain
from proctor.spec.suite import DataCases
from proctor.trace.redact import Redactor, default_redactor, url_secrets
from proctor.trials._research import Outline, Unfolding, unfolding_of
from proctor.trials._scenario_cases import (
    Scenario,
    restored_scenarios,
    scenario_case,
    scenarios_record,
)
from proctor.trials.options import ExecutorName, Isolation, RunBudget, RunOptions
from proctor.trials.plan import Axes, Plan, plan_trials
from proctor.trials.run_trial import PreparedCase

if TYPE_CHECKING:
    from proctor.agents.checkpoint import CheckpointStore
    from proctor.gateway.budget import CallLedger
    from proctor.gateway.options import ForkPoint
    from proctor.gateway.prefix import Prefix
    from proctor.llm.retry import Transient
    from proctor.runs.trial import PlannedTrial, Trial
    from proctor.sandbox.options import SandboxOptions
    from proctor.sandbox.place import Workspaces
    from proctor.trace import Trace
    from proctor.trials.pool import LocalWorkers


class ChosenAgent(NamedTuple):
    """An agent that can be run, and its form in the record of a run."""

    config: AgentConfig
    written: Any

    @classmethod
    def of(cls, config: AgentConfig) -> ChosenAgent:
        """Return an agent made in Python, which has no written form."""
        return cls(config, escaped(config.model_dump(mode="json", exclude_none=True)))


def choose_agents(
    suite: Suite, names: Sequence[str], configuration: Configuration
) -> dict[str, ChosenAgent]:
    """Return the named agents, else those of the suite, else the one of the settings."""
    fallback = configuration.settings.agent
    names = list(names or suite.all_agents)
    if not names and fallback is not None:
        if fallback.kind is None and fallback.name is not None:
            return {str(fallback): _named(suite, fallback.name, configuration)}
        options = fallback.model_dump(exclude_none=True)
        tree = _child(configuration.tree, "agent")
        return {str(fallback): _placed(options, tree, configuration)}
    if not names:
        raise UnknownAgentError(
            "no agent: say what is under test",
            hint="use --agent (in a world, random will do), or set `agent:` in the file "
            "or the settings",
        )
    return {name: _named(suite, name, configuration) for name in names}


def _named(
    suite: Suite, name: str, configuration: Configuration, inside: tuple[str, ...] = ()
) -> ChosenAgent:
    own = suite.all_agents.get(name)
    if own is not None and own.kind is not None:
        config = agent_config(own.model_dump(exclude_none=True), base_dir=suite.folder)
        record = suite.resolved(cases=False)
        chosen = ChosenAgent(config, record.get("agent") or record["agents"][name])
        if isinstance(config, EnsembleAgentConfig):
            chosen = _with_members(chosen, config, suite, configuration, (*inside, name))
        return chosen
    registered = own.name if own is not None and own.name is not None else name
    options = configuration.settings.agents.get(registered)
    if options is not None:
        tree = _child(configuration.tree, "agents", registered)
        chosen = _placed(options, tree, configuration)
        if isinstance(chosen.config, EnsembleAgentConfig):
            chosen = _with_members(chosen, chosen.config, suite, configuration, (*inside, name))
        return chosen
    if find_agent(registered) is not None:
        return ChosenAgent.of(resolve_agent(registered, base_dir=suite.folder))
    if own is None and re.fullmatch(IMPORT_PATH, name):
        target = {"kind": "python", "target": name}
        return ChosenAgent(agent_config(target, base_dir=suite.folder), target)
    raise _unknown(registered, suite, configuration)


def _with_members(
    chosen: ChosenAgent,
    config: EnsembleAgentConfig,
    suite: Suite,
    configuration: Configuration,
    inside: tuple[str, ...],
) -> ChosenAgent:
    """Return an ensemble with the options of the agents it names, so that it is self-contained."""
    members: dict[str, Any] = dict(config.members)
    as_written = chosen.written.get("members")
    recorded = dict(cast("dict[str, Any]", as_written if isinstance(as_written, dict) else members))
    judge, written = config.judge, dict(chosen.written)
    for name, ref in members.items():
        if found := _by_name(ref, suite, configuration, inside):
            members[name], recorded[name] = _options(found), found.written
    if found := _by_name(judge, suite, configuration, inside):
        judge, written["judge"] = _options(found), found.written
    config = config.model_copy(update={"members": members, "judge": judge})
    return ChosenAgent(config, {**written, "members": recorded})


def _by_name(
    ref: Any, suite: Suite, configuration: Configuration, inside: tuple[str, ...]
) -> ChosenAgent | None:
    """Return the agent that a member refers to; None if the member is written out."""
    if not isinstance(ref, str) or re.fullmatch(IMPORT_PATH, ref):
        return None
    if ref in inside:
        raise UnknownAgentError(f"an ensemble is inside itself: {' > '.join((*inside, ref))}")
    return _named(suite, ref, configuration, inside)


def _options(agent: ChosenAgent) -> dict[str, Any]:
    """Return an agent's options with the base of its import paths, which a dump leaves out."""
    base = getattr(agent.config, "base_dir", None)
    options = agent.config.model_dump(exclude_none=True)
    return options if base is None else {**options, "base_dir": base}


def _placed(
    options: Mapping[str, Any], tree: Tree | None, configuration: Configuration
) -> ChosenAgent:
    """Return an agent of the settings; its import paths start at the settings' folder."""
    config = agent_config(options, base_dir=configuration.folder)
    written: Any = None if tree is None else plain(tree, as_written=True)
    # The short form is an import path, which cannot name its base.
    record: dict[str, Any] = {**(written if isinstance(written, dict) else escaped(dict(options)))}
    if "base_dir" in type(config).model_fields:
        record["base_dir"] = escaped(str(configuration.folder.resolve()))
    return ChosenAgent(config, record)


def _child(tree: Tree | None, *names: str) -> Tree | None:
    for name in names:
        tree = None if tree is None else tree.child(name)
    return tree


def _unknown(name: str, suite: Suite, configuration: Configuration) -> UnknownAgentError:
    registered = configuration.settings.agents
    own = [*(n for n, ref in suite.all_agents.items() if ref.kind), *registered]
    listed = f"known: {', '.join(own)}" if own else None
    return UnknownAgentError(
        f"there is no agent {name!r}",
        hint=did_you_mean(name, [*own, *named_agents()])
        or listed
        or "write package.module:function, or add it to `agents` in proctor.yaml",
    )


class Origin(NamedTuple):
    """The suite a case came from: its import paths and baselines are relative to it."""

    folder: Path
    baselines: Path
    baseline: str | None = None

    def record(self) -> dict[str, str]:
        """Return it as the run folder records it."""
        version = {} if self.baseline is None else {"baseline": self.baseline}
        return {"folder": str(self.folder), "baselines": str(self.baselines), **version}


@dataclass(frozen=True)
class Design:
    """What an experiment adds to a suite: axes, scenarios, where each case came from."""

    name: str
    axes: Axes
    output: str = OUTPUT
    description: str | None = None
    scenarios: Mapping[str, Scenario] = field(default_factory=dict[str, Scenario])
    """By case id; the other cases come from suites."""
    origins: Mapping[str, Origin] = field(default_factory=dict[str, Origin])
    """By case id, for cases of suites."""
    research: Outline | None = None
    """How trials are selected from results so far; None if all are planned beforehand."""

    def record(self) -> dict[str, Any]:
        """Return it as the run folder records it; templates are recorded whole."""
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
        """Return the design that a run folder records."""
        origins: Mapping[str, Mapping[str, str]] = record.get("origins") or {}
        return cls(
            name=str(record["name"]),
            axes=Axes.restored(record),
            output=str(record.get("output", OUTPUT)),
            description=record.get("description"),
            scenarios=restored_scenarios(record.get("scenarios") or {}),
            origins={
                case: Origin(Path(each["folder"]), Path(each["baselines"]), each.get("baseline"))
                for case, each in origins.items()
            },
            research=Outline.restored(record["research"]) if "research" in record else None,
        )


def store_of(suite: Suite, configuration: Configuration | None = None) -> BaselineStore:
    """Return the baseline store that the suite names, else the settings, else the one beside it."""
    if "baselines" not in suite.model_fields_set:
        configured = (configuration or load_configuration(suite.folder)).baselines
        if configured is not None:
            return BaselineStore(configured)
    return BaselineStore(suite.folder / Path(suite.baselines).expanduser())


AgentLike = ChosenAgent | AgentConfig | Mapping[str, Any] | Callable[..., Any]


GivenAgents = Mapping[str, AgentLike | str]
"""Agents by name; a text refers to an agent that the suite, the settings or a package defines."""


def agents_by_name(
    agent: AgentLike | str | None = None,
    agents: Sequence[AgentLike | str] | GivenAgents | None = None,
) -> GivenAgents | None:
    """Return one agent, or several, by name; None where none is given."""
    if agent is not None and agents is not None:
        raise ProctorError("give agent or agents, not both")
    if isinstance(agents, Mapping):
        return agents or None
    if agents is None:
        agents = () if agent is None else (agent,)
    found: dict[str, AgentLike | str] = {}
    for each in (agents,) if isinstance(agents, str) else agents:
        name = each if isinstance(each, str) else agent_name(each)
        if name in found and (found[name], each) != (name, name):
            raise ProctorError(
                f"two agents are called {name!r}", hint="name them: agents={'first': …}"
            )
        found[name] = each
    return found or None


@dataclass
class RunContext:
    """What the trials of a run share: read-only, and the same in this process and on a worker.

    The exceptions are `checkpoints`, `budget`, `ledger` and `on_transient`, which the executor or
    session sets.
    """

    suite: Suite
    options: RunOptions
    configuration: Configuration
    agents: dict[str, AgentConfig]
    cases: Mapping[str, PreparedCase]
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
    """The rounds, if trials are selected from results so far."""
    versions: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """What identifies the code or model of each agent."""
    asynchronous: bool = True
    """Whether running several trials at once in one process is useful; known for workers."""
    workers: LocalWorkers | None = None
    """The processes that run the code of users; None where this process does."""
    isolated: bool = False
    """Whether this process is a worker, in which nothing but trials can be interrupted."""
    left_running: int = 0
    """Agents that did not end when they were cancelled."""
    checkpoints: CheckpointStore | None = None
    """Where agents save the state of trials that can be resumed."""
    budget: RunBudget | None = None
    """What the run has used; None in a worker."""
    ledger: CallLedger | None = None
    """Where calls through the gateway are counted: the budget, or a worker's way to it."""
    workspaces: Workspaces | None = None
    """The files that trials copy, where cases have workspaces."""
    fork: ForkedTrial | None = None
    """The recorded trial that every trial of the run continues."""
    on_transient: Callable[[str, Transient], None] | None = None
    """Called with the agent and the reason at every transient failure."""
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
    agents: GivenAgents | None = None,
    cases: Sequence[Case] | None = None,
    configuration: Configuration | None = None,
    design: Design | None = None,
) -> RunContext:
    """Check and resolve everything that can be wrong before the first trial.

    The configuration defaults to that of the suite's folder; options override it.
    """
    configuration = configuration or load_configuration(suite.folder)
    if options.on_agent_error is None and suite.on_agent_error is not None:
        options = options.model_copy(update={"on_agent_error": suite.on_agent_error})
    options = options.within(configuration.settings.limits)
    chosen = suite.cases if cases is None else cases
    found = chosen_agents(suite, configuration, agents)
    configs = {name: agent.config for name, agent in found.items()}
    if suite.sandbox is not None:
        configs = {name: with_sandbox(each, suite.sandbox) for name, each in configs.items()}
    isolated = options.isolation is Isolation.WORKER or not imports.executes_user_code
    # Code that cannot be imported is one error now, not one for every trial.
    versions = {} if isolated else {name: config.version() for name, config in configs.items()}
    context = context_for(suite, options, configs, chosen, configuration, design, code=not isolated)
    context.versions = versions
    context.written = {name: agent.written for name, agent in found.items()}
    if design is not None and design.research is not None:
        context.unfolding = unfolding_of(design.research, chosen, configs, design.axes, options)
        context.plan = context.unfolding.plan
    else:
        context.plan = plan_trials(
            chosen, configs, options, None if design is None else design.axes
        )
    if isolated:
        from proctor.trials.pool import LocalWorkers

        context.workers = LocalWorkers(context)
        facts = context.workers.load().agents
        context.versions = {name: each.version for name, each in facts.items()}
        context.asynchronous = any(each.asynchronous for each in facts.values())
    elif options.executor == ExecutorName.RAY:
        context.asynchronous = any(config.asynchronous for config in configs.values())
    return context


def unsupported_parts(case: Case, agents: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a message and a hint for each agent that is never given what a case has."""
    hint = "agents of kind chat can, and of kind python without a process of its own"
    for name, config in agents.items():
        keys = [key for key in getattr(config, "unsupported", ()) if getattr(case, key)]
        if keys:
            shown = " and ".join(f"`{key}`" for key in keys)
            yield f"agent {name!r} ({config.kind}) cannot use {shown} of {case.id!r}", hint


def with_sandbox(config: AgentConfig, sandbox: SandboxOptions) -> AgentConfig:
    """Return an agent with the suite's sandbox, unless it names its own."""
    if config.sandbox is not None:
        return config
    if not config.has_process and sandbox:
        raise ProctorError(
            f"an agent of kind {config.kind} has no process to put in the suite's sandbox",
            hint="write `sandbox: none` in the agent to run it without one",
        )
    return config.model_copy(update={"sandbox": sandbox})


def load_code(context: RunContext) -> None:
    """Import agents and custom checks into a context made without them, or raise."""
    for config in context.agents.values():
        config.version()
    if isinstance(context.cases, PreparedCases):
        context.cases.code = True
    for _, prepared in _distinct(context.cases):
        if prepared.case.checks and prepared.build is None:
            prepared.checks = checks_of(prepared.case)


NO_JUDGE = ("no judge is configured", "add `judge: {model: openai:gpt-4o-mini}` to the suite")
"""Message and hint for a case that only a judge can judge."""


def needs_default_judge(case: Case) -> bool:
    """Return whether a rule of a case names no judge; grounding works without one."""
    rules = [*(case.correctness.llm_judge or ()), case.correctness.safety_check]
    return any(rule and not (rule.judge or rule.model) for rule in rules)


def check_names(context: RunContext) -> None:
    """Raise for an agent or a judge that no trial could use: its code, tools, model or key.

    `prepare` leaves this to the first trial, since client libraries take seconds to import.
    """
    if context.options.replay_from is not None:
        return  # replayed calls need neither a client library nor a key
    if DEFAULT_JUDGE not in context.judges:
        for name, prepared in _distinct(context.cases):
            if needs_default_judge(prepared.case):
                raise ProctorError(f"case {name!r}: {NO_JUDGE[0]}", hint=NO_JUDGE[1])
    if context.workers is not None:
        context.workers.load(check=True)
        return
    for name, config in context.agents.items():
        try:
            config.check()
        except ProctorError as error:
            raise ProctorError(
                f"agent {name!r}: {error.message}", where=error.where, hint=error.hint
            ) from error
    used = [(f"judge {name!r}", m) for name, judge in context.judges.items() for m in judge.models]
    for name, prepared in _distinct(context.cases):
        # A check may name a model of its own.
        named = [getattr(check, "model", None) for check in prepared.checks if check.judged]
        used += [(f"a judge of case {name!r}", get_model(each)) for each in named if each]
    for what, model in used:
        if isinstance(model, NamedModel):
            try:
                model.check()
            except ProctorError as error:
                raise ProctorError(
                    f"{what}: {error.message}", where=error.where, hint=error.hint
                ) from error


class NamedEndpoint(NamedTuple):
    """A model that a suite names, with its endpoint and key where they are not the provider's."""

    name: str
    base_url: str | None
    api_key_env: str | None


def named_models(
    suite: Suite, agents: Iterable[Any], configuration: Configuration
) -> Iterable[NamedEndpoint]:
    """Return the models of judges and chat agents, each once."""
    judges = [suite.judge, *suite.judges.values(), configuration.settings.judge]
    named = [
        NamedEndpoint(model, judge.base_url, judge.api_key_env)
        for judge in judges
        if judge is not None
        for model in judge.models
    ]
    named += [
        NamedEndpoint(config.model, config.base_url, config.api_key_env)
        for config in agents
        # The small local model needs neither a client library nor a key.
        if getattr(config, "kind", None) == "chat" and not config.model.startswith("local:")
    ]
    return dict.fromkeys(named)


def load_early(context: RunContext) -> None:
    """Load clients of models, frameworks and price tables, so that no trial waits for them.

    What cannot be loaded is an error of the trials that need it.
    """
    judging = [model for judge in context.judges.values() for model in judge.models]
    for each in (*context.agents.values(), *judging):
        if isinstance(each, AgentConfig | NamedModel):
            with suppress(Exception):
                each.check()
    if context.judges or MODEL_CLIENTS & sys.modules.keys():
        load_published_prices()


MODEL_CLIENTS = frozenset(
    "openai anthropic pydantic_ai litellm langchain_core mistralai groq google.genai httpx "
    "httpx2 strands dspy".split()
)
"""Packages whose presence says that model calls will have to be priced."""


def context_for(
    suite: Suite,
    options: RunOptions,
    agents: dict[str, AgentConfig],
    cases: Sequence[Case],
    configuration: Configuration,
    design: Design | None = None,
    *,
    code: bool = True,
) -> RunContext:
    """Build what runs the trials of these cases, here or on a worker, without a plan.

    Without `code`, nothing of the user is imported: `load_code` does that.
    """
    settings = configuration.settings
    prices = settings.price_table()
    redactor = default_redactor()
    secrets = {*suite.secrets}
    for config in agents.values():
        if isinstance(url := getattr(config, "url", None), str):
            secrets.update(url_secrets(url))
    if (patterns := settings.redaction.patterns) or secrets:
        # The redactor recognises secrets by the names of variables, so they get such names.
        held = {f"SUITE_{index}_SECRET": text for index, text in enumerate(sorted(secrets))}
        redactor = Redactor(patterns, {**os.environ, **held})
    workspaces = None
    sandboxed = any(config.sandbox is not None for config in agents.values())
    # Rows of a large data set do not decide whether there are workspaces.
    placed = () if isinstance(cases, DataCases) and cases[0].workspace is None else cases
    used = {case.id: case.workspace for case in placed if case.workspace is not None}
    if used or sandboxed:
        from proctor.sandbox.place import Workspaces

        workspaces = Workspaces(used)
    # The suite's own judge comes before that of the settings.
    default = suite.judge or settings.judge
    judges = {**({} if default is None else {DEFAULT_JUDGE: default}), **suite.judges}
    return RunContext(
        suite=suite,
        options=options,
        configuration=configuration,
        agents=agents,
        cases=_prepared_cases(suite, cases, agents, configuration, design, code),
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
        workspaces=workspaces,
        fork=None if options.fork is None else forked_trial(options.fork, redactor),
    )


class ForkedTrial(NamedTuple):
    """A recorded trial that the trials of a run continue."""

    point: ForkPoint
    trial: Trial
    trace: Trace
    numbers: Mapping[str, int]
    """The step of each span."""
    last: int
    """The number of the last step."""
    redactor: Redactor

    def prefix(self, agent: str, config: AgentConfig) -> Prefix:
        """Return the recorded calls for one attempt of an agent."""
        from proctor.gateway.prefix import Prefix

        arm, redact = self.point.arms[agent], self.redactor.text
        # A program calls its own tools: only messages, or its report, show them.
        ours = "gateway" not in type(config).model_fields
        seed, last = self.trial.seed, self.last
        return Prefix(self.trace, self.numbers, arm, redact, seed, last, in_process=ours)

    @property
    def parent(self) -> dict[str, str]:
        """What a forked trial's trace records of its parent."""
        return {"run": self.point.run, "trial": self.point.trial}

    def planned(self, planned: PlannedTrial) -> PlannedTrial:
        """Return a trial with the parent's seeds, from which its scenario is built."""
        mine = self.trial
        return replace_fields(
            planned, seed=mine.seed, axis_seed=mine.axis_seed, params=mine.params, index=mine.index
        )


def forked_trial(point: ForkPoint, redactor: Redactor) -> ForkedTrial:
    """Load the trial that a run continues."""
    from proctor.diagnose.methods import acts_of
    from proctor.runs.run import Run

    run = Run(point.run)
    trial = next((one for one in run.trials() if one.name == point.trial), None)
    trace = None if trial is None else run.trace(trial)
    if trial is None or trace is None:
        raise ProctorError(f"the trial {point.trial} has no trace to continue", where=point.run)
    numbers: dict[str, int] = {}
    acts = acts_of(trace)
    for act in acts:
        # The answer of plain code has no span of its own: it is found at the root.
        own = () if act.answers and act.span is trace.index.spans[0] else (act.span,)
        numbers.update((span.span_id, act.number) for span in (*own, *act.tools))
    last = acts[-1].number if acts else 0
    return ForkedTrial(point, trial, trace, numbers, last, redactor)


@asynccontextmanager
async def closing(judges: Mapping[str, Judge]) -> AsyncGenerator[None]:
    """Close the connections of judges at the end, in the event loop that opened them."""
    try:
        yield
    finally:
        for judge in judges.values():
            for model in judge.models:
                if isinstance(model, ClosingModel):
                    await model.aclose()


def _prepared_cases(
    suite: Suite,
    cases: Sequence[Case],
    agents: Mapping[str, AgentConfig],
    configuration: Configuration,
    design: Design | None,
    code: bool,
) -> Mapping[str, PreparedCase]:
    """Return cases with their checks and the baseline of each agent.

    The cases of an experiment use the folder and the baselines of the suite they came from.
    """
    if isinstance(cases, DataCases):
        return PreparedCases(
            cases,
            lambda case, code: _prepared_cases(suite, [case], agents, configuration, design, code),
            code,
        )
    prepared: dict[str, PreparedCase] = {}
    missing: dict[str, str] = {}
    for case in cases:
        in_turns = bool(case.turns or case.user or case.state or case.approvals)
        for message, hint in unsupported_parts(case, agents) if in_turns else ():
            raise ProctorError(message, hint=hint)
        if design is not None and (scenario := design.scenarios.get(case.id)) is not None:
            prepared[case.id] = scenario_case(scenario, case)
            continue
        store, version = store_of(suite, configuration), suite.baseline
        if design is not None and (origin := design.origins.get(case.id)) is not None:
            case.put(case.place or SourceLocation(suite_name(suite)), origin.folder)
            store, version = BaselineStore(origin.baselines), origin.baseline
        saved: dict[str, LoadedBaseline] = {}
        for agent in agents if version is not None or store.root.is_dir() else ():
            problems: list[str] = []
            if (found := store.load(agent, case.id, version, problems=problems)) is not None:
                saved[agent] = found
            elif version is not None and version not in missing:
                missing[version] = store.missing(agent, version, case.id)
            for problem in problems:
                logging.getLogger("proctor").warning("%s; skipped", problem)
        checks = () if case.checks and not code else checks_of(case)
        prepared[case.id] = PreparedCase(case, checks, case.threshold, saved)
        if in_turns:
            from proctor.conversations import converse

            prepared[case.id].play = partial(converse, case)
    # A new case has no baseline yet, but a version that no case has is a typing error.
    used = {each.baseline.version for one in prepared.values() for each in one.baselines.values()}
    for version, why in missing.items():
        if version not in used:
            raise ProctorError(why, where=suite_name(suite))
    return prepared


class PreparedCases(Mapping[str, PreparedCase]):
    """The cases of a large data set, each prepared when a trial needs it."""

    def __init__(
        self,
        cases: DataCases,
        prepare: Callable[[Case, bool], Mapping[str, PreparedCase]],
        code: bool,
    ) -> None:
        self.cases, self._prepare, self.code = cases, prepare, code
        self._recent: dict[str, PreparedCase] = {}
        """The last ones: agents and repeats need the same case soon."""

    def __getitem__(self, name: str) -> PreparedCase:
        if (found := self._recent.get(name)) is None:
            index = self.cases.index_of(name)
            if index is None:
                raise KeyError(name)
            found = self._prepare(self.cases[index], self.code)[name]
            if len(self._recent) >= RECENT_CASES:
                del self._recent[next(iter(self._recent))]
            self._recent[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return self.cases.ids()

    def __len__(self) -> int:
        return len(self.cases)


RECENT_CASES = 256
"""Prepared cases of a data set in memory: more than run at the same time."""


def _distinct(cases: Mapping[str, PreparedCase]) -> Iterable[tuple[str, PreparedCase]]:
    """Return the cases that may need different code and judges: of a large data set, one."""
    if isinstance(cases, PreparedCases):
        first = next(iter(cases))
        return [(first, cases[first])]
    return cases.items()


def chosen_agents(
    suite: Suite, configuration: Configuration, agents: GivenAgents | None
) -> dict[str, ChosenAgent]:
    """Return the agents to test: those given, else those of the suite or the settings."""
    found: dict[str, ChosenAgent] = {}
    for name, agent in (agents or choose_agents(suite, (), configuration)).items():
        if isinstance(agent, ChosenAgent):
            found[name] = agent
        elif isinstance(agent, str):
            found[name] = _named(suite, agent, configuration)
        elif isinstance(agent, AgentConfig):
            found[name] = ChosenAgent.of(agent)
        else:
            found[name] = ChosenAgent.of(agent_config(agent, base_dir=suite.folder))
    return found


def suite_name(suite: Suite) -> str:
    """Return the name of a suite's runs: that of its file."""
    return suite.path.stem if suite.path is not None else "suite"


def agent_name(agent: AgentLike) -> str:
    """Return the name of an agent that was given without one."""
    if isinstance(agent, ChosenAgent):
        agent = agent.config
    if isinstance(agent, AgentConfig):
        return str(agent.model_dump().get("target", agent.kind))
    if isinstance(agent, Mapping):
        options = dict(cast("Mapping[str, Any]", agent))
        return str(options.get("target") or options.get("kind"))
    called = getattr(agent, "__name__", None) or getattr(agent, "name", None)
    return called if isinstance(called, str) and called else type(agent).__name__


# -- the record of a run: it contains no secret -------------------------------------------------

RECORDED_SETTINGS = ("judge", "prices", "redaction")
"""Settings that change results; limits are among the options, agents in the suite."""


def spec_record(context: RunContext) -> dict[str, Any]:
    """Return the spec of the run folder, from which the run is resumed and repeated."""
    suite, redactor = context.suite, context.redactor or default_redactor()
    return {
        "run_id": new_run_id(),
        "name": context.name,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "provenance": provenance(suite.folder),
        "base_dir": str(suite.folder.resolve()),
        "options": context.options.record(),
        "agents": {
            name: redactor.value(
                {**config.model_dump(mode="json", exclude_none=True), "version": version}
            )
            for (name, config), version in zip(
                context.agents.items(), context.versions.values(), strict=True
            )
        },
        "settings": map_texts(written_settings(context.configuration), redactor.text),
        **({} if context.design is None else {"experiment": context.design.record()}),
        "suite": written_suite(context, map_texts(context.written, redactor.text)),
        "cells": context.plan.record(),
        "stopped": None,
    }


def memory_record(context: RunContext, plan: Plan, stopped: str | None) -> dict[str, Any]:
    """Return the spec of a run in memory, without provenance: that would cost more than the run."""
    redactor = context.redactor or default_redactor()
    return {
        "run_id": new_run_id(),
        "name": context.name,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "options": context.options.record(),
        "suite": written_suite(context, map_texts(context.written, redactor.text), rows=True),
        "cells": plan.record(rows=True),
        "stopped": stopped,
    }


def written_settings(configuration: Configuration) -> dict[str, Any]:
    """Return the settings that results depend on, as they were written."""
    found = {key: configuration.tree.child(key) for key in RECORDED_SETTINGS}
    return {key: plain(tree, as_written=True) for key, tree in found.items() if tree is not None}


def written_suite(
    context: RunContext, agents: Mapping[str, Any], *, rows: bool = False
) -> dict[str, Any]:
    """Return the suite as it ran: its selected cases, and these agents as they were written.

    A large data set is recorded by its template, unless its `rows` are needed: they have a file.
    """
    suite, ours = context.suite, context.cases
    if isinstance(suite.cases, DataCases):
        rest = suite.resolved(cases=False)
        rest = {key: value for key, value in rest.items() if key not in ("agent", "agents")}
        if isinstance(ours, PreparedCases) and context.design is None and not rows:
            return {**rest, "agents": agents, "cases": ours.cases.record()}
        places = [suite.cases.index_of(name) for name in ours]
        listed = [suite.cases.written(each) for each in places if each is not None]
        return {**rest, "agents": agents, "cases": listed}
    whole = suite.resolved()
    cases = [
        written
        for case, written in zip(context.suite.cases, whole["cases"], strict=True)
        if case.id in context.cases
    ]
    rest = {key: value for key, value in whole.items() if key not in ("agent", "agents", "cases")}
    return {**rest, "agents": agents, "cases": cases}
