"""Detect the format of a results file, read it, and save it as a run."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.errors import ProctorError
from proctor.files import unblocked
from proctor.results.metadata import STOPPING, finalise
from proctor.runs.folder import RunFolder
from proctor.runs.journal import Sync
from proctor.runs.provenance import new_run_id, provenance
from proctor.runs.run import Run
from proctor.runs.segments import SegmentWriter
from proctor.runs.trial import (
    NO_CHECKS,
    UNJUDGED,
    CellKey,
    Trial,
    TrialError,
    TrialStatus,
    params_key,
)
from proctor.sanitize import json_bytes
from proctor.seeds import derive_seed
from proctor.trace.assemble import Collector
from proctor.trace.formats import transcript
from proctor.trace.load import load_traces
from proctor.trace.model import Trace
from proctor.trace.redact import default_redactor

# Write results of other programs as an ordinary run folder. An import is complete or does not
# happen: everything is read and checked first, and ignored columns are reported. Statuses keep
# their three kinds: an error in the source becomes an infrastructure error, never a failure of the
# agent.


# Minimum passing score where the source has none: the default of cases.
_THRESHOLD = 0.8


MAX_DOCUMENT = 256 << 20
"""Maximum bytes of a file that is read as a whole, and of a part of an archive: decoded, small
values take twenty times as much."""

MAX_ARCHIVE = 2 << 30
"""Maximum bytes of all parts of an archive; one is read at a time."""

MAX_ROWS = 5_000_000
"""Maximum rows of a table."""


class Record(msgspec.Struct, kw_only=True):
    """One trial of another program. `where` is its location in the file, for errors."""

    case: str
    agent: str
    where: str = ""
    status: TrialStatus | None = None
    passed: bool | None = None
    score: float | None = None
    threshold: float | None = None
    category: str = ""
    early_stop: str | None = None
    stopping_rules: str | None = None
    counted: bool = True
    """Whether it ended before an early stop: our own exports have the others as well."""
    last_status: TrialStatus | None = None
    spent_usd: float | None = None
    spent_tokens: int | None = None
    spent_unpriced_calls: int | None = None
    """What all attempts used, and how the last one ended."""
    answer: str | None = None
    error: str | None = None
    error_type: str = "ImportedError"
    reason: str | None = None
    checks: tuple[CheckResult, ...] = ()
    params: dict[str, Any] = {}
    axis_seed: int | None = None
    index: int | None = None
    seed: int | None = None
    started_ns: int = 0
    duration_ms: float | None = None
    latency_ms: float | None = None
    queue_ms: float = 0.0
    startup_ms: float = 0.0
    check_ms: float = 0.0
    judge_cost_usd: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    llm_calls: int = 0
    unpriced_calls: int | None = None
    tool_calls: int = 0
    retries: int = 0
    trace_id: str | None = None
    model: str | None = None
    input: Any = None
    description: str | None = None
    tags: tuple[str, ...] = ()
    difficulty: str | None = None
    type: str | None = None
    properties: dict[str, Any] = {}
    messages: list[dict[str, Any]] = []
    """The conversation in OpenAI message format: it becomes the trial's trace."""
    trace_file: Path | None = None
    """A file with the trial's trace, in any format that is read."""

    @property
    def cell(self) -> CellKey:
        """The cell of the trial."""
        return CellKey(self.case, self.agent, params_key(self.params))


_SHARED = frozenset(Record.__struct_fields__) & frozenset(Trial.__struct_fields__)


class Imported(msgspec.Struct, kw_only=True):
    """Parsed contents of a file, before they are saved."""

    name: str
    source: str
    records: list[Record]
    created: str | None = None
    stopped: str | None = None
    planned: dict[str, int] = {}
    """Trials that the source planned per case, where the file does not hold all of them."""
    ignored: tuple[str, ...] = ()
    warnings: list[str] = []
    about: dict[str, Any] = {}


def write_import(found: Imported, root: Path, *, file: Path, threshold: float = _THRESHOLD) -> Run:
    """Write the parsed results as a new run folder below `root`."""
    if not found.records:
        raise ProctorError("the file contains no results", where=str(file))
    _number_trials(found.records)
    _mark_unpriced(found.records)
    trials = [_trial(record, threshold) for record in found.records]
    spec = _spec(found, file, threshold)
    folder = RunFolder.create(root, found.name)
    try:
        with folder.lock():
            folder.write_spec(spec)
            _write_traces(folder, found.records, trials)
            # No fsync: after a crash the file is imported again.
            journal = folder.journal(Sync.NEVER)
            for record, trial in zip(found.records, trials, strict=True):
                for attempt in _attempts(record, trial):
                    journal.append(attempt)
            journal.close()
            return finalise(folder)
    # Also on Ctrl-C: a partial import would look like a complete run.
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _write_traces(folder: RunFolder, records: list[Record], trials: list[Trial]) -> None:
    """Write conversations as traces and reference them from the trials."""
    both = zip(records, trials, strict=True)
    traced = [(r, t) for r, t in both if r.messages or r.trace_file]
    if not traced:
        return
    writer = SegmentWriter(folder.traces_path)
    for record, trial in traced:
        traces: Iterable[Trace]
        if record.trace_file is not None:
            traces = load_traces(record.trace_file)[:1]
        else:
            out = Collector(record.where)
            transcript.read({"messages": record.messages, "model": record.model}, out)
            traces = out.traces.values()
        for trace in traces:
            trial.trace = writer.append(json_bytes(default_redactor().trace(trace)))
            trial.trace_id = trace.trace_id
            trial.tool_calls = trial.tool_calls or len(trace.tool_calls)
            trial.llm_calls = trial.llm_calls or len(trace.llm_calls)
    writer.close()


def _number_trials(records: Sequence[Record]) -> None:
    """Number the records within their cell; a duplicate is an error."""
    seen: Counter[tuple[CellKey, int | None]] = Counter()
    first_seen: dict[tuple[CellKey, int | None, int], str] = {}
    for record in records:
        cell = (record.cell, record.axis_seed)
        if record.index is None:
            record.index = seen[cell]
        seen[cell] += 1
        key = (*cell, record.index)
        # Silently keeping one of them would change the figures.
        if key in first_seen:
            raise ProctorError(
                f"trial {record.index} of {record.cell} is a duplicate (first: {first_seen[key]})",
                where=record.where,
                hint="do not map a column to `index`: trials are then numbered in file order",
            )
        first_seen[key] = record.where


def _mark_unpriced(records: Sequence[Record]) -> None:
    """Mark trials without a cost among trials with one: their sum is a lower bound."""
    if all(record.cost_usd is None for record in records):
        return
    for record in records:
        # Calls that all have a price would have a cost: an empty one says that some have none.
        said = record.unpriced_calls is not None and not record.llm_calls
        if record.cost_usd is None and not record.unpriced_calls and not said:
            # At least one call has no price; how many is not in the file.
            record.unpriced_calls = record.llm_calls or 1


def _trial(record: Record, threshold: float) -> Trial:
    score = record.score
    status = _status(record, threshold if record.threshold is None else record.threshold)
    if score is None and status.judged:
        score = float(status == TrialStatus.PASSED)
    # An imported run is shared and stored like any other, so secrets are removed here, too.
    clean = default_redactor()
    error = None
    if status in UNJUDGED or (record.category and record.error is not None):
        message = record.error or record.reason or "the source reports that it could not be judged"
        error = TrialError(record.error_type, clean.text(message), "agent")
    index = record.index or 0
    values = {name: getattr(record, name) for name in _SHARED}
    values |= {
        "index": index,
        "seed": derive_seed(0, record.case, index) if record.seed is None else record.seed,
        "status": status,
        "category": record.category or (NO_CHECKS if status == TrialStatus.NOT_JUDGED else ""),
        # That of other checks, where a check could not judge: see `stats.types.bias_of`.
        "score": score if status.judged or status == TrialStatus.NOT_JUDGED else None,
        "answer": None if record.answer is None else clean.text(record.answer),
        "checks": _checks(record, status, score),
        "error": error,
        "unpriced_calls": record.unpriced_calls or 0,
        "duration_ms": record.duration_ms or record.latency_ms or 0.0,
    }
    return Trial(**values)


def _attempts(record: Record, trial: Trial) -> tuple[Trial, ...]:
    """Return the trial, with what its other attempts used as one more: money counts for all."""
    cost = (record.spent_usd or 0.0) - (trial.cost_usd or 0.0)
    tokens = (record.spent_tokens or 0) - (trial.tokens or 0)
    unpriced = (record.spent_unpriced_calls or 0) - trial.unpriced_calls
    last = record.last_status or trial.status
    if last == trial.status and max(cost, tokens, unpriced) <= 0:
        return (trial,)
    other = Trial(
        **{name: getattr(trial, name) for name in ("case", "agent", "index", "seed", "params")},
        axis_seed=trial.axis_seed,
        attempt=2,
        status=last,
        cost_usd=cost if cost > 0 else None,
        input_tokens=tokens if tokens > 0 else None,
        unpriced_calls=max(0, unpriced),
    )
    # Of attempts that were never judged the last one counts.
    return (trial, other) if trial.status.judged else (other, trial)


def _status(record: Record, threshold: float) -> TrialStatus:
    if record.status is not None:
        return record.status
    # An explicit verdict wins over an error and a score: the source applied its own threshold.
    if record.passed is not None:
        return TrialStatus.PASSED if record.passed else TrialStatus.FAILED
    if record.error is not None:
        return TrialStatus.INFRA_ERROR
    if record.score is not None:
        return TrialStatus.PASSED if record.score >= threshold else TrialStatus.FAILED
    raise ProctorError(
        "the record has no status, passed, score or error",
        where=record.where,
        hint="map a column with --map COLUMN=score (or passed, status, error)",
    )


def _checks(record: Record, status: TrialStatus, score: float | None) -> tuple[CheckResult, ...]:
    """Return the source's checks; else one check for its overall result."""
    if record.checks or not status.judged:
        return record.checks
    return (
        CheckResult(
            id="imported",
            check="imported",
            layer=Layer.CORRECTNESS,
            status=CheckStatus.PASS if status == TrialStatus.PASSED else CheckStatus.FAIL,
            reason=default_redactor().text(record.reason or f"imported as {status}"),
            score=score,
            blocking=status == TrialStatus.HARD_FAIL,
        ),
    )


# -- the spec of an imported run -----------------------------------------------------------------


def _spec(found: Imported, file: Path, threshold: float) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    clean = default_redactor().value
    agents: dict[str, dict[str, Any]] = {}
    cases: dict[str, dict[str, Any]] = {}
    cells: dict[CellKey, dict[str, Any]] = {}
    for record in found.records:
        agent = agents.setdefault(record.agent, {"kind": "imported"})
        if record.model is not None:
            agent["model"] = record.model
        case = cases.setdefault(record.case, {"id": record.case})
        for name in ("input", "description", "tags", "difficulty", "type", "properties"):
            # The first record that describes the case wins.
            if (value := getattr(record, name)) not in (None, (), {}):
                case.setdefault(name, list(value) if name == "tags" else value)
        key = record.cell
        plan = {
            "case": key.case,
            "agent": key.agent,
            **({"params": key.params} if key.params else {}),
            "trials": 0,
            "threshold": threshold if record.threshold is None else record.threshold,
        }
        cell = cells.setdefault(key, plan)
        cell["trials"] += record.counted
        # Not a rule to replay: it is not in the file.
        if record.early_stop is not None:
            cell["early_stop"] = record.early_stop
    for case, trials in found.planned.items():
        cases.setdefault(case, {"id": case})
        for agent in agents:
            plan = {"case": case, "agent": agent, "trials": 0, "threshold": threshold}
            cell = cells.setdefault(CellKey(case, agent), plan)
            cell["trials"] = max(trials, cell["trials"])
    rules = next((r.stopping_rules for r in found.records if r.stopping_rules), None)
    return {
        "run_id": new_run_id(),
        "name": found.name,
        "created": found.created or now,
        "provenance": provenance(Path()),
        "imported": {
            "from": found.source,
            "file": file.name,
            "sha256": _sha256(file),
            "at": now,
            **clean(found.about),
            **({STOPPING: rules} if rules else {}),
        },
        "base_dir": str(Path().resolve()),
        "options": {"early_stop": []},
        "agents": agents,
        "settings": {},
        "suite": {"version": 1, "cases": clean(list(cases.values()))},
        "cells": list(cells.values()),
        "stopped": found.stopped,
    }


def _sha256(file: Path) -> str:
    if file.is_dir():  # the file that describes the whole, else the first of its trials
        file = min(file.rglob("result.json"), key=lambda path: (len(path.parts), path))
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


# Formats with one trial per row, whose columns can be mapped to fields.
_TABLES = ("csv", "jsonl", "json", "parquet")

SOURCES = (*_TABLES, "inspect", "promptfoo", "harbor")


def import_results(
    file: str | Path,
    source: str | None = None,
    *,
    root: str | Path = "results",
    columns: Mapping[str, str] | None = None,
    name: str | None = None,
    threshold: float = _THRESHOLD,
    scale: float = 1.0,
) -> Run:
    """Import the results in a file as a run folder below `root`.

    `columns` maps columns of a table (CSV, JSONL, JSON, Parquet) to fields. `threshold` is the
    minimum passing score where the file has no pass/fail; `scale` is the score that counts as 1.
    """
    found = read_results(Path(file), source, columns, scale, threshold)
    found.name = name or found.name
    return write_import(found, Path(root), file=Path(file), threshold=threshold)


def read_results(
    file: Path,
    source: str | None = None,
    columns: Mapping[str, str] | None = None,
    scale: float = 1.0,
    threshold: float = _THRESHOLD,
) -> Imported:
    """Read the results in a file, or a folder of Harbor, with scores from 0 to 1."""
    if not file.exists():
        raise ProctorError("the file does not exist", where=str(file))
    if file.is_dir():
        from proctor.results.exchange._harbor import is_job, read_job

        if not is_job(file):
            raise ProctorError(
                "the folder holds no results of a Harbor job",
                where=str(file),
                hint="name the folder of the job, which has one folder per trial",
            )
        return read_job(file, scale, threshold)
    form = source or detect_format(file)
    if form in _TABLES:
        from proctor.results.exchange import _tables as tables

        readers = {
            "csv": tables.read_csv,
            "jsonl": tables.read_jsonl,
            "json": tables.read_json,
            "parquet": tables.read_parquet,
        }
        found = readers[form](file, columns or {})
        for record in found.records:
            if record.score is not None and not 0 <= record.score <= scale:
                raise ProctorError(
                    f"the score {record.score:g} is not within 0 to {scale:g}",
                    where=record.where,
                    hint="use --scale 100 for scores from 0 to 100",
                )
            record.score = None if record.score is None else record.score / scale
        return found
    if columns:
        raise ProctorError(
            f"--map applies to {', '.join(_TABLES)}; this is {form}",
            where=str(file),
            hint="remove --map: the fields of this format are known",
        )
    if form == "inspect":
        from proctor.results.exchange._inspect_logs import read_inspect

        return read_inspect(file, scale)
    from proctor.results.exchange._promptfoo import read_promptfoo

    return read_promptfoo(file, scale)


_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".eval": "inspect",
}


# Keys at the beginning of promptfoo's outputs and share payloads.
_PROMPTFOO = (b'"evalId"', b'"results"', b'"testCase"', b'"promptIdx"', b'"providers"')


def detect_format(file: Path) -> str:
    """Detect the format by suffix and, for JSON and JSONL, by the first keys."""
    form = _SUFFIXES.get(file.suffix.lower())
    # The keys that tell the formats apart are at the beginning.
    try:
        with open(file, "rb", opener=unblocked) as opened:
            top = opened.read(4096)
    except OSError as error:
        raise ProctorError(f"cannot be read: {error.strerror}", where=str(file)) from None
    if form not in ("json", "jsonl"):
        # promptfoo's YAML, text and XML, and the header of its CSV.
        marks = {None: (b"evalId:", b"<evalId>"), "csv": (b'"Grader Reason"', b",Grader Reason,")}
        if any(mark in top for mark in marks.get(form, ())):
            raise ProctorError(
                "results of promptfoo are read as JSON or JSONL",
                where=str(file),
                hint="write them with `promptfoo eval -o results.json`",
            )
        if form is not None:
            return form
    else:
        # A table has none of these: rows of promptfoo, also in a list or a renamed file.
        if b'"testCase"' in top or b'"promptIdx"' in top:
            return "promptfoo"
        if form == "jsonl":
            return "promptfoo" if b'"evalId"' in top and b'"results"' in top else form
        if top.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[" or b'"trials"' in top[:64]:
            return form
        if b'"eval"' in top and b'"status"' in top:
            return "inspect"
        if any(key in top for key in _PROMPTFOO):
            return "promptfoo"
    raise ProctorError(
        "the file format is not recognised", where=str(file), hint=f"--from {'|'.join(SOURCES)}"
    )
