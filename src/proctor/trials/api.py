"""Run a suite: the calls behind `proctor run` and `proctor.run`.

    run = proctor.run("suite.yaml", agent=my_agent, trials=10)
    run.verdicts, run.failures, run.path

Everything a run needs to be resumed stands in its folder; only the agent's own code is outside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from proctor.agents.base import AgentConfig
from proctor.agents.registry import agent_config
from proctor.llm.prices import PriceTable
from proctor.runs.finalise import write_parquet, write_summaries
from proctor.runs.folder import RunFolder
from proctor.runs.identity import new_run_id, provenance
from proctor.runs.run import Run
from proctor.runs.stopping import rules_named
from proctor.spec import (
    Case,
    Configuration,
    Settings,
    Suite,
    load_configuration,
    load_suite,
    plan_checks,
)
from proctor.trace import Trace
from proctor.trace.redact import Redactor, default_redactor
from proctor.trials.baselines import only_baseline
from proctor.trials.choose import choose_agents
from proctor.trials.executors.local import LocalExecutor
from proctor.trials.judges import closing, judges_for
from proctor.trials.limits import Spending
from proctor.trials.loop import run_to_end
from proctor.trials.options import RunOptions
from proctor.trials.perform import Bench, PreparedCase
from proctor.trials.plan import Plan, plan_suite
from proctor.trials.session import UNFINISHED, Observer, Rerun, Session, run_until_stopped

AgentLike = AgentConfig | Mapping[str, Any] | Callable[..., Any]


@dataclass
class Prepared:
    """A suite made ready: what to run, with what, how."""

    suite: Suite
    agents: dict[str, AgentConfig]
    options: RunOptions
    plan: Plan
    bench: Bench


def prepare(
    suite: Suite,
    options: RunOptions,
    *,
    agents: Mapping[str, AgentLike] | None = None,
    cases: Sequence[Case] | None = None,
    configuration: Configuration | None = None,
) -> Prepared:
    """Check and resolve everything that can be wrong before the first trial.

    The configuration is that of the suite's folder unless one is given; options win over it.
    """
    configuration = configuration or load_configuration(suite.folder)
    settings = configuration.settings
    options = options.within(settings.limits)
    chosen = list(suite.cases if cases is None else cases)
    configs = agents_for(suite, configuration, agents)
    prices = PriceTable({name: _price(price) for name, price in settings.prices.items()})
    bench = Bench(
        cases={
            case.id: prepared_case(case, only_baseline(suite, case.id, configs)) for case in chosen
        },
        agents=configs,
        judges=judges_for(suite, settings, prices),
        prices=prices,
        redactor=_redactor(suite, settings),
        timeout=options.timeout,
        max_retries=options.max_retries,
        keep_workdirs=options.keep_workdirs,
    )
    return Prepared(suite, configs, options, plan_suite(chosen, configs, options), bench)


def agents_for(
    suite: Suite, configuration: Configuration, agents: Mapping[str, AgentLike] | None = None
) -> dict[str, AgentConfig]:
    """The agents given, else those of the suite, else the one of the settings."""
    if agents:
        found = {
            name: a if isinstance(a, AgentConfig) else agent_config(a, base_dir=suite.folder)
            for name, a in agents.items()
        }
    else:
        chosen = choose_agents(suite, (), configuration)
        found = {name: agent.config for name, agent in chosen.items()}
    for config in found.values():
        # Code that cannot be imported is one error now, not one for every trial.
        config.version()
    return found


def _price(price: Any) -> Any:
    return price if isinstance(price, str) else price.model_dump(exclude_none=True)


def _redactor(suite: Suite, settings: Settings) -> Redactor:
    """Takes out what is secret anywhere, and what this suite and these settings say is."""
    patterns = settings.redaction.patterns
    if not patterns and not suite.secrets:
        return default_redactor()
    # Held under names that say what they are, since a redactor goes by names of variables.
    held = {f"SUITE_{index}_SECRET": text for index, text in enumerate(sorted(suite.secrets))}
    return Redactor(patterns, {**os.environ, **held})


def prepared_case(case: Case, baseline: Trace | None = None) -> PreparedCase:
    """A case with its checks planned once."""
    return PreparedCase(
        case=case,
        input=case.input,
        checks=plan_checks(case),
        threshold=case.threshold,
        baseline=baseline,
    )


async def arun(
    suite: Suite | str | Path,
    *,
    agent: AgentLike | None = None,
    results: str | Path = "results",
    name: str | None = None,
    observer: Observer | None = None,
    on_session: Callable[[Session], None] | None = None,
    **options: Any,
) -> Run:
    """Run every case of a suite its number of times and keep everything; see `RunOptions`."""
    loaded = suite if isinstance(suite, Suite) else load_suite(suite, need_agent=agent is None)
    agents = None if agent is None else {_agent_name(agent): agent}
    ready = prepare(loaded, RunOptions(**options), agents=agents)
    folder = RunFolder.create(Path(results), name or _suite_name(loaded))
    folder.write_spec(spec_record(ready))
    return await carry_out(ready, folder, observer=observer, on_session=on_session)


def run(suite: Suite | str | Path, **arguments: Any) -> Run:
    """`arun`, for code that is not async."""
    return run_to_end(arun(suite, **arguments))


async def carry_out(
    ready: Prepared,
    folder: RunFolder,
    *,
    rerun: Rerun = UNFINISHED,
    observer: Observer | None = None,
    on_session: Callable[[Session], None] | None = None,
) -> Run:
    """Do what is left of a run, then write what it says."""
    with folder.lock():
        folder.repair()
        session = Session(
            folder,
            ready.plan.trials,
            ready.plan.cells,
            spending=Spending(ready.options.limits),
            rules=rules_named(ready.options.early_stop),
            observer=observer,
            rerun=rerun,
            sync=ready.options.sync,
        )
        if on_session is not None:
            on_session(session)
        at_once = ready.options.at_once(len(ready.plan.trials))
        async with closing(ready.bench.judges):
            await run_until_stopped(session, lambda: LocalExecutor(ready.bench, at_once))
        spec = folder.read_spec()
        if spec.get("stopped") != session.stopped:
            folder.write_spec({**spec, "stopped": session.stopped})
        return finalise(folder)


def finalise(folder: RunFolder) -> Run:
    """Write the derived files of a run and give it back for reading."""
    run = Run(folder.path)
    write_parquet(folder)
    about = {key: run.spec.get(key) for key in ("run_id", "name", "created", "stopped")}
    write_summaries(folder, run.cells, about)
    return run


def spec_record(ready: Prepared) -> dict[str, Any]:
    """What the folder keeps so that the run can be resumed and repeated."""
    suite = ready.suite
    return {
        "run_id": new_run_id(),
        "name": _suite_name(suite),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "provenance": provenance(suite.folder),
        "base_dir": str(suite.folder.resolve()),
        "options": ready.options.record(),
        "agents": {
            name: {**config.model_dump(mode="json", exclude_none=True), "version": config.version()}
            for name, config in ready.agents.items()
        },
        "suite": suite.resolved(),
        "cells": ready.plan.record(),
    }


def _suite_name(suite: Suite) -> str:
    return suite.path.stem if suite.path is not None else "suite"


def _agent_name(agent: AgentLike) -> str:
    if isinstance(agent, AgentConfig):
        return str(agent.model_dump().get("target", agent.kind))
    if isinstance(agent, Mapping):
        options = dict(cast("Mapping[str, Any]", agent))
        return str(options.get("target") or options.get("kind"))
    return str(getattr(agent, "__name__", type(agent).__name__))
