"""Run plain functions without stopping the event loop, and without waiting for those that hang.

Promise: a function that never returns costs one idle thread and nothing else: it is neither
joined at exit nor in the way of the next trial. That is why this is not `asyncio.to_thread`,
whose pool is joined at exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, NamedTuple


class _Job(NamedTuple):
    call: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]


class DaemonThreads:
    """A pool that grows while all its threads are busy and keeps idle ones for reuse."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Job]] = []
        self._lock = threading.Lock()

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The function's result, computed in a thread that carries the current context."""
        loop = asyncio.get_running_loop()
        context = copy_context()
        job = _Job(lambda: context.run(function, *args, **kwargs), loop, loop.create_future())
        with self._lock:
            queue = self._idle.pop() if self._idle else None
        if queue is None:
            queue = SimpleQueue[_Job]()
            threading.Thread(target=self._serve, args=(queue,), daemon=True).start()
        queue.put(job)
        return await job.done

    def _serve(self, queue: SimpleQueue[_Job]) -> None:
        while True:
            job = queue.get()
            try:
                result, error = job.call(), None
            except BaseException as raised:  # noqa: BLE001 (handed to whoever awaits)
                result, error = None, raised
            with self._lock:
                self._idle.append(queue)
            # A closed loop: whoever asked has gone. This thread is there for the next all the same.
            with contextlib.suppress(RuntimeError):
                job.loop.call_soon_threadsafe(_settle, job.done, result, error)
            del job, result, error


def _settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(result)
    elif isinstance(error, StopIteration):
        done.set_exception(RuntimeError("the function raised StopIteration"))
    else:
        done.set_exception(error)


shared = DaemonThreads()
