"""Run async work from plain code, and come back even when agents leave tasks that will not end.

`asyncio.run` waits for every cancelled task; an agent that swallows its cancellation would keep
the whole program. Here they get a moment, then the loop is closed without them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LEFTOVER_GRACE = 1.0
"""Seconds left-over tasks get to clean up after they are cancelled."""


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of the work; left-over tasks are cancelled and, if they resist, left behind."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        try:
            _dismiss(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _dismiss(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=LEFTOVER_GRACE))
    loop.run_until_complete(loop.shutdown_asyncgens())
    if stubborn := [task for task in left if not task.done()]:
        # Destroying a pending task logs an error of its own, which would blame us.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        logging.getLogger("proctor").warning("left %d tasks that would not stop", len(stubborn))
