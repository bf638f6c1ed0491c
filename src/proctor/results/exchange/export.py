"""Export trials as CSV, JSON, JSONL or Parquet, or to an MLflow server.

Guarantees: a file is written completely or not at all. In CSV no text of an agent is ever a
formula: a cell that a spreadsheet would evaluate gets a leading quote. JSON is one document without
NaN.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from proctor.errors import ProctorError, hint_among
from proctor.files import replacing
from proctor.results.database import COLUMNS
from proctor.sanitize import FORMULA, escape_formula

if TYPE_CHECKING:
    from proctor.results.result_set import ResultSet

FORMATS = ("csv", "json", "jsonl", "parquet", "mlflow")


SUFFIXES = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def export(
    of: ResultSet,
    target: str | Path,
    format: str | None = None,  # noqa: A002 (the word users write)
    *,
    bom: bool = False,
) -> str:
    """Write the trials of a set; the suffix selects the format unless `format` does.

    `bom` marks CSV as UTF-8 for programs that would otherwise guess (Excel on Windows).
    """
    # Resolved first, so that a wrong name leaves no file behind.
    form = format_of(str(target), format)
    if form == "mlflow":
        from proctor.results.exchange._mlflow import TrackingServer, send

        server = TrackingServer(str(target) if "://" in str(target) else "")
        send(of, server)
        return server.address
    path = Path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            if form == "parquet":
                of.listing().write_parquet(str(temporary), compression="zstd")
            else:
                encoding = "utf-8-sig" if bom and form == "csv" else "utf-8"
                with temporary.open("w", encoding=encoding, newline="") as out:
                    out.writelines(text_parts(of, form))
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(path)) from None
    return str(target)


def format_of(target: str, form: str | None) -> str:
    """Return the format: as given, else by the target."""
    if form is None and target.startswith(("http://", "https://")):
        return "mlflow"
    suffix = Path(target).suffix.lower()
    resolved = form or SUFFIXES.get(suffix) or suffix.lstrip(".")
    if resolved not in FORMATS:
        raise ProctorError(
            f"unknown format {resolved!r}" if resolved else "the export format is unknown",
            where=target,
            hint=hint_among(resolved, FORMATS),
        )
    return resolved


def text_parts(of: ResultSet, form: str) -> Iterator[str]:
    """Yield the text of an export in chunks."""
    writers = {"csv": _csv, "json": _json, "jsonl": _jsonl}
    yield from writers[form](of)


def _csv(of: ResultSet) -> Iterator[str]:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")  # as in RFC 4180 and Excel
    writer.writerow(COLUMNS)
    for row in of.iter_rows():
        writer.writerow([cell(row[name]) for name in COLUMNS])
        # One row at a time: an export may be larger than the memory.
        yield out.getvalue()
        out.seek(0)
        out.truncate()
    yield out.getvalue()


def cell(value: Any) -> Any:
    """Format a value as a CSV cell that no spreadsheet evaluates."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    return escape_formula(value if isinstance(value, str) else _encoded(value))


def unescape_formula(value: Any) -> Any:
    """Remove the quote that `escape_formula` added."""
    escaped = isinstance(value, str) and value[:1] == "'" and value[1:2] in FORMULA
    return value[1:] if escaped and len(value) > 1 else value


def _jsonl(of: ResultSet) -> Iterator[str]:
    for row in of.iter_rows():
        yield _encoded({name: value for name, value in row.items() if value is not None}) + "\n"


def _json(of: ResultSet) -> Iterator[str]:
    yield '{"trials": ['
    for at, row in enumerate(of.iter_rows()):
        yield (",\n" if at else "\n") + _encoded(row)
    total = of.tally()
    counts = {"selected": total.trials, "judged": total.judged, "passed": total.passed}
    left_out = [msgspec.to_builtins(part) for part in total.left_out]
    yield f'\n], "counts": {_encoded(counts)}, "left_out": {_encoded(left_out)}}}\n'


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()
