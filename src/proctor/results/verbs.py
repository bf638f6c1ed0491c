"""What one does with runs, in a line of Python: compare, rank, gate, plan.

    proctor.results.gate("latest", "baseline").verdict
    proctor.results.compare("baseline", "latest").pairs[0].overall

A run is a `Run`, its folder, `<experiment>/<date>_<seq>`, a tag or `latest`, below `root`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proctor.results.compare_runs import Comparisons, compare_runs
from proctor.results.gating import GateResult, judge_runs
from proctor.results.leaderboard import Leaderboard, entrants_of, leaderboard
from proctor.results.outcomes import outcomes_of
from proctor.results.planning import Asked, Planning, plan_experiment
from proctor.runs.find import LATEST, find_run
from proctor.runs.run import Run
from proctor.stats.gate import ALPHA, MARGIN, MAX_ERROR_RATE, Rule
from proctor.stats.kinds import LEVEL

if TYPE_CHECKING:
    from os import PathLike

ROOT = "results"
"""Where runs are kept unless the settings say otherwise."""


def _run(given: Run | str | PathLike[str], root: str | Path) -> Run:
    return given if isinstance(given, Run) else Run(find_run(Path(given), root))


def compare(
    first: Run | str | PathLike[str],
    second: Run | str | PathLike[str] | None = None,
    *,
    agents: Sequence[str] = (),
    cases: str | None = None,
    level: float = LEVEL,
    seed: int = 0,
    root: str | Path = ROOT,
) -> Comparisons:
    """Two runs, or two agents of one or two runs, on the same cases."""
    other = None if second is None else _run(second, root)
    return compare_runs(
        _run(first, root), other, agents=agents, cases=cases, level=level, seed=seed
    )


def rank(
    *runs: Run | str | PathLike[str],
    metric: str = "pass_rate",
    alpha: float = 0.05,
    seed: int = 0,
    root: str | Path = ROOT,
) -> Leaderboard:
    """The agents of some runs, or of the latest, with the places each may hold."""
    opened = [_run(run, root) for run in runs or (LATEST,)]
    return leaderboard(entrants_of(opened), metric=metric, alpha=alpha, seed=seed)


def gate(
    run: Run | str | PathLike[str],
    baseline: Run | str | PathLike[str],
    *,
    margin: float = MARGIN,
    alpha: float = ALPHA,
    max_error_rate: float = MAX_ERROR_RATE,
    must_pass: Sequence[str] = (),
    root: str | Path = ROOT,
) -> GateResult:
    """Whether a run is worse than its baseline; `trials.extend.judge_extending` runs more."""
    rule = Rule(margin=margin, alpha=alpha, max_error_rate=max_error_rate)
    return judge_runs(_run(run, root), _run(baseline, root), rule=rule, must_pass=must_pass)


def plan(
    effect: float,
    *,
    power: float = 0.8,
    alpha: float = 0.05,
    run: Run | str | PathLike[str] | None = None,
    asked: Asked | None = None,
    root: str | Path = ROOT,
) -> Planning:
    """How many cases and trials show a difference, with the noise of a run where one is given."""
    outcomes = () if run is None else outcomes_of(_run(run, root))
    return plan_experiment(effect, alpha=alpha, power=power, outcomes=outcomes, asked=asked)
