"""The values of a template: every `!ev` and `!ref` worked out, each when it is first asked for.

Promise: a value depends on the seed, the parameters and what it refers to, never on the order of
the file; what goes round in a circle is told with the circle; every problem has its place, and one
bad value does not hide the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, NoReturn, cast

from proctor.errors import did_you_mean
from proctor.formatting import clipped
from proctor.scenarios._expressions import ExpressionError
from proctor.scenarios._functions import RefusedError, Value, bounded
from proctor.scenarios._interpreter import Budget, Scope, UnknownNameError, evaluate
from proctor.scenarios._randomness import Place, RandomSource, Stream
from proctor.scenarios.params import Param
from proctor.spec.located import SourceLocation as FilePlace
from proctor.spec.located import SpecError, SpecProblem, Tree

EV, REF = "!ev", "!ref"
TAGS = (EV, REF)

LONGEST_QUOTE = 60
"""Characters of an expression that a message repeats."""


class FailedError(Exception):
    """A value that cannot be given, for a reason that is already told."""


class SeedNeededError(Exception):
    """A value that depends on the seed, asked for where there is none."""


class Operation(NamedTuple):
    """One thing that was worked out: where, and what stood there."""

    place: Place
    tag: str
    text: str


class Resolver:
    """The values of one template under one seed and one set of parameters.

    Without a source of randomness, what is drawn at random raises `SeedNeededError`.
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
        self.problems: list[SpecProblem] = []
        self.operations: dict[Place, Operation] = {}
        self._values: dict[Place, Value] = {}
        self._failed: set[Place] = set()
        self._asked: list[Place] = []

    # -- what callers ask for -------------------------------------------------------------------

    def section(self, *place: str) -> Tree | None:
        """A part of the template with everything in it worked out; None when there is none."""
        tree: Tree | None = self.root
        for step in place:
            tree = tree.child(step) if tree is not None else None
        return None if tree is None else self.resolved(tree, place)

    def resolved(self, tree: Tree, place: Place) -> Tree:
        """A tree with everything in it worked out; parts that cannot be are marked as broken."""
        try:
            self.budget.charge(1)
            if tree.tag is None and isinstance(tree.value, str):
                self.budget.made(tree.value)
        except RefusedError as error:
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
                self.problems.append(SpecProblem(tree.place, error.message, error.hint))
        return tree

    def param(self, name: str) -> Value:
        """The value of a parameter: as given, else its default, worked out."""
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
        """The values of all parameters; those that fail are left out and told."""
        found: dict[str, Value] = {}
        for name in self.params:
            try:
                found[name] = self.param(name)
            except FailedError:
                continue
        return found

    # -- values ---------------------------------------------------------------------------------

    def _leaf(self, tree: Tree, place: Place) -> Value:
        """The value of what has a tag; worked out once."""
        if place in self._values:
            return self._values[place]
        if place in self._failed:
            raise FailedError
        text = str(tree.value)
        if place in self._asked:
            circle = [*self._asked[self._asked.index(place) :], place]
            self._problem(tree.place, f"goes round in a circle: {' → '.join(map(dotted, circle))}")
        self._asked.append(place)
        try:
            value = self._worked_out(tree, text, place)
            self.budget.weigh(value)
        except ExpressionError as error:
            self._failed.add(place)
            self._problem(tree.place, _quoted(error, text), error.hint)
        except RefusedError as error:
            self._failed.add(place)
            self._problem(tree.place, error.message, error.hint)
        except FailedError:
            self._failed.add(place)
            raise
        finally:
            self._asked.pop()
        self._values[place] = value
        self.operations[place] = Operation(place, str(tree.tag), text)
        return value

    def _worked_out(self, tree: Tree, text: str, place: Place) -> Value:
        if tree.tag == REF:
            try:
                self.budget.enter()
                return self._referred(text.strip())
            finally:
                self.budget.depth -= 1
        scope = Scope(
            self._named, self._known, self._referred, lambda: self._stream(place), self.budget
        )
        return bounded(evaluate(text, scope))

    def _stream(self, place: Place) -> Stream:
        if self.source is None:
            raise SeedNeededError
        return self.source.stream(place)

    def _named(self, name: str) -> Value:
        """What a name stands for in an expression: a parameter, a named value, the seed."""
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
        """What a dotted path leads to, from the top of the template."""
        steps = path.split(".")
        if steps[0] == "params":
            return self._param_path(steps)
        if steps[0] == "names" and len(steps) > 1:
            return _inside(self._true_names(steps[1]), steps[2:], path)
        tree, place = self.root, cast("Place", ())
        for position, step in enumerate(steps):
            if tree.tag is not None:
                return _inside(self._leaf(tree, place), steps[position:], path)
            key: str | int = (
                int(step) if isinstance(tree.value, list) and step.isdecimal() else step
            )
            found = tree.child(key)
            if found is None:
                raise RefusedError(f"there is no {path!r}", _near(step, tree))
            tree, place = found, (*place, key)
        return self._plain(tree, place)

    def _true_names(self, group: str) -> Value:
        """The names of a group, as a list; in what is built, opaque ones take their place."""
        names = self.root.child("names")
        tree = names.child(group) if names is not None else None
        if tree is None or names is None:
            near = _near(group, names) if names is not None else None
            raise RefusedError(f"there are no names {group!r}", near)
        declared = self._plain(tree, ("names", group))
        if isinstance(declared, dict) and "count" in declared:
            return numbered(group, declared["count"])
        return declared.get("of") if isinstance(declared, dict) else declared

    def _param_path(self, steps: list[str]) -> Value:
        path = ".".join(steps)
        if len(steps) < 2 or steps[1] not in self.params:
            near = did_you_mean(steps[1], self.params) if len(steps) > 1 else None
            raise RefusedError(f"there is no parameter {path!r}", near)
        return _inside(self.param(steps[1]), steps[2:], path)

    def _plain(self, tree: Tree, place: Place) -> Value:
        """The bare value of a tree; each part is taken from the budget, however it was reached."""
        if tree.tag is not None:
            return self._leaf(tree, place)
        self.budget.charge(1)
        if isinstance(tree.value, dict | list):
            try:
                self.budget.enter()
                return self._members(tree.value, place)
            finally:
                self.budget.depth -= 1
        self.budget.made(tree.value)
        return tree.value

    def _members(self, value: dict[str, Tree] | list[Tree], place: Place) -> Value:
        if isinstance(value, dict):
            return {key: self._plain(item, (*place, key)) for key, item in value.items()}
        return [self._plain(item, (*place, at)) for at, item in enumerate(value)]

    def _problem(self, place: FilePlace, message: str, hint: str | None = None) -> NoReturn:
        self.problems.append(SpecProblem(place, message, hint))
        raise FailedError


MAX_NAMES = 1_000
"""Of a group that is only counted."""


def numbered(group: str, count: Value) -> Value:
    """True names for a group that gives none: `species_1` and so on."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_NAMES:
        raise RefusedError(f"names: the count of {group!r} must be 1 to {MAX_NAMES:,}")
    return [f"{group}_{number}" for number in range(1, count + 1)]


def dotted(place: Place) -> str:
    """A place as people write it."""
    return ".".join(str(step) for step in place)


def tree_of(value: Value, place: FilePlace) -> Tree:
    """A value as a tree whose every part is at one place."""
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
    return did_you_mean(step, tree.value) or f"there are {', '.join(list(tree.value)[:12])}"


def _quoted(error: ExpressionError, text: str) -> str:
    """The message with the part of the expression that it is about."""
    part = text[error.start : error.end].strip()
    if not part:
        return error.message
    return f"{error.message}, in `{clipped(part, LONGEST_QUOTE)}`"
