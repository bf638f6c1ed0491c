"""Ctrl-C and SIGTERM while a run is going on.

The first asks the run to stop: running trials are cancelled and recorded, finished ones are safe.
A second one, or an agent that keeps this process busy, ends it at once; the journal is whole at
any moment, so nothing is lost by that. Handlers are Python's own, not the event loop's, because
an agent that blocks the loop must not block Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Generator
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from proctor.cli.stopping import signals_go_to, signals_wake

if TYPE_CHECKING:
    from proctor.trials.session import Session

PATIENCE = 4.5
"""Seconds from the first signal to the end, whatever agents do; a person is promised 5."""


class Interrupts:
    """Takes signals during a block; `signal` is the first that came."""

    def __init__(self, resume: str) -> None:
        self._resume = resume
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watchdog: threading.Timer | None = None
        self._woken = contextlib.ExitStack()
        self.signal: int | None = None

    def watch(self, session: Session) -> None:
        """Say which session to stop; called inside the event loop, which is the same for all."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._woken.enter_context(signals_wake(self._loop))
        self._session = session

    @contextlib.contextmanager
    def listening(self) -> Generator[None]:
        """Take signals meanwhile."""
        with self._woken, signals_go_to(self._told):
            try:
                yield
            finally:
                # A thread that is still waiting when Python ends keeps extension modules from
                # being taken down, and they complain of it on the terminal.
                if self._watchdog is not None:
                    self._watchdog.cancel()
                    self._watchdog.join(PATIENCE)

    def _told(self, number: int, _frame: FrameType | None) -> Any:
        if self.signal is not None:
            os._exit(128 + number)
        self.signal = number
        if self._session is None or self._loop is None:
            raise click.exceptions.Exit(128 + number)
        # Written past Python's buffers, which this very moment may be in use.
        _say(f"\nstopping: finished trials are safe; go on later with\n  {self._resume}\n")
        _say("once more to leave at once\n")
        self._watchdog = threading.Timer(PATIENCE, self._leave)
        self._watchdog.daemon = True
        self._watchdog.start()
        name = signal.Signals(number).name
        with contextlib.suppress(RuntimeError):  # the loop is closed: the work is over
            self._loop.call_soon_threadsafe(self._session.stop, f"interrupted by {name}")

    def _leave(self) -> None:
        """End a process that is kept busy, with the running trials recorded as cancelled."""
        with contextlib.suppress(Exception):
            assert self._session is not None
            self._session.close()
        os._exit(128 + (self.signal or signal.SIGTERM))


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
