"""Parameters of a template: typed, with defaults and bounds.

Given values are checked before anything is built, and normalised, so that `3` and `3.0` for a
number are one build and not two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from proctor.errors import ProctorError, did_you_mean, hint_among
from proctor.scenarios import _interpreter as functions
from proctor.scenarios._expressions import is_name
from proctor.scenarios._interpreter import RefusedError, Value, bounded, same_kind, shown
from proctor.spec.located import Problems, SourceLocation, Tree, plain
from proctor.spec.yaml_reader import FileDialect, read_text

TYPES = ("int", "float", "bool", "str", "choice", "list")

RESERVED = frozenset(("path", "seed", "out", "catalog", "cache", "params", "values"))
"""Names that `build` or expressions use themselves."""

_KEYS = ("type", "default", "min", "max", "of", "description")


class Param(NamedTuple):
    """One parameter. `default` may be an expression; None means that it must be given."""

    name: str
    type: str
    place: SourceLocation
    default: Tree | None = None
    min: float | None = None
    max: float | None = None
    of: tuple[Value, ...] = ()
    description: str | None = None

    def accepted(self, value: Any) -> Value:
        """Return the value as this type; raise `RefusedError` when it has another."""
        found = bounded(_CONVERSIONS[self.type](same_kind(value), self))
        if isinstance(found, int | float) and not isinstance(found, bool):
            low = self.min is not None and found < self.min
            high = self.max is not None and found > self.max
            if low or high:
                bounds = f"at least {self.min:g}" if low else f"at most {self.max:g}"
                raise RefusedError(f"must be {bounds}, got {found:g}")
        return found

    def from_text(self, text: str) -> Value:
        """Parse a value from the command line."""
        if self.type == "str":
            return self.accepted(text)
        if self.type == "choice":
            written = {_as_written(option): option for option in self.of}
            return self.accepted(written.get(text, text))
        # As YAML, so that a command and a file agree about `true`, `3` and `[1, 2]`.
        document = read_text(text, "--set", dialect=FileDialect(portable=True))
        return self.accepted(text if document.tree is None else plain(document.tree))


def accepted_params(params: Mapping[str, Param], given: Mapping[str, Any]) -> dict[str, Value]:
    """Return the given parameters, checked and sorted by name; raise `ProctorError` if wrong."""
    found: dict[str, Value] = {}
    # Sorted, so that the order in which they are given does not change the cache key.
    for name in sorted(given):
        if name not in params:
            known = f"it has {', '.join(params)}" if params else "it has no parameters"
            raise ProctorError(
                f"the template has no parameter {name!r}", hint=did_you_mean(name, params) or known
            )
        try:
            found[name] = params[name].accepted(given[name])
        except RefusedError as error:
            raise ProctorError(
                f"parameter {name!r}: {error.message}",
                where=str(params[name].place),
                hint=error.hint,
            ) from None
    return found


def params_from_text(params: Mapping[str, Param], texts: Mapping[str, str]) -> dict[str, Value]:
    """Parse parameters given as texts (`--set name=value`), each as its type."""
    found: dict[str, Any] = {}
    for name, text in texts.items():
        param = params.get(name)
        try:
            found[name] = text if param is None else param.from_text(text)
        except RefusedError as error:
            raise ProctorError(
                f"parameter {name!r}: {error.message}", where="--set", hint=error.hint
            ) from None
    return accepted_params(params, found)


# -- types ---------------------------------------------------------------------------------------


def _int(value: Value, param: Param) -> Value:
    if isinstance(value, bool | str | list | dict | None):
        raise RefusedError(f"expected a whole number, got {shown(value)}")
    return functions.whole(value)


def _bool(value: Value, param: Param) -> Value:
    if not isinstance(value, bool):
        raise RefusedError(f"expected true or false, got {shown(value)}")
    return value


def _choice(value: Value, param: Param) -> Value:
    for option in param.of:
        # In Python 1 equals true; here they are different options.
        if option == value and isinstance(option, bool) == isinstance(value, bool):
            return option
    options = [_as_written(option) for option in param.of]
    near = did_you_mean(value, options) if isinstance(value, str) else None
    raise RefusedError(f"must be one of {', '.join(options)}, got {shown(value)}", near)


_CONVERSIONS: Mapping[str, Callable[[Value, Param], Value]] = {
    "int": _int,
    "float": lambda value, _param: functions.real(value),
    "bool": _bool,
    "str": lambda value, _param: functions.text(value),
    "choice": _choice,
    "list": lambda value, _param: functions.items(value),
}


def _as_written(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


# -- reading -------------------------------------------------------------------------------------


def read_params(tree: Tree | None, problems: Problems) -> dict[str, Param]:
    """Return the parameters that a template declares; add mistakes to `problems`."""
    if tree is None or tree.value is None:
        return {}
    if not isinstance(tree.value, dict):
        problems.add(tree.place, "params is a mapping of names to types and defaults")
        return {}
    found: dict[str, Param] = {}
    for name, declared in tree.value.items():
        at = tree.keys.get(name, declared.place)
        if not is_name(name) or name in RESERVED:
            problems.add(at, f"{name!r} cannot be the name of a parameter")
        elif (param := _declared(name, declared, at, problems)) is not None:
            found[name] = param
    return found


def _declared(name: str, tree: Tree, at: SourceLocation, problems: Problems) -> Param | None:
    """Return a parameter from `name: {type: …}`, or from `name: default` in short."""
    if not isinstance(tree.value, dict):
        # bool before int: in Python a bool is an int.
        kinds = (bool, int, float, str, list) if tree.tag is None else ()
        kind = next((kind.__name__ for kind in kinds if isinstance(tree.value, kind)), None)
        if kind is None:
            message = f"the type of {name!r} is unknown"
            problems.add(tree.place, message, "write {type: int, default: …}")
            return None
        return Param(name, kind, at, tree)
    count = len(problems)
    for key, child in tree.value.items():
        if key not in _KEYS:
            hint = hint_among(key, _KEYS)
            problems.add(tree.keys[key], f"unknown key {key!r}", hint)
        elif key != "default" and any(part.tag for part in child.walk()):
            problems.add(child.place, f"{key} must be a plain value; only a default may be !ev")
    if len(problems) > count:
        return None
    return _long_form(name, tree, at, problems)


def _long_form(name: str, tree: Tree, at: SourceLocation, problems: Problems) -> Param | None:
    fields: dict[str, Any] = {
        key: plain(child)
        for key, child in cast("dict[str, Tree]", tree.value).items()
        if key != "default"
    }
    kind, of = fields.get("type"), fields.get("of")
    options = cast("list[Value]", of) if isinstance(of, list) else []
    if kind not in TYPES:
        place = (tree.child("type") or tree).place
        hint = hint_among(str(kind), TYPES)
        message = "the type is missing" if kind is None else f"there is no type {kind!r}"
        problems.add(place, message, hint)
        return None
    if (kind == "choice") != bool(options):
        problems.add(tree.place, "a choice, and nothing else, has a list `of` options")
        return None
    for key in ("min", "max"):
        bound = fields.get(key)
        if bound is not None and (
            kind not in ("int", "float")
            or isinstance(bound, bool)
            or not isinstance(bound, int | float)
        ):
            problems.add((tree.child(key) or tree).place, f"{key} is a number, for numbers")
            return None
    default = tree.child("default")
    param = Param(
        name, kind, at, default, fields.get("min"), fields.get("max"), tuple(options),
        fields.get("description"),
    )  # fmt: skip
    # A default with an expression is checked by the build, when its value is known.
    if default is not None and not any(part.tag for part in default.walk()):
        try:
            param.accepted(plain(default))
        except RefusedError as error:
            problems.add(default.place, f"the default {error.message}", error.hint)
    return param
