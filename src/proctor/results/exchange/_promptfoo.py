"""Read promptfoo results: what `promptfoo eval -o` writes as JSON or JSONL, and share payloads.

A test is a case, a provider an agent, a prompt a parameter (where there are several), a repeat a
trial, an assertion a check. A promptfoo error (the provider did not respond) is an infrastructure
error; a failed assertion is a failure.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.errors import ProctorError
from proctor.results.exchange._tables import parse_json, read_text
from proctor.results.exchange.importing import Imported, Record
from proctor.results.metadata import as_mapping, as_text

# promptfoo's `failureReason` of a test whose provider failed; 1 is a failed assertion.
_ERRORED = 2

MAX_ID_CHARS = 80


def read_promptfoo(path: Path, scale: float = 1.0) -> Imported:
    """Read the trials of one evaluation; `scale` is the score that counts as 1."""
    whole: Mapping[str, Any] = {}
    table: Mapping[str, Any] = {}
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        lines = enumerate(read_text(path).split("\n"), 1)
        results: Any = [parse_json(line, f"{path}:{at}") for at, line in lines if line.strip()]
    else:
        whole = as_mapping(parse_json(read_text(path), str(path)))
        # A share payload of version 3 is wrapped; in version 4 the results are a plain list.
        whole = as_mapping(whole.get("data")) or whole
        table = as_mapping(whole.get("results")) or whole
        results = table.get("results")
    if not isinstance(results, list):
        raise ProctorError(
            "not a promptfoo file: it has no list of results",
            where=str(path),
            hint="write it with `promptfoo eval -o results.json`",
        )
    rows = [as_mapping(row) for row in cast("list[Any]", results)]
    names = _case_names(rows)
    # With a single prompt it is no parameter, and cells need no name for it.
    prompts = len({_prompt(row) for row in rows}) > 1
    config = as_mapping(whole.get("config"))
    created = table.get("timestamp") or whole.get("createdAt")
    if isinstance(created, int | float):
        created = datetime.fromtimestamp(created / 1000, UTC).isoformat()
    return Imported(
        name=str(config.get("description") or path.stem),
        source="promptfoo",
        records=[
            _record(row, names, f"{path}: result {at}", prompts, scale)
            for at, row in enumerate(rows)
        ],
        created=as_text(created),
        about={
            "eval_id": whole.get("evalId") or whole.get("id"),
            "version": as_mapping(whole.get("metadata")).get("promptfooVersion"),
        },
    )


def _case_names(rows: list[Mapping[str, Any]]) -> dict[str, str]:
    """Return a unique name for each test: its description, else its variables."""
    names: dict[str, str] = {}
    for row in rows:
        key = _identity(row)
        if key in names:
            continue
        test = as_mapping(row.get("testCase"))
        description = test.get("description") or row.get("description")
        values = as_mapping(row.get("vars") or test.get("vars")).values()
        text = str(description or " ".join(str(value) for value in values) or "test")
        base = re.sub(r"[^\w.@-]+", "-", text.lower()).strip("-")[:MAX_ID_CHARS] or "test"
        names[key] = _unique(base, names.values())
    return names


def _unique(base: str, taken: Collection[str]) -> str:
    numbered = (f"{base}-{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain((base,), numbered) if name not in taken)


def _identity(row: Mapping[str, Any]) -> str:
    """Return the key shared by repeats of one test: its input and its assertions."""
    test = as_mapping(row.get("testCase"))
    key = [row.get("vars") or test.get("vars"), test.get("description"), test.get("assert")]
    return json.dumps(key, sort_keys=True, default=str)


def _record(
    row: Mapping[str, Any], names: Mapping[str, str], where: str, prompts: bool, scale: float
) -> Record:
    test = as_mapping(row.get("testCase"))
    grading = as_mapping(row.get("gradingResult"))
    response = as_mapping(row.get("response"))
    usage = as_mapping(row.get("tokenUsage") or response.get("tokenUsage"))
    metadata = dict(as_mapping(test.get("metadata")))
    errored = row.get("failureReason") == _ERRORED or (not grading and bool(row.get("error")))
    output = response.get("output")
    cost = row.get("cost", response.get("cost"))
    return Record(
        case=names[_identity(row)],
        agent=_provider(row),
        where=where,
        passed=None if errored else bool(row.get("success")),
        error=str(row.get("error") or response.get("error") or "error") if errored else None,
        error_type="PromptfooError",
        score=None if errored else _score(row.get("score"), where, scale),
        reason=as_text(grading.get("reason")),
        checks=() if errored else tuple(_checks(grading, where, scale)),
        answer=output if isinstance(output, str) or output is None else json.dumps(output),
        params={"prompt": _prompt(row)} if prompts else {},
        latency_ms=_number(row.get("latencyMs")),
        input_tokens=_count(usage.get("prompt")),
        output_tokens=_count(usage.get("completion")),
        cost_usd=_number(cost) if cost else None,
        threshold=_number(test.get("threshold")),
        input=dict(as_mapping(row.get("vars") or test.get("vars"))) or None,
        description=as_text(test.get("description")),
        difficulty=as_text(metadata.pop("difficulty", None)),
        type=as_text(metadata.pop("type", None)),
        properties=metadata,
    )


def _checks(grading: Mapping[str, Any], where: str, scale: float) -> Iterator[CheckResult]:
    seen: set[str] = set()
    members = 0
    for part in cast("list[Any]", grading.get("componentResults") or []):
        result = as_mapping(part)
        asserted = as_mapping(result.get("assertion"))
        weight = _number(asserted.get("weight"))
        if inner := cast("list[Any]", result.get("componentResults") or []):
            # A set of assertions: its members follow it, and only the set counts.
            asserted = {"type": "assert-set", **asserted}
            options = as_mapping(as_mapping(result.get("metadata")).get("assertionSet"))
            weight = _number(options.get("weight")) if weight is None else weight
            members = len(inner)
        elif members:
            members, weight = members - 1, 0.0
        base = str(asserted.get("metric") or asserted.get("type") or "assertion")
        name = _unique(base, seen)
        seen.add(name)
        yield CheckResult(
            id=name,
            check=str(asserted.get("type") or "assertion"),
            layer=Layer.CORRECTNESS,
            status=CheckStatus.PASS if result.get("pass") else CheckStatus.FAIL,
            reason=str(result.get("reason") or "")[:1000],
            score=_score(result.get("score"), where, scale),
            weight=1.0 if weight is None else weight,
            expected=asserted.get("value"),
        )


def _provider(row: Mapping[str, Any]) -> str:
    provider = row.get("provider")
    if isinstance(provider, str):
        return provider
    options = as_mapping(provider)
    return str(options.get("label") or options.get("id") or "provider")


def _prompt(row: Mapping[str, Any]) -> str:
    prompt = as_mapping(row.get("prompt"))
    return str(prompt.get("label") or prompt.get("raw") or "")


def _score(value: Any, where: str, scale: float) -> float | None:
    """Parse a promptfoo score, which a custom assertion may put above 1."""
    number = _number(value)
    if number is None or 0 <= number <= scale:
        return None if number is None else number / scale
    raise ProctorError(
        f"the score {number:g} is not within 0 to {scale:g}",
        where=where,
        hint="make the assertion return 0 to 1, or give the score that counts as 1 with --scale",
    )


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and value else None
