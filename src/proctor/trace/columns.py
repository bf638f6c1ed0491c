"""One field of many spans, each distinct value kept once.

Promise: a condition on the field is asked once per distinct value, however many spans there are.
Agents repeat a few names, kinds and statuses; where values are all different, this costs one
dictionary more than asking each span.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count
from typing import Generic, TypeVar

Value = TypeVar("Value")

_MOST_BYTES = 256
"""As many codes as a byte has; with these, answering for all spans is one `bytes.translate`."""


class Column(Generic[Value]):
    """Values as codes into the list of distinct ones, in order of appearance."""

    def __init__(self, values: Iterable[Value]) -> None:
        code_of: dict[Value, int] = defaultdict(count().__next__)
        codes = [code_of[value] for value in values]
        self.distinct: list[Value] = list(code_of)
        self._codes: bytes | list[int] = bytes(codes) if len(code_of) <= _MOST_BYTES else codes

    def where(self, holds: Callable[[Value], object]) -> bytes:
        """A mask with 1 where a condition holds of the value."""
        answers = bytes([bool(holds(value)) for value in self.distinct])
        if isinstance(self._codes, bytes):
            return self._codes.translate(answers.ljust(_MOST_BYTES, b"\0"))
        return bytes(map(answers.__getitem__, self._codes))
