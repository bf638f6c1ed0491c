"""Make every comparison and write one table of all their figures, as Markdown and as JSON.

    benchmarks/run [--quick] [--only startup query ...] [--fetch] [-o FOLDER]

Each benchmark runs as it does alone, one after the other; its tables are taken from what it
prints, figures unchanged. Goals come first. Peers that are not installed are left out and listed,
unless `--fetch` allows to install them from the package index. Exit code 1: a goal was missed or a
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
    """What a benchmark program compares, and the arguments for a quick run."""

    about: str
    quick: tuple[str, ...]


ALL = {
    "startup": Benchmark("start of the command", ("--rounds", "11")),
    "install_size": Benchmark("size of an installation", ("--rounds", "11")),
    "traces": Benchmark("trees, queries, loading, memory", ("--quick",)),
    "matching": Benchmark("trajectory matching", ("--rounds", "3", "--pairs", "200")),
    "observe": Benchmark("model calls seen over HTTP", ("--rounds", "3", "--calls", "200")),
    "checks": Benchmark("a case's checks", ("--rounds", "3", "--pairs", "200")),
    "pytest_start": Benchmark("what the plugin costs others", ("--rounds", "15")),
    "trials": Benchmark("many trials", ("--quick", "--no-flatness")),
    "conversations": Benchmark(
        "turns of conversations", ("--rounds", "1", "--conversations", "10", "--trials", "2")
    ),
    "datasets": Benchmark("large data sets", ("--rounds", "3")),
    "planning": Benchmark("plans", ("--rounds", "5")),
    "sandboxes": Benchmark("what a sandbox costs", ("--trials", "100")),
    "scenarios": Benchmark("building scenarios", ("--rounds", "3", "--builds", "200")),
    "query": Benchmark("queries over runs", ("--quick",)),
    "report": Benchmark("the HTML report", ("--rounds", "3")),
    "diagnosis": Benchmark("diagnosing a trace", ("--rounds", "1")),
    "growth": Benchmark("CPU time at ten times the size", ("--quick",)),
    "serve": Benchmark("live traces", ("--quick",)),
    "viewer": Benchmark("pages of a large run", ("--rounds", "3")),
    "gateway": Benchmark("the model gateway", ("--rounds", "50")),
    "executors": Benchmark("workers of Ray", ("--trials", "500", "--busy", "50", "--rounds", "1")),
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
    parser.add_argument("--fetch", action="store_true", help="install missing peers")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "results", metavar="FOLDER")
    options = parser.parse_args()
    rows: list[Row] = []
    remarks: dict[str, list[str]] = {}
    failed: list[str] = []
    for name in options.only:
        output, code = run_benchmark(name, quick=options.quick, fetch=options.fetch)
        found = list(tables(name, output))
        rows += found
        remarks[name] = [line for line in output.splitlines() if REMARK.match(line)]
        remarks[name] += [missed(row) for row in found if "missed" in row.figures.values()]
        if code and not remarks[name]:
            word = "left out" if "is not installed" in reason(output) else "missed"
            remarks[name].append(f"{word}: {reason(output)}")
        if code and not any(line.startswith("left out") for line in remarks[name]):
            failed.append(name)
    results = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "load": os.getloadavg(),
        "quick": options.quick,
        "rows": [row._asdict() for row in rows],
        "remarks": remarks,
        "failed": failed,
    }
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "benchmarks.json").write_text(
        json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    text = markdown(results, rows)
    (options.output / "benchmarks.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"stored in {options.output}", file=sys.stderr)
    return 1 if failed else 0


REMARK = re.compile(r"(missed|left out|skipped|all goals met)\b", re.IGNORECASE)
"""Matches the lines of a benchmark about goals and missing peers."""


def run_benchmark(name: str, *, quick: bool, fetch: bool) -> tuple[str, int]:
    """Run a benchmark; return its output and its exit code."""
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
    """Return a missed row of a table of goals as a remark."""
    figures = [
        f"{name} {value}".strip() for name, value in row.figures.items() if value != "missed"
    ]
    return f"missed: {row.who}: {', '.join(figures)}"


def reason(output: str) -> str:
    """Return the last output line of a failed benchmark."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def tables(name: str, output: str) -> Iterator[Row]:
    """Yield the rows of each Markdown table with the heading above it."""
    heading, header = ALL[name].about, None
    for line in output.splitlines():
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


def markdown(results: dict[str, Any], rows: Sequence[Row]) -> str:
    """Return the goals, then all results as one table, then missed goals and skipped peers."""
    load = ", ".join(f"{figure:.1f}" for figure in results["load"])
    size = "quick" if results["quick"] else "full"
    lines = [
        f"# Benchmarks, {results['made'][:10]}",
        "",
        f"{results['machine']}; load at the end {load}; {size} sizes. With a load above the CPUs,",
        "trust CPU before wall.",
        "",
        "| benchmark | goal | figures |",
        "|---|---|---|",
    ]
    for row in rows:
        if {"met", "missed"} & {*row.figures.values()}:
            figures = "; ".join(f"{name} {value}".strip() for name, value in row.figures.items())
            lines.append(f"| {row.benchmark} | {row.who} | {figures} |")
    lines += ["", "| benchmark | comparison | | figures |", "|---|---|---|---|"]
    for row in rows:
        figures = "; ".join(f"{name} {value}".strip() for name, value in row.figures.items())
        lines.append(f"| {row.benchmark} | {row.comparison} | {row.who} | {figures} |")
    lines.append("")
    for name, remarks in results["remarks"].items():
        lines += [f"- {name}: {line}" for line in remarks]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
