"""Cases from data: rows of CSV, JSON, JSONL and Parquet files, folders with splits, and matrices.

    cases:
      data: questions.csv
      columns: {id: key, input: question, properties: [topic]}
      case: {correctness: {expected_in_answer: '{answer}'}}
      split: test
      sample: 200
      seed: 7
      matrix: {language: [en, de]}

Each row makes a case: `case` is its template, in which `{column}` is replaced by the row's value; a
text that is only `{column}` becomes the value itself, with its type. `data` in the record of a run
names the version of the rows, a hash of the selected rows in order, so that two runs on the same
rows have the same version.

Rows are read once, into a temporary file, and from there when their cases are needed, so that a
large data set takes some twenty bytes of memory for each row. A suite of up to `WHOLE` cases is
validated and recorded as if its cases were written one by one. Of a larger one, every row is
checked for what concerns the set (its cells, ids, an input), the first `WHOLE` rows are validated
as cases, and the others when their trials start; the run folder has the rows.
"""

from __future__ import annotations

import csv
import importlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, NamedTuple, cast

import msgspec
from pydantic import Field

from proctor.errors import ProctorError, hint_among
from proctor.files import read_bounded
from proctor.formatting import plural
from proctor.runs.case_rows import CaseTemplate, Row, RowFile, fill
from proctor.sanitize import json_value
from proctor.spec.located import (
    Problems,
    SourceLocation,
    Tree,
    YamlDocument,
    merged,
    plain,
    tree_of,
)
from proctor.spec.validation import validated
from proctor.spec.yaml_reader import instead_of
from proctor.strict import Strict

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
"""Files that hold rows."""

MAX_BYTES, MAX_ROWS = 2**30, 1_000_000
"""Limits of a data file: more is not a test suite."""

WHOLE = 1_000
"""Cases up to which a data set is validated and recorded as a whole: less than half a second."""

_SPLIT = "split"

CONSTANT = ("trials", "threshold", "workspace", "turns", "user", "state", "approvals", "checks")
"""Keys that a plan or its preparation reads of every case: where rows change them, the data set is
read as a whole, whatever its size."""


class DataSource(Strict):
    """Where cases come from: `cases:` of a suite, in place of a list."""

    data: Annotated[str, Field(min_length=1)]
    """A .csv, .tsv, .jsonl, .json or .parquet file, or a folder of them with one per split."""
    columns: dict[str, str | list[str]] = Field(default_factory=dict[str, str | list[str]])
    """Field of the case → column, by default of the same name; `properties` is a list."""
    case: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Template of each case; `{column}` is replaced."""
    split: str | None = None
    """Only rows of this split: a file `SPLIT.*` or `SPLIT-*` of a folder, or a column `split`."""
    sample: Annotated[int, Field(ge=1)] | None = None
    """Number of rows, drawn without replacement; all by default."""
    seed: int = 0
    """Seed of the sample."""
    matrix: dict[str, list[Any]] = Field(default_factory=dict[str, list[Any]])
    """Name → values: a case for each combination, `{name}` is replaced."""


class DataVersion(Strict):
    """The rows of a suite, as a run records them."""

    file: str
    rows: int
    sha256: str
    split: str | None = None
    sample: int | None = None
    seed: int = 0


FIELDS: tuple[Literal["id", "input", "description", "difficulty", "type", "tags"], ...] = (
    "id", "input", "description", "difficulty", "type", "tags",
)  # fmt: skip
"""Fields of a case that a column of the same name fills."""


def is_data(cases: Tree | None) -> bool:
    """Return whether `cases:` names data instead of listing cases."""
    if cases is None:
        return False
    if isinstance(cases.value, dict):
        return "data" in cases.value
    return isinstance(cases.value, str) and cases.value.endswith(SUFFIXES)


class DataRows(NamedTuple):
    """The rows of a large data set, what makes cases of them, and this as a run records it."""

    rows: RowFile
    template: CaseTemplate
    written: CaseTemplate
    """The template with references to environment variables instead of their values."""
    tree: Tree
    """The template with its positions, for problems."""

    def case_tree(self, index: int) -> Tree:
        """Return the case of a row with the positions of its parts."""
        return _case_tree(self.template, self.tree, self.rows[index])


def with_data(document: YamlDocument, folder: Path) -> tuple[YamlDocument, DataRows | None]:
    """Return a suite's document with the cases of its data, and a case for each of a matrix.

    Of a large data set the document has the first case, and the rows are returned beside it.
    """
    tree = document.tree
    if tree is None or not isinstance(tree.value, dict):
        return document, None
    cases = tree.value.get("cases")
    if cases is None:
        return document, None
    value, problems, data = dict(tree.value), document.problems, None
    if is_data(cases):
        made = _from_data(cases, folder, problems, tree.value.get("data"))
        if made is None:
            return (document._replace(tree=None) if problems else document), None
        value["cases"], value["data"], data = made
    elif isinstance(cases.value, list) and any(case.child("matrix") for case in cases.value):
        found = [each for case in cases.value for each in _from_matrix(case, problems)]
        value["cases"] = replace(cases, value=found)
    else:
        return document, None
    return document._replace(tree=replace(tree, value=value)), data


def _from_data(
    cases: Tree, folder: Path, problems: Problems, recorded: Tree | None
) -> tuple[Tree, Tree, DataRows | None] | None:
    """Return the cases of a data source, its version, and the rows where they are many."""
    if isinstance(cases.value, str):
        cases = Tree(cases.place, {"data": cases})
    source = validated(cases, DataSource, problems)
    if source is None:
        return None
    tree = cases.child("case") or Tree(cases.place, {})
    try:
        rows = select_rows(source, folder)
    except ProctorError as error:
        row = re.fullmatch(r"(.+):(\d+)", error.where or "")
        place = SourceLocation(row[1], int(row[2]), 1) if row else cases.place
        problems.add(place, error.message, error.hint)
        return None
    known = rows.columns | source.matrix.keys()
    columns = {name: name for name in FIELDS if name in known}
    columns |= {key: each for key, each in source.columns.items() if isinstance(each, str)}
    columns.pop("properties", None)
    listed = source.columns.get("properties", [])
    properties = listed if isinstance(listed, list) else [listed]
    template = CaseTemplate(columns, tuple(properties), plain(tree), source.matrix)
    used = {*columns.values(), *properties, *template.placeholders()}
    for name in sorted(used - known):
        place = next(
            (part.place for part in tree.walk() if f"{{{name}}}" in str(part.value)), cases.place
        )
        problems.add(place, f"the data has no column {name!r}", hint_among(name, sorted(known)))
    if problems:
        return None
    version = DataVersion(
        file=source.data,
        rows=len(rows),
        sha256=rows.sha256,
        split=source.split,
        sample=source.sample,
        seed=source.seed,
    )
    about = tree_of(version.model_dump(exclude_none=True), lambda _: cases.place, {}, [])
    # The data of a run folder keeps the version of the file it was made from.
    about = recorded or about
    if len(rows) > WHOLE and template.same_for_all(CONSTANT):
        written = template._replace(case=plain(tree, as_written=True))
        data = DataRows(rows, template, written, tree)
        first = _case_tree(template, tree, rows[0])
        return replace(cases, value=[first], keys={}), about, data
    made: list[Tree] = []
    for row in rows:
        for values in _combinations(source.matrix):
            every = row._replace(values={**row.values, **values})
            made.append(_case_tree(template, tree, every, _suffix(values)))
    return replace(cases, value=made, keys={}), about, None


def _case_tree(template: CaseTemplate, tree: Tree, row: Row, suffix: str = "") -> Tree:
    place = SourceLocation(row.file, row.line, 1)
    # Values of rows are data: `${NAME}` in them is text.
    own = tree_of(template.fields(row.values, suffix), lambda _: place, {}, [])
    return merged(own, replace(_filled(tree, row.values, place), place=place))


def _from_matrix(case: Tree, problems: Problems) -> Iterator[Tree]:
    """Yield a case for each combination of its matrix."""
    matrix = case.child("matrix")
    if matrix is None or not isinstance(case.value, dict):
        yield case
        return
    values: Any = plain(matrix)
    if not isinstance(values, dict) or not all(isinstance(each, list) for each in values.values()):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        problems.add(matrix.place, "a matrix is a mapping of names to lists of values")
        return
    rest = {key: part for key, part in case.value.items() if key != "matrix"}
    keys = {key: place for key, place in case.keys.items() if key != "matrix"}
    for chosen in _combinations(cast("dict[str, list[Any]]", values)):
        made = _filled(Tree(case.place, rest, keys), chosen)
        own = made.child("id")
        if own is not None and isinstance(made.value, dict):
            named = replace(own, value=f"{own.value}{_suffix(chosen)}")
            made = replace(made, value={**made.value, "id": named})
        yield made


def _combinations(matrix: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*matrix.values()):
        yield dict(zip(matrix, values, strict=True))


def _suffix(values: Mapping[str, Any]) -> str:
    """Return what a combination adds to the id of its case: `[city=Rome+year=2026]`."""
    parts = [
        f"{name}={re.sub(r'[^A-Za-z0-9.-]+', '-', str(value))}" for name, value in values.items()
    ]
    return f"[{'+'.join(parts)}]" if parts else ""


def _filled(tree: Tree, values: Mapping[str, Any], row: SourceLocation | None = None) -> Tree:
    """Return a tree with the placeholders of its texts replaced; these have the place of the row.

    What is wrong with them is wrong with the data.
    """
    if isinstance(tree.value, dict):
        parts = {key: _filled(each, values, row) for key, each in tree.value.items()}
        return replace(tree, value=parts)
    if isinstance(tree.value, list):
        return replace(tree, value=[_filled(each, values, row) for each in tree.value])
    if not isinstance(tree.value, str) or "{" not in tree.value:
        return tree
    value, place = fill(tree.value, values), row or tree.place
    if isinstance(value, str):
        return replace(tree, value=value, place=place)
    return tree_of(value, lambda _: place, {}, [])


# -- rows ----------------------------------------------------------------------------------------


def select_rows(source: DataSource, folder: Path) -> RowFile:
    """Return the rows of a source: of its split, sampled."""
    path = folder / source.data
    files = _split_files(path, source.split) if path.is_dir() else [path]
    by_column = source.split is not None and not path.is_dir()
    rows, splits = RowFile(), set[str]()
    for file in files:
        for row in read_rows(file):
            if by_column and (own := row.values.get(_SPLIT)) != source.split:
                if _SPLIT in row.values:
                    splits.add(str(own))
                continue
            if len(rows) == MAX_ROWS:
                raise ProctorError(f"more than {MAX_ROWS:,} rows", where=str(file))
            rows.add(row)
    if by_column and not rows:
        if not splits:
            raise ProctorError("the data has no column 'split'", where=str(path))
        raise ProctorError(
            f"no row of the split {source.split!r}", hint=hint_among(str(source.split), splits)
        )
    if not rows:
        raise ProctorError("the data has no rows", where=str(path))
    rows.close_for_writing()
    if source.sample is not None:
        if source.sample > len(rows):
            message = f"a sample of {source.sample:,} needs as many rows, and there are"
            raise ProctorError(f"{message} {len(rows):,}", where=str(path))
        # In the order of the data, so that a larger sample does not reorder the cases.
        chosen = Random(source.seed).sample(range(len(rows)), source.sample)  # noqa: S311 (repeatable)
        rows = rows.only(sorted(chosen))
    return rows


def _split_files(folder: Path, split: str | None) -> list[Path]:
    """Return the files of a split: `test.csv`, `test-00000-of-00002.parquet`, `test/x.jsonl`."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    files = [path for path in files if path.name not in ("dataset_info.json", "dataset_infos.json")]
    by_split: dict[str, list[Path]] = {}
    for path in files:
        inner = path.relative_to(folder).parent.name
        name = re.match(r"[A-Za-z_]+", path.stem)
        own = inner if inner and inner != "data" else name[0] if name else path.stem
        by_split.setdefault(own, []).append(path)
    if not by_split:
        raise ProctorError("the folder has no data files", where=str(folder))
    if split is None and len(by_split) > 1:
        names = ", ".join(by_split)
        raise ProctorError(f"the folder has the splits {names}", hint="add `split: NAME`")
    if split is not None and split not in by_split:
        raise ProctorError(f"there is no split {split!r}", hint=hint_among(split, by_split))
    return by_split[split or next(iter(by_split))]


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file, each with its line (of Parquet and JSON: its number)."""
    if path.suffix not in SUFFIXES:
        raise ProctorError(f"data files are {', '.join(SUFFIXES)}", where=str(path))
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
            return
        if path.stat().st_size > MAX_BYTES:
            raise ProctorError(f"more than {MAX_BYTES // 2**20} MB of data", where=str(path))
        if path.suffix in (".csv", ".tsv"):
            yield from _table(path)
        elif path.suffix == ".jsonl":
            yield from _json_lines(path)
        else:
            value = msgspec.json.decode(read_bounded(path, MAX_BYTES))
            rows: Any = value.get("data", value) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            if not isinstance(rows, list):
                raise ProctorError("not a list of objects", where=str(path))
            for number, row in enumerate(cast("list[Any]", rows), 1):
                yield _row(row, path, number)
    except FileNotFoundError:
        raise ProctorError(
            f"there is no file {path.name!r}", where=str(path), hint=instead_of(path)
        ) from None
    except (OSError, UnicodeDecodeError, csv.Error, msgspec.DecodeError, RecursionError) as error:
        raise ProctorError(f"{path.name} cannot be read: {error}", where=str(path)) from None


def _table(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        header, name = next(reader, list[str]()), str(path)
        for column in header:
            if header.count(column) > 1:
                raise ProctorError(f"the header names {column!r} twice", where=f"{path}:1")
        for cells in reader:
            if len(cells) == len(header):
                yield Row(dict(zip(header, cells, strict=True)), name, reader.line_num)
            elif cells:
                where = f"{path}:{reader.line_num}"
                raise ProctorError(
                    f"the row has {plural(len(cells), 'cell')}, the header {len(header)}",
                    where=where,
                    hint="put quotes around a cell with a comma or a line break",
                )


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield _row(msgspec.json.decode(line), path, number)
            except msgspec.DecodeError as error:
                raise ProctorError(f"not JSON: {error}", where=f"{path}:{number}") from None


def _parquet(path: Path) -> Iterator[Row]:
    duckdb: Any = importlib.import_module("duckdb")
    with duckdb.connect() as database:
        try:
            found = database.execute("select * from read_parquet(?)", [str(path)])
            names = [column[0] for column in found.description]
            number = 0
            while batch := found.fetchmany(10_000):
                for values in batch:
                    number += 1
                    row = dict(zip(names, map(json_value, values), strict=True))
                    yield _row(row, path, number)
        except duckdb.Error as error:
            raise ProctorError(f"not a Parquet file: {error}", where=str(path)) from None


def _row(value: Any, path: Path, number: int) -> Row:
    if not isinstance(value, dict):
        raise ProctorError("a row is an object", where=f"{path}:{number}")
    return Row(cast("dict[str, Any]", value), str(path), number)


# -- versions ------------------------------------------------------------------------------------


class DataChange(NamedTuple):
    """How one case differs between two versions."""

    case: str
    change: Literal["added", "removed", "changed"]
    fields: tuple[str, ...] = ()
    """The fields of the case that changed."""


def case_changes(
    old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]
) -> list[DataChange]:
    """Return the cases that were added, removed or changed, by id; the order is that of `new`."""
    changes = [DataChange(name, "removed") for name in old if name not in new]
    for name, case in new.items():
        if name not in old:
            changes.append(DataChange(name, "added"))
        elif fields := tuple(
            key for key in {**old[name], **case} if old[name].get(key) != case.get(key)
        ):
            changes.append(DataChange(name, "changed", fields))
    return changes
