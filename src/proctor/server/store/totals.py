"""What the spans of a trace come to, kept up as spans come: a long trace is not counted again.

Promise: the totals after any sequence of batches are those of all spans together, whatever order
they came in and however often. A span that comes again, ended where it was open, is taken out as
it was and put in as it is; where that is not enough (it began later than was said, say) the
trace is counted anew from its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from proctor.server.store.schema import SPAN_COLUMNS

MODEL, TOOL = "model", "tool"
"""What a trace can be said to use."""

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
        if row.kind == "tool":
            self.tool_calls += sign
        elif row.kind == "llm":
            self.llm_calls += sign
            if row.input_tokens is not None:
                self.input_tokens = (self.input_tokens or 0) + sign * row.input_tokens
            if row.output_tokens is not None:
                self.output_tokens = (self.output_tokens or 0) + sign * row.output_tokens
            if row.cost_usd is not None:
                self.cost_usd = (self.cost_usd or 0.0) + sign * row.cost_usd

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
    """The totals of each trace; no span may come twice."""
    found: dict[str, Totals] = {}
    for row in rows:
        totals = found.get(row.trace_id)
        if totals is None:
            totals = found[row.trace_id] = Totals()
        totals.add(row)
    return found


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
