"""Make every comparison and write one table of all their figures, as Markdown and as JSON.

    benchmarks/run [--quick] [--only startup query ...] [--fetch] [-o FOLDER]

Each benchmark runs as it does alone, one after the other; its tables are taken from what it
prints, figures as they stand. Peers that are not there are left out, and that is said, unless
`--fetch` allows to bring them from the package index. Exit code 1: a goal was missed or a
benchmark failed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from _measure import machine

HERE = Path(__file__).resolve().parent


class Benchmark(NamedTuple):
    """A benchmark program, its issue, and the arguments for a quick run."""

    issue: int
    about: str
    quick: tuple[str, ...]


ALL = {
    "startup": Benchmark(1, "start of the command", ("--rounds", "11")),
    "install_size": Benchmark(1, "size of an installation", ("--rounds", "11")),
    "traces": Benchmark(2, "trees, queries, loading, memory", ("--quick",)),
    "matching": Benchmark(3, "trajectory matching", ("--rounds", "3", "--pairs", "200")),
    "observe": Benchmark(5, "model calls seen over HTTP", ("--rounds", "3", "--calls", "200")),
    "checks": Benchmark(3, "a case's checks", ("--rounds", "3", "--pairs", "200")),
    "pytest_start": Benchmark(3, "what the plugin costs others", ("--rounds", "15")),
    "trials": Benchmark(4, "many trials", ("--quick", "--no-flatness")),
    "conversations": Benchmark(
        10, "turns of conversations", ("--rounds", "1", "--conversations", "10", "--trials", "2")
    ),
    "datasets": Benchmark(10, "large data sets", ("--rounds", "3")),
    "planning": Benchmark(5, "plans", ("--rounds", "5")),
    "sandboxes": Benchmark(4, "what a sandbox costs", ("--trials", "100")),
    "scenarios": Benchmark(5, "building scenarios", ("--rounds", "3", "--builds", "200")),
    "query": Benchmark(6, "queries over runs", ("--quick",)),
    "report": Benchmark(6, "the HTML report", ("--rounds", "3")),
    "diagnosis": Benchmark(7, "diagnosing a trace", ("--rounds", "1")),
    "growth": Benchmark(3, "CPU time at ten times the size", ("--quick",)),
    "serve": Benchmark(8, "live traces", ("--quick",)),
    "viewer": Benchmark(9, "pages of a large run", ("--rounds", "3")),
    "gateway": Benchmark(7, "the model gateway", ("--rounds", "50")),
    "executors": Benchmark(
        9, "workers of Ray", ("--trials", "500", "--busy", "50", "--rounds", "1")
    ),
}


class Row(NamedTuple):
    """One line of one table: whose figures, under which heading, by the names of the columns."""

    benchmark: str
    comparison: str
    who: str
    figures: dict[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: minutes, not an hour")
    parser.add_argument("--only", nargs="+", choices=list(ALL), default=list(ALL))
    parser.add_argument("--fetch", action="store_true", help="bring peers that are not there")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "results", metavar="FOLDER")
    asked = parser.parse_args()
    rows: list[Row] = []
    remarks: dict[str, list[str]] = {}
    failed: list[str] = []
    for name in asked.only:
        said, code = played(name, quick=asked.quick, fetch=asked.fetch)
        found = list(tables(name, said))
        rows += found
        remarks[name] = [line for line in said.splitlines() if REMARK.match(line)]
        remarks[name] += [missed(row) for row in found if "missed" in row.figures.values()]
        if code and not remarks[name]:
            word = "left out" if "is not installed" in reason(said) else "missed"
            remarks[name].append(f"{word}: {reason(said)}")
        if code and not any(line.startswith("left out") for line in remarks[name]):
            failed.append(name)
    told = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "load": os.getloadavg(),
        "quick": asked.quick,
        "rows": [row._asdict() for row in rows],
        "remarks": remarks,
        "failed": failed,
    }
    asked.output.mkdir(parents=True, exist_ok=True)
    (asked.output / "benchmarks.json").write_text(
        json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    text = markdown(told, rows)
    (asked.output / "benchmarks.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"kept in {asked.output}", file=sys.stderr)
    return 1 if failed else 0


REMARK = re.compile(r"(missed|left out|skipped|all goals met)\b", re.IGNORECASE)
"""Matches the lines of a benchmark about goals and missing peers."""


def played(name: str, *, quick: bool, fetch: bool) -> tuple[str, int]:
    """Output of a benchmark, and its exit code."""
    began = time.monotonic()
    print(f"{name} …", end=" ", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, HERE / f"{name}.py", *(ALL[name].quick if quick else ())],
        env={**os.environ, **({} if fetch else {"BENCH_PEERS": "installed"})},
        capture_output=True,
        text=True,
        check=False,
    )
    print(f"{time.monotonic() - began:.0f} s, exit code {done.returncode}", file=sys.stderr)
    crashed = done.returncode not in (0, 1) or "Traceback" in done.stderr
    return done.stdout + (done.stderr if crashed else ""), done.returncode


def missed(row: Row) -> str:
    """A row of a table of goals, said as a remark."""
    told = [f"{name} {value}".strip() for name, value in row.figures.items() if value != "missed"]
    return f"missed: {row.who}: {', '.join(told)}"


def reason(said: str) -> str:
    """Return the last output line of a failed benchmark."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def tables(name: str, said: str) -> Iterator[Row]:
    """Every row of every Markdown table, under the last heading or line of words before it."""
    heading, header = ALL[name].about, None
    for line in said.splitlines():
        if not line.startswith("|"):
            header = None
            if line.startswith("#"):
                heading = line.lstrip("# ").strip()
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if header is None:
            header = cells
        elif not set("".join(cells)) <= set("-: "):
            figures = dict(zip(header[1:], cells[1:], strict=False))
            yield Row(name, heading, cells[0], figures)


def markdown(told: dict[str, Any], rows: Sequence[Row]) -> str:
    """Return all results as one table, then the missed goals and skipped peers."""
    load = ", ".join(f"{figure:.1f}" for figure in told["load"])
    size = "quick" if told["quick"] else "full"
    lines = [
        f"# Benchmarks, {told['made'][:10]}",
        "",
        f"{told['machine']}; load at the end {load}; {size} sizes. With a load above the CPUs,",
        "trust CPU before wall.",
        "",
        "| benchmark | comparison | | figures |",
        "|---|---|---|---|",
    ]
    for row in rows:
        figures = "; ".join(f"{name} {value}".strip() for name, value in row.figures.items())
        lines.append(f"| {row.benchmark} | {row.comparison} | {row.who} | {figures} |")
    lines.append("")
    for name, said in told["remarks"].items():
        lines += [f"- {name}: {line}" for line in said]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
