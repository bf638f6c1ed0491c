"""Run the checks of a case over one trial.

Checks run in the documented order: correctness, path, cost; judges last within correctness, and
only while no deterministic check has failed. A check that raises becomes a result with its reason,
and every check has a result. Checks that may take a while run in a thread, since the event loop
also runs the agents whose latency is measured.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from inspect import isawaitable
from typing import Any

import msgspec

from proctor.background import threads
from proctor.checks.base import (
    FAILED,
    NOT_REACHED,
    Check,
    CheckContext,
    CheckResult,
    CheckResults,
    CheckStatus,
    Layer,
    Results,
    not_judged,
    skipped,
    unobserved,
    unscored,
)
from proctor.errors import describe_error
from proctor.sanitize import json_bytes, valid_unicode
from proctor.trace.model import CUT

MAX_VALUE = 1000
"""Characters of `expected` and `actual` in a result; the answer itself is in the trial."""

SMALL_ANSWER, SMALL_TRACE = 100_000, 1_000
"""Characters and spans up to which a quick check is quick."""


async def evaluate(checks: Sequence[Check], ctx: CheckContext[Any]) -> CheckResults:
    """Run checks in order and return a result for each."""
    results: list[CheckResult] = []
    small = len(ctx.answer) <= SMALL_ANSWER and len(ctx.trace.spans) <= SMALL_TRACE
    # Of a recorded trace: what the answer went on with may have passed or failed the check.
    length = ctx.trace.metadata.get(CUT) if ctx.trace.metadata else None
    cut = None
    if length is not None:
        why = f"the recorded trace holds only the start of the answer ({length} characters)"
        cut = not_judged("unobserved", why)
    for check in checks:
        found: Results
        blocker = None
        if check.judged:  # no money is spent on an answer that already failed
            blocker = next((r.id for r in results if r.status is CheckStatus.FAIL), None)
        if blocker is not None:
            found = skipped(f"{NOT_REACHED} {blocker} already failed")
        else:
            try:
                needs = check.needs
                if cut is not None and check.layer is Layer.CORRECTNESS:
                    returned = cut
                elif needs and (lacking := unobserved(ctx.trace, *needs)) is not None:
                    returned = lacking
                elif check.judged or (small and check.quick):
                    returned = check.evaluate(ctx)
                else:
                    returned = await threads.finish(check.evaluate, ctx)
                # The common case first: `isawaitable` is slow for the many checks of many trials.
                if isinstance(returned, CheckResult) or not isawaitable(returned):
                    found = returned
                else:
                    found = await returned
            # A check that calls sys.exit, or raises as Ctrl-C or a cancelled task do, must not end
            # the run; a trial that was cancelled must.
            except BaseException as error:
                task = asyncio.current_task()
                if isinstance(error, GeneratorExit) or (
                    isinstance(error, asyncio.CancelledError) and task and task.cancelling()
                ):
                    raise
                if (
                    isinstance(error, KeyboardInterrupt)
                    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
                ):
                    raise
                # The check is broken, not the agent.
                found = unscored(
                    f"the check itself failed: {type(error).__name__}: {describe_error(error)}"
                )
        kind = check.check
        check_id = check.id or kind
        named = {"": found} if isinstance(found, CheckResult) else found
        for name, result in named.items():
            status, weight, blocking = result.status, check.counted, check.blocking
            if status in FAILED:
                status = CheckStatus.FAIL if blocking else CheckStatus.WARN
            elif status is CheckStatus.METRIC:  # recorded only
                weight, blocking = 0.0, False
            results.append(
                msgspec.structs.replace(
                    result,
                    id=f"{check_id}.{valid_unicode(name)}" if name else check_id,
                    check=kind,
                    reason=valid_unicode(result.reason),
                    layer=check.layer,
                    status=status,
                    weight=weight,
                    blocking=blocking,
                    expected=_bounded(result.expected),
                    actual=_bounded(result.actual),
                )
            )
    return CheckResults(results)


def _bounded(value: Any) -> Any:
    """Return a value, or the start of it if it is long: many checks hold the same answer."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json_bytes(value).decode()
    if len(text) <= MAX_VALUE:
        return value
    return f"{text[:MAX_VALUE]}… [cut after {MAX_VALUE:,} of {len(text):,} characters]"
