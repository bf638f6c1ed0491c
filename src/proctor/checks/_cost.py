"""Checks of what a trial used: MaxCost, MaxTokens, MaxLLMCalls, MaxLatency, MaxCostRatio.

A check is not judged, with the reason, when the trace lacks model calls, a price or a token count,
and still fails when the known part alone is over the limit.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from proctor.checks.base import (
    Check,
    CheckContext,
    CheckResult,
    Count,
    Layer,
    Limit,
    PositiveNumber,
    failed,
    milliseconds,
    not_judged,
    passed,
    skipped,
    unobserved,
)
from proctor.formatting import at_least, dollars
from proctor.trace import Span, Trace
from proctor.trace.model import Observable


class _CostCheck(Check):
    layer: ClassVar[Layer] = Layer.COST
    quick: ClassVar[bool] = True


class MaxCost(_CostCheck):
    """The trial cost no more than this, in US dollars.

    Example: `MaxCost(0.01)`.
    """

    name: ClassVar[str] = "max_cost_usd"
    usd: Limit = Field(kw_only=False)

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        return _cost_at_most(ctx.trace, self.usd)


class MaxTokens(_CostCheck):
    """The trial took no more tokens than this, input and output together.

    Example: `MaxTokens(2000)`.
    """

    name: ClassVar[str] = "max_total_tokens"
    tokens: Count = Field(kw_only=False)

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        limit, trace = self.tokens, ctx.trace
        total = trace.total_tokens
        calls = trace.llm_calls
        if total is None and not calls:
            return unobserved(trace, "model_calls") or passed(
                "no tokens: no model was called", expected=limit, actual=0
            )
        if total is None:
            return not_judged("unobserved", "the trace has no token counts", expected=limit)
        # A failed call has no usage to report, so it does not make the total incomplete.
        silent = [s for s in calls if s.input_tokens is None and s.output_tokens is None]
        # Where no call at all reports tokens, the total comes from elsewhere and is complete.
        uncounted = [s for s in silent if not s.failed] if len(silent) < len(calls) else []
        details: dict[str, Any] = {"expected": limit, "actual": total}
        if total > limit:
            least = "at least " if uncounted else ""
            return failed(
                f"{least}{total:,} tokens, at most {limit:,} allowed",
                span_ids=_ids([span for span in calls if span.input_tokens is not None]),
                **details,
            )
        if uncounted:
            return not_judged(
                "unobserved",
                f"{len(uncounted)} of {trace.usage.calls} model calls have no token count; the "
                f"others used {total:,} of at most {limit:,}",
                span_ids=_ids(uncounted),
                **details,
            )
        return passed(f"{total:,} tokens, at most {limit:,} allowed", **details)


class MaxLLMCalls(_CostCheck):
    """The trial took no more model calls than this.

    Example: `MaxLLMCalls(3)`.
    """

    name: ClassVar[str] = "max_llm_calls"
    calls: Count = Field(kw_only=False)

    @property
    def needs(self) -> tuple[Observable, ...]:
        """Model calls."""
        return ("model_calls",)

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        calls = ctx.trace.llm_calls
        details: dict[str, Any] = {"expected": self.calls, "actual": len(calls)}
        reason = f"{len(calls)} model calls, at most {self.calls} allowed"
        if len(calls) <= self.calls:
            return passed(reason, **details)
        return failed(reason, span_ids=_ids(calls[self.calls :]), **details)


class MaxLatency(_CostCheck):
    """The trial took no longer than this from the first start to the last end, in milliseconds.

    Example: `MaxLatency(5000)`.
    """

    name: ClassVar[str] = "max_latency_ms"
    ms: Limit = Field(kw_only=False)

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        limit, trace = self.ms, ctx.trace
        duration = milliseconds(trace.duration)
        if duration is None:
            return skipped(
                "no span of the trace has ended, so its duration is unknown", expected=limit
            )
        details: dict[str, Any] = {"expected": limit, "actual": duration}
        reason = f"{duration:,.0f} ms, at most {limit:,.0f} ms allowed"
        if duration <= limit:
            return passed(reason, **details)
        # Only leaves: a span around others is slow because they are.
        parents = {span.parent_id for span in trace.spans}
        leaves = [s for s in trace.spans if s.span_id not in parents and s.duration is not None]
        slowest = max(leaves, key=lambda span: span.duration or 0.0, default=None)
        if slowest is None:
            return failed(reason, **details)
        where = f"{slowest.name} took {(slowest.duration or 0) * 1000:,.0f} ms"
        return failed(f"{reason}; slowest: {where}", span_ids=(slowest.span_id,), **details)


class MaxCostRatio(_CostCheck):
    """The trial cost no more than this many times what its baseline cost.

    Example: `MaxCostRatio(1.5)`.
    """

    name: ClassVar[str] = "max_cost_multiplier"
    ratio: PositiveNumber = Field(kw_only=False)

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        if ctx.baseline is None:
            return skipped("there is no baseline to compare the cost with", expected=self.ratio)
        before = ctx.baseline.usage
        # A multiple of 0 would be 0, and a partial sum would make the limit too strict.
        if not before.cost_usd or before.unpriced:
            whose = f"the cost of {ctx.baseline_name}"
            if before.cost_usd == 0:
                return skipped(f"{whose} is 0", expected=self.ratio)
            return not_judged("unpriced", f"{whose} is not (wholly) known", expected=self.ratio)
        return _cost_at_most(
            ctx.trace,
            before.cost_usd * self.ratio,
            f" ({self.ratio:g} × the {dollars(before.cost_usd)} of {ctx.baseline_name})",
        )


def _cost_at_most(trace: Trace, limit: float, basis: str = "") -> CheckResult:
    """Judge a limit; where prices are unknown, only a known part over the limit decides."""
    usage = trace.usage
    known = usage.cost_usd
    if known is None and not usage.calls:
        return unobserved(trace, "model_calls") or passed(
            "no cost: no model was called", expected=limit, actual=0.0
        )
    if known is None and not usage.unpriced:
        return passed("no cost: no model call was answered", expected=limit, actual=0.0)
    if known is None:
        why_not = f"none of {usage.calls} model calls has a known price"
        return not_judged(
            "unpriced",
            f"the cost is unknown: {why_not}; add one under `prices` in proctor.yaml",
            expected=limit,
        )
    details: dict[str, Any] = {"expected": limit, "actual": known}
    if known > limit:
        priced = [span for span in trace.index.spans if span.cost_usd]
        # The most expensive calls are those to look at.
        dearest = sorted(priced, key=lambda span: -(span.cost_usd or 0.0))
        return failed(
            f"{at_least(known, usage.unpriced)}, at most {dollars(limit)} allowed{basis}",
            span_ids=_ids(dearest[:5]),
            **details,
        )
    # The sum may be over the limit or not: no verdict.
    if usage.unpriced:
        return not_judged(
            "unpriced",
            f"{usage.unpriced} of {usage.calls} model calls have no known price; the others cost "
            f"{dollars(known)} of at most {dollars(limit)}{basis}",
            **details,
        )
    return passed(f"{dollars(known)}, at most {dollars(limit)} allowed{basis}", **details)


def _ids(spans: list[Span]) -> tuple[str, ...]:
    return tuple(span.span_id for span in spans)
