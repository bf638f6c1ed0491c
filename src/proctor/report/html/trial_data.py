"""The data of the single-trial view, packed into a page: answers, checks and traces that fit.

Guarantees: the packed blocks never exceed their budget; failing trials come first, one of each
cell before a second; the rest is counted. Every text is redacted, has only visible characters and
is cut with a note of how much is missing. A block is deflated JSON in base64: nothing in it is
markup, and a page opens without reading it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from proctor.errors import ProctorError
from proctor.formatting import tokens
from proctor.runs.trial import Trial, TrialStatus
from proctor.sanitize import json_value, visible
from proctor.trace import Span, Trace
from proctor.trace.model import Message
from proctor.trace.redact import MARK, Redactor

BLOCK_BYTES = 96 * 1024
"""JSON bytes of a block: a few milliseconds to inflate, large enough to compress well."""

TRACE_SHARE = 0.8
"""Share of the budget that traces may use; the rest is for answers of trials without a trace."""

MAX_SPANS = 500
"""Spans shown of one trace: more are hard to read in a page, and `proctor trace` shows all."""

MAX_TEXT = 4_000
"""Characters shown of one text: two screens. The run folder has the whole text."""

MAX_DIFF = 20_000
"""Characters shown of the changes in a workspace: ten screens."""

MAX_NAME = 200
"""Characters shown of a name."""

MAX_ITEMS = 200
"""Items shown of a list or a mapping."""

MAX_ATTRIBUTES = 40

MAX_ATTRIBUTE_TEXT = 300
"""Characters up to which an attribute is shown: longer ones are contents with their own field."""

_STATUS_ORDER = {
    TrialStatus.HARD_FAIL: 0,
    TrialStatus.FAILED: 1,
    TrialStatus.INFRA_ERROR: 2,
    TrialStatus.NOT_JUDGED: 3,
    TrialStatus.PASSED: 4,
    TrialStatus.CANCELLED: 5,
}


# -- texts ---------------------------------------------------------------------------------------


class PageTexts:
    """Redacts, cuts and makes visible every text of a page, and counts the redactions."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self.redacted = 0

    def text(self, text: str | None) -> str | None:
        """Return a text of any length as the page shows it."""
        return None if text is None else cut(visible(self.redact(text)))

    def name(self, text: str) -> str:
        """Return a name as the page shows it."""
        return cut(visible(self.redact(text)), MAX_NAME)

    def value(self, value: Any) -> str | None:
        """Return any value as text: strings as they are, the rest as JSON."""
        if value is None:
            return None
        if isinstance(value, str):
            return self.text(value)
        short = json_value(self.redact(value), most=MAX_TEXT)
        return cut(visible(json.dumps(short, ensure_ascii=False, indent=1)))

    def redact(self, value: Any) -> Any:
        """Return a value without its secrets, and count the places that had one."""
        redacted = self._redactor.value(value)
        # The redactor returns the same object where it found nothing.
        if redacted is not value:
            self.redacted += max(1, _redaction_marks(redacted) - _redaction_marks(value))
        return redacted


def _redaction_marks(value: Any) -> int:
    return len(MARK.findall(value if isinstance(value, str) else repr(value)))


def cut(text: str, limit: int = MAX_TEXT) -> str:
    """Return at most `limit` characters, with the number of missing ones."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters)"


# -- packing -------------------------------------------------------------------------------------


def deflated(content: bytes) -> str:
    """Return deflated bytes in base64: letters only, so that nothing in them is markup."""
    return base64.b64encode(zlib.compress(content, 9)).decode()


class PackedTrials(NamedTuple):
    """Packed blocks, and the block and index of each trial, by row; None if it did not fit.

    `traces` and `answers` count trials with and without their trace, `without` those left out;
    `unreadable` counts traces that could not be read from the run folder.
    """

    blocks: tuple[str, ...]
    places: tuple[tuple[int, int] | None, ...]
    traces: int
    answers: int
    without: int
    unreadable: int


def pack_trials(
    trials: Sequence[Trial],
    trace_of: Callable[[Trial], Trace | None],
    texts: PageTexts,
    budget: int,
) -> PackedTrials:
    """Pack trials, given in the order of the rows, into at most `budget` bytes."""
    packer = _Packer(trace_of, texts)
    order = harm_first((trial.status, trial.cell) for trial in trials)
    with_trace = packer.fill(
        ((row, trials[row]) for row in order), int(budget * TRACE_SHARE), traces=True
    )
    # Without their trace, the others are small: many more answers fit.
    rest = [(row, trials[row]) for row in order if row not in with_trace]
    without_trace = packer.fill(rest, budget - packer.size, traces=False)
    places = {**with_trace, **without_trace}
    return PackedTrials(
        blocks=tuple(packer.blocks),
        places=tuple(places.get(row) for row in range(len(trials))),
        traces=sum(trials[row].trace is not None for row in with_trace) - packer.unreadable,
        answers=len(without_trace),
        without=len(trials) - len(places),
        unreadable=packer.unreadable,
    )


def harm_first(trials: Iterable[tuple[str, Hashable]]) -> list[int]:
    """Return positions by status, the worst first; among equals one of each cell, then a second.

    `trials` holds the status and the cell of each trial.
    """
    seen: dict[Hashable, int] = defaultdict(int)
    keys: list[tuple[int, int, int]] = []
    for at, (status, cell) in enumerate(trials):
        keys.append((_STATUS_ORDER[TrialStatus(status)], seen[status, cell], at))
        seen[status, cell] += 1
    return [at for _, _, at in sorted(keys)]


class _Packer:
    def __init__(self, trace_of: Callable[[Trial], Trace | None], texts: PageTexts) -> None:
        self._trace_of = trace_of
        self._texts = texts
        self.blocks: list[str] = []
        self.size = 0
        self.unreadable = 0

    def fill(
        self, trials: Iterable[tuple[int, Trial]], limit: int, *, traces: bool
    ) -> dict[int, tuple[int, int]]:
        """Add blocks of at most `limit` bytes in total; return the place of each trial by row."""
        limit += self.size
        places: dict[int, tuple[int, int]] = {}
        pending: list[tuple[int, bytes]] = []
        unreadable = self.unreadable
        for row, trial in trials:
            pending.append((row, self._encode(trial, traces)))
            if sum(len(text) for _, text in pending) >= BLOCK_BYTES:
                if not self._add(pending, limit, places):
                    self.unreadable = unreadable
                    return places
                pending, unreadable = [], self.unreadable
        # The last block may be too large where fewer of its trials would still fit.
        while pending and not self._add(pending, limit, places):
            pending = pending[: len(pending) // 2]
        return places

    def _add(
        self, pending: list[tuple[int, bytes]], limit: int, places: dict[int, tuple[int, int]]
    ) -> bool:
        block = deflated(b"[" + b",".join(text for _, text in pending) + b"]")
        if self.size + len(block) > limit:
            return False
        for index, (row, _) in enumerate(pending):
            places[row] = (len(self.blocks), index)
        self.blocks.append(block)
        self.size += len(block)
        return True

    def _encode(self, trial: Trial, traces: bool) -> bytes:
        trace: Trace | None = None
        if traces:
            try:
                trace = self._trace_of(trial)
            except ProctorError:  # a damaged segment loses its traces, not the report
                self.unreadable += 1
        return msgspec.json.encode(trial_data(trial, trace, self._texts))


# -- one trial -----------------------------------------------------------------------------------


def trial_data(trial: Trial, trace: Trace | None, texts: PageTexts) -> dict[str, Any]:
    """Return everything the page shows of one trial, without the parts that are empty."""
    spans = [] if trace is None else span_data(trace, texts)
    # Checks refer to spans by position, as `parent` does.
    at = {} if trace is None else {s.span_id: i for i, s in enumerate(trace.index.spans)}
    error = trial.error
    data: dict[str, Any] = {
        "answer": texts.text(trial.answer),
        "error": None
        if error is None
        else texts.text(f"{error.type}: {error.message} (in the {error.place})"),
        "checks": [
            {
                "id": texts.name(result.id),
                "layer": result.layer.value,
                "status": result.status.value,
                "reason": texts.text(result.reason),
                "score": result.score,
                "weight": result.weight,
                "expected": texts.value(result.expected) if result.failed else None,
                "actual": texts.value(result.actual) if result.failed else None,
                "spans": [at[span] for span in result.span_ids if span in at],
            }
            for result in trial.checks
        ],
        "changes": None if trace is None else _changes(trace, texts),
        "attempt": trial.attempt if trial.attempt > 1 else None,
        "retries": trial.retries or None,
        "times": [
            [name, value]
            for name, value in (
                ("waited for rate limits", trial.queue_ms),
                ("start of the process", trial.startup_ms),
                ("checks", trial.check_ms),
            )
            if value
        ]
        or None,
        "seed": str(trial.seed),  # 63 bits: more than a JavaScript number holds
        "trace_id": trial.trace_id,
        "spans": spans or None,
        "problems": [texts.text(p) for p in trace.problems] if trace and trace.problems else None,
    }
    return {key: value for key, value in data.items() if value is not None}


def _changes(trace: Trace, texts: PageTexts) -> dict[str, Any] | None:
    """Return what the agent changed in its workspace; None for a trial without one."""
    record = trace.metadata.get("workspace")
    # Traces come from files, which need not be ours: other shapes are left out.
    if not isinstance(record, dict):
        return None
    found = cast("dict[str, Any]", record)
    paths, diff = found.get("paths"), found.get("diff")
    counts = {name: found.get(name) for name in ("changed", "added", "removed")}
    if not isinstance(paths, dict) or not isinstance(diff, str):
        return None
    if not all(isinstance(count, int) for count in counts.values()):
        return None
    shown = list(cast("dict[Any, Any]", paths).items())[:MAX_ITEMS]
    return {
        "paths": [[texts.name(str(path)), texts.name(str(what))] for path, what in shown],
        **counts,
        "diff": cut(visible(texts.redact(diff)), MAX_DIFF),
    }


def span_data(trace: Trace, texts: PageTexts) -> list[dict[str, Any]]:
    """Return spans by start time; parents are positions, times count from the trace's start."""
    spans = trace.index.spans
    at = {span.span_id: position for position, span in enumerate(spans)}
    first_ns = spans[0].start_ns if spans else 0
    data = [_span(span, at, first_ns, texts) for span in spans[:MAX_SPANS]]
    # A span of its own says what is missing, where a reader of the tree will see it.
    if len(spans) > MAX_SPANS:
        data.append({"name": f"… {len(spans) - MAX_SPANS:,} more spans", "kind": "other"})
    return data


def _span(span: Span, at: dict[str, int], first_ns: int, texts: PageTexts) -> dict[str, Any]:
    parent = None if span.parent_id is None else at.get(span.parent_id)
    # Messages say the same as the raw input and output, in a form that people can read.
    raw_input = None if span.input_messages else span.input
    raw_output = None if span.output_messages else span.output
    error = ": ".join(part for part in (span.error_type, span.error_message) if part)
    data: dict[str, Any] = {
        # The page draws from top to bottom, so a parent must come before its children.
        "parent": parent if parent is not None and parent < at[span.span_id] else None,
        "name": texts.name(span.tool_name or span.name),
        "kind": span.kind.value,
        "status": span.status.value if span.failed else None,
        "start": round((span.start_ns - first_ns) / 1e6, 3),
        "ms": None if span.duration_ns is None else round(span.duration_ns / 1e6, 3),
        "model": None if span.model is None else texts.name(span.model),
        "tokens": tokens(span.input_tokens, span.output_tokens),
        "cost": span.cost_usd,
        "error": texts.text(error or None),
        "handoff": None if span.handoff_to is None else texts.name(span.handoff_to),
        "input": texts.value(raw_input if span.tool_input is None else span.tool_input),
        "output": texts.value(raw_output if span.tool_output is None else span.tool_output),
        "input_messages": [_message(each, texts) for each in span.input_messages[:MAX_ITEMS]],
        "output_messages": [_message(each, texts) for each in span.output_messages[:MAX_ITEMS]],
        "documents": [
            {"id": d.id and texts.name(d.id), "text": texts.text(d.text), "score": d.score}
            for d in span.documents[:MAX_ITEMS]
        ],
        "events": [
            {
                "name": texts.name(event.name),
                "at": round((event.time_ns - first_ns) / 1e6, 3) if event.time_ns else None,
                "attributes": _attributes(event.attributes, texts),
            }
            for event in span.events[:MAX_ITEMS]
        ],
        "attributes": _attributes(span.attributes, texts),
    }
    return {key: value for key, value in data.items() if value not in (None, [], {})}


def _message(message: Message, texts: PageTexts) -> dict[str, Any]:
    data: dict[str, Any] = {
        "role": texts.name(message.role),
        "text": texts.text(message.content),
        "calls": [
            {"name": texts.name(call.name), "arguments": texts.value(call.arguments)}
            for call in message.tool_calls[:MAX_ITEMS]
        ],
        "other": [texts.name(part) for part in message.other[:MAX_ITEMS]],
    }
    return {key: value for key, value in data.items() if value not in (None, [])}


def _attributes(attributes: dict[str, Any], texts: PageTexts) -> dict[str, str]:
    shown: dict[str, str] = {}
    # Redacted together: the name of an attribute may say that its value is a secret.
    for name, value in texts.redact(attributes).items():
        text = texts.value(value)
        if text is not None and len(text) <= MAX_ATTRIBUTE_TEXT:
            shown[texts.name(str(name))] = text
        if len(shown) >= MAX_ATTRIBUTES:
            break
    return shown
