"""From what an experiment selects to the cases it is about.

Promise: a selector that selects nothing, and a case that two suites call by the same id, are
errors before anything is written. Which cases are chosen does not depend on the order of
selectors; the cases stand in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from proctor.errors import ProctorError, hint_among
from proctor.spec import Case, Configuration, JudgeConfig, Suite, load_suite, select_cases
from proctor.spec.experiment import SET_CASE, Experiment, Selector
from proctor.spec.located import escaped
from proctor.spec.select import parse_filter
from proctor.spec.suite import same_id
from proctor.trials.baselines import store_of
from proctor.trials.design import Origin
from proctor.trials.staging import Scenario, ScenarioPool, laid_over


class Item(NamedTuple):
    """A case that was selected, and the suite or the template it is from."""

    id: str
    tags: tuple[str, ...]
    difficulty: str | None
    type: str | None
    properties: dict[str, Any]
    written: dict[str, Any]
    suite: Suite | None = None
    scenario: Scenario | None = None

    @property
    def source(self) -> str:
        """Where it is from, for messages."""
        return "the catalog" if self.suite is None else str(self.suite.path)


class Gathered(NamedTuple):
    """The cases of an experiment: as a suite's record, and what a suite cannot say of them."""

    record: dict[str, Any]
    suites: tuple[Suite, ...]
    scenarios: dict[str, Scenario]
    origins: dict[str, Origin]


def gather(experiment: Experiment, configuration: Configuration, pool: ScenarioPool) -> Gathered:
    """Every case the experiment is about."""
    base = experiment.folder or Path()
    suites: dict[Path, Suite] = {}
    found: dict[str, Item] = {}
    for number, selector in enumerate(experiment.cases):
        where = str(experiment.place_of("cases", number) or experiment.name)
        with told_at(where):
            items = _selected(selector, base, suites, pool)
        for item in items:
            earlier = found.setdefault(same_id(item.id), item)
            if (earlier.suite, earlier.id) != (item.suite, item.id):
                raise ProctorError(
                    f"the case {item.id!r} is in {earlier.source} and in {item.source}",
                    where=where,
                    hint="an id must be one case's alone in an experiment; exclude one of them",
                )
    chosen = _narrowed(list(found.values()), experiment)
    chosen.sort(key=lambda item: item.id)
    overrides = case_overrides(experiment)
    used = tuple(suite for suite in suites.values() if any(i.suite is suite for i in chosen))
    record = {
        "version": 1,
        **_judges(experiment, used),
        "cases": [laid_over(item.written, overrides) for item in chosen],
    }
    scenarios = {
        item.id: item.scenario._replace(overrides=overrides)
        for item in chosen
        if item.scenario is not None
    }
    return Gathered(record, used, scenarios, _origins(chosen, configuration))


# -- selection -----------------------------------------------------------------------------------


def _selected(
    selector: Selector, base: Path, suites: dict[Path, Suite], pool: ScenarioPool
) -> list[Item]:
    if selector.suite is None:
        return [_of_scenario(scenario) for scenario in pool.select(selector.filter)]
    path = base / Path(selector.suite).expanduser()
    suite = suites.get(path.resolve())
    if suite is None:
        suite = suites[path.resolve()] = load_suite(path, need_agent=False)
    chosen = {case.id for case in select_cases(suite.cases, filter=selector.filter)}
    both = zip(suite.cases, suite.resolved()["cases"], strict=True)
    return [_of_suite(case, written, suite) for case, written in both if case.id in chosen]


def _of_suite(case: Case, written: dict[str, Any], suite: Suite) -> Item:
    return Item(
        case.id, tuple(case.tags), case.difficulty, case.type, case.properties, written, suite=suite
    )


def _of_scenario(scenario: Scenario) -> Item:
    entry = scenario.template
    return Item(
        entry.id,
        entry.tags,
        entry.difficulty,
        entry.type,
        entry.properties,
        escaped(scenario.placeholder()),
        scenario=scenario,
    )


def _narrowed(items: list[Item], experiment: Experiment) -> list[Item]:
    left = items
    for number, text in enumerate(experiment.exclude):
        where = str(experiment.place_of("exclude", number) or experiment.name)
        with told_at(where):
            without = parse_filter(text)
        left = [item for item in left if not without.holds(item)]
    if not left:
        raise ProctorError(
            f"all {len(items)} selected cases are excluded",
            where=str(experiment.place_of("exclude") or experiment.name),
        )
    if not experiment.filter:
        return left
    with told_at(str(experiment.place_of("filter") or "--filter")):
        return select_cases(left, filter=experiment.filter)


@contextmanager
def told_at(where: str) -> Generator[None]:
    """What is wrong inside is told at the place the user wrote it."""
    try:
        yield
    except ProctorError as error:
        if error.where is None:
            error.where = where
        raise


# -- what stands in a suite but not in an experiment ---------------------------------------------


def _judges(experiment: Experiment, suites: Iterable[Suite]) -> dict[str, Any]:
    """The judges of the experiment and its suites as they were written; names mean one judge."""
    default: dict[str, Any] = {}
    judges: dict[str, Any] = {}
    known: dict[str, JudgeConfig] = dict(experiment.judges)
    for suite in suites:
        written = suite.resolved()
        for name, config in suite.judges.items():
            if known.setdefault(name, config) != config:
                raise ProctorError(
                    f"two suites of the experiment mean different judges by {name!r}",
                    where=str(suite.path),
                    hint="say which under `judges` of the experiment",
                )
            judges[name] = written["judges"][name]
        if suite.judge is not None:
            if known.setdefault("", suite.judge) != suite.judge and experiment.judge is None:
                raise ProctorError(
                    "two suites of the experiment have different judges",
                    where=str(suite.path),
                    hint="say which under `judge` of the experiment",
                )
            default = {"judge": written["judge"]}
    own = {name: escaped(_dumped(config)) for name, config in experiment.judges.items()}
    if experiment.judge is not None:
        default = {"judge": escaped(_dumped(experiment.judge))}
    both = {**judges, **own}
    return {**default, **({"judges": both} if both else {})}


def _dumped(config: JudgeConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude_unset=True)


def _origins(chosen: Iterable[Item], configuration: Configuration) -> dict[str, Origin]:
    origins: dict[str, Origin] = {}
    for item in chosen:
        if item.suite is not None:
            store = store_of(item.suite, configuration)
            origins[item.id] = Origin(item.suite.folder.resolve(), store.root.resolve())
    return origins


# -- overrides -----------------------------------------------------------------------------------


def parameters_set(experiment: Experiment) -> dict[str, Any]:
    """Of what the experiment sets, the parameters."""
    return {key: value for key, value in experiment.set.items() if not key.startswith(SET_CASE)}


def case_overrides(experiment: Experiment) -> dict[str, Any]:
    """Of what the experiment sets, the fields of cases, nested: `case.cost.max_tokens: 5`."""
    overrides: dict[str, Any] = {}
    for key, value in experiment.set.items():
        if not key.startswith(SET_CASE):
            continue
        first, *rest = key.removeprefix(SET_CASE).split(".")
        fields = [name for name in Case.model_fields if name not in ("id", "input")]
        if first not in fields:
            raise ProctorError(
                f"a case has no field {first!r} to set",
                where=str(experiment.place_of("set", key) or "--set"),
                hint=hint_among(first, fields),
            )
        steps, here = [first, *rest], overrides
        for step in steps[:-1]:
            inner: Any = here.setdefault(step, {})
            here = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
        here[steps[-1]] = escaped(value)
    return overrides
