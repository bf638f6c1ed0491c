"""Conditions on one value of the document of a trace, found by a JMESPath expression.

Promise: expression, functions and patterns are checked when they are written, not when they
first run; several operators in one entry must all hold; values compare as JSON values do
(1 equals 1.0, true is not 1). What a document is, is told in `view`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self, cast

from pydantic import Field, model_validator

from proctor.checks.fields import refused
from proctor.checks.metrics.arguments import canonical
from proctor.checks.metrics.matching import shortened
from proctor.checks.text import check_pattern, normalised, search, shown
from proctor.errors import ProctorError, did_you_mean
from proctor.strict import Strict

OPERATORS = ("eq", "ne", "gt", "gte", "lt", "lte", "contains", "regex", "exists")


class Operators(Strict):
    """What must hold of a value; at least one operator, all of which must hold."""

    path: str = Field(min_length=1)
    """A JMESPath expression over the trace's document, such as `length(tool_calls)`."""
    eq: Any = None
    """Equals, as JSON values do; `null` asks for a value that is null or absent."""
    ne: Any = None
    """Differs from."""
    gt: int | float | str | None = None
    """Is more than; numbers with numbers, texts with texts (dates in ISO form, say)."""
    gte: int | float | str | None = None
    """Is at least."""
    lt: int | float | str | None = None
    """Is less than."""
    lte: int | float | str | None = None
    """Is at most."""
    contains: Any = None
    """A text contains this text, a list this item, a mapping this key."""
    regex: str | None = None
    """A regular expression is found in the value (a text, or the JSON of anything else)."""
    exists: bool | None = None
    """Whether there is a value: anything but null."""
    case_sensitive: bool = False
    """Whether `contains` and `regex` tell upper from lower case."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        with refused():
            compile_expression(self.path)
            if self.regex is not None:
                check_pattern(self.regex)
        if not self.asked:
            raise ValueError(f"asks nothing of {self.path!r}: add one of {', '.join(OPERATORS)}")
        return self

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """The operators that were written, null ones too where null means something."""
        written = self.model_fields_set
        return tuple(
            name
            for name in OPERATORS
            if name in written and (name in ("eq", "ne") or getattr(self, name) is not None)
        )

    def broken_by(self, value: Any) -> list[str]:
        """What does not hold of a value, in words; empty when all holds."""
        wrong = (self._wrong(name, getattr(self, name), value) for name in self.asked)
        return [reason for reason in wrong if reason is not None]

    def told(self) -> dict[str, Any]:
        """The operators as they were written."""
        return {name: getattr(self, name) for name in self.asked}

    def _wrong(self, name: str, wanted: Any, value: Any) -> str | None:
        holds = self._holds(name, wanted, value)
        return None if holds else _IN_WORDS[name].format(shortened(wanted))

    def _holds(self, name: str, wanted: Any, value: Any) -> bool:
        if name == "eq":
            return same_value(value, wanted)
        if name == "ne":
            return not same_value(value, wanted)
        if name == "exists":
            return (value is not None) == wanted
        if name == "contains":
            return contains_value(value, wanted, case_sensitive=self.case_sensitive)
        if name == "regex":
            text = value if isinstance(value, str) else as_json(value)
            found = search(wanted, text, case_sensitive=self.case_sensitive)
            return value is not None and found is not None
        return _ordered(name, value, wanted)


_IN_WORDS = {
    "eq": "does not equal {}",
    "ne": "should not equal {}",
    "gt": "is not more than {}",
    "gte": "is not at least {}",
    "lt": "is not less than {}",
    "lte": "is not at most {}",
    "contains": "does not contain {}",
    "regex": "has no match of {}",
    "exists": "exists is not {}",
}


def same_value(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON values."""
    return _key(one) == _key(other)


def _key(value: Any) -> Any:
    # Text that happens to be JSON stays text, and null is not an empty mapping.
    return ("text", value) if isinstance(value, str) or value is None else canonical(value)


def as_json(value: Any) -> str:
    """Any value as one line of JSON; what JSON has no form for as its text."""
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


def contains_value(value: Any, wanted: Any, *, case_sensitive: bool = False) -> bool:
    """Whether a text has this part, a list this item, or a mapping this key."""
    if isinstance(value, str):
        text = wanted if isinstance(wanted, str) else as_json(wanted)
        return normalised(text, case_sensitive=case_sensitive) in normalised(
            value, case_sensitive=case_sensitive
        )
    if isinstance(value, Mapping):
        return wanted in value
    if isinstance(value, list | tuple):
        key = _key(wanted)
        return any(_key(item) == key for item in cast("list[Any]", value))
    return False


def _ordered(name: str, value: Any, wanted: Any) -> bool:
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (value, wanted))
    if not numbers and not (isinstance(value, str) and isinstance(wanted, str)):
        return False
    order = {"gt": value > wanted, "gte": value >= wanted, "lt": value < wanted}
    return order.get(name, value <= wanted)


def compile_expression(expression: str) -> Any:
    """A compiled JMESPath expression; what cannot be understood is refused with the reason."""
    import jmespath
    from jmespath.exceptions import JMESPathError
    from jmespath.functions import Functions

    try:
        compiled = jmespath.compile(expression)
    except JMESPathError as error:
        reason = str(error).splitlines()[0]
        raise ProctorError(f"{shown(expression)} is not a JMESPath expression: {reason}") from None
    except RecursionError:
        raise ProctorError(f"{shown(expression)} is nested too deeply") from None
    for name in _functions(compiled.parsed):
        if name not in Functions.FUNCTION_TABLE:
            raise ProctorError(
                f"{shown(expression)} calls an unknown function {name!r}",
                hint=did_you_mean(name, Functions.FUNCTION_TABLE),
            )
    return compiled


def _functions(parsed: Any) -> list[str]:
    found: list[str] = []
    left = [parsed]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            fields = cast("dict[str, Any]", node)
            if fields.get("type") == "function_expression":
                found.append(fields["value"])
            left.extend(fields.get("children", ()))
    return found
