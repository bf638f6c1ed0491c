"""Read Inspect logs: `.eval` (a zip compressed with Zstandard) and `.json`.

Guarantees: every sample of every epoch becomes one trial; each score becomes a check named after
its scorer. A sample with an error or without a score is an infrastructure error; one whose scorers
gave no number (Inspect's "unscored", NaN) is not judged. A log that lacks samples is marked as
incomplete. Tokens are the agent's: those of graders are left out.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.errors import ProctorError
from proctor.files import DecompressionError, decompress, read_bounded
from proctor.formatting import plural
from proctor.results.exchange._tables import parse_json, started_ns
from proctor.results.exchange.importing import MAX_ARCHIVE, MAX_DOCUMENT, Imported, Record
from proctor.results.metadata import as_list, as_mapping, as_text
from proctor.runs.trial import TrialStatus
from proctor.sanitize import map_texts
from proctor.trace.conventions.values import count, number

# Zip compression method of Zstandard; Python's zipfile supports it from 3.14 on.
_ZSTANDARD = 93

_LOCAL_HEADER = struct.Struct("<26xHH")

# Inspect's grades: correct, partially correct, incorrect, no answer.
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}

_TRUTH = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


def read_inspect(path: Path, scale: float = 1.0) -> Imported:
    """Read the trials of one log; `scale` is the number of a scorer that counts as 1."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if sum(info.file_size for info in archive.infolist()) > MAX_ARCHIVE:
                    raise ProctorError(
                        f"it unpacks to more than {MAX_ARCHIVE:,} bytes", where=str(path)
                    )
                return _imported(_header(archive, path), _parts(archive, path), path, scale)
        content = read_bounded(path, MAX_DOCUMENT)
        if content.startswith(b"PK"):  # an archive whose end, and with it its directory, is lost
            raise zipfile.BadZipFile("it is cut off")
        header = _decode(content, str(path))
    except OSError as error:
        raise ProctorError(f"cannot read: {error.strerror}", where=str(path)) from None
    except zipfile.BadZipFile as error:
        raise ProctorError(f"a damaged .eval file: {error}", where=str(path)) from None
    samples = ((str(path), sample) for sample in as_list(header.get("samples")))
    return _imported(header, samples, path, scale)


def _imported(
    header: Mapping[str, Any], samples: Iterable[tuple[str, Any]], path: Path, scale: float
) -> Imported:
    """Make trials of the samples, one at a time: together they may not fit into memory."""
    task = as_mapping(header.get("eval"))
    if not task:
        raise ProctorError("not an Inspect log: it has no `eval`", where=str(path))
    model = str(task.get("model") or "model")
    status = str(header.get("status") or "success")
    results = as_mapping(header.get("results"))
    epochs = count(as_mapping(task.get("config")).get("epochs")) or 1
    ids = as_list(as_mapping(task.get("dataset")).get("sample_ids"))
    expected = count(results.get("total_samples")) or len(ids) * epochs
    scored = Scored(scale)
    records = [_record(as_mapping(each), model, where, task, scored) for where, each in samples]
    if not records and results:
        raise ProctorError(
            f"a header-only log: the metrics of {plural(expected, 'sample')}, no sample",
            where=str(path),
            hint="run Inspect without --no-log-samples, or export the log without header_only",
        )
    stopped = None if status == "success" else f"the log reports: {status}"
    if len(records) < expected:
        missing = f"the log holds {len(records)} of {expected} samples"
        stopped = f"{missing}; {stopped}" if stopped else missing
    return Imported(
        name=str(task.get("task") or path.stem).rpartition("/")[2],
        source="inspect",
        records=records,
        created=str(task["created"]) if task.get("created") else None,
        stopped=stopped,
        planned={str(each): epochs for each in ids} if len(ids) * epochs == expected else {},
        warnings=[
            f"{plural(times, 'score')} of {name} not within 0 to {scale:g} (e.g. {example:g}): "
            "imported as not judged; --scale X sets the score that counts as 1"
            for name, (times, example) in scored.outside.items()
        ],
        about={
            name: task.get(name) for name in ("task", "eval_id", "run_id", "packages", "revision")
        },
    )


# -- the file ------------------------------------------------------------------------------------


def _header(archive: zipfile.ZipFile, path: Path) -> Mapping[str, Any]:
    """Return the header; for a truncated log, its start entry."""
    for name in ("header.json", "_journal/start.json"):
        if name in archive.namelist():
            header = _decode(_part(archive, archive.getinfo(name), path), f"{path}!{name}")
            return header if name == "header.json" else {**header, "status": "unfinished"}
    raise ProctorError("not an Inspect log: it has no header", where=str(path))


def _parts(archive: zipfile.ZipFile, path: Path) -> Iterator[tuple[str, Any]]:
    for info in archive.infolist():
        if info.filename.startswith("samples/") and info.filename.endswith(".json"):
            where = f"{path}!{info.filename}"
            yield where, _decode(_part(archive, info, path), where)


def _part(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> bytes:
    where = f"{path}!{info.filename}"
    if info.file_size > MAX_DOCUMENT:
        raise ProctorError(
            f"{info.file_size:,} bytes exceed the size limit of a sample", where=where
        )
    if info.compress_size > info.file_size + MAX_DOCUMENT:
        raise ProctorError("damaged: its compressed size is impossible", where=where)
    if info.compress_type != _ZSTANDARD:
        return archive.read(info)
    with path.open("rb") as file:
        file.seek(info.header_offset)
        name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        file.seek(name + extra, 1)
        packed = file.read(info.compress_size)
    try:
        # There may be several frames of unknown size: the zip directory bounds them.
        content = decompress(packed, info.file_size, "zstd")
    except DecompressionError as error:
        raise ProctorError(f"damaged: {error}", where=where) from None
    if len(content) != info.file_size:
        raise ProctorError("damaged: the size differs from the zip directory", where=where)
    return content


def _decode(content: bytes, where: str) -> Mapping[str, Any]:
    document = parse_json(content, where)
    if not isinstance(document, dict):
        raise ProctorError("not an Inspect log", where=where)
    return cast("Mapping[str, Any]", document)


# -- a sample ------------------------------------------------------------------------------------


class Scored:
    """Turn scores into checks, and count those outside the scale, by scorer."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self.outside: dict[str, tuple[int, float]] = {}

    def checks(self, scores: Mapping[str, Any]) -> Iterator[CheckResult]:
        """Yield one check per scorer, or per part of a score with several."""
        for scorer, entry in scores.items():
            score = as_mapping(entry) if isinstance(entry, dict) else {"value": entry}
            value = score.get("value")
            reason = str(score.get("explanation") or score.get("answer") or f"{scorer}: {value}")
            parts = dict(enumerate(cast("list[Any]", value))) if isinstance(value, list) else value
            if isinstance(parts, dict):
                for name, part in cast("dict[Any, Any]", parts).items():
                    yield self._check(f"{scorer}.{name}", part, reason)
            else:
                yield self._check(scorer, value, reason)

    def _check(self, name: str, value: Any, reason: str) -> CheckResult:
        found = _score(value)
        # Grades and truth values have no scale.
        if found is not None and isinstance(value, int | float) and not isinstance(value, bool):
            found /= self._scale
        if found is None:
            reason = f"{value!r} is not a number: {reason}"
        elif not 0 <= found <= 1:
            times, example = self.outside.get(name, (0, value))
            self.outside[name] = times + 1, float(example)
            reason, found = f"{value} is not within 0 to {self._scale:g}: {reason}", None
        # Inspect has no pass mark per score: a partial score is not a failed check.
        status = CheckStatus.PASS if found == 1 else CheckStatus.WARN
        return CheckResult(
            id=name,
            check="imported",
            layer=Layer.CORRECTNESS,
            status=CheckStatus.UNSCORED if found is None else status,
            reason=reason[:1000],
            score=found,
            weight=0.0 if found is None else 1.0,
        )


def _record(
    sample: Mapping[str, Any], model: str, where: str, task: Mapping[str, Any], scored: Scored
) -> Record:
    attached = as_mapping(sample.get("attachments"))
    scores = as_mapping(sample.get("scores"))
    if not scores and sample.get("score") is not None:  # the first versions had one scorer
        scores = {"score": sample["score"]}
    checks = tuple(scored.checks(scores))
    numbers = [check.score for check in checks if check.score is not None]
    error = as_mapping(sample.get("error")).get("message") or as_text(sample.get("error"))
    if error is None and not checks:
        error = "the log has no score for this sample"
    unscored = error is None and not numbers
    metadata = dict(as_mapping(sample.get("metadata")))
    epoch = count(sample.get("epoch")) or 1
    input_tokens, output_tokens, cost = _agent_usage(sample)
    working = sample.get("working_time")
    return Record(
        case=str(sample.get("id")),
        agent=model,
        model=model,
        where=where,
        index=epoch - 1,
        status=TrialStatus.NOT_JUDGED if unscored else None,
        error=None if error is None else str(error),
        error_type="InspectSampleError",
        reason="; ".join(check.reason for check in checks) if unscored else None,
        score=sum(numbers) / len(numbers) if numbers else None,
        checks=checks,
        answer=_resolved(as_mapping(sample.get("output")).get("completion"), attached),
        input=_resolved(sample.get("input"), attached),
        started_ns=started_ns(sample["started_at"], where) if sample.get("started_at") else 0,
        duration_ms=_milliseconds(sample.get("total_time")),
        latency_ms=_milliseconds(working if working is not None else sample.get("total_time")),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cost_usd=cost,
        difficulty=as_text(metadata.get("difficulty")),
        type=as_text(metadata.get("type")),
        properties={**metadata, "target": sample.get("target")},
        tags=tuple(str(tag) for tag in task.get("tags") or ()),
        retries=len(as_list(sample.get("error_retries"))),
        trace_id=as_text(sample.get("uuid")),
        messages=[_message(as_mapping(m), attached) for m in as_list(sample.get("messages"))],
    )


def _score(value: Any) -> float | None:
    """Convert a score to a number as Inspect does; None where it has no number."""
    if isinstance(value, bool):
        return float(value)
    word = str(value).strip()
    known = _GRADES.get(word, _TRUTH.get(word.lower()))
    return number(word) if known is None else known


def _message(source: Mapping[str, Any], attached: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an Inspect message to OpenAI format, which transcripts are parsed from."""
    message = {
        "role": source.get("role"),
        "content": _resolved(source.get("content"), attached),
    }
    calls = [as_mapping(call) for call in as_list(source.get("tool_calls"))]
    if calls:
        message["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {
                    "name": call.get("function"),
                    "arguments": json.dumps(_resolved(call.get("arguments"), attached)),
                },
            }
            for call in calls
        ]
    failed = as_mapping(source.get("error"))
    if failed and not message["content"]:
        message["content"] = f"{failed.get('type')}: {failed.get('message')}"
    if source.get("tool_call_id"):
        message.update(tool_call_id=source["tool_call_id"], name=source.get("function"))
    return message


def _resolved(value: Any, attached: Mapping[str, Any]) -> Any:
    """Resolve text whose long parts the log stores separately under a reference."""
    mark = "attachment://"
    return map_texts(
        value, lambda text: attached.get(text[len(mark) :], text) if text.startswith(mark) else text
    )


def _agent_usage(sample: Mapping[str, Any]) -> tuple[int | None, int | None, float | None]:
    """Return the agent's input tokens, output tokens and cost: all usage less the graders'."""
    used = [as_mapping(each) for each in as_mapping(sample.get("model_usage")).values()]
    if not used:
        return None, None, None
    graders = list(_grader_usage(sample))
    sums = [
        sum(_tokens(each)[at] for each in used) - sum(_tokens(each)[at] for each in graders)
        for at in (0, 1)
    ]
    cost: float | None = None
    if all(each.get("total_cost") is not None for each in (*used, *graders)):
        spent = [sum(float(each["total_cost"]) for each in part) for part in (used, graders)]
        cost = spent[0] - spent[1]
    return max(0, sums[0]), max(0, sums[1]), cost


def _grader_usage(sample: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the usage of model calls of scorers: by their spans or steps, else by their role."""
    scoring: set[Any] = set()
    steps, found = 0, False
    for event in map(as_mapping, as_list(sample.get("events"))):
        kind = event.get("event")
        scorer = str(event.get("type")).startswith("scorer")
        if kind == "span_begin" and (scorer or event.get("parent_id") in scoring):
            scoring.add(event.get("id"))
        elif kind == "step" and scorer:
            steps += 1 if event.get("action") == "begin" else -1
        elif kind == "model" and (steps > 0 or event.get("span_id") in scoring):
            usage = as_mapping(as_mapping(event.get("output")).get("usage"))
            # A reply from Inspect's own cache used no tokens.
            if usage and event.get("cache") != "read":
                found = True
                yield usage
    role = as_mapping(as_mapping(sample.get("role_usage")).get("grader"))
    if role and not found:
        yield role


def _tokens(usage: Mapping[str, Any]) -> tuple[int, int]:
    """Return all input and output tokens of a usage.

    `input_tokens` excludes cached tokens, and some providers report reasoning apart from
    `output_tokens`; logs of older versions include them. The total tells which it is.
    """
    names = ("input_tokens", "output_tokens", "reasoning_tokens")
    given, output, reasoning = (count(usage.get(name)) or 0 for name in names)
    cached = sum(count(usage.get(f"input_tokens_cache_{way}")) or 0 for way in ("read", "write"))
    apart = (count(usage.get("total_tokens")) or given + output + cached) - given - output
    given += min(cached, max(0, apart))
    if reasoning and apart - cached >= reasoning:
        output += reasoning
    return given, output


def _milliseconds(seconds: Any) -> float | None:
    known = number(seconds)
    return None if known is None else known * 1000
