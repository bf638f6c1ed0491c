"""Trials as files that other programs read: CSV, JSON, JSONL, Parquet; or told to an MLflow server.

Promise: a file is there whole or not at all. In CSV no text of an agent is ever a formula: a cell
that a spreadsheet would compute begins with a quote instead. JSON is one document, NaN-free.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Generator, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from proctor.errors import ProctorError, hint_among
from proctor.files import replacing
from proctor.results.database import COLUMNS

if TYPE_CHECKING:
    from proctor.results.result_set import ResultSet

FORMATS = ("csv", "json", "jsonl", "parquet", "mlflow")

FORMULA = frozenset("=+-@\t\r\n|%\uff1d\uff0b\uff0d\uff20")
"""First characters that make a spreadsheet compute a text, or start another program (DDE).

The last four are the full-width forms, which some programs take for the plain ones.
"""

SUFFIXES = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def export(
    of: ResultSet,
    target: str | Path,
    format: str | None = None,  # noqa: A002 (the word users write)
    *,
    bom: bool = False,
) -> str:
    """Write the trials of a set; the suffix says in which form, unless `format` does.

    `bom` marks CSV as UTF-8 for programs that would otherwise guess (Excel on Windows).
    """
    form = form_of(str(target), format)
    if form == "mlflow":
        from proctor.results.exchange.mlflow import TrackingServer, send

        server = TrackingServer(str(target) if "://" in str(target) else "")
        send(of, server)
        return server.address
    with _aside(Path(target)) as aside:
        if form == "parquet":
            of.listing().write_parquet(str(aside), compression="zstd")
        else:
            encoding = "utf-8-sig" if bom and form == "csv" else "utf-8"
            with aside.open("w", encoding=encoding, newline="") as out:
                out.writelines(text_parts(of, form))
    return str(target)


def form_of(target: str, form: str | None) -> str:
    """The form that is meant: as said, else by the target."""
    if form is None and target.startswith(("http://", "https://")):
        return "mlflow"
    suffix = Path(target).suffix.lower()
    meant = form or SUFFIXES.get(suffix) or suffix.lstrip(".")
    if meant not in FORMATS:
        raise ProctorError(
            f"no form is called {meant!r}" if meant else "in which form?",
            where=target,
            hint=hint_among(meant, FORMATS),
        )
    return meant


def text_parts(of: ResultSet, form: str) -> Iterator[str]:
    """The text of an export, a part at a time."""
    writers = {"csv": _csv, "json": _json, "jsonl": _jsonl}
    yield from writers[form](of)


@contextlib.contextmanager
def _aside(target: Path) -> Generator[Path]:
    """A file that becomes the target when all went well."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as aside:
            yield aside
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(target)) from None


def _csv(of: ResultSet) -> Iterator[str]:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")  # as RFC 4180 has it, and Excel
    writer.writerow(COLUMNS)
    for row in of.iter_rows():
        writer.writerow([cell(row[name]) for name in COLUMNS])
        yield out.getvalue()
        out.seek(0)
        out.truncate()
    yield out.getvalue()


def cell(value: Any) -> Any:
    """A value as a cell of CSV that no spreadsheet computes."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    text = value if isinstance(value, str) else _encoded(value)
    return guarded(text)


def guarded(text: str) -> str:
    """A text with a quote before it where a spreadsheet would take it for a formula."""
    plain = text.replace("\0", "\ufffd")
    # Blanks before a formula do not keep every program from computing it.
    first = plain.lstrip(" ")[:1]
    return f"'{plain}" if first and first in FORMULA else plain


def _jsonl(of: ResultSet) -> Iterator[str]:
    for row in of.iter_rows():
        yield _encoded({name: value for name, value in row.items() if value is not None}) + "\n"


def _json(of: ResultSet) -> Iterator[str]:
    yield '{"trials": ['
    for at, row in enumerate(of.iter_rows()):
        yield (",\n" if at else "\n") + _encoded(row)
    total = of.tally()
    counts = {"selected": total.trials, "judged": total.judged, "passed": total.passed}
    left = [msgspec.to_builtins(part) for part in total.left_out]
    yield f'\n], "counts": {_encoded(counts)}, "left_out": {_encoded(left)}}}\n'


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()
