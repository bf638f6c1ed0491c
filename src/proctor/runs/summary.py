"""Summarise the trials of a cell: counts, scores, a verdict, and failures by impact.

Guarantees: every figure names its denominator. Infrastructure errors and cancelled trials are never
observations of the agent; an unobserved value is None. Percentiles are linear interpolation between
order statistics (Hyndman and Fan's type 7, numpy's default).
"""

from __future__ import annotations

import tempfile
import threading
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import overload

import msgspec
from msgspec.structs import replace

from proctor.checks.base import FAILED, CheckResult
from proctor.runs.early_stop import CellPlan, FinishedTrial, StoppingRule, find_stop, stopped_early
from proctor.runs.trial import JUDGED, UNJUDGED, CellKey, Spending, Trial, TrialError, TrialStatus
from proctor.stats.describe import describe, percentile

MAX_NOT_JUDGED = 0.05
"""Share of planned trials that may end without a verdict: a provider's usual trouble stays below
it, and at most one trial in twenty then is missing from the figures."""

SAMPLES = 3
"""Examples stored with a ranked failure: enough to see a pattern, few enough to read."""


class Verdict(StrEnum):
    """Verdict of a cell."""

    PASS = "PASS"
    PARTIAL = "PARTIAL"
    FAIL = "FAIL"
    HARD_FAIL = "HARD FAIL"
    INFRA_ERROR = "INFRA_ERROR"
    NOT_JUDGED = "NOT JUDGED"
    """As INFRA_ERROR, where no trial had an infrastructure error."""
    NOT_RUN = "NOT RUN"
    """No trial has finished: pending, cancelled, or beyond a limit."""
    INCOMPLETE = "INCOMPLETE"
    """Nothing failed so far, but planned trials are missing."""


class FailureSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One occurrence of a failure."""

    trial: str
    reason: str
    span_ids: tuple[str, ...] = ()
    trace_id: str | None = None


class RankedFailure(msgspec.Struct, frozen=True):
    """A check that failed in some trials. `rate` is over the judged trials it was counted in."""

    check_id: str
    layer: str
    count: int
    of: int
    rate: float
    weight_lost: float
    blocking: bool
    samples: tuple[FailureSample, ...]


class RankedError(msgspec.Struct, frozen=True):
    """Reason why some trials could not be judged, with an example."""

    error: TrialError
    count: int
    trial: str


class CellSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a cell; lossless through JSON."""

    case: str
    agent: str
    params: str
    verdict: Verdict
    trials: int
    passed: int
    failed: int
    hard_fail: int
    infra_error: int
    not_judged: int = 0
    cancelled: int
    asked: int
    pass_rate: float | None
    score_mean: float | None
    score_min: float | None
    score_p50: float | None
    score_p95: float | None
    threshold: float
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    cost_usd: float | None
    cost_mean_usd: float | None
    unpriced_calls: int
    tokens: int | None
    retries: int
    trials_with_retries: int
    early_stop: str | None
    failures: tuple[RankedFailure, ...]
    score_std: float | None = None
    latency_p90_ms: float | None = None
    latency_p99_ms: float | None = None

    @property
    def cell(self) -> CellKey:
        """The cell of this summary."""
        return CellKey(self.case, self.agent, self.params)

    @property
    def judged(self) -> int:
        """Judged trials: the denominator of the pass rate."""
        return self.passed + self.failed + self.hard_fail

    @property
    def planned(self) -> int:
        """Planned trials, without those that an early stop made unnecessary."""
        return self.trials if self.early_stop else self.asked

    @property
    def unjudged(self) -> int:
        """Trials that ended without a verdict: infrastructure errors and not judged ones."""
        return self.infra_error + self.not_judged


def verdict_of(
    trials: Sequence[Trial],
    threshold: float,
    *,
    planned: int,
    max_not_judged: float = MAX_NOT_JUDGED,
) -> Verdict:
    """Return the verdict of a cell with this many planned trials.

    In this order: a blocking failure, more trials without a verdict than tolerated, a mean score
    below the threshold. A failure is certain whatever else is missing, so it comes first; a pass
    needs every planned trial. A cell without finished trials is not a failed cell.
    """
    statuses = [trial.status for trial in trials]
    judged = [trial for trial in trials if trial.status in JUDGED]
    unjudged = sum(status in UNJUDGED for status in statuses)
    if TrialStatus.HARD_FAIL in statuses:
        return Verdict.HARD_FAIL
    if unjudged and (not judged or unjudged > max_not_judged * planned):
        infra = TrialStatus.INFRA_ERROR in statuses
        return Verdict.INFRA_ERROR if infra else Verdict.NOT_JUDGED
    if not judged:
        return Verdict.NOT_RUN
    # The mean decides, not the number of passes; PARTIAL only says that some trials passed.
    scores = [trial.score for trial in judged if trial.score is not None]
    every = all(trial.status == TrialStatus.PASSED for trial in judged)
    if scores and sum(scores) / len(scores) < threshold and not every:
        return Verdict.PARTIAL if TrialStatus.PASSED in statuses else Verdict.FAIL
    return Verdict.PASS if len(judged) + unjudged >= planned else Verdict.INCOMPLETE


def summarise_cell(
    key: CellKey,
    trials: Iterable[Trial],
    *,
    threshold: float,
    asked: int,
    max_not_judged: float = MAX_NOT_JUDGED,
    rules: Sequence[StoppingRule] = (),
    stopped: str | None = None,
    spent: Spending | None = None,
) -> CellSummary:
    """Summarise one cell. Trials that ended after an early stop are not counted.

    `stopped` is the reason of a stop in the source of an import. `spent` is what all attempts of
    the cell used, those that do not count included; without it, the counted trials are summed.
    """
    counted = in_plan_order(trials)
    plan, early_stop = CellPlan(asked, threshold, stopped), None
    if rules or stopped is not None:
        stop = find_stop([FinishedTrial.of(t) for t in counted], plan, rules)
        counted = counted if stop is None else counted[: stop.after]
        early_stop = stopped_early(stop, plan)
    judged = [trial for trial in counted if trial.status in JUDGED]
    statuses = [trial.status for trial in counted]
    of = {status: statuses.count(status) for status in TrialStatus}
    scores = [trial.score for trial in judged if trial.score is not None]
    latencies = [t.latency_ms for t in judged if t.latency_ms is not None]
    retries = [trial.retries for trial in counted]
    costs = [trial.cost_usd for trial in counted if trial.cost_usd is not None]
    if spent is None:
        spent = Spending()
        for trial in counted:
            spent.add(trial)
    return CellSummary(
        case=key.case,
        agent=key.agent,
        params=key.params,
        verdict=verdict_of(
            counted,
            threshold,
            planned=len(counted) if early_stop else asked,
            max_not_judged=max_not_judged,
        ),
        trials=len(counted),
        passed=of[TrialStatus.PASSED],
        failed=of[TrialStatus.FAILED],
        hard_fail=of[TrialStatus.HARD_FAIL],
        infra_error=of[TrialStatus.INFRA_ERROR],
        not_judged=of[TrialStatus.NOT_JUDGED],
        cancelled=of[TrialStatus.CANCELLED],
        asked=asked,
        pass_rate=of[TrialStatus.PASSED] / len(judged) if judged else None,
        score_mean=sum(scores) / len(scores) if scores else None,
        score_min=min(scores, default=None),
        score_std=describe(scores, ()).deviation,
        score_p50=percentile(scores, 50),
        score_p95=percentile(scores, 95),
        threshold=threshold,
        latency_p50_ms=percentile(latencies, 50),
        latency_p90_ms=percentile(latencies, 90),
        latency_p95_ms=percentile(latencies, 95),
        latency_p99_ms=percentile(latencies, 99),
        cost_usd=spent.cost_usd,
        cost_mean_usd=sum(costs) / len(costs) if costs else None,
        unpriced_calls=spent.unpriced_calls,
        tokens=spent.tokens,
        retries=sum(retries),
        trials_with_retries=len(retries) - retries.count(0),
        early_stop=early_stop,
        failures=rank_failures(judged),
    )


SharedResults = dict[tuple[object, ...], CheckResult]


def compact(trials: Iterable[Trial], shared: SharedResults) -> Iterator[Trial]:
    """Yield copies of trials without the fields that summaries do not read.

    A hundred thousand trials then fit into memory regardless of their answers: 170 MB at the peak
    of a run instead of 360. Results of passed checks differ only in their reasons, so trials share
    them through `shared`.
    """
    for trial in trials:
        checks = [
            r if r.status in FAILED else shared.setdefault((r.id, r.status, r.score, r.weight), r)
            for r in trial.checks
        ]
        statuses = {r.status for r in checks}
        yield replace(
            trial,
            seed=0,
            answer=None,
            checks=tuple(checks),
            started_ns=0,
            duration_ms=0.0,
            retry_errors=(),
            # Only samples of failures name their trace.
            trace_id=None if statuses.isdisjoint(FAILED) else trial.trace_id,
            trace=None,
            workdir=None,
        )


# Faster than a lambda, which is felt for 100,000 trials.
_INDEX, _AXIS_SEED = attrgetter("index"), attrgetter("axis_seed")


def in_plan_order(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials of a cell in plan order."""
    found = list(trials)
    if any(map(_AXIS_SEED, found)):
        return sorted(found, key=plan_order)
    return sorted(found, key=_INDEX)  # the same, but faster


def plan_order(trial: Trial) -> tuple[int, int]:
    """Return the sort key of a trial within its cell."""
    return (trial.axis_seed or 0, trial.index)


@dataclass
class _Failure:
    """What is known of a failed check so far: there may be too many trials to remember all."""

    layer: str
    count: int = 0
    weight_lost: float = 0.0
    blocking: bool = False
    samples: list[FailureSample] = field(default_factory=list[FailureSample])

    def add(self, trial: Trial, result: CheckResult) -> None:
        self.count += 1
        self.weight_lost += (1.0 - (result.score or 0.0)) * result.weight
        self.blocking |= result.blocking
        if len(self.samples) < SAMPLES:
            of = FailureSample(trial.name, result.reason, result.span_ids, trial.trace_id)
            self.samples.append(of)


def rank_failures(judged: Iterable[Trial]) -> tuple[RankedFailure, ...]:
    """Return failed checks by impact: count times average weight lost."""
    counted: dict[str, int] = defaultdict(int)
    failures: dict[str, _Failure] = {}
    total = 0
    for trial in judged:
        total += 1
        for result in trial.checks:
            if result.score is not None:
                counted[result.id] += 1
            if result.status in FAILED:
                failures.setdefault(result.id, _Failure(result.layer)).add(trial, result)
        if trial.category and trial.error is not None:  # no check has seen this trial
            reason = f"{trial.error.type}: {trial.error.message}"
            broken = CheckResult(id=trial.category, passed=False, reason=reason)
            failures.setdefault(trial.category, _Failure(broken.layer)).add(trial, broken)
    ranked: list[RankedFailure] = []
    for check_id, failure in failures.items():
        of = counted.get(check_id, total)
        ranked.append(
            RankedFailure(
                check_id=check_id,
                layer=failure.layer,
                count=failure.count,
                of=of,
                rate=failure.count / of if of else 0.0,
                weight_lost=failure.weight_lost,
                blocking=failure.blocking,
                samples=tuple(failure.samples),
            )
        )
    # The id comes last, so that equal failures have one order in every report.
    ranked.sort(key=lambda f: (-f.weight_lost, not f.blocking, -f.count, f.check_id))
    return tuple(ranked)


def rank_errors(trials: Iterable[Trial]) -> tuple[RankedError, ...]:
    """Return the reasons why trials could not be judged, the most common first."""
    seen: dict[TrialError, RankedError] = {}
    for trial in trials:
        if trial.status in UNJUDGED and (error := trial.error) is not None:
            so_far = seen.get(error)
            count, first = (so_far.count, so_far.trial) if so_far else (0, trial.name)
            seen[error] = RankedError(error, count + 1, first)
    return tuple(sorted(seen.values(), key=lambda each: -each.count))


class SummaryFile(Sequence[CellSummary]):
    """Summaries in a file without a name: of each cell, memory holds eight bytes."""

    def __init__(self, cells: Iterable[CellSummary]) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the summaries)
        self._ends = array("Q", [0])
        self._reading = threading.Lock()
        encode = msgspec.json.Encoder().encode
        for cell in cells:
            self._ends.append(self._ends[-1] + self._file.write(encode(cell)))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> CellSummary: ...
    @overload
    def __getitem__(self, index: slice) -> list[CellSummary]: ...
    def __getitem__(self, index: int | slice) -> CellSummary | list[CellSummary]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        with self._reading:
            self._file.seek(self._ends[at])
            return _decode_summary(self._file.read(self._ends[at + 1] - self._ends[at]))


_decode_summary = msgspec.json.Decoder(CellSummary).decode
