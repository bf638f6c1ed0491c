"""Plain functions beside an event loop."""

import asyncio
import threading

from proctor.agents.threads import DaemonThreads


def test_a_thread_whose_loop_has_gone_serves_the_next() -> None:
    """R-R1: a function that ends after its run has left does not keep the next run waiting."""
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
