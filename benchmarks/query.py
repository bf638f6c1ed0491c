"""Queries over a million trials in a hundred runs, against DuckDB itself and Inspect's frames.

    python benchmarks/query.py [--quick] [--keep FOLDER]

Goals: within 1.5 times of the same SQL on the same Parquet files, finding them included; 100
times faster a sample than inspect-ai's `samples_df`; the command line answers a grouped query
over a million trials in at most 4 times the start of Python with click and DuckDB, which any such
command has to load. Exit code 1 when one is missed.
"""

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

import duckdb
from _measure import ROOT, Timing, calls, compare, machine, reports, runs, table

from proctor.results import query
from proctor.results.metadata import write_facts_with
from proctor.runs.folder import RunFolder
from proctor.runs.provenance import new_run_id

GOAL_RAW = 1.5
GOAL_INSPECT = 100.0
GOAL_START = 4.0

CASES, AGENTS, REPEATS = 100, 10, 10

TRIALS = """
    SELECT 'case-' || lpad((i // 100)::VARCHAR, 3, '0') AS "case",
           'agent-' || ((i // 10) % 10) AS agent, NULL::JSON AS params, NULL::BIGINT AS axis_seed,
           (i % 10)::INTEGER AS "index", (hash(i) % 1000000)::BIGINT AS seed, 1 AS attempt,
           CASE WHEN hash(i + {run}) % 100 < 70 THEN 'passed'
                WHEN hash(i + {run}) % 100 < 95 THEN 'failed' ELSE 'infra_error' END AS status,
           CASE WHEN hash(i + {run}) % 100 < 95
                THEN (hash(i * 7 + {run}) % 1000) / 1000.0 END::DOUBLE AS score,
           'answer ' || i AS answer, NULL::JSON AS error,
           (1768000000000000000 + i * 1000000)::BIGINT AS started_ns,
           (hash(i) % 5000)::DOUBLE AS duration_ms, (hash(i) % 4000)::DOUBLE AS latency_ms,
           100::BIGINT AS input_tokens, 50::BIGINT AS output_tokens, 0.001::DOUBLE AS cost_usd,
           NULL::DOUBLE AS judge_cost_usd, 1 AS llm_calls, 0 AS unpriced_calls, 2 AS tool_calls,
           0 AS retries, md5(i::VARCHAR) AS trace_id, NULL::JSON AS trace, NULL::JSON AS checks
    FROM range({trials}) t(i)
"""


def make(root: Path, count: int) -> None:
    """Finished runs of 10,000 trials each, with spec, journal, columns and facts."""
    cells = [
        {"case": f"case-{c:03d}", "agent": f"agent-{a}", "trials": REPEATS, "threshold": 0.8}
        for c in range(CASES)
        for a in range(AGENTS)
    ]
    cases = [
        {
            "id": f"case-{c:03d}",
            "input": f"question {c}",
            "tags": ["even" if c % 2 == 0 else "odd"],
            "difficulty": ("easy", "medium", "hard")[c % 3],
            "properties": {"length": c},
        }
        for c in range(CASES)
    ]
    agents = {f"agent-{a}": {"kind": "python", "model": f"model-{a % 3}"} for a in range(AGENTS)}
    with duckdb.connect() as connection:
        for number in range(count):
            folder = RunFolder.create(root, f"suite-{number % 10}")
            folder.write_spec(
                {
                    "run_id": new_run_id(),
                    "name": f"suite-{number % 10}",
                    "created": "2026-11-16T00:00:00+00:00",
                    "options": {},
                    "agents": agents,
                    "suite": {"cases": cases},
                    "cells": cells,
                }
            )
            trials = TRIALS.format(run=number, trials=CASES * AGENTS * REPEATS)
            journal = 'SELECT "case", agent, "index", seed, status, score FROM'
            connection.execute(f"CREATE OR REPLACE TABLE t AS {trials}")
            connection.execute(f"COPY t TO '{folder.parquet_path}' (COMPRESSION zstd)")
            connection.execute(f"COPY ({journal} t) TO '{folder.journal_path}' (FORMAT json)")
            write_facts_with(folder, folder.read_spec())


GROUP = """
    SELECT agent, count(*), avg(score), avg((status = 'passed')::INT)
    FROM {source} WHERE status IN ('passed', 'failed', 'hard_fail') GROUP BY 1 ORDER BY 1
"""
FILTER = """
    SELECT "case", count(*), avg(score) FROM {source}
    WHERE agent = 'agent-3' AND score >= 0.5 AND status = 'failed' GROUP BY 1 ORDER BY 1
"""
BY_CELL = """
    SELECT agent, "case", params::VARCHAR, count(*) FILTER (status = 'passed'),
           count(*) FILTER (status IN ('failed', 'hard_fail')),
           count(*) FILTER (status = 'infra_error'), count(*) FILTER (status = 'cancelled'),
           count(score), sum(score), count(cost_usd), sum(cost_usd), sum(unpriced_calls)
    FROM {source} GROUP BY ALL
"""


def raw(root: Path, sql: str) -> list[tuple]:
    """Return the same result with hand-written DuckDB queries over the same files."""
    with duckdb.connect() as connection:
        source = f"read_parquet('{root}/*/*/results.parquet')"
        return connection.execute(sql.format(source=source)).fetchall()


def ours(root: Path, sql: str) -> list[tuple]:
    """The same SQL through the view of all runs."""
    return query(results=root).sql(sql.format(source="trials")).rows


def _rounded(rows: list[tuple]) -> list[list]:
    """Sums of floats depend on the order of adding, which threads choose."""
    return [[round(v, 9) if isinstance(v, float) else v for v in row] for row in rows]


def in_process(root: Path, rounds: int) -> list[list[Timing]]:
    """Each question, found and answered from nothing every time."""
    found = []
    for sql in (GROUP, FILTER):
        assert _rounded(ours(root, sql)) == _rounded(raw(root, sql))
        pair = {"raw DuckDB": calls(lambda s=sql: raw(root, s))}
        pair["proctor sql"] = calls(lambda s=sql: ours(root, s))
        found.append(compare(pair, rounds))
    pair = {"raw DuckDB, counts by cell": calls(lambda: raw(root, BY_CELL))}
    pair["proctor group_by, intervals"] = calls(lambda: query(results=root).group_by("agent").rows)
    found.append(compare(pair, rounds))
    pair = {"raw DuckDB, no filter": calls(lambda: raw(root, BY_CELL))}
    pair["proctor where difficulty, tag"] = calls(
        lambda: query(results=root, tag="even", where={"difficulty": "hard"}).group_by("agent").rows
    )
    found.append(compare(pair, rounds))
    return found


def command_line(root: Path, rounds: int) -> list[Timing]:
    """A whole process, its start included."""
    proctor = [sys.executable, "-m", "proctor"]
    place = ["--results", root]
    return compare(
        {
            "python -c pass": runs([sys.executable, "-c", "pass"]),
            "python + click + duckdb": runs([sys.executable, "-c", "import click, duckdb"]),
            "proctor results --group-by agent": runs(
                [*proctor, "results", "--group-by", "agent", *place]
            ),
            "proctor sql, by agent": runs([*proctor, "sql", GROUP.format(source="trials"), *place]),
        },
        rounds,
    )


def against_inspect(root: Path, folder: Path, logs: int, rounds: int) -> list[Timing]:
    """Seconds a sample: theirs on logs of 100 samples, ours on runs of 10,000 trials."""
    script = ROOT / "benchmarks" / "_query_inspect.py"
    import subprocess

    subprocess.run([sys.executable, script, "make", folder, str(logs), "100"], check=True)
    theirs = reports([sys.executable, script, "time", folder])
    return compare(
        {
            "proctor group_by agent": calls(lambda: query(results=root).group_by("agent").rows),
            "inspect samples_df": theirs,
        },
        rounds,
        warm_up=0,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10 runs, 10 logs")
    parser.add_argument("--keep", type=Path, help="make the runs here and leave them")
    asked = parser.parse_args()
    count, rounds = (10, 5) if asked.quick else (100, 11)
    with contextlib.ExitStack() as stack:
        folder = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        root = folder / "results"
        if not root.is_dir():
            print(f"making {count} runs …", file=sys.stderr)
            make(root, count)
        trials = len(query(results=root))
        print(f"{trials:,} trials in {count} runs; {machine()}\n")
        missed: list[str] = []
        for timings in in_process(root, rounds):
            base, mine = timings
            print(table(timings, base.name), "\n")
            ratio = mine.median() / base.median()
            if mine.name == "proctor sql" and ratio > GOAL_RAW:
                missed.append(f"{mine.name}: {ratio:.2f} times raw DuckDB, goal {GOAL_RAW}")
        timings = command_line(root, rounds)
        print(table(timings, timings[0].name), "\n")
        ratio = timings[2].median() / timings[1].median()
        if ratio > GOAL_START:
            missed.append(
                f"results --group-by: {ratio:.1f} times start-up with DuckDB, goal {GOAL_START}"
            )
        logs = 10 if asked.quick else 100
        timings = against_inspect(root, folder / "inspect", logs, 3)
        mine, theirs = (timing.median() for timing in timings)
        faster = (theirs / (logs * 100)) / (mine / trials)
        print(
            f"a trial: {mine / trials * 1e9:.0f} ns; a sample of {logs} Inspect logs:"
            f" {theirs / (logs * 100) * 1e6:.0f} µs, {faster:,.0f} times as long\n"
        )
        if faster < GOAL_INSPECT:
            missed.append(f"{faster:.0f} times faster than inspect a sample, goal {GOAL_INSPECT}")
    print("\n".join(f"missed: {line}" for line in missed) or "all goals met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
