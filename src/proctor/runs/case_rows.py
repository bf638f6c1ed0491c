"""Cases made from rows of data: the rows in a file, and the template that makes cases of them.

    results/<experiment>/<date>_<seq>/cases.jsonl      the rows of a large data set, one per line

The spec of such a run holds the template; `expanded` returns it with its cases, as readers expect
it. Rows are encoded with sorted keys, so that the SHA-256 of the file is the version of the data.
Memory holds twelve bytes for each row, never its content.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import threading
import unicodedata
from array import array
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import msgspec

from proctor.errors import ProctorError
from proctor.files import replacing
from proctor.sanitize import map_texts

NAME = "cases.jsonl"
"""The file of a run folder with the rows of its cases."""

BLOCK = 1 << 20
"""Bytes read at a time where all rows are read."""

PLACEHOLDER = re.compile(r"\{(\w[\w .-]*)\}")

_ENCODER = msgspec.json.Encoder(order="sorted", enc_hook=str)


class Row(NamedTuple):
    """One row and its place: of Parquet and JSON, the line is the number of the row."""

    values: dict[str, Any]
    file: str
    line: int


class RowFile(Sequence[Row]):
    """Rows in a file without a name, or in that of a run folder; a forked process reads the same.

    The file is written once: first every `add`, then the rest.
    """

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self._file = file or tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the rows)
        self._ends = array("Q")
        self._lines = array("I")
        self._files: list[tuple[int, str]] = []
        """The first row of each source file, with its name."""
        self._chosen: array[int] | None = None
        self._size = 0
        self._reading = threading.Lock()
        self.columns: set[str] = set()
        """Every column that some row has."""

    @classmethod
    def open(cls, path: Path) -> RowFile:
        """Return the rows of a run folder's file."""
        rows = cls(path.open("rb"))
        for number, line in enumerate(rows._file, 1):
            rows._place(line, str(path), number)
            if number == 1 or not rows.columns:
                rows.columns.update(msgspec.json.decode(line, type=dict[str, Any]))
        return rows

    def add(self, row: Row) -> None:
        """Append a row."""
        line = _ENCODER.encode(row.values) + b"\n"
        self._file.write(line)
        self._place(line, row.file, row.line)
        if not row.values.keys() <= self.columns:
            self.columns.update(row.values)

    def _place(self, line: bytes, file: str, number: int) -> None:
        if not self._files or self._files[-1][1] != file:
            self._files.append((len(self._ends), file))
        self._size += len(line)
        self._ends.append(self._size)
        self._lines.append(number)

    def close_for_writing(self) -> None:
        """Reopen the file for reading alone: agents in forked processes have its descriptor."""
        self._file.flush()
        if sys.platform == "linux":  # elsewhere no path of a descriptor opens its file again
            self._file = Path(f"/proc/self/fd/{self._file.fileno()}").open("rb")  # noqa: SIM115

    def only(self, indices: Iterable[int]) -> RowFile:
        """Return some of the rows, in this order."""
        found = RowFile.__new__(RowFile)
        vars(found).update(vars(self))
        vars(found).pop("sha256", None)
        own = self._chosen
        chosen = array("I", (index if own is None else own[index] for index in indices))
        found._chosen = chosen  # noqa: SLF001 (of this class)
        return found

    def __len__(self) -> int:
        return len(self._ends) if self._chosen is None else len(self._chosen)

    def line(self, index: int) -> bytes:
        """Return a row as it is in the file."""
        at = index if self._chosen is None else self._chosen[index]
        start = self._ends[at - 1] if at else 0
        return self._read(start, self._ends[at] - start)

    def _read(self, start: int, size: int) -> bytes:
        with self._reading:
            if self._file.writable():
                self._file.flush()
            # Processes share the position of the file, so it is not used.
            if hasattr(os, "pread"):
                return os.pread(self._file.fileno(), size, start)
            self._file.seek(start)
            return self._file.read(size)

    def place(self, index: int) -> tuple[str, int]:
        """Return the source file and the line of a row."""
        at = index if self._chosen is None else self._chosen[index]
        name = self._files[bisect_right(self._files, at, key=lambda each: each[0]) - 1][1]
        return name, self._lines[at]

    def __getitem__(self, index: int) -> Row:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return Row(msgspec.json.decode(self.line(index)), *self.place(index))

    def lines(self) -> Iterator[bytes]:
        """Yield every row as it is in the file."""
        if self._chosen is not None:
            yield from map(self.line, range(len(self)))
            return
        rest = b""
        for start in range(0, self._size, BLOCK):
            *whole, rest = (rest + self._read(start, BLOCK)).split(b"\n")
            for line in whole:
                yield line + b"\n"

    def __iter__(self) -> Iterator[Row]:
        for index, line in enumerate(self.lines()):
            yield Row(msgspec.json.decode(line), *self.place(index))

    @cached_property
    def sha256(self) -> str:
        """The version of the rows: a hash of their content, in order."""
        digest = hashlib.sha256()
        for line in self.lines():
            digest.update(line)
        return digest.hexdigest()

    def write_to(self, path: Path) -> None:
        """Write the rows to the file of a run folder."""
        # On disk before the spec that names it.
        with replacing(path) as aside, aside.open("wb") as file:
            file.writelines(self.lines())


# -- templates -----------------------------------------------------------------------------------


class CaseTemplate(NamedTuple):
    """What makes a case of a row: fields from columns, over them a case with placeholders."""

    columns: Mapping[str, str]
    properties: Sequence[str]
    case: Mapping[str, Any]
    matrix: Mapping[str, list[Any]] = {}
    defaults: Mapping[str, Any] = {}

    def fields(self, values: Mapping[str, Any], suffix: str = "") -> dict[str, Any]:
        """Return the fields that columns fill; an empty cell leaves its field out."""
        fields: dict[str, Any] = {key: values.get(each) for key, each in self.columns.items()}
        if isinstance(tags := fields.get("tags"), str):
            fields["tags"] = [tag for tag in re.split(r"[,;\s]+", tags) if tag]
        if fields.get("id") not in (None, ""):
            fields["id"] = str(fields["id"]) + suffix
        if self.properties:
            fields["properties"] = {name: values.get(name) for name in self.properties}
        return {key: value for key, value in fields.items() if value is not None and value != ""}

    def record(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the case of a row as a suite would have it."""
        own = merge(self.fields(values), fill(self.case, values))
        found = cast("dict[str, Any]", merge(self.defaults, own))
        if (
            found.get("id") is None
            and (given := found.get("input", found.get("query"))) is not None
        ):
            found["id"] = slug(given)
        return found

    def id_of(self, values: Mapping[str, Any]) -> str:
        """Return the id of the case of a row."""
        if (column := self.columns.get("id")) is not None and "id" not in self.case:
            value = values.get(column)
            if value is not None and value != "":
                return str(value)
        return str(self.record(values).get("id", ""))

    def placeholders(self) -> set[str]:
        """Return the columns that the case names."""
        return set(_named(self.case))

    def same_for_all(self, keys: Iterable[str]) -> bool:
        """Return whether no row changes these keys, and each row makes one case."""
        return not self.matrix and not any(
            key in self.columns or any(_named(self.case.get(key))) for key in keys
        )


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from PLACEHOLDER.findall(value)
    elif isinstance(value, Mapping):
        for each in cast("Mapping[str, Any]", value).values():
            yield from _named(each)
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _named(each)


def fill(value: Any, values: Mapping[str, Any]) -> Any:
    """Return a value with the placeholders of its texts replaced."""

    def filled(text: str) -> Any:
        if "{" not in text:
            return text
        whole = PLACEHOLDER.fullmatch(text)
        if whole is not None and whole[1] in values:
            return values[whole[1]]
        return PLACEHOLDER.sub(
            lambda found: _text(values[found[1]]) if found[1] in values else found[0], text
        )

    return map_texts(value, filled)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def merge(base: Any, over: Any) -> Any:
    """Merge mappings key by key; anything else (lists too) replaces."""
    if not (isinstance(base, Mapping) and isinstance(over, Mapping)):
        return over
    result = dict(cast("Mapping[str, Any]", base))
    for key, value in cast("Mapping[str, Any]", over).items():
        result[key] = merge(result[key], value) if key in result else value
    return result


def escaped(value: Any) -> Any:
    """Escape texts, so that substituting environment variables leaves them unchanged."""
    return map_texts(value, lambda text: text.replace("${", "$${"))


def escaped_values(line: bytes) -> dict[str, Any]:
    """Return the values of a row, so that none of them is read as a variable."""
    values = msgspec.json.decode(line)
    return escaped(values) if b"${" in line else values


# -- ids -----------------------------------------------------------------------------------------

LONGEST_SLUG = 60
"""Readable in a table, and far from the limits of paths."""

RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
"""File names that Windows reserves."""

_DIGEST = 6


def slug(value: Any) -> str:
    """Return an id derived from a case's input: its words, and a digest when truncated."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    # Compatibility forms such as ligatures and full-width letters become ordinary letters.
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = "-".join(re.findall(r"[^\W_]+", plain))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    if not words:
        return f"case-{digest}"
    if RESERVED.fullmatch(words):
        return f"case-{words}"
    if len(words) <= LONGEST_SLUG:
        return words
    room = LONGEST_SLUG - _DIGEST - 1
    short = words[:room]
    # Cut between words, unless the first word alone is too long.
    if "-" in short and words[room] != "-":
        short = short.rpartition("-")[0]
    return f"{short.rstrip('-')}-{digest}"


# -- the record of a run -------------------------------------------------------------------------


def is_compact(spec: Mapping[str, Any]) -> bool:
    """Return whether the cells of a spec are those of the rows in its folder."""
    return isinstance(spec.get("cells"), Mapping)


def recorded_template(spec: Mapping[str, Any]) -> CaseTemplate:
    """Return the template of a compact spec."""
    cases = cast("Mapping[str, Any]", spec["suite"]["cases"])
    columns = dict(cast("Mapping[str, Any]", cases["columns"]))
    properties = columns.pop("properties", [])
    return CaseTemplate(
        columns, properties, cases.get("case", {}), {}, spec["suite"].get("defaults") or {}
    )


def data_cases(
    spec: Mapping[str, Any], folder: Path, only: Container[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the cases of a compact spec; `only` some of them, by id."""
    try:
        rows, template = RowFile.open(folder / NAME), recorded_template(spec)
        for values in map(escaped_values, rows.lines()):
            if only is None or template.id_of(values) in only:
                yield template.record(values)
    except (OSError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise ProctorError(
            f"the cases of the run cannot be read: {error}", where=str(folder / NAME)
        ) from None


def expanded(
    spec: dict[str, Any], folder: Path, only: Container[str] | None = None
) -> dict[str, Any]:
    """Return a compact spec with its cases and cells; `only` some of them, by id."""
    cases, each = list(data_cases(spec, folder, only)), spec["cells"]
    try:
        about = {"trials": each["trials"], "threshold": each["threshold"]}
        agents = list(each["agents"])
    except (KeyError, TypeError) as error:
        raise ProctorError(f"its cells lack {error}", where=str(folder)) from None
    cells = [{"case": case["id"], "agent": agent, **about} for case in cases for agent in agents]
    return {**spec, "suite": {**spec["suite"], "cases": cases}, "cells": cells}
