"""What a figure does not count, said beside it."""

from __future__ import annotations

import msgspec


class LeftOut(msgspec.Struct, frozen=True):
    """Trials or cases that no estimate counts, and why."""

    what: str
    count: int
    why: str
