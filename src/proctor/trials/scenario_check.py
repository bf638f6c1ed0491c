"""Whether scenarios are fit to measure with: they build, chance gets through them, and the course
they say solves them does.

Promise: trials are performed as in a run, nothing of them is kept. A scenario that does not build
is told with its place, and the others are checked all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from proctor.errors import ProctorError
from proctor.runs.trial import Trial
from proctor.scenarios import Built, Catalog, Template
from proctor.scenarios.builder import built_files, checked_params
from proctor.spec import Configuration
from proctor.spec.experiment import Experiment, Selector
from proctor.trials._scenario_cases import Scenario, check_required
from proctor.trials.resolve_experiment import Changes, prepare_experiment
from proctor.trials.session import run_session

CHANCE, SOLUTION = "random", "scripted"

TIMEOUT = 120.0
"""Seconds for one trial: an episode that takes longer could not be used in an experiment either."""


class Checked(msgspec.Struct, kw_only=True):
    """What was found of one scenario; it is fit when there are no problems.

    Scores are None where nothing was tried: a scenario without a solution, or one that random
    cannot answer since it lists no actions.
    """

    case: str
    seeds: int
    built: int = 0
    random_mean: float | None = None
    random_max_score: float | None = None
    solution_min: float | None = None
    solution_min_score: float | None = None
    problems: list[str] = msgspec.field(default_factory=list[str])
    notes: list[str] = msgspec.field(default_factory=list[str])

    @property
    def fit(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.problems


def readable(catalog: Catalog, scope: str | None = None) -> tuple[list[Template], list[Checked]]:
    """Every scenario of a catalog (below a scope), and those that cannot even be read."""
    if scope is not None and "@" in scope:
        return [catalog.get(scope)], []
    dotted = None if scope is None else scope.strip("/").replace("/", ".")
    names = [n for n in catalog.names() if dotted is None or f"{n}.".startswith(f"{dotted}.")]
    if scope is not None and not names:
        catalog.scope(scope)  # says what comes nearest
    found: list[Template] = []
    broken: list[Checked] = []
    for name in names:
        try:
            found.extend(catalog.get(name).every_variant())
        except ProctorError as error:
            broken.append(Checked(case=name, seeds=0, problems=[f"cannot be read: {error}"]))
    return found, broken


async def acheck(
    templates: Sequence[Template], seeds: Sequence[int], configuration: Configuration
) -> list[Checked]:
    """Build each scenario for each seed, then put chance and its own solution to it."""
    found = {each.id: Checked(case=each.id, seeds=len(seeds)) for each in templates}
    sound: list[Template] = []
    for template in templates:
        first = _build(template, seeds, found[template.id])
        if first is None:
            continue
        sound.append(template)
        if first.random is not None:
            found[template.id].random_max_score = first.random["max_score"]
        if first.solution is not None:
            found[template.id].solution_min_score = first.solution["min_score"]
    solved = [each for each in sound if each.has_solution]
    for each in sound:
        if not each.has_solution:
            found[each.id].notes.append("does not say how it is solved")
    for agent, those in ((CHANCE, sound), (SOLUTION, solved)):
        for trial in await _trials(agent, those, seeds, configuration):
            _note(found[trial.case], agent, trial)
        for each in those:
            _judge(found[each.id], agent)
    return list(found.values())


def _build(template: Template, seeds: Sequence[int], found: Checked) -> Built | None:
    """Build it for every seed, the first of them twice; None when that cannot be done."""
    first: Built | None = None
    try:
        check_required((), [Scenario(template)])
        for seed in seeds:
            given = checked_params(template, seed, {})
            files = built_files(template, seed, given)
            found.built += 1
            if first is None:
                first = Built(template.folder, template=template, files=files)
                if built_files(template, seed, given) != files:
                    found.problems.append(f"two builds with the seed {seed} differ")
    except ProctorError as error:
        found.problems.append(f"does not build: {error}")
        return None
    return first


async def _trials(
    agent: str, templates: Sequence[Template], seeds: Sequence[int], configuration: Configuration
) -> list[Trial]:
    if not templates:
        return []
    cases = tuple(Selector(filter=each.id) for each in templates)
    experiment = Experiment(name="check", cases=cases, seeds=tuple(seeds))
    context = prepare_experiment(
        experiment,
        changes=Changes(agents={"kind": agent}),
        options={"trials": 1, "timeout": TIMEOUT},
        configuration=configuration,
    )
    return list((await run_session(context)).trials)


_NO_ACTIONS = "lists no possible answers"
"""What the random agent says of a question that lists no actions."""


def _note(found: Checked, agent: str, trial: Trial) -> None:
    if trial.error is not None:
        if agent == CHANCE and _NO_ACTIONS in trial.error.message:
            note = "lists no actions, so chance cannot answer it"
            found.notes.extend([] if note in found.notes else [note])
            return
        seed = trial.axis_seed
        found.problems.append(f"{agent} does not complete seed {seed}: {trial.error.message}")
        return
    score = trial.score
    if score is None:
        found.problems.append(f"{agent} is not scored with seed {trial.axis_seed}")
    elif agent == CHANCE:
        # A mean over seeds, kept as a sum until all are there.
        found.random_mean = (found.random_mean or 0.0) + score / found.seeds
    else:
        found.solution_min = min(score, 1.0 if found.solution_min is None else found.solution_min)
        least = found.solution_min_score
        if least is not None and score < least:
            found.problems.append(
                f"its solution scores {score:.3g} with seed {trial.axis_seed}, "
                f"it declares at least {least:.3g}"
            )


def _judge(found: Checked, agent: str) -> None:
    most, mean = found.random_max_score, found.random_mean
    if agent == CHANCE and most is not None and mean is not None and mean > most:
        found.problems.append(
            f"random scores {mean:.3g} on average, it declares at most {most:.3g}"
        )


def table(found: Sequence[Checked]) -> list[tuple[str, ...]]:
    """A row for each scenario: id, builds, what chance and the solution reach, the verdict."""
    rows = [
        (
            each.case,
            f"{each.built}/{each.seeds}",
            _held(each.random_mean, each.random_max_score, "≤"),
            _held(each.solution_min, each.solution_min_score, "≥"),
            "ok" if each.fit else "PROBLEM",
        )
        for each in found
    ]
    return [("scenario", "built", "random", "solution", ""), *rows]


def _held(score: Any, declared: Any, sign: str) -> str:
    if score is None:
        return "–"
    return f"{score:.2f}" + ("" if declared is None else f" ({sign} {declared:.2f})")
