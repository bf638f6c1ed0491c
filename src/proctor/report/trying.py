"""Suites put to the test, each case once: what is behind `proctor test`.

    report = await try_all(plan_tries(["suite.yaml"], Wish(tags=("smoke",))))

Promise: everything that can be wrong with suites, filters, agents and traces is said before the
first agent runs, and every planned case that began is in the report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from proctor.agents.base import AgentConfig
from proctor.agents.replay import ReplayAgentConfig
from proctor.errors import ProctorError
from proctor.report.facts import CaseFacts, CasePlace, Report, facts_of
from proctor.runs.trial import PlannedTrial
from proctor.spec import Case, Configuration, Suite, load_configuration, load_suite, select_cases
from proctor.trials.choose import choose_agents
from proctor.trials.once import Finished, try_once
from proctor.trials.options import RunOptions
from proctor.trials.prepare import RunContext, prepare
from proctor.trials.recorded import plan_recorded, read_map, recorded, strangers
from proctor.words import plural, some

RECORDED = "recorded"
"""The name of recorded traces among agents, where the suite does not say whose they are."""


class Wish(NamedTuple):
    """Which cases to try, with what, and how."""

    tags: tuple[str, ...] = ()
    """Words, or several with commas; a case needs one of them."""
    expression: str = ""
    """A filter, as `proctor.spec.select` reads it."""
    agents: tuple[str, ...] = ()
    """Instead of those of the suites: names or import paths."""
    traces: tuple[str, ...] = ()
    """Recorded traces to judge instead of running agents: files, folders, globs."""
    map_file: Path | None = None
    """Which trace belongs to which case, where they cannot be matched otherwise."""
    concurrency: int | None = None
    timeout: float | None = None
    fail_fast: bool = False


class Try(NamedTuple):
    """One suite, ready."""

    label: str
    ready: RunContext
    plan: Sequence[PlannedTrial]
    notes: tuple[str, ...] = ()
    sources: Mapping[tuple[str, int], str | None] = {}
    """The file of each recorded trace, by case and trial."""


def plan_tries(paths: Iterable[str | Path], wish: Wish) -> list[Try]:
    """Every suite with its chosen cases made ready."""
    if wish.map_file is not None and not wish.traces:
        raise ProctorError("--map says which trace belongs to which case", hint="add --traces PATH")
    if wish.traces and wish.agents:
        raise ProctorError("--traces judges what was recorded, --agent runs anew: give one of them")
    suites = [_loaded(Path(path), wish) for path in dict.fromkeys(map(str, paths))]
    chosen = _selected([suite for suite, _ in suites], wish)
    agent = _recorded_agent(wish, [case for cases in chosen for case in cases])
    tries = [
        _try(suite, cases, configuration, wish, agent)
        for (suite, configuration), cases in zip(suites, chosen, strict=True)
        if cases
    ]
    if agent is not None:
        notes = _about_traces(agent, [case for each in tries for case in _cases(each)])
        tries[0] = tries[0]._replace(notes=notes)
    return tries


def _loaded(path: Path, wish: Wish) -> tuple[Suite, Configuration]:
    flags = {"limits.concurrency": wish.concurrency, "limits.timeout": wish.timeout}
    configuration = load_configuration(path.parent, flags=flags)
    brought = bool(wish.traces or wish.agents or configuration.settings.agent)
    return load_suite(path, need_agent=not brought), configuration


def _selected(suites: Sequence[Suite], wish: Wish) -> list[list[Case]]:
    """The chosen cases of each suite; it is enough that some suite has some."""
    tags = [tag for words in wish.tags for tag in words.split(",")]
    everything = [case for suite in suites for case in suite.cases]
    kept = {id(case) for case in select_cases(everything, tags=tags, filter=wish.expression)}
    return [[case for case in suite.cases if id(case) in kept] for suite in suites]


def _recorded_agent(wish: Wish, cases: Sequence[Case]) -> ReplayAgentConfig | None:
    if not wish.traces:
        return None
    chosen = None if wish.map_file is None else read_map(wish.map_file, cases)
    return recorded(wish.traces, chosen)


def _try(
    suite: Suite,
    cases: Sequence[Case],
    configuration: Configuration,
    wish: Wish,
    replay: ReplayAgentConfig | None,
) -> Try:
    options = RunOptions(trials=1)
    if replay is not None:
        # Whose traces they are matters for baselines, which are kept for each agent.
        only = list(suite.all_agents) if len(suite.all_agents) == 1 else [RECORDED]
        agents: dict[str, AgentConfig] = {only[0]: replay}
    else:
        named = choose_agents(suite, wish.agents, configuration)
        agents = {name: agent.config for name, agent in named.items()}
    ready = prepare(suite, options, agents=agents, cases=cases, configuration=configuration)
    plan = ready.plan.trials
    if replay is None:
        return Try(str(suite.path), ready, plan)
    found = replay.recordings
    plan = plan_recorded(cases, next(iter(agents)), found)
    sources = {
        (case.id, index): found.file_of(trace)
        for case in cases
        for index, trace in enumerate(found.of(case.id, case.input))
    }
    return Try(str(suite.path), ready, plan, sources=sources)


def _about_traces(agent: ReplayAgentConfig, cases: Sequence[Case]) -> tuple[str, ...]:
    """What a reader should know of the recordings beside how they were judged."""
    found = agent.recordings
    notes = [str(problem) for problem in found.problems]
    if left := strangers(cases, found):
        notes.append(f"{left} of {plural(len(found.traces), 'trace')} belong to no chosen case")
    return tuple(notes)


def _cases(each: Try) -> list[Case]:
    return [prepared.case for prepared in each.ready.cases.values()]


async def try_all(
    tries: Sequence[Try],
    *,
    stop: asyncio.Event | None = None,
    on_finished: Callable[[Finished], None] | None = None,
    fail_fast: bool = False,
) -> Report:
    """One suite after the other, and the report of all."""
    began, started_ns = time.perf_counter(), time.time_ns()
    cases: list[CaseFacts] = []
    for each in tries:
        if stop is not None and stop.is_set():
            break
        if fail_fast and Report(title="", cases=tuple(cases)).exit_code and cases:
            break
        finished = await try_once(
            each.plan,
            each.ready,
            concurrency=each.ready.options.at_once(len(each.plan)),
            on_finished=on_finished,
            stop=stop,
            fail_fast=fail_fast,
        )
        cases.extend(_facts(each, finished))
    return Report(
        title=tries[0].label if len(tries) == 1 else plural(len(tries), "suite"),
        cases=tuple(cases),
        planned=sum(len(each.plan) for each in tries),
        started_ns=started_ns,
        duration_ms=(time.perf_counter() - began) * 1000,
        notes=tuple(note for each in tries for note in (*each.notes, *_unchecked(each))),
    )


def _unchecked(each: Try) -> Iterator[str]:
    """A case without checks passes whatever is answered, which nobody should have to find out."""
    names = [name for name, case in each.ready.cases.items() if not case.checks]
    if names:
        of = f"{len(names)} of {plural(len(each.ready.cases), 'case')}"
        yield f"{of} without a check, passed whatever is answered: {some(names)}"


def _facts(each: Try, finished: Iterable[Finished]) -> Iterable[CaseFacts]:
    cases = _cases(each)
    return facts_of(
        (one.trial for one in finished),
        suite=each.label,
        thresholds={case.id: case.threshold for case in cases},
        places={case.id: CasePlace(*case.place) for case in cases if case.place is not None},
        descriptions={case.id: case.description for case in cases},
        sources=each.sources,
    )
