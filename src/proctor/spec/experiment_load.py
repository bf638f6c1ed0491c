"""From a file to the experiments in it, or to every reason why it holds none.

A YAML file holds one experiment, or several under `experiments` (a mapping by name, or a list)
with what they share beside it. A Python file holds `experiment` or `experiments`: an `Experiment`,
several, or a function that returns them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from proctor.errors import ProctorError, hint_among
from proctor.imports import load_module
from proctor.spec.experiment import Experiment
from proctor.spec.ids import same_id
from proctor.spec.load import agent_problems
from proctor.spec.located import first_fault, validated
from proctor.spec.problems import Place, Problem, SpecError
from proctor.spec.reader import Document, read
from proctor.spec.tree import Tree, merged, replace_content

MANY = "experiments"
"""The key of a file, or the name in a module, that holds several."""

_OF_EXPERIMENTS = {"seeds", "params", "sample", "exclude", "set", "output", "limits", "filter"}
_OF_SUITES = {"queries", "defaults", "baselines", "agent"}

SUFFIXES = (".yaml", ".yml", ".json", ".py")


def is_experiment(tree: Tree) -> bool:
    """Whether a file holds experiments rather than a suite: by what its cases are."""
    if not isinstance(tree.value, dict):
        return False
    keys = set(tree.value)
    if MANY in keys:
        return True
    cases = tree.value.get("cases")
    if cases is not None and isinstance(cases.value, str):
        return True
    if cases is not None and isinstance(cases.value, list) and cases.value:
        return all(
            isinstance(item.value, str)
            or (isinstance(item.value, dict) and not {"input", "query"} & set(item.value))
            for item in cases.value
        ) and any(isinstance(i.value, str) or i.child("suite") is not None for i in cases.value)
    return len(keys & _OF_EXPERIMENTS) > len(keys & _OF_SUITES)


def load_experiments(
    path: str | Path, *, environ: Mapping[str, str] | None = None
) -> list[Experiment]:
    """Every experiment of a file, in its order; `SpecError` holds every problem with its place."""
    path = Path(path)
    if path.suffix == ".py":
        return _from_python(path)
    return experiments_of(read(path, environ=environ), path)


def experiments_of(document: Document, path: Path) -> list[Experiment]:
    """The experiments of a file that was read already."""
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


def _bodies(tree: Tree, path: Path, problems: list[Problem]) -> list[Tree]:
    """The tree of each experiment, with its name and what the file's experiments share."""
    if not isinstance(tree.value, dict):
        problems.append(Problem(tree.place, "an experiment is a mapping of names to values"))
        return []
    many = tree.value.get(MANY)
    if many is None:
        return [_named(tree, path.stem)]
    rest = {key: part for key, part in tree.value.items() if key != MANY}
    keys = {key: place for key, place in tree.keys.items() if key != MANY}
    shared = replace_content(tree, rest, keys)
    bodies: list[Tree] = []
    seen: dict[str, Place] = {}
    for name, body in _members(many, problems):
        if not isinstance(body.value, dict):
            problems.append(Problem(body.place, "an experiment is a mapping of names to values"))
            continue
        first = seen.setdefault(same_id(name), body.place)
        if first is not body.place:
            hint = f"the other is on line {first.line}"
            problems.append(Problem(body.place, f"the experiment {name!r} is there twice", hint))
        # A name of the file is what its experiments' names begin with.
        own = shared.child("name")
        prefix = str(own.value) if own is not None and own.value else path.stem
        base = replace_content(shared, {k: v for k, v in rest.items() if k != "name"})
        bodies.append(_with_name(merged(base, body), f"{prefix}.{name}"))
    if not bodies and not problems:
        problems.append(Problem(many.place, "there is no experiment here"))
    return bodies


def _members(many: Tree, problems: list[Problem]) -> list[tuple[str, Tree]]:
    if isinstance(many.value, dict):
        return list(many.value.items())
    if not isinstance(many.value, list):
        message = "experiments are a mapping by name, or a list with a `name` in each"
        problems.append(Problem(many.place, message))
        return []
    named: list[tuple[str, Tree]] = []
    for item in many.value:
        name = item.child("name")
        if name is None or not isinstance(name.value, str):
            problems.append(Problem(item.place, "the key 'name' is missing"))
        else:
            named.append((name.value, item))
    return named


def _named(tree: Tree, name: str) -> Tree:
    return tree if tree.child("name") is not None else _with_name(tree, name)


def _with_name(tree: Tree, name: str) -> Tree:
    assert isinstance(tree.value, dict)
    place = tree.keys.get("name", tree.place)
    keys = {**tree.keys, "name": place}
    return replace_content(tree, {**tree.value, "name": Tree(place, name)}, keys)


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
            "the file gives no experiment",
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
    """The experiments of a dotted name: `experiments.mutualism` is every one of a file below
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
            f"there is no experiment {name!r} here",
            where=str(path),
            hint=hint_among(name, by_name),
        )
    return by_name[name]
