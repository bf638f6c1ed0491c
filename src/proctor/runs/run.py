"""A run for reading: its trials, totals, verdicts and ranked failures."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import msgspec

from proctor.errors import EXIT_CANNOT_JUDGE, EXIT_FAIL, EXIT_PASS, ProctorError
from proctor.files import read_bounded
from proctor.formatting import money, percent, plural
from proctor.runs.annotations import labels_of, notes_of
from proctor.runs.case_rows import data_cases, expanded
from proctor.runs.early_stop import rules_named
from proctor.runs.folder import LATEST, RunFolder, check_files, check_traces, find_run
from proctor.runs.journal import UNREADABLE, Damage, JournalIndex, has_checksums
from proctor.runs.plan_order import OrderedJournal
from proctor.runs.summary import (
    MAX_NOT_JUDGED,
    CellSummary,
    RankedError,
    RankedFailure,
    SummaryFile,
    Verdict,
    compact,
    in_plan_order,
    rank_errors,
    rank_failures,
    summarise_cell,
)
from proctor.runs.trial import (
    JUDGED,
    CellKey,
    Spending,
    Trial,
    TrialStatus,
    named_trial,
    params_key,
)
from proctor.tables import Tabular
from proctor.trace import Trace


class RunTotals(Spending, kw_only=True):
    """Counts over trials, each once (`count`), and what all their attempts used (`add`).

    Of a run, the counts are those that every figure uses: the first judged attempt of each trial,
    without trials that ended after an early stop (`after_stop`). What was used is over everything
    that was run: it was paid for.
    """

    trials: int = 0
    passed: int = 0
    failed: int = 0
    hard_fail: int = 0
    infra_error: int = 0
    not_judged: int = 0
    cancelled: int = 0
    after_stop: int = 0
    retried: int = 0
    """Trials that were run again although they had been judged (`--retry-failed`)."""
    passed_after_retries: int = 0
    """Trials whose last attempt passed: beside `passed`, never instead of it."""

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> RunTotals:
        """Return the totals of some trials."""
        totals = cls()
        for trial in trials:
            totals.add(trial)
            totals.count(trial.status)
        return totals

    @classmethod
    def sum(cls, parts: Iterable[RunTotals]) -> RunTotals:
        """Return the totals of several runs."""
        totals = cls()
        for part in parts:
            totals.add(part)
            for name in cls.__struct_fields__:
                if name not in Spending.__struct_fields__:
                    setattr(totals, name, getattr(totals, name) + getattr(part, name))
        return totals

    def count(self, status: TrialStatus) -> None:
        """Count one trial."""
        self.trials += 1
        # The value of a status is the name of its count.
        setattr(self, status, getattr(self, status) + 1)

    @property
    def judged(self) -> int:
        """Number of judged trials: the denominator of the pass rate."""
        return self.passed + self.failed + self.hard_fail

    @property
    def unjudged(self) -> int:
        """Number of trials that ended without a verdict, for whatever reason."""
        return self.infra_error + self.not_judged

    @property
    def pass_rate(self) -> float | None:
        """Passed divided by judged; None before anything is judged."""
        return self.passed / self.judged if self.judged else None


RESEARCH_FILE = "research.json"
"""The file of a run folder with the rounds of research and what was found."""

MAX_RESEARCH = 64 << 20
"""Maximum size of that file."""


class Trials(Tabular):
    """Finished trials of a run, each once; a saved run reads them from its journal each time.

    Calling it gives an iterator: `run.trials()` is `iter(run.trials)`.
    """

    def __init__(self, source: RunFolder | Sequence[Trial]) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Trial]:
        source = self._source
        return source.trials() if isinstance(source, RunFolder) else iter(source)

    __call__ = __iter__

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def records(self) -> list[dict[str, Any]]:
        """Return a row per trial, without checks and trace."""
        return [
            {
                "case": trial.case,
                "agent": trial.cell.arm,
                "seed": trial.axis_seed,
                "index": trial.index,
                "status": trial.status.value,
                "score": trial.score,
                "latency_ms": trial.latency_ms,
                "cost_usd": trial.cost_usd,
                "unpriced_calls": trial.unpriced_calls,
                "tokens": trial.tokens,
                "error": None if trial.error is None else trial.error.type,
                "answer": trial.answer,
            }
            for trial in self
        ]

    def _chart(self) -> dict[str, Any]:
        rows = [row for row in self.records() if row["score"] is not None]
        return {
            "data": {"values": rows},
            "mark": "bar",
            "encoding": {
                "x": {"field": "score", "type": "quantitative", "bin": {"step": 0.1}},
                "y": {"aggregate": "count", "type": "quantitative", "title": "trials"},
                "color": {"field": "status", "type": "nominal"},
                "column": {"field": "agent", "type": "nominal", "sort": None},
            },
        }

    def __getitem__(self, index: int) -> Trial:
        return list(self)[index]


class Run(Tabular):
    """A run, finished or still running: a run folder, or the result of `proctor test` in memory.

    Everything is derived from the trials. `spec` and `finished` (all its trials, as `compact`
    leaves them) save reading them back.
    """

    def __init__(
        self,
        path: Path | str | None,
        *,
        spec: dict[str, Any] | None = None,
        finished: Sequence[Trial] | None = None,
        traces: Mapping[str, bytes] | None = None,
    ) -> None:
        self._folder = None if path is None else RunFolder(Path(path))
        self.saved = self._folder is not None
        """Whether the run has a folder; `proctor test` keeps none."""
        self.header = self.folder.checked_spec(whole=False) if spec is None else spec
        """The spec; that of a large data set is without its cases and cells."""
        self.run_id = str(self.header.get("run_id") or "")
        """The time-ordered id of the run."""
        self.stopped: str | None = self.header.get("stopped")
        """Why the run ended before its plan did, if it says so."""
        options: dict[str, Any] = self.header.get("options", {})
        # An older version recorded only whether all of them may.
        default = 1.0 if options.get("allow_infra") else MAX_NOT_JUDGED
        self.max_not_judged = float(options.get("max_not_judged", default))
        """The share of planned trials that may end without a verdict."""
        self._finished = finished
        self._traces = traces or {}
        self.damaged_lines = 0
        """Unreadable or missing lines that the first reading of the journal found."""
        self.places: Mapping[str, tuple[str, int | None, int | None]] = {}
        """File, line and column of each case, where this process has read them."""
        self.sources: Mapping[tuple[str, int], str | None] = {}
        """The file that a trial's recorded trace was read from, by case and index."""
        self._alike: dict[str, Any] | None = None
        """Of a large data set, what all its cells have in common."""
        if isinstance(each := self.header.get("cells"), dict):
            self._alike = cast("dict[str, Any]", each)
        else:
            self.spec, self.unstarted = self.header, 0

    @cached_property
    def spec(self) -> dict[str, Any]:
        """What ran. Of a large data set it has the cases and cells of which a trial has ended."""
        return expanded(self.header, self.path, self._started)

    @cached_property
    def _started(self) -> Container[str] | None:
        """The cases of a large data set of which a trial has ended; None if these are all."""
        return {cell.case for cell in self.cells} if self.unstarted else None

    @cached_property
    def unstarted(self) -> int:
        """Planned trials of a large data set in cells that are not in `cells`: none has ended."""
        assert self._alike is not None
        left = int(self._alike["cases"]) * len(self._alike["agents"]) - len(self.cells)
        return left * int(self._alike["trials"])

    def data_cases(self) -> Iterator[dict[str, Any]]:
        """Yield the cases of a large data set of which a trial has ended."""
        return data_cases(self.header, self.path, self._started)

    @property
    def folder(self) -> RunFolder:
        """The run folder; an error where the run was not saved."""
        if self._folder is None:
            raise ProctorError("the run was not saved, so it has no folder")
        return self._folder

    @property
    def path(self) -> Path:
        """Path of the run folder."""
        return self.folder.path

    @property
    def trials(self) -> Trials:
        """Finished trials, each once."""
        return Trials((self._finished or ()) if self._folder is None else self._folder)

    def trace(self, trial: Trial) -> Trace | None:
        """Return the trace of a trial."""
        if self._folder is not None:
            return self._folder.trace_of(trial)
        encoded = self._traces.get(trial.key)
        return None if encoded is None else msgspec.json.decode(encoded, type=Trace)

    def readable_trace(self, trial: Trial, unreadable: list[str]) -> Trace | None:
        """Return the trace of a trial; one that cannot be read is None, and added to the list."""
        try:
            return self.trace(trial)
        except ProctorError as error:
            unreadable.append(f"{trial.name}: {error}")
            return None

    @property
    def research(self) -> dict[str, Any] | None:
        """The rounds of research and what was found; None where there was no research."""
        if self._folder is None or not (path := self.path / RESEARCH_FILE).exists():
            return None
        try:
            return msgspec.json.decode(read_bounded(path, MAX_RESEARCH), type=dict[str, Any])
        except (OSError, ProctorError, *UNREADABLE) as error:
            raise ProctorError(f"cannot read it: {error}", where=str(path)) from None

    @cached_property
    def _index(self) -> JournalIndex | OrderedJournal | None:
        """The first reading of the journal; None where the caller passed all trials."""
        if self._alike is not None:
            index = OrderedJournal(self.folder.journal_path)
            self.damaged_lines = index.reader.damaged
            return index
        if self._finished is not None:
            return None
        index = JournalIndex(self.folder.journal_path)
        self.damaged_lines = index.reader.damaged
        # Only retries say more than the trials themselves, and there may be very many trials.
        index.lines = {key: line for key, line in index.lines.items() if line.attempts > 1}
        return index

    @cached_property
    def problems(self) -> list[Damage]:
        """What is not as it was written: trials on unreadable lines are in no figure."""
        index = self._index
        if index is None:
            return []
        files = check_files(self.path)
        if files.checksums is not None and self.folder.journal_path.exists():
            index.reader.expect(files.checksums.lines)
        traces = check_traces(self.folder, index.trials(), files.suspects) if files.suspects else ()
        return [*index.reader.problems, *files.damage, *traces]

    @property
    def damaged(self) -> int:
        """The number of problems, without a torn last line: that is an interruption."""
        if self._index is None:
            return 0
        problems, reader = self.problems, self._index.reader
        return len(problems) - len(reader.problems) + reader.damaged

    @cached_property
    def _by_cell(self) -> dict[CellKey, list[Trial]]:
        """Return all trials by cell, in compact form."""
        found: dict[tuple[str, str, str], list[Trial]] = {}
        # A session passes its trials compact already.
        index = self._index
        finished = (self._finished or ()) if index is None else compact(index.trials(), {})
        for trial in finished:
            key = (trial.case, trial.agent, params_key(trial.params))
            trials = found.setdefault(key, [])
            if trials:  # names are shared, since there may be very many trials
                trial.case, trial.agent = trials[0].case, trials[0].agent
            trials.append(trial)
        return {CellKey(*key): found[key] for key in sorted(found)}

    def _groups(self) -> Iterator[tuple[CellKey, list[Trial]]]:
        """Yield the trials of each cell of a large data set, in the order of the cells."""
        assert isinstance(self._index, OrderedJournal)
        for cell, trials in groupby(self._index.trials(), key=attrgetter("cell")):
            yield cell, list(trials)

    @cached_property
    def cells(self) -> Sequence[CellSummary]:
        """A summary of each planned cell, by case and agent."""
        names = self.header.get("options", {}).get("early_stop")
        rules = rules_named(names) if names else ()
        summarise = partial(summarise_cell, max_not_judged=self.max_not_judged, rules=rules)
        if (alike := self._alike) is not None:
            return SummaryFile(
                summarise(
                    key := CellKey(case, agent),
                    found.get(key, ()),
                    threshold=alike["threshold"],
                    asked=alike["trials"],
                    spent=self._spent_in(key, found.get(key, ())),
                )
                for case, groups in groupby(self._groups(), key=lambda group: group[0].case)
                if (found := dict(groups))
                for agent in sorted(alike["agents"])
            )
        # From the plan, not from the trials: a cell without trials is NOT RUN, not absent.
        planned = {
            CellKey(c["case"], c["agent"], c.get("params", "")): c for c in self.header["cells"]
        }
        return [
            summarise(
                key,
                self._by_cell.get(key, ()),
                threshold=cell["threshold"],
                asked=cell["trials"],
                stopped=cell.get("early_stop"),
                spent=self._spent.get(key),
            )
            for key, cell in sorted(planned.items())
        ]

    @property
    def verdicts(self) -> dict[CellKey, Verdict]:
        """Return the verdict of each cell."""
        return {cell.cell: cell.verdict for cell in self.cells}

    @property
    def verdict(self) -> Verdict:
        """Return the worst verdict of all cells; NOT RUN without any."""
        found = {*self.verdicts.values(), *([Verdict.NOT_RUN] if self.unstarted else [])}
        return min(found, key=_WORST_FIRST.index, default=Verdict.NOT_RUN)

    @cached_property
    def failures(self) -> tuple[RankedFailure, ...]:
        """Return failed checks over all cells, most harmful first."""
        counted = (trial for _, _, trials in self._counted() for trial in trials)
        return rank_failures(trial for trial in counted if trial.status in JUDGED)

    @cached_property
    def errors(self) -> tuple[RankedError, ...]:
        """Return why trials could not be judged, most common first."""
        if not self.totals.unjudged:
            return ()
        return rank_errors(trial for _, _, trials in self._counted() for trial in trials)

    def _counted(self) -> Iterator[tuple[CellKey, list[Trial], list[Trial]]]:
        """Yield the trials of each cell, and of them those that figures count: not those that
        ended after an early stop."""
        large = self._alike is not None
        # Of a large data set, only cells that stopped early leave trials out.
        needed = {c.cell: c.trials for c in self.cells if not large or c.early_stop is not None}
        # Finishing order is random, and the samples of failures must not depend on it.
        groups = self._groups() if large else self._by_cell.items()
        for cell, trials in groups:
            yield cell, trials, in_plan_order(trials)[: needed.get(cell)]

    @cached_property
    def _spent(self) -> Mapping[CellKey, Spending]:
        """What all attempts of each cell used."""
        if isinstance(self._index, JournalIndex):
            return self._index.spent
        found = {cell: Spending() for cell in self._by_cell}
        for cell, trials in self._by_cell.items():
            for trial in trials:
                found[cell].add(trial)
        return found

    def _spent_in(self, cell: CellKey, trials: Iterable[Trial]) -> Spending:
        """Return what the trials of a cell of a large data set used, with all attempts."""
        spent = Spending()
        for trial in trials:
            spent.add(trial)
        if isinstance(self._index, OrderedJournal) and cell in self._index.more_spent:
            spent.add(self._index.more_spent[cell])
        return spent

    def spent_on(self, trial: Trial) -> tuple[float | None, int]:
        """Return the known cost and the unpriced calls of all attempts at a trial."""
        line = None if self._index is None else self._index.lines.get(trial.key)
        if line is None:
            return trial.cost_usd, trial.unpriced_calls
        return line.spent_usd, line.spent_unpriced

    @cached_property
    def totals(self) -> RunTotals:
        """Return the counts that every figure uses, and what all attempts used."""
        totals = RunTotals()
        lines = {} if self._index is None else self._index.lines
        # Trials outside the plan, as in some imports, count as well.
        for cell, trials, counted in self._counted():
            if self._alike is not None:
                totals.add(self._spent_in(cell, trials))
            totals.after_stop += len(trials) - len(counted)
            for trial in counted:
                totals.count(trial.status)
                line = lines.get(trial.key) if lines else None
                last = trial.status if line is None else line.last_status
                # An attempt after one that was judged; others only filled a gap.
                totals.retried += (
                    line is not None and trial.status in JUDGED and trial.attempt < line.attempts
                )
                totals.passed_after_retries += last == TrialStatus.PASSED
        for spent in self._spent.values() if self._alike is None else ():
            totals.add(spent)
        return totals

    @property
    def exit_code(self) -> int:
        """Return 1 if a cell failed, else 2 if too little was judged, else 0.

        Too little: more trials without a verdict than tolerated, over the whole run, or planned
        trials that are missing. `gate` follows the same rule.
        """
        # Failures first: they are results of the agent, whatever else is missing.
        verdicts = {cell.verdict for cell in self.cells}
        if verdicts & {Verdict.HARD_FAIL, Verdict.FAIL, Verdict.PARTIAL}:
            return EXIT_FAIL
        planned = sum(cell.planned for cell in self.cells) + self.unstarted
        too_many = sum(cell.unjudged for cell in self.cells) > self.max_not_judged * planned
        missing = verdicts & {Verdict.NOT_RUN, Verdict.INCOMPLETE}
        damaged = self.problems and self.damaged
        unjudged = too_many or missing or self.unstarted or self.stopped or damaged
        return EXIT_CANNOT_JUDGE if unjudged else EXIT_PASS

    def __repr__(self) -> str:
        return f"<Run {self.path if self.saved else 'in memory'}>"

    def records(self) -> list[dict[str, Any]]:
        """Return a row per cell, as in summary.csv; `run.trials` has the trials."""
        return [
            {name: value for name, value in row.items() if name != "failures"}
            for row in map(msgspec.structs.asdict, self.cells)
        ]

    def _chart(self) -> dict[str, Any]:
        rows = [
            {
                "case": cell.case,
                "agent": cell.cell.arm,
                "pass_rate": cell.pass_rate,
                "score": cell.score_mean,
                "verdict": cell.verdict.value,
            }
            for cell in self.cells
        ]
        agents: dict[str, Any] = {"field": "agent", "type": "nominal", "sort": None, "title": None}
        rate = {"field": "pass_rate", "type": "quantitative", "scale": {"domain": [0, 1]}}
        return {
            "data": {"values": rows},
            "mark": "rect",
            "encoding": {
                "x": {**agents, "axis": {"orient": "top"}},
                "y": {**agents, "field": "case"},
                "color": {**rate, "title": "pass rate"},
                "tooltip": [{"field": name} for name in ("case", "agent", "pass_rate", "score")],
            },
        }

    def _repr_html_(self) -> str:
        """Return a table of the cells, for notebooks."""
        from proctor.tables import html_table

        totals = self.totals
        rows = [
            (
                cell.case,
                cell.cell.arm,
                cell.verdict,
                f"{cell.passed}/{cell.judged}",
                percent(cell.pass_rate),
                money(cell.cost_usd, cell.unpriced_calls),
            )
            for cell in self.cells
        ]
        return html_table(
            f"{self.verdict}: {totals.passed} of {plural(totals.judged, 'judged trial')} passed",
            ("case", "agent", "verdict", "passed", "pass rate", "cost"),
            rows,
            [
                *(
                    f"failed: {each.check_id}: {each.samples[0].reason}"
                    for each in self.failures[:3]
                ),
                *(f"not judged: {each.error.message}" for each in self.errors[:3]),
                *([f"stopped: {self.stopped}"] if self.stopped else []),
                repr(self).strip("<>"),
            ],
        )


_WORST_FIRST = (
    Verdict.HARD_FAIL,
    Verdict.FAIL,
    Verdict.PARTIAL,
    Verdict.INFRA_ERROR,
    Verdict.NOT_JUDGED,
    Verdict.NOT_RUN,
    Verdict.INCOMPLETE,
    Verdict.PASS,
)


def find_trial(source: str, root: Path) -> tuple[Run, Trial]:
    """Return the run and the trial of `RUN:TRIAL`; a trial alone is one of the latest run."""
    # Names of cases and agents have colons too: the first part that names a run is the run.
    first: ProctorError | None = None
    for at in (at for at, character in enumerate(source) if character == ":"):
        try:
            found = find_run(source[:at] or LATEST, root)
        except ProctorError as error:
            first = first or error
        else:
            run = Run(found)
            return run, named_trial(run.trials(), source[at + 1 :], str(found))
    run = Run(find_run(LATEST, root))
    try:
        return run, named_trial(run.trials(), source, str(run.path))
    except ProctorError:
        # `refund/hasty/0/1` cannot be meant as a run.
        if first is not None and "/" not in source.partition(":")[0]:
            raise first from None
        try:
            run = Run(find_run(source, root))
        except ProctorError:
            pass
        else:
            failing = next(
                (one.name for one in run.trials() if not one.passed), "CASE/AGENT/SEED/0"
            )
            raise ProctorError(
                f"{source} is a run; name one of its trials", hint=f"such as {source}:{failing}"
            ) from None
        raise


def verify(path: Path) -> tuple[list[Damage], bool]:
    """Read everything in a run folder; return what is damaged, and whether it has checksums."""
    folder = RunFolder(path)
    try:
        folder.checked_spec(whole=False)
    except ProctorError as error:
        return [Damage(error.where or str(path), error.message, error.hint or "")], True
    files, index = check_files(path, thorough=True), JournalIndex(folder.journal_path)
    if files.checksums is not None and folder.journal_path.exists():
        index.reader.expect(files.checksums.lines)
    notes: list[str] = []
    labels: list[str] = []
    notes_of(path, notes)
    labels_of(path, labels)
    found = [*index.reader.problems, *files.damage, *check_traces(folder, index.trials())]
    found += [Damage(str(path / "notes.jsonl"), line) for line in notes]
    found += [Damage(str(path / "labels.jsonl"), line) for line in labels]
    return found, has_checksums(path)
