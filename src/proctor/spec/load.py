"""Load suites and experiments from files, or report every reason why it fails.

Reading, merging, validation and cross-checks each add their problems to one list, so that one round
of fixes is enough.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from proctor.agents.registry import UnknownAgentError, kind_class
from proctor.errors import ProctorError, hint_among
from proctor.imports import IMPORT_PATH, load_module
from proctor.runs.case_rows import slug
from proctor.spec.datasets import WHOLE, DataRows, is_data, with_data
from proctor.spec.experiment import Experiment
from proctor.spec.located import (
    Problems,
    SourceLocation,
    SpecError,
    SpecProblem,
    Tree,
    YamlDocument,
    merged,
    plain,
    renamed,
    tree_of,
)
from proctor.spec.suite import (
    CASE_SPELLINGS,
    SUITE_SPELLINGS,
    DataCases,
    Suite,
    first_message,
    repeated_ids,
    same_id,
)
from proctor.spec.validation import first_fault, validated
from proctor.spec.yaml_reader import collector_paused, read


def load_suite(
    path: str | Path, *, need_agent: bool = True, environ: Mapping[str, str] | None = None
) -> Suite:
    """Load a suite; `SpecError` lists every problem with its location.

    `need_agent=False` is for recorded traces, or an agent from elsewhere.
    """
    path = Path(path)
    return suite_of(read(path, environ=environ), path, need_agent=need_agent)


@collector_paused()
def suite_of(document: YamlDocument, path: Path, *, need_agent: bool = True) -> Suite:
    """Return the suite of a file already read."""
    document, data = with_data(document, path.parent)
    suite, tree = _checked(document, need_agent=need_agent)
    suite.came_from(tree, path.parent, path)
    return suite if data is None else _with_rows(suite, tree, data)


@collector_paused()
def restore_suite(
    record: Any,
    *,
    folder: Path,
    name: str,
    environ: Mapping[str, str] | None = None,
    data_folder: Path | None = None,
) -> Suite:
    """Restore a suite from its record, with environment variables read again.

    `folder` is the base of its relative paths, `name` the location in problems, `data_folder` the
    run folder with its rows, where the record has none of its cases.
    """
    problems = Problems()
    # A record has no lines: every problem has the same place.
    place = SourceLocation(name)
    environ = os.environ if environ is None else environ
    tree = tree_of(record, lambda _: place, environ, problems)
    document, data = YamlDocument(tree, problems), None
    if data_folder is not None:
        document, data = with_data(document, data_folder)
    suite, tree = _checked(document, need_agent=False)
    suite.came_from(tree, folder)
    return suite if data is None else _with_rows(suite, tree, data)


def _with_rows(suite: Suite, tree: Tree, data: DataRows) -> Suite:
    """Return the suite of a large data set; what is wrong with many rows is an error now."""

    def with_case(case: Tree) -> Tree:
        listed = tree.child("cases")
        assert listed is not None
        assert isinstance(tree.value, dict)
        return replace(tree, value={**tree.value, "cases": replace(listed, value=[case])})

    # What a case inherits is what becomes of an empty one.
    base = next((prepared(with_case(Tree(tree.place, {}))).child("cases") or tree).children())
    data = data._replace(
        template=data.template._replace(defaults=plain(base)),
        written=data.written._replace(defaults=plain(base, as_written=True)),
    )

    def problem(index: int) -> None:
        case = with_case(data.case_tree(index))
        _checked(YamlDocument(case, Problems()), need_agent=False)

    cases = DataCases(data, suite.folder, problem)
    problems = Problems()
    for earlier, later in cases.repeated():
        one, two = sorted((earlier, later))
        if same_id(cases.written(one)["id"]) == same_id(cases.written(two)["id"]):
            message = f"the id {cases.written(two)['id']!r} is that of {cases.place(one)} as well"
            problems.add(cases.place(two), message, "give each row an id of its own")
    for index, reason in cases.bad_ids:
        problems.add(cases.place(index), reason)
    if problems:
        raise SpecError(problems)
    for index in range(WHOLE):
        cases[index]
    return suite.model_copy(update={"cases": cases})


def _checked(document: YamlDocument, *, need_agent: bool) -> tuple[Suite, Tree]:
    problems = document.problems
    if document.tree is None:
        raise SpecError(problems)
    if document.tree.value is None:
        hint = "`proctor init` writes a suite to start from"
        raise SpecError([*problems, SpecProblem(document.tree.place, "the file is empty", hint)])
    tree = prepared(document.tree)
    suite = validated(tree, Suite, problems)
    # Also where validation failed: all problems are reported at once.
    problems.extend(_across(tree, need_agent=need_agent))
    if problems or suite is None:
        raise SpecError(problems)
    return suite, tree


def prepared(tree: Tree) -> Tree:
    """Return a suite's tree with canonical keys and defaults merged into each case.

    The models do the same for Python input; done here first, each part retains its position.
    """
    tree = renamed(tree, SUITE_SPELLINGS)
    if not isinstance(tree.value, dict):
        return tree
    cases = tree.value.get("cases")
    if cases is None or not isinstance(cases.value, list):
        return tree
    defaults = tree.value.get("defaults")
    base: Tree | None = None
    if defaults is not None and isinstance(defaults.value, dict):
        # A case inherits no key from defaults that belongs to one case only.
        shared = {k: v for k, v in defaults.value.items() if k not in ("id", "input", "query")}
        base = replace(defaults, value=shared)
    if (workspace := tree.value.get("workspace")) is not None and workspace.value is not None:
        if isinstance(workspace.value, str):  # the short form, which cannot be merged
            workspace = Tree(workspace.place, {"folder": workspace})
        own = replace(tree, value={"workspace": workspace}, keys={})
        base = own if base is None else merged(own, base)
    items: list[Tree] = []
    for written in cases.value:
        case = renamed(written, CASE_SPELLINGS)
        if base is not None and isinstance(case.value, dict):
            case = merged(base, case)
        own, given = case.child("id"), case.child("input") or _first_message(case)
        lacks_id = own is None or own.value is None
        # A broken input has its own problem; two of them would also repeat an id.
        usable = given and given.value is not None and not any(p.broken for p in given.walk())
        if given and usable and lacks_id and isinstance(case.value, dict):
            # From the input as written: an id must not hold the value of a variable.
            made = Tree(case.place, slug(plain(given, as_written=True)))
            case = replace(case, value={**case.value, "id": made})
        items.append(case)
    return replace(tree, value={**tree.value, "cases": replace(cases, value=items)})


def _first_message(case: Tree) -> Tree | None:
    """Return the first message of a conversation, which names its case."""
    if case.child("turns") is None and case.child("user") is None:
        return None
    message = first_message(plain(case, as_written=True))
    return None if message is None else Tree(case.place, message)


def _across(tree: Tree, *, need_agent: bool) -> list[SpecProblem]:
    """Report problems of a suite as a whole, even when parts of it cannot be read."""
    if not isinstance(tree.value, dict):
        return []
    problems = Problems()
    listed = tree.child("cases")
    cases = listed.value if listed is not None and isinstance(listed.value, list) else []
    spellings = [(tree, SUITE_SPELLINGS), *((case, CASE_SPELLINGS) for case in cases)]
    problems.extend(
        SpecProblem(part.keys[other], f"write `{key}` or `{other}`, not both")
        for part, names in spellings
        for other, key in names.items()
        if other in part.keys and key in part.keys
    )
    ids = [case.child("id") for case in cases]
    for fault in repeated_ids(["" if i is None or i.value is None else str(i.value) for i in ids]):
        at = ids[int(fault.loc[1])] or tree
        problems.add(at.place, fault.message, fault.hint)
    one, several = tree.child("agent"), tree.child("agents")
    # A broken value has its own problem; it is no missing agent.
    given = (a for a in (one, several) if a and (a.broken or a.value not in (None, "", {}, [])))
    if need_agent and not any(given):
        hint = "add `agent: package.module:function`"
        problems.add(tree.place, "no agent: say what is under test", hint)
    for agent in (one, *(several.children() if several else ())):
        problems.extend(agent_problems(agent) if agent else ())
    return problems


def agent_problems(agent: Tree) -> list[SpecProblem]:
    """Validate the options of an agent against its kind."""
    kind = agent.child("kind")
    if kind is None or kind.broken or not isinstance(kind.value, str):
        return []
    # The same model that creates the agent later, so the two cannot disagree.
    try:
        options = kind_class(kind.value)
    except UnknownAgentError as error:
        return [SpecProblem(kind.place, error.message, error.hint)]
    problems = Problems()
    validated(agent, options, problems)
    target = agent.child("target")
    text = target.value if kind.value == "python" and target is not None else None
    if target is not None and isinstance(text, str) and not re.fullmatch(IMPORT_PATH, text):
        message = f"{target.written or text!r} is not an import path such as package.module:name"
        problems.add(target.place, message)
    return problems


# Experiments in files. A YAML file holds one experiment, or several under `experiments` (a mapping
# by name, or a list) next to the keys they share. A Python file defines `experiment` or
# `experiments`: an `Experiment`, several, or a function that returns them.


MANY = "experiments"
"""The key of a file, or the name in a module, that holds several experiments."""

# How other tools begin the key of one experiment.
_ONE = "experiment."

_OF_EXPERIMENTS = {"seeds", "params", "sample", "exclude", "set", "output", "limits", "filter"}
CASE_KEYS = {"input", "query", "turns", "user"}
"""Keys of which every case of a suite has one."""

_OF_SUITES = {"queries", "defaults", "baselines", "agent"}

SUFFIXES = (".yaml", ".yml", ".json", ".py")


def is_experiment(tree: Tree) -> bool:
    """Return whether a file holds experiments rather than a suite, by the type of its cases."""
    if not isinstance(tree.value, dict):
        return False
    keys = set(tree.value)
    if MANY in keys or any(key.startswith(_ONE) for key in keys):
        return True
    cases = tree.value.get("cases")
    if is_data(cases):
        return False
    if cases is not None and isinstance(cases.value, str):
        return True
    if cases is not None and isinstance(cases.value, list) and cases.value:
        return all(
            isinstance(item.value, str)
            or (isinstance(item.value, dict) and not CASE_KEYS & set(item.value))
            for item in cases.value
        ) and any(isinstance(i.value, str) or i.child("suite") is not None for i in cases.value)
    # Without usable cases, the keys decide: most are allowed in one kind of file only.
    return len(keys & _OF_EXPERIMENTS) > len(keys & _OF_SUITES)


def load_experiments(path: str | Path) -> list[Experiment]:
    """Load every experiment of a file, in order; `SpecError` lists every problem."""
    path = Path(path)
    return _from_python(path) if path.suffix == ".py" else experiments_of(read(path), path)


@collector_paused()
def experiments_of(document: YamlDocument, path: Path) -> list[Experiment]:
    """Return the experiments of a file already read."""
    problems = document.problems
    if document.tree is None:
        raise SpecError(problems)
    found: list[Experiment] = []
    for tree in _bodies(document.tree, path, problems):
        experiment = validated(tree, Experiment, problems)
        several = tree.child("agents")
        for agent in several.children() if several is not None else ():
            problems.extend(agent_problems(agent))
        if experiment is not None:
            experiment.came_from(path.parent, path, tree)
            found.append(experiment)
    if problems:
        raise SpecError(problems)
    return found


def _bodies(tree: Tree, path: Path, problems: Problems) -> list[Tree]:
    """Return the tree of each experiment, with its name and the keys the file shares."""
    if not isinstance(tree.value, dict):
        problems.add(tree.place, "an experiment is a mapping of names to values")
        return []
    many = tree.value.get(MANY)
    if many is None and (named := next((k for k in tree.value if k.startswith(_ONE)), None)):
        hint = f"write `experiments: {{{named.removeprefix(_ONE)}: {{cases: …, seeds: …}}}}`"
        problems.add(tree.keys[named], f"unknown key {named!r}", hint)
        return []
    if many is None:
        return [tree if "name" in tree.value else _with_name(tree, path.stem)]
    rest = {key: part for key, part in tree.value.items() if key != MANY}
    keys = {key: place for key, place in tree.keys.items() if key != MANY}
    # The file's name is the prefix of its experiments' names, and not one of their keys.
    own = rest.pop("name", None)
    prefix = str(own.value) if own is not None and own.value else path.stem
    shared = replace(tree, value=rest, keys=keys)
    bodies: list[Tree] = []
    seen: dict[str, SourceLocation] = {}
    for name, body in _members(many, problems):
        if not isinstance(body.value, dict):
            problems.add(body.place, "an experiment is a mapping of names to values")
            continue
        first = seen.setdefault(same_id(name), body.place)
        if first is not body.place:
            hint = f"the other is on line {first.line}"
            problems.add(body.place, f"the experiment {name!r} is there twice", hint)
        bodies.append(_with_name(merged(shared, body), f"{prefix}.{name}"))
    if not bodies and not problems:
        problems.add(many.place, "no experiments here")
    return bodies


def _members(many: Tree, problems: Problems) -> list[tuple[str, Tree]]:
    if isinstance(many.value, dict):
        return list(many.value.items())
    if not isinstance(many.value, list):
        message = "experiments are a mapping by name, or a list with a `name` in each"
        problems.add(many.place, message)
        return []
    named: list[tuple[str, Tree]] = []
    for item in many.value:
        name = item.child("name")
        if name is None or not isinstance(name.value, str):
            problems.add(item.place, "the key 'name' is missing")
        else:
            named.append((name.value, item))
    return named


def _with_name(tree: Tree, name: str) -> Tree:
    assert isinstance(tree.value, dict)
    place = tree.keys.get("name", tree.place)
    keys = {**tree.keys, "name": place}
    return replace(tree, value={**tree.value, "name": Tree(place, name)}, keys=keys)


# -- Python --------------------------------------------------------------------------------------


def _from_python(path: Path) -> list[Experiment]:
    if not path.is_file():
        raise ProctorError("there is no such file", where=str(path))
    module = load_module(path.stem, path.parent)
    held: Any = next(
        (getattr(module, name) for name in ("experiment", MANY) if hasattr(module, name)), None
    )
    try:
        if callable(held) and not isinstance(held, Experiment):
            held = held()
        found = _several(held)
    except (ValidationError, TypeError) as error:
        raise ProctorError(f"not an experiment: {_first(error)}", where=str(path)) from None
    if not found:
        raise ProctorError(
            "the file defines no experiment",
            where=str(path),
            hint="define `experiment`: an Experiment, or a function that returns one",
        )
    named: list[Experiment] = []
    for each in found:
        whole = len(found) == 1 and "name" not in each.model_fields_set
        name = path.stem if whole else each.name if len(found) == 1 else f"{path.stem}.{each.name}"
        mine = each.changed(name=name)
        mine.came_from(path.parent, path)
        named.append(mine)
    names = [same_id(each.name) for each in named]
    for name in names:
        if names.count(name) > 1:
            raise ProctorError(f"the experiment {name!r} is there twice", where=str(path))
    return named


def _several(held: Any) -> list[Experiment]:
    if held is None:
        return []
    if isinstance(held, Experiment):
        return [held]
    if isinstance(held, Mapping):
        pairs = cast("Mapping[str, Any]", held).items()
        return [_one(each).changed(name=name) for name, each in pairs]
    return [_one(each) for each in cast("Iterable[Any]", held)]


def _one(value: Any) -> Experiment:
    return value if isinstance(value, Experiment) else Experiment.model_validate(value)


def _first(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    fault = first_fault(error)
    where = ".".join(str(part) for part in fault.loc)
    return f"{where}: {fault.message}" if where else fault.message


# -- dotted names --------------------------------------------------------------------------------


def find_experiments(name: str, folder: Path) -> list[Experiment] | None:
    """Return the experiments of a dotted name: `experiments.mutualism` is every one of a file below
    `folder`, `experiments.mutualism.baseline` one of them. None when there is no such file.
    """
    parts = name.split(".")
    if not all(part.isidentifier() or part.replace("-", "_").isidentifier() for part in parts):
        return None
    for end in (len(parts), len(parts) - 1):
        if end < 1:
            continue
        base = folder.joinpath(*parts[:end])
        path = next((p for s in SUFFIXES if (p := Path(f"{base}{s}")).is_file()), None)
        if path is None:
            continue
        if path.suffix != ".py":
            document = read(path)
            if document.tree is not None and not is_experiment(document.tree):
                continue
            found = experiments_of(document, path)
        else:
            found = load_experiments(path)
        return found if end == len(parts) else [_by_name(found, parts[-1], path)]
    return None


def _by_name(found: list[Experiment], name: str, path: Path) -> Experiment:
    by_name = {each.name.rpartition(".")[2]: each for each in found}
    if name not in by_name:
        raise ProctorError(
            f"there is no experiment {name!r} here", where=str(path), hint=hint_among(name, by_name)
        )
    return by_name[name]
