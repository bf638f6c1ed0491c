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
from proctor.formatting import plural
from proctor.results.exchange._tables import parse_json, read_text
from proctor.results.exchange.importing import Imported, Record
from proctor.results.metadata import as_mapping, as_text
from proctor.trace.conventions.values import count, number

# promptfoo's `failureReason` of a test whose provider failed; 1 is a failed assertion.
_ERRORED = 2

MAX_ID_CHARS = 80


def read_promptfoo(path: Path, scale: float = 1.0) -> Imported:
    """Read the trials of one evaluation; `scale` is the score that counts as 1."""
    whole: Mapping[str, Any] = {}
    table: Mapping[str, Any] = {}
    content = read_text(path)
    first, _, rest = content.lstrip().partition("\n")
    # By content, not by suffix: files are renamed. Pretty-printed JSON has no whole first line.
    by_line = bool(rest.strip()) and _is_document(first)
    results: Any = None
    if by_line:
        lines = enumerate(content.split("\n"), 1)
        results = [parse_json(line, f"{path}:{at}") for at, line in lines if line.strip()]
    elif isinstance(document := parse_json(content, str(path)), list):
        results = cast("list[Any]", document)
    else:
        whole = as_mapping(document)
        # A share payload of version 3 is wrapped; in version 4 the results are a plain list.
        whole = as_mapping(whole.get("data")) or whole
        table = as_mapping(whole.get("results")) or whole
        results = table.get("results")
        if results is None and "testCase" in whole:  # a file of one line
            whole, results = {}, [whole]
    if not isinstance(results, list):
        raise ProctorError(
            "not a promptfoo file: it has no list of results",
            where=str(path),
            hint="write it with `promptfoo eval -o results.json`",
        )
    found = cast("list[Any]", results)
    rows = [as_mapping(row) for row in found if isinstance(row, dict)]
    warnings: list[str] = []
    if len(rows) < len(found):
        warnings.append(f"{plural(len(found) - len(rows), 'result')} skipped: not an object")
    stats = as_mapping(table.get("stats"))
    counted = sum(count(stats.get(name)) or 0 for name in ("successes", "failures", "errors"))
    names = _case_names(rows)
    # With a single prompt it is no parameter, and cells need no name for it.
    prompts = len({_prompt(row) for row in rows}) > 1
    config = as_mapping(whole.get("config"))
    created = table.get("timestamp") or whole.get("createdAt")
    if isinstance(created, int | float):
        created = datetime.fromtimestamp(created / 1000, UTC).isoformat()
    scores = _Scores(scale)
    records = [
        _record(row, names, f"{path}: result {at}", prompts, scores) for at, row in enumerate(rows)
    ]
    if scores.outside:
        example = f"{scores.outside[0]:g}"
        warnings.append(
            f"{plural(len(scores.outside), 'score')} not within 0 to {scale:g} (e.g. {example}): "
            "imported without the score; --scale X sets the score that counts as 1"
        )
    return Imported(
        name=str(config.get("description") or path.stem),
        source="promptfoo",
        records=records,
        created=as_text(created),
        stopped=(
            f"the file holds {len(rows)} of {counted} results" if len(rows) < counted else None
        ),
        warnings=warnings,
        about={
            "eval_id": whole.get("evalId") or whole.get("id"),
            "version": as_mapping(whole.get("metadata")).get("promptfooVersion"),
        },
    )


def _is_document(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


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
    row: Mapping[str, Any], names: Mapping[str, str], where: str, prompts: bool, scores: _Scores
) -> Record:
    test = as_mapping(row.get("testCase"))
    grading = as_mapping(row.get("gradingResult"))
    response = as_mapping(row.get("response"))
    usage = as_mapping(row.get("tokenUsage") or response.get("tokenUsage"))
    metadata = dict(as_mapping(test.get("metadata")))
    reason = count(row.get("failureReason"))
    # Old versions give no reason: then an error without a grading is the provider's.
    errored = reason == _ERRORED or (reason is None and not grading and bool(row.get("error")))
    output = response.get("output")
    cost = row.get("cost", response.get("cost"))
    return Record(
        case=names[_identity(row)],
        agent=_provider(row),
        where=where,
        passed=None if errored else _truth(row.get("success"), grading.get("pass")),
        error=str(row.get("error") or response.get("error") or "error") if errored else None,
        error_type="PromptfooError",
        score=None if errored else scores.read(row.get("score")),
        reason=as_text(grading.get("reason")),
        checks=() if errored else tuple(_checks(grading, scores)),
        answer=output if isinstance(output, str) or output is None else json.dumps(output),
        params={"prompt": _prompt(row)} if prompts else {},
        latency_ms=number(row.get("latencyMs")),
        # 0 is what it writes for a call that it did not count.
        input_tokens=count(usage.get("prompt")) or None,
        output_tokens=count(usage.get("completion")) or None,
        cost_usd=number(cost) or None,
        threshold=number(test.get("threshold")),
        input=dict(as_mapping(row.get("vars") or test.get("vars"))) or None,
        description=as_text(test.get("description")),
        difficulty=as_text(metadata.pop("difficulty", None)),
        type=as_text(metadata.pop("type", None)),
        properties=metadata,
    )


def _checks(grading: Mapping[str, Any], scores: _Scores) -> Iterator[CheckResult]:
    seen: set[str] = set()
    members = 0
    for part in cast("list[Any]", grading.get("componentResults") or []):
        if not isinstance(part, dict):  # it leaves gaps for assertions that did not run
            continue
        result = as_mapping(part)
        asserted = as_mapping(result.get("assertion"))
        weight = number(asserted.get("weight"))
        if inner := cast("list[Any]", result.get("componentResults") or []):
            # A set of assertions: its members follow it, and only the set counts.
            asserted = {"type": "assert-set", **asserted}
            options = as_mapping(as_mapping(result.get("metadata")).get("assertionSet"))
            weight = number(options.get("weight")) if weight is None else weight
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
            status=CheckStatus.PASS if _truth(result.get("pass")) else CheckStatus.FAIL,
            reason=str(result.get("reason") or "")[:1000],
            score=scores.read(result.get("score")),
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
    if isinstance(row.get("prompt"), str):
        return str(row["prompt"])
    prompt = as_mapping(row.get("prompt"))
    return str(prompt.get("label") or prompt.get("raw") or "")


def _truth(*values: Any) -> bool:
    """Return the first truth value, also when it is written as text."""
    for value in values:
        if value is not None:
            return str(value).strip().lower() in ("true", "1")
    return False


class _Scores:
    """Read scores from 0 to `scale`, and remember the others: a custom assertion may give any."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.outside: list[float] = []

    def read(self, value: Any) -> float | None:
        found = number(value)
        if found is not None and not 0 <= found <= self.scale:
            self.outside.append(found)
            return None
        return None if found is None else found / self.scale
