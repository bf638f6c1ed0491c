"""Measure the time of a diagnosis, the time to load the model, and memory growth.

    python benchmarks/diagnosis.py [--trail ../shared/trail] [--rounds N]

Every trace of TRAIL is loaded before the clock starts, then diagnosed by each method. Goals: 50 ms
a trace in the median with `offline`, 200 ms to load the model, no growth over the rounds. The
model is read in a child process, so that numpy is neither warm nor counted.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

# CPU time of several threads is not time waited. Set before numpy is loaded.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from _measure import ROOT, machine

from proctor.diagnose.methods import diagnose
from proctor.trace.load import load_traces

METHODS = ("rules", "learned", "offline")

LOAD = """
import time, numpy
from proctor.diagnose.learned.detector import detectors
started = time.process_time()
detectors()
print(time.process_time() - started)
"""


def seconds_to_load(rounds: int) -> list[float]:
    """CPU seconds that reading the shipped model takes, each time in a fresh process."""
    command = [sys.executable, "-c", LOAD]
    told = [subprocess.run(command, capture_output=True, check=True) for _ in range(rounds)]
    return [float(run.stdout) for run in told]


def main() -> None:
    """Print a table of CPU milliseconds, then loading and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trail", type=Path, default=ROOT.parent / "shared" / "trail")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    paths = sorted((options.trail / "data").rglob("*.json"))
    traces = [trace for path in paths for trace in load_traces(path)]
    print(machine())
    print(f"{len(traces)} traces, {options.rounds} rounds; CPU ms a trace\n")
    print("| method | median | 9 of 10 within | slowest |\n|---|---:|---:|---:|")
    for method in METHODS:
        diagnose(traces[0], method)
        taken: list[float] = []
        for _ in range(options.rounds):
            for trace in traces:
                started = time.process_time()
                diagnose(trace, method)
                taken.append((time.process_time() - started) * 1000)
        tenth = statistics.quantiles(taken, n=10)[-1]
        print(f"| {method} | {statistics.median(taken):.1f} | {tenth:.1f} | {max(taken):.1f} |")
    loads = [seconds * 1000 for seconds in seconds_to_load(options.rounds)]
    print(f"\nloading the model: {statistics.median(loads):.0f} ms CPU, once a process")
    tracemalloc.start()
    held: list[float] = []
    for _ in range(options.rounds):
        for trace in traces:
            diagnose(trace)
        held.append(tracemalloc.get_traced_memory()[0] / 1e6)
    print("memory held after each round, MB:", ", ".join(f"{size:.2f}" for size in held))


if __name__ == "__main__":
    main()
