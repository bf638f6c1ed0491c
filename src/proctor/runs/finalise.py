"""Write what a finished (or stopped) run says, beside its journal.

Everything here is derived from the journal and the spec and can be made again at any time; each
file is replaced wholly or not at all. Rows stand in the order of the plan, so equal runs give
equal files whatever order their trials finished in.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from proctor.runs.folder import RunFolder, RunFolderError, write_atomic
from proctor.runs.summary import CellSummary

COLUMNS = {
    "case": "VARCHAR",
    "agent": "VARCHAR",
    "params": "JSON",
    "axis_seed": "BIGINT",
    "index": "INTEGER",
    "seed": "BIGINT",
    "attempt": "INTEGER",
    "status": "VARCHAR",
    "score": "DOUBLE",
    "answer": "VARCHAR",
    "error": "JSON",
    "started_ns": "BIGINT",
    "duration_ms": "DOUBLE",
    "latency_ms": "DOUBLE",
    "input_tokens": "BIGINT",
    "output_tokens": "BIGINT",
    "cost_usd": "DOUBLE",
    "judge_cost_usd": "DOUBLE",
    "llm_calls": "INTEGER",
    "unpriced_calls": "INTEGER",
    "tool_calls": "INTEGER",
    "retries": "INTEGER",
    "trace_id": "VARCHAR",
    "trace": "JSON",
    "checks": "JSON",
}
"""Columns of `results.parquet`; those the journal leaves out (defaults) are NULL or 0."""

_ZERO = {"attempt": "1", "llm_calls": "0", "unpriced_calls": "0", "tool_calls": "0", "retries": "0"}


def write_parquet(folder: RunFolder) -> None:
    """`results.parquet` from the journal, in one streaming pass."""
    import duckdb

    aside = folder.parquet_path.with_name(".results.parquet.part")
    listed = ", ".join(f"'{name}': '{kind}'" for name, kind in COLUMNS.items())
    picked = ", ".join(
        f'coalesce("{n}", {_ZERO[n]}) AS "{n}"' if n in _ZERO else f'"{n}"' for n in COLUMNS
    )
    query = f"""
        COPY (
            SELECT {picked} FROM (
                SELECT *, row_number() OVER (
                    PARTITION BY "case", agent, params::VARCHAR, axis_seed, "index"
                    ORDER BY coalesce(attempt, 1) DESC
                ) AS latest
                FROM read_json(?, format = 'newline_delimited', columns = {{{listed}}},
                               ignore_errors = true, maximum_object_size = 268435456)
            ) WHERE latest = 1
            ORDER BY "case", agent, params::VARCHAR, axis_seed, "index"
        ) TO '{_quoted(aside)}' (FORMAT parquet, COMPRESSION zstd)
    """  # noqa: S608 (names are constants; the paths are ours and quoted)
    try:
        with duckdb.connect(config={"threads": 2}) as connection:
            connection.execute(query, [str(folder.journal_path)])
        aside.replace(folder.parquet_path)
    except (duckdb.Error, OSError) as error:
        aside.unlink(missing_ok=True)
        raise RunFolderError(
            f"cannot write results.parquet: {error}",
            where=str(folder.path),
            hint="the journal is safe; proctor run --resume writes it again",
        ) from None


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def write_summaries(folder: RunFolder, cells: Sequence[CellSummary], about: dict[str, Any]) -> None:
    """`results.json` and `summary.csv`: every cell, with its verdict."""
    document = {**about, "cells": cells}
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    write_atomic(folder.results_path, text + b"\n")
    write_atomic(folder.summary_path, _csv(cells).encode())


def _csv(cells: Sequence[CellSummary]) -> str:
    out = io.StringIO()
    names = [name for name in CellSummary.__struct_fields__ if name != "failures"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*names, "top_failure"])
    for cell in cells:
        top = cell.failures[0].check_id if cell.failures else None
        writer.writerow([*(getattr(cell, name) for name in names), top])
    return out.getvalue()
