"""How often a process was signalled, when its supervisor passes on signals that it gets as well.

A signal to a process group (of a CI system, of `timeout`, of `kill -- -GROUP`) reaches the
worker of a command twice: from its sender, and from the supervising parent. No handler in Python
sees who sent a signal, so the parent counts what it passes on in memory that both share.
"""

import signal
from collections.abc import Callable, Sequence
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


class SignalCount:
    """Counts a signal that arrived directly and from the supervisor as one."""

    def __init__(self) -> None:
        self.passed_on: Sequence[int] = bytes(signal.NSIG)
        """How often the supervisor has passed on each signal."""
        self._arrived: dict[int, int] = {}
        self._counted: dict[int, int] = {}

    def is_new(self, number: int) -> bool:
        """Count a signal that arrived; False when it is a copy of one that was counted.

        As many arrive directly as were sent to this process or the group, and as many from the
        supervisor as were sent to the supervisor or the group. Trade-off: where the system has
        merged two copies, one signal of the terminal after them is not counted.
        """
        arrived = self._arrived[number] = self._arrived.get(number, 0) + 1
        passed_on = self.passed_on[number]
        sent = max(arrived - passed_on, passed_on)
        if sent <= self._counted.get(number, 0):
            return False
        self._counted[number] = sent
        return True

    def once(self, handler: Handler) -> Handler:
        """Return a handler that leaves out copies."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self.is_new(number):
                handler(number, frame)

        return handle


signal_count = SignalCount()
"""The count of this process: signals are one per process."""
