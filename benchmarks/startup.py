"""How long `proctor --version` and `proctor --help` take, against Python doing nothing.

    python benchmarks/startup.py [--rounds N]

Goal: at most 100 ms of wall time above bare Python, in the median. Exit code 1 when missed.
"""

import argparse
import sys

from _measure import compare, machine, runs, table

GOAL_SECONDS = 0.100
BARE = "python -c pass"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    rounds = parser.parse_args().rounds
    python = sys.executable
    timings = compare(
        {
            BARE: runs([python, "-c", "pass"]),
            "python -c 'import click'": runs([python, "-c", "import click"]),
            "import proctor": runs([python, "-c", "import proctor"]),
            "proctor --version": runs([python, "-m", "proctor", "--version"]),
            "proctor --help": runs([python, "-m", "proctor", "--help"]),
        },
        rounds,
    )
    print(machine())
    for clock in ("wall", "cpu"):
        print(f"\n{table(timings, BARE, clock)}")
    wall = {timing.name: timing.median("wall") for timing in timings}
    missed = False
    print()
    for name in ("proctor --version", "proctor --help"):
        above = wall[name] - wall[BARE]
        missed |= above > GOAL_SECONDS
        print(f"{name}: {above * 1e3:.1f} ms above bare Python (goal: {GOAL_SECONDS * 1e3:.0f} ms)")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
