"""The facts that every report of one or several runs shows, computed once.

    facts = ReportFacts(run, baseline=before)

Guarantees: console, HTML, Markdown, JSON, charts and the formats of CI systems read these facts and
compute nothing themselves, so they agree. The exit code is decided here. Figures that only some
forms need are computed when they are first read; each trial is held as a small row, and its details
(answers, traces) stay in the run folder.
"""

from __future__ import annotations

import copy
import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from proctor.checks.base import CheckResult, CheckStatus, Layer, worst
from proctor.errors import EXIT_CANNOT_JUDGE, EXIT_FAIL, ProctorError
from proctor.files import read_bounded
from proctor.formatting import plural
from proctor.report.figures import (
    ProfileRow,
    case_text,
    counting_notes,
    profile_lines,
    profile_rows,
    research_lines,
    sentence,
)
from proctor.results.metadata import as_text
from proctor.results.outcomes import CaseOutcome, case_properties
from proctor.runs.annotations import FILE as NOTES_FILE
from proctor.runs.annotations import Note, annotations_of, runs_tagged, tags_of
from proctor.runs.plan_order import row_order
from proctor.runs.run import Run, RunTotals
from proctor.runs.summary import CellSummary, RankedError, RankedFailure, Verdict
from proctor.runs.trial import Trial, TrialStatus
from proctor.spec.located import SourceLocation

if TYPE_CHECKING:
    from proctor.results.gate import GateResult
    from proctor.results.leaderboard import Entrant, Leaderboard
    from proctor.stats.types import Interval

NO_VERDICT = (CheckStatus.UNSCORED, CheckStatus.NOT_JUDGED)
"""Statuses of checks that should have been judged and were not."""

REPORTED = (CheckStatus.FAIL, *NO_VERDICT, CheckStatus.WARN)
"""Check statuses that every form reports; of the others only verdicts of judges."""

MOST_SPANS = 3
"""Span ids named per check; JSON has them all."""

_LEVELS = ("trivial", "easy", "simple", "low", "medium", "moderate", "hard", "high", "expert")
"""Words for difficulty from easy to hard; numbers sort as numbers, other words by alphabet."""


class CaseAbout(msgspec.Struct, frozen=True, kw_only=True):
    """A case as it was written, without its checks."""

    case: str
    input: str
    description: str | None = None
    difficulty: str | None = None
    type: str | None = None
    tags: tuple[str, ...] = ()


class ArmCells(NamedTuple):
    """Counts over the cells of one agent (with one set of parameters)."""

    cells: int
    passed: int
    tokens: int | None


class GroupFigures(NamedTuple):
    """An agent on some of the cases: a single case, or those of one difficulty."""

    name: str
    """The case, or the difficulty."""
    arm: str
    cases: int
    pass_rate: Interval
    score: Interval


class TrialFacts(NamedTuple):
    """One trial with its suite, its position and the reason of its failure."""

    trial: Trial
    suite: str
    threshold: float
    place: SourceLocation | None = None
    description: str | None = None
    source: str | None = None
    """The file that a recorded trace was read from."""
    error: str | None = None
    """Why the trial could not be judged, in one line."""

    @property
    def name(self) -> str:
        """The case, and the number of the trial where there are several."""
        trial = self.trial
        case = f"{trial.case} [{trial.cell.params}]" if trial.params else trial.case
        seed = f" seed {trial.axis_seed}" if trial.axis_seed else ""
        return f"{case}{seed} #{trial.index + 1}" if trial.index else f"{case}{seed}"

    @property
    def layers(self) -> dict[Layer, CheckStatus]:
        """The worst status of each layer."""
        results = self.trial.checks
        return {layer: worst(r.status for r in results if r.layer == layer) for layer in Layer}

    def with_status(self, *statuses: CheckStatus) -> list[CheckResult]:
        """Return results of some statuses, in the order they were judged."""
        return [result for result in self.trial.checks if result.status in statuses]

    @property
    def reason(self) -> str:
        """Why the trial did not pass, in one line; empty when it passed."""
        if self.trial.status == TrialStatus.PASSED:
            return ""
        if self.error is not None:
            return self.error
        if hard := self.with_status(CheckStatus.FAIL):
            return f"{hard[0].id}: {hard[0].reason}"
        # Nothing blocked, so checks with a weight brought the score down.
        lost = [r for r in self.trial.checks if r.failed and r.weight]
        why = f": {lost[0].id}: {lost[0].reason}" if lost else ""
        return f"score {self.trial.score or 0.0:.2f} is below {self.threshold:g}{why}"

    @property
    def is_gate_failure(self) -> bool:
        """Whether the trial was judged and did not pass."""
        return self.trial.status in (TrialStatus.FAILED, TrialStatus.HARD_FAIL)


class TrialRow(NamedTuple):
    """One trial in a list of all, without its details. `start_ms` counts from the first start."""

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


class ReportFacts:
    """Everything a report shows of its runs: one, or one per suite of `proctor test`."""

    def __init__(
        self,
        *runs: Run,
        labels: Sequence[str] = (),
        baseline: Run | None = None,
        signal: int | None = None,
        remarks: Sequence[str] = (),
    ) -> None:
        first = runs[0]
        self.runs = runs
        self._baseline = baseline
        self.saved = first.saved
        """Whether there is a run folder."""
        self.signal = signal
        """The signal that ended the work, if one did."""
        self.remarks = tuple(remarks)
        """Notes on the results as a whole."""
        # The folder of an experiment has its name; a run made by hand may lack one in its spec.
        parent = first.path.parent.name if first.saved else ""
        self.name = str(first.header.get("name") or parent)
        self.run_id = first.run_id
        self.path = str(first.path) if first.saved else ""
        self.created: str | None = first.header.get("created")
        self.provenance = cast("dict[str, Any]", first.header.get("provenance") or {})
        self.stopped = next((run.stopped for run in runs if run.stopped), None)
        self.imported = any("imported" in run.header for run in runs)
        """Whether other programs made a run: it cannot be resumed."""
        git = cast("dict[str, Any]", self.provenance.get("git") or {})
        self.commit = None if git.get("commit") is None else str(git["commit"])
        """The commit the run was made at."""
        self.dirty = bool(git.get("dirty"))
        """Whether there were changes beside the commit."""
        self._labels = tuple(labels) or tuple(self.name for _ in runs)
        several = plural(len(runs), "run" if self.saved else "suite")
        self.title = several if len(runs) > 1 else self._labels[0]
        """The suite file, the run's name, or the number of runs."""
        self.cells: Sequence[CellSummary] = first.cells
        if len(runs) > 1:
            self.cells = [cell for run in runs for cell in run.cells]
        """A summary of each planned cell."""
        self.agents = tuple(dict.fromkeys(cell.agent for cell in self.cells))
        """Every agent, in the order of the cells."""
        # One run knows its totals; those of several suites are counted together.
        self.totals = first.totals if len(runs) == 1 else RunTotals.sum(run.totals for run in runs)
        """Counts of all trials together, and what all attempts used."""
        self.remarks = (*self.remarks, *(note for run in runs for note in counting_notes(run)))
        self.detailed = not self.saved or (
            len(self.cells) <= MOST_DETAILED and all(cell.asked == 1 for cell in self.cells)
        )
        """Whether trials are reported one by one: each cell has one, or the run is not saved."""
        self.planned = sum(cell.planned for cell in self.cells)
        self.planned += sum(run.unstarted for run in runs)
        """Planned trials, without those that an early stop made unnecessary."""
        self.not_run = max(0, self.planned - self.totals.trials)
        """Planned trials that never started."""

    def replace(self, **values: Any) -> ReportFacts:
        """Return a copy with other values, such as texts without secrets."""
        # A cached property is an entry of the instance, so it can be replaced like a field.
        changed = copy.copy(self)
        vars(changed).update(values)
        return changed

    # -- the whole -------------------------------------------------------------------------------

    @cached_property
    def exit_code(self) -> int:
        """128 + signal, else 1 if a gate failed, 2 if something was not judged, else 0."""
        if self.signal is not None:
            return 128 + self.signal
        codes = [run.exit_code for run in self.runs]
        # A failure is certain, whatever else could not be judged.
        if EXIT_FAIL in codes:
            return EXIT_FAIL
        # A report of nothing has judged nothing.
        return max(codes) if self.cells else max(EXIT_CANNOT_JUDGE, *codes)

    @property
    def verdict(self) -> str:
        """PASS, FAIL or NOT JUDGED, from the exit code."""
        return ("PASS", "FAIL", "NOT JUDGED")[min(self.exit_code, EXIT_CANNOT_JUDGE)]

    @cached_property
    def headline(self) -> str:
        """The counts of the run, each with its denominator.

        Where several agents ran a case, cells (case × agent) are counted.
        """
        if not self.detailed:
            left = sum(run.unstarted for run in self.runs)
            more = f"; {left} trials not run" if left else ""
            return sentence(self.cells, self.totals) + more
        totals = self.totals
        # "Case" would count a case once for each agent.
        pairs = [(run.run_id, cell.case) for run in self.runs for cell in run.cells]
        noun = "cell" if len(set(pairs)) < len(pairs) else "case"
        total = totals.trials + self.not_run
        parts = [f"{totals.passed} of {plural(total, noun)} passed"]
        if failed := totals.failed + totals.hard_fail:
            parts.append(f"{failed} failed ({totals.hard_fail} on a blocking check)")
        if totals.unjudged:
            parts.append(f"{totals.unjudged} could not be judged")
        if totals.cancelled:
            parts.append(f"{totals.cancelled} stopped")
        if self.not_run:
            parts.append(f"{self.not_run} not run")
        results = [result for each in self.trials for result in each.trial.checks]
        if warnings := sum(result.status is CheckStatus.WARN for result in results):
            parts.append(plural(warnings, "warning"))
        return "; ".join(parts)

    # -- cells -----------------------------------------------------------------------------------

    @property
    def passed_cells(self) -> int:
        """Cells with the verdict PASS."""
        return sum(cell.verdict == Verdict.PASS for cell in self.cells)

    @cached_property
    def failures(self) -> tuple[RankedFailure, ...]:
        """Failed checks, the most harmful first."""
        return tuple(failure for run in self.runs for failure in run.failures)

    @cached_property
    def errors(self) -> tuple[RankedError, ...]:
        """Why trials could not be judged, the most common first."""
        return tuple(error for run in self.runs for error in run.errors)

    @cached_property
    def _entrants(self) -> tuple[Entrant, ...]:
        from proctor.results.leaderboard import entrants_of

        # A report has a column for each set of parameters.
        return entrants_of(list(self.runs), by_params=True)

    @cached_property
    def board(self) -> Leaderboard:
        """The agents ranked, with the tests between them."""
        from proctor.results.leaderboard import leaderboard

        return leaderboard(self._entrants)

    @cached_property
    def frontier(self) -> dict[str, str | None]:
        """Agents with a known cost, and for each one that is better and not dearer, if any.

        Those without one are the Pareto frontier of cost and pass rate, by point estimates. An
        agent with unpriced calls is left out: a lower bound must not win.
        """
        known = {
            row.name: (row.cost_per_trial_usd, row.pass_rate.value)
            for row in self.board.rows
            if row.cost_per_trial_usd is not None and row.pass_rate.value is not None
            if not row.unpriced_calls
        }
        return {
            name: next(
                (
                    other
                    for other, (price, rate) in known.items()
                    if price <= cost and rate >= passed and (price, rate) != (cost, passed)
                ),
                None,
            )
            for name, (cost, passed) in known.items()
        }

    def figures_by(self, group_of: Mapping[str, str | None]) -> list[GroupFigures]:
        """Return pass rate and score of each agent by group; `group_of` maps cases to groups."""
        from proctor.results.leaderboard import agent_rate, score_over
        from proctor.results.outcomes import unless_biased

        found: list[GroupFigures] = []
        for entrant in self._entrants:
            groups: dict[str, list[CaseOutcome]] = defaultdict(list)
            for case in entrant.outcomes.cases:
                if (group := group_of.get(case.case)) is not None:
                    groups[group].append(case)
            for group, cases in groups.items():
                part = msgspec.structs.replace(entrant.outcomes, cases=tuple(cases))
                rate = agent_rate(part)
                score = unless_biased(score_over(part), cases)
                found.append(GroupFigures(group, entrant.name, len(cases), rate, score))
        return found

    @cached_property
    def by_level(self) -> list[GroupFigures]:
        """Each agent on the cases of each difficulty."""
        return self.figures_by({name: about.difficulty for name, about in self.cases.items()})

    @cached_property
    def arms(self) -> dict[str, ArmCells]:
        """The counts over cells by agent."""
        # Imported trials are outside any plan: their agents have no cells.
        found: dict[str, list[CellSummary]] = {row.name: [] for row in self.board.rows}
        for cell in self.cells:
            found.setdefault(cell.cell.arm, []).append(cell)
        arms: dict[str, ArmCells] = {}
        for name, own in found.items():
            tokens = [cell.tokens for cell in own if cell.tokens is not None]
            passed = sum(cell.verdict == Verdict.PASS for cell in own)
            arms[name] = ArmCells(len(own), passed, sum(tokens) if tokens else None)
        return arms

    @property
    def names(self) -> list[str]:
        """Agents in the order of the leaderboard."""
        return [row.name for row in self.board.rows]

    @cached_property
    def cases(self) -> dict[str, CaseAbout]:
        """The cases as they were written."""
        return {
            name: CaseAbout(
                case=name,
                input=case_text(case.get("input", case.get("query"))),
                description=as_text(case.get("description")),
                difficulty=as_text(case.get("difficulty")),
                type=as_text(case.get("type")),
                tags=tuple(str(tag) for tag in cast("list[Any]", case.get("tags") or ())),
            )
            for run in self.runs
            for name, case in case_properties(run.spec).items()
        }

    def levels(self) -> list[str]:
        """Return the difficulties of the cases, from easy to hard."""
        return sorted({c.difficulty for c in self.cases.values() if c.difficulty}, key=_level)

    def worst_cases(self) -> list[str]:
        """Return cases by ascending mean pass rate; those never judged come first."""
        rates: dict[str, list[float]] = defaultdict(list)
        for cell in self.cells:
            # Below every rate: what was never judged has to be looked at first.
            rates[cell.case].append(-1.0 if cell.pass_rate is None else cell.pass_rate)
        return sorted(rates, key=lambda case: (sum(rates[case]) / len(rates[case]), case))

    # -- trials ----------------------------------------------------------------------------------

    @cached_property
    def trials(self) -> tuple[TrialFacts, ...]:
        """Every trial with its checks, in the order of the plan."""
        found: list[TrialFacts] = []
        for number, run in enumerate(self.runs):
            thresholds = {cell.case: cell.threshold for cell in run.cells}
            suite = cast("dict[str, Any]", run.spec.get("suite") or {})
            described = {c["id"]: c.get("description") for c in suite.get("cases") or ()}
            # The journal has the order in which trials finished.
            trials = sorted(run.folder.trials(), key=row_order) if run.saved else run.trials
            for trial in trials:
                place, error = run.places.get(trial.case), trial.error
                found.append(
                    TrialFacts(
                        trial,
                        self._labels[number],
                        thresholds.get(trial.case, 0.0),
                        None if place is None else SourceLocation(*place),
                        as_text(described.get(trial.case)),
                        run.sources.get((trial.case, trial.index)),
                        None if error is None else f"{error.type}: {error.message}",
                    )
                )
        return tuple(found)

    def count_checks(self, *statuses: CheckStatus) -> int:
        """Return how many checks of all trials have one of these statuses."""
        return sum(len(each.with_status(*statuses)) for each in self.trials)

    # Not the same as `trials`: a run of a million trials is listed without their checks.
    @cached_property
    def rows(self) -> tuple[TrialRow, ...]:
        """Every trial as a small row, in the order of the plan."""
        return trial_rows(trial for run in self.runs for trial in run.trials)

    @cached_property
    def started_ns(self) -> int:
        """Start of the first trial; 0 if none started."""
        starts = [t.started_ns for run in self.runs for t in run.trials if t.started_ns]
        return min(starts, default=0)

    @cached_property
    def duration_ms(self) -> float | None:
        """From the start of the first trial to the end of the last."""
        if self.detailed:
            # `rows` would read the journal again; the trials are already loaded.
            trials = [each.trial for each in self.trials]
            first = min((t.started_ns for t in trials if t.started_ns), default=0)
            ends = [(t.started_ns - first) / 1e6 + t.duration_ms for t in trials]
        else:
            ends = [row.start_ms + row.duration_ms for row in self.rows]
        return max(ends) if ends else None

    # -- around the run --------------------------------------------------------------------------

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """The tags of the run."""
        return tags_of(self.runs[0].path) if self.saved else ()

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        """The annotations of the run."""
        if not self.saved or not (self.runs[0].path / NOTES_FILE).exists():
            return ()
        return tuple(annotations_of(self.runs[0].path))

    @cached_property
    def since(self) -> GateResult | None:
        """The changes since the baseline."""
        if self._baseline is None:
            return None
        # Imported here: estimators are needed only for a comparison.
        from proctor.results.gate import judge_runs

        return judge_runs(self.runs[0], self._baseline)

    @cached_property
    def profile(self) -> tuple[list[ProfileRow], list[str]] | None:
        """The reliability profile that a run is the baseline of: figures, and lines below them."""
        path = self.runs[0].path / "profile.json" if self.saved else None
        if path is None or not path.exists():
            return None
        try:
            record = msgspec.json.decode(read_bounded(path, MAX_PROFILE), type=dict[str, Any])
            return profile_rows(record), profile_lines(record)
        except (OSError, ProctorError, msgspec.MsgspecError, KeyError, TypeError, ValueError):
            return None  # a report without it is better than none

    @cached_property
    def research(self) -> tuple[str, ...]:
        """Findings or progress of research, one line each."""
        records = [run.research for run in self.runs] if self.saved else []
        return tuple(line for record in records if record for line in research_lines(record))


MOST_DETAILED = 2_000
"""Trials that are reported one by one: more are not read, and each is in memory with its checks."""

MAX_PROFILE = 16 << 20
"""Maximum size of profile.json."""


def tagged_baseline(run: Run) -> Run | None:
    """Return the last run of the experiment tagged `baseline`; None if `run` is tagged itself."""
    # A baseline compared with itself would always say "no change".
    if "baseline" in tags_of(run.path):
        return None
    others = runs_tagged(run.path.parent, "baseline")
    return Run(others[-1]) if others else None


def _level(word: str) -> tuple[int, float, str]:
    try:
        return (0, float(word), word)
    except ValueError:
        known = word.casefold()
        return (1, _LEVELS.index(known) if known in _LEVELS else len(_LEVELS), known)


# -- trials ------------------------------------------------------------------------------------


def trial_rows(trials: Iterable[Trial]) -> tuple[TrialRow, ...]:
    """Return every trial in the order of the plan."""
    # Each trial is reduced to its row as it is read: a journal may not fit into memory.
    read = sorted(((row_order(t), t.started_ns / 1e6, _row(t)) for t in trials), key=itemgetter(0))
    # Imported trials may lack a start time, which is stored as 0.
    first = min((start for _, start, _ in read if start), default=0.0)
    rows = [row._replace(start_ms=max(0.0, start - first)) for _, start, row in read]
    lanes = _lanes(rows)
    return tuple(row._replace(lane=lane) for row, lane in zip(rows, lanes, strict=True))


def _row(trial: Trial) -> TrialRow:
    broken = [result.id for result in trial.checks if result.failed]
    # Without a verdict, the error is what broke.
    if trial.error is not None and not broken:
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
    """Return a lane for each trial; concurrent trials get different lanes."""
    lanes = [0] * len(rows)
    # Two heaps: the end and lane of running trials, and the free lanes, the lowest first.
    running: list[tuple[float, int]] = []
    free: list[int] = []
    for at in sorted(range(len(rows)), key=lambda at: rows[at].start_ms):
        while running and running[0][0] <= rows[at].start_ms:
            heapq.heappush(free, heapq.heappop(running)[1])
        lanes[at] = heapq.heappop(free) if free else len(running)
        heapq.heappush(running, (rows[at].start_ms + rows[at].duration_ms, lanes[at]))
    return lanes


def status_word(status: CheckStatus) -> str:
    """Return the status of a check as reports show it: FAIL, NOT JUDGED."""
    return status.value.replace("_", " ").upper()


def when(facts: ReportFacts) -> str:
    """Return the date and minute at which the run started, in UTC."""
    try:
        started = datetime.fromisoformat(str(facts.created))
    except ValueError:
        return "at an unknown time"
    return f"{started:%Y-%m-%d %H:%M} UTC"
