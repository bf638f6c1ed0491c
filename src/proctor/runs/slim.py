"""Trials made small enough to hold a hundred thousand of them at once.

What summaries do not read is dropped, and what is equal is shared: results of passed checks
differ only in words that nobody reads.
"""

from __future__ import annotations

import sys

from proctor.checks.result import CheckResult
from proctor.runs.model import Trial

_Key = tuple[object, ...]


class Pool:
    """Shares equal parts of the trials it is given."""

    def __init__(self) -> None:
        self._results: dict[_Key, CheckResult] = {}
        self._rows: dict[_Key, tuple[CheckResult, ...]] = {}

    def slim(self, trial: Trial) -> Trial:
        """The trial itself, changed to what summaries need."""
        trial.case, trial.agent = sys.intern(trial.case), sys.intern(trial.agent)
        trial.answer = trial.trace = trial.workdir = None
        trial.retry_errors = ()
        if any(result.failed for result in trial.checks):
            trial.checks = tuple(r if r.failed else self._shared(r) for r in trial.checks)
            return trial
        trial.trace_id = None
        shared = tuple(self._shared(result) for result in trial.checks)
        trial.checks = self._rows.setdefault(tuple(map(id, shared)), shared)
        return trial

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
