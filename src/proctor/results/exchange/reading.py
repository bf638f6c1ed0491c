"""Find out what a file of results is, read it, and keep it as a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proctor.errors import ProctorError
from proctor.results.exchange.record import THRESHOLD, Imported, keep
from proctor.runs.run import Run

SOURCES = ("csv", "jsonl", "inspect", "promptfoo")


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

    `columns` maps columns of a CSV or JSONL file to fields. `threshold` is the score from which a
    trial passed, `scale` the score that counts as 1, where the file does not say whether it passed.
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
    if columns and form not in ("csv", "jsonl"):
        raise ProctorError(f"--map is for csv and jsonl, this is {form}", where=str(file))
    if form == "csv":
        from proctor.results.exchange.tables import read_csv

        return read_csv(file, columns or {})
    if form == "jsonl":
        from proctor.results.exchange.tables import read_jsonl

        return read_jsonl(file, columns or {})
    if form == "inspect":
        from proctor.results.exchange.inspect_logs import read_inspect

        return read_inspect(file)
    from proctor.results.exchange.promptfoo import read_promptfoo

    return read_promptfoo(file)


def guessed(file: Path) -> str:
    """What a file is, by its suffix and, for JSON, by what its top says."""
    suffix = file.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return "csv"
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    if suffix == ".eval":
        return "inspect"
    if suffix == ".json":
        top = file.read_bytes()[:4096]
        if b'"eval"' in top and b'"status"' in top:
            return "inspect"
        if b'"evalId"' in top or b'"results"' in top:
            return "promptfoo"
    raise ProctorError(
        "it does not say what it is", where=str(file), hint=f"--from {'|'.join(SOURCES)}"
    )
