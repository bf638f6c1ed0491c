"""From a file to a `Suite`, or to every reason why it is none.

Reading, merging, checking and cross-checking each add their problems to one list; a user who
mends what is listed is done.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from proctor.agents.registry import UnknownAgentError, kind_class
from proctor.imports import IMPORT_PATH
from proctor.spec.data import tree_of
from proctor.spec.ids import slug
from proctor.spec.located import validated
from proctor.spec.models import (
    CASE_SPELLINGS,
    SUITE_SPELLINGS,
    Suite,
    cases_of,
    repeated_ids,
)
from proctor.spec.problems import Place, Problem, SpecError
from proctor.spec.reader import Document, read
from proctor.spec.tree import Tree, merged, plain, renamed, replace_content


def load_suite(
    path: str | Path, *, need_agent: bool = True, environ: Mapping[str, str] | None = None
) -> Suite:
    """Read a suite; `SpecError` holds every problem with its place.

    `need_agent=False` is for those who bring recorded traces, or an agent from elsewhere.
    """
    path = Path(path)
    return suite_of(read(path, environ=environ), path, need_agent=need_agent)


def suite_of(document: Document, path: Path, *, need_agent: bool = True) -> Suite:
    """The suite of a file that was read already."""
    suite, tree = _checked(document, need_agent=need_agent)
    suite.came_from(tree, path.parent, path)
    return suite


def restore_suite(
    record: Any, *, folder: Path, name: str, environ: Mapping[str, str] | None = None
) -> Suite:
    """A suite from what `Suite.resolved` gave, its environment variables read anew.

    `folder` is what its relative paths start from, `name` is where problems are told to be.
    """
    problems: list[Problem] = []
    place = Place(name)
    environ = os.environ if environ is None else environ
    tree = tree_of(record, lambda _: place, environ, problems)
    suite, tree = _checked(Document(tree, problems), need_agent=False)
    suite.came_from(tree, folder)
    return suite


def _checked(document: Document, *, need_agent: bool) -> tuple[Suite, Tree]:
    problems = document.problems
    if document.tree is None:
        raise SpecError(problems)
    if document.tree.value is None:
        hint = "`proctor init` writes a suite to start from"
        raise SpecError([*problems, Problem(document.tree.place, "there is nothing in it", hint)])
    tree = prepared(document.tree)
    suite = validated(tree, Suite, problems)
    problems.extend(_across(tree, need_agent=need_agent))
    if problems or suite is None:
        raise SpecError(problems)
    return suite, tree


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
    items = [_with_id(case) for case in items]
    return replace_content(tree, {**tree.value, "cases": replace_content(cases, list(items))})


def _with_id(case: Tree) -> Tree:
    """A case with an id: its own, or one made from its input as written, variables unread."""
    own, asked = case.child("id"), case.child("input")
    if not isinstance(case.value, dict) or asked is None or asked.value is None:
        return case
    if (own is not None and own.value is not None) or any(part.broken for part in asked.walk()):
        return case
    made = Tree(case.place, slug(plain(asked, as_written=True)))
    return replace_content(case, {**case.value, "id": made})


def _across(tree: Tree, *, need_agent: bool) -> list[Problem]:
    """What can be wrong with a suite as a whole, told even when parts of it cannot be read."""
    if not isinstance(tree.value, dict):
        return []
    problems: list[Problem] = []
    cases = cases_of(tree)
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
                tree.place,
                "no agent: say what is under test",
                "add `agent: package.module:function`",
            )
        )
    for agent in _agents(tree):
        problems.extend(agent_problems(agent))
    return problems


def _agents(tree: Tree) -> Iterator[Tree]:
    """The agents that are written with a kind and its options."""
    one, several = tree.child("agent"), tree.child("agents")
    for agent in (one, *(several.children() if several is not None else ())):
        if agent is not None and agent.child("kind") is not None:
            yield agent


def agent_problems(agent: Tree) -> list[Problem]:
    """The options of an agent, held against its kind."""
    kind = agent.child("kind")
    if kind is None or kind.broken or not isinstance(kind.value, str):
        return []
    try:
        options = kind_class(kind.value)
    except UnknownAgentError as error:
        return [Problem(kind.place, error.message, error.hint)]
    problems: list[Problem] = []
    validated(agent, options, problems)
    target = agent.child("target")
    text = target.value if kind.value == "python" and target is not None else None
    if target is not None and isinstance(text, str) and not re.fullmatch(IMPORT_PATH, text):
        message = f"{target.written or text!r} is not an import path such as package.module:name"
        problems.append(Problem(target.place, message))
    return problems


def _twice(tree: Tree, spellings: Mapping[str, str]) -> list[Problem]:
    """A key and its other spelling side by side."""
    return [
        Problem(tree.keys[other], f"write `{key}` or `{other}`, not both")
        for other, key in spellings.items()
        if other in tree.keys and key in tree.keys
    ]


def _id(case: Tree) -> str:
    found = case.child("id")
    return str(found.value) if found is not None and found.value is not None else ""


def _given(tree: Tree, key: str) -> bool:
    found = tree.child(key)
    return found is not None and (found.broken or found.value not in (None, "", {}, []))
