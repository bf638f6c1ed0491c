"""What the spans of a trace come to, kept up as spans come: a long trace is not counted again.

Promise: the totals after any sequence of batches are those of all spans together, whatever order
they came in and however often, and tokens, costs and model calls are those that `Trace.usage`
says: each call once. A span that comes again, ended where it was open, is taken out as it was and
put in as it is; where that is not enough (it began later than was said, say, or one model call
stands inside another, which is the same call seen twice) the trace is counted anew from its rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from proctor.server.store.rows import span_from
from proctor.server.store.schema import SPAN_COLUMNS
from proctor.trace import Trace

MODEL, TOOL = "model", "tool"
"""What a trace can be said to use."""

LLM = "llm"
"""The kind of a model call."""

_FAILED = ("error", "timeout")


class SpanRow(NamedTuple):
    """A row of `spans`; the fields are `SPAN_COLUMNS`."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: str
    status: str
    start_ns: int
    end_ns: int | None
    tool_name: str | None
    model: str | None
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    error_type: str | None


assert SpanRow._fields == SPAN_COLUMNS

_USAGE = slice(SPAN_COLUMNS.index("input_tokens"), SPAN_COLUMNS.index("cost_usd") + 1)
_NO_USAGE = (None, None, None)

Key = tuple[str, str]


@dataclass(slots=True)
class Totals:
    """The sums over the spans of a trace. `uses`: calls and failed calls of each tool and model."""

    name: str | None = None
    rooted: int = 0
    started_ns: int = 0
    ended_ns: int | None = None
    spans: int = 0
    errors: int = 0
    llm_calls: int = 0
    tool_calls: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    whole: int = 0
    """Whether usage is not a sum over model calls, so that all rows are looked at together."""
    other_tokens: bool = False
    other_cost: bool = False
    """Whether spans that are no model calls were seen to bear tokens, or a cost."""
    uses: dict[Key, tuple[int, int]] = field(default_factory=dict[Key, tuple[int, int]])

    def add(self, row: SpanRow) -> None:
        """Take one more span in."""
        root = 0 if row.parent_id else 1
        # A trace is called what its root is called; of several, the first by name.
        rank = (-root, row.name)
        if self.name is None or rank < (-self.rooted, self.name):
            self.name = row.name
        self.rooted |= root
        if not self.spans or row.start_ns < self.started_ns:
            self.started_ns = row.start_ns
        if row.end_ns is not None and (self.ended_ns is None or row.end_ns > self.ended_ns):
            self.ended_ns = row.end_ns
        self._count(row, 1)

    def replace(self, old: SpanRow, new: SpanRow) -> None:
        """Count a span as it is instead of as it was."""
        self._count(old, -1)
        self.add(new)

    def _count(self, row: SpanRow, sign: int) -> None:
        failed = sign if row.status in _FAILED else 0
        self.spans += sign
        self.errors += failed
        if row.tool_name is not None:
            self._use((TOOL, row.tool_name), sign, failed)
        if row.model is not None:
            self._use((MODEL, row.model), sign, failed)
        if row.kind != LLM:
            self.tool_calls += sign if row.kind == "tool" else 0
            if row[_USAGE] != _NO_USAGE:
                self.other_tokens |= row.input_tokens is not None or row.output_tokens is not None
                self.other_cost |= row.cost_usd is not None
        else:
            self.llm_calls += sign
            if row.input_tokens is not None:
                self.input_tokens = (self.input_tokens or 0) + sign * row.input_tokens
            if row.output_tokens is not None:
                self.output_tokens = (self.output_tokens or 0) + sign * row.output_tokens
            if row.cost_usd is not None:
                self.cost_usd = (self.cost_usd or 0.0) + sign * row.cost_usd

    @property
    def lacks(self) -> bool:
        """Whether spans that are no model calls bear usage that no model call bore."""
        no_tokens = self.input_tokens is None and self.output_tokens is None
        return (self.other_tokens and no_tokens) or (self.other_cost and self.cost_usd is None)

    def take_usage(self, rows: Iterable[SpanRow]) -> None:
        """Tokens, costs and model calls as the tree of the spans has them, each call once."""
        trace = Trace(trace_id="", spans=[span_from(row) for row in rows])
        usage = trace.usage
        self.input_tokens, self.output_tokens = usage.input_tokens, usage.output_tokens
        self.cost_usd, self.llm_calls = usage.cost_usd, len(trace.llm_calls)
        self.whole = 1

    def _use(self, key: Key, calls: int, errors: int) -> None:
        known = self.uses.get(key, (0, 0))
        self.uses[key] = (known[0] + calls, known[1] + errors)

    @property
    def duration_ms(self) -> float | None:
        """From the first start to the last end."""
        return None if self.ended_ns is None else (self.ended_ns - self.started_ns) / 1e6

    @property
    def status(self) -> str:
        """Whether anything failed."""
        return "error" if self.errors else "ok"


def distinct(rows: Iterable[tuple[Any, ...]]) -> dict[Key, SpanRow]:
    """One row a span: of several the last, but one that ended before one that did not."""
    found: dict[Key, SpanRow] = {}
    for row in map(SpanRow._make, rows):
        key = row[:2]
        known = found.get(key)
        if known is None or row.end_ns is not None or known.end_ns is None:
            found[key] = row
    return found


def totals_of(rows: Iterable[SpanRow]) -> dict[str, Totals]:
    """The totals of each trace from all its spans; no span may come twice."""
    spans: defaultdict[str, list[SpanRow]] = defaultdict(list)
    for row in rows:
        spans[row.trace_id].append(row)
    return {trace_id: _counted(own) for trace_id, own in spans.items()}


def _counted(rows: Sequence[SpanRow]) -> Totals:
    totals = Totals()
    for row in rows:
        totals.add(row)
    if totals.lacks or nested(rows):
        totals.take_usage(rows)
    return totals


def nested(rows: Collection[SpanRow]) -> set[str]:
    """Traces in which a model call may stand inside another, as far as these spans tell.

    A span below a call that has none below itself (the HTTP request it made) is no reason. Two
    traces may have a span of the same id: naming one for nothing costs time, and no harm.
    """
    calls = {row.span_id for row in rows if row.kind == LLM}
    below = {row.span_id for row in rows if row.parent_id in calls}
    if not below:
        return set()
    return {
        row.trace_id
        for row in rows
        if row.parent_id in below or (row.kind == LLM and row.parent_id in calls)
    }


def can_replace(old: SpanRow, new: SpanRow) -> bool:
    """Whether a span only grew, so that what was counted of it can be taken out again."""
    if old[2:5] != new[2:5] or new.start_ns > old.start_ns:
        return False
    if old.end_ns is not None and (new.end_ns is None or new.end_ns < old.end_ns):
        return False
    # A name that goes must be forgotten; a sum that becomes unknown is not a difference.
    for column in ("tool_name", "model"):
        if getattr(old, column) not in (None, getattr(new, column)):
            return False
    return all(
        getattr(old, column) is None or getattr(new, column) is not None
        for column in ("input_tokens", "output_tokens", "cost_usd")
    )
