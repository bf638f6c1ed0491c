"""How a suite went over its runs: figures with intervals, where they changed, which cases broke.

Guarantees: the figures of an agent are those of the leaderboard, computed by its functions. A
change point is tested: by the exact stratified test of the gate, over the cases whose content is
the same before and after, corrected for every place that was tried. Trade-off: that test takes the
runs of one segment as equal, so a rate that drifts slowly has more change points than causes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from proctor.errors import EXIT_CANNOT_JUDGE
from proctor.results._comparability import case_hashes
from proctor.results.leaderboard import LeaderboardRow, agent_rate, agent_row, entrants_of
from proctor.results.metadata import as_mapping
from proctor.results.outcomes import outcomes_of
from proctor.runs.run import Run, RunTotals
from proctor.runs.summary import CellSummary, Verdict
from proctor.stats.compare import ChangePoint, change_points
from proctor.stats.gate import agent_flakiness
from proctor.stats.types import CaseCounts, Interval

STRIP = 20
"""Outcomes of a case that are shown: those of the last runs."""


class RunFigures(NamedTuple):
    """What lists show of one run; small, so that hundreds fit into memory."""

    path: Path
    created: str
    commit: str | None
    rates: Mapping[str, Interval]
    """The pass rate of each agent, as the leaderboard has it."""
    totals: RunTotals
    planned: int
    verdict: str
    """passed, failed or not judged, by the exit code of the run, as its page has it."""
    duration_ms: float | None
    """From the start of the first trial to the end of the last."""
    cells: tuple[CellSummary, ...]
    hashes: Mapping[str, str]
    """The content of each case."""


def run_figures(run: Run) -> RunFigures:
    """Return the figures of a run."""
    git = as_mapping(as_mapping(run.spec.get("provenance")).get("git"))
    spans = [(t.started_ns / 1e6, t.duration_ms) for t in run.trials if t.started_ns]
    ends = [start + duration for start, duration in spans]
    return RunFigures(
        path=run.path,
        created=str(run.spec.get("created") or ""),
        commit=None if git.get("commit") is None else str(git["commit"]),
        rates={arm.name: agent_rate(arm) for arm in outcomes_of(run, by_params=True)},
        totals=run.totals,
        planned=sum(cell.planned for cell in run.cells),
        verdict=("passed", "failed", "not judged")[min(run.exit_code, EXIT_CANNOT_JUDGE)],
        duration_ms=max(ends) - min(start for start, _ in spans) if spans else None,
        # Ranked failures hold texts of agents, which no list shows.
        cells=tuple(msgspec.structs.replace(cell, failures=()) for cell in run.cells),
        hashes=case_hashes(run.spec),
    )


def agent_rows(run: Run) -> dict[str, LeaderboardRow]:
    """Return the figures of each agent of a run, with an interval for its latency in `value`."""
    return {
        entrant.name: agent_row(entrant, "latency_ms")
        for entrant in entrants_of([run], by_params=True)
    }


class HistoryPoint(NamedTuple):
    """One run of a history: its figures, and those of its agents."""

    figures: RunFigures
    agents: Mapping[str, LeaderboardRow]


class CaseStrip(NamedTuple):
    """One case with one agent: its verdicts in the last runs, whether it is flaky, where it broke.

    `flaky` is judged over the runs since the agent's last change point, `broke` is the first run of
    those in which the case has not passed since, if it passed before.
    """

    case: str
    agent: str
    strip: tuple[CellSummary | None, ...]
    flaky: bool
    broke: RunFigures | None
    changed: bool
    """Whether the content of the case changed within the strip."""


class AgentHistory(NamedTuple):
    """The figures of one agent in each run, and where its pass rate changed."""

    name: str
    rows: tuple[LeaderboardRow | None, ...]
    changes: tuple[ChangePoint, ...]

    def figures(self, metric: str) -> list[Interval | None]:
        """Return one metric with its interval for each run; None where the agent was absent."""
        fields = {"pass_rate": "pass_rate", "score": "score", "cost_usd": "cost_mean_usd"}
        field = fields.get(metric, "value")
        return [None if row is None else getattr(row, field) for row in self.rows]


class SuiteHistory(NamedTuple):
    """The runs of a suite, oldest first, with their agents and cases."""

    runs: tuple[RunFigures, ...]
    agents: tuple[AgentHistory, ...]
    cases: tuple[CaseStrip, ...]
    """Cases that broke first, then flaky ones, then by name."""


def suite_history(points: Sequence[HistoryPoint]) -> SuiteHistory:
    """Return the history of some runs, given from the oldest to the newest."""
    runs = [point.figures for point in points]
    names = list(dict.fromkeys(name for point in reversed(points) for name in point.agents))
    agents: list[AgentHistory] = []
    cases: list[CaseStrip] = []
    for name in names:
        counts = [_counts(run, name) for run in runs]
        changes = tuple(change_points(counts))
        agents.append(AgentHistory(name, tuple(each.agents.get(name) for each in points), changes))
        cases += _case_strips(runs, name, max((each.at for each in changes), default=0))
    cases.sort(key=lambda each: (each.broke is None, not each.flaky, each.case, each.agent))
    return SuiteHistory(tuple(runs), tuple(agents), tuple(cases))


def _counts(run: RunFigures, name: str) -> dict[str, CaseCounts]:
    """Return the judged trials of each case under its content: a changed case is another one."""
    found: dict[str, CaseCounts] = {}
    for cell in run.cells:
        if cell.cell.arm == name and cell.judged:
            key = f"{cell.case}\0{run.hashes.get(cell.case, '')}"
            found[key] = CaseCounts(cell.passed, cell.judged, cell.unjudged)
    return found


def _case_strips(runs: Sequence[RunFigures], name: str, since: int) -> list[CaseStrip]:
    """Return the cases that the agent had in any of the runs."""
    by_run = [{c.case: c for c in run.cells if c.cell.arm == name} for run in runs]
    found: list[CaseStrip] = []
    for case in dict.fromkeys(case for cells in reversed(by_run) for case in cells):
        hashes = [run.hashes.get(case) for run in runs[-STRIP:]]
        same = [cells.get(case) for cells in by_run]
        # Only judged cells say whether a case passes.
        judged = [(at, cell) for at, cell in enumerate(same) if cell is not None and cell.judged]
        # The newest run may be one of other cases.
        last = runs[judged[-1][0]].hashes.get(case) if judged else None
        failing: list[int] = []
        for at, cell in reversed(judged):
            if cell.verdict == Verdict.PASS:
                break
            failing.append(at)
        passed_before = len(judged) > len(failing) > 0
        alike = [cell for at, cell in judged if at >= since and runs[at].hashes.get(case) == last]
        passes, trials = sum(c.passed for c in alike), sum(c.judged for c in alike)
        flaky = bool(trials and agent_flakiness(passes, trials).flaky)
        found.append(
            CaseStrip(
                case=case,
                agent=name,
                strip=tuple(same[-STRIP:]),
                flaky=flaky,
                # A flaky case fails now and then: no run broke it.
                broke=runs[failing[-1]] if passed_before and not flaky else None,
                changed=len({each for each in hashes if each is not None}) > 1,
            )
        )
    return found
