"""Layer 3, cost: what did it take? A failure warns.

Every check is a field of `CostChecks` and a function of the same name. What the trace does not
tell (a price, a token count) is skipped with the reason; a known part that is already over the
limit fails all the same.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from proctor.checks.fields import Count, Limit, Number
from proctor.checks.registry import CheckContext, check
from proctor.checks.result import Layer, Outcome, broken, held, skipped
from proctor.checks.view import milliseconds
from proctor.strict import Strict
from proctor.trace import Span, Trace
from proctor.words import at_least, dollars


class CostChecks(Strict):
    """What may it take? A failure warns."""

    max_cost_usd: Limit | None = None
    """The most money, in US dollars."""
    max_total_tokens: Count | None = None
    """The most tokens, read and written."""
    max_llm_calls: Count | None = None
    """The most model calls."""
    max_latency_ms: Limit | None = None
    """The longest time from the first start to the last end, in milliseconds."""
    max_cost_multiplier: Annotated[float, Number, Field(gt=0, allow_inf_nan=False)] | None = None
    """The most money as a multiple of the baseline's."""
    blocking: bool = False
    """Whether a failure makes the trial a hard failure."""


@check(Layer.COST)
def max_cost_usd(options: CostChecks, context: CheckContext) -> Outcome:
    """It cost no more than allowed."""
    return cost_at_most(context.trace, options.max_cost_usd or 0.0)


@check(Layer.COST)
def max_total_tokens(options: CostChecks, context: CheckContext) -> Outcome:
    """It took no more tokens than allowed."""
    limit = options.max_total_tokens or 0
    total = context.trace.total_tokens
    if total is None:
        return skipped("the trace tells no token counts", expected=limit)
    uncounted = _uncounted(context.trace)
    details: dict[str, Any] = {"expected": limit, "actual": total}
    ids = _ids([span for span in context.trace.llm_calls if span.input_tokens is not None])
    if total > limit:
        least = "at least " if uncounted else ""
        return broken(
            f"{least}{total:,} tokens, at most {limit:,} allowed", span_ids=ids, **details
        )
    if uncounted:
        return skipped(
            f"{len(uncounted)} of {context.trace.usage.calls} model calls tell no tokens; the "
            f"others take {total:,} of at most {limit:,}",
            span_ids=_ids(uncounted),
            **details,
        )
    return held(f"{total:,} tokens, at most {limit:,} allowed", **details)


@check(Layer.COST)
def max_llm_calls(options: CostChecks, context: CheckContext) -> Outcome:
    """It took no more model calls than allowed."""
    limit = options.max_llm_calls or 0
    calls = context.trace.llm_calls
    details: dict[str, Any] = {"expected": limit, "actual": len(calls)}
    told = f"{len(calls)} model calls, at most {limit} allowed"
    if len(calls) <= limit:
        return held(told, **details)
    return broken(told, span_ids=_ids(calls[limit:]), **details)


@check(Layer.COST)
def max_latency_ms(options: CostChecks, context: CheckContext) -> Outcome:
    """It took no longer than allowed."""
    limit = options.max_latency_ms or 0.0
    taken = milliseconds(context.trace.duration)
    if taken is None:
        return skipped("no span of the trace has ended, so its duration is unknown", expected=limit)
    details: dict[str, Any] = {"expected": limit, "actual": taken}
    told = f"{taken:,.0f} ms, at most {limit:,.0f} ms allowed"
    if taken <= limit:
        return held(told, **details)
    slowest = _slowest(context.trace)
    if slowest is None:
        return broken(told, **details)
    where = f"{slowest.name} took {(slowest.duration or 0) * 1000:,.0f} ms"
    return broken(f"{told}; slowest: {where}", span_ids=(slowest.span_id,), **details)


@check(Layer.COST)
def max_cost_multiplier(options: CostChecks, context: CheckContext) -> Outcome:
    """It cost no more than so many times the baseline."""
    most = options.max_cost_multiplier or 1.0
    if context.baseline is None:
        return skipped("there is no baseline to compare the cost with", expected=most)
    before = context.baseline.usage
    if not before.cost_usd or before.unpriced:
        what = "is 0" if before.cost_usd == 0 else "is not (wholly) known"
        return skipped(f"the cost of the baseline {what}", expected=most)
    return cost_at_most(
        context.trace,
        before.cost_usd * most,
        f" ({most:g} × the baseline's {dollars(before.cost_usd)})",
    )


def cost_at_most(trace: Trace, limit: float, why: str = "") -> Outcome:
    """Whether a trace cost at most so much; unknown prices leave it open unless already over."""
    usage = trace.usage
    known = usage.cost_usd
    if known is None:
        told = f"none of {usage.calls} model calls has a known price" if usage.calls else "no price"
        return skipped(f"the cost is unknown: {told}", expected=limit)
    details: dict[str, Any] = {"expected": limit, "actual": known}
    if known > limit:
        priced = [span for span in trace.index.spans if span.cost_usd]
        dearest = sorted(priced, key=lambda span: -(span.cost_usd or 0.0))
        return broken(
            f"{at_least(known, usage.unpriced)}, at most {dollars(limit)} allowed{why}",
            span_ids=_ids(dearest[:5]),
            **details,
        )
    if usage.unpriced:
        return skipped(
            f"{usage.unpriced} of {usage.calls} model calls have no known price; the others cost "
            f"{dollars(known)} of at most {dollars(limit)}{why}",
            **details,
        )
    return held(f"{dollars(known)}, at most {dollars(limit)} allowed{why}", **details)


def _uncounted(trace: Trace) -> list[Span]:
    """Model calls that worked and tell no tokens, where others tell theirs."""
    calls = trace.llm_calls
    silent = [s for s in calls if s.input_tokens is None and s.output_tokens is None]
    return [s for s in silent if not s.failed] if len(silent) < len(calls) else []


def _slowest(trace: Trace) -> Span | None:
    """The longest span that is not merely around others."""
    parents = {span.parent_id for span in trace.spans}
    leaves = [s for s in trace.spans if s.span_id not in parents and s.duration is not None]
    return max(leaves, key=lambda span: span.duration or 0.0, default=None)


def _ids(spans: list[Span]) -> tuple[str, ...]:
    return tuple(span.span_id for span in spans)
