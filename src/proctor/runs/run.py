"""A run, for reading: its trials, what they come to, and what to fix first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from proctor.runs.folder import RunFolder
from proctor.runs.model import CellKey, Trial
from proctor.runs.slim import Pool
from proctor.runs.stopping import rules_named
from proctor.runs.summary import CellSummary, RankedFailure, Verdict, rank_failures, summarise_cell
from proctor.runs.totals import Totals
from proctor.trace import Trace

EXIT_PASS, EXIT_FAIL, EXIT_CANNOT_JUDGE = 0, 1, 2


class _Read(NamedTuple):
    trials: list[Trial]
    totals: Totals


class Run:
    """A run folder, finished or still running. Everything is derived from its journal."""

    def __init__(self, path: Path | str) -> None:
        self.folder = RunFolder.open(path)
        self.spec: dict[str, Any] = self.folder.read_spec()

    @property
    def path(self) -> Path:
        """Where the run is."""
        return self.folder.path

    @property
    def run_id(self) -> str:
        """The time-ordered id of the run."""
        return str(self.spec["run_id"])

    @property
    def stopped(self) -> str | None:
        """Why the run ended before its plan did, if it said so."""
        return self.spec.get("stopped")

    def trials(self) -> Iterator[Trial]:
        """Finished trials, each once."""
        return self.folder.trials()

    def trace(self, trial: Trial) -> Trace | None:
        """The trace of a trial."""
        return self.folder.trace_of(trial)

    @cached_property
    def _read(self) -> _Read:
        """All trials read once, without what only a look at one of them needs."""
        totals, pool = Totals(), Pool()
        trials: list[Trial] = []
        for trial in self.trials():
            totals.add(trial)
            trials.append(pool.slim(trial))
        # The order they finished in is chance; samples must not depend on it.
        trials.sort(key=lambda t: (t.cell, t.axis_seed or 0, t.index))
        return _Read(trials, totals)

    @cached_property
    def cells(self) -> list[CellSummary]:
        """A summary of each planned cell, by case and agent."""
        by_cell: dict[CellKey, list[Trial]] = defaultdict(list)
        for trial in self._read.trials:
            by_cell[trial.cell].append(trial)
        options = self.spec.get("options", {})
        rules = rules_named(options.get("early_stop", ()))
        planned = {
            CellKey(c["case"], c["agent"], c.get("params", "")): c for c in self.spec["cells"]
        }
        return [
            summarise_cell(
                key,
                by_cell.get(key, ()),
                threshold=cell["threshold"],
                asked=cell["trials"],
                allow_infra=bool(options.get("allow_infra")),
                rules=rules,
            )
            for key, cell in sorted(planned.items())
        ]

    @property
    def verdicts(self) -> dict[CellKey, Verdict]:
        """The verdict of each cell."""
        return {cell.cell: cell.verdict for cell in self.cells}

    @cached_property
    def failures(self) -> tuple[RankedFailure, ...]:
        """Failed checks over all cells, the most harmful first."""
        return rank_failures(trial for trial in self._read.trials if trial.status.judged)

    @property
    def totals(self) -> Totals:
        """Counts and cost of all trials together."""
        return self._read.totals

    @property
    def exit_code(self) -> int:
        """0 when every cell passed, 1 when the gate failed, 2 when something was not judged."""
        verdicts = set(self.verdicts.values())
        if verdicts & {Verdict.HARD_FAIL, Verdict.FAIL, Verdict.PARTIAL}:
            return EXIT_FAIL
        return EXIT_CANNOT_JUDGE if Verdict.INFRA_ERROR in verdicts or self.stopped else EXIT_PASS

    def __repr__(self) -> str:
        return f"<Run {self.path}>"
