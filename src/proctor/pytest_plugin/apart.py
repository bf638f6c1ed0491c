"""Async work from a test, whatever the test's own thread is doing.

Promise: neither a loop that already runs there (an async test) nor the loop that a plugin has set
for it is touched. The price is a thread per call; an interrupt stops the work and is raised here.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from proctor.trials.loop import run_to_end

T = TypeVar("T")


def apart(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of the work, done in a thread of its own with the caller's context."""
    future: Future[T] = Future()
    began: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def watched() -> T:
        task = asyncio.current_task()
        assert task is not None
        began.append((asyncio.get_running_loop(), task))
        return await work()

    def body() -> None:
        try:
            future.set_result(run_to_end(watched()))
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            future.set_exception(error)

    context = contextvars.copy_context()
    # A daemon: after an interrupt, an agent that will not stop must not keep pytest.
    threading.Thread(target=context.run, args=(body,), name="proctor-trials", daemon=True).start()
    try:
        return future.result()
    except BaseException:
        if not future.done() and began:
            loop, task = began[0]
            loop.call_soon_threadsafe(task.cancel)
        raise
