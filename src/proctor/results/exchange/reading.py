"""Find out what a file of results is, read it, and keep it as a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proctor.errors import ProctorError
from proctor.results.exchange.record import THRESHOLD, Imported, keep
from proctor.runs.run import Run

TABLES = ("csv", "jsonl", "json", "parquet")
"""Trials as rows, whose columns may be given a meaning."""

SOURCES = (*TABLES, "inspect", "promptfoo")


def import_results(
    file: str | Path,
    source: str | None = None,
    *,
    root: str | Path = "results",
    columns: Mapping[str, str] | None = None,
    name: str | None = None,
    threshold: float = THRESHOLD,
    scale: float = 1.0,
) -> Run:
    """Keep the results in a file as a run folder below `root`.

    `columns` maps columns of a table (CSV, JSONL, JSON, Parquet) to fields. `threshold` is the
    score from which a trial passed, `scale` the score that counts as 1, where the file does not
    say whether it passed.
    """
    found = read_results(Path(file), source, columns or {})
    if name is not None:
        found.name = name
    return keep(found, Path(root), file=Path(file), threshold=threshold, scale=scale)


def read_results(
    file: Path, source: str | None = None, columns: Mapping[str, str] | None = None
) -> Imported:
    """The results in a file, read and not yet kept."""
    if not file.is_file():
        raise ProctorError("there is no such file", where=str(file))
    form = source or guessed(file)
    if form in TABLES:
        from proctor.results.exchange import tables

        readers = {
            "csv": tables.read_csv,
            "jsonl": tables.read_jsonl,
            "json": tables.read_json,
            "parquet": tables.read_parquet,
        }
        return readers[form](file, columns or {})
    if columns:
        raise ProctorError(
            f"--map is for {', '.join(TABLES)}; this is {form}",
            where=str(file),
            hint="leave it out: what its fields mean is known",
        )
    if form == "inspect":
        from proctor.results.exchange.inspect_logs import read_inspect

        return read_inspect(file)
    from proctor.results.exchange.promptfoo import read_promptfoo

    return read_promptfoo(file)


_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".eval": "inspect",
}


def guessed(file: Path) -> str:
    """What a file is, by its suffix and, for JSON, by what its top says."""
    suffix = file.suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if suffix == ".json":
        top = file.read_bytes()[:4096]
        if top.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[" or b'"trials"' in top[:64]:
            return "json"
        if b'"eval"' in top and b'"status"' in top:
            return "inspect"
        if b'"evalId"' in top or b'"results"' in top:
            return "promptfoo"
    raise ProctorError(
        "it does not say what it is", where=str(file), hint=f"--from {'|'.join(SOURCES)}"
    )
