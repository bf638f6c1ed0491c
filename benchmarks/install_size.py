"""How large a fresh installation is, package by package, and how long its command takes to start.

    python benchmarks/install_size.py [--extras llm,server] [--rounds N]

Builds a wheel of this tree, installs it with pip into an empty environment (needs the package
index), and measures what pip wrote: files, and the bytecode it compiled. Goal of the base
installation: at most 240 MB, of which numpy and DuckDB are 142. Exit code 1 when missed.
"""

import argparse
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from _measure import compare, machine, runs, table

ROOT = Path(__file__).resolve().parent.parent
GOAL_MB = 240
BARE = "python -c pass"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="")
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        (wheel,) = place.glob("*.whl")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "env"], check=True)
        python = place / "env/bin/python"
        what = f"proctor[{options.extras}] @ {wheel.as_uri()}" if options.extras else str(wheel)
        base = getattr(sys, "_base_executable", sys.executable)
        subprocess.run(
            [base, "-m", "pip", "--python", python, "install", "--quiet", what],
            check=True,
        )
        (packages,) = (place / "env/lib").glob("python*/site-packages")
        sizes = {
            each.name: sum(
                (packages / file).stat().st_size
                for file in each.files or ()
                if (packages / file).is_file()
            )
            for each in metadata.distributions(path=[str(packages)])
        }
        whole = {path: path.stat().st_size for path in packages.rglob("*") if path.is_file()}
        total, compiled = (
            sum(size for path, size in whole.items() if kind(path)) / 1e6
            for kind in (lambda path: True, lambda path: path.suffix == ".pyc")
        )
        command = str(place / "env/bin/proctor")
        timings = compare(
            {
                BARE: runs([str(python), "-c", "pass"]),
                "proctor --version": runs([command, "--version"]),
                "proctor --help": runs([command, "--help"]),
            },
            options.rounds,
        )
    print(machine())
    print(f"\n| package | MB |\n|---|---|\n| all {len(sizes)} | {total:.0f} |")
    print(f"| of which bytecode | {compiled:.0f} |")
    for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:12]:
        print(f"| {name} | {size / 1e6:.1f} |")
    print(f"\n{table(timings, BARE, 'wall')}")
    print(f"\nbase installation: {total:.0f} MB (goal: {GOAL_MB} MB)")
    return 1 if total > GOAL_MB and not options.extras else 0


if __name__ == "__main__":
    sys.exit(main())
