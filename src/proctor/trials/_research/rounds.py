"""Rounds of trials: each is planned from the results of the rounds before it.

A course is a generator. It yields a round, receives the trials of that round in the order it
planned them, and returns a `CourseResult`. Its decisions depend on results alone, never on clocks
or on the order of finishing, so a course is resumed by sending it the trials of the journal.

    results/<experiment>/<date>_<seq>/research.json      the rounds so far, and the result

Promise: the rounds are a pure function of the spec and the journal. Each is recorded (here, and as
cells of the spec) before its first trial runs, so an interrupted run continues as if it had not
been interrupted. Results that the recorded rounds cannot have produced are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
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
from proctor.spec.research import Research
from proctor.trials.options import RunOptions
from proctor.trials.plan import Axes, Plan


class Stage(NamedTuple):
    """A level with its cases found and its parameters checked; `value` is its place on the scale:
    that of the parameter, else 1 for the first level, 2 for the second, …"""

    name: str
    cases: tuple[str, ...]
    params: dict[str, Any]
    value: float


class Variant(NamedTuple):
    """The whole without one thing: another agent, or the same under other parameters."""

    without: str
    agent: str
    params: dict[str, Any]


@dataclass(frozen=True)
class Outline:
    """Research made ready to be planned."""

    research: Research
    stages: tuple[Stage, ...] = ()
    whole: str | None = None
    """Ablation: the agent that has everything."""
    variants: tuple[Variant, ...] = ()
    space: Mapping[str, Any] | None = None
    """tpe: the axes to choose along, as they are written, values checked."""

    def record(self) -> dict[str, Any]:
        """What the run folder keeps of it."""
        told = self.research.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        return {
            **told,
            **({"stages": [_listed(stage) for stage in self.stages]} if self.stages else {}),
            **({"whole": self.whole} if self.whole is not None else {}),
            **({"variants": [_listed(each) for each in self.variants]} if self.variants else {}),
            **({"space": dict(self.space)} if self.space is not None else {}),
        }

    @classmethod
    def restored(cls, record: Mapping[str, Any]) -> Outline:
        """The outline of a run folder."""
        own = ("stages", "whole", "variants", "space")
        told = {key: value for key, value in record.items() if key not in own}
        return cls(
            research=Research.model_validate(told),
            stages=tuple(
                Stage(each["name"], tuple(each["cases"]), dict(each["params"]), each["value"])
                for each in record.get("stages") or ()
            ),
            whole=record.get("whole"),
            variants=tuple(Variant(**each) for each in record.get("variants") or ()),
            space=record.get("space"),
        )


def _listed(each: Stage | Variant) -> dict[str, Any]:
    written: dict[str, Any] = each._asdict()
    return {**written, "cases": list(each.cases)} if isinstance(each, Stage) else written


class Setup(NamedTuple):
    """All that a course may know before the first result."""

    outline: Outline
    cases: Sequence[Case]
    agents: Sequence[str]
    axes: Axes
    options: RunOptions

    @property
    def fixed(self) -> dict[str, Any]:
        """Parameters that hold for every trial."""
        return dict(self.axes.params[0])

    @property
    def seeds(self) -> ExtendedSeeds:
        """A fresh seed for every trial of a level."""
        return ExtendedSeeds(self.axes.seeds or (0,))


class Round(NamedTuple):
    """Trials to run, and why these: what was decided on the results so far."""

    trials: list[PlannedTrial]
    decided: tuple[str, ...] = ()


class CourseResult(NamedTuple):
    """What a course came to: facts to keep, and the same in lines for people."""

    facts: dict[str, Any]
    lines: tuple[str, ...]


Course = Generator[Round, Sequence[Trial], CourseResult]


class ExtendedSeeds:
    """Those of the experiment, in order, then on from the largest: no trial sees one again.

    A seed that came back would be the same scenario, and no new evidence.
    """

    def __init__(self, given: Sequence[int]) -> None:
        self._given = tuple(sorted(given))

    def __getitem__(self, at: int) -> int:
        given = self._given
        return given[at] if at < len(given) else given[-1] + 1 + at - len(given)


def planned(case: str, agent: str, params: Mapping[str, Any], seed: int) -> PlannedTrial:
    """A trial as the plan of an experiment would have it."""
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
) -> Generator[Round, Sequence[Trial], list[CourseResult]]:
    """Courses of several agents, a round of each at a time; what each found, by agent."""
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
        sizes = [(name, len(round_.trials)) for name, round_ in now]
        results = yield Round(
            [trial for _, round_ in now for trial in round_.trials],
            tuple(line for _, round_ in now for line in round_.decided),
        )
        for name, share in _shares(sizes, results):
            go_on(name, share)
    return [found[name] for name in courses]


def _shares(
    sizes: Sequence[tuple[str, int]], results: Sequence[Trial]
) -> Iterator[tuple[str, Sequence[Trial]]]:
    start = 0
    for name, size in sizes:
        yield name, results[start : start + size]
        start += size


def course_of(setup: Setup) -> Course:
    """The course that research takes, before its first round."""
    match setup.outline.research.kind:
        case "curriculum":
            from proctor.trials._research.curriculum import curriculum

            return curriculum(setup)
        case "adaptive":
            from proctor.trials._research.adaptive import adaptive

            return adaptive(setup)
        case "ablation":
            from proctor.trials._research.ablation import ablation

            return ablation(setup)
        case "sweep":
            from proctor.trials._research.sweep import sweep

            return sweep(setup)


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
