"""From a file to a `Suite`, or to every reason why it is none.

Reading, merging, checking and cross-checking each add their problems to one list; a user who
mends what is listed is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proctor.spec.ids import slug
from proctor.spec.located import validated
from proctor.spec.models import (
    CASE_SPELLINGS,
    SUITE_SPELLINGS,
    Suite,
    repeated_ids,
)
from proctor.spec.problems import Place, Problem, SpecError
from proctor.spec.reader import read
from proctor.spec.tree import Tree, merged, plain, renamed, replace_content


def load_suite(
    path: str | Path, *, need_agent: bool = True, environ: Mapping[str, str] | None = None
) -> Suite:
    """Read a suite; `SpecError` holds every problem with its place.

    `need_agent=False` is for those who bring recorded traces, or an agent from elsewhere.
    """
    path = Path(path)
    document = read(path, environ=environ)
    problems = document.problems
    if document.tree is None:
        raise SpecError(problems)
    tree = prepared(document.tree)
    suite = validated(tree, Suite, problems)
    problems.extend(_across(tree, need_agent=need_agent))
    if problems or suite is None:
        raise SpecError(problems)
    for case, written in zip(suite.cases, _cases(tree), strict=True):
        case.put(written.place)
    suite.came_from(path, tree)
    return suite


def prepared(tree: Tree) -> Tree:
    """A suite's tree with accepted spellings replaced and defaults merged into each case.

    The models do the same to what comes from Python; done here first, each part keeps its place.
    """
    tree = renamed(tree, SUITE_SPELLINGS)
    if not isinstance(tree.value, dict):
        return tree
    cases = tree.value.get("cases")
    if cases is None or not isinstance(cases.value, list):
        return tree
    defaults = tree.value.get("defaults")
    items = [renamed(case, CASE_SPELLINGS) for case in cases.value]
    if defaults is not None and isinstance(defaults.value, dict):
        # A case takes nothing from defaults that could only ever belong to one case.
        shared = {k: v for k, v in defaults.value.items() if k not in ("id", "input", "query")}
        base = replace_content(defaults, shared)
        items = [merged(base, case) if isinstance(case.value, dict) else case for case in items]
    return replace_content(tree, {**tree.value, "cases": replace_content(cases, list(items))})


def _across(tree: Tree, *, need_agent: bool) -> list[Problem]:
    """What can be wrong with a suite as a whole, told even when parts of it cannot be read."""
    if not isinstance(tree.value, dict):
        return []
    problems: list[Problem] = []
    cases = _cases(tree)
    problems.extend(_twice(tree, SUITE_SPELLINGS))
    for case in cases:
        problems.extend(_twice(case, CASE_SPELLINGS))
    for fault in repeated_ids([_id(case) for case in cases]):
        case = cases[int(fault.loc[1])]
        at = case.child("id") or case
        problems.append(Problem(at.place, fault.message, fault.hint))
    if need_agent and not any(_given(tree, key) for key in ("agent", "agents")):
        problems.append(
            Problem(
                Place(tree.place.file, tree.place.line, tree.place.column),
                "no agent: say what is under test",
                "add `agent: package.module:function`",
            )
        )
    return problems


def _twice(tree: Tree, spellings: Mapping[str, str]) -> list[Problem]:
    """A key and its other spelling side by side."""
    return [
        Problem(tree.keys[other], f"write `{key}` or `{other}`, not both")
        for other, key in spellings.items()
        if other in tree.keys and key in tree.keys
    ]


def _cases(tree: Tree) -> list[Tree]:
    cases = tree.child("cases")
    return cases.value if cases is not None and isinstance(cases.value, list) else []


def _id(case: Tree) -> str:
    own, asked = case.child("id"), case.child("input")
    if own is not None and own.value is not None:
        return str(own.value)
    return slug(plain(asked)) if asked is not None and asked.value is not None else ""


def _given(tree: Tree, key: str) -> bool:
    found = tree.child(key)
    return found is not None and (found.broken or found.value not in (None, "", {}, []))
