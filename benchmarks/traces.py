"""Trees, queries, loading and memory of traces, against pydantic-evals, plain arrays, json.load.

    python benchmarks/traces.py [--quick] [--only tree|load|memory]

Goals at 100,000 spans: 20 times faster than pydantic-evals, growth linear on both shapes;
loading all of ../shared/trail within 2 times of `json.load`; a 100,000-span trace in less than
3 times the memory of its decoded JSON. Exit code 1 when one is missed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from _measure import (
    ROOT,
    Contestant,
    Sample,
    Timing,
    compare,
    machine,
    peer,
    reports,
    table,
)
from _trace_contest import RELATIONS, WORKS, rows

PEER = "pydantic-evals"
PEER_REQUIREMENTS = ["pydantic-evals==2.62.0"]
SIZES = (1_000, 10_000, 100_000)
GOAL_PEER = 20.0
GOAL_LOAD = 2.0
GOAL_MEMORY = 3.0
GOAL_GROWTH = 20.0
"""From 10,000 to 100,000 spans. Linear is 10, and leaving the processor's caches costs up to as
much again (plain arrays show it too); quadratic would be 100."""

PEER_CHAIN_CAP = 1_000
"""Ancestors and descendants are collected per span there: on a chain that is quadratic, so 10,000
spans would take minutes and 100,000 hours."""


TITLES = {"all": "build, then all eight"}


class Worker:
    """A contestant's process, which takes commands and answers with samples."""

    def __init__(self, name: str, python: str | Path) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [str(python), str(ROOT / "benchmarks" / "_trace_contest.py"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.found: dict[str, int] = {}

    def tell(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def contestant(self, work: str) -> Contestant:
        """One piece of work, clocked over there."""

        def once() -> Sample:
            told = self.tell(do=work)
            self.found[work] = told["found"]
            return Sample(wall=told["wall"], cpu=told["cpu"])

        return once


@contextmanager
def workers() -> Iterator[list[Worker]]:
    """Proctor, its peer and plain arrays, each in a process and an environment of its own."""
    pythons = {
        "proctor": sys.executable,
        PEER: peer(PEER, PEER_REQUIREMENTS),
        "arrays": sys.executable,
    }
    with ExitStack() as stack:
        started = [Worker(name, python) for name, python in pythons.items()]
        for worker in started:
            stack.enter_context(worker.process)
            assert worker.process.stdin is not None
            stack.callback(worker.process.stdin.close)
        yield started


def too_deep(worker: Worker, work: str, shape: str, size: int) -> bool:
    relational = work in RELATIONS or work == "all"
    return worker.name == PEER and shape == "chain" and relational and size > PEER_CHAIN_CAP


def trees(sizes: tuple[int, ...], rounds: int) -> list[str]:
    """Build and eight queries on both shapes; returns the goals that were missed."""
    medians: dict[tuple[str, int, str, str], float] = {}
    with workers() as contestants:
        for shape in ("bushy", "chain"):
            for size in sizes:
                for worker in contestants:
                    worker.tell(do="setup", shape=shape, size=size)
                print(f"\n### {shape}, {size:,} spans: CPU ms, median (quartiles)\n")
                print(f"| | {' | '.join(w.name for w in contestants)} | {PEER} ÷ proctor |")
                print("|---|" + "---:|" * (len(contestants) + 1))
                for work in WORKS:
                    able = [w for w in contestants if not too_deep(w, work, shape, size)]
                    timings = compare({w.name: w.contestant(work) for w in able}, rounds)
                    found = {w.name: w.found[work] for w in able}
                    assert len(set(found.values())) == 1, f"answers differ: {work}, {found}"
                    by_name = {timing.name: timing for timing in timings}
                    print(line(work, contestants, by_name), flush=True)
                    for name, timing in by_name.items():
                        medians[shape, size, work, name] = timing.median()
    return [*behind_peer(medians, sizes[-1]), *growth(medians, sizes)]


def line(work: str, contestants: list[Worker], timings: Mapping[str, Timing]) -> str:
    cells = []
    for worker in contestants:
        timing = timings.get(worker.name)
        if timing is None:
            cells.append("–")
            continue
        low, high = timing.spread()
        cells.append(f"{timing.median() * 1e3:.2f} ({low * 1e3:.2f}–{high * 1e3:.2f})")
    theirs = timings.get(PEER)
    ratio = f"{theirs.median() / timings['proctor'].median():.0f}" if theirs else "–"
    return f"| {TITLES.get(work, work)} | {' | '.join(cells)} | {ratio} |"


def behind_peer(medians: Mapping[tuple[str, int, str, str], float], size: int) -> list[str]:
    missed = []
    for (shape, at, work, name), theirs in medians.items():
        if name == PEER and at == size:
            ratio = theirs / medians[shape, at, work, "proctor"]
            if ratio < GOAL_PEER:
                missed.append(f"{shape}, {size:,} spans, {work}: {ratio:.1f} × {PEER}")
    return missed


def growth(medians: Mapping[tuple[str, int, str, str], float], sizes: tuple[int, ...]) -> list[str]:
    """Print what ten times the spans cost, and return where that is not linear."""
    small, large = sizes[-2:]
    print(f"\n### Growth from {small:,} to {large:,} spans (linear: {large // small})\n")
    print("| | proctor, bushy | proctor, chain | arrays, bushy | arrays, chain |")
    print("|---|---:|---:|---:|---:|")
    missed = []
    for work in WORKS:
        factors = {
            (name, shape): medians[shape, large, work, name] / medians[shape, small, work, name]
            for name in ("proctor", "arrays")
            for shape in ("bushy", "chain")
        }
        cells = " | ".join(f"{factor:.1f}" for factor in factors.values())
        print(f"| {TITLES.get(work, work)} | {cells} |")
        for (name, shape), factor in factors.items():
            if name == "proctor" and factor > GOAL_GROWTH:
                missed.append(f"growth of {work} on {shape}: {factor:.1f}")
    return missed


# -- loading and memory ---------------------------------------------------------------------------

CLOCKED = """
import json, sys, time
from pathlib import Path
folder = sys.argv[1]
{setup}
wall, cpu = time.perf_counter(), time.process_time()
kept = {work}
print(json.dumps({{"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}}))
"""
"""Loads a folder in a fresh process, and holds it all until the clock has stopped."""

JSON_LOAD = """
def load(file):
    with file.open(encoding="utf-8") as stream:
        try:
            return json.load(stream)
        except ValueError:
            return None  # one file of TRAIL is not JSON
"""

MSGSPEC_LOAD = """
import msgspec
def load(file):
    try:
        return msgspec.json.decode(file.read_bytes())
    except ValueError:
        return None
"""

EVERY_FILE = "[load(file) for file in sorted(Path(folder).rglob('*.json'))]"


def loading(rounds: int) -> list[str]:
    """All of TRAIL, as a user loads it, against decoding the same files."""
    folder = ROOT.parent / "shared" / "trail"
    if not folder.is_dir():
        print("\nloading: left out, there is no folder `shared/trail` beside the repository")
        return []
    works = {
        "json.load": (JSON_LOAD, EVERY_FILE),
        "msgspec.json.decode": (MSGSPEC_LOAD, EVERY_FILE),
        "proctor.load_traces": (
            "from proctor.trace.load import load_traces",
            "load_traces(folder)",
        ),
    }
    contestants = {
        name: reports([sys.executable, "-c", CLOCKED.format(setup=setup, work=work), folder])
        for name, (setup, work) in works.items()
    }
    timings = compare(contestants, rounds)
    print(f"\n### Loading all of shared/trail\n\n{table(timings, 'json.load')}")
    by_name = {timing.name: timing.median() for timing in timings}
    ratio = by_name["proctor.load_traces"] / by_name["json.load"]
    return [f"loading TRAIL: {ratio:.2f} × json.load"] if ratio > GOAL_LOAD else []


HELD = """
import gc, json, sys, tracemalloc
{setup}
def run(path):
    return {work}
run(sys.argv[2])  # what is imported and cached once is not counted
tracemalloc.start()
kept = run(sys.argv[1])
gc.collect()
held, peak = tracemalloc.get_traced_memory()
print(json.dumps({{"held": held, "peak": peak}}))
"""


WITH_TREE = """
from proctor.trace.load import load_traces
def with_tree(path):
    traces = load_traces(path)
    tree = traces[0].index
    tree.children, tree.depth, tree.descendant_count, tree.names, tree.durations
    return traces
"""


def otlp(size: int) -> str:
    """A trace of `size` spans as one OTLP JSON export request."""
    spans = [
        {
            "traceId": f"{1:032x}",
            "spanId": f"{row.id:016x}",
            "parentSpanId": "" if row.parent is None else f"{row.parent:016x}",
            "name": row.name,
            "kind": 1,
            "startTimeUnixNano": str(row.start * 1000),
            "endTimeUnixNano": str(row.end * 1000),
            "attributes": [
                {"key": "gen_ai.request.model", "value": {"stringValue": "gpt-4o"}},
                {"key": "gen_ai.usage.input_tokens", "value": {"intValue": str(row.id % 1000)}},
                {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                {"key": "session.id", "value": {"stringValue": row.attributes["session.id"]}},
            ],
            "status": {"code": 2} if row.status == "error" else {},
        }
        for row in rows("bushy", size)
    ]
    scope = {"scope": {"name": "benchmark"}, "spans": spans}
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [scope]}]})


def memory(size: int) -> list[str]:
    """What a trace holds, against its decoded JSON; allocations counted exactly by Python."""
    ways = {
        "decoded JSON": ("", "json.load(open(path))"),
        "loaded trace": ("from proctor.trace.load import load_traces", "load_traces(path)"),
        "loaded trace, tree built": (WITH_TREE, "with_tree(path)"),
    }
    told: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder) / "large.json", Path(folder) / "small.json"
        large.write_text(otlp(size), encoding="utf-8")
        small.write_text(otlp(10), encoding="utf-8")
        for name, (setup, work) in ways.items():
            code = HELD.format(setup=setup, work=work)
            command = [sys.executable, "-c", code, str(large), str(small)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            told[name] = json.loads(done.stdout)
        print(f"\n### Memory of {size:,} spans ({large.stat().st_size / 1e6:.0f} MB of OTLP JSON)")
    base = told["decoded JSON"]["held"]
    print("\n| | held, MB | × decoded JSON | peak, MB |\n|---|---:|---:|---:|")
    for name, figures in told.items():
        held, peak = figures["held"], figures["peak"]
        print(f"| {name} | {held / 1e6:.1f} | {held / base:.2f} | {peak / 1e6:.1f} |")
    ratio = told["loaded trace, tree built"]["held"] / base
    return [f"memory of a trace: {ratio:.2f} × its JSON"] if ratio > GOAL_MEMORY else []


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small trees and three rounds")
    parser.add_argument("--only", choices=("tree", "load", "memory"))
    arguments = parser.parse_args()
    sizes = SIZES[:2] if arguments.quick else SIZES
    rounds = 3 if arguments.quick else 7
    parts = {
        "tree": lambda: trees(sizes, rounds),
        "load": lambda: loading(rounds),
        "memory": lambda: memory(sizes[-1]),
    }
    print(machine())
    missed = [
        goal
        for part, measure in parts.items()
        if arguments.only in (None, part)
        for goal in measure()
    ]
    print("\n" + ("\n".join(f"missed: {goal}" for goal in missed) or "all goals met"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
