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

from proctor import api
from proctor.cli._command import Command
from proctor.cli._options import json_option, option, warn
from proctor.cli._output import echo_json
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError
from proctor.formatting import plural
from proctor.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """A suite, experiment, template or settings file: its section and record in the document."""

    section: str
    record: Any
    line: str


@click.command(cls=Command)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
@option("--traces", "Suites are for recorded traces and need no agent.", is_flag=True)
@option("--import", "execute", "Import agents and checks as well.", is_flag=True)
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
    from proctor.spec import SourceLocation, SpecError, SpecProblem

    problems: list[SpecProblem] = []
    good: dict[Path, list[Valid]] = {}
    for path in files:
        try:
            good[path] = _checked(path, traces=traces, execute=execute)
        except ProctorError as error:
            where = SourceLocation(error.where or str(path))
            found = [SpecProblem(where, error.message, error.hint)]
            if isinstance(error, SpecError):
                found = error.problems
            # Two suites may include the same file or share settings.
            problems.extend(problem for problem in found if problem not in problems)
    if as_json:
        document: dict[str, Any] = {"valid": not problems}
        for section in ("suites", "experiments", "templates", "settings"):
            valid = (each for found in good.values() for each in found)
            document[section] = [each.record for each in valid if each.section == section]
        keys = ("file", "line", "column", "message", "hint")
        document["problems"] = [{key: getattr(each, key) for key in keys} for each in problems]
        echo_json(document)
    else:
        for path, found in good.items():
            for each in found:
                click.echo(printable(f"{path}: {each.line}"))
        print_problems(problems)
        if problems:
            bad = plural(len(files) - len(good), "file")
            click.echo(f"{plural(len(problems), 'problem')} in {bad}", err=True)
        with_code = ("suites", "experiments")
        named = any(each.section in with_code for found in good.values() for each in found)
        # What could not be read named nothing to import.
        if named or not (good or execute):
            looked_up = "looked up in the source; --import imports them"
            click.echo(f"agents and checks were {'imported' if execute else looked_up}")
    if problems:
        ctx.exit(EXIT_CANNOT_JUDGE)


def _checked(path: Path, *, traces: bool, execute: bool) -> list[Valid]:
    from proctor.spec import SpecError, load_configuration
    from proctor.spec.load import is_experiment, load_experiments, suite_of
    from proctor.spec.yaml_reader import read

    if path.suffix == ".py":
        if not execute:
            hint = "validate it with --import"
            raise ProctorError("experiments in Python have to be executed", hint=hint)
        return _resolved(path, load_experiments(path), None, execute=True)
    # By name, because settings have no key that marks them.
    if path.name in SETTINGS and path.is_file():
        agents = plural(len(load_configuration(path.parent).settings.agents), "agent")
        return [Valid("settings", str(path), f"settings, {agents}")]
    document = read(path)
    if _is_template(path, document.tree):
        return [_template(path)]
    if document.tree is not None and is_experiment(document.tree):
        return _resolved(path, load_experiments(path), document.tree, execute=execute)
    # A suite without an agent is valid where the settings name one.
    configuration = load_configuration(path.parent)
    configured = configuration.settings.agent is not None
    suite = suite_of(document, path, need_agent=not (traces or configured))
    found = _names(suite, None, configuration, document.tree, traces=traces, execute=execute)
    if problems := list(found):
        raise SpecError(problems)
    record = {"file": str(path), "cases": [case.id for case in suite.cases]}
    agents = ", ".join(suite.all_agents) or "none"
    return [Valid("suites", record, f"{plural(len(suite.cases), 'case')}, agent {agents}")]


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
    from proctor.spec.config import find_project_file

    # A template outside of any project is checked with the settings of this folder.
    project = find_project_file(path.parent)
    catalog = catalog_for(api.settings(None if project is None else path.parent))
    found = template_at(path, catalog)
    names = {"variants": list(found.variants), "params": list(found.params)}
    variants, params = (", ".join(each) or "none" for each in names.values())
    line = f"scenario {found.name}, variants {variants}, parameters {params}"
    return Valid("templates", {"file": str(path), "name": found.name, **names}, line)


def _resolved(
    path: Path, experiments: list[Experiment], tree: Tree | None, *, execute: bool
) -> list[Valid]:
    """Resolve every name in the experiments."""
    from proctor.spec import SpecError
    from proctor.trials.resolve_experiment import resolve_experiment

    resolved = [resolve_experiment(each) for each in experiments]
    problems: list[SpecProblem] = []
    for each in resolved:
        problems += _names(
            each.suite, each, each.configuration, tree, traces=False, execute=execute
        )
    if problems:
        raise SpecError(problems)
    found: list[Valid] = []
    for each in resolved:
        name, axes, agents = each.design.name, each.design.axes, list(each.agents or {})
        cases = [case.id for case in each.suite.cases]
        parts = [plural(len(cases), "case"), plural(len(agents), "agent")]
        parts += [plural(len(axes.params), "combination")] if len(axes.params) > 1 else []
        parts.append(plural(len(axes.seeds or ()), "seed"))
        record = {"file": str(path), "name": name, "cases": cases, "agents": agents}
        record |= axes.record()
        found.append(Valid("experiments", record, f"experiment {name}: {' × '.join(parts)}"))
    return found


def _names(
    suite: Suite,
    experiment: Resolved | None,
    configuration: Configuration,
    tree: Tree | None,
    *,
    traces: bool,
    execute: bool,
) -> Iterator[SpecProblem]:
    """Find agents, checks, tools and models that do not exist; warn about missing keys."""
    from proctor.imports import find_object
    from proctor.llm.chat_model import ModelError
    from proctor.llm.prices import no_price
    from proctor.llm.providers import NamedModel, get_model
    from proctor.spec import SourceLocation, SpecError, SpecProblem
    from proctor.spec.suite import CustomCheck, DataCases
    from proctor.trials.options import RunOptions
    from proctor.trials.prepare import (
        NO_JUDGE,
        check_names,
        choose_agents,
        named_models,
        needs_default_judge,
        prepare,
        store_of,
        unsupported_parts,
    )

    here = SourceLocation("suite" if suite.path is None else str(suite.path))

    def place_of(name: str) -> SourceLocation:
        """Return where the file has this name; it may also come from settings."""
        leaves = () if tree is None else tree.walk()
        return next((each.place for each in leaves if each.value == name), here)

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
        agent = None if tree is None else tree.child("agent")
        place = here if execute or agent is None else agent.place
        yield SpecProblem(place, str(error).partition("\n")[0], error.hint)
        return
    configs: list[Any] = [getattr(agent, "config", agent) for agent in agents.values()]
    references = [
        (place_of(path), path, base or suite.folder)
        for config in configs
        for path, base in _import_paths(config)
    ]
    references += [
        (case.place or here, check.check, case.folder or suite.folder)
        for case in suite.cases
        for check in case.checks
        if isinstance(check, CustomCheck) and isinstance(check.check, str) and ":" in check.check
    ]
    for name, config in zip(agents, configs, strict=True):
        if hasattr(config, "command_line"):  # a program: its check executes nothing
            try:
                config.check()
            except ProctorError as error:
                place = place_of((config.command or [config.kind])[0])
                yield SpecProblem(place, f"agent {name!r}: {error.message}", error.hint)
    by_name = dict(zip(agents, configs, strict=True))
    # Rows of a large data set have neither turns nor state.
    for case in () if isinstance(suite.cases, DataCases) else suite.cases:
        for message, hint in unsupported_parts(case, by_name):
            yield SpecProblem(case.place or here, message, hint)
        if case.state is not None and case.state.python is None:  # which would run code
            try:
                case.state.create(case.folder).close()
            except ProctorError as error:
                yield SpecProblem(case.place or here, str(error), error.hint)
        folder = None if case.workspace is None else case.workspace.folder
        if (
            folder is not None
            and not ((case.folder or suite.folder) / Path(folder).expanduser()).is_dir()
        ):
            yield SpecProblem(place_of(folder), f"there is no folder {folder!r}")
    if suite.judge is None and configuration.settings.judge is None:
        for case in suite.cases:
            if needs_default_judge(case):
                yield SpecProblem(case.place or here, *NO_JUDGE)
    if suite.baseline is not None and agents and experiment is None:
        store, version = store_of(suite, configuration), suite.baseline
        pairs = [(agent, case.id) for agent in agents for case in suite.cases]
        if not any(store.load(*pair, version, problems=[]) for pair in pairs):
            agent, case_id = pairs[0]
            yield SpecProblem(place_of(version), store.missing(agent, version, case_id))
    for place, path, base in references:
        try:
            find_object(path, base)
        except ProctorError as error:
            yield SpecProblem(place, f"{path}: {error.message}", error.hint)
    for name, base_url, api_key_env in named_models(suite, configs, configuration):
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
                yield SpecProblem(place_of(name), error.message, error.hint)
                continue
        if base_url is None and (remark := no_price(name, configuration.settings.price_table())):
            warn(remark)  # new models have no price for some weeks


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


def print_problems(problems: list[SpecProblem]) -> None:
    """Print every problem with its hint to standard error."""
    for problem in problems:
        click.echo(printable(str(problem)), err=True)
        if problem.hint:
            click.echo(printable(f"  hint: {problem.hint}"), err=True)
