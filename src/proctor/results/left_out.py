"""What a figure does not count, said beside it."""

from __future__ import annotations

import msgspec

from proctor.words import plural


class LeftOut(msgspec.Struct, frozen=True):
    """Trials or cases that no estimate counts, and why."""

    what: str
    count: int
    why: str

    def __str__(self) -> str:
        return f"{plural(self.count, self.what.removesuffix('s'))}: {self.why}"
