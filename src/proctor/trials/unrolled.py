"""A sequence whose members are made when they are first reached, and kept.

For plans: the first of 100,000 trials need not wait until the seed of the last is worked out. The
price is that its length has to be known before, and that reaching a member makes those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar, cast, overload

T = TypeVar("T")


class Unrolled(Sequence[T]):  # noqa: PLW1641 (like a list, it has no hash)
    """The first `length` of the members that an iterator gives."""

    __slots__ = ("_length", "_made", "_rest")

    def __init__(self, length: int, members: Iterator[T]) -> None:
        self._length = length
        self._made: list[T] = []
        self._rest = members

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        made = self._made
        for place in range(self._length):
            if place >= len(made):
                made.append(next(self._rest))
            yield made[place]

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        reached = range(self._length)[index]
        places = (reached,) if isinstance(reached, int) else reached
        missing = max(places, default=-1) + 1 - len(self._made)
        self._made.extend(islice(self._rest, max(0, missing)))
        return self._made[reached] if isinstance(reached, int) else [self._made[i] for i in reached]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(cast("Sequence[object]", other))

    def __repr__(self) -> str:
        return f"<{self._length} in a row, {len(self._made)} made>"
