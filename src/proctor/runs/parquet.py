"""Write the derived files of a finished (or stopped) run beside its journal.

Everything here is derived from the journal and the spec and can be rebuilt at any time; each file
is replaced as a whole or not at all. Rows are in plan order, so equal runs give equal files
whatever order their trials finished in.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import io
import mmap
import os
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from proctor.files import replacing, writing
from proctor.runs.folder import RunFolder, RunFolderError
from proctor.runs.plan_order import OrderedJournal
from proctor.runs.summary import CellSummary
from proctor.sanitize import escape_formula

if TYPE_CHECKING:
    import duckdb

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
    "category": "VARCHAR",
    "last_status": "VARCHAR",
    "spent_usd": "DOUBLE",
    "spent_tokens": "BIGINT",
    "spent_unpriced_calls": "INTEGER",
    "queue_ms": "DOUBLE",
    "startup_ms": "DOUBLE",
    "check_ms": "DOUBLE",
}
"""Columns of `results.parquet`; those the journal leaves out (defaults) are NULL or 0."""

# The journal leaves out defaults, which would be NULL here. `last_status` and
# what was spent are in no line: a trial with one attempt spent what that attempt did.
FILLED = {
    "attempt": "1",
    "llm_calls": "0",
    "unpriced_calls": "0",
    "tool_calls": "0",
    "retries": "0",
    "last_status": "status",
    "spent_usd": "cost_usd",
    "spent_tokens": "coalesce(input_tokens + output_tokens, input_tokens, output_tokens)",
    "spent_unpriced_calls": "coalesce(unpriced_calls, 0)",
    "queue_ms": "0",
    "startup_ms": "0",
    "check_ms": "0",
}


LATER_COLUMNS = frozenset(
    (
        *("category", "last_status", "spent_usd", "spent_tokens", "spent_unpriced_calls"),
        *("queue_ms", "startup_ms", "check_ms"),
    )
)
"""Columns that files of older versions lack."""

LEVEL = 1
"""Compression level of zstd: 10 % faster than its default, at nearly the same size."""

ROW_GROUP = 10_240
"""Rows a Parquet writer holds in memory at a time; five vectors of DuckDB's, a few MB of trials."""

LONG_RUN = 16 << 20
"""Bytes of a journal from which a separate database is worth its 20 ms."""

MIN_OBJECT = 1 << 20
"""Minimum line length DuckDB must accept; its own minimum is smaller."""


def _database(_process: int) -> duckdb.DuckDBPyConnection:
    import duckdb

    # One thread: rows stay in order, and buffers are few.
    return duckdb.connect(config={"threads": 1})


_shared_database = cache(_database)
"""One database for all runs of a process: opening one takes longer than writing a small run.

The argument is the process id, since a forked process must not use its parent's database.
"""


def write_parquet(
    folder: RunFolder, *, in_order: bool = False, under_way: threading.Event | None = None
) -> None:
    """Write `results.parquet` from the journal. Memory holds line positions, never all lines.

    `in_order` says that the lines are already in row order, one per trial. `under_way` is set when
    only DuckDB's part is left.
    """
    import duckdb

    # `RunFolder.repair` removes hidden files that end in `.part` after a crash.
    ordered = folder.parquet_path.with_name(".ordered.jsonl.part")
    listed = ", ".join(f"'{name}': '{kind}'" for name, kind in COLUMNS.items())
    picked = ", ".join(
        f'coalesce("{n}", {FILLED[n]}) AS "{n}"' if n in FILLED else f'"{n}"' for n in COLUMNS
    )
    try:
        if in_order:
            source, longest = folder.journal_path, folder.journal_path.stat().st_size
            if longest > MIN_OBJECT:
                longest = _longest_line(folder.journal_path)
        else:
            source, longest = ordered, _write_ordered(folder.journal_path, ordered)
        chosen = f"""
            SELECT {picked}
            FROM read_json(?, format = 'newline_delimited', columns = {{{listed}}},
                           maximum_object_size = {max(MIN_OBJECT, longest + 1)})
        """  # noqa: S608 (names are constants)
        options = (
            f"FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL {LEVEL},"
            f" ROW_GROUP_SIZE {ROW_GROUP}"
        )
        process, large = os.getpid(), source.stat().st_size > LONG_RUN
        with (
            # Not fsynced: the file can be written again from the journal.
            replacing(folder.parquet_path, sync=False) as aside,
            # After a long run the memory of a separate database is released.
            _database(process) if large else _shared_database(process).cursor() as connection,
        ):
            # Interactively, DuckDB would draw a progress bar on standard output.
            connection.execute("SET enable_progress_bar = false")
            if under_way is not None:
                under_way.set()
            quoted = str(aside).replace("'", "''")
            connection.execute(
                f"COPY ({chosen}) TO '{quoted}' ({options})", [glob.escape(str(source))]
            )
    except (duckdb.Error, OSError) as error:
        raise RunFolderError(
            f"cannot write results.parquet: {error}",
            where=str(folder.path),
            hint="the journal is safe; proctor run --resume writes it again",
        ) from None
    finally:
        if under_way is not None:  # also after an error
            under_way.set()
        with contextlib.suppress(OSError):
            ordered.unlink(missing_ok=True)


def _longest_line(journal: Path) -> int:
    """Return the maximum line length; exact only where it is longer than usual."""
    size = journal.stat().st_size
    with journal.open("rb") as lines:
        with mmap.mmap(lines.fileno(), 0, access=mmap.ACCESS_READ) as content:
            end = 0
            while end >= 0 and size - end > MIN_OBJECT:
                # The last line that ends within reach: one comparison for a thousand lines.
                end = content.rfind(b"\n", end + 1, end + MIN_OBJECT)
        return MIN_OBJECT if end >= 0 else max(map(len, lines))


def _write_ordered(journal: Path, target: Path) -> int:
    """Write the line of each trial that counts, in plan order; return the longest line's length."""
    longest = 0
    with target.open("wb") as out:
        if not journal.exists():
            return longest
        for text in OrderedJournal(journal).texts():
            out.write(text)
            longest = max(longest, len(text))
    return longest


def write_summaries(folder: RunFolder, cells: Iterable[CellSummary], about: dict[str, Any]) -> None:
    """Write `results.json` and `summary.csv`: every cell with its verdict."""
    names = [name for name in CellSummary.__struct_fields__ if name != "failures"]
    head = msgspec.json.format(msgspec.json.encode({**about, "cells": []}), indent=2)
    with writing(folder.results_path) as out, writing(folder.summary_path) as summary:
        rows = io.TextIOWrapper(summary, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(rows, lineterminator="\n")
        writer.writerow([*names, "top_failure"])
        # Cell by cell, since there may be very many.
        out.write(head.removesuffix(b"]\n}"))
        separator = b"\n    "
        for cell in cells:
            text = msgspec.json.format(msgspec.json.encode(cell), indent=2)
            out.write(separator + text.replace(b"\n", b"\n    "))
            separator = b",\n    "
            top = cell.failures[0].check_id if cell.failures else None
            values = [*(getattr(cell, name) for name in names), top]
            writer.writerow([escape_formula(v) if isinstance(v, str) else v for v in values])
        out.write(b"]\n}\n" if separator == b"\n    " else b"\n  ]\n}\n")
        rows.detach()
