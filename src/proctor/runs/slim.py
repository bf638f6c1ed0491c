"""Trials made small enough to hold a hundred thousand of them at once.

What summaries do not read is dropped, and what is equal is shared: results of passed checks
differ only in words that nobody reads.
"""

from __future__ import annotations

from msgspec.structs import replace

from proctor.checks.base import FAILED, CheckResult
from proctor.runs.trial import Trial

_Key = tuple[object, ...]


class Pool:
    """Shares equal parts of the trials it is given."""

    def __init__(self) -> None:
        self._results: dict[_Key, CheckResult] = {}
        self._rows: dict[_Key, tuple[CheckResult, ...]] = {}
        self._last: dict[_Key, tuple[CheckResult, ...]] = {}

    def slim(self, trial: Trial) -> Trial:
        """A copy with what summaries need."""
        trace_id, checks = None, trial.checks
        for result in checks:
            if result.status in FAILED:
                checks = tuple(r if r.failed else self._shared(r) for r in checks)
                trace_id = trial.trace_id
                break
        else:
            checks = self._row(trial, checks)
        return replace(
            trial,
            seed=0,
            answer=None,
            checks=checks,
            started_ns=0,
            duration_ms=0.0,
            retry_errors=(),
            trace_id=trace_id,
            trace=None,
            workdir=None,
        )

    def _row(self, trial: Trial, checks: tuple[CheckResult, ...]) -> tuple[CheckResult, ...]:
        """Shared results of passed checks: nearly always those of the cell's last trial."""
        last = self._last.get((trial.case, trial.agent), ())
        if len(last) == len(checks) and all(map(_alike, last, checks)):
            return last
        shared = tuple(self._shared(result) for result in checks)
        row = self._rows.setdefault(tuple(map(id, shared)), shared)
        self._last[trial.case, trial.agent] = row
        return row

    def _shared(self, result: CheckResult) -> CheckResult:
        key = (result.id, result.status, result.score, result.weight)
        found = self._results.get(key)
        if found is None:
            found = CheckResult(
                id=result.id,
                check=result.check,
                layer=result.layer,
                status=result.status,
                reason="",
                score=result.score,
                weight=result.weight,
            )
            self._results[key] = found
        return found


def _alike(ours: CheckResult, other: CheckResult) -> bool:
    return (
        ours.score == other.score
        and ours.status == other.status
        and ours.id == other.id
        and ours.weight == other.weight
    )
