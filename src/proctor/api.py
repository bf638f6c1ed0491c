"""Public functions, for Python and for the command line alike.

Each one resolves what a caller names (settings, the results folder, runs) once, then calls a
function of a package with explicit arguments. The command line calls these functions too, so
that a setting means the same in both.

Packages are imported by the function that needs them: light commands load this module as well.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypedDict, Unpack

if TYPE_CHECKING:
    from proctor.causes.ab import ABResult
    from proctor.causes.profile import ProfileCondition, ReliabilityProfile
    from proctor.checks import CheckResults
    from proctor.results.compare import Comparison
    from proctor.results.filters import Filters
    from proctor.results.gate import GateResult
    from proctor.results.leaderboard import Leaderboard
    from proctor.results.power import Planning
    from proctor.results.result_set import ResultSet
    from proctor.runs.run import Run
    from proctor.spec import Case, JudgeConfig, Suite
    from proctor.spec.config import Configuration
    from proctor.spec.experiment import Experiment
    from proctor.stats.gate import GateRule
    from proctor.trace import Trace
    from proctor.trials.prepare import AgentLike, ChosenAgent
    from proctor.trials.resume import RunTrials
    from proctor.trials.session import Observer
    from proctor.trials.target import Target

__all__ = [
    "ExecutorOptions",
    "RunKeywords",
    "RunLimits",
    "ab",
    "arun",
    "check",
    "compare",
    "evaluate",
    "find_run",
    "gate",
    "leaderboard",
    "open_run",
    "power",
    "profile",
    "query",
    "results_root",
    "run",
    "run_all",
    "settings",
]

P = ParamSpec("P")

PathLike = str | os.PathLike[str]

Metric = Literal["pass_rate", "score", "cost_usd", "latency_ms"]
"""What agents can be ranked by."""

Estimand = Literal["suite", "population"]
"""What a claim is about: exactly these cases and instances, or cases like these."""

LATEST = "latest"
"""The name of the run that started last."""


# -- settings, the results folder, runs ----------------------------------------------------------


def settings(folder: PathLike | None = None) -> Configuration:
    """Load the settings that apply in a folder (the current one by default)."""
    from proctor.spec.config import load_configuration

    return load_configuration(None if folder is None else Path(folder))


def results_root(
    results: PathLike | None = None,
    *,
    folder: PathLike | None = None,
    copy: Literal["queries", "runs"] = "runs",
    warn: Callable[[str], None] | None = None,
) -> Path:
    """Return the folder of runs.

    `results` wins, then `PROCTOR_RESULTS`, then `results:` of the settings that apply in `folder`
    (the current one by default), then `results` there. An address in `results` (`s3://…`) gives a
    local copy of what `copy` reads; runs it cannot read are passed to `warn`. An address in the
    settings is only a second place: runs are also in the local folder, which is returned.
    """
    if results is not None:
        address = _address(results)
        return Path(results) if address is None else _local_copy(address, copy, warn)
    from proctor.user_dirs import settings_may_exist

    # Loading settings takes 0.3 s of CPU: skip it where no file and no variable can hold one.
    if not settings_may_exist(Path() if folder is None else Path(folder), os.environ):
        return Path("results")
    return settings(folder).results


class FoundRun(NamedTuple):
    """A run folder, or a local copy of one, and the folder of runs that holds it."""

    path: Path
    root: Path


def find_run(
    run: PathLike, *, results: PathLike | None = None, warn: Callable[[str], None] | None = None
) -> FoundRun:
    """Find a run by folder, `<experiment>/<date>_<seq>`, tag, `latest` or address."""
    from proctor.runs.folder import all_runs
    from proctor.runs.folder import find_run as find_folder

    address = _address(run)
    if address is None:
        root = results_root(results, warn=warn)
        return FoundRun(find_folder(Path(run), root), root)
    root = _local_copy(address, "runs", warn)
    runs = all_runs(root)
    if len(runs) == 1:
        return FoundRun(runs[0], root)
    from proctor.errors import ProctorError

    some = f"name one, such as {address}/{runs[0].relative_to(root).as_posix()}" if runs else None
    raise ProctorError(f"{len(runs)} runs can be read here, not one", where=address, hint=some)


def open_run(
    run: Run | PathLike,
    *,
    results: PathLike | None = None,
    warn: Callable[[str], None] | None = None,
) -> Run:
    """Open a run for reading; a run at an address is copied first."""
    from proctor.runs.folder import address_of
    from proctor.runs.run import Run

    if isinstance(run, Run):
        return run
    path, root = find_run(run, results=results, warn=warn)
    if address_of(path) is not None:
        from proctor.runs.remote.transfer import with_journal

        path = with_journal(path, root)
    return Run(path)


def _address(text: PathLike) -> str | None:
    """Return the address that a text is, checked; None for a path."""
    if isinstance(text, Path) or ":/" not in str(text):  # most often a path: skip the import
        return None
    from proctor.runs.remote.object_store import checked, is_address

    return checked(str(text)) if is_address(str(text)) else None


def _local_copy(
    address: str, copy: Literal["queries", "runs"], warn: Callable[[str], None] | None
) -> Path:
    from proctor.runs.remote.transfer import QUERIES, RUNS, mirrored

    root, problems = mirrored(address, reading=QUERIES if copy == "queries" else RUNS)
    for problem in problems:
        if warn is None:
            warnings.warn(problem, stacklevel=4)
        else:
            warn(problem)
    return root


# -- runs ----------------------------------------------------------------------------------------


class RunLimits(TypedDict, total=False):
    """Caps of a run; a trial that would exceed one is not started."""

    max_cost_usd: float
    """Dollars for the whole run."""
    max_tokens: int
    """Tokens for the whole run."""
    max_trials: int
    """Trials started in this invocation."""
    max_seconds: float
    """Seconds for this invocation."""


class ExecutorOptions(TypedDict, total=False):
    """The less common keywords of `run`: where trials run, and what is recorded."""

    executor: Literal["local", "ray"]
    """In this process, or on workers of Ray."""
    address: str
    """The Ray to use (auto, HOST:PORT or ray://HOST:PORT); one on this machine when absent."""
    workers: int
    """Processes of Ray that run trials."""
    isolation: Literal["none", "worker"]
    """Run agents and checks in this process (by default), or in workers that it watches: an agent
    that ends or blocks its process then fails its own trial only."""
    seed: int
    """The seed that the seeds of all trials are derived from; one seed for scenarios."""
    max_retries: int
    """Retries of a failure that may be transient."""
    max_not_judged: float
    """The share of planned trials that may end without a verdict; from the settings if absent."""
    on_agent_error: Literal["fail", "infra"]
    """What an error of the agent makes of its trial: failed (by default), or infrastructure."""
    record_to: PathLike
    """Record every model call into this cassette."""
    replay_from: PathLike
    """Answer model calls from this cassette; one that is missing is an error."""
    retry_from_checkpoint: bool
    """Let retries continue from the state that the agent saved."""
    keep_workdirs: bool
    """Keep the working directories of trials that did not pass."""
    sync: Literal["always", "interval", "never"]
    """When the journal is fsynced."""


class RunKeywords(ExecutorOptions, total=False):
    """Every keyword of `run`, for functions that pass them on."""

    agent: AgentLike | str | None
    agents: Sequence[AgentLike | str] | Mapping[str, AgentLike | str] | None
    trials: int | None
    seeds: int | str | Sequence[int] | None
    tags: Sequence[str]
    filter: str
    set: Mapping[str, object] | None
    concurrency: int | None
    timeout: float | None
    early_stop: bool | str | Sequence[str]
    limits: RunLimits | None
    results: PathLike | None
    name: str | None
    observer: Observer | None


def run(  # noqa: PLR0913 (each is an option of a run)
    target: Suite | Experiment | PathLike | None = None,
    *,
    agent: AgentLike | str | None = None,
    agents: Sequence[AgentLike | str] | Mapping[str, AgentLike | str] | None = None,
    trials: int | None = None,
    seeds: int | str | Sequence[int] | None = None,
    cases: str | Sequence[str] | None = None,
    tags: Sequence[str] = (),
    filter: str = "",  # noqa: A002 (the word of the command line)
    set: Mapping[str, object] | None = None,  # noqa: A002 (the word of the command line)
    concurrency: int | None = None,
    timeout: float | None = None,
    early_stop: bool | str | Sequence[str] = (),
    limits: RunLimits | None = None,
    results: PathLike | None = None,
    name: str | None = None,
    observer: Observer | None = None,
    **options: Unpack[ExecutorOptions],
) -> Run:
    """Run a suite, an experiment or scenarios, and keep every trial.

    `target` is a `Suite`, an `Experiment`, a file, the dotted name of an experiment, a scenario or
    a scope of the catalog. Without a target, `cases` are names, globs or filters of the catalog,
    or suite files; with a target, globs over the ids of its cases.

    `agent` is a function, a class, a configuration or a name; `agents` are several, or a mapping
    of name → agent. `seeds` is a count (0 to n - 1), a range (`"1..10"`) or a list. `set` holds
    parameters of scenarios, or `case.FIELD` of every case. `results` is the folder of runs, or an
    address (`s3://…`) that the run is uploaded to as well. In a notebook it shows its progress.
    Where an event loop is running, trials run in a thread with a loop of their own, and this call
    blocks; `await arun(…)` runs them on the running loop, which clients bound to it need.

        run = proctor.run("suite.yaml", agent=answer, trials=10)
        run = proctor.run(cases="mutualism/*", agents=["random", "scripted"], seeds=3)
    """
    given = {**locals()}  # first of all: the parameters alone, which `arun` takes by name
    del given["options"]
    from proctor.background import run_sync

    return run_sync(arun(**given, **options), nested=True)


def _same_parameters(
    _: Callable[P, Run],
) -> Callable[[Callable[..., Coroutine[Any, Any, Run]]], Callable[P, Coroutine[Any, Any, Run]]]:
    """Declare that an async function takes the parameters of a sync one, which spells them out."""
    return lambda function: functools.update_wrapper(function, _, assigned=(), updated=())


@_same_parameters(run)
async def arun(
    target: Suite | Experiment | PathLike | None = None,
    *,
    cases: str | Sequence[str] | None = None,
    **keywords: Unpack[RunKeywords],
) -> Run:
    """Run a suite, an experiment or scenarios, as `run` does, inside an event loop.

    run = await proctor.arun("suite.yaml", agent=answer, trials=10)
    """
    from proctor.errors import ProctorError

    found = _find_target(target, cases, keywords.get("name"))
    if len(found.experiments) > 1:
        names = ", ".join(experiment.name for experiment in found.experiments)
        raise ProctorError(
            f"there are {len(found.experiments)} experiments here: {names}",
            hint="proctor.api.run_all(…) runs them all",
        )
    if target is not None:
        keywords["filter"] = _with_ids(keywords.get("filter", ""), cases)
    (run,) = (await _run_all(found, keywords)).values()
    return run


def evaluate(
    suite: Suite | PathLike,
    *,
    agent: AgentLike | str | None = None,
    agents: Sequence[AgentLike | str] | Mapping[str, AgentLike | str] | None = None,
    cases: str | Sequence[str] | None = None,
    tags: Sequence[str] = (),
    filter: str = "",  # noqa: A002 (the word of the command line)
    concurrency: int | None = None,
    timeout: float | None = None,
    fail_fast: bool = False,
    observer: Observer | None = None,
) -> Run:
    """Run each case of a suite once and keep nothing: the run exists in memory only.

    `cases` are globs over the ids of the cases; `fail_fast` starts no more cases once one has not
    passed. Works where an event loop is running, as in notebooks.

        run = proctor.evaluate("suite.yaml", agent=answer)
        run.verdict, run.failures
    """
    from proctor.background import refuse_exit, run_sync
    from proctor.spec import Suite, load_suite, select_cases
    from proctor.trials.options import RunOptions
    from proctor.trials.prepare import agents_by_name, prepare
    from proctor.trials.session import run_session

    if not isinstance(suite, Suite):
        suite = load_suite(Path(suite), need_agent=False)
    configuration = settings(suite.folder)
    context = prepare(
        suite,
        RunOptions(trials=1, concurrency=concurrency, timeout=timeout),
        agents=agents_by_name(agent, agents),
        cases=select_cases(suite.cases, tags=list(tags), filter=_with_ids(filter, cases)),
        configuration=configuration,
    )
    work = run_session(context, observer=observer, fail_fast=fail_fast)
    with refuse_exit():
        return run_sync(work, nested=True)


def run_all(target: PathLike, **keywords: Unpack[RunKeywords]) -> dict[str, Run]:
    """Run every experiment of a file; return the runs by the names of their experiments.

    runs = proctor.api.run_all("experiments.py", agent="random")
    """
    from proctor.background import run_sync

    return run_sync(_run_all(_find_target(target, None, None), keywords), nested=True)


def _find_target(
    target: Suite | Experiment | PathLike | None,
    cases: str | Sequence[str] | None,
    name: str | None,
) -> Target:
    from proctor.errors import ProctorError
    from proctor.spec import Suite
    from proctor.spec.experiment import Experiment
    from proctor.trials.target import Target, batch_experiment, find_target

    if isinstance(target, Suite):
        return Target(suite=target)
    if isinstance(target, Experiment):
        return Target(experiments=(target,))
    if target is not None:
        return find_target(Path(target))
    if cases is None:
        raise ProctorError("nothing to run", hint="name a target, or cases=…")
    experiment = batch_experiment(cases, name=name or "batch")
    return Target(experiments=(experiment,))


async def _run_all(found: Target, keywords: RunKeywords) -> dict[str, Run]:
    """Prepare everything a target holds, then run it."""
    import asyncio

    from proctor.background import refuse_exit
    from proctor.runs.remote.upload import uploading_async
    from proctor.trials.prepare import agents_by_name
    from proctor.trials.session import run_session
    from proctor.trials.target import address_for, folder_for, prepare_target

    _refuse_unknown(keywords, RunKeywords.__annotations__, "run")
    given: RunKeywords = {**keywords}
    selection: dict[str, Any] = {
        "agents": agents_by_name(given.pop("agent", None), given.pop("agents", None)),
        "seeds": given.pop("seeds", None),
        "settings": given.pop("set", None),
        "expression": given.pop("filter", ""),
        "tags": given.pop("tags", ()),
    }
    name, observer = given.pop("name", None), given.pop("observer", None)
    results = given.pop("results", None)
    root = results if results is None or isinstance(results, str) else Path(results)
    limits = given.pop("limits", None) or {}
    _refuse_unknown(limits, RunLimits.__annotations__, "limits")
    options = {**given, **limits, "early_stop": given.pop("early_stop", ()) or None}
    # Everything is prepared before the first run starts: an error in the last experiment must
    # not show up after an hour.
    prepared = prepare_target(found, options, **selection)
    runs: dict[str, Run] = {}
    for each in prepared:
        if address_for(each, root) is None:
            folder = folder_for(each, root, name)
        else:  # in a thread: this event loop must not wait for an object store
            folder = await asyncio.to_thread(folder_for, each, root, name)
        bar = None
        if observer is None and "ipykernel" in sys.modules:
            from proctor.report.progress import NotebookBar

            bar = NotebookBar.in_notebook()
        async with uploading_async(folder):
            with refuse_exit():
                try:
                    runs[each.name] = await run_session(each, folder, observer=observer or bar)
                finally:
                    if bar is not None:
                        bar.close()
    return runs


def _with_ids(expression: str, cases: str | Sequence[str] | None) -> str:
    """Return a filter that also selects cases by globs over their ids."""
    if cases is None:
        return expression
    # A glob becomes a condition of the filter language, so that one rule selects cases.
    globs = [cases] if isinstance(cases, str) else cases
    chosen = ",".join(f'id:"{glob}"' for glob in globs)
    return f"{expression} {chosen}".strip()


def _refuse_unknown(given: Mapping[str, object], known: Iterable[str], function: str) -> None:
    """Refuse unknown keywords at run time too: not all code is type checked."""
    from proctor.errors import ProctorError, did_you_mean

    known = list(known)
    for name in given:
        if name not in known:
            raise ProctorError(f"{function} takes no {name!r}", hint=did_you_mean(name, known))


# -- checks --------------------------------------------------------------------------------------


def check(
    trace: Trace,
    case: Case,
    *,
    answer: str | None = None,
    baseline: Trace | None = None,
    judge: JudgeConfig | str | None = None,
) -> CheckResults:
    """Evaluate the checks of a case over one trace, without a run.

    `answer` replaces the trace's response. `judge` is for checks that name none; by default that
    of the settings. Model calls without a cost get the price of the settings.

        case = proctor.Case(input="…", checks=[Contains("Paris")])
        for result in proctor.check(trace, case):
            print(result.id, result.status, result.reason)
    """
    from proctor.background import run_sync
    from proctor.llm.prices import price_trace
    from proctor.spec import Suite
    from proctor.spec.case_checks import check_trace
    from proctor.trials.options import RunOptions
    from proctor.trials.prepare import closing, context_for

    suite = Suite.model_validate({"cases": (case,), "judge": judge})
    context = context_for(suite, RunOptions(), {}, suite.cases, settings(case.folder))
    # Before the checks: limits of cost read the prices.
    price_trace(trace, context.prices)

    async def work() -> CheckResults:
        async with closing(context.judges):
            return await check_trace(
                trace, suite.cases[0], answer=answer, baseline=baseline, judges=context.judges
            )

    return run_sync(work(), nested=True)  # notebooks have a running event loop


# -- results -------------------------------------------------------------------------------------


def query(
    *runs: PathLike,
    run: PathLike | Sequence[PathLike] = (),
    results: PathLike | None = None,
    **filters: Unpack[Filters],
) -> ResultSet:
    """Select trials of any number of runs, finished or running.

    `runs` (or `run`) are globs over the names, experiments, ids or tags of runs, or paths of run
    folders; without any, all runs are selected. All `filters` must match. `ResultSet.problems`
    names the folders that could not be read.

        proctor.results.query("shop/*", agent="careful", since="7d").pass_rate()
    """
    from proctor.results.database import View
    from proctor.results.discover import discover
    from proctor.results.filters import conditions
    from proctor.results.result_set import ResultSet

    selected = conditions(filters)
    more = (run,) if isinstance(run, str | os.PathLike) else run
    found = discover(results_root(results, copy="queries"), [str(each) for each in (*runs, *more)])
    return ResultSet(View(found), selected)


# -- experiments ---------------------------------------------------------------------------------


def ab(
    suite: Suite | PathLike,
    *,
    a: str | None = None,
    b: str | None = None,
    changes: Mapping[str, Any] | None = None,
    trials: int = 20,
    looks: int = 4,
    alpha: float = 0.05,
    estimand: Estimand = "suite",
    concurrency: int | None = None,
    results: PathLike | None = None,
    run_trials: RunTrials | None = None,
) -> ABResult:
    """Test whether a change of the agent helps, as `proctor ab` does.

    `a` is the agent of the first arm (by default the suite's). The second arm is the agent `b`, or
    the same one with `changes`, options by their dotted names. `run_trials` runs those of a round.

        found = proctor.api.ab("suite.yaml", changes={"system": "Answer briefly."})
        found.verdict, found.pass_rate.difference, found.pass_rate.interval
    """
    from proctor.causes.ab import changed_agent, run_ab
    from proctor.errors import ProctorError
    from proctor.trials.prepare import choose_agents
    from proctor.trials.target import Target, folder_for, prepare_target

    if bool(b) == bool(changes):
        raise ProctorError("say what arm b is", hint="use --change KEY=VALUE, or --b AGENT")
    loaded, name, chosen = _suite_and_agent(suite, a, "--a")
    if b:
        other = choose_agents(loaded, [b], settings(loaded.folder))[b]
        arms = {name: chosen, b if b != name else f"{b} (b)": other}
    else:
        arms = {"a": chosen, "b": changed_agent(chosen, changes or {}, loaded.folder)}
    options = {"trials": -(-trials // looks), "concurrency": concurrency}
    found = Target(suite=loaded)
    (context,) = prepare_target(found, options, agents=arms)
    return run_ab(
        context,
        folder_for(context, None if results is None else Path(results), made_by="ab"),
        run_trials or _run_trials,
        changes=changes or {},
        trials=trials,
        looks=looks,
        alpha=alpha,
        estimand=estimand,
    )


def profile(
    suite: Suite | PathLike,
    *,
    agent: str | None = None,
    trials: int = 10,
    paraphrases: int = 2,
    paraphrase_with: str | None = None,
    faults: float = 0.2,
    environment: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    results: PathLike | None = None,
    run_trials: RunTrials | None = None,
) -> ReliabilityProfile:
    """Profile how reliable an agent is, as `proctor profile` does.

    `paraphrase_with` is a model that rewords inputs; `faults` is the share of tool and model calls
    that fail; `environment` are options of the agent that make another environment.

        found = proctor.api.profile("suite.yaml", trials=10)
        found.figure("same outcome").value, found.advice
    """
    from proctor.background import run_sync
    from proctor.causes.profile import reworded_by, run_profile, surface_changed
    from proctor.llm.providers import get_model
    from proctor.trials.prepare import suite_name
    from proctor.trials.target import Target, folder_for, prepare_target

    loaded, name, chosen = _suite_and_agent(suite, agent, "--agent")
    reworded: dict[tuple[str, int], str] = {}
    if paraphrase_with is not None:
        texts = [case.input for case in loaded.cases if isinstance(case.input, str)]
        model = get_model(paraphrase_with)
        reworded = run_sync(reworded_by(model, texts, paraphrases), nested=True)

    def reword(text: str, at: int) -> str:
        return reworded.get((text, at)) or surface_changed(text, at)

    def run_condition(condition: ProfileCondition) -> Run:
        options = {"trials": trials, "concurrency": concurrency}
        target = Target(suite=condition.suite)
        (context,) = prepare_target(target, options, agents={name: condition.agent})
        place = None if results is None else Path(results)
        run_name = f"{suite_name(loaded)}-{condition.name}"
        folder = folder_for(context, place, run_name, made_by="profile")
        return (run_trials or _run_trials)(context, folder)

    return run_profile(
        loaded,
        chosen,
        run_condition,
        paraphrases=paraphrases,
        reword=reword,
        faults=faults,
        environment=environment,
    )


def _run_trials(context: Any, folder: Any) -> Run:
    from proctor.background import run_sync
    from proctor.trials.session import run_session

    return run_sync(run_session(context, folder), nested=True)


def _suite_and_agent(
    suite: Suite | PathLike, agent: str | None, option: str
) -> tuple[Suite, str, ChosenAgent]:
    """Return a suite and the one agent of it that an experiment is about."""
    from proctor.errors import ProctorError
    from proctor.spec import Suite, load_suite
    from proctor.trials.prepare import choose_agents

    loaded = suite if isinstance(suite, Suite) else load_suite(Path(suite), need_agent=False)
    found = choose_agents(loaded, [agent] if agent else [], settings(loaded.folder))
    if len(found) > 1:
        known = ", ".join(found)
        raise ProctorError(f"the suite has the agents {known}", hint=f"choose one with {option}")
    ((name, chosen),) = found.items()
    return loaded, name, chosen


# -- reading runs --------------------------------------------------------------------------------


def compare(
    *runs: Run | PathLike,
    agents: Sequence[str] = (),
    cases: str | None = None,
    estimand: Estimand = "suite",
    level: float = 0.95,
    seed: int = 0,
    results: PathLike | None = None,
) -> Comparison:
    """Compare runs, or agents of one run or one of each, on the same cases and seeds.

    `estimand` is "suite" (exactly these cases and instances) or "population" (cases like these).
    Three or more are compared pair by pair, corrected by Holm.

        change = proctor.compare("main", "latest")
        change.pass_rate.difference, change.pass_rate.p, change.pass_rate.interval
    """
    from proctor.results.compare import compare_runs

    return compare_runs(
        *(open_run(run, results=results) for run in runs or (LATEST,)),
        agents=agents,
        cases=cases,
        estimand=estimand,
        level=level,
        seed=seed,
    )


def gate(
    run: Run | PathLike,
    against: Run | PathLike,
    *,
    margin: float = 0.05,
    alpha: float = 0.05,
    max_not_judged: float | None = None,
    must_pass: Sequence[str] = (),
    estimand: Estimand = "suite",
    corrected: bool = False,
    results: PathLike | None = None,
) -> GateResult:
    """Test whether a run is worse than a reference run, in passes or in scores.

    `max_not_judged` is the share of trials without a verdict above which nothing is judged; by
    default that of the settings, as for `run`. With `corrected`, pass rates corrected by labels
    decide.

        result = proctor.gate("latest", against="main")
        result.verdict, result.reason, result.more_trials
    """
    from proctor.results.gate import judge_runs

    rule = gate_rule(
        max_not_judged, margin=margin, alpha=alpha, estimand=estimand, corrected=corrected
    )
    runs = (open_run(each, results=results) for each in (run, against))
    return judge_runs(*runs, rule=rule, must_pass=must_pass)


def gate_rule(max_not_judged: float | None, **rule: Any) -> GateRule:
    """Return the rule of a gate; how much may be unjudged is a setting unless it is given."""
    from proctor.stats.gate import GateRule

    if max_not_judged is None:
        max_not_judged = settings().settings.limits.max_not_judged
    return GateRule(max_error_rate=max_not_judged, **rule)


def leaderboard(
    *runs: Run | PathLike,
    metric: Metric = "pass_rate",
    estimand: Estimand = "suite",
    alpha: float = 0.05,
    seed: int = 0,
    results: PathLike | None = None,
) -> Leaderboard:
    """Rank the agents of some runs (the latest by default), with the ranks each may hold.

    for row in proctor.api.leaderboard("latest").rows:
        print(row.best, row.worst, row.name, row.value)
    """
    from proctor.results.leaderboard import entrants_of
    from proctor.results.leaderboard import leaderboard as rank

    opened = [open_run(run, results=results) for run in runs or (LATEST,)]
    return rank(entrants_of(opened), metric=metric, estimand=estimand, alpha=alpha, seed=seed)


def power(
    effect: float,
    *,
    power: float = 0.8,
    alpha: float = 0.05,
    run: Run | PathLike | None = None,
    cases: int | None = None,
    trials: int | None = None,
    sigma2: float | None = None,
    omega2: float | None = None,
    results: PathLike | None = None,
) -> Planning:
    """Return how many cases and trials show a difference of pass rates.

    `run` supplies the noise; `sigma2` (a trial within its case) and `omega2` (true differences
    between cases) replace it.

        proctor.api.power(0.1, run="latest").suite
    """
    from proctor.results.outcomes import outcomes_of
    from proctor.results.power import plan_experiment

    return plan_experiment(
        effect,
        alpha=alpha,
        power=power,
        outcomes=() if run is None else outcomes_of(open_run(run, results=results)),
        cases=cases,
        trials=trials,
        sigma2=sigma2,
        omega2=omega2,
    )
