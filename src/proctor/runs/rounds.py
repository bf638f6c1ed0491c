"""Work that comes round every few seconds, done beside a run or a server by its own thread.

A thread, not a task: an agent that blocks the event loop for hours must not hold it up, and a
round that takes long must not hold up the event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Rounds:
    """Calls `work` every `every` seconds between `start` and `stop`, first after one pause."""

    def __init__(self, work: Callable[[], None], *, every: float, name: str) -> None:
        self._work = work
        self._every = every
        self._stopping = threading.Event()
        # A daemon: a program that dies does not wait for the next round.
        self._thread = threading.Thread(target=self._go_round, name=name, daemon=True)

    def start(self) -> None:
        """Begin; once for each object."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no other round, and wait for the one that is under way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _go_round(self) -> None:
        while not self._stopping.wait(self._every):
            self._work()
