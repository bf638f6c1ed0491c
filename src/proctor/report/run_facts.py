"""What a report of a run tells: gathered once, said by every form in the same numbers.

Promise: HTML, Markdown, console and charts read these facts and compute nothing of their own;
ranks, intervals and gates are those of `proctor.results`. Of each trial a small row is held; what
only the look at one trial needs (answers, traces) stays on disk.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec

from proctor.report.run_words import case_text, research_lines, sentence
from proctor.results.gate import GateResult, judge_runs
from proctor.results.leaderboard import Leaderboard, entrants_of, leaderboard
from proctor.results.metadata import as_text
from proctor.results.outcomes import case_properties
from proctor.runs.annotations import Note, annotations_of, runs_tagged, tags_of
from proctor.runs.run import Run, RunTotals
from proctor.runs.summary import CellSummary, RankedError, RankedFailure, Verdict
from proctor.runs.trial import Trial, TrialStatus

_LEVELS = ("trivial", "easy", "simple", "low", "medium", "moderate", "hard", "high", "expert")
"""Words for difficulty from easy to hard; numbers sort as numbers, other words by alphabet."""


class CaseAbout(msgspec.Struct, frozen=True, kw_only=True):
    """A case as it was written, as far as a reader wants to know."""

    case: str
    input: str
    description: str | None = None
    difficulty: str | None = None
    type: str | None = None
    tags: tuple[str, ...] = ()


class ArmCells(NamedTuple):
    """What the cells of one agent (under one set of parameters) come to."""

    cells: int
    passed: int
    tokens: int | None


class TrialRow(NamedTuple):
    """One trial, as small as a list of all of them can afford. `start_ms` is since the first."""

    case: str
    arm: str
    seed: int | None
    repeat: int
    status: str
    score: float | None
    start_ms: float
    duration_ms: float
    latency_ms: float | None
    lane: int
    cost_usd: float | None
    unpriced: int
    tokens: int | None
    broken: str

    @property
    def key(self) -> tuple[str, str, int | None, int]:
        """Which trial it is."""
        return (self.case, self.arm, self.seed, self.repeat)


class ReportFacts(msgspec.Struct, kw_only=True):
    """Everything a report of one run tells."""

    name: str
    run_id: str
    path: str
    created: str | None
    provenance: Mapping[str, Any]
    exit_code: int
    stopped: str | None
    headline: str
    board: Leaderboard
    arms: Mapping[str, ArmCells]
    cells: Sequence[CellSummary]
    cases: Mapping[str, CaseAbout]
    failures: tuple[RankedFailure, ...]
    errors: tuple[RankedError, ...]
    totals: RunTotals
    rows: tuple[TrialRow, ...]
    duration_ms: float | None
    tags: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    since: GateResult | None = None
    research: tuple[str, ...] = ()
    """What research found, or how far it got; a line each."""

    @property
    def verdict(self) -> str:
        """PASS, FAIL or NOT JUDGED: the exit code in a word."""
        return ("PASS", "FAIL", "NOT JUDGED")[self.exit_code]

    @property
    def passed_cells(self) -> int:
        """Cells with the verdict PASS."""
        return sum(cell.verdict == Verdict.PASS for cell in self.cells)

    @property
    def commit(self) -> str | None:
        """The commit the run was made at."""
        found = self._git.get("commit")
        return None if found is None else str(found)

    @property
    def dirty(self) -> bool:
        """Whether there were changes beside the commit."""
        return bool(self._git.get("dirty"))

    @property
    def _git(self) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", self.provenance.get("git") or {})

    @property
    def names(self) -> list[str]:
        """Agents in the order of the leaderboard."""
        return [row.name for row in self.board.rows]

    def levels(self) -> list[str]:
        """The difficulties there are, from easy to hard."""
        return sorted({c.difficulty for c in self.cases.values() if c.difficulty}, key=_level)

    def worst_cases(self) -> list[str]:
        """Cases by their mean pass rate, the lowest first; those never judged before all."""
        rates: dict[str, list[float]] = defaultdict(list)
        for cell in self.cells:
            rates[cell.case].append(-1.0 if cell.pass_rate is None else cell.pass_rate)
        return sorted(rates, key=lambda case: (sum(rates[case]) / len(rates[case]), case))


def facts_of_run(run: Run, *, baseline: Run | None = None) -> ReportFacts:
    """Gather what a report tells of a run, and what changed since a baseline."""
    rows = trial_rows(run.trials())
    board = leaderboard(entrants_of([run]))
    ends = [row.start_ms + row.duration_ms for row in rows]
    spec = run.spec
    return ReportFacts(
        research=tuple(research_lines(run.path)),
        name=str(spec.get("name") or run.path.parent.name),
        run_id=run.run_id,
        path=str(run.path),
        created=spec.get("created"),
        provenance=cast("dict[str, Any]", spec.get("provenance") or {}),
        exit_code=run.exit_code,
        stopped=run.stopped,
        headline=sentence(run.cells, run.totals),
        board=board,
        arms=_arms(run.cells, board),
        cells=run.cells,
        cases=_cases(spec),
        failures=run.failures,
        errors=run.errors,
        totals=run.totals,
        rows=rows,
        duration_ms=max(ends) if ends else None,
        tags=tags_of(run.path),
        notes=tuple(annotations_of(run.path)),
        since=None if baseline is None else judge_runs(run, baseline),
    )


def tagged_baseline(run: Run) -> Run | None:
    """The run of the same experiment that was tagged `baseline` last; None for that run itself."""
    if "baseline" in tags_of(run.path):
        return None
    others = runs_tagged(run.path.parent, "baseline")
    return Run(others[-1]) if others else None


def _arms(cells: Sequence[CellSummary], board: Leaderboard) -> dict[str, ArmCells]:
    # Trials may lie outside the plan (imported ones do): then there are no cells.
    found: dict[str, list[CellSummary]] = {row.name: [] for row in board.rows}
    for cell in cells:
        found.setdefault(cell.cell.arm, []).append(cell)
    return {name: _arm(own) for name, own in found.items()}


def _arm(cells: Sequence[CellSummary]) -> ArmCells:
    tokens = [cell.tokens for cell in cells if cell.tokens is not None]
    passed = sum(cell.verdict == Verdict.PASS for cell in cells)
    return ArmCells(len(cells), passed, sum(tokens) if tokens else None)


def _cases(spec: Mapping[str, Any]) -> dict[str, CaseAbout]:
    return {
        name: CaseAbout(
            case=name,
            input=case_text(case.get("input", case.get("query"))),
            description=as_text(case.get("description")),
            difficulty=as_text(case.get("difficulty")),
            type=as_text(case.get("type")),
            tags=tuple(str(tag) for tag in cast("list[Any]", case.get("tags") or ())),
        )
        for name, case in case_properties(spec).items()
    }


def _level(word: str) -> tuple[int, float, str]:
    try:
        return (0, float(word), word)
    except ValueError:
        known = word.casefold()
        return (1, _LEVELS.index(known) if known in _LEVELS else len(_LEVELS), known)


# -- trials ------------------------------------------------------------------------------------


def trial_order(trial: Trial) -> tuple[str, str, str, int, int]:
    """Where a trial stands among all: the order of rows, whatever order they finished in."""
    case, agent, params = trial.cell
    seed = -1 if trial.axis_seed is None else trial.axis_seed
    return (case, agent, params, seed, trial.index)


def trial_rows(trials: Iterable[Trial]) -> tuple[TrialRow, ...]:
    """Every trial in the order of the plan."""
    read = sorted(((trial_order(t), t.started_ns / 1e6, _row(t)) for t in trials), key=_place)
    first = min((start for _, start, _ in read if start), default=0.0)
    rows = [row._replace(start_ms=max(0.0, start - first)) for _, start, row in read]
    lanes = _lanes(rows)
    return tuple(row._replace(lane=lane) for row, lane in zip(rows, lanes, strict=True))


def _place(read: tuple[tuple[Any, ...], float, TrialRow]) -> tuple[Any, ...]:
    return read[0]


def _row(trial: Trial) -> TrialRow:
    broken = [result.id for result in trial.checks if result.failed]
    if trial.status == TrialStatus.INFRA_ERROR and trial.error is not None:
        broken = [trial.error.type]
    return TrialRow(
        case=trial.case,
        arm=trial.cell.arm,
        seed=trial.axis_seed,
        repeat=trial.index,
        status=trial.status.value,
        score=trial.score,
        start_ms=0.0,
        duration_ms=trial.duration_ms,
        latency_ms=trial.latency_ms,
        lane=0,
        cost_usd=trial.cost_usd,
        unpriced=trial.unpriced_calls,
        tokens=trial.tokens,
        broken=", ".join(broken),
    )


def _lanes(rows: Sequence[TrialRow]) -> list[int]:
    """A lane for each trial, such that trials that ran at once stand side by side."""
    lanes = [0] * len(rows)
    running: list[tuple[float, int]] = []
    free: list[int] = []
    for at in sorted(range(len(rows)), key=lambda at: rows[at].start_ms):
        while running and running[0][0] <= rows[at].start_ms:
            heapq.heappush(free, heapq.heappop(running)[1])
        lanes[at] = heapq.heappop(free) if free else len(running)
        heapq.heappush(running, (rows[at].start_ms + rows[at].duration_ms, lanes[at]))
    return lanes


# -- words that need the facts -----------------------------------------------------------------


def when(facts: ReportFacts) -> str:
    """The day and minute the run began, UTC."""
    try:
        begun = datetime.fromisoformat(str(facts.created))
    except ValueError:
        return "at an unknown time"
    return f"{begun:%Y-%m-%d %H:%M} UTC"
