"""What the look at one trial needs, packed: answers, checks and traces, as many as fit.

Promise: the pack never exceeds its budget. Trials that went wrong come first, one of each cell
before a second, and what was left out is counted. Each block is deflated JSON in base64, so that
nothing in it is markup and a page opens without reading it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from proctor.errors import ProctorError
from proctor.report.html.packing import packed
from proctor.report.html.spans import span_facts
from proctor.report.html.texts import Texts
from proctor.runs.model import Trial, TrialStatus
from proctor.trace import Trace

BLOCK = 96 * 1024
"""Bytes of JSON in a block: a few milliseconds to unpack, large enough to compress well."""

FOR_TRACES = 0.8
"""The share of the budget that traces may take; the rest is for answers of trials without one."""

_FIRST = {
    TrialStatus.HARD_FAIL: 0,
    TrialStatus.FAILED: 1,
    TrialStatus.INFRA_ERROR: 2,
    TrialStatus.PASSED: 3,
    TrialStatus.CANCELLED: 4,
}


class Packed(NamedTuple):
    """Blocks, and for each trial (by its row) where in them it is found: block and place.

    `traces` and `answers` count trials told with and without their trace, `without` those that
    are not told at all; `unreadable` are traces that could not be read back.
    """

    blocks: tuple[str, ...]
    places: tuple[tuple[int, int] | None, ...]
    traces: int
    answers: int
    without: int
    unreadable: int

    @property
    def size(self) -> int:
        """Bytes of all blocks."""
        return sum(map(len, self.blocks))


def pack(
    trials: Sequence[Trial],
    trace_of: Callable[[Trial], Trace | None],
    texts: Texts,
    budget: int,
) -> Packed:
    """Pack trials, which stand in the order of the rows, into at most `budget` bytes."""
    packer = _Packer(trace_of, texts)
    order = harm_first((trial.status, trial.cell) for trial in trials)
    told = packer.fill(((at, trials[at]) for at in order), int(budget * FOR_TRACES), traces=True)
    rest = [(at, trials[at]) for at in order if at not in told]
    more = packer.fill(rest, budget - packer.size, traces=False)
    places = {**told, **more}
    return Packed(
        blocks=tuple(packer.blocks),
        places=tuple(places.get(at) for at in range(len(trials))),
        traces=sum(trials[at].trace is not None for at in told) - packer.unreadable,
        answers=len(more),
        without=len(trials) - len(places),
        unreadable=packer.unreadable,
    )


def harm_first(ended: Iterable[tuple[str, Hashable]]) -> list[int]:
    """Places by how bad a trial ended; among equals the first of each cell, then the second, …

    `ended` is the status of each trial and the cell it belongs to.
    """
    seen: dict[Hashable, int] = defaultdict(int)
    keys: list[tuple[int, int, int]] = []
    for at, (status, cell) in enumerate(ended):
        keys.append((_FIRST[TrialStatus(status)], seen[status, cell], at))
        seen[status, cell] += 1
    return [at for _, _, at in sorted(keys)]


class _Packer:
    def __init__(self, trace_of: Callable[[Trial], Trace | None], texts: Texts) -> None:
        self._trace_of = trace_of
        self._texts = texts
        self.blocks: list[str] = []
        self.size = 0
        self.unreadable = 0

    def fill(
        self, trials: Iterable[tuple[int, Trial]], limit: int, *, traces: bool
    ) -> dict[int, tuple[int, int]]:
        """Add blocks until the pack has `limit` bytes more; says where each trial went."""
        limit += self.size
        places: dict[int, tuple[int, int]] = {}
        waiting: list[tuple[int, bytes]] = []
        unread = self.unreadable
        for at, trial in trials:
            waiting.append((at, self._encoded(trial, traces)))
            if sum(len(text) for _, text in waiting) >= BLOCK:
                if not self._add(waiting, limit, places):
                    self.unreadable = unread
                    return places
                waiting, unread = [], self.unreadable
        # The last block may be too large where its trials alone are not.
        while waiting and not self._add(waiting, limit, places):
            waiting = waiting[: len(waiting) // 2]
        return places

    def _add(
        self, waiting: list[tuple[int, bytes]], limit: int, places: dict[int, tuple[int, int]]
    ) -> bool:
        joined = b"[" + b",".join(text for _, text in waiting) + b"]"
        block = packed(joined)
        if self.size + len(block) > limit:
            return False
        for place, (at, _) in enumerate(waiting):
            places[at] = (len(self.blocks), place)
        self.blocks.append(block)
        self.size += len(block)
        return True

    def _encoded(self, trial: Trial, traces: bool) -> bytes:
        trace = self._trace(trial) if traces else None
        return msgspec.json.encode(trial_facts(trial, trace, self._texts))

    def _trace(self, trial: Trial) -> Trace | None:
        try:
            return self._trace_of(trial)
        except ProctorError:  # a damaged segment loses its traces, not the report
            self.unreadable += 1
            return None


def trial_facts(trial: Trial, trace: Trace | None, texts: Texts) -> dict[str, Any]:
    """Everything the page shows of one trial; parts that are not there are left out."""
    spans = [] if trace is None else span_facts(trace, texts)
    at = {} if trace is None else {s.span_id: i for i, s in enumerate(trace.index.spans)}
    facts: dict[str, Any] = {
        "answer": texts.said(trial.answer),
        "error": None
        if trial.error is None
        else texts.said(f"{trial.error.type}: {trial.error.message} (in the {trial.error.place})"),
        "checks": [
            {
                "id": texts.word(result.id),
                "layer": result.layer.value,
                "status": result.status.value,
                "reason": texts.said(result.reason),
                "score": result.score,
                "weight": result.weight,
                "expected": texts.value(result.expected) if result.failed else None,
                "actual": texts.value(result.actual) if result.failed else None,
                "spans": [at[span] for span in result.span_ids if span in at],
            }
            for result in trial.checks
        ],
        "attempt": trial.attempt if trial.attempt > 1 else None,
        "retries": trial.retries or None,
        "seed": str(trial.seed),  # 63 bits: more than a number of JavaScript holds
        "trace_id": trial.trace_id,
        "spans": spans or None,
        "problems": [texts.said(p) for p in trace.problems] if trace and trace.problems else None,
    }
    return {key: value for key, value in facts.items() if value is not None}
