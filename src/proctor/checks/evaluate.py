"""Run the checks of a case over one trial.

Checks run in the documented order (correctness, path, cost; judges last within correctness and
only while no deterministic check blocks). A check that raises is a result with its reason, never
a crash, and nothing a user wrote is left out silently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from inspect import isawaitable
from typing import Any

import msgspec

from proctor.checks.base import (
    FAILED,
    Check,
    CheckContext,
    CheckResult,
    CheckStatus,
    Judgement,
    Results,
    skipped,
    unscored,
)
from proctor.errors import told


async def evaluate(checks: Sequence[Check], ctx: CheckContext[Any]) -> Judgement:
    """Run checks in order."""
    results: list[CheckResult] = []
    waiting = begin(checks, ctx, results)
    if waiting is not None:
        await waiting
    return Judgement(results=tuple(results))


def begin(
    checks: Sequence[Check], ctx: CheckContext[Any], results: list[CheckResult]
) -> Coroutine[Any, Any, None] | None:
    """Run checks until one has to wait; return the rest, to be awaited.

    Nearly all checks never wait; they are spared the cost of a coroutine.
    """
    for place, check in enumerate(checks):
        answer = _start(check, ctx, results)
        if isawaitable(answer):
            return _continue(checks[place:], answer, ctx, results)
        _add(check, answer, results)
    return None


async def _continue(
    checks: Sequence[Check],
    first: Awaitable[Results],
    ctx: CheckContext[Any],
    results: list[CheckResult],
) -> None:
    """Run the rest of the checks, the first of which has started."""
    answer: Results | Awaitable[Results] = first
    for place, check in enumerate(checks):
        if place:
            answer = _start(check, ctx, results)
        if isawaitable(answer):
            try:
                answer = await answer
            except (Exception, SystemExit) as error:  # noqa: BLE001 (users' code raises anything)
                answer = _raised(error)
        _add(check, answer, results)


def _start(
    check: Check, ctx: CheckContext[Any], results: Iterable[CheckResult]
) -> Results | Awaitable[Results]:
    if check.judged:
        blocked = next((result.id for result in results if result.status == CheckStatus.FAIL), None)
        if blocked is not None:  # no money is spent on an answer that already failed
            return skipped(f"not judged: {blocked} already failed")
    try:
        return check.evaluate(ctx)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (users' code raises anything)
        return _raised(error)


def _raised(error: BaseException) -> CheckResult:
    """A check that raises or exits is unscored: the check is broken, not the agent."""
    return unscored(f"the check itself failed: {type(error).__name__}: {told(error)}")


def _add(check: Check, answer: Results, results: list[CheckResult]) -> None:
    """Record what a check answered under its id, kind, layer and weight."""
    check_id = check.id or check.check
    named = {"": answer} if isinstance(answer, CheckResult) else answer
    for name, result in named.items():
        status, weight, blocking = result.status, check.counted, check.blocking
        if status in FAILED:
            status = CheckStatus.FAIL if blocking else CheckStatus.WARN
        elif status is CheckStatus.METRIC:
            weight, blocking = 0.0, False
        results.append(
            msgspec.structs.replace(
                result,
                id=f"{check_id}.{name}" if name else check_id,
                check=check.check,
                layer=check.layer,
                status=status,
                weight=weight,
                blocking=blocking,
            )
        )
