"""Experiments that select trials from results so far: curriculum, adaptive, ablation, sweep.

`design` resolves the `research` section of an experiment to an `Outline`; here it is followed
through the journal of a run. Each kind is a course: a generator that yields a round, receives the
trials of that round in the order it planned them, and returns a `CourseResult`. Its decisions
depend on results alone, never on clocks or on the order of finishing, so a course is resumed by
sending it the trials of the journal.

    results/<experiment>/<date>_<seq>/research.json      the rounds so far, and the result

Promise: the rounds are a pure function of the spec and the journal. Each is recorded (here, and as
cells of the spec) before its first trial runs, so an interrupted run continues as if it had not
been interrupted. Results that the recorded rounds cannot have produced are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from proctor.errors import ProctorError
from proctor.files import write_atomic
from proctor.runs.early_stop import CellPlan
from proctor.runs.folder import RunFolder
from proctor.runs.run import RESEARCH_FILE
from proctor.runs.trial import CellKey, PlannedTrial, Trial, TrialStatus
from proctor.seeds import derive_seed
from proctor.spec import Case
from proctor.spec.experiment import Research
from proctor.trials.options import RunOptions
from proctor.trials.plan import Axes, Plan


class Stage(msgspec.Struct, frozen=True):
    """A level with its cases and checked parameters.

    `value` is its position on the scale: that of the parameter, else 1, 2, … in order.
    """

    name: str
    cases: tuple[str, ...]
    params: dict[str, Any]
    value: float


class Variant(msgspec.Struct, frozen=True):
    """The whole without one part: another agent, or the same with other parameters."""

    without: str
    agent: str
    params: dict[str, Any]


@dataclass(frozen=True)
class Outline:
    """The resolved research of an experiment; lossless through the spec of a run."""

    research: Research
    stages: tuple[Stage, ...] = ()
    whole: str | None = None
    """Ablation: the agent that has everything."""
    variants: tuple[Variant, ...] = ()
    space: Mapping[str, Any] | None = None
    """tpe: the axes of the optimiser as written, values checked."""

    def record(self) -> dict[str, Any]:
        """Return it as the run folder records it."""
        written = self.research.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        for name in ("stages", "whole", "variants"):
            if value := getattr(self, name):
                written[name] = msgspec.to_builtins(value)
        if self.space is not None:
            written["space"] = dict(self.space)
        return written

    @classmethod
    def restored(cls, record: Mapping[str, Any]) -> Outline:
        """Return the outline that a run folder records."""
        own = ("stages", "whole", "variants", "space")
        written = {key: value for key, value in record.items() if key not in own}
        return cls(
            research=Research.model_validate(written),
            stages=msgspec.convert(record.get("stages") or (), tuple[Stage, ...]),
            whole=record.get("whole"),
            variants=msgspec.convert(record.get("variants") or (), tuple[Variant, ...]),
            space=record.get("space"),
        )


class Setup(NamedTuple):
    """Everything that a course knows before the first result."""

    outline: Outline
    cases: Sequence[Case]
    agents: Sequence[str]
    axes: Axes
    options: RunOptions

    @property
    def fixed(self) -> dict[str, Any]:
        """Parameters of every trial."""
        return dict(self.axes.params[0])

    def seed(self, number: int) -> int:
        """Return the seed of the n-th trial: those of the experiment, then on from the largest.

        A repeated seed would be the same scenario, and no new evidence.
        """
        given = sorted(self.axes.seeds or (0,))
        return given[number] if number < len(given) else given[-1] + 1 + number - len(given)


class Round(NamedTuple):
    """Trials to run, and the decisions on results so far that led to them."""

    trials: list[PlannedTrial]
    decided: tuple[str, ...] = ()


class CourseResult(NamedTuple):
    """The result of a course: facts to record, and the same as lines for people."""

    facts: dict[str, Any]
    lines: tuple[str, ...]


Course = Generator[Round, Sequence[Trial], CourseResult]


def planned(case: str, agent: str, params: Mapping[str, Any], seed: int) -> PlannedTrial:
    """Return a trial as the plan of an experiment would have it."""
    return PlannedTrial(
        case=case,
        agent=agent,
        index=0,
        seed=derive_seed(seed, case, 0),
        params=dict(params),
        axis_seed=seed,
    )


def side_by_side(
    courses: Mapping[str, Course],
) -> Generator[Round, Sequence[Trial], tuple[dict[str, Any], tuple[str, ...]]]:
    """Follow the courses of several agents, a round of each at a time.

    Return the facts by agent, and the lines of all.
    """
    waiting: dict[str, Round] = {}
    found: dict[str, CourseResult] = {}

    def go_on(name: str, results: Sequence[Trial] | None) -> None:
        try:
            course = courses[name]
            waiting[name] = next(course) if results is None else course.send(results)
        except StopIteration as end:
            waiting.pop(name, None)
            found[name] = end.value

    for name in courses:
        go_on(name, None)
    while waiting:
        now = list(waiting.items())
        results = yield Round(
            [trial for _, round_ in now for trial in round_.trials],
            tuple(line for _, round_ in now for line in round_.decided),
        )
        start = 0
        for name, round_ in now:
            end = start + len(round_.trials)
            go_on(name, results[start:end])
            start = end
    facts = {name: found[name].facts for name in courses}
    return facts, tuple(line for name in courses for line in found[name].lines)


def course_of(setup: Setup) -> Course:
    """Return the course of a kind of research."""
    from proctor.trials._research import adaptive, courses  # both import this module

    course = {
        "ablation": courses.ablation,
        "adaptive": adaptive.adaptive,
        "curriculum": courses.curriculum,
        "sweep": courses.sweep,
    }
    return course[setup.outline.research.kind](setup)


class Unfolding:
    """The rounds of a run, as far as its results determine them."""

    def __init__(self, setup: Setup) -> None:
        self.kind = setup.outline.research.kind
        self._thresholds = {case.id: case.threshold for case in setup.cases}
        self._course = course_of(setup)
        self.rounds: list[Round] = [next(self._course)]
        self.found: CourseResult | None = None

    @property
    def plan(self) -> Plan:
        """Every trial of the rounds so far."""
        trials = [trial for each in self.rounds for trial in each.trials]
        counts = Counter(trial.cell for trial in trials)
        cells = {
            cell: CellPlan(count, self._thresholds[cell.case]) for cell, count in counts.items()
        }
        return Plan(trials, cells)

    def follow(self, journal: Iterable[Trial]) -> None:
        """Continue up to a round with unfinished trials, or to the end.

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
        planned_keys = {trial.key for each in self.rounds for trial in each.trials}
        for key, trial in done.items():
            if key not in planned_keys:
                raise ProctorError(
                    f"the results so far do not lead to the trial of {trial.cell} in the journal",
                    hint="the code that selects trials, or its packages, changed since; "
                    "start another run",
                )

    def record(self) -> dict[str, Any]:
        """Return the content of `research.json`."""
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
        """Record the rounds; call it before any trial of the last one runs."""
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
    """Return the rounds of research before any result."""
    kind = outline.research.kind
    own = ("trials",) if kind in ("curriculum", "adaptive") else ()
    for name in ("early_stop", "more_trials", *own):
        if getattr(options, name):
            raise ProctorError(
                f"{kind} selects its trials itself, so `{name}` cannot be set",
                hint="leave it out",
            )
    ordered = sorted(cases, key=lambda case: case.id)
    return Unfolding(Setup(outline, ordered, sorted(agents), axes, options))
