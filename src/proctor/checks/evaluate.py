"""Judge one trial: run the checks of a case over what the agent did.

Promise: checks run in the documented order (correctness, path, cost; judges last within
correctness and only while no deterministic check blocks), a check that raises is a result with
its reason and never a crash, and nothing a user asked for is left out silently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from inspect import isawaitable
from typing import Any, NamedTuple

from proctor.checks.registry import CheckContext, CheckFunction, Outcomes
from proctor.checks.result import (
    CheckResult,
    CheckStatus,
    Judgement,
    Layer,
    Outcome,
    skipped,
    unscored,
)


class PlannedCheck(NamedTuple):
    """One check of a case, ready to run: what, where it counts, and how much.

    `deterministic` checks decide before any judge is asked.
    """

    id: str
    check: str
    layer: Layer
    options: Any
    run: CheckFunction
    weight: float
    blocking: bool
    judged: bool = False


async def evaluate(plan: Sequence[PlannedCheck], context: CheckContext) -> Judgement:
    """Run a case's checks in order; see the module for what is promised."""
    results: list[CheckResult] = []
    for planned in plan:
        blocked_by = _first_failure(results) if planned.judged else None
        if blocked_by is not None:
            outcomes: Outcomes = skipped(f"not judged: {blocked_by} already failed")
        else:
            outcomes = await _run(planned, context)
        if isinstance(outcomes, Outcome):
            results.append(_result(planned, planned.id, outcomes))
            continue
        for name, outcome in outcomes:
            results.append(_result(planned, f"{planned.id}.{name}", outcome))
    return Judgement(results=tuple(results))


def _first_failure(results: Iterable[CheckResult]) -> str | None:
    return next((result.id for result in results if result.status == CheckStatus.FAIL), None)


async def _run(planned: PlannedCheck, context: CheckContext) -> Outcomes:
    """The outcome of one check; one that raises is unscored: the check is broken, not the agent."""
    try:
        outcomes: Outcomes | Awaitable[Outcomes] = planned.run(planned.options, context)
        if isinstance(outcomes, Outcome) or not isawaitable(outcomes):
            return outcomes
        return await outcomes
    except Exception as error:  # noqa: BLE001 (checks are users' code; any of them may raise)
        return unscored(f"the check itself failed: {type(error).__name__}: {error}")


def _result(planned: PlannedCheck, check_id: str, outcome: Outcome) -> CheckResult:
    return CheckResult(
        id=check_id,
        check=planned.check,
        layer=planned.layer,
        status=_status(planned, outcome),
        reason=outcome.reason,
        score=outcome.score,
        weight=planned.weight,
        blocking=planned.blocking,
        expected=outcome.expected,
        actual=outcome.actual,
        span_ids=outcome.span_ids,
        method=outcome.method,
        cost_usd=outcome.cost_usd,
    )


def _status(planned: PlannedCheck, outcome: Outcome) -> CheckStatus:
    if outcome.score is None:
        return CheckStatus.UNSCORED if outcome.unscored else CheckStatus.SKIP
    if outcome.holds:
        return CheckStatus.PASS
    return CheckStatus.FAIL if planned.blocking else CheckStatus.WARN
