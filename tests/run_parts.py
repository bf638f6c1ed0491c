"""Runs in real child processes: started fast, watched, stopped, compared."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import yaml

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

CLOCKS_AND_IDS = ("started_ns", "duration_ms", "latency_ms", "trace_id", "trace")


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


def proctor(*args: Any, cwd: Path | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    """The command, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "proctor", *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=120,
        **more,
    )


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


# -- children that start at once -------------------------------------------------------------------

# Imports everything once; then forks a child for each command line it is given, so that a test
# can afford a hundred of them. Each child is a process of its own, with its own files.
ZYGOTE = """
import json, os, sys, signal
import duckdb, proctor.cli.run, proctor.trials.api, proctor.trials.resume
import proctor.report.run_console, proctor.report.run_json, proctor.report.run_progress
import proctor.cli.interrupts, yaml
import proctor.agents.python, proctor.spec.plan, proctor.checks.correctness, proctor.cli.streams
from proctor.cli.main import run
print("ready", flush=True)
for line in sys.stdin:
    args, out, err = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for name, fd in ((out, 1), (err, 2)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
        os.close(0)
        code = 70
        try:
            code = run(args)
        finally:
            os._exit(code)
    print(pid, flush=True)
    sys.stdin.readline()  # till then the process id stays that of the child
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Zygote:
    """Forks `proctor` processes; one at a time."""

    def __init__(self, scratch: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ZYGOTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.out, self.err = scratch / "stdout", scratch / "stderr"
        assert self._read() == "ready"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def start(self, *args: Any) -> int:
        """Start a command; its process id, to be given up by `wait`."""
        self._write(json.dumps([[*map(str, args)], str(self.out), str(self.err)]))
        return int(self._read())

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait(self) -> int:
        """The exit code of the command, negative for a signal."""
        self._write("wait")
        return int(self._read())

    def run(self, *args: Any) -> int:
        """A command from beginning to end."""
        self.start(*args)
        return self.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


@contextmanager
def zygote(scratch: Path) -> Iterator[Zygote]:
    """A zygote for a test."""
    scratch.mkdir(parents=True, exist_ok=True)
    made = Zygote(scratch)
    try:
        yield made
    finally:
        made.close()


def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Watch for something that another process does."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        os.sched_yield()
