"""Run async work from sync code, sync functions next to an event loop, and periodic work.

- `run_sync`: the one bridge from sync code to a coroutine.
- `threads.run`: a function in a daemon thread, awaited from an event loop.
- `TrialExecutor`: what `asyncio.to_thread` uses, with threads of its own for each trial.
- `refuse_exit`: keep code that calls `os._exit` from ending this process.
- `PeriodicWork`: a function every few seconds, in a thread of its own.

User code can hang or swallow its cancellation. None of these waits for it: it costs one thread or
one abandoned task, and the process can still end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from queue import SimpleQueue
from typing import Any, NamedTuple, NoReturn, TypeVar

from proctor.errors import ProctorError

T = TypeVar("T")

CANCEL_GRACE = 1.0
"""Seconds that left-over tasks get to clean up after they are cancelled."""


# -- the process ---------------------------------------------------------------------------------


_refusing: ContextVar[bool] = ContextVar("refusing", default=False)
_refusals: list[int] = []
"""The process of each block that refuses exits."""
_refusals_lock = threading.Lock()
_exit = os._exit


@contextlib.contextmanager
def refuse_exit() -> Generator[None]:
    """Let `os._exit` raise in this block, where agents run in the process that reports on them.

    Otherwise an agent could end a test session or a script with exit code 0. Forked processes,
    and threads that other code started, end as they wish. An exit in C code cannot be caught.
    """
    with _refusals_lock:
        _refusals.append(os.getpid())
        os._exit = _refused_exit
    token = _refusing.set(True)
    try:
        yield
    finally:
        _refusing.reset(token)
        with _refusals_lock:
            _refusals.pop()
            if not _refusals:
                os._exit = _exit


def _refused_exit(status: int = 0) -> NoReturn:
    # Test runners keep contexts of their own for coroutines, so the main thread counts as well.
    ours = _refusing.get() or threading.current_thread() is threading.main_thread()
    if ours and os.getpid() in _refusals:
        raise RuntimeError(
            f"os._exit({status}) was called, which would end the process without a report"
        )
    _exit(status)


# -- sync → async ------------------------------------------------------------------------------


def run_sync(work: Coroutine[Any, Any, T], *, nested: bool = False) -> T:
    """Return the result of a coroutine, run in an event loop of its own.

    Tasks it leaves behind are cancelled and get a moment to clean up; `asyncio.run` would wait
    for those that resist for ever. Where a loop runs already (a notebook, an async test), the
    call is refused, because it would block that loop; with `nested` the work runs in another
    thread instead, with the caller's context. The loop set for this thread is not touched.
    """
    inside = False
    with contextlib.suppress(RuntimeError):
        inside = bool(asyncio.get_running_loop())
    # Not inside an `except`, where the work would seem to handle an error.
    if not inside:
        return _run_in_new_loop(work)
    if not nested:
        work.close()
        raise ProctorError(
            "this was called inside an event loop, as notebooks have one",
            hint="await the function whose name begins with an `a`: await proctor.arun(…)",
        )
    result: Future[T] = Future()
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def watched() -> T:
        task = asyncio.current_task()
        assert task is not None
        started.append((asyncio.get_running_loop(), task))
        return await work

    def body() -> None:
        try:
            result.set_result(_run_in_new_loop(watched()))
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            result.set_exception(error)

    # A daemon: after an interrupt, work that will not stop must not keep the process.
    context = copy_context()
    thread = threading.Thread(target=context.run, args=(body,), name="run-sync", daemon=True)
    try:
        thread.start()  # inside the block: an interrupt may come before the next line
        return result.result()
    except BaseException:
        if not result.done() and started:  # an interrupt of this thread
            loop, task = started[0]
            loop.call_soon_threadsafe(task.cancel)
        raise


def _run_in_new_loop(work: Coroutine[Any, Any, T]) -> T:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(TrialExecutor())
    try:
        return loop.run_until_complete(work)
    finally:
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=CANCEL_GRACE))
            loop.run_until_complete(loop.shutdown_asyncgens())
            if stubborn := [task for task in left if not task.done()]:
                # Destroying a pending task logs errors of its own, which would blame us.
                for name in ("asyncio", "opentelemetry.context"):
                    logging.getLogger(name).setLevel(logging.CRITICAL)
                count = len(stubborn)
                logging.getLogger("proctor").warning("left %d tasks that would not stop", count)
        finally:
            loop.close()


# -- async → sync ------------------------------------------------------------------------------


class _Job(NamedTuple):
    call: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]


class DaemonThreads:
    """A pool that grows while all its threads are busy and keeps idle ones for reuse.

    Not `asyncio.to_thread`, whose pool is joined at exit: a function that never returns would
    keep the process.
    """

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Job]] = []
        self._busy: dict[int, _Job] = {}
        """What each thread does."""
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            # A forked process has none of the threads.
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._idle, self._busy, self._lock = [], {}, threading.Lock()

    def abandoned(self) -> list[int]:
        """Return the threads whose functions run though nothing waits for them any more."""
        return [thread for thread, job in [*self._busy.items()] if job.done.cancelled()]

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Return the future of the function, which a thread calls with the caller's context."""
        loop = asyncio.get_running_loop()
        context = copy_context()
        job = _Job(lambda: context.run(function, *args, **kwargs), loop, loop.create_future())
        with self._lock:
            queue = self._idle.pop() if self._idle else None
        if queue is None:
            queue = SimpleQueue[_Job]()
            threading.Thread(target=self._serve, args=(queue,), daemon=True).start()
        queue.put(job)
        return job.done

    async def finish(self, function: Callable[..., Any], *args: Any) -> Any:
        """Do as `run`, and return the result also to a caller that is cancelled, if it is soon."""
        done = self.run(function, *args)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait({done}, timeout=CANCEL_GRACE)
            if not done.done():
                raise
            return done.result()

    def _serve(self, queue: SimpleQueue[_Job]) -> None:
        while True:
            job = self._busy[threading.get_ident()] = queue.get()
            try:
                result, error = job.call(), None
            except BaseException as raised:  # noqa: BLE001 (set on the future that is awaited)
                result, error = None, raised
            self._busy.pop(threading.get_ident(), None)
            with self._lock:
                self._idle.append(queue)
            # The loop may be closed by now: the caller is gone, and this thread serves the next.
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


threads = DaemonThreads()
"""The pool of this process."""


pools: ContextVar[list[ThreadPoolExecutor] | None] = ContextVar("pools", default=None)
"""The threads of the trial of this context: empty until it needs some; None outside of trials."""


class TrialExecutor(ThreadPoolExecutor):
    """The default executor of an event loop that runs many trials.

    Each trial has as many threads as it would have in an event loop of its own. Shared ones would
    soon be those of functions that never return, and the other trials would wait for them in vain.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a thread of the trial that calls this."""
        of_trial = pools.get()
        if of_trial is None:
            return super().submit(fn, *args, **kwargs)
        if not of_trial:
            of_trial.append(ThreadPoolExecutor())
        return of_trial[0].submit(fn, *args, **kwargs)


# -- periodic work -----------------------------------------------------------------------------


class PeriodicWork:
    """Call `work` every `every` seconds between `start` and `stop`, first after one pause.

    A thread and not a task: an agent that blocks the event loop for hours must not hold it up,
    and slow work must not hold up the event loop.
    """

    def __init__(self, work: Callable[[], None], *, every: float, name: str) -> None:
        self._work = work
        self._every = every
        self._stopping = threading.Event()
        # A daemon: a process that dies does not wait for the next call.
        self._thread = threading.Thread(target=self._repeat, name=name, daemon=True)
        self.start = self._thread.start
        """Starts it; once for each object."""

    def stop(self) -> None:
        """Start no other call, and wait for the current one to end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _repeat(self) -> None:
        while not self._stopping.wait(self._every):
            self._work()
