"""Layer 3: every check passing, failing, skipped where the trace does not tell."""

import pytest
from pydantic import ValidationError
from trial_parts import llm, result, tool, trace_of

from proctor.checks.base import CheckStatus
from proctor.checks.layers import CostChecks

PASS, WARN, SKIP = CheckStatus.PASS, CheckStatus.WARN, CheckStatus.SKIP
NOT_JUDGED = CheckStatus.NOT_JUDGED


async def of(trace, baseline=None, **options):
    return await result({"cost": options}, trace, baseline=baseline)


async def test_max_cost_usd():
    """R-C4: money is a soft limit, with the dearest calls named."""
    trace = trace_of(llm(usd=0.01), llm(usd=0.03))
    assert (await of(trace, max_cost_usd=0.04)).status == PASS
    found = await of(trace, max_cost_usd=0.02)
    assert (found.status, found.blocking, found.weight) == (WARN, False, 0.0)
    assert found.reason == "$0.04, at most $0.02 allowed"
    assert (found.actual, found.span_ids) == (pytest.approx(0.04), ("s2", "s1"))


async def test_an_unknown_cost_is_not_judged_and_said():
    """R-C4: no price is not a price of 0, unless no model was called at all."""
    found = await of(trace_of(llm(), llm()), max_cost_usd=1)
    assert (found.status, found.category) == (NOT_JUDGED, "unpriced")
    assert found.reason.startswith("the cost is unknown: none of 2 model calls has a known price")
    assert (await of(trace_of("tool"), max_cost_usd=0)).status == PASS


async def test_a_call_that_was_refused_needs_no_price():
    """R-C4: a rate limit that the client retried leaves the cost as known as without it."""
    refused = llm(tokens=None, failed=True)
    found = await of(trace_of(refused, llm(usd=0.05)), max_cost_usd=0.1)
    assert (found.status, found.actual) == (PASS, pytest.approx(0.05))
    assert (await of(trace_of(refused), max_cost_usd=0.1)).status == PASS


async def test_a_cost_known_in_part_is_a_lower_bound():
    """R-C4: already over the limit fails; under it stays open, because more may be owed."""
    trace = trace_of(llm(usd=0.05), llm())
    over = await of(trace, max_cost_usd=0.01)
    assert (over.status, over.reason) == (WARN, "≥ $0.05, at most $0.01 allowed")
    under = await of(trace, max_cost_usd=0.1)
    assert (under.status, under.category) == (NOT_JUDGED, "unpriced")
    assert under.reason == (
        "1 of 2 model calls have no known price; the others cost $0.05 of at most $0.10"
    )


async def test_max_total_tokens():
    """R-C4: tokens read and written; a count known in part is a lower bound."""
    trace = trace_of(llm(tokens=100, output_tokens=50))
    assert (await of(trace, max_total_tokens=150)).status == PASS
    found = await of(trace, max_total_tokens=149)
    assert (found.status, found.reason) == (WARN, "150 tokens, at most 149 allowed")
    part = await of(trace_of(llm(tokens=100), llm(tokens=None)), max_total_tokens=500)
    assert (part.status, part.category) == (NOT_JUDGED, "unobserved")
    assert part.reason.startswith("1 of 2 model calls have no token count")
    assert (await of(trace_of(llm(tokens=None)), max_total_tokens=1)).status == NOT_JUDGED
    assert (await of(trace_of("tool"), max_total_tokens=0)).status == PASS


async def test_a_failed_call_without_tokens_is_not_missing():
    """R-C4: a call the provider refused took no tokens anyone counted."""
    trace = trace_of(llm(tokens=None, failed=True), llm(tokens=100))
    assert (await of(trace, max_total_tokens=100)).status == PASS


async def test_max_llm_calls():
    """R-C4: model calls are counted, those over the limit named."""
    trace = trace_of(llm(), "tool", llm())
    assert (await of(trace, max_llm_calls=2)).status == PASS
    found = await of(trace, max_llm_calls=1)
    assert (found.status, found.span_ids) == (WARN, ("s3",))
    assert found.reason == "2 model calls, at most 1 allowed"


async def test_max_latency_ms():
    """R-C4: time from the first start to the last end, and where it went."""
    trace = trace_of(tool("slow", ms=900), tool("fast", ms=100))
    assert (await of(trace, max_latency_ms=1000)).status == PASS
    found = await of(trace, max_latency_ms=500)
    assert found.reason == "1,000 ms, at most 500 ms allowed; slowest: slow took 900 ms"
    assert found.span_ids == ("s1",)
    assert (await of(trace_of(), max_latency_ms=1)).status == SKIP


async def test_max_cost_multiplier():
    """R-C4: against a baseline; skipped, and said so, without one."""
    now, before = trace_of(llm(usd=0.03)), trace_of(llm(usd=0.02))
    assert (await of(now, before, max_cost_multiplier=1.5)).status == PASS
    found = await of(now, before, max_cost_multiplier=1.2)
    assert found.status == WARN
    assert found.reason == "$0.03, at most $0.024 allowed (1.2 × the $0.02 of the baseline)"
    alone = await of(now, max_cost_multiplier=2)
    assert (alone.status, alone.reason) == (
        SKIP,
        "there is no baseline to compare the cost with",
    )
    unknown = await of(now, trace_of(llm()), max_cost_multiplier=2)
    assert (unknown.status, unknown.reason) == (
        NOT_JUDGED,
        "the cost of the baseline is not (wholly) known",
    )


@pytest.mark.parametrize(
    "options",
    [
        {"max_cost_usd": -0.01},
        {"max_cost_usd": float("inf")},
        {"max_total_tokens": -1},
        {"max_total_tokens": 1.5},
        {"max_llm_calls": True},
        {"max_latency_ms": -1},
        {"max_cost_multiplier": 0},
    ],
)
def test_limits_that_cannot_be_meant_are_refused(options):
    """R-C4: negative, endless or boolean limits never reach a run."""
    with pytest.raises(ValidationError):
        CostChecks.model_validate(options)
