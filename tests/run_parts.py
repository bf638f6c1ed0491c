"""Runs in real child processes: started fast, watched, stopped, compared."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import yaml
from commands import Started, start

AGENTS = '''
import asyncio, os, time
from proctor import tool
from proctor.agents.base import AgentError

@tool
def look_up(word): return {"word": word, "length": len(word)}

async def steady(input, seed):
    """Deterministic: the answer and the calls depend on input and seed alone."""
    found = [look_up(input) for _ in range(1 + seed % 3)]
    return f"{input} {seed % 7} {found[0]['length']}"

async def instant(input): return input
async def wait(input): await asyncio.sleep(600)
def block_thread(input): time.sleep(600)
async def block_loop(input): time.sleep(600)
async def stubborn(input):
    while True:
        try: await asyncio.sleep(600)
        except asyncio.CancelledError: pass
'''

CLOCKS_AND_IDS = (
    *("started_ns", "duration_ms", "latency_ms", "queue_ms", "startup_ms", "check_ms"),
    *("trace_id", "trace"),
)
CLOCKS_OF_CELLS = ("latency_p50_ms", "latency_p90_ms", "latency_p95_ms", "latency_p99_ms")


def write_suite(
    folder: Path, *, agent: str = "bots:steady", cases: int = 3, **defaults: Any
) -> Path:
    """A suite of small cases, with the agents above beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bots.py").write_text(AGENTS)
    suite = {
        "version": 1,
        "agent": agent,
        "defaults": defaults,
        "cases": [
            {
                "id": f"case-{i}",
                "input": f"word{i}",
                "correctness": {"expected_in_answer": [f"word{i}"]},
                "path": {"max_tool_calls": 2},
            }
            for i in range(cases)
        ],
    }
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(suite))
    return path


def only_run(results: Path) -> Path:
    """The only run folder below a results folder."""
    (run,) = results.glob("*/*")
    return run


def journal(run: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal."""
    path = run / "trials.jsonl"
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


def rows(run: Path) -> list[tuple[Any, ...]]:
    """The rows of results.parquet, in their order, without clocks and ids."""
    listed = ", ".join(f'"{name}"' for name in CLOCKS_AND_IDS)
    query = f"SELECT * EXCLUDE ({listed}) FROM read_parquet(?)"
    with duckdb.connect() as connection:
        found = connection.execute(query, [str(run / "results.parquet")]).fetchall()
    # Checks of latency and the spans they point at are clocks and ids again.
    return [tuple(_plain(value) for value in row) for row in found]


def _plain(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("[") and "span_ids" in value:
        return json.dumps(
            [{k: v for k, v in r.items() if k != "span_ids"} for r in json.loads(value)]
        )
    return value


class Children:
    """Commands that a test kills; one at a time, each in a session of its own."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.out, self.err = scratch / "stdout", scratch / "stderr"
        self._started: Started | None = None

    def start(self, *args: Any) -> int:
        """Start a command; its process id, to be given up by `wait`."""
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self._started = start(*args, stdout=out, stderr=err, session=True)
        return self._started.pid

    def wait(self) -> int:
        """The exit code of the command, negative for a signal."""
        assert self._started is not None
        return self._started.wait()

    def run(self, *args: Any) -> int:
        """A command from beginning to end."""
        self.start(*args)
        return self.wait()


def clock_of(process: subprocess.Popen[str]) -> Callable[[], float]:
    """Return a clock that waits for a process to end, and gives its seconds from now to then.

    Seconds in which it waited for a processor are not counted: promises about time are about
    what a program does, not about how busy the machine is.
    """

    def queued() -> float:
        return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e9

    began = time.monotonic() - queued()

    def seconds() -> float:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return time.monotonic() - queued() - began

    return seconds


def until(holds: Callable[[], bool], seconds: float = 180.0, *, every: float = 0.005) -> None:
    """Watch for something that another process does; `every` 0 watches without a pause."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(every)
