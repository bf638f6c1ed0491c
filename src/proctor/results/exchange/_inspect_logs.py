"""Read Inspect logs: `.eval` (a zip compressed with Zstandard) and `.json`.

Guarantees: every sample of every epoch becomes one trial; each score becomes a check named after
its scorer. A sample with an error or without a score is an infrastructure error.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.errors import ProctorError
from proctor.files import DecompressionError, decompress
from proctor.results.exchange._tables import started_ns
from proctor.results.exchange.importing import Imported, Record
from proctor.results.metadata import as_list, as_mapping, as_text

# Zip compression method of Zstandard; Python's zipfile supports it from 3.14 on.
_ZSTANDARD = 93

# Maximum bytes of one unpacked sample: a larger one is treated as a zip bomb.
_MAX_SAMPLE_BYTES = 1 << 30

_LOCAL_HEADER = struct.Struct("<26xHH")

# Inspect's grades: correct, partially correct, incorrect, no answer.
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}

_TRUTH = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


def read_inspect(path: Path) -> Imported:
    """Read the trials of one log."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                header, samples = _header(archive, path), list(_parts(archive, path))
        else:
            header = _decode(path.read_bytes(), str(path))
            samples = [(str(path), sample) for sample in as_list(header.get("samples"))]
    except OSError as error:
        raise ProctorError(f"cannot read: {error.strerror}", where=str(path)) from None
    except zipfile.BadZipFile as error:
        raise ProctorError(f"a damaged .eval file: {error}", where=str(path)) from None
    task = as_mapping(header.get("eval"))
    if not task:
        raise ProctorError("not an Inspect log: it has no `eval`", where=str(path))
    model = str(task.get("model") or "model")
    status = str(header.get("status") or "success")
    return Imported(
        name=str(task.get("task") or path.stem).rpartition("/")[2],
        source="inspect",
        records=[_record(as_mapping(sample), model, where, task) for where, sample in samples],
        created=str(task["created"]) if task.get("created") else None,
        stopped=None if status == "success" else f"the log reports: {status}",
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
    if info.file_size > _MAX_SAMPLE_BYTES:
        raise ProctorError(
            f"{info.file_size:,} bytes exceed the size limit of a sample", where=where
        )
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
    try:
        document = msgspec.json.decode(content)
    except msgspec.MsgspecError:
        try:
            document = json.loads(content)  # accepts NaN, which Inspect writes
        except (ValueError, RecursionError) as error:
            raise ProctorError(f"not JSON: {error}", where=where) from None
    if not isinstance(document, dict):
        raise ProctorError("not an Inspect log", where=where)
    return cast("Mapping[str, Any]", document)


# -- a sample ------------------------------------------------------------------------------------


def _record(sample: Mapping[str, Any], model: str, where: str, task: Mapping[str, Any]) -> Record:
    attached = as_mapping(sample.get("attachments"))
    checks = tuple(_checks(as_mapping(sample.get("scores")), where))
    error = as_mapping(sample.get("error")).get("message")
    if error is None and not checks:
        error = "the log has no score for this sample"
    metadata = dict(as_mapping(sample.get("metadata")))
    epoch = int(sample.get("epoch") or 1)
    usage = [as_mapping(u) for u in as_mapping(sample.get("model_usage")).values()]
    working = sample.get("working_time")
    return Record(
        case=str(sample.get("id")),
        agent=model,
        model=model,
        where=where,
        index=epoch - 1,
        error=None if error is None else str(error),
        error_type="InspectSampleError",
        score=sum(c.score or 0.0 for c in checks) / len(checks) if checks else None,
        checks=checks,
        answer=_resolved(as_mapping(sample.get("output")).get("completion"), attached),
        input=_resolved(sample.get("input"), attached),
        started_ns=started_ns(sample["started_at"], where) if sample.get("started_at") else 0,
        duration_ms=_milliseconds(sample.get("total_time")),
        latency_ms=_milliseconds(working if working is not None else sample.get("total_time")),
        input_tokens=_tokens(usage, "input_tokens"),
        output_tokens=_tokens(usage, "output_tokens"),
        difficulty=as_text(metadata.get("difficulty")),
        type=as_text(metadata.get("type")),
        properties={**metadata, "target": sample.get("target")},
        tags=tuple(str(tag) for tag in task.get("tags") or ()),
        retries=len(as_list(sample.get("error_retries"))),
        trace_id=as_text(sample.get("uuid")),
        messages=[_message(as_mapping(m), attached) for m in as_list(sample.get("messages"))],
    )


def _checks(scores: Mapping[str, Any], where: str) -> Iterator[CheckResult]:
    for scorer, entry in scores.items():
        score = as_mapping(entry)
        value = score.get("value")
        reason = str(score.get("explanation") or score.get("answer") or f"{scorer}: {value}")
        parts = dict(enumerate(cast("list[Any]", value))) if isinstance(value, list) else value
        if isinstance(parts, dict):
            for name, part in cast("dict[Any, Any]", parts).items():
                yield _check(f"{scorer}.{name}", part, reason, where)
        else:
            yield _check(scorer, value, reason, where)


def _check(name: str, value: Any, reason: str, where: str) -> CheckResult:
    number = _number(value)
    if number is not None and not 0 <= number <= 1:
        raise ProctorError(
            f"the score {number:g} of {name} is not within 0 to 1",
            where=where,
            hint="make the scorer return 0 to 1, or export the samples as CSV and use --scale",
        )
    # Inspect has no pass mark per score: a partial score is not a failed check.
    status = CheckStatus.PASS if number == 1 else CheckStatus.WARN
    if number is None:
        status, reason = CheckStatus.UNSCORED, f"{value!r} is not a number: {reason}"
    return CheckResult(
        id=name,
        check="imported",
        layer=Layer.CORRECTNESS,
        status=status,
        reason=reason[:1000],
        score=number,
        weight=0.0 if number is None else 1.0,
    )


def _number(value: Any) -> float | None:
    """Convert a score to a number as Inspect does; None where it has no number."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    word = str(value).strip()
    known = _GRADES.get(word, _TRUTH.get(word.lower()))
    try:
        return float(word) if known is None else known
    except ValueError:
        return None


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
    if source.get("tool_call_id"):
        message.update(tool_call_id=source["tool_call_id"], name=source.get("function"))
    return message


def _resolved(value: Any, attached: Mapping[str, Any]) -> Any:
    """Resolve text whose long parts the log stores separately under a reference."""
    if isinstance(value, str) and value.startswith("attachment://"):
        return attached.get(value.removeprefix("attachment://"), value)
    if isinstance(value, list):
        return [_resolved(item, attached) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: _resolved(item, attached) for key, item in items}
    return value


def _tokens(usage: list[Mapping[str, Any]], name: str) -> int | None:
    counts = [int(u[name]) for u in usage if u.get(name) is not None]
    return sum(counts) if counts else None


def _milliseconds(seconds: Any) -> float | None:
    return float(seconds) * 1000 if isinstance(seconds, int | float) else None
