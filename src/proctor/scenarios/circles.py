"""References that lead back to themselves, found when a template is read.

Promise: a circle of `!ref`s is told whether or not anything uses it. What an expression refers to
may depend on a condition, so circles through `!ev` are told when they are walked, by the build.
"""

from __future__ import annotations

from collections.abc import Iterator

from proctor.scenarios.randomness import Place
from proctor.scenarios.resolve import dotted
from proctor.spec.problems import Problem
from proctor.spec.tree import Tree

MOST_PARTS = 200_000
"""Parts of a template that are looked at, aliases counted at each use: a build takes no more."""


def circle_problems(root: Tree, tag: str) -> list[Problem]:
    """One problem for each circle of references with this tag that is met first."""
    if root.size > MOST_PARTS:
        return []  # the build refuses it
    leaves = dict(_leaves(root, (), tag))
    done: set[Place] = set()
    left = MOST_PARTS
    problems: list[Problem] = []
    for start in leaves:
        path: dict[Place, None] = {}
        waiting = [iter([start])]
        while waiting and left:
            place = next(waiting[-1], None)
            left -= 1
            if place is None:
                waiting.pop()
                if path:
                    done.add(path.popitem()[0])
            elif place in path:
                problems.append(_problem([*path, place], leaves[place]))
                done.update(path)
                break
            elif place not in done:
                path[place] = None
                waiting.append(_targets(str(leaves[place].value), root, tag))
    return problems


def _problem(walked: list[Place], leaf: Tree) -> Problem:
    circle = walked[walked.index(walked[-1]) :]
    return Problem(leaf.place, f"goes round in a circle: {' → '.join(map(dotted, circle))}")


def _targets(text: str, root: Tree, tag: str) -> Iterator[Place]:
    """The leaves that must be worked out for a reference."""
    tree, place = root, ()
    for step in text.strip().split("."):
        if tree.tag is not None:
            break
        key: str | int = int(step) if isinstance(tree.value, list) and step.isdecimal() else step
        found = tree.child(key)
        if found is None:
            return  # told when it is used; parameters and names are no circle of references
        tree, place = found, (*place, key)
    for inside, _ in _leaves(tree, place, tag):
        yield inside


def _leaves(tree: Tree, place: Place, tag: str) -> Iterator[tuple[Place, Tree]]:
    waiting: list[tuple[Place, Tree]] = [(place, tree)]
    while waiting:
        at, part = waiting.pop()
        if part.tag == tag:
            yield at, part
        elif isinstance(part.value, dict):
            waiting += [((*at, key), each) for key, each in reversed(part.value.items())]
        elif isinstance(part.value, list):
            waiting += [((*at, key), each) for key, each in reversed([*enumerate(part.value)])]
