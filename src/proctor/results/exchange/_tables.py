# ruff: noqa: S608 (SQL names come from the file and are quoted)
"""Read results from CSV, JSONL, JSON and Parquet: one trial per row, columns by name or user map.

Exports of `proctor runs export` are read back unchanged, in all of these formats.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any, cast, get_args

import msgspec

from proctor.checks.base import CheckResult
from proctor.errors import ProctorError, hint_among
from proctor.files import read_bounded
from proctor.results.database import pattern, quoted
from proctor.results.exchange.export import unescape_formula
from proctor.results.exchange.importing import MAX_DOCUMENT, MAX_ROWS, Imported, Record
from proctor.runs.trial import CATEGORIES, TrialStatus

# Maximum characters of a cell: a trace in a column exceeds Python's default of 131,072.
_MAX_CELL_CHARS = 100_000_000

# Names of a field in other programs, the likeliest first.
_SYNONYMS = {
    "case": ("case_id", "test", "test_id", "question_id", "sample_id", "id", "name"),
    "agent": ("model", "provider", "system"),
    "passed": ("pass", "success", "correct", "ok"),
    "score": ("grade", "value", "accuracy"),
    "status": ("outcome", "result"),
    "answer": ("output", "response", "completion", "prediction"),
    "input": ("question", "prompt", "query"),
    "error": ("error_message", "exception"),
    "reason": ("explanation", "rationale", "comment"),
    "index": ("trial", "epoch", "repeat"),
    "cost_usd": ("cost",),
    "latency_ms": ("latency",),
    "started": ("timestamp", "time", "date", "created"),
}

STATUS_WORDS = {
    "pass": "passed",
    "ok": "passed",
    "success": "passed",
    "fail": "failed",
    "failure": "failed",
    "error": "infra_error",
    "errored": "infra_error",
    "canceled": "cancelled",
}

FIELDS: tuple[str, ...] = (
    *(name for name in Record.__struct_fields__ if name != "where"),
    "started",
)
NESTED = ("params", "properties")


def read_csv(path: Path, columns: Mapping[str, str]) -> Imported:
    """Read the trials of a CSV file (comma, semicolon or tab; UTF-8 with or without BOM)."""
    text = read_text(path)
    csv.field_size_limit(_MAX_CELL_CHARS)
    header = text.partition("\n")[0]
    # csv.Sniffer also accepts letters as delimiters; the header decides more reliably.
    delimiter = max(",;\t", key=header.count)
    reader = csv.DictReader(io.StringIO(text), delimiter=delimiter, strict=True)
    try:
        names = list(reader.fieldnames or ())
        rows = [
            (
                f"{path}:{reader.line_num}",
                {k: unescape_formula(v) for k, v in row.items() if k and v},
            )
            for row in reader
        ]
    except csv.Error as error:
        raise ProctorError(f"not CSV: {error}", where=f"{path}:{reader.line_num}") from None
    return _imported(path, "csv", names, rows, columns)


def read_jsonl(path: Path, columns: Mapping[str, str]) -> Imported:
    """Read the trials of a JSONL file: one object per line."""
    lines = enumerate(read_text(path).split("\n"), 1)
    numbered = [(f"{path}:{number}", line) for number, line in lines if line.strip()]
    rows = [(where, parse_json(line, where)) for where, line in numbered]
    return _objects(path, "jsonl", rows, columns)


def read_json(path: Path, columns: Mapping[str, str]) -> Imported:
    """Read the trials of a JSON file: a list of objects, or such a list under `trials`."""
    found = parse_json(read_text(path), str(path))
    if isinstance(found, dict):
        found = cast("dict[str, Any]", found).get("trials")
    if not isinstance(found, list):
        raise ProctorError(
            "neither a list of trials nor an object with one under `trials`", where=str(path)
        )
    trials = cast("list[Any]", found)
    rows = [(f"{path}: trials[{at}]", row) for at, row in enumerate(trials)]
    return _objects(path, "json", rows, columns)


def read_parquet(path: Path, columns: Mapping[str, str]) -> Imported:
    """Read the trials of a Parquet file, one per row."""
    import duckdb

    source = f"read_parquet({pattern(path)})"
    try:
        with duckdb.connect(config={"memory_limit": "2GB"}) as connection:
            described = connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()
            texts = [quoted(name) for name, kind, *_ in described if kind == "VARCHAR"]
            size = f"sum({' + '.join(f'coalesce(strlen({each}), 0)' for each in texts) or '0'})"
            # Counted first: a small file can repeat one long text a billion times.
            measured = connection.execute(f"SELECT count(*), {size} FROM {source}").fetchone()
            count, chars = measured or (0, 0)
            if count > MAX_ROWS or (chars or 0) > MAX_DOCUMENT:
                raise ProctorError(
                    f"it holds {count:,} rows and {chars or 0:,} characters",
                    where=str(path),
                    hint=f"at most {MAX_ROWS:,} and {MAX_DOCUMENT:,}: split it",
                )
            values = connection.execute(f"SELECT * FROM {source}").fetchall()
        names = [str(column[0]) for column in described]
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        raise ProctorError(f"not Parquet: {reason}", where=str(path)) from None
    rows: list[tuple[str, Any]] = [
        (f"{path}: row {number}", dict(zip(names, row, strict=True)))
        for number, row in enumerate(values, 1)
    ]
    return _objects(path, "parquet", rows, columns)


def parse_json(content: str | bytes, where: str) -> Any:
    """Decode a JSON document, or raise with its place."""
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        return msgspec.json.decode(content)
    try:
        return json.loads(content)  # slower, but it accepts NaN, which some programs write
    except (ValueError, RecursionError) as error:
        raise ProctorError(f"not JSON: {error}", where=where) from None


def _objects(
    path: Path, source: str, found: list[tuple[str, Any]], columns: Mapping[str, str]
) -> Imported:
    """Build trials from objects; null means absent."""
    rows: list[tuple[str, dict[str, Any]]] = []
    names: dict[str, None] = {}
    for where, row in found:
        if not isinstance(row, dict):
            raise ProctorError("not an object: it should be one trial", where=where)
        values = cast("dict[str, Any]", row)
        names.update(dict.fromkeys(values))
        rows.append((where, {name: value for name, value in values.items() if value is not None}))
    return _imported(path, source, list(names), rows, columns)


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, without its byte order mark."""
    try:
        return read_bounded(path, MAX_DOCUMENT).decode("utf-8-sig")
    except OSError as error:
        raise ProctorError(f"cannot read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise ProctorError(
            f"not UTF-8 at byte {error.start}", where=str(path), hint="save the file as UTF-8"
        ) from None


def _imported(
    path: Path,
    source: str,
    names: list[str],
    rows: list[tuple[str, dict[str, Any]]],
    columns: Mapping[str, str],
) -> Imported:
    fields = _fields(names, columns, path)
    if "case" not in fields.values():
        raise ProctorError(
            f"no column contains the case (columns: {', '.join(names) or 'none'})",
            where=f"{path}:1",
            hint="--map COLUMN=case",
        )
    seen = {row.get("category", "") for _, row in rows}
    if fields.get("category") == "category" and not seen <= {"", *CATEGORIES}:
        # Other programs file cases under categories: that is no reason of a failure.
        fields["category"] = "properties.category"
    records = [_record(row, fields, where, path) for where, row in rows]
    stopped = {record.cell for record in records if not record.counted}
    for record in records:
        if record.early_stop is None and record.cell in stopped:
            record.early_stop = "stopped early before the export"
    ignored = [name for name in names if name not in fields]
    return Imported(name=path.stem, source=source, records=records, ignored=tuple(ignored))


def _fields(names: list[str], columns: Mapping[str, str], path: Path) -> dict[str, str]:
    """Map columns to fields: by the user's map, else by name, else by a known alias."""
    for column, field in columns.items():
        if column not in names:
            raise ProctorError(
                f"there is no column {column!r}", where=f"{path}:1", hint=hint_among(column, names)
            )
        if field not in FIELDS and not field.startswith(tuple(f"{n}." for n in NESTED)):
            raise ProctorError(
                f"there is no field {field!r}", where="--map", hint=hint_among(field, FIELDS)
            )
    fields = dict(columns)
    taken = set(fields.values())
    for name in names:
        own = name in FIELDS or name.startswith(tuple(f"{n}." for n in NESTED))
        if name not in fields and own and name not in taken:
            fields[name] = name
            taken.add(name)
    # Reversed: of two columns with the same spelling the first one wins.
    lowered = {name.strip().lower().replace(" ", "_"): name for name in reversed(names)}
    for field, aliases in _SYNONYMS.items():
        found = next((lowered[w] for w in (field, *aliases) if w in lowered), None)
        if field not in taken and found is not None and found not in fields:
            fields[found] = field
            taken.add(field)
    # A table with models and no agents is about the models.
    if "agent" not in taken and "model" in fields:
        fields["model"] = "agent"
    return fields


def _record(row: dict[str, Any], fields: Mapping[str, str], where: str, path: Path) -> Record:
    values: dict[str, Any] = {"agent": path.stem}
    for column, field in fields.items():
        if column not in row:
            continue
        base, _, rest = field.partition(".")
        if rest and base in NESTED:
            values.setdefault(base, {})[rest] = row[column]
        elif field == "started":
            values["started_ns"] = started_ns(row[column], where)
        else:
            values[field] = _value(field, row[column], where)
    if "case" not in values:
        raise ProctorError(
            "the row has no case", where=where, hint="map a column with --map COLUMN=case"
        )
    return Record(where=where, **values)


def _value(field: str, value: Any, where: str) -> Any:
    convert = _CONVERT.get(field)
    if convert is None:
        return value if field == "input" else str(value)
    try:
        return convert(value)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ProctorError(
            f"{value!r} is not a {field}", where=where, hint=str(error) or None
        ) from None


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in ("true", "yes", "y", "1", "1.0", "pass", "passed", "ok", "correct", "c"):
        return True
    if word in ("false", "no", "n", "0", "0.0", "fail", "failed", "incorrect", "i"):
        return False
    raise ValueError("write true or false")


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("leave the cell empty where there is no number")
    return number


def _status(value: Any) -> TrialStatus:
    word = str(value).strip().lower().replace(" ", "_").replace("-", "_")
    return TrialStatus(STATUS_WORDS.get(word, word))


def _text_list(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        text = value.strip()
        listed = json.loads(text) if text.startswith("[") else text.replace(";", ",").split(",")
    else:
        listed = value
    return tuple(str(word).strip() for word in listed if str(word).strip())


def _decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(found := _decoded(value), dict):
        raise TypeError("a JSON object is required")
    return cast("dict[str, Any]", found)


def _error(value: Any) -> str:
    """Return an error's message; ours is a JSON object, others are text."""
    if isinstance(value, str) and value.startswith("{"):
        value = json.loads(value)
    if isinstance(value, dict):
        return str(cast("dict[str, Any]", value).get("message", value))  # type: ignore[arg-type]
    return str(value)


def _plain_type(hint: Any) -> Any:
    """Return the type of a field without its `| None`."""
    return next((each for each in get_args(hint) if each is not NoneType), hint)


_BY_TYPE: dict[Any, Callable[[Any], Any]] = {
    bool: _bool,
    float: _number,
    int: lambda value: int(_number(value)),
    TrialStatus: _status,
}

# Fields that are neither here nor in `_BY_TYPE` are texts.
_CONVERT: dict[str, Callable[[Any], Any]] = {
    **{
        field.name: convert
        for field in msgspec.structs.fields(Record)
        if (convert := _BY_TYPE.get(_plain_type(field.type))) is not None
    },
    "started_ns": int,  # more digits than a float has
    "tags": _text_list,
    "params": _object,
    "properties": _object,
    "checks": lambda value: msgspec.convert(_decoded(value), tuple[CheckResult, ...]),
    "error": _error,
}


def started_ns(value: Any, where: str = "") -> int:
    """Parse a time to nanoseconds since 1970: ISO 8601, or Unix seconds or milliseconds."""
    try:
        if isinstance(value, int | float) or str(value).replace(".", "", 1).isdigit():
            seconds = float(value)
            # Unix seconds stay below 1e11 until the year 5138.
            return int((seconds / 1000 if seconds > 1e11 else seconds) * 1e9)
        when = datetime.fromisoformat(str(value).strip())
    except (ValueError, OverflowError):
        raise ProctorError(
            f"{value!r} is not a time", where=where, hint="write it as 2026-11-16T09:30:00Z"
        ) from None
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    # Integer division: a float of seconds would lose the microseconds.
    return (aware - epoch) // datetime.resolution * 1000
