"""`proctor validate`: report all problems of suites, experiments, templates and settings at once.

The kind of a file follows from its content: `cases` make a suite or an experiment, a `scenario` or
an `input` at the top level makes a template; `proctor.yaml` and `pyproject.toml` are settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from proctor.cli._command import Command
from proctor.cli._options import json_option
from proctor.cli._output import echo_json
from proctor.errors import EXIT_CANNOT_JUDGE
from proctor.formatting import plural
from proctor.sanitize import printable

if TYPE_CHECKING:
    from proctor.scenarios.template import Template
    from proctor.spec import Configuration, SpecProblem, Suite
    from proctor.spec.experiment import Experiment
    from proctor.spec.located import Tree
    from proctor.trials.resolve_experiment import Resolved


SETTINGS = ("proctor.yaml", "pyproject.toml")

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
@click.pass_context
def validate(ctx: click.Context, files: tuple[Path, ...], as_json: bool, traces: bool) -> None:
    """Check suites, experiments, templates and settings.

    Only reads the files and runs nothing. (`test` runs each case once and stores nothing;
    `scenario check` builds scenarios and solves them.) Exits with 0 if all are valid, else with 2.

    Examples:
      # one suite
      proctor validate suite.yaml
      # does everything that experiments name exist?
      proctor validate experiments/*.yaml
      # templates and settings
      proctor validate catalog/*/*/spec.yaml proctor.yaml
      # as JSON
      proctor validate --json suites/*.yaml
    """
    problems: list[SpecProblem] = []
    good: dict[Path, Valid] = {}
    for path in files:
        found = _checked(path, traces=traces)
        if isinstance(found, list):
            # Two suites may include the same file or share settings.
            problems.extend(problem for problem in found if problem not in problems)
        else:
            good[path] = found
    if as_json:
        _echo_document(good, problems)
    else:
        _print(good, problems, len(files))
    if problems:
        ctx.exit(EXIT_CANNOT_JUDGE)


def _checked(path: Path, *, traces: bool) -> Valid | list[SpecProblem]:
    from proctor.errors import ProctorError
    from proctor.spec import SourceLocation, SpecError, SpecProblem, load_configuration
    from proctor.spec.load import is_experiment, load_experiments, suite_of
    from proctor.spec.yaml_reader import read

    try:
        # Experiments in Python are executed: that is the only way to know what they define.
        if path.suffix == ".py":
            return _resolved(load_experiments(path))
        # By name, because settings have no key that marks them.
        if path.name in SETTINGS and path.is_file():
            return Valid(settings=load_configuration(path.parent))
        document = read(path)
        if _is_template(path, document.tree):
            return _template(path)
        if document.tree is not None and is_experiment(document.tree):
            return _resolved(load_experiments(path))
        # A suite without an agent is valid where the settings name one.
        configured = load_configuration(path.parent).settings.agent is not None
        return Valid(suite_of(document, path, need_agent=not (traces or configured)))
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


def _resolved(experiments: list[Experiment]) -> Valid:
    """Resolve every name in the experiments."""
    from proctor.cli.run import allow_local_imports
    from proctor.trials.resolve_experiment import resolve_experiment

    allow_local_imports()
    return Valid(experiments=tuple(resolve_experiment(each) for each in experiments))


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
