"""Find what `proctor run X` names: a file, a dotted name, a scenario or a scope.

A name is looked up as a file first, then as an experiment below the project's folder, then in the
catalog of scenarios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from proctor.errors import ProctorError, did_you_mean
from proctor.runs.folder import RunFolder
from proctor.runs.remote.object_store import checked, is_address
from proctor.runs.remote.upload import folder_at
from proctor.scenarios.template import FILE as TEMPLATE
from proctor.spec import Case, Configuration, Suite, load_configuration
from proctor.spec.datasets import WHOLE
from proctor.spec.experiment import Experiment
from proctor.spec.load import (
    SUFFIXES,
    experiments_of,
    find_experiments,
    is_experiment,
    load_experiments,
    suite_of,
)
from proctor.spec.select import select_numbers
from proctor.spec.suite import DataCases
from proctor.spec.validation import first_fault
from proctor.spec.yaml_reader import read
from proctor.trials._scenario_cases import ScenarioPool
from proctor.trials.options import RunOptions
from proctor.trials.prepare import GivenAgents, RunContext, prepare
from proctor.trials.resolve_experiment import option_error, override, prepare_experiment
from proctor.trials.session import new_folder


class Target(NamedTuple):
    """Something that can be run: a suite, or experiments."""

    suite: Suite | None = None
    experiments: tuple[Experiment, ...] = ()
    from_catalog: bool = False
    """Whether it is a scenario, or a scope of them, as an experiment."""


def find_target(name: str | Path) -> Target:
    """Return what a name refers to; the error suggests similar names."""
    path = Path(name)
    text = str(name)
    inside: str | None = None
    configuration: Configuration | None = None
    # A file wins over a dotted name; only a template is run by its name in the catalog.
    if path.name == TEMPLATE or not path.is_file():
        configuration = load_configuration()
        inside = _in_catalog(path, configuration)
    if inside is None and (path.is_file() or path.suffix in SUFFIXES):
        if path.suffix == ".py":
            return Target(experiments=tuple(load_experiments(path)))
        document = read(path)
        if document.tree is not None and is_experiment(document.tree):
            return Target(experiments=tuple(experiments_of(document, path)))
        return Target(suite=suite_of(document, path, need_agent=False))
    configuration = configuration or load_configuration()
    text = inside or text
    found = find_experiments(text, configuration.folder)
    if found is not None:
        return Target(experiments=tuple(found))
    pool = ScenarioPool(configuration)
    dotted = text.strip("/").replace("/", ".")
    if pool.has(dotted) or pool.scope(dotted):
        return Target(experiments=(_ad_hoc(dotted, dotted),), from_catalog=True)
    known = [*pool.names(), *listed_experiments(configuration)]
    raise ProctorError(
        f"there is no file, experiment, scenario or scope {text!r}",
        hint=did_you_mean(text, known)
        or "`proctor list cases` and `proctor list experiments` show what there is",
    )


def _in_catalog(path: Path, configuration: Configuration) -> str | None:
    """Return the dotted name of a template's file or folder in the project's catalog."""
    folder = path.parent if path.name == TEMPLATE and path.is_file() else path
    if not folder.is_dir():
        return None
    folder = folder.resolve()
    for catalog in configuration.catalogs:
        root = catalog.resolve()
        if folder.is_relative_to(root) and folder != root:
            return ".".join(folder.relative_to(root).parts)
    return None


def _ad_hoc(name: str, *cases: Any, **fields: Any) -> Experiment:
    """Return an experiment without a file; its paths are relative to the current folder."""
    try:
        return Experiment(name=name, cases=cases, **fields)
    except ValidationError as error:
        raise option_error(error, name) from None


def _suite_experiment(suite: Suite) -> Experiment:
    """Return a suite as an experiment, which can have seeds and parameters as axes."""
    if suite.path is None:
        raise ProctorError("seeds and parameters are for suites in files, or for experiments")
    made = _ad_hoc(suite.path.stem, {"suite": suite.path.name})
    made.came_from(suite.folder, suite.path)
    return made


def listed_experiments(configuration: Configuration) -> list[str]:
    """Return the dotted names of the experiment files of a project."""
    folder, project = configuration.experiments, configuration.folder.resolve()
    if not folder.resolve().is_relative_to(project):
        return []
    prefix = folder.resolve().relative_to(project).parts
    return [
        ".".join((*prefix, *path.relative_to(folder).with_suffix("").parts))
        for path in sorted(folder.rglob("*"))
        if path.suffix in SUFFIXES and path.is_file() and not path.name.startswith(("_", "."))
    ]


def prepare_target(
    found: Target,
    options: Mapping[str, Any],
    *,
    agents: GivenAgents | None = None,
    seeds: Any = None,
    expression: str = "",
    settings: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    smoke: bool = False,
) -> list[RunContext]:
    """Check and resolve everything a target names; nothing is written.

    `options` are those of `RunOptions`, None where they were not given. Seeds and settings turn a
    suite into an experiment.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if smoke:
        given["trials"] = 1
    suite = found.suite
    if suite is not None and seeds is None and not settings:
        try:  # for Python callers; the command line has validated its own options
            run_options = RunOptions(**given)
        except ValidationError as error:
            fault = first_fault(error)
            raise ProctorError(fault.message, hint=fault.hint) from None
        configuration = load_configuration(suite.folder)
        cases: Sequence[Case] = suite.cases
        if tags or expression:
            chosen = select_numbers(suite.cases, tags=tags, filter=expression)
            # A large data set stays in its file, unless few of its cases are left.
            if isinstance(suite.cases, DataCases) and len(chosen) > WHOLE:
                cases = suite.cases.only(chosen)
            else:
                cases = [suite.cases[number] for number in chosen]
        return [
            prepare(
                suite,
                run_options,
                agents=agents,
                cases=cases[:1] if smoke else cases,
                configuration=configuration,
            )
        ]
    experiments = found.experiments if suite is None else (_suite_experiment(suite),)
    if (seed := given.pop("seed", None)) is not None:
        if seeds is not None:
            raise ProctorError("give one seed or several, not both", where="--seed and --seeds")
        seeds = [seed]
    tagged = ",".join(f'tag:"{tag}"' for tag in tags)
    expression = f"{expression} {tagged}".strip()
    if found.from_catalog and agents is None:
        # Chance can act in every world, so a scenario runs without any agent of one's own.
        configured = load_configuration(experiments[0].folder).settings.agent
        agents = None if configured else {"random": "random"}
    return [
        prepare_experiment(
            override(each, seeds=seeds, expression=expression, settings=settings),
            agents=agents,
            options=given,
            smoke=smoke,
        )
        for each in experiments
    ]


def batch_experiment(
    cases: str | Sequence[str],
    *,
    seeds: Any = 1,
    exclude: str | Sequence[str] = (),
    params: Mapping[str, Any] | None = None,
    name: str = "batch",
) -> Experiment:
    """Return an experiment without a file: names, globs and filters of the catalog, or suites."""
    selectors: list[Any] = []
    for part in [cases] if isinstance(cases, str) else cases:
        # A comma between terms with keys means "or" and belongs to the filter.
        for text in [part] if ":" in part else part.split(","):
            if not (selector := text.strip()):
                continue
            if Path(selector).suffix in SUFFIXES or Path(selector).is_file():
                selectors.append({"suite": selector})
            else:
                dotted = selector.strip("/").replace("/", ".")
                selectors.append(selector if ":" in selector else dotted)
    return _ad_hoc(name, *selectors, seeds=seeds, exclude=exclude or (), params=dict(params or {}))


# -- run folders ---------------------------------------------------------------------------------


def folder_for(
    context: RunContext,
    results: str | Path | None = None,
    name: str | None = None,
    *,
    made_by: str | None = None,
) -> RunFolder:
    """Create the folder of a run, below `results` or the results folder of the settings.

    With an address (`s3://…`) it is in the folder of the settings, and will be uploaded. `made_by`
    is the command whose experiment the run is part of.
    """
    address = address_for(context, results)
    local = results is None or address is not None
    root = context.configuration.results if local else Path(results or "")
    if address is None:
        return new_folder(context, root, name, made_by=made_by)
    return folder_at(address, lambda: new_folder(context, root, name, made_by=made_by))


def address_for(context: RunContext, results: str | Path | None) -> str | None:
    """Return the address to upload a run to, from `results` or the settings; None for none."""
    target = context.configuration.settings.results if results is None else str(results)
    return checked(target) if ":/" in target and is_address(target) else None
