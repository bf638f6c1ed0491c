"""Follow a course through the journal of a run, and keep what was decided beside its results.

    results/<experiment>/<date>_<seq>/research.json      the rounds so far, and what was found

Promise: the rounds are a pure function of the spec and the journal. Each is on record (here, and
as cells of the spec) before its first trial runs, so a run that was cut short anywhere goes on as
if it had not been. Results that the rounds on record cannot have led to are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from proctor.errors import ProctorError
from proctor.files import write_atomic
from proctor.runs.early_stop import CellPlan
from proctor.runs.folder import RunFolder
from proctor.runs.run import RESEARCH_FILE
from proctor.runs.trial import CellKey, PlannedTrial, Trial, TrialStatus
from proctor.spec import Case
from proctor.trials.axes import Axes
from proctor.trials.options import RunOptions
from proctor.trials.plan import Plan
from proctor.trials.research.courses import course_of
from proctor.trials.research.outline import Outline
from proctor.trials.research.rounds import CourseResult, Round, Setup


class Unfolding:
    """The rounds of a run as far as its results lead."""

    def __init__(self, setup: Setup) -> None:
        self.kind = setup.outline.research.kind
        self._thresholds = {case.id: case.threshold for case in setup.cases}
        self._course = course_of(setup)
        self.rounds: list[Round] = [next(self._course)]
        self.found: CourseResult | None = None

    @property
    def plan(self) -> Plan:
        """Every trial that was asked for so far."""
        trials = [trial for each in self.rounds for trial in each.trials]
        counts = Counter(trial.cell for trial in trials)
        cells = {
            cell: CellPlan(count, self._thresholds[cell.case]) for cell, count in counts.items()
        }
        return Plan(trials, cells)

    def follow(self, journal: Iterable[Trial]) -> None:
        """Go on as far as finished trials lead: to a round with trials that are left, or the end.

        A trial that could not be judged is finished too; it is no observation.
        """
        done = {t.key: t for t in journal if t.status != TrialStatus.CANCELLED}
        while self.found is None:
            results = [done[trial.key] for trial in self.rounds[-1].trials if trial.key in done]
            if len(results) < len(self.rounds[-1].trials):
                break
            try:
                self.rounds.append(self._course.send(results))
            except StopIteration as end:
                self.found = end.value
        self._refuse_strangers(done)

    def _refuse_strangers(self, done: Mapping[str, Trial]) -> None:
        asked = {trial.key for each in self.rounds for trial in each.trials}
        for key, trial in done.items():
            if key not in asked:
                raise ProctorError(
                    f"the results so far do not lead to the trial of {trial.cell} that was run",
                    hint="the code that chooses trials, or its packages, changed since; "
                    "start another run",
                )

    def record(self) -> dict[str, Any]:
        """What is kept of it."""
        return {
            "kind": self.kind,
            "ended": self.found is not None,
            "rounds": [
                {"round": number, "decided": list(each.decided), "trials": _counts(each.trials)}
                for number, each in enumerate(self.rounds, 1)
            ],
            "found": None if self.found is None else self.found.facts,
            "summary": [] if self.found is None else list(self.found.lines),
        }

    def put_on_record(self, folder: RunFolder) -> None:
        """Write the rounds down; before any trial of the last one runs."""
        text = msgspec.json.format(msgspec.json.encode(self.record(), enc_hook=str), indent=2)
        write_atomic(folder.path / RESEARCH_FILE, text + b"\n")
        spec = folder.known_spec()
        cells = self.plan.record()
        if spec["cells"] != cells:
            folder.write_spec({**spec, "cells": cells})


def _counts(trials: Iterable[PlannedTrial]) -> list[dict[str, Any]]:
    counted: Counter[CellKey] = Counter(trial.cell for trial in trials)
    return [
        {
            "case": cell.case,
            "agent": cell.agent,
            **({"params": cell.params} if cell.params else {}),
            "trials": count,
        }
        for cell, count in counted.items()
    ]


def unfolding_of(
    outline: Outline,
    cases: Sequence[Case],
    agents: Iterable[str],
    axes: Axes,
    options: RunOptions,
) -> Unfolding:
    """The rounds of research before any result."""
    kind = outline.research.kind
    own = ("trials",) if kind in ("curriculum", "adaptive") else ()
    for name in ("early_stop", "more_trials", *own):
        if getattr(options, name):
            raise ProctorError(
                f"{kind} chooses its trials itself: `{name}` would change which",
                hint="leave it out",
            )
    ordered = sorted(cases, key=lambda case: case.id)
    return Unfolding(Setup(outline, ordered, sorted(agents), axes, options))
