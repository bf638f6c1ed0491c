"""How much a template may ask of the machine.

Promise: whatever is written, a build ends within seconds and within some tens of megabytes. Every
step of every expression and every value it makes is taken from one budget for the whole build, so
that many small expressions cannot do what one large one may not.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias, cast

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"

MAX_STEPS = 200_000
"""Steps of a build: under a second of work, and hundreds of times what the shipped ones need."""

MAX_DEPTH = 60
"""Values within values, over all they refer to: at eight frames each still inside the stack."""

MAX_BITS = 256
"""Size of whole numbers: seeds and digests fit, and arithmetic on them stays one step."""

MAX_NESTING = 32
"""Lists within lists of one value: what is built can still be read, with room for its place."""

MAX_TEXT = 20_000
"""Characters in a text; ten pages."""

MAX_ITEMS = 10_000
"""Items in a list that an expression makes."""

CHARACTERS_PER_STEP = 64
ITEMS_PER_STEP = 8
"""Long texts and lists are taken from the budget as they are made, at what that costs."""


class RefusedError(Exception):
    """A value that is not given; who knows the place adds it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Budget:
    """What is left of a build's steps, and how deep it is in."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.left = steps
        self.depth = 0

    def charge(self, steps: int) -> None:
        """Take steps; `RefusedError` when there are none left."""
        self.left -= steps
        if self.left < 0:
            raise RefusedError(
                f"the template takes more than {MAX_STEPS:,} steps to build",
                "make its lists and loops smaller",
            )

    def enter(self) -> None:
        """Go one level down; `RefusedError` at the bottom."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RefusedError(
                f"values are nested more than {MAX_DEPTH} deep, with those they refer to"
            )

    def made(self, value: Value) -> Value:
        """Take what it cost to make a text or a list, whatever it holds."""
        if isinstance(value, str):
            self.charge(len(value) // CHARACTERS_PER_STEP)
        elif isinstance(value, list | dict):
            self.charge(len(value) // ITEMS_PER_STEP)
        return value

    def weigh(self, value: Value, level: int = 0) -> None:
        """Take what a value weighs: one step for each part, more for long texts."""
        self.charge(1)
        if isinstance(value, str):
            self.charge(len(value) // CHARACTERS_PER_STEP)
        elif isinstance(value, list | dict):
            if level >= MAX_NESTING:
                raise RefusedError(f"the value is nested more than {MAX_NESTING} deep")
            for item in value.values() if isinstance(value, dict) else value:
                self.weigh(item, level + 1)


def bounded(value: Value) -> Value:
    """The value, if it is one that may be; numbers are finite, texts and lists have an end."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise RefusedError(f"the number has more than {MAX_BITS} bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise RefusedError("the result is not a finite number")
        return value + 0.0  # -0.0 + 0.0 is 0.0: no zero has a sign
    elif isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise RefusedError(f"the text has more than {MAX_TEXT:,} characters")
    elif len(value) > MAX_ITEMS:
        raise RefusedError(f"the list has more than {MAX_ITEMS:,} items")
    return value


def shown(value: Any) -> str:
    """What a value is, for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}" if abs(value) < 1e18 else "a large number"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    return f"a list of {len(cast('list[Any]', value))}" if isinstance(value, list) else "a mapping"


def same_kind(value: Any) -> Value:
    """A value given from Python as the plain kinds a template knows: tuples become lists."""
    if isinstance(value, list | tuple):
        return [same_kind(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value)
        return {str(key): same_kind(item) for key, item in pairs.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise RefusedError(f"a {type(value).__name__} is no value of a template")
