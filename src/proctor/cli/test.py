"""`proctor test`: run each case of suites once, keep nothing, report in any format."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli import _options
from proctor.cli._command import Command
from proctor.cli._options import option
from proctor.cli._output import stdout_reserved
from proctor.cli.validate import print_problems
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError
from proctor.formatting import plural, some

if TYPE_CHECKING:
    from proctor.report.facts import ReportFacts
    from proctor.runs.run import Run
    from proctor.runs.trial import OnAgentError
    from proctor.spec import Case, Configuration, Suite
    from proctor.trials.prepare import RunContext

RECORDED = "recorded"
"""The name of recorded traces among agents, where the suite does not say whose they are."""


@click.command(
    cls=Command,
    groups={
        "Common options": "tags expression agents formats outputs traces concurrency fail_fast",
        "Recorded traces": "map_file",
        "Limits": "timeout max_not_judged on_agent_error",
    },
)
@click.argument("suites", nargs=-1, required=True, type=click.Path(path_type=Path))
@_options.tags_option
@_options.filter_option("cases")
@_options.agents_option
@_options.format_options
@option(
    "--traces PATH|RUN", "Check these traces, or those of a run, and run nothing.", multiple=True
)
@option(
    "--map",
    "map_file",
    "With --traces: a YAML file with `case-id: trace-id-or-file`.",
    type=click.Path(path_type=Path),
)
@_options.count_option("--concurrency", "Cases to run at the same time.")
@_options.timeout_option
@_options.max_not_judged_option
@option(
    "--on-agent-error",
    "What an exception, a crash or a time limit of the agent is.  [default: fail]",
    choices=["fail", "infra"],
)
@option("--fail-fast", "Start no more cases after one has not passed.", is_flag=True)
@click.pass_context
def test(
    ctx: click.Context,
    suites: tuple[Path, ...],
    formats: tuple[str, ...],
    outputs: tuple[str, ...],
    fail_fast: bool,
    **selection: Any,
) -> None:
    """Run each case once and check the result.

    Nothing is stored. (`validate` only reads the files, `run` stores every trial, `scenario check`
    builds scenarios and solves them.) Exits with 1 if a case failed, else with 2 if more trials
    than tolerated could not be judged (--max-not-judged) or the suite is invalid, else with 0.

    Examples:
      # is the agent right?
      proctor test suite.yaml
      # some cases only
      proctor test suite.yaml --tags smoke --filter '!difficulty:hard'
      # check recorded traces, run nothing
      proctor test suite.yaml --traces traces/
      # check the answers of the last run again
      proctor test suite.yaml --traces latest
      # a file for CI and a table
      proctor test suite.yaml --format junit -o junit.xml --format console
    """
    from proctor.report.outputs import plan_outputs, write_outputs
    from proctor.spec import SpecError

    # Before the suites are read: a mistake in the options is reported at once.
    planned = plan_outputs(formats, outputs, os.environ)
    try:
        facts = _run_suites(suites, fail_fast=fail_fast, **selection)
    except SpecError as error:
        print_problems(error.problems)
        ctx.exit(EXIT_CANNOT_JUDGE)
    write_outputs(facts, planned, os.environ)
    ctx.exit(facts.exit_code)


def _run_suites(
    suites: Sequence[Path], *, fail_fast: bool, traces: tuple[str, ...], **selection: Any
) -> ReportFacts:
    """Run the suites one after the other; a signal ends the work and is part of the report."""
    from proctor.background import run_sync
    from proctor.cli._signals import Interrupts
    from proctor.report.facts import ReportFacts
    from proctor.report.progress import progress_for
    from proctor.trials.session import run_session

    interrupts = Interrupts()  # without a command to resume: nothing is stored
    with stdout_reserved(), interrupts.listening():
        contexts = prepare_suites(suites, traces=traces, **selection)
        progress = progress_for(sys.stderr, quiet=not sys.stderr.isatty(), events=False)

        # All suites in one event loop: connections of models and agents belong to a loop.
        async def work() -> list[Run]:
            runs: list[Run] = []
            for context in contexts:
                run = await run_session(
                    context, observer=progress, on_session=interrupts.watch, fail_fast=fail_fast
                )
                run.sources = _sources(context) if traces else {}
                runs.append(run)
                if interrupts.signal is not None or (fail_fast and run.exit_code):
                    break
            return runs

        try:
            runs = run_sync(work())
        finally:
            if progress is not None:
                progress.close()
    return ReportFacts(
        *runs,
        labels=[str(context.suite.path) for context in contexts[: len(runs)]],
        signal=interrupts.signal,
        remarks=[*(_trace_remarks(contexts) if traces else ()), *_unchecked_cases(contexts)],
    )


def prepare_suites(
    paths: Iterable[Path],
    *,
    tags: Sequence[str],
    expression: str,
    agents: Sequence[str],
    traces: Sequence[str],
    map_file: Path | None,
    on_agent_error: OnAgentError | None,
    **limits: float | None,
) -> list[RunContext]:
    """Prepare every suite with its selected cases, or raise for what is wrong with any of them.

    `traces` are files, folders or globs of recorded traces, or runs (a folder, a tag, `latest`),
    that are judged instead of running an agent; `map_file` says which belongs to which case, where
    they cannot be matched otherwise.
    """
    from proctor.spec import load_configuration, load_suite, select_cases
    from proctor.trials.options import RunOptions
    from proctor.trials.plan import plan_recorded, read_map, recorded
    from proctor.trials.prepare import choose_agents, prepare

    if map_file is not None and not traces:
        raise ProctorError("--map says which trace belongs to which case", hint="add --traces PATH")
    if traces and agents:
        raise ProctorError("--traces judges recorded traces, --agent runs one: give one of them")
    if traces:
        _options.refuse_unused("timeout on_agent_error", "with --traces, which runs no agent")
    loaded: list[tuple[Suite, Configuration, list[Case]]] = []
    # Every suite is read before the first one runs; a file named twice is tested once.
    for path in dict.fromkeys(map(Path, paths)):
        flags = {f"limits.{name}": value for name, value in limits.items()}
        configuration = load_configuration(path.parent, flags=flags)
        has_agent = bool(traces or agents or configuration.settings.agent)
        suite = load_suite(path, need_agent=not has_agent)
        loaded.append((suite, configuration, list(suite.cases)))
    everything = [case for *_, cases in loaded for case in cases]
    # Over several suites, a selection needs to find something somewhere.
    selected = select_cases(everything, tags=_options.split_names(tags), filter=expression)
    chosen = {id(case) for case in selected}
    replay = None
    if traces:
        found = [_options.run_or_files(name) for name in traces]
        replay = recorded(found, None if map_file is None else read_map(map_file, selected))
    contexts: list[RunContext] = []
    for suite, configuration, listed in loaded:
        cases = [case for case in listed if id(case) in chosen]
        if not cases:
            continue
        if replay is not None:
            # Whose traces they are matters for baselines, which are stored for each agent.
            own = list(suite.all_agents)
            configs: dict[str, Any] = {own[0] if len(own) == 1 else RECORDED: replay}
        else:
            named = choose_agents(suite, agents, configuration)
            configs = {name: agent.config for name, agent in named.items()}
        context = prepare(
            suite,
            RunOptions(trials=1, on_agent_error=on_agent_error),
            agents=configs,
            cases=cases,
            configuration=configuration,
        )
        if replay is not None:
            (agent,) = configs
            context.plan = plan_recorded(cases, agent, replay.recordings, context.plan)
        contexts.append(context)
    return contexts


def _sources(context: RunContext) -> dict[tuple[str, int], str | None]:
    """Return the file of each recorded trace, by case and index."""
    (replay,) = context.agents.values()
    found: Any = getattr(replay, "recordings", None)
    return {
        (name, index): found.file_of(trace)
        for name, prepared in context.cases.items()
        for index, trace in enumerate(found.of(name, prepared.case.input))
    }


def _trace_remarks(contexts: Sequence[RunContext]) -> Iterator[str]:
    """Name traces that could not be read, and traces that belong to no selected case."""
    from proctor.trials.plan import strangers

    (replay,) = contexts[0].agents.values()
    found: Any = getattr(replay, "recordings", None)
    yield from (str(problem) for problem in found.problems)
    cases = [prepared.case for context in contexts for prepared in context.cases.values()]
    for case in cases:
        if found.missing_of(case.id):
            for cell, count in found.missing[case.id].items():
                yield f"{cell}: {plural(count, 'planned trial')} never ended in the recorded run"
    if left := strangers(cases, found):
        yield f"{left} of {plural(len(found.traces), 'trace')} belong to no selected case"


def _unchecked_cases(contexts: Sequence[RunContext]) -> Iterator[str]:
    """Name the cases without checks, which are not judged."""
    from proctor.spec.case_checks import check_ids

    for context in contexts:
        # As written: workers build the checks of a case that has custom ones.
        if names := [name for name, each in context.cases.items() if not check_ids(each.case)]:
            of = f"{len(names)} of {plural(len(context.cases), 'case')}"
            yield f"no checks in {of}, so they are not judged: {some(names)}"
