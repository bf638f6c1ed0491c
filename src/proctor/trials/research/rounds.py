"""Rounds of trials: each is planned from the results of those before it.

A course is a generator. It yields a round, is sent the trials of that round in the order it asked
for them, and returns what it found. So what it decides depends on results alone, never on clocks
or on the order of finishing; and a course is resumed by sending it what the journal has.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from proctor.runs.trial import PlannedTrial, Trial
from proctor.seeds import derive_seed
from proctor.spec import Case
from proctor.trials.axes import Axes
from proctor.trials.options import RunOptions
from proctor.trials.research.outline import Outline


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
