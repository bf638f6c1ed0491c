"""Kinds of values that several checks take, read strictly and with messages for people.

Promise: what YAML silently turned into something else (`yes`, a date, 1.50) is refused with the
advice to quote it, and a limit that could never be met is refused where it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar, cast

from pydantic import BeforeValidator, Field

from proctor.errors import ProctorError

T = TypeVar("T")


@contextmanager
def refused() -> Generator[None]:
    """Turn an error a user can put right into one that a model reports with its place."""
    try:
        yield
    except ProctorError as error:
        raise ValueError(f"{error}{f' ({error.hint})' if error.hint else ''}") from error


def read_text(value: Any) -> str:
    """A text; a whole number is taken for its digits, anything else YAML made is refused."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"should be text, not {_told(value)}; put it in quotes")


def _told(value: Any) -> str:
    kind = type(value).__name__
    names = {"bool": "true or false", "dict": "a mapping", "list": "a list", "NoneType": "nothing"}
    return names.get(kind, f"a {kind}")


def _read_some_text(value: Any) -> str:
    text = read_text(value)
    if not text.strip():
        raise ValueError("should not be empty: an empty text is found in every answer")
    return text


def listed(read: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:
    """A reader of one value or a list of them; an empty list asks for nothing and is refused."""

    def read_all(value: Any) -> tuple[T, ...]:
        many = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
        if not many:
            raise ValueError("should have at least one entry; leave the key out to check nothing")
        return tuple(read(item) for item in many)

    return read_all


def _read_number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("should be a number, not true or false")
    return value


Number = BeforeValidator(_read_number)

Words = str | int
"""What a text may be written as."""

Text = Annotated[str, BeforeValidator(read_text, json_schema_input_type=Words)]
Texts = Annotated[
    tuple[str, ...],
    BeforeValidator(listed(_read_some_text), json_schema_input_type=Words | list[Words]),
]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[
    tuple[Name, ...],
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str) else value,
        json_schema_input_type=str | list[str],
    ),
]
Count = Annotated[int, Number, Field(ge=0)]
Positive = Annotated[int, Number, Field(ge=1)]
Limit = Annotated[float, Number, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Number, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Number, Field(ge=0, allow_inf_nan=False)]


class Comparison(NamedTuple):
    """A bound on a number, such as `>= 0.8`."""

    operator: str
    bound: float

    def holds(self, value: float) -> bool:
        """Whether a number keeps the bound."""
        return _OPERATORS[self.operator](value, self.bound)

    def __str__(self) -> str:
        return f"{self.operator} {self.bound:g}"


_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda value, bound: value >= bound,
    "<=": lambda value, bound: value <= bound,
    "==": lambda value, bound: value == bound,
    "!=": lambda value, bound: value != bound,
    ">": lambda value, bound: value > bound,
    "<": lambda value, bound: value < bound,
}


@lru_cache(maxsize=256)
def comparison(text: str) -> Comparison:
    """The bound a text spells; a bare number is the least that will do."""
    written = text.strip()
    operator = next((sign for sign in _OPERATORS if written.startswith(sign)), "")
    try:
        return Comparison(operator or ">=", float(written.removeprefix(operator)))
    except ValueError:
        signs = ", ".join(_OPERATORS)
        raise ValueError(
            f"cannot read {text!r}: write a sign ({signs}) and a number, as in '>= 0.8'"
        ) from None


def _read_bound(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = f">= {value:g}"
    if not isinstance(value, str):
        raise ValueError(f"should be a comparison such as '>= 0.8', not {_told(value)}")
    bound = comparison(value)
    if not 0 <= bound.bound <= 1:
        raise ValueError(f"{bound.bound:g} is outside 0..1")
    return str(bound)


Bound = Annotated[str, BeforeValidator(_read_bound, json_schema_input_type=str | float)]
"""A bound on a number in 0..1, kept as its text."""
