"""Ctrl-C and SIGTERM as a wish to stop, not as the end of everything.

The first is told to the work, which gives back what is finished; a second one ends at once.
Handlers are Python's own, so that an agent that blocks the event loop cannot block the second.
Such a handler only runs once Python does, so the loop is woken by a pipe: a signal that comes at
the moment the loop goes to sleep would else wait for the next thing to happen, perhaps for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def signals_go_to(handler: Callable[[int, FrameType | None], object]) -> Generator[None]:
    """Let a handler take Ctrl-C and SIGTERM. Outside the main thread they are somebody else's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, before in earlier.items():
            signal.signal(number, before)


@contextlib.contextmanager
def signals_wake(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Wake this loop at every signal, so that Python's handlers run at once. Main thread only."""
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield  # asyncio does it by itself on Windows
        return
    ours, pythons = socket.socketpair()
    with ours, pythons:
        ours.setblocking(False)
        pythons.setblocking(False)
        loop.add_reader(ours, ours.recv, 4096)
        before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            if not loop.is_closed():
                loop.remove_reader(ours)


class StopRequest:
    """Whether somebody asked to stop, and with which signal."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.event = asyncio.Event()
        self.signal: int | None = None

    @contextlib.contextmanager
    def listening(self) -> Generator[None]:
        """Take signals meanwhile."""
        with signals_wake(self._loop), signals_go_to(self._told):
            yield

    def _told(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        # Written past Python's buffers, which this very moment may be in use.
        with contextlib.suppress(OSError):
            os.write(2, b"\nstopping; once more to leave at once\n")
        self._loop.call_soon_threadsafe(self.event.set)
