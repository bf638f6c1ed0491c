"""Put a price on the model calls of a trace that came without one."""

from __future__ import annotations

from proctor.llm.prices import PriceTable, cost_usd
from proctor.trace import SpanKind, Trace


def price_calls(trace: Trace, prices: PriceTable | None = None) -> None:
    """Fill `cost_usd` of model spans from price tables; unknown prices stay None."""
    priced = False
    for span in trace.spans:
        if span.kind != SpanKind.LLM or span.cost_usd is not None or span.model is None:
            continue
        provider = span.attributes.get("gen_ai.provider.name") or span.attributes.get(
            "gen_ai.system"
        )
        span.cost_usd = cost_usd(
            span.model,
            provider if isinstance(provider, str) else None,
            input_tokens=span.input_tokens,
            output_tokens=span.output_tokens,
            prices=prices,
        )
        priced = priced or span.cost_usd is not None
    if priced:
        trace.forget()
