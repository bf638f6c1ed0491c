"""Put a price on the model calls of a trace: the user's own, else what came with it, else ours."""

from __future__ import annotations

from typing import Any

from proctor.llm.prices import PriceTable, cost_usd
from proctor.trace import Span, SpanKind, Trace

_CACHED = ("gen_ai.usage.cache_read.input_tokens", "llm.token_count.prompt_details.cache_read")
_WRITTEN = (
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_write.input_tokens",
    "llm.token_count.prompt_details.cache_write",
)


def price_calls(trace: Trace, prices: PriceTable | None = None) -> None:
    """Fill `cost_usd` of model spans; unknown prices stay None.

    A price the user gave wins over the cost a producer wrote down, which wins over published
    tables.
    """
    changed = False
    for span in trace.spans:
        if span.kind != SpanKind.LLM or span.model is None:
            continue
        provider = _provider(span)
        own = prices is not None and prices.find(span.model, provider) is not None
        if span.cost_usd is not None and not own:
            continue
        span.cost_usd = cost_usd(
            span.model,
            provider,
            input_tokens=span.input_tokens,
            output_tokens=span.output_tokens,
            cached_tokens=_first_count(span, _CACHED),
            cache_write_tokens=_first_count(span, _WRITTEN),
            prices=prices,
        )
        changed = True
    if changed:
        trace.forget()


def _provider(span: Span) -> str | None:
    for key in ("gen_ai.provider.name", "gen_ai.system", "llm.provider"):
        value: Any = span.attributes.get(key)
        if isinstance(value, str):
            return value
    return None


def _first_count(span: Span, keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value: Any = span.attributes.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
