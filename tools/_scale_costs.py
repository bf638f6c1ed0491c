"""Measure the cost of one trial for the driver, the disk, the store and queries.

CPU seconds for our own work, so that other load does not count; wall seconds where waiting is the
cost (uploads). Nothing is assumed.
"""

import asyncio
import gc
import hashlib
import http.client
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

import proctor
from proctor.llm.rate_limits import RateLimit, RateLimiter
from proctor.results import query
from proctor.results.metadata import finalise
from proctor.runs.folder import RunFolder
from proctor.runs.journal import Journal, Sync
from proctor.runs.run import Run
from proctor.runs.trial import PlannedTrial, Trial
from proctor.seeds import derive_seeds

SMALL = 1_000
"""Trials run to measure one: several seconds of work."""

SPANS = 12
"""Spans of the trace of a trial: six calls of tools between seven thoughts is an ordinary one."""

AGENT = f"""
from proctor import tool

@tool
def look_up(word, depth): return {{"word": word, "depth": depth, "text": word * 20}}

async def agent(input, seed):
    found = [look_up(input, (seed >> step) % 97) for step in range({SPANS - 1})]
    return f"{{input}}: " + ", ".join(str(each["depth"]) for each in found)

async def instant(input): return input
"""


Points = dict[str, list[tuple[int, float]]]
"""Measured costs at several sizes."""


class Line(NamedTuple):
    """A straight line through measured points: `fixed + each · n`."""

    fixed: float
    each: float
    off: float = 0.0
    """Maximum relative deviation of a point from the line."""

    def at(self, count: float) -> float:
        """Return the cost for this count."""
        return self.fixed + self.each * count


class Costs(NamedTuple):
    """Unit costs. Seconds are of CPU unless a name says otherwise."""

    trial_s: float
    """Everything the driver does for a trial that runs in its own process, its agent included."""
    bare_s: float
    """The same for an agent that answers at once and leaves one span."""
    ray_s: float | None
    """Driver time for a trial on a Ray worker; None without Ray."""
    write_s: float
    """Part of it: encoding and writing one journal line."""
    permit_s: float
    """Handing out one permit of a rate limit."""
    plan_s: float
    plan_bytes: float
    """Memory of one planned trial."""
    journal_bytes: float
    trace_bytes: float
    parquet_bytes: float
    resume: Line
    """Reading a journal, by number of trials."""
    resume_bytes: float
    """Memory that each finished trial of a resumed run takes."""
    finalise_bytes: float
    """Memory that each trial takes at the most while a run is ended."""
    finalise: Line
    """Writing the columns, the summaries and the facts of a run that has ended."""
    query: Line
    """Pass rates by agent and case over one run, by number of trials."""
    upload_small_s: float | None
    """Wall seconds of one small request to the store; None without one."""
    upload_byte_s: float | None


def measure(sizes: tuple[int, ...], tell: Callable[[str], None], *, ray: bool = True) -> Costs:
    """Measure everything; takes some minutes."""
    with tempfile.TemporaryDirectory(prefix="proctor-scale-") as place:
        root = Path(place)
        tell("trials")
        bare = _run(root / "bare", "instant")[0]
        trial_s, run = _run(root / "whole", "agent")
        trials = list(run.trials())
        journal = run.folder.journal_path.stat().st_size / len(trials)
        traces = sum(p.stat().st_size for p in run.folder.traces_path.iterdir()) / len(trials)
        tell("plans, permits, lines")
        plan_s, plan_bytes = _planning()
        write_s = _writing(root / "lines.jsonl", trials)
        permit_s = _permits()
        points: Points = {}
        columns = run.folder.parquet_path.stat().st_size / len(trials)
        for size in sizes:
            tell(f"a run of {size:,} trials")
            _large(root / f"runs-{size}", run, trials, size, points)
        resume_bytes, finalise_bytes = _memory(root / "memory", run, trials)
        tell("uploads")
        small, byte = _uploads()
        tell("trials on workers of Ray")
        ray_s = _on_ray(root / "ray") if ray else None
    lines = {name: _fitted(found) for name, found in points.items()}
    return Costs(
        trial_s, bare, ray_s, write_s, permit_s, plan_s, plan_bytes, journal, traces, columns,
        lines["resume"], resume_bytes, finalise_bytes, lines["finalise"], lines["query"],
        small, byte,
    )  # fmt: skip


def _cpu(work: Callable[[], Any]) -> float:
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def _run(folder: Path, agent: str) -> tuple[float, Run]:
    """CPU seconds of one trial of a run with ordinary checks, and the run."""
    suite = _suite(folder, agent)
    proctor.run(suite, trials=5, results=folder / "warm")
    runs: list[Run] = []
    seconds = _cpu(
        lambda: runs.append(proctor.run(suite, trials=SMALL // 10, results=folder / "results"))
    )
    return seconds / SMALL, runs[0]


def _suite(folder: Path, agent: str) -> Path:
    """Write ten cases with ordinary checks, and their agent."""
    folder.mkdir()
    (folder / f"bots_{agent}.py").write_text(AGENT)
    case = {
        "input": "word",
        "correctness": {"expected_in_answer": ["word"], "regex_match": "^w"},
        "path": {"max_tool_calls": 20},
    }
    cases = [{**case, "id": f"case-{number}"} for number in range(10)]
    suite = folder / "suite.yaml"
    whole = {"version": 1, "agent": f"bots_{agent}:{agent}", "cases": cases}
    suite.write_text(yaml.safe_dump(whole))
    return suite


def _planning() -> tuple[float, float]:
    """CPU seconds and bytes of one planned trial."""
    count = 50_000

    def plan() -> list[PlannedTrial]:
        seeds = derive_seeds(count, 0, "case")
        return [PlannedTrial("case", "agent", index, seed) for index, seed in enumerate(seeds)]

    seconds = _cpu(plan) / count
    tracemalloc.start()
    kept = plan()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return seconds, used / len(kept)


def _writing(path: Path, trials: list[Trial]) -> float:
    journal = Journal(path, sync=Sync.NEVER)

    def write() -> None:
        for start in range(0, len(trials), 8):  # a few share a write, as they do in a run
            journal.extend(trials[start : start + 8])

    seconds = _cpu(write) / len(trials)
    journal.close()
    return seconds


def _permits() -> float:
    """CPU seconds of one permit while a window of requests is being kept."""
    count = 20_000
    limiter = RateLimiter(RateLimit(requests_per_minute=count * 2, tokens_per_minute=count * 2_000))

    async def take() -> None:
        for _ in range(count):
            (await limiter.acquire(1_000)).settle(900)

    return _cpu(lambda: asyncio.run(take())) / count


def _large(
    root: Path,
    model: Run,
    trials: list[Trial],
    size: int,
    points: dict[str, list[tuple[int, float]]],
) -> None:
    """Measure reading, finalizing and querying a run folder with copies of the model's trials."""
    path = root / "scale" / "2026-01-01_001"
    path.mkdir(parents=True)
    folder = RunFolder(path)
    spec = {**model.spec, "cells": [{**c, "trials": size // 10} for c in model.spec["cells"]]}
    folder.write_spec({key: value for key, value in spec.items() if key != "format"})
    _multiply(folder, trials, size)
    points.setdefault("resume", []).append((size, _cpu(lambda: sum(1 for _ in folder.trials()))))
    points.setdefault("finalise", []).append((size, _cpu(lambda: finalise(folder))))
    asked = _cpu(lambda: query(results=root).group_by("agent", "case"))
    points.setdefault("query", []).append((size, asked))


def _memory(root: Path, model: Run, trials: list[Trial]) -> tuple[float, float]:
    """Bytes of each finished trial while a run is resumed, and at the most while it is ended."""
    size = 5_000
    path = root / "scale" / "2026-01-01_001"
    path.mkdir(parents=True)
    folder = RunFolder(path)
    folder.write_spec({key: value for key, value in model.spec.items() if key != "format"})
    _multiply(folder, trials, size)
    tracemalloc.start()
    done: dict[str, Trial] = {}
    for trial in folder.trials():  # as a session does that goes on
        trial.checks, trial.answer = (), None
        done[trial.key] = trial
    resumed = tracemalloc.get_traced_memory()[0]
    del done
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    finalise(folder)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return resumed / size, peak / size


RAY = """
import sys, time, proctor
def cpu(trials):
    began = time.process_time()
    proctor.run(sys.argv[1], trials=trials, executor="ray", workers=2, concurrency=8, results="r")
    return time.process_time() - began
cpu(2)
few, many = cpu(20), cpu(220)
print((many - few) / 2000)
"""


def _on_ray(folder: Path) -> float | None:
    """CPU seconds of the driver for one trial on a worker, from the slope of two runs."""
    suite = _suite(folder, "instant")
    done = subprocess.run(  # noqa: S603 (our own words)
        [sys.executable, "-c", RAY, suite], cwd=folder, capture_output=True, text=True, check=False
    )
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def _multiply(folder: RunFolder, trials: list[Trial], size: int) -> None:
    """Write a journal of copies of these trials, each with its own index and seed."""
    seeds = derive_seeds(size, 0, "scale")
    journal = folder.journal(Sync.NEVER)
    for start in range(0, size, 1_000):
        journal.extend(
            [
                msgspec.structs.replace(
                    trials[number % len(trials)],
                    case=f"case-{number % 10}",
                    index=number // 10,
                    seed=seeds[number],
                )
                for number in range(start, min(size, start + 1_000))
            ]
        )
    journal.close()


def _fitted(points: list[tuple[int, float]]) -> Line:
    """The line through the first and the last point, never below zero at the beginning."""
    (few, low), (many, high) = points[0], points[-1]
    each = max(0.0, high - low) / (many - few)
    line = Line(max(0.0, low - each * few), each)
    return line._replace(off=max(abs(cost / line.at(n) - 1) for n, cost in points))


def _uploads() -> tuple[float | None, float | None]:
    """Wall seconds of a small request and of a byte, at moto's server on loopback."""
    try:
        from moto.server import ThreadedMotoServer

        from proctor.runs.remote.object_store import Bucket
    except ImportError:
        return None, None
    with _s3(ThreadedMotoServer) as url:
        bucket = Bucket(url)
        few, many = (asyncio.run(_puts(bucket, size, 10)) for size in (1 << 10, 8 << 20))
    return few, max(0.0, many - few) / (8 << 20)


async def _puts(bucket: Any, size: int, times: int) -> float:
    content = os.urandom(size)
    mark = hashlib.sha256(content).hexdigest()
    began = time.perf_counter()
    for number in range(times):
        await bucket.put(f"{size}/{number}", content, mark)
    return (time.perf_counter() - began) / times


@contextmanager
def _s3(make: Any) -> Iterator[str]:
    import logging

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = http.client.HTTPConnection(host, port, timeout=30)
    client.request("PUT", "/bucket")
    client.getresponse().read()
    client.close()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_REGION": "us-east-1",
    }
    try:
        yield "s3://bucket/scale"
    finally:
        server.stop()
