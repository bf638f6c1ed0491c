"""What the pytest plugin adds to a project that does not use it.

    python benchmarks/pytest_start.py [--rounds N]

One trivial test, in three ways: pytest without Proctor installed, with it installed and blocked
(`-p no:proctor`), and with it installed. Proctor is installed from a wheel, as users have it: pytest
reads the list of files of every installed plugin, which an editable install would hide.
Goal: less than 10 ms more, in the median over rounds. Exit code 1 when missed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

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


def added(timings: list[Timing], name: str, to: str) -> float:
    """Seconds that one takes beyond another: the median over rounds of the difference in a round."""
    by_name = {timing.name: timing.samples for timing in timings}
    pairs = zip(by_name[name], by_name[to], strict=True)
    return statistics.median(one.wall - other.wall for one, other in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
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
    for other in (BARE, BLOCKED):
        print(f"{INSTALLED}: {added(timings, INSTALLED, other) * 1e3:+.1f} ms to {other}")
    over = added(timings, INSTALLED, BARE)
    print(f"goal: less than {GOAL_SECONDS * 1e3:.0f} ms more than {BARE}")
    return 1 if over >= GOAL_SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
