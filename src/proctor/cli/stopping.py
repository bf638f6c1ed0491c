"""Ctrl-C and SIGTERM as a wish to stop, not as the end of everything.

The first one is told to the work, which gives back what is finished; a second one ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Generator

import click

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether somebody asked to stop, and with which signal."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.signal: int | None = None

    @contextlib.contextmanager
    def listening(self) -> Generator[None]:
        """Take signals meanwhile; where the platform or the thread cannot, nothing changes."""
        loop = asyncio.get_running_loop()
        taken: list[signal.Signals] = []

        def told(number: signal.Signals) -> None:
            self.signal = int(number)
            self.event.set()
            give_back()
            click.echo("stopping; once more to leave at once", err=True)

        def give_back() -> None:
            while taken:
                loop.remove_signal_handler(taken.pop())

        for number in SIGNALS:
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, told, number)
                taken.append(number)
        try:
            yield
        finally:
            give_back()
