"""Run async work from plain code, and come back even when agents leave tasks that will not end.

`asyncio.run` waits for every cancelled task; an agent that swallows its cancellation would keep
the whole program. Here they get a moment, then the loop is closed without them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from proctor.errors import ProctorError

T = TypeVar("T")

LEFTOVER_GRACE = 1.0
"""Seconds left-over tasks get to clean up after they are cancelled."""


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of the work; left-over tasks are cancelled and, if they resist, left behind."""
    if _inside_a_loop():
        work.close()
        raise ProctorError(
            "this was called inside an event loop, as notebooks have one",
            hint="await the function whose name begins with an `a`: await proctor.arun(…)",
        )
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        try:
            _dismiss(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _dismiss(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=LEFTOVER_GRACE))
    loop.run_until_complete(loop.shutdown_asyncgens())
    if stubborn := [task for task in left if not task.done()]:
        # Destroying a pending task logs errors of its own, which would blame us.
        for name in ("asyncio", "opentelemetry.context"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        logging.getLogger("proctor").warning("left %d tasks that would not stop", len(stubborn))
