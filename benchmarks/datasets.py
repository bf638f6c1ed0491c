"""A run on a large data set: the start of its first trial, and its peak memory.

    python benchmarks/datasets.py [--rounds N] [--rows N] [--whole]

`proctor run` of a suite whose cases are the rows of a CSV file, with a Python agent, in a process
of its own. Start: from the start of the process to the first call of the agent, the best of the
rounds, since other processes only ever add to it. Memory: the largest resident set of any process
of the run. A run has 100 trials, so that both sizes do the same work; with `--whole` each row has
its trial, and only memory has a goal.
Goals: at most 2 s at 100,000 rows, and at most 1.2 times the memory of a tenth of the rows.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _measure import machine

GOAL_SECONDS, GOAL_MEMORY = 2.0, 1.2
TRIALS = 100
SUITE = """
agent: agent:answer
cases:
  data: rows.csv
  columns: {id: id, input: question, properties: [topic]}
  case: {trials: 1, correctness: {expected_in_answer: '{answer}'}}
"""
AGENT = """
import os, time

def answer(text):
    if not os.path.exists(os.environ["FIRST"]):
        with open(os.environ["FIRST"], "w") as file:
            file.write(str(time.time()))
    words = text.split()
    return str(int(words[2]) + int(words[4].rstrip("?")))
"""


def write_project(folder: Path, rows: int) -> None:
    folder.mkdir()
    (folder / "suite.yaml").write_text(SUITE)
    (folder / "agent.py").write_text(AGENT)
    with (folder / "rows.csv").open("w") as file:
        file.write("id,question,answer,topic\n")
        for number in range(rows):
            question = f"What is {number} plus {number + 1}? Please answer in one sentence."
            file.write(f"q{number:06d},{question},{2 * number + 1},{'ab'[number % 2]}\n")


def run_once(folder: Path, whole: bool) -> tuple[float, float, float]:
    """Return seconds to the first trial, CPU seconds of the command, and peak megabytes."""
    first = folder / "first.txt"
    first.unlink(missing_ok=True)
    command = [sys.executable, "-m", "proctor", "run", "suite.yaml", "--quiet"]
    command += [] if whole else ["--max-trials", str(TRIALS)]
    environment = {**os.environ, "FIRST": str(first)}
    began = time.time()
    child = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    # Its resident set includes those of the processes that it has waited for.
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == (0 if whole else 2), child.returncode
    cpu = used.ru_utime + used.ru_stime
    return float(first.read_text()) - began, cpu, used.ru_maxrss / 1024


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--whole", action="store_true")
    given = options.parse_args()
    print(machine())
    best: dict[int, tuple[float, float, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        sizes = (given.rows // 10, given.rows)
        for rows in sizes:
            write_project(Path(place) / str(rows), rows)
        for _ in range(given.rounds):
            for rows in sizes:
                found = run_once(Path(place) / str(rows), given.whole)
                best[rows] = tuple(map(min, zip(best.get(rows, found), found, strict=True)))  # pyright: ignore[reportArgumentType]
    print("| rows | first trial | CPU of the command | peak memory |\n|---:|---:|---:|---:|")
    for rows, (start, cpu, memory) in best.items():
        print(f"| {rows:,} | {start:.2f} s | {cpu:.2f} s | {memory:.0f} MB |")
    ratio = best[sizes[1]][2] / best[sizes[0]][2]
    print(
        f"\nfirst trial at {sizes[1]:,} rows: {best[sizes[1]][0]:.2f} s (goal {GOAL_SECONDS:g} s)"
    )
    print(f"memory: ×{ratio:.2f} (goal ×{GOAL_MEMORY:g})")
    late = best[sizes[1]][0] > GOAL_SECONDS and not given.whole
    return int(late or ratio > GOAL_MEMORY)


if __name__ == "__main__":
    sys.exit(main())
