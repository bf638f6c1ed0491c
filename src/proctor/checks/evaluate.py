"""Judge one trial: run the checks of a case over what the agent did.

Promise: checks run in the documented order (correctness, path, cost; judges last within
correctness and only while no deterministic check blocks), a check that raises is a result with
its reason and never a crash, and nothing a user asked for is left out silently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable, Sequence
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
from proctor.errors import told


class PlannedCheck(NamedTuple):
    """One check of a case, ready to run: what, where it counts, and how much.

    `judged` ones ask a model: they come last, and only while nothing deterministic blocks.
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
    waiting = begin(plan, context, results)
    if waiting is not None:
        await waiting
    return Judgement(results=tuple(results))


def begin(
    plan: Sequence[PlannedCheck], context: CheckContext, results: list[CheckResult]
) -> Coroutine[Any, Any, None] | None:
    """Run checks until one has to wait; what is returned then is to be awaited and does the rest.

    Nearly all checks never wait, and need not be charged for being able to.
    """
    for place, planned in enumerate(plan):
        outcomes = _run(planned, context, results)
        if isinstance(outcomes, Outcome):
            results.append(_result(planned, planned.id, outcomes))
        elif isawaitable(outcomes):
            return _go_on(plan[place:], outcomes, context, results)
        else:
            _add(planned, outcomes, results)
    return None


async def _go_on(
    plan: Sequence[PlannedCheck],
    first: Awaitable[Outcomes],
    context: CheckContext,
    results: list[CheckResult],
) -> None:
    """The rest of a plan, the first check of which is under way."""
    _add(plan[0], await _awaited(first), results)
    for planned in plan[1:]:
        outcomes = _run(planned, context, results)
        _add(
            planned,
            await _awaited(outcomes) if isawaitable(outcomes) else outcomes,
            results,
        )


def _add(planned: PlannedCheck, outcomes: Outcomes, results: list[CheckResult]) -> None:
    for name, outcome in [("", outcomes)] if isinstance(outcomes, Outcome) else outcomes:
        check_id = f"{planned.id}.{name}" if name else planned.id
        results.append(_result(planned, check_id, outcome))


def _run(
    planned: PlannedCheck, context: CheckContext, results: Iterable[CheckResult]
) -> Outcomes | Awaitable[Outcomes]:
    """The outcome of one check, or what to wait for; `results` are those of earlier checks."""
    if planned.judged:
        failed = next((result.id for result in results if result.status == CheckStatus.FAIL), None)
        if failed is not None:
            return skipped(f"not judged: {failed} already failed")
    try:
        return planned.run(planned.options, context)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (users' code; it may raise anything)
        return _raised(error)


async def _awaited(outcomes: Awaitable[Outcomes]) -> Outcomes:
    try:
        return await outcomes
    except (Exception, SystemExit) as error:  # noqa: BLE001 (as above)
        return _raised(error)


def _raised(error: BaseException) -> Outcome:
    """A check that raises, or leaves, is unscored: the check is broken, not the agent."""
    return unscored(f"the check itself failed: {type(error).__name__}: {told(error)}")


def _result(planned: PlannedCheck, check_id: str, outcome: Outcome) -> CheckResult:
    score, blocking = outcome.score, planned.blocking
    if score is None:
        status = CheckStatus.UNSCORED if outcome.unscored else CheckStatus.SKIP
    elif outcome.holds:
        status = CheckStatus.PASS
    else:
        status = CheckStatus.FAIL if blocking else CheckStatus.WARN
    return CheckResult(
        id=check_id,
        check=planned.check,
        layer=planned.layer,
        status=status,
        reason=outcome.reason,
        score=score,
        weight=planned.weight,
        blocking=blocking,
        expected=outcome.expected,
        actual=outcome.actual,
        span_ids=outcome.span_ids,
        method=outcome.method,
        cost_usd=outcome.cost_usd,
    )
