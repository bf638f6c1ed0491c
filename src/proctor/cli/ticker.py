"""How far the work is, in one line of the terminal that is written over.

Silent where standard error is not a terminal, and for work that is done in a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from proctor.trials.once import Finished

PATIENCE = 1.0
"""Seconds before the first line: what is faster needs none."""

INTERVAL = 0.2
_CLEAR = "\r\x1b[2K"


class Ticker:
    """Counts finished cases and tells them."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._passed = 0
        self._began = time.monotonic()
        self._shown = False

    def finished(self, finished: Finished) -> None:
        """Count one."""
        self._done += 1
        self._passed += finished.trial.passed

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Tell from time to time while the block runs; leave a clean line behind."""
        task = asyncio.ensure_future(self._tick()) if sys.stderr.isatty() else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
            if self._shown:
                click.echo(_CLEAR, nl=False, err=True)

    async def _tick(self) -> None:
        await asyncio.sleep(PATIENCE)
        while True:
            took = time.monotonic() - self._began
            told = f"{self._done} of {self._total} done, {self._passed} passed, {took:.0f} s"
            click.echo(f"{_CLEAR}{told}", nl=False, err=True)
            self._shown = True
            await asyncio.sleep(INTERVAL)
