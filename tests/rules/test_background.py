"""Async work from sync code and sync functions beside a loop: one bridge, used by every caller."""

import asyncio
import contextvars
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import proctor
from proctor.background import CANCEL_GRACE, DaemonThreads, PeriodicWork, run_sync
from proctor.errors import ProctorError
from proctor.llm import MockLLM, get_model
from proctor.spec import Case, Suite

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="nobody")


async def name_of_the_caller() -> tuple[str, bool]:
    return NAME.get(), threading.current_thread() is threading.main_thread()


def test_without_a_loop_the_work_runs_here() -> None:
    """R-R2: the result, the exception and the context are those of a plain call."""
    NAME.set("caller")
    assert run_sync(name_of_the_caller()) == ("caller", True)
    with pytest.raises(ZeroDivisionError):
        run_sync(failing())


async def failing() -> None:
    raise ZeroDivisionError


def test_the_loop_that_is_set_for_this_thread_stays() -> None:
    """R-A6: plugins of pytest set a loop and expect to find it again."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        run_sync(asyncio.sleep(0))
        assert asyncio.get_event_loop_policy().get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def test_inside_a_loop_it_is_refused_or_runs_in_a_thread() -> None:
    """R-R2: in a notebook the error says to await; nested calls run beside its loop."""
    with pytest.raises(ProctorError, match="inside an event loop") as caught:
        run_sync(asyncio.sleep(0))
    assert "await proctor.arun" in (caught.value.hint or "")
    NAME.set("notebook")
    assert run_sync(name_of_the_caller(), nested=True) == ("notebook", False)
    with pytest.raises(ZeroDivisionError):
        run_sync(failing(), nested=True)


async def test_every_sync_function_works_in_a_notebook(tmp_path: Path) -> None:
    """R-R2: `proctor.run` and `proctor.diagnose` work where a loop is running."""
    suite = Suite(cases=(Case(id="c", input="q", correctness={"regex_match": "^"}),))
    run = proctor.run(suite, agent=str.upper, results=tmp_path)
    assert run.verdict == "PASS"
    with proctor.capture("q") as trace:
        pass
    with MockLLM([{"text": '{"findings": []}'}] * 9) as server:
        model = get_model("openai:gpt-4o", base_url=server.base_url)
        found = proctor.diagnose(trace, "single_pass", model=model)
    assert found.findings == ()
    assert server.requests, "the model was called beside the running loop"


def test_a_task_that_resists_is_left_behind() -> None:
    """R-R1: an agent that ignores its cancellation does not keep the process alive."""

    async def resisting() -> None:
        while True:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                continue

    async def work() -> str:
        task = asyncio.ensure_future(resisting())
        await asyncio.sleep(0)
        return "done" if not task.done() else "ended"

    began = time.monotonic()
    assert run_sync(work()) == "done"
    assert time.monotonic() - began < CANCEL_GRACE + 5


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT to a child is of POSIX")
@pytest.mark.parametrize("inside", [False, True])
def test_an_interrupt_cancels_the_work(inside: bool) -> None:
    """R-R9: Ctrl-C ends the work, which cleans up, and is raised in the caller."""
    code = f"""
import asyncio, threading
from proctor.background import run_sync
cleaned = threading.Event()
async def work():
    try:
        print("begun", flush=True)
        await asyncio.sleep(60)
    finally:
        cleaned.set()
def call(): run_sync(work(), nested=True)
async def within(): call()
try:
    asyncio.new_event_loop().run_until_complete(within()) if {inside} else call()
except KeyboardInterrupt:
    print("interrupted", cleaned.wait(30), flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert said == "interrupted True\n"


def test_periodic_work_ends_with_the_call_under_way() -> None:
    """R-R10: `stop` prevents further calls and waits for the current one."""
    called, ended = threading.Event(), threading.Event()

    def work() -> None:
        called.set()
        time.sleep(0.05)
        ended.set()

    periodic = PeriodicWork(work, every=0.001, name="test")
    periodic.start()
    assert called.wait(60)
    periodic.stop()
    assert ended.is_set()
    called.clear()
    assert not called.wait(0.1)


def test_a_thread_whose_loop_has_gone_serves_the_next() -> None:
    """R-R1: a function that outlives its run does not delay the next run."""
    threads, go_on, begun = DaemonThreads(), threading.Event(), threading.Event()

    def late() -> None:
        begun.set()
        go_on.wait()

    async def leave() -> None:
        left = asyncio.ensure_future(threads.run(late))
        await asyncio.sleep(0)  # it is handed over
        begun.wait()
        left.cancel()

    async def next_ones() -> list[int]:
        return [await asyncio.wait_for(threads.run(int), 10) for _ in range(300)]

    asyncio.run(leave())
    go_on.set()
    assert asyncio.run(next_ones()) == [0] * 300
