"""Make a suite ready, carry it out, keep it: the calls behind `proctor run` and `proctor.run`.

Everything a run needs to be resumed stands in its folder; only the agent's own code is outside.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from proctor.agents.base import AgentConfig
from proctor.agents.registry import agent_config
from proctor.imports import needs_extra
from proctor.llm.rates import rates_in_force
from proctor.results.finalise import finalise
from proctor.runs import audit
from proctor.runs.checkpoints import Checkpoints
from proctor.runs.claim import OUTPUT
from proctor.runs.folder import RunFolder
from proctor.runs.identity import git_state, new_run_id, provenance
from proctor.runs.run import Run
from proctor.runs.stopping import rules_named
from proctor.spec import (
    Case,
    Configuration,
    Place,
    Settings,
    Suite,
    load_configuration,
    plan_checks,
)
from proctor.spec.tree import plain
from proctor.trace import Trace
from proctor.trace.redact import Redactor, default_redactor
from proctor.trials.baselines import baselines_for, baselines_in
from proctor.trials.choose import ChosenAgent, choose_agents
from proctor.trials.design import Design
from proctor.trials.executors import workforce_for
from proctor.trials.heartbeat import Heart
from proctor.trials.judges import closing, judges_for
from proctor.trials.limits import Spending
from proctor.trials.options import ExecutorName, RunOptions
from proctor.trials.perform import Bench, PreparedCase
from proctor.trials.plan import Plan, plan_trials
from proctor.trials.research.unfold import Unfolding, in_rounds, refuse_again, unfolding_of
from proctor.trials.session import UNFINISHED, Observer, Rerun, Session, run_until_stopped
from proctor.trials.staging import staged_case

AgentLike = ChosenAgent | AgentConfig | Mapping[str, Any] | Callable[..., Any]


@dataclass
class Prepared:
    """A suite made ready: what to run, with what, how."""

    suite: Suite
    agents: dict[str, AgentConfig]
    options: RunOptions
    plan: Plan
    bench: Bench
    configuration: Configuration
    written: dict[str, Any]
    """The agents as a run folder keeps them."""
    design: Design | None = None
    """What an experiment adds: axes, scenarios, where cases came from."""
    unfolding: Unfolding | None = None
    """Where trials are chosen from results so far: the rounds."""

    @property
    def name(self) -> str:
        """What its runs are kept under."""
        return self.design.name if self.design is not None else suite_name(self.suite)

    @property
    def output(self) -> str:
        """Where its runs are kept below the results folder."""
        return self.design.output if self.design is not None else OUTPUT


def prepare(
    suite: Suite,
    options: RunOptions,
    *,
    agents: Mapping[str, AgentLike] | None = None,
    cases: Sequence[Case] | None = None,
    configuration: Configuration | None = None,
    design: Design | None = None,
) -> Prepared:
    """Check and resolve everything that can be wrong before the first trial.

    The configuration is that of the suite's folder unless one is given; options win over it.
    """
    configuration = configuration or load_configuration(suite.folder)
    settings = configuration.settings
    options = options.within(settings.limits)
    chosen = list(suite.cases if cases is None else cases)
    found = chosen_agents(suite, configuration, agents)
    configs = {name: agent.config for name, agent in found.items()}
    bench = bench_for(suite, options, configs, chosen, configuration, design)
    written = {name: agent.written for name, agent in found.items()}
    if design is not None and design.research is not None:
        unfolding = unfolding_of(design.research, chosen, configs, design.axes, options)
        plan = unfolding.plan
    else:
        unfolding = None
        plan = plan_trials(chosen, configs, options, None if design is None else design.axes)
    return Prepared(suite, configs, options, plan, bench, configuration, written, design, unfolding)


def bench_for(
    suite: Suite,
    options: RunOptions,
    agents: Mapping[str, AgentConfig],
    cases: Sequence[Case],
    configuration: Configuration,
    design: Design | None = None,
) -> Bench:
    """What performs the trials of these cases, here or on a worker."""
    settings = configuration.settings
    prices = settings.price_table()
    return Bench(
        cases=_prepared_cases(suite, cases, agents, configuration, design),
        agents=agents,
        judges=judges_for(suite, settings, prices),
        prices=prices,
        redactor=_redactor(suite, settings),
        timeout=options.timeout,
        max_retries=options.max_retries,
        keep_workdirs=options.keep_workdirs,
        retry_from_checkpoint=options.retry_from_checkpoint,
    )


def _prepared_cases(
    suite: Suite,
    chosen: Sequence[Case],
    agents: Iterable[str],
    configuration: Configuration,
    design: Design | None,
) -> dict[str, PreparedCase]:
    """Cases with their checks and baselines; those of an experiment as where they came from."""
    if design is None:
        saved = baselines_for(suite, [case.id for case in chosen], agents, configuration)
        return {case.id: prepared_case(case, saved.get(case.id)) for case in chosen}
    prepared: dict[str, PreparedCase] = {}
    for case in chosen:
        scenario = design.scenarios.get(case.id)
        origin = design.origins.get(case.id)
        if scenario is not None:
            prepared[case.id] = staged_case(scenario, case)
            continue
        if origin is not None:
            case.put(case.place or Place(suite_name(suite)), origin.folder)
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


def _redactor(suite: Suite, settings: Settings) -> Redactor:
    """Takes out what is secret anywhere, and what this suite and these settings say is."""
    patterns = settings.redaction.patterns
    if not patterns and not suite.secrets:
        return default_redactor()
    # Held under names that say what they are, since a redactor goes by names of variables.
    held = {f"SUITE_{index}_SECRET": text for index, text in enumerate(sorted(suite.secrets))}
    return Redactor(patterns, {**os.environ, **held})


def prepared_case(case: Case, baselines: Mapping[str, Trace] | None = None) -> PreparedCase:
    """A case with its checks planned once."""
    return PreparedCase(
        case=case,
        input=case.input,
        checks=plan_checks(case),
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
    if isinstance(agent, str | list):
        names = [agent] if isinstance(agent, str) else cast("list[str]", agent)
        return {**choose_agents(suite, names, configuration)} if names else None
    return {_agent_name(agent): agent}


def new_folder(ready: Prepared, root: Path, name: str | None = None) -> RunFolder:
    """A folder for a run that has not begun, with all that is needed to carry it out."""
    if ready.options.executor == ExecutorName.RAY:
        needs_extra("ray", "ray")  # before there is a folder that nothing would ever be in
    audit.begin(root)
    folder = RunFolder.create(root, name or ready.name, output=ready.output)
    folder.write_spec(spec_record(ready))
    return folder


async def carry_out(
    ready: Prepared,
    folder: RunFolder,
    *,
    rerun: Rerun = UNFINISHED,
    observer: Observer | None = None,
    on_session: Callable[[Session], None] | None = None,
) -> Run:
    """Do what is left of a run, then write what it says."""
    with folder.lock(), Heart(folder.path, str(folder.known_spec()["run_id"])) as heart:
        folder.repair()
        going_on = folder.journal_path.exists()
        spending = Spending(ready.options.limits)
        checkpoints = Checkpoints(folder.path, after_errors=ready.options.retry_from_checkpoint)
        ready.bench.checkpoints = checkpoints

        async def sitting(plan: Plan) -> Session:
            nonlocal spending
            session = Session(
                folder,
                plan.trials,
                plan.cells,
                spending=spending,
                rules=rules_named(ready.options.early_stop),
                observer=observer,
                rerun=rerun,
                sync=ready.options.sync,
            )
            session.checkpoints = checkpoints
            heart.follow(session)
            if on_session is not None:
                on_session(session)
            await run_until_stopped(session, lambda: workforce.executor(len(plan.trials)))
            spending = spending.next_round()
            return session

        rates = ready.configuration.settings.limits.rates
        async with closing(ready.bench.judges):
            with (
                ready.options.cassette(going_on=going_on),
                rates_in_force(rates),
                workforce_for(ready, checkpoints) as workforce,
            ):
                if ready.unfolding is None:
                    session = await sitting(ready.plan)
                else:
                    refuse_again(ready.unfolding, folder, rerun)
                    session = await in_rounds(ready.unfolding, folder, sitting)
        checkpoints.close()
        spec = folder.known_spec()
        now = {**spec, "options": ready.options.record(), "stopped": session.stopped}
        if now != spec:
            folder.write_spec(now)
        run = finalise(folder, now, session.finished, in_order=session.in_order)
    _put_on_record(run, ready, going_on=going_on)
    return run


def _put_on_record(run: Run, ready: Prepared, *, going_on: bool) -> None:
    git = git_state(ready.suite.folder) if going_on else run.spec["provenance"]["git"]
    problem = audit.record(
        "resume" if going_on else "run",
        audit.root_of(run.path),
        run=run.path,
        run_id=run.run_id,
        outcome=run.stopped,
        exit_code=run.exit_code,
        git=git or {},
    )
    if problem:
        warnings.warn(problem, stacklevel=2)


def spec_record(ready: Prepared) -> dict[str, Any]:
    """What the folder keeps so that the run can be resumed and repeated."""
    suite = ready.suite
    redact = (ready.bench.redactor or default_redactor()).value
    return {
        "run_id": new_run_id(),
        "name": ready.name,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "provenance": provenance(suite.folder),
        "base_dir": str(suite.folder.resolve()),
        "options": ready.options.record(),
        "agents": {
            name: redact(
                {**config.model_dump(mode="json", exclude_none=True), "version": config.version()}
            )
            for name, config in ready.agents.items()
        },
        "settings": settings_record(ready.configuration),
        **({} if ready.design is None else {"experiment": ready.design.record()}),
        "suite": suite_record(ready),
        "cells": ready.plan.record(),
        "stopped": None,
    }


KEPT_SETTINGS = ("judge", "prices", "redaction")
"""Settings that change results; limits are among the options, agents in the suite."""


def settings_record(configuration: Configuration) -> dict[str, Any]:
    """The settings a run depends on, as they were written: no secret is in them."""
    found = {key: configuration.tree.child(key) for key in KEPT_SETTINGS}
    return _without_secrets(
        {key: plain(tree, as_written=True) for key, tree in found.items() if tree is not None}
    )


def suite_record(ready: Prepared) -> dict[str, Any]:
    """The suite as it ran: the cases that were chosen and the agents they were put to."""
    return chosen_record(ready, _without_secrets(ready.written))


def chosen_record(ready: Prepared, agents: Mapping[str, Any]) -> dict[str, Any]:
    """The suite with the cases that were chosen and these agents, as written."""
    whole = ready.suite.resolved()
    cases = [
        written
        for case, written in zip(ready.suite.cases, whole["cases"], strict=True)
        if case.id in ready.bench.cases
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
    return str(getattr(agent, "__name__", type(agent).__name__))
