"""A zoo of agents that misbehave, for tests."""

# ruff: noqa: A002 (agents take their arguments by these names)

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from proctor.agents.base import AgentReply, AgentRequest
from proctor.trace.capture import tool


@tool
def lookup(word: str) -> str:
    return f"about {word}"


def fine(input: str) -> str:
    return f"fine: {lookup(input)}"


def raises(_: str) -> str:
    raise ValueError("the agent is broken")


def exits(_: str) -> str:
    sys.exit(3)


def exits_hard(_: str) -> str:
    os._exit(3)


def segfaults(_: str) -> str:
    ctypes.string_at(0)
    return "alive?"


def kills_itself(_: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "alive?"


def loops(_: str) -> str:
    while True:
        pass


def sleeps(_: str) -> str:
    time.sleep(3600)
    return "awake"


async def sleeps_async(_: str) -> str:
    await asyncio.sleep(3600)
    return "awake"


async def will_not_stop(_: str) -> str:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


def eats_memory(_: str) -> str:
    hoard = [bytearray(64 * 1024 * 1024) for _ in range(200)]
    return str(len(hoard))


def returns_none(_: str) -> None:
    return None


def returns_bytes(_: str) -> bytes:
    return b"caf\xc3\xa9 \xff"


def returns_flood(_: str) -> str:
    return "x" * 100_000_000


def prints_rubbish(_: str) -> str:
    print("\x1b[2J rubbish \0", flush=True)
    os.write(1, b"\xff\xfe more rubbish\n")
    return "said"


def closes_stdin(_: str) -> str:
    os.close(0)
    return "closed"


def forks(_: str) -> str:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    return str(child.pid)


async def leaks_tasks(_: str) -> str:
    leaks_tasks.kept = asyncio.ensure_future(asyncio.sleep(3600))  # type: ignore[attr-defined]
    return "leaked"


def leaks_threads(_: str) -> str:
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    return "leaked"


def mutates(input: dict[str, Any], seed: int) -> str:
    input["seen"] = input.get("seen", 0) + 1
    return str(input["seen"])


def writes_here(input: str, workdir: Path) -> str:
    (workdir / "note.txt").write_text(str(input))
    return str(workdir)


class Counter:
    """State that must not survive a trial."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _: str) -> str:
        self.count += 1
        return str(self.count)


class Runner:
    """An agent that is called by its method, as agents of other platforms are."""

    async def run(self, request: AgentRequest) -> AgentReply:
        return AgentReply(answer=f"{request.input}!")


class Uncallable:
    """A class that says nowhere what to call."""


def make_counter() -> Counter:
    return Counter()


def tells_its_trial(request):
    in_time = request.timeout is not None and 0 < request.timeout <= 60
    return f"{request.case} {request.index} {request.seed} {in_time}"
