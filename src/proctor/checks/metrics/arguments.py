"""When the arguments of two calls of a tool count as the same.

Arguments are compared as JSON values: 1 equals 1.0, a boolean equals only a boolean, a mapping
equals its JSON text, the order of keys does not matter, and no arguments (None, "") are `{}`.
A rule compares (actual, reference) in that order, in every match mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, NamedTuple, cast

import msgspec

from proctor.errors import ProctorError, did_you_mean

ArgumentMode = Literal["exact", "ignore", "subset", "superset"]
ArgumentRule = ArgumentMode | Sequence[str] | Callable[[Any, Any], bool]
"""A mode, the dotted paths to compare, or a function (actual, reference) → bool."""


class _Token(Enum):
    """Parts of a canonical form that no JSON value can be mistaken for."""

    MAPPING = 1
    LIST = 2
    END = 3
    TRUE = 4
    FALSE = 5
    NAN = 6
    ABSENT = 7


ABSENT = _Token.ABSENT
"""The value of an argument, in a difference, on the side that does not have it."""


class ArgumentDifference(NamedTuple):
    """One argument that differs from the reference; `ABSENT` where a side lacks it."""

    path: str
    actual: Any
    reference: Any


def decoded(arguments: Any) -> Any:
    """Return arguments as values: JSON objects and arrays are parsed, None and "" are `{}`."""
    if arguments is None:
        return {}
    if not isinstance(arguments, str):
        return arguments
    text = arguments.strip()
    if not text:
        return {}
    if text[0] in "{[":
        try:
            return _decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return arguments
    return arguments


def canonical(arguments: Any) -> Hashable:
    """Return a key that two sets of arguments share exactly when they are equal."""
    return _flat(decoded(arguments))


_decode = msgspec.json.Decoder().decode


def _flat(value: Any) -> Hashable:
    """Return a value as a flat tuple of tokens: without nesting, no depth is too deep."""
    value = _plain(value)
    if not isinstance(value, Mapping | list):
        return value
    tokens: list[Hashable] = []
    left: list[Any] = [value]
    while left:
        item = _plain(left.pop())
        if isinstance(item, Mapping):
            mapping = {_key(k): v for k, v in cast("Mapping[Any, Any]", item).items()}
            tokens.append(_Token.MAPPING)
            left.append(_Token.END)
            for key in sorted(mapping, reverse=True):
                left.append(mapping[key])
                left.append(key)
        elif isinstance(item, list):
            tokens.append(_Token.LIST)
            left.append(_Token.END)
            left.extend(reversed(cast("list[Any]", item)))
        else:
            tokens.append(item)
    return tuple(tokens)


class _Opaque(NamedTuple):
    """A value JSON has no form for, by its type and its text."""

    kind: str
    text: str


def _plain(value: Any) -> Any:
    """Return a mapping or list unchanged, anything else as a hashable token."""
    kind = cast("type[Any]", type(value))
    # The common types first, by identity: this runs for every value of every call.
    if kind is str or kind is int or kind is dict or kind is list or value is None:
        return value
    if kind is bool:
        return _Token.TRUE if value else _Token.FALSE
    if isinstance(value, float):
        return _Token.NAN if math.isnan(value) else float(value)
    if isinstance(value, _Token | Mapping | _Opaque):
        return cast("Any", value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, tuple):
        return list(cast("tuple[Any, ...]", value))
    if isinstance(value, set | frozenset):
        # By repr, since the items of a set may have no order among each other.
        return sorted(cast("set[Any]", value), key=repr)
    try:
        built = msgspec.to_builtins(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        built = value
    return (
        built if type(built) in (str, int, dict, list) else _Opaque(kind.__qualname__, repr(value))
    )


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    # Keys as JSON writes them, so that a mapping equals its JSON text.
    return {True: "true", False: "false"}[key] if isinstance(key, bool) else str(key)


class ExactRule:
    """Equality of all arguments: the rule `exact`, and what the other rules vary.

    `view` prepares one call's arguments once, and `accepts` compares an actual view with a
    reference view. `by_key` says that only equal views match. Where views are `hashable`, calls
    with equal ones are paired before anything else is tried. That never spoils the best pairing
    under a reflexive and transitive relation; a user's function may be neither.
    """

    name = "exact"
    by_key = True
    hashable = True

    def view(self, arguments: Any) -> Any:
        """Return one call's arguments in a form for `accepts`."""
        return canonical(arguments)

    def accepts(self, actual: Any, reference: Any) -> bool:
        """Return whether an actual view matches a reference view."""
        return actual == reference

    def same(self, actual: Any, reference: Any) -> bool:
        """Return whether actual arguments match reference arguments."""
        # Recorded arguments are mostly texts, written alike on both sides.
        if self.hashable and type(actual) is str and actual == reference:
            return True
        return self.accepts(self.view(actual), self.view(reference))

    def differences(self, actual: Any, reference: Any) -> tuple[ArgumentDifference, ...]:
        """Return the arguments because of which the rule rejects this pair."""
        return tuple(_differences(decoded(actual), decoded(reference)))


class _Ignore(ExactRule):
    name = "ignore"

    def view(self, arguments: Any) -> Any:
        return None

    def differences(self, actual: Any, reference: Any) -> tuple[ArgumentDifference, ...]:
        return ()


class _Subset(ExactRule):
    name = "subset"
    by_key = False
    # Which side may lack arguments the other has.
    may_lack = "actual"

    def view(self, arguments: Any) -> Any:
        value = decoded(arguments)
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return frozenset((_key(key), _flat(item)) for key, item in items)
        return _flat(value)

    def accepts(self, actual: Any, reference: Any) -> bool:
        if isinstance(actual, frozenset) and isinstance(reference, frozenset):
            return self.contains(
                cast("frozenset[Hashable]", actual), cast("frozenset[Hashable]", reference)
            )
        return actual == reference

    def contains(self, actual: frozenset[Hashable], reference: frozenset[Hashable]) -> bool:
        return actual <= reference

    def differences(self, actual: Any, reference: Any) -> tuple[ArgumentDifference, ...]:
        found = _differences(decoded(actual), decoded(reference), deep=False)
        return tuple(d for d in found if getattr(d, self.may_lack) is not ABSENT)


class _Superset(_Subset):
    name = "superset"
    may_lack = "reference"

    def contains(self, actual: frozenset[Hashable], reference: frozenset[Hashable]) -> bool:
        return actual >= reference


class _Keys(ExactRule):
    name = "keys"

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)

    def view(self, arguments: Any) -> Any:
        value = decoded(arguments)
        return tuple(_flat(look_up(value, path)) for path in self.paths)

    def differences(self, actual: Any, reference: Any) -> tuple[ArgumentDifference, ...]:
        left, right = decoded(actual), decoded(reference)
        found = [(path, look_up(left, path), look_up(right, path)) for path in self.paths]
        return tuple(ArgumentDifference(p, a, r) for p, a, r in found if _flat(a) != _flat(r))


class _Custom(ExactRule):
    name = "custom"
    by_key = False
    hashable = False

    def __init__(self, function: Callable[[Any, Any], bool]) -> None:
        self.function = function

    def view(self, arguments: Any) -> Any:
        return decoded(arguments)

    def accepts(self, actual: Any, reference: Any) -> bool:
        return bool(self.function(actual, reference))


_MODES: dict[str, type[ExactRule]] = {
    "exact": ExactRule,
    "ignore": _Ignore,
    "subset": _Subset,
    "superset": _Superset,
}


def read_rule(rule: ArgumentRule | ExactRule, where: str = "arguments") -> ExactRule:
    """Return the rule a user wrote: a mode, dotted paths, or a function (actual, reference)."""
    if isinstance(rule, ExactRule):
        return rule
    if isinstance(rule, str):
        if rule in _MODES:
            return _MODES[rule]()
        raise ProctorError(
            f"unknown argument mode {rule!r}",
            where=where,
            hint=did_you_mean(rule, _MODES) or f"one of {', '.join(_MODES)}, or a list of paths",
        )
    if callable(rule):
        return _Custom(rule)
    if isinstance(rule, Sequence) and all(isinstance(path, str) and path for path in rule):  # pyright: ignore[reportUnnecessaryIsInstance]
        return _Keys(rule)
    raise ProctorError(
        f"arguments are compared by a mode, a list of paths or a function, not by {rule!r}",
        where=where,
        hint=f"one of {', '.join(_MODES)}, or a list such as [query, options.limit]",
    )


class ArgumentRules:
    """The rule for the arguments of each tool: a default, and exceptions by tool."""

    def __init__(
        self,
        default: ArgumentRule | ExactRule = "exact",
        tools: Mapping[str, ArgumentRule | ExactRule] | None = None,
    ) -> None:
        self.default = read_rule(default)
        self.tools = {
            name: read_rule(rule, f"arguments.{name}") for name, rule in (tools or {}).items()
        }

    def of(self, tool: str) -> ExactRule:
        """Return the rule of one tool."""
        return self.tools.get(tool, self.default) if self.tools else self.default


def look_up(value: Any, path: str) -> Any:
    """Return the value at a dotted path (`filter.city`, `items.0.id`), or `ABSENT`.

    A key that contains dots itself is looked up by its whole name first.
    """
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        if path in mapping:
            return mapping[path]
        head, dot, rest = path.partition(".")
        return look_up(mapping[head], rest) if dot and head in mapping else ABSENT
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        head, dot, rest = path.partition(".")
        # Longer numbers are no index, and int() refuses thousands of digits.
        if head.isdecimal() and head.isascii() and len(head) < 10 and int(head) < len(items):
            return look_up(items[int(head)], rest) if dot else items[int(head)]
    return ABSENT


# More differences than this inside one call are of no use in a report.
_MAX_DIFFERENCES = 50
# Values nested deeper than this are reported as a whole.
_MAX_DEPTH = 20


def _differences(
    actual: Any, reference: Any, path: str = "", *, deep: bool = True, depth: int = 0
) -> list[ArgumentDifference]:
    open_up = (deep or not path) and depth < _MAX_DEPTH
    if open_up and isinstance(actual, Mapping) and isinstance(reference, Mapping):
        left = {_key(k): v for k, v in cast("Mapping[Any, Any]", actual).items()}
        right = {_key(k): v for k, v in cast("Mapping[Any, Any]", reference).items()}
        names = [*right, *(name for name in left if name not in right)]
        sides = [(name, left.get(name, ABSENT), right.get(name, ABSENT)) for name in names]
    elif open_up and isinstance(actual, list | tuple) and isinstance(reference, list | tuple):
        items, others = cast("Sequence[Any]", actual), cast("Sequence[Any]", reference)
        if len(items) != len(others):
            return _leaf(path, actual, reference)
        sides = [(str(n), a, r) for n, (a, r) in enumerate(zip(items, others, strict=True))]
    else:
        return _leaf(path, actual, reference)
    found: list[ArgumentDifference] = []
    for name, a, r in sides:
        inner = f"{path}.{name}" if path else name
        if a is ABSENT or r is ABSENT:
            found.append(ArgumentDifference(inner, a, r))
        else:
            found += _differences(a, r, inner, deep=deep, depth=depth + 1)
        if len(found) >= _MAX_DIFFERENCES:
            break
    return found[:_MAX_DIFFERENCES]


def _leaf(path: str, actual: Any, reference: Any) -> list[ArgumentDifference]:
    equal = _flat(actual) == _flat(reference)
    return [] if equal else [ArgumentDifference(path, actual, reference)]
