"""`proctor validate`: report all problems of suites, experiments, templates and settings at once.

The kind of a file follows from its content: `cases` make a suite or an experiment, a `scenario` or
an `input` at the top level makes a template; `proctor.yaml` and `pyproject.toml` are settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click
from pydantic import BaseModel

from proctor.cli._command import Command
from proctor.cli._options import json_option, warn
from proctor.cli._output import echo_json
from proctor.errors import EXIT_CANNOT_JUDGE
from proctor.formatting import plural
from proctor.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proctor.scenarios.template import Template
    from proctor.spec import Configuration, SpecProblem, Suite
    from proctor.spec.experiment import Experiment
    from proctor.spec.located import Tree
    from proctor.trials.resolve_experiment import Resolved


SETTINGS = ("proctor.yaml", "pyproject.toml")

IMPORT_KEYS = {"target", "script", "python", "deps"}
"""Options of agents and tools that are import paths."""

OF_OTHERS = {"cases", "queries", "experiments"}
"""Keys that templates do not have."""


class Valid(NamedTuple):
    """The content of a valid file: a suite, resolved experiments, a template or settings."""

    suite: Suite | None = None
    experiments: tuple[Resolved, ...] = ()
    template: Template | None = None
    settings: Configuration | None = None


@click.command(cls=Command)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
@click.option("--traces", is_flag=True, help="Suites are for recorded traces and need no agent.")
@click.option("--import", "execute", is_flag=True, help="Import agents and checks as well.")
@click.pass_context
def validate(
    ctx: click.Context, files: tuple[Path, ...], as_json: bool, traces: bool, execute: bool
) -> None:
    """Check suites, experiments, templates and settings.

    Reads the files and looks up agents, checks and tools in the source code, without executing it.
    With --import, this code is imported, and clients and API keys of models are checked too.
    (`test` runs each case once and stores nothing; `scenario check` builds scenarios and solves
    them.) Exits with 0 if all are valid, else with 2.

    Examples:
      # one suite
      proctor validate suite.yaml
      # does everything that experiments name exist?
      proctor validate experiments/*.yaml
      # can the agents, checks and judges be loaded, are the API keys set?
      proctor validate --import suite.yaml
      # templates and settings
      proctor validate catalog/*/*/spec.yaml proctor.yaml
      # as JSON
      proctor validate --json suites/*.yaml
    """
    problems: list[SpecProblem] = []
    good: dict[Path, Valid] = {}
    for path in files:
        found = _checked(path, traces=traces, execute=execute)
        if isinstance(found, list):
            # Two suites may include the same file or share settings.
            problems.extend(problem for problem in found if problem not in problems)
        else:
            good[path] = found
    if as_json:
        _echo_document(good, problems)
    else:
        _print(good, problems, len(files))
        if any(found.suite or found.experiments for found in good.values()) or not good:
            looked_up = "looked up in the source; --import imports them"
            click.echo(f"agents and checks were {'imported' if execute else looked_up}")
    if problems:
        ctx.exit(EXIT_CANNOT_JUDGE)


def _checked(path: Path, *, traces: bool, execute: bool) -> Valid | list[SpecProblem]:
    from proctor.errors import ProctorError
    from proctor.spec import SourceLocation, SpecError, SpecProblem, load_configuration
    from proctor.spec.load import is_experiment, load_experiments, suite_of
    from proctor.spec.yaml_reader import read

    try:
        if path.suffix == ".py":
            if not execute:
                where = SourceLocation(str(path))
                hint = "validate it with --import"
                return [SpecProblem(where, "experiments in Python have to be executed", hint)]
            return _resolved(load_experiments(path), execute=True)
        # By name, because settings have no key that marks them.
        if path.name in SETTINGS and path.is_file():
            return Valid(settings=load_configuration(path.parent))
        document = read(path)
        if _is_template(path, document.tree):
            return _template(path)
        if document.tree is not None and is_experiment(document.tree):
            return _resolved(load_experiments(path), execute=execute)
        # A suite without an agent is valid where the settings name one.
        configuration = load_configuration(path.parent)
        configured = configuration.settings.agent is not None
        suite = suite_of(document, path, need_agent=not (traces or configured))
        found = _names(suite, None, configuration, traces=traces, execute=execute)
        return list(found) or Valid(suite)
    except SpecError as error:
        return error.problems
    except ProctorError as error:
        return [SpecProblem(SourceLocation(error.where or str(path)), error.message, error.hint)]


def _is_template(path: Path, tree: Tree | None) -> bool:
    """Return whether a file is a scenario template, by its content, else by its name."""
    from proctor.scenarios.template import FILE, SECTIONS

    if tree is None or not isinstance(tree.value, dict):
        return path.name == FILE and path.is_file()
    keys = set(tree.value)
    return not keys & OF_OTHERS and (path.name == FILE or bool(keys & set(SECTIONS)))


def _template(path: Path) -> Valid:
    from proctor.scenarios import catalog_for
    from proctor.scenarios.catalog import template_at
    from proctor.spec import load_configuration
    from proctor.spec.config import find_project_file

    # A template outside of any project is checked with the settings of this folder.
    project = find_project_file(path.parent)
    catalog = catalog_for(load_configuration(None if project is None else path.parent))
    return Valid(template=template_at(path, catalog))


def _resolved(experiments: list[Experiment], *, execute: bool) -> Valid | list[SpecProblem]:
    """Resolve every name in the experiments."""
    from proctor.cli.run import allow_local_imports
    from proctor.trials.resolve_experiment import resolve_experiment

    if execute:
        allow_local_imports()
    resolved = tuple(resolve_experiment(each) for each in experiments)
    problems = [
        problem
        for each in resolved
        for problem in _names(each.suite, each, each.configuration, traces=False, execute=execute)
    ]
    return problems or Valid(experiments=resolved)


def _names(
    suite: Suite,
    experiment: Resolved | None,
    configuration: Configuration,
    *,
    traces: bool,
    execute: bool,
) -> Iterator[SpecProblem]:
    """Find agents, checks, tools and models that do not exist; warn about missing keys."""
    from proctor.errors import ProctorError
    from proctor.imports import find_object
    from proctor.llm.chat_model import ModelError
    from proctor.llm.providers import NamedModel, get_model
    from proctor.spec import SourceLocation, SpecError, SpecProblem
    from proctor.spec.suite import CustomCheck
    from proctor.trials.options import RunOptions
    from proctor.trials.prepare import check_names, prepare
    from proctor.trials.select_agents import choose_agents

    here = SourceLocation("suite" if suite.path is None else str(suite.path))
    given = None if experiment is None else experiment.agents
    try:
        if execute:
            check_names(
                prepare(
                    suite,
                    RunOptions(),
                    # Recorded traces replace the agent; checks and judges are loaded all the same.
                    agents={"random": {"kind": "random"}} if traces else given,
                    configuration=configuration,
                    design=None if experiment is None else experiment.design,
                )
            )
            return
        agents = {} if traces else given or choose_agents(suite, (), configuration)
    except SpecError as error:
        yield from error.problems
        return
    except ProctorError as error:
        yield SpecProblem(here, str(error).partition("\n")[0], error.hint)
        return
    configs: list[Any] = [getattr(agent, "config", agent) for agent in agents.values()]
    references = [
        (here, path, base or suite.folder)
        for config in configs
        for path, base in _import_paths(config)
    ]
    references += [
        (case.place or here, check.check, case.folder or suite.folder)
        for case in suite.cases
        for check in case.checks
        if isinstance(check, CustomCheck) and isinstance(check.check, str) and ":" in check.check
    ]
    for place, path, base in references:
        try:
            find_object(path, base)
        except ProctorError as error:
            yield SpecProblem(place, f"{path}: {error.message}", error.hint)
    judges = [suite.judge, *suite.judges.values(), configuration.settings.judge]
    named = [
        (model, judge.base_url, judge.api_key_env)
        for judge in judges
        if judge is not None
        for model in judge.models
    ]
    named += [
        (config.model, config.base_url, config.api_key_env)
        for config in configs
        # The small local model needs neither a client library nor a key.
        if getattr(config, "kind", None) == "chat" and not config.model.startswith("local:")
    ]
    for name, base_url, api_key_env in dict.fromkeys(named):
        try:
            model = get_model(name, base_url=base_url, api_key_env=api_key_env)
            if isinstance(model, NamedModel):
                model.check()
        except ModelError as error:
            warn(error.message)  # a key may be set where the suite is run
        except ProctorError as error:
            if "pip install" in (error.hint or ""):
                warn(f"{error.message}; {error.hint}")
            else:
                yield SpecProblem(here, error.message, error.hint)


def _import_paths(value: Any, base: Path | None = None) -> Iterator[tuple[str, Path | None]]:
    """Return the import paths in the options of an agent, also of its tools and members."""
    if isinstance(value, BaseModel):
        base = getattr(value, "base_dir", None) or base
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[str, Any]", value).items():
            if key in IMPORT_KEYS and isinstance(part, str) and ":" in part:
                yield part, base
            else:
                yield from _import_paths(part, base)
    elif isinstance(value, list | tuple):
        for part in cast("Sequence[Any]", value):
            yield from _import_paths(part, base)


def _print(good: dict[Path, Valid], problems: list[SpecProblem], files: int) -> None:
    for path, found in good.items():
        if found.suite is not None:
            agents = ", ".join(found.suite.all_agents) or "none"
            cases = plural(len(found.suite.cases), "case")
            click.echo(printable(f"{path}: {cases}, agent {agents}"))
        if found.template is not None:
            variants = ", ".join(found.template.variants) or "none"
            params = ", ".join(found.template.params) or "none"
            text = f"scenario {found.template.name}, variants {variants}, parameters {params}"
            click.echo(printable(f"{path}: {text}"))
        if found.settings is not None:
            agents = plural(len(found.settings.settings.agents), "agent")
            click.echo(printable(f"{path}: settings, {agents}"))
        for each in found.experiments:
            axes = each.design.axes
            parts = [plural(len(each.suite.cases), "case"), plural(len(each.agents or {}), "agent")]
            parts += [plural(len(axes.params), "combination")] if len(axes.params) > 1 else []
            parts.append(plural(len(axes.seeds or ()), "seed"))
            click.echo(printable(f"{path}: experiment {each.design.name}: {' × '.join(parts)}"))
    print_problems(problems)
    if problems:
        bad = files - len(good)
        click.echo(f"{plural(len(problems), 'problem')} in {plural(bad, 'file')}", err=True)


def print_problems(problems: list[SpecProblem]) -> None:
    """Print every problem with its hint to standard error."""
    for problem in problems:
        click.echo(printable(str(problem)), err=True)
        if problem.hint:
            click.echo(printable(f"  hint: {problem.hint}"), err=True)


def _echo_document(good: dict[Path, Valid], problems: list[SpecProblem]) -> None:
    def record(problem: SpecProblem) -> dict[str, Any]:
        where = {"file": problem.file, "line": problem.line, "column": problem.column}
        return {**where, "message": problem.message, "hint": problem.hint}

    document = {
        "valid": not problems,
        "suites": [
            {"file": str(path), "cases": [case.id for case in found.suite.cases]}
            for path, found in good.items()
            if found.suite is not None
        ],
        "experiments": [
            {
                "file": str(path),
                "name": each.design.name,
                "cases": [case.id for case in each.suite.cases],
                "agents": list(each.agents or {}),
                **each.design.axes.record(),
            }
            for path, found in good.items()
            for each in found.experiments
        ],
        "templates": [
            {
                "file": str(path),
                "name": found.template.name,
                "variants": list(found.template.variants),
                "params": list(found.template.params),
            }
            for path, found in good.items()
            if found.template is not None
        ],
        "settings": [str(path) for path, found in good.items() if found.settings is not None],
        "problems": [record(problem) for problem in problems],
    }
    echo_json(document)
