"""Evaluate every `!ev` and `!ref` of a template, each when it is first needed.

Guarantees: a value depends on the seed, the parameters and what it refers to, never on the order of
the file; a circular reference is reported with the circle; every problem has its place, and one bad
value does not hide the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, NoReturn, cast

from proctor.errors import did_you_mean
from proctor.formatting import clipped
from proctor.scenarios._expressions import ExpressionError
from proctor.scenarios._interpreter import (
    Budget,
    RefusedError,
    Scope,
    UnknownNameError,
    Value,
    bounded,
    evaluate,
)
from proctor.scenarios._randomness import Place, RandomSource, Stream
from proctor.scenarios.params import Param
from proctor.spec.located import Problems, SpecError, SpecProblem, Tree
from proctor.spec.located import SourceLocation as FilePlace

EV, REF = "!ev", "!ref"
TAGS = (EV, REF)

LONGEST_QUOTE = 60
"""Characters of an expression that a message repeats."""


class FailedError(Exception):
    """A value that cannot be evaluated, for a reason that is already reported."""


class SeedNeededError(Exception):
    """A value depends on the seed, and there is none."""


class Operation(NamedTuple):
    """One evaluated expression or reference, with its place in the template."""

    place: Place
    tag: str
    text: str


class Resolver:
    """The values of one template under one seed and one set of parameters.

    Without a source of randomness, a random draw raises `SeedNeededError`.
    """

    def __init__(
        self,
        root: Tree,
        params: Mapping[str, Param],
        given: Mapping[str, Value],
        source: RandomSource | None,
    ) -> None:
        self.root = root
        self.params = params
        self.given = given
        self.source = source
        self.budget = Budget()
        self.problems = Problems()
        self.operations: dict[Place, Operation] = {}
        self._values: dict[Place, Value] = {}
        self._failed: set[Place] = set()
        self._under_way: list[Place] = []

    # -- for callers ----------------------------------------------------------------------------

    def section(self, key: str) -> Tree | None:
        """Return a section of the template with all values evaluated; None when there is none."""
        tree = self.root.child(key)
        return None if tree is None else self.resolved(tree, (key,))

    def resolved(self, tree: Tree, place: Place) -> Tree:
        """Return a tree with all values evaluated; those that fail are marked as broken."""
        try:
            self.budget.charge(1)
            if tree.tag is None and isinstance(tree.value, str):
                self.budget.made(tree.value)
        except RefusedError as error:
            # The budget is that of the whole build: nothing else can be evaluated either.
            raise SpecError([SpecProblem(tree.place, error.message, error.hint)]) from None
        if tree.tag is not None:
            try:
                return tree_of(self._leaf(tree, place), tree.place)
            except FailedError:
                return Tree(tree.place, None, broken=True)
        if isinstance(tree.value, dict):
            items = {key: self.resolved(item, (*place, key)) for key, item in tree.value.items()}
            return replace(tree, value=items)
        if isinstance(tree.value, list):
            listed = [self.resolved(item, (*place, at)) for at, item in enumerate(tree.value)]
            return replace(tree, value=listed)
        if isinstance(tree.value, int | float):
            try:
                bounded(tree.value)
            except RefusedError as error:
                self.problems.add(tree.place, error.message, error.hint)
        return tree

    def param(self, name: str) -> Value:
        """Return the value of a parameter: as given, else its default, evaluated."""
        param = self.params[name]
        if name in self.given:
            return self.given[name]
        place: Place = ("params", name, "default")
        if place in self._values:
            return self._values[place]
        if param.default is None:
            self._problem(param.place, f"the parameter {name!r} is not given and has no default")
        value = self._plain(param.default, place)
        try:
            value = param.accepted(value)
        except RefusedError as error:
            self._problem(param.default.place, f"parameter {name!r}: {error.message}", error.hint)
        self._values[place] = value
        return value

    def every_param(self) -> dict[str, Value]:
        """Return the values of all parameters; those that fail are reported and left out."""
        found: dict[str, Value] = {}
        for name in self.params:
            with suppress(FailedError):
                found[name] = self.param(name)
        return found

    # -- values ---------------------------------------------------------------------------------

    def _leaf(self, tree: Tree, place: Place) -> Value:
        """Return the value of a tagged leaf; evaluated once."""
        if place in self._values:
            return self._values[place]
        if place in self._failed:  # reported once, however many values refer to it
            raise FailedError
        text = str(tree.value)
        if place in self._under_way:
            self._problem(tree.place, circle_message([*self._under_way, place]))
        self._under_way.append(place)
        try:
            value = self._evaluated(tree, text, place)
            self.budget.weigh(value)
        except (ExpressionError, RefusedError, FailedError) as error:
            self._failed.add(place)
            if isinstance(error, FailedError):
                raise
            quoted = isinstance(error, ExpressionError)
            message = quoted_message(error, text) if quoted else error.message
            self._problem(tree.place, message, error.hint)
        finally:
            self._under_way.pop()
        self._values[place] = value
        self.operations[place] = Operation(place, str(tree.tag), text)
        return value

    def _evaluated(self, tree: Tree, text: str, place: Place) -> Value:
        if tree.tag == REF:
            try:
                self.budget.enter()
                return self._referred(text.strip())
            finally:
                self.budget.depth -= 1
        # A stream is made only for a draw: without a seed, only a draw is an error.
        scope = Scope(
            self._named, self._known, self._referred, lambda: self._stream(place), self.budget
        )
        return bounded(evaluate(text, scope))

    def _stream(self, place: Place) -> Stream:
        if self.source is None:
            raise SeedNeededError
        return self.source.stream(place)

    def _named(self, name: str) -> Value:
        """Return the value of a name in an expression: a parameter, a named value, the seed."""
        if name in self.params:
            return self.param(name)
        values = self.root.child("values")
        found = values.child(name) if values is not None else None
        if found is not None:
            return self._plain(found, ("values", name))
        if name == "seed":
            if self.source is None:
                raise SeedNeededError
            return self.source.seed
        raise UnknownNameError(name)

    def _known(self) -> list[str]:
        values = self.root.child("values")
        named = values.value if values is not None and isinstance(values.value, dict) else {}
        return [*self.params, *named, "seed"]

    def _referred(self, path: str) -> Value:
        """Return the value at a dotted path from the top of the template."""
        steps = path.split(".")
        if steps[0] == "params":
            if len(steps) < 2 or steps[1] not in self.params:
                near = did_you_mean(steps[1], self.params) if len(steps) > 1 else None
                raise RefusedError(f"there is no parameter {path!r}", near)
            return _inside(self.param(steps[1]), steps[2:], path)
        if steps[0] == "names" and len(steps) > 1:
            return _inside(self._true_names(steps[1]), steps[2:], path)
        tree, place = self.root, cast("Place", ())
        for position, step in enumerate(steps):
            if tree.tag is not None:
                return _inside(self._leaf(tree, place), steps[position:], path)
            key = step_key(tree, step)
            found = tree.child(key)
            if found is None:
                raise RefusedError(f"there is no {path!r}", _near(step, tree))
            tree, place = found, (*place, key)
        return self._plain(tree, place)

    def _true_names(self, group: str) -> Value:
        """Return the true names of a group; the build replaces them by opaque ones."""
        names = self.root.child("names")
        tree = names.child(group) if names is not None else None
        if tree is None or names is None:
            near = _near(group, names) if names is not None else None
            raise RefusedError(f"there are no names {group!r}", near)
        declared = self._plain(tree, ("names", group))
        if isinstance(declared, dict) and "count" in declared:
            return numbered(group, declared["count"])
        return declared.get("of") if isinstance(declared, dict) else declared

    def _plain(self, tree: Tree, place: Place) -> Value:
        """Return the bare value of a tree; every part is charged, each time it is reached."""
        if tree.tag is not None:
            return self._leaf(tree, place)
        self.budget.charge(1)
        if not isinstance(tree.value, dict | list):
            return self.budget.made(tree.value)
        try:
            self.budget.enter()
            if isinstance(tree.value, dict):
                return {key: self._plain(item, (*place, key)) for key, item in tree.value.items()}
            return [self._plain(item, (*place, at)) for at, item in enumerate(tree.value)]
        finally:
            self.budget.depth -= 1

    def _problem(self, place: FilePlace, message: str, hint: str | None = None) -> NoReturn:
        self.problems.add(place, message, hint)
        raise FailedError


MAX_NAMES = 1_000
"""Maximum names of a group that is given by its count."""


def numbered(group: str, count: Value) -> Value:
    """Return true names for a group that gives none: `species_1` and so on."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_NAMES:
        raise RefusedError(f"names: the count of {group!r} must be 1 to {MAX_NAMES:,}")
    return [f"{group}_{number}" for number in range(1, count + 1)]


def dotted(place: Place) -> str:
    """Return a place as it is written in references."""
    return ".".join(str(step) for step in place)


def circle_message(path: list[Place]) -> str:
    """Describe the circle that ends a path: from the first visit of its last place."""
    circle = path[path.index(path[-1]) :]
    return f"circular reference: {' → '.join(map(dotted, circle))}"


def step_key(tree: Tree, step: str) -> str | int:
    """Return the key of one step of a reference: a position where the tree is a list."""
    return int(step) if isinstance(tree.value, list) and step.isdecimal() else step


def tree_of(value: Value, place: FilePlace) -> Tree:
    """Return a value as a tree whose every part is at one place."""
    if isinstance(value, dict):
        inner = {key: tree_of(item, place) for key, item in value.items()}
        return Tree(place, inner, dict.fromkeys(inner, place))
    if isinstance(value, list):
        return Tree(place, [tree_of(item, place) for item in value])
    return Tree(place, value)


def _inside(value: Value, steps: list[str], path: str) -> Value:
    for step in steps:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            near = did_you_mean(step, value) if isinstance(value, dict) else None
            raise RefusedError(f"there is no {path!r}", near)
    return value


def _near(step: str, tree: Tree) -> str | None:
    if not isinstance(tree.value, dict):
        return None
    return did_you_mean(step, tree.value) or f"known: {', '.join(list(tree.value)[:12])}"


def quoted_message(error: ExpressionError, text: str) -> str:
    """Return the message with the part of the expression that is at fault."""
    part = text[error.start : error.end].strip()
    if not part:
        return error.message
    return f"{error.message}, in `{clipped(part, LONGEST_QUOTE)}`"
