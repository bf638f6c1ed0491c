"""Ctrl-C and SIGTERM: the first stops the work in order, the second ends the process at once.

Handlers are Python's own, not the event loop's, so that an agent that blocks the loop cannot block
Ctrl-C. A Python handler only runs once the interpreter does, so a pipe wakes the event loop:
otherwise a signal that arrives just as the loop goes to sleep would wait for the next event.
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
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from proctor.trials.session import Session

SIGNALS = (signal.SIGINT, signal.SIGTERM)

GRACE_SECONDS = 4.5
"""Time from the first signal to the end of the process, whatever agents do; users expect 5."""


@contextlib.contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], object]) -> Generator[None]:
    """Install a handler for Ctrl-C and SIGTERM; does nothing outside the main thread."""
    # Python allows signal handlers in the main thread only.
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
def until_signal() -> Generator[Callable[[], None]]:
    """Yield a function that waits for Ctrl-C or SIGTERM; one that came before ends it at once."""
    stop = threading.Event()

    def wait() -> None:
        while not stop.wait(1):  # polls: a signal may arrive as it goes to sleep
            pass

    with handle_signals(lambda _number, _frame: stop.set()):
        yield wait


@contextlib.contextmanager
def wake_on_signals(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Wake a loop at every signal, so that Python's handlers run at once. Main thread only."""
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield  # asyncio wakes its loop itself on Windows
        return
    ours, pythons = socket.socketpair()
    with ours, pythons:
        # Python writes to its end inside the signal handler, which must never block.
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


class Interrupts:
    """Stops the session of a run at the first signal; `signal` is that signal.

    Running trials are cancelled and recorded, finished ones are safe. A second signal, or an agent
    that keeps the process busy, ends it at once; the journal is consistent at any moment, so
    nothing is lost.
    """

    def __init__(self, resume: str | None = None) -> None:
        self._resume = resume
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watchdog: threading.Timer | None = None
        self._waking = contextlib.ExitStack()
        self.signal: int | None = None

    def watch(self, session: Session) -> None:
        """Set the session to stop; called inside the event loop, the same one every time."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._waking.enter_context(wake_on_signals(self._loop))
        self._session = session

    @contextlib.contextmanager
    def listening(self) -> Generator[None]:
        """Handle signals inside the block."""
        with self._waking, handle_signals(self._handle):
            try:
                yield
            finally:
                # A thread that still waits when Python exits keeps extension modules from being
                # unloaded, and they complain about it on the terminal.
                if self._watchdog is not None:
                    self._watchdog.cancel()
                    self._watchdog.join(GRACE_SECONDS)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:  # the second signal: no cleanup, it may be what hangs
            os._exit(128 + number)
        self.signal = number
        # Nothing runs yet: leave through the normal path, which prints no traceback.
        if self._session is None or self._loop is None:
            raise click.exceptions.Exit(128 + number)
        saved = (
            f": finished trials are saved; resume with\n  {self._resume}" if self._resume else ""
        )
        _write(f"\nstopping{saved}\n")
        _write("press Ctrl-C again to quit at once\n")
        # An agent that blocks the event loop would also block the ordered stop.
        self._watchdog = threading.Timer(GRACE_SECONDS, self._exit)
        self._watchdog.daemon = True
        self._watchdog.start()
        name = signal.Signals(number).name
        with contextlib.suppress(RuntimeError):  # the loop is closed: the work is over
            self._loop.call_soon_threadsafe(self._session.stop, f"interrupted by {name}")

    def _exit(self) -> None:
        """End a busy process, with the running trials recorded as cancelled."""
        with contextlib.suppress(Exception):
            assert self._session is not None
            self._session.close()
        os._exit(128 + (self.signal or signal.SIGTERM))


def _write(text: str) -> None:
    """Write to standard error past Python's buffers, which the interrupted code may be using."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
