"""Groups of trials as people and programs read them: a table, one JSON document, or CSV.

Promise: a rate stands beside what it is a share of, and what no rate counts has a column of its
own as soon as there is any. Names come from agents and files: none is obeyed by a terminal or
computed by a spreadsheet.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from proctor.report.figures import document, ends, figure
from proctor.report.text import line
from proctor.results.aggregate import GroupRow
from proctor.results.exchange.export import cell
from proctor.results.sql import Answer
from proctor.words import DASH, money, percent, plural, table

NOT_COUNTED = ("infra_error", "cancelled", "after_stop")
"""Trials that no rate counts, told when there are any."""

LONGEST = 60
"""Characters of a cell of a table that a person is shown."""


def render_groups(names: Sequence[str], rows: Sequence[GroupRow]) -> str:
    """Groups as a table."""
    told = [name for name in NOT_COUNTED if any(getattr(row, name) for row in rows)]
    costs = any(row.cost_usd is not None or row.unpriced_calls for row in rows)
    head = [*names, "cases", "trials", "passed", "pass rate", "95 %", "score"]
    head += [name.replace("_", " ") for name in told] + (["cost"] if costs else [])
    body = [
        [
            *(_shown(row.key[name]) for name in names),
            str(row.cases),
            str(row.trials),
            f"{row.passed}/{row.judged}",
            percent(row.pass_rate.value),
            ends("pass_rate", row.pass_rate),
            figure("score", row.score.value),
            *(str(getattr(row, name)) for name in told),
            *([money(row.cost_usd, row.unpriced_calls) or DASH] if costs else []),
        ]
        for row in rows
    ]
    reasons = sorted({row.pass_rate.reason for row in rows if row.pass_rate.reason})
    notes = [f"  {DASH} {line(reason)}" for reason in reasons]
    total = sum(row.trials for row in rows)
    closing = f"{plural(total, 'trial')} in {plural(len(rows), 'group')}"
    return "\n".join([*table(head, body, indent=""), *notes, closing])


def groups_json(rows: Sequence[GroupRow], problems: Sequence[str]) -> str:
    """Groups as one JSON document."""
    return document("results", {"groups": list(rows), "problems": list(problems)})


def rows_json(rows: Sequence[dict[str, Any]], problems: Sequence[str]) -> str:
    """Trials as one JSON document."""
    told = [{key: _plain(value) for key, value in row.items()} for row in rows]
    return document("trials", {"trials": told, "problems": list(problems)})


def as_csv(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as CSV that no spreadsheet computes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([cell(name) for name in names])
    writer.writerows([[cell(value) for value in row] for row in rows])
    return out.getvalue().rstrip("\n")


def render_rows(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows of any query as a table."""
    body = [[_shown(value) for value in row] for row in rows]
    return "\n".join(table([line(name, LONGEST) for name in names], body, indent="")) or "no row"


def answer_json(answer: Answer) -> str:
    """An answer as one JSON document: a list of rows by column."""
    rows = [
        {name: _plain(value) for name, value in zip(answer.columns, row, strict=True)}
        for row in answer.rows
    ]
    return document("sql", {"columns": answer.columns, "types": answer.types, "rows": rows})


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _shown(value: Any) -> str:
    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or DASH  # type: ignore[reportUnknownArgumentType]
    return line(value, LONGEST)
