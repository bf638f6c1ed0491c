"""Measure the overhead of the pytest plugin in a project that does not use it.

    python benchmarks/pytest_start.py [--rounds N]

One trivial test, in three ways: pytest without Proctor installed, with it installed and blocked
(`-p no:proctor`), and with it installed. Proctor comes from a wheel, as users have it: pytest reads
the list of files of every installed plugin, which an editable install would hide.

Goal: less than 10 ms of wall time more. What is judged is the median over rounds of the difference
within a round, with its 95 % interval, since a busy machine is off by far more than 10 ms. Exit
code 0 when the interval lies below the goal, 1 when it lies above, 2 when these rounds cannot tell.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from _measure import ROOT, Timing, compare, machine, peer, runs, table

GOAL_SECONDS = 0.010
BARE = "pytest, no Proctor"
BLOCKED = "pytest -p no:proctor"
INSTALLED = "pytest, Proctor installed"


def installed_from_wheel() -> Path:
    """The Python of an environment with pytest and today's Proctor; its dependencies stay out."""
    python = peer("pytest-with-proctor", [f"pytest=={version('pytest')}"])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        (wheel,) = Path(folder).glob("*.whl")
        pip = [python, "-m", "pip", "install", "-qq", "--no-deps", "--force-reinstall"]
        subprocess.run([*pip, wheel], check=True)
    return python


class Added(NamedTuple):
    """Seconds that one takes beyond another: a median and the interval it lies in."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        low, high = self.low * 1e3, self.high * 1e3
        return f"{self.median * 1e3:+.1f} ms (95 %: {low:+.1f} to {high:+.1f})"


def added(timings: list[Timing], name: str, to: str, clock: str) -> Added:
    """The median difference within a round, with the interval of the sign test around it."""
    by_name = {timing.name: timing.samples for timing in timings}
    pairs = zip(by_name[name], by_name[to], strict=True)
    differences = sorted(getattr(one, clock) - getattr(other, clock) for one, other in pairs)
    n = len(differences)
    # The most samples that may be cut off at each end with 2.5 % to lose, by coin tosses.
    cut, lost = 0, 0.0
    while lost + math.comb(n, cut) / 2**n <= 0.025:
        lost += math.comb(n, cut) / 2**n
        cut += 1
    edge = max(0, cut - 1)
    return Added(statistics.median(differences), differences[edge], differences[n - 1 - edge])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=101)
    rounds = parser.parse_args().rounds
    bare = peer("pytest", [f"pytest=={version('pytest')}"])
    proctor = installed_from_wheel()
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder, "test_nothing.py")
        test.write_text("def test_nothing():\n    pass\n", encoding="utf-8")
        Path(folder, "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", test]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON"))}
        timings = compare(
            {
                BARE: runs([bare, *arguments], env),
                BLOCKED: runs([proctor, *arguments, "-p", "no:proctor"], env),
                INSTALLED: runs([proctor, *arguments], env),
            },
            rounds,
            warm_up=2,
        )
    print(machine())
    for clock in ("wall", "cpu"):
        print(f"\n{table(timings, BARE, clock)}")
    print()
    for clock in ("wall", "cpu"):
        for other in (BARE, BLOCKED):
            told = added(timings, INSTALLED, other, clock)
            print(f"{INSTALLED}, {clock}: {told} to {other}")
    over = added(timings, INSTALLED, BARE, "wall")
    if over.high < GOAL_SECONDS:
        verdict, code = "met", 0
    elif over.low >= GOAL_SECONDS:
        verdict, code = "missed", 1
    else:
        verdict, code = "these rounds cannot tell: take more, or a quieter machine", 2
    print(f"goal, less than {GOAL_SECONDS * 1e3:.0f} ms of wall time: {verdict}")
    return code


if __name__ == "__main__":
    sys.exit(main())
