"""Compare two versions of Proctor by CPU time: start-up, one trial, 1,000 and 10,000 trials.

    python benchmarks/compare_trees.py OLD_SRC NEW_SRC [--rounds 11] [--sizes 1000 10000]

OLD_SRC and NEW_SRC are `src` folders of two checkouts; both run under this Python. Rounds are
interleaved and each ratio is taken within a round, so a busy machine slows both versions down
alike. `--version` and one trial are whole `proctor` processes, start-up included. Many trials are
one call of `proctor.run` in a process that has imported and used everything before, because
start-up takes longer than 10,000 instant trials. The agent is an async function that returns at
once, 100 trials at a time. Every figure is user plus system CPU time.

Exit code 1 when a goal is missed by the median: `--version` at most 100 ms above bare Python, one
trial not slower than OLD (5 % are noise), many trials at most 1.3 × OLD.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from _measure import Contestant, Timing, compare, machine, reports, runs, verdict

GOAL_VERSION_MS = 100.0
GOAL_ONE_TRIAL = 1.05
GOAL_MANY_TRIALS = 1.3
BARE = "python -c pass"

AGENT = "async def answer(question):\n    return 'Paris'\n"
SUITE = """\
version: 1
agent: agent:answer
cases:
  - input: What is the capital of France?
    correctness: {expected_in_answer: [Paris]}
"""


MANY_TRIALS = """\
import json, sys, tempfile, time
import proctor

def run(trials):
    with tempfile.TemporaryDirectory(dir=".") as results:
        done = proctor.run("suite.yaml", trials=trials, concurrency=100, results=results)
        assert sum(cell.passed for cell in done.cells) == trials

run(10)
wall, cpu = time.perf_counter(), time.process_time()
run(int(sys.argv[1]))
print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}))
"""


def contestant(source: Path, folder: Path, trials: int) -> Contestant:
    """Run this many trials with one source tree in a project folder; 0 is `--version`."""
    env = {**os.environ, "PYTHONPATH": str(source), "HOME": str(folder)}
    proctor = [sys.executable, "-m", "proctor"]
    if trials == 0:
        return runs([*proctor, "--version"], env=env)
    if trials == 1:
        return runs([*proctor, "run", "suite.yaml", "--trials", "1", "--quiet"], env=env)
    return reports([sys.executable, "-c", MANY_TRIALS, str(trials)], env=env)


def ratios(old: Timing, new: Timing) -> list[float]:
    """NEW ÷ OLD of each round."""
    return [b.cpu / a.cpu for a, b in zip(old.samples, new.samples, strict=True)]


def quartiles(values: Sequence[float], digits: int) -> str:
    """Median and quartiles as text."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f} ({low:.{digits}f} – {high:.{digits}f})"


def main() -> int:
    """Print one table and say which goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, metavar="OLD_SRC")
    parser.add_argument("new", type=Path, metavar="NEW_SRC")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000, 10_000])
    options = parser.parse_args()
    trees = {"old": options.old.resolve(), "new": options.new.resolve()}
    for tree in trees.values():
        if not (tree / "proctor" / "__init__.py").is_file():
            parser.error(f"{tree} holds no package `proctor`")
    jobs = {"proctor --version": 0, "proctor run, 1 trial": 1}
    jobs |= {f"{size:,} trials": size for size in options.sizes}

    with tempfile.TemporaryDirectory(prefix="compare-trees-") as name:
        folder = Path(name)
        (folder / "agent.py").write_text(AGENT, encoding="utf-8")
        (folder / "suite.yaml").write_text(SUITE, encoding="utf-8")
        contestants = {BARE: runs([sys.executable, "-c", "pass"])}
        for job, trials in jobs.items():
            for label, tree in trees.items():
                contestants[f"{job}, {label}"] = contestant(tree, folder, trials)
        os.chdir(folder)
        timings = {timing.name: timing for timing in compare(contestants, options.rounds)}

    bare = timings[BARE].median()
    print(machine())
    print(f"\nCPU ms, median (quartiles) of {options.rounds} rounds; {BARE}: {bare * 1e3:.1f}\n")
    print("| | old | new | new ÷ old | goal | |")
    print("|---|---:|---:|---:|---:|---|")
    missed = False
    for job, trials in jobs.items():
        old, new = timings[f"{job}, old"], timings[f"{job}, new"]
        changes = ratios(old, new)
        if trials == 0:
            above = (new.median() - bare) * 1e3
            goal, good = f"{GOAL_VERSION_MS:.0f} ms above bare", above <= GOAL_VERSION_MS
            goal = f"{above:.0f} of {goal}"
        else:
            most = GOAL_ONE_TRIAL if trials == 1 else GOAL_MANY_TRIALS
            goal, good = f"{most} ×", statistics.median(changes) <= most
        missed |= not good
        cells = [quartiles([s.cpu * 1e3 for s in t.samples], 1) for t in (old, new)]
        print(
            f"| {job} | {' | '.join(cells)} | {quartiles(changes, 3)} | {goal} | {verdict(good)} |"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
