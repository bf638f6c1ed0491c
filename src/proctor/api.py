"""Public functions, for Python and for the command line alike.

Each one resolves what a caller names (settings, the results folder, runs) once, then calls a
function of a package with explicit arguments. The command line calls these functions too, so
that a setting means the same in both.

Packages are imported by the function that needs them: light commands load this module as well.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Unpack

if TYPE_CHECKING:
    from proctor.results.compare_runs import Comparison
    from proctor.results.gating import GateResult
    from proctor.results.leaderboard import Leaderboard
    from proctor.results.planning import Planning
    from proctor.results.result_set import ResultSet
    from proctor.results.selection import Filters
    from proctor.runs.run import Run
    from proctor.spec.config import Configuration

PathLike = str | os.PathLike[str]

Metric = Literal["pass_rate", "score", "cost_usd", "latency_ms"]
"""What agents can be ranked by."""

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
    from proctor.places import settings_may_exist

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
    from proctor.runs.find import all_runs
    from proctor.runs.find import find_run as find_folder

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
        from proctor.runs.remote.mirror import with_journal

        path = with_journal(path, root)
    return Run(path)


def _address(text: PathLike) -> str | None:
    """Return the address that a text is, checked; None for a path."""
    if isinstance(text, Path) or ":/" not in str(text):  # most often a path: skip the import
        return None
    from proctor.runs.remote.address import checked, is_address

    return checked(str(text)) if is_address(str(text)) else None


def _local_copy(
    address: str, copy: Literal["queries", "runs"], warn: Callable[[str], None] | None
) -> Path:
    from proctor.runs.remote.mirror import QUERIES, RUNS, mirrored

    root, problems = mirrored(address, reading=QUERIES if copy == "queries" else RUNS)
    for problem in problems:
        if warn is None:
            warnings.warn(problem, stacklevel=4)
        else:
            warn(problem)
    return root


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
    from proctor.results.discover import discover
    from proctor.results.result_set import ResultSet
    from proctor.results.selection import conditions
    from proctor.results.view import View

    selected = conditions(filters)
    more = (run,) if isinstance(run, str | os.PathLike) else run
    found = discover(results_root(results, copy="queries"), [str(each) for each in (*runs, *more)])
    return ResultSet(View(found), selected)


def compare(
    first: Run | PathLike,
    second: Run | PathLike | None = None,
    *,
    agents: Sequence[str] = (),
    cases: str | None = None,
    level: float = 0.95,
    seed: int = 0,
    results: PathLike | None = None,
) -> Comparison:
    """Compare two runs, or two agents of one or two runs, on the same cases.

    change = proctor.compare("main", "latest")
    change.pass_rate.difference, change.pass_rate.p, change.pass_rate.interval
    """
    from proctor.results.compare_runs import compare_runs

    return compare_runs(
        open_run(first, results=results),
        None if second is None else open_run(second, results=results),
        agents=agents,
        cases=cases,
        level=level,
        seed=seed,
    )


def gate(
    run: Run | PathLike,
    against: Run | PathLike,
    *,
    margin: float = 0.05,
    alpha: float = 0.05,
    max_error_rate: float = 0.05,
    must_pass: Sequence[str] = (),
    results: PathLike | None = None,
) -> GateResult:
    """Test whether a run is worse than the run it is held against.

    result = proctor.gate("latest", against="main")
    result.verdict, result.reason, result.more_trials
    """
    from proctor.results.gating import judge_runs
    from proctor.stats.gate import Rule

    return judge_runs(
        open_run(run, results=results),
        open_run(against, results=results),
        rule=Rule(margin=margin, alpha=alpha, max_error_rate=max_error_rate),
        must_pass=must_pass,
    )


def leaderboard(
    *runs: Run | PathLike,
    metric: Metric = "pass_rate",
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
    return rank(entrants_of(opened), metric=metric, alpha=alpha, seed=seed)


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
    from proctor.results.planning import Asked, plan_experiment

    return plan_experiment(
        effect,
        alpha=alpha,
        power=power,
        outcomes=() if run is None else outcomes_of(open_run(run, results=results)),
        asked=Asked(cases, trials, sigma2, omega2),
    )
