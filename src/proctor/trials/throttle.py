"""How many trials run at once: the number asked for, less while a provider says "slow down".

Additive increase, multiplicative decrease: a 429 halves the number (at most once a second, since
one overload is reported by many calls), and each trial without one wins back a fraction of a slot.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

COOL_DOWN = 1.0
"""Seconds in which several 429s count as one overload."""


class Throttle:
    """Slots for running trials."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._limit = float(most)
        self._active = 0
        self._clock = clock
        self._slowed_at = float("-inf")
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def limit(self) -> int:
        """How many may run now."""
        return max(1, int(self._limit))

    @property
    def slowed(self) -> bool:
        """Whether fewer may run than were asked for."""
        return self._limit < self._most

    def enter_now(self) -> bool:
        """Take a slot if one is free."""
        if self._active >= self._limit and self._active >= self.limit:
            return False
        self._active += 1
        return True

    async def enter(self) -> None:
        """Wait for a slot."""
        while not self.enter_now():
            ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(ticket)
            await ticket

    def leave(self) -> None:
        """Give the slot back; a trial that went well wins back part of one."""
        self._active -= 1
        if self._limit < self._most and self._clock() - self._slowed_at >= COOL_DOWN:
            self._limit = min(self._most, self._limit + 1 / self._limit)
        while self._waiting and self._active < self.limit:
            ticket = self._waiting.pop(0)
            if not ticket.done():
                ticket.set_result(None)
                break

    def slow_down(self) -> None:
        """A provider asked for less."""
        now = self._clock()
        if now - self._slowed_at >= COOL_DOWN:
            self._slowed_at = now
            self._limit = max(1.0, self._limit / 2)
