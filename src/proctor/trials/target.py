"""Find what `proctor run X` names: a file, a dotted name, a scenario or a scope.

A name is looked up as a file first, then as an experiment below the project's folder, then in the
catalog of scenarios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from proctor.errors import ProctorError, did_you_mean
from proctor.runs.folder import RunFolder
from proctor.runs.remote.object_store import checked, is_address
from proctor.runs.remote.upload import folder_at
from proctor.scenarios.template import FILE as TEMPLATE
from proctor.spec import Case, Configuration, Suite, load_configuration, select_cases
from proctor.spec.experiment import Experiment
from proctor.spec.load import (
    SUFFIXES,
    experiments_of,
    find_experiments,
    is_experiment,
    load_experiments,
    suite_of,
)
from proctor.spec.validation import first_fault
from proctor.spec.yaml_reader import read
from proctor.trials._scenario_cases import ScenarioPool
from proctor.trials.options import RunOptions
from proctor.trials.prepare import RunContext, given_agents, prepare
from proctor.trials.resolve_experiment import Changes, option_error, prepare_experiment
from proctor.trials.session import new_folder


class Kind(StrEnum):
    """What a target is."""

    SUITE = "suite"
    EXPERIMENTS = "experiments"
    SCENARIO = "scenario"
    SCOPE = "scope"


class Target(NamedTuple):
    """Something that can be run: a suite, or experiments (a scenario is one of one case)."""

    kind: Kind
    suite: Suite | None = None
    experiments: tuple[Experiment, ...] = ()


def find_target(name: str | Path, configuration: Configuration | None = None) -> Target:
    """What a name means; an error says what comes nearest."""
    path = Path(name)
    text = str(name)
    if path.name != TEMPLATE and path.is_file():
        return _of_file(path)
    configuration = configuration or load_configuration()
    inside = _in_catalog(path, configuration)
    if inside is not None:
        text = inside
    elif path.is_file() or path.suffix in SUFFIXES:
        return _of_file(path)
    found = find_experiments(text, configuration.folder)
    if found is not None:
        return Target(Kind.EXPERIMENTS, experiments=tuple(found))
    pool = ScenarioPool(configuration)
    dotted = text.strip("/").replace("/", ".")
    if pool.has(dotted):
        return Target(Kind.SCENARIO, experiments=(_ad_hoc(dotted, dotted),))
    if pool.scope(dotted):
        return Target(Kind.SCOPE, experiments=(_ad_hoc(dotted, dotted),))
    known = [*pool.names(), *listed_experiments(configuration)]
    raise ProctorError(
        f"there is no file, experiment, scenario or scope {text!r}",
        hint=did_you_mean(text, known)
        or "`proctor list cases` and `proctor list experiments` show what there is",
    )


def _in_catalog(path: Path, configuration: Configuration) -> str | None:
    """The dotted name of a template's file or folder in the project's catalog."""
    folder = path.parent if path.name == TEMPLATE and path.is_file() else path
    if not folder.is_dir():
        return None
    for root in configuration.catalogs:
        if folder.resolve().is_relative_to(root.resolve()) and folder.resolve() != root.resolve():
            return ".".join(folder.resolve().relative_to(root.resolve()).parts)
    return None


def _of_file(path: Path) -> Target:
    if path.suffix == ".py":
        return Target(Kind.EXPERIMENTS, experiments=tuple(load_experiments(path)))
    document = read(path)
    if document.tree is not None and is_experiment(document.tree):
        return Target(Kind.EXPERIMENTS, experiments=tuple(experiments_of(document, path)))
    return Target(Kind.SUITE, suite=suite_of(document, path, need_agent=False))


def _ad_hoc(name: str, *cases: Any, **fields: Any) -> Experiment:
    """An experiment that nobody wrote: what it selects starts where the user stands."""
    try:
        return Experiment(name=name, cases=cases, **fields)
    except ValidationError as error:
        raise option_error(error, name) from None


def experiment_of_suite(suite: Suite) -> Experiment:
    """A suite as an experiment, for whoever wants seeds or parameters as axes."""
    if suite.path is None:
        raise ProctorError("seeds and parameters are for suites in files, or for experiments")
    made = _ad_hoc(suite.path.stem, {"suite": suite.path.name})
    made.came_from(suite.folder, suite.path)
    return made


def listed_experiments(configuration: Configuration) -> list[str]:
    """Dotted names of the experiment files of a project; what cannot be read is left out."""
    names: list[str] = []
    folder = configuration.experiments
    if not folder.resolve().is_relative_to(configuration.folder.resolve()):
        return names
    prefix = folder.resolve().relative_to(configuration.folder.resolve()).parts
    for path in sorted(folder.rglob("*")):
        if path.suffix in SUFFIXES and path.is_file() and not path.name.startswith(("_", ".")):
            inner = path.relative_to(folder).with_suffix("").parts
            names.append(".".join((*prefix, *inner)))
    return names


# -- made ready ----------------------------------------------------------------------------------


def prepare_target(
    found: Target,
    changes: Changes,
    options: Mapping[str, Any],
    *,
    tags: Sequence[str] = (),
    smoke: bool = False,
) -> list[RunContext]:
    """Everything a target asks for, checked and resolved; nothing is written.

    `options` are those of `RunOptions`, None where they were not given. A suite stays what it is
    unless seeds or parameters make an experiment of it.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if smoke:
        given["trials"] = 1
    suite = found.suite
    if suite is not None and changes.seeds is None and not changes.set:
        return [_prepared_suite(suite, changes, given, tags, smoke=smoke)]
    experiments = found.experiments if suite is None else (experiment_of_suite(suite),)
    seed = given.pop("seed", None)
    if seed is not None and changes.seeds is not None:
        raise ProctorError("give one seed or several, not both", where="--seed and --seeds")
    changes = replace(
        changes,
        seeds=changes.seeds if seed is None else [seed],
        filter=" ".join(filter(None, (changes.filter, ",".join(f'tag:"{t}"' for t in tags)))),
    )
    if found.kind in (Kind.SCENARIO, Kind.SCOPE) and changes.agents is None:
        changes = replace(changes, agents=_agent_of_worlds(experiments[0]))
    return [
        prepare_experiment(each, changes=changes, options=given, smoke=smoke)
        for each in experiments
    ]


def _agent_of_worlds(experiment: Experiment) -> str | None:
    """Who acts in a scenario when nobody is named: the agent of the settings, else chance."""
    return None if load_configuration(experiment.folder).settings.agent else "random"


def _prepared_suite(
    suite: Suite, changes: Changes, given: dict[str, Any], tags: Sequence[str], *, smoke: bool
) -> RunContext:
    try:  # what Python hands over; the command line has checked its own options
        options = RunOptions(**given)
    except ValidationError as error:
        fault = first_fault(error)
        raise ProctorError(fault.message, hint=fault.hint) from None
    configuration = load_configuration(suite.folder)
    cases: Sequence[Case] = suite.cases
    if tags or changes.filter:
        cases = select_cases(suite.cases, tags=tags, filter=changes.filter)
    return prepare(
        suite,
        options,
        agents=given_agents(suite, changes.agents, configuration),
        cases=cases[:1] if smoke else cases,
        configuration=configuration,
    )


# -- batches -------------------------------------------------------------------------------------


def batch_experiment(
    cases: str | Sequence[str],
    *,
    seeds: Any = 1,
    exclude: str | Sequence[str] = (),
    params: Mapping[str, Any] | None = None,
    name: str = "batch",
) -> Experiment:
    """An experiment without a file: names, globs and filters of the catalog, or suite files."""
    texts = [cases] if isinstance(cases, str) else list(cases)
    selectors = [_selector(text.strip()) for part in texts for text in _split(part)]
    return _ad_hoc(name, *selectors, seeds=seeds, exclude=exclude or (), params=dict(params or {}))


def _split(text: str) -> list[str]:
    """Names separated by commas; a comma between terms with keys means or, and stays."""
    return [text] if ":" in text else [part for part in text.split(",") if part.strip()]


def _selector(text: str) -> Any:
    path = Path(text)
    if path.suffix in SUFFIXES or path.is_file():
        return {"suite": text}
    return text.strip("/").replace("/", ".") if ":" not in text else text


# -- run folders ---------------------------------------------------------------------------------


def folder_for(
    ready: RunContext, results: str | Path | None = None, name: str | None = None
) -> RunFolder:
    """A new folder for a run, below the results folder of the settings unless told otherwise.

    With an address (`s3://…`) it is in the folder of the settings, and will be shipped.
    """
    here = ready.configuration
    far = address_for(ready, results)
    root = here.results if results is None or far else Path(results)
    if far is None:
        return new_folder(ready, root, name)
    return folder_at(far, lambda: new_folder(ready, root, name))


def address_for(ready: RunContext, results: str | Path | None) -> str | None:
    """Where a run is to be shipped to, by what was asked or the settings; None: nowhere."""
    settings = ready.configuration.settings
    meant = settings.results if results is None else str(results)
    if ":/" not in meant:
        return None
    return checked(meant) if is_address(meant) else None
