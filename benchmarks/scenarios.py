"""Compare a cached build of a scenario with a full build, and with only reading the files.

    python benchmarks/scenarios.py [--rounds N] [--builds N]

Goal: a thousand builds of the same template, seed and parameters cost one build and look-ups: in
CPU time less than a fifth of building each anew. Exit code 1 when missed.
"""

import argparse
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from _measure import calls, compare, machine, table

from proctor.scenarios import Built, Catalog, build
from proctor.scenarios.catalog import SHIPPED

NAME = "mutualism.hidden_dependency@hard"
SEED = 7
GOAL = 0.2

ANEW, CACHED, BARE, CASES = (
    "built anew each time",
    "one build, then look-ups",
    "the same files read and hashed",
    "look-ups, and the case of each",
)


def built_anew(catalog: Catalog, builds: int, root: Path) -> None:
    for number in range(builds):
        out = root / f"{os.getpid()}-{number}"
        build(NAME, SEED, catalog=catalog, cache=False, out=out)
        for path in out.iterdir():
            path.unlink()
        out.rmdir()


def one_build_then_look_ups(catalog: Catalog, builds: int) -> None:
    with tempfile.TemporaryDirectory() as fresh:
        os.environ["XDG_CACHE_HOME"] = fresh
        for _ in range(builds):
            build(NAME, SEED, catalog=catalog)


def look_ups_with_cases(catalog: Catalog, builds: int) -> None:
    with tempfile.TemporaryDirectory() as fresh:
        os.environ["XDG_CACHE_HOME"] = fresh
        for _ in range(builds):
            build(NAME, SEED, catalog=catalog).case()


def files_of(built: Built) -> list[Path]:
    """Return every file that a look-up reads: the template, its includes, the built folder."""
    assert built.template is not None
    return [*built.template.files, *built.path.iterdir(), built.path.parent / "digests.json"]


def bare_reading(files: list[Path], builds: int) -> None:
    for _ in range(builds):
        for file in files:
            hashlib.sha256(file.read_bytes()).digest()


def contestants(builds: int, root: Path) -> dict[str, Callable[[], object]]:
    catalog = Catalog([SHIPPED])
    os.environ["XDG_CACHE_HOME"] = str(root / "kept")
    files = files_of(build(NAME, SEED, catalog=catalog))
    return {
        BARE: lambda: bare_reading(files, builds),
        CACHED: lambda: one_build_then_look_ups(catalog, builds),
        CASES: lambda: look_ups_with_cases(catalog, builds),
        ANEW: lambda: built_anew(catalog, builds, root),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--builds", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        work = contestants(options.builds, Path(root))
        timings = compare({name: calls(each) for name, each in work.items()}, options.rounds)
    print(f"{machine()}; {options.builds:,} builds of {NAME}, seed {SEED}\n")
    print(table(timings, BARE, "cpu"))
    median = {timing.name: timing.median("cpu") for timing in timings}
    share = median[CACHED] / median[ANEW]
    print(f"\ncached ÷ anew: {share:.3f} (goal: at most {GOAL})")
    return 1 if share > GOAL else 0


if __name__ == "__main__":
    sys.exit(main())
