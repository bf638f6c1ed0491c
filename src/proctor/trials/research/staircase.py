"""A staircase: harder after so many passes in a row, easier after one failure.

With `down` passes it settles where a run of `down` passes is as likely as not: at a pass rate of
0.5 to the power of 1/down (0.71 for two). The estimate is the mean of the difficulties at which it
turned, the first turns left out since they tell where it began. Its standard error takes the turns
as independent, which neighbouring turns are not quite; the posterior of the same trials does not
need that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

LEFT_OUT = 2
"""Turns at the beginning that are not averaged: one up and one down, on the way from the start."""


class Settled(NamedTuple):
    """The mean of the turns; None where there were too few, an error needs two of them."""

    estimate: float | None
    standard_error: float | None
    turns: int
    averaged: int


class Staircase:
    """Where one agent stands on the scale."""

    def __init__(self, scale: Sequence[float], down: int) -> None:
        self._scale = scale
        self._down = down
        self._row = 0
        self._way = 0
        self.at = 0
        self.turned: list[float] = []
        self.stuck = 0
        """Moves in a row that the end of the scale did not allow."""

    def add(self, passed: bool) -> str:
        """Take a judged trial; what comes of it in words."""
        if passed:
            self._row += 1
            if self._row < self._down:
                return f"passed {self._row} of {self._down} in a row"
            return self._move(1, f"passed {self._down} in a row")
        return self._move(-1, "failed")

    def _move(self, way: int, why: str) -> str:
        self._row = 0
        word = "harder" if way > 0 else "easier"
        if self._way and way != self._way:
            self.turned.append(self._scale[self.at])
            why += f", turn {len(self.turned)}"
        self._way = way
        following = self.at + way
        if not 0 <= following < len(self._scale):
            self.stuck += 1
            return f"{why}: it gets no {word}"
        self.stuck = 0
        self.at = following
        return f"{why}: {word}"

    def settled(self) -> Settled:
        """What the turns come to."""
        kept = self.turned[LEFT_OUT:]
        # As many ups as downs, else the mean leans to one side.
        kept = kept[len(kept) % 2 :]
        if not kept:
            return Settled(None, None, len(self.turned), 0)
        error = stdev(kept) / math.sqrt(len(kept)) if len(kept) > 1 else None
        return Settled(fmean(kept), error, len(self.turned), len(kept))
