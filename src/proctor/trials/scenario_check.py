"""Check scenarios: they build, chance and their own solution complete them, scores are in bounds.

Promise: trials run as in a run, and nothing of them is stored. A scenario that does not build is
reported with its place, and the others are still checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from proctor.agents.base import NoActionsError
from proctor.errors import ProctorError
from proctor.runs.trial import Trial
from proctor.scenarios import Built, Catalog, Template
from proctor.scenarios.builder import built_files, checked_params
from proctor.spec import Configuration
from proctor.spec.experiment import Experiment, Selector
from proctor.trials._scenario_cases import Scenario, check_required
from proctor.trials.resolve_experiment import prepare_experiment
from proctor.trials.session import run_session

CHANCE, SOLUTION = "random", "scripted"
"""The agents that act: one at random, one by the scenario's own solution."""

TIMEOUT = 120.0
"""Seconds for one trial: an episode that takes longer is of no use in an experiment either."""


class Checked(msgspec.Struct, kw_only=True):
    """The result for one scenario; it is fit if there are no problems.

    Scores are None where nothing was run: a scenario without a solution, or one that random
    cannot answer because it lists no actions.
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
        """Whether there are no problems."""
        return not self.problems


def readable(catalog: Catalog, scope: str | None = None) -> tuple[list[Template], list[Checked]]:
    """Return every scenario of a catalog (below a scope), and those that cannot be read."""
    if scope is not None and "@" in scope:
        return [catalog.get(scope)], []
    dotted = None if scope is None else scope.strip("/").replace("/", ".")
    names = [n for n in catalog.names() if dotted is None or f"{n}.".startswith(f"{dotted}.")]
    if scope is not None and not names:
        catalog.scope(scope)  # raises, with similar names
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
    """Build each scenario for each seed, then run chance and its own solution on it."""
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
    for each in sound:
        if not each.has_solution:
            found[each.id].notes.append("does not say how it is solved")
    for trial in await _trials(CHANCE, sound, seeds, configuration):
        _add_chance(found[trial.case], trial)
    for each in found.values():
        most = each.random_max_score
        if most is not None and each.random_mean is not None and each.random_mean > most:
            each.problems.append(
                f"random scores {each.random_mean:.3g} on average, it declares at most {most:.3g}"
            )
    solved = [each for each in sound if each.has_solution]
    for trial in await _trials(SOLUTION, solved, seeds, configuration):
        _add_solution(found[trial.case], trial)
    return list(found.values())


def _build(template: Template, seeds: Sequence[int], found: Checked) -> Built | None:
    """Build it for every seed, the first one twice; None if that fails."""
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
        agents={agent: {"kind": agent}},
        options={"trials": 1, "timeout": TIMEOUT},
        configuration=configuration,
    )
    return list((await run_session(context)).trials)


def _scored(found: Checked, agent: str, trial: Trial) -> float | None:
    """Return the score of a trial; note the problem if it has none."""
    if trial.error is not None:
        reason = trial.error.message
        found.problems.append(f"{agent} does not complete seed {trial.axis_seed}: {reason}")
    elif trial.score is None:
        found.problems.append(f"{agent} is not scored with seed {trial.axis_seed}")
    else:
        return trial.score
    return None


def _add_chance(found: Checked, trial: Trial) -> None:
    if trial.error is not None and trial.error.type == NoActionsError.__name__:
        note = "lists no actions, so chance cannot answer it"
        found.notes.extend([] if note in found.notes else [note])
    elif (score := _scored(found, CHANCE, trial)) is not None:
        # The mean over seeds, as a sum until all are there.
        found.random_mean = (found.random_mean or 0.0) + score / found.seeds


def _add_solution(found: Checked, trial: Trial) -> None:
    if (score := _scored(found, SOLUTION, trial)) is None:
        return
    found.solution_min = min(score, 1.0 if found.solution_min is None else found.solution_min)
    least = found.solution_min_score
    if least is not None and score < least:
        found.problems.append(
            f"its solution scores {score:.3g} with seed {trial.axis_seed}, "
            f"it declares at least {least:.3g}"
        )


def table(found: Sequence[Checked]) -> list[tuple[str, ...]]:
    """Return a row for each scenario: id, builds, scores of chance and solution, verdict."""
    rows = [
        (
            each.case,
            f"{each.built}/{each.seeds}",
            _score_cell(each.random_mean, each.random_max_score, "≤"),
            _score_cell(each.solution_min, each.solution_min_score, "≥"),
            "ok" if each.fit else "PROBLEM",
        )
        for each in found
    ]
    return [("scenario", "built", "random", "solution", ""), *rows]


def _score_cell(score: Any, declared: Any, sign: str) -> str:
    if score is None:
        return "–"
    return f"{score:.2f}" + ("" if declared is None else f" ({sign} {declared:.2f})")
