"""Run a suite: the calls behind `proctor run` and `proctor.run`.

    run = proctor.run("suite.yaml", agent=my_agent, trials=10)
    run.verdicts, run.failures, run.path

Everything a run needs to be resumed stands in its folder; only the agent's own code is outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from proctor.agents.base import AgentConfig
from proctor.agents.registry import agent_config
from proctor.runs.finalise import write_parquet, write_summaries
from proctor.runs.folder import RunFolder
from proctor.runs.identity import new_run_id, provenance
from proctor.runs.run import Run
from proctor.runs.stopping import rules_named
from proctor.spec import Case, Suite, load_suite, plan_checks
from proctor.trace.redact import default_redactor
from proctor.trials.executors.local import LocalExecutor
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
) -> Prepared:
    """Check and resolve everything that can be wrong before the first trial."""
    chosen = list(suite.cases if cases is None else cases)
    found: Mapping[str, Any] = agents or {
        name: ref.model_dump(exclude_none=True) for name, ref in suite.all_agents.items()
    }
    configs = {name: agent_config(a, base_dir=suite.folder) for name, a in found.items()}
    bench = Bench(
        cases={case.id: prepared_case(case) for case in chosen},
        agents=configs,
        redactor=default_redactor(),
        timeout=options.timeout,
        max_retries=options.max_retries,
        keep_workdirs=options.keep_workdirs,
    )
    return Prepared(suite, configs, options, plan_suite(chosen, configs, options), bench)


def prepared_case(case: Case) -> PreparedCase:
    """A case with its checks planned once."""
    return PreparedCase(
        case=case, input=case.input, checks=plan_checks(case), threshold=case.threshold
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
