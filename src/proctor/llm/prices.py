"""The price of a model call, a span and a trace: one rule for trials, live traces and providers.

    price_trace(trace, settings.price_table())

A price the user gave wins over the cost a producer recorded, which wins over the published
tables of the installed `genai-prices` (no network). An unknown price is None, never 0, because a
zero price silently disables every limit on money.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import cache, lru_cache
from operator import mul
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from proctor.strict import Strict, read_strict
from proctor.trace import Span, SpanKind, Trace
from proctor.trace.conventions.values import count, first

# Prices are per million tokens, as providers publish them.
_PER_TOKENS = 1_000_000


LINEAR_TOKENS = 30_000
"""Tokens below which no published price has tiers: the lowest tier begins at 32,000."""

# Number of tokens priced to derive the price of one.
_SAMPLE_TOKENS = 10_000

# Seconds to cache a price per token: some models are cheaper at night.
_REMEMBER_SECONDS = 3600

_PROVIDER_KEYS = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system")
# The dotted names are those of the OpenTelemetry conventions; the others are older spellings that
# Anthropic's, Traceloop's and other instrumentations still write.
_CACHE_READ_KEYS = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read",
)
_CACHE_WRITE_KEYS = (
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_creation_input_tokens",
    "gen_ai.usage.cache_write.input_tokens",
    "llm.token_count.prompt_details.cache_write",
)
_PRICING_KEYS = frozenset((*_PROVIDER_KEYS, *_CACHE_READ_KEYS, *_CACHE_WRITE_KEYS))

# Names instrumentations give a provider, where the price tables use another.
_PROVIDER_ALIASES = {
    alias: name
    for name, aliases in {
        "aws": "amazon-bedrock amazon_bedrock aws.bedrock aws_bedrock bedrock",
        "azure": "az.ai.inference az.ai.openai azure.ai.inference azure.ai.openai azure_ai",
        "google": "gcp.gemini gcp.gen_ai gcp.vertex_ai vertexai vertex_ai gemini google-gla "
        "google-vertex google_genai models",
        "mistral": "mistralai mistral_ai",
        "openai": "openai-chat openai-responses",
        "together": "together_ai togetherai",
        "fireworks": "fireworks_ai",
        "x-ai": "xai x_ai",
    }.items()
    for alias in aliases.split()
}

# What instrumentations of frameworks write where the provider belongs: it says nothing about who
# serves the model. A list, because any other unknown name may be a server with its own prices.
_FRAMEWORKS = frozenset(
    "ag2 agentframework agno aikoog aisdk anthropicagentsdk autogen beeai camelai claudeagentsdk "
    "crewai dspy gcpvertexagent genkit googleadk haystack ibmbeeai instructor koog langchain "
    "langchain4j langgraph litellm litellmproxy llamaindex mastra microsoftagentframework "
    "openaiagents pydanticai semantickernel smolagents springai strands strandsagents vercel "
    "vercelai".split()
)


Counts = tuple[int, int, int, int]
"""Tokens of a call: input (all of it), output, read from a cache, written to one."""

Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ModelPrice(Strict):
    """Dollars per million tokens. If a part is None, so is the cost of a call that uses it."""

    model_config = ConfigDict(strict=True)

    input: Dollars | None = None
    output: Dollars | None = None
    cached_input: Dollars | None = None
    cache_write: Dollars | None = None


class PriceTable:
    """A user's own prices, by `model` or `provider:model` (the longer name wins).

    A value is `{input: 0.15, output: 0.6, cached_input: 0.075}` in dollars per million tokens,
    or the name of a published model whose prices apply: `"openai:gpt-4o-mini"`.
    """

    def __init__(self, prices: Mapping[str, Any] | None = None) -> None:
        self._prices: dict[str, ModelPrice | str] = {
            name: value
            if isinstance(value, str)
            else read_strict(ModelPrice, value, f"prices[{name!r}]")
            for name, value in (prices or {}).items()
        }

    def __bool__(self) -> bool:
        return bool(self._prices)

    def find(self, model: str, provider: str | None) -> ModelPrice | str | None:
        """Return the user's price of a model, the published model it is priced as, or None."""
        served = _served_model(model, provider)
        for name, at in ((model, provider), served):
            for place in (at, _published_name(at)) if at else ():
                if (price := self._prices.get(f"{place}:{name}")) is not None:
                    return price
            if (price := self._prices.get(name)) is not None:
                return price
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that `PriceTable(...)` reads again, to send to another process."""
        return {
            name: price if isinstance(price, str) else price.model_dump()
            for name, price in self._prices.items()
        }


def price_trace(trace: Trace, prices: PriceTable | None = None) -> None:
    """Set the cost of each model call of a trace, as `price_span` does."""
    before = [span.cost_usd for span in trace.spans]
    for span in trace.spans:
        price_span(span, prices)
    if before != [span.cost_usd for span in trace.spans]:
        trace.forget()  # totals that were computed from the old costs


def price_span(span: Span, prices: PriceTable | None = None) -> None:
    """Set the cost of a model call; a call that cannot be priced keeps the cost it has."""
    if span.kind is not SpanKind.LLM or not span.model:
        return
    tokens_in, tokens_out = span.input_tokens, span.output_tokens
    if tokens_in is None or tokens_out is None:
        return
    model, attributes = span.model[:200], span.attributes
    provider, cached, written = None, 0, 0
    if not _PRICING_KEYS.isdisjoint(attributes):  # one test, since most calls have none of them
        named = first(attributes, _PROVIDER_KEYS)
        provider = named if isinstance(named, str) and named else None
        cached = count(first(attributes, _CACHE_READ_KEYS)) or 0
        written = count(first(attributes, _CACHE_WRITE_KEYS)) or 0
    counts = (tokens_in, tokens_out, cached, written)
    own = prices.find(model, provider) if prices else None
    if own is not None:
        cost = _own_cost(own, counts)
        span.cost_usd = span.cost_usd if cost is None else cost
    elif span.cost_usd is None:
        span.cost_usd = _published_cost_from_rates(model, provider, counts)


def cost_usd(
    model: str,
    provider: str | None = None,
    *,
    input_tokens: int | None,
    output_tokens: int | None,
    cached_tokens: int | None = None,
    cache_write_tokens: int | None = None,
    prices: PriceTable | None = None,
) -> float | None:
    """Return the dollars of one call, or None when its tokens or its price are unknown.

    `input_tokens` includes the cached ones. Without a provider the published table is searched
    for the model's name.
    """
    if input_tokens is None or output_tokens is None:
        return None
    counts = (input_tokens, output_tokens, cached_tokens or 0, cache_write_tokens or 0)
    own = prices.find(model, provider) if prices else None
    return _published_cost(model, provider, counts) if own is None else _own_cost(own, counts)


def no_price(name: str, prices: PriceTable | None = None) -> str | None:
    """Return a remark on a model, as users name it, that has no price: its name may be wrong."""
    provider, _, model = name.rpartition(":") if ":" in name else name.rpartition("/")
    provider = provider.rpartition("/")[2] or None
    if cost_usd(model, provider, input_tokens=1, output_tokens=1, prices=prices) is not None:
        return None
    return f"{name} has no published price: check the name, or add a price under `prices`"


def _own_cost(price: ModelPrice | str, counts: Counts) -> float | None:
    if isinstance(price, str):
        provider, _, model = price.rpartition(":")
        return _published_cost(model, provider or None, counts)
    tokens_in, tokens_out, cached, written = counts
    plain = max(tokens_in - cached - written, 0)
    # A missing cache price is the price of plain input.
    lines = (
        (plain, price.input),
        (cached, price.input if price.cached_input is None else price.cached_input),
        (written, price.input if price.cache_write is None else price.cache_write),
        (tokens_out, price.output),
    )
    total = 0.0
    for tokens, dollars in lines:
        if tokens and dollars is None:
            return None
        total += tokens * (dollars or 0.0)
    return total / _PER_TOKENS


@cache
def load_published_prices() -> None:
    """Import the published tables and price one call, which takes half a second the first time."""
    _published_cost("gpt-4o-mini", "openai", (1, 1, 0, 0))


def _published_cost(model: str, provider: str | None, counts: Counts) -> float | None:
    from genai_prices import Usage, calc_price

    tokens_in, tokens_out, cached, written = counts
    usage = Usage(
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cache_read_tokens=cached,
        cache_write_tokens=written,
    )
    name = _published_name(provider) if provider else None
    priced = None
    # The whole name first: a router lists models under the names of their makers.
    for served, at in dict.fromkeys(((model, name), _served_model(model, name))):
        try:
            priced = calc_price(usage, served, provider_id=at)
            break
        except (LookupError, ValueError, ArithmeticError, TypeError):
            continue  # an unknown model, or numbers no call can have
    if priced is None:
        return None
    # Some entries of the table are models without token prices; their sum of nothing is not 0.
    table = vars(priced.model_price)
    for tokens, key in ((tokens_in, "input_mtok"), (tokens_out, "output_mtok")):
        if tokens and table.get(key) is None:
            return None
    return float(priced.total_price)


def _published_cost_from_rates(model: str, provider: str | None, counts: Counts) -> float | None:
    """Return `_published_cost`, thousands of times faster for calls below `LINEAR_TOKENS`.

    The live store prices tens of thousands of spans a second, so the table is read once an hour
    for each model instead of for each call.
    """
    rates = _published_rates(model, provider, int(time.time()) // _REMEMBER_SECONDS)
    if rates is None:
        return None
    tokens_in, tokens_out, cached, written = counts
    plain = tokens_in - cached - written
    if not rates or max(tokens_in, tokens_out) > LINEAR_TOKENS or plain < 0:
        return _published_cost(model, provider, counts)
    return sum(map(mul, (plain, tokens_out, cached, written), rates))


@lru_cache(maxsize=4096)
def _published_rates(model: str, provider: str | None, hour: int) -> tuple[float, ...] | None:
    """Return a model's dollars for each plain input, output, cached and written token.

    Empty if they are not all known; None for a model without a price.
    """
    del hour  # part of the cache key only
    tokens = _SAMPLE_TOKENS
    if _published_cost(model, provider, (tokens, tokens, 0, 0)) is None:
        return None
    samples = ((tokens, 0, 0, 0), (0, tokens, 0, 0), (tokens, 0, tokens, 0), (tokens, 0, 0, tokens))
    costs = [_published_cost(model, provider, sample) for sample in samples]
    rates = tuple(cost / tokens for cost in costs if cost is not None)
    return rates if len(rates) == len(samples) else ()


def _published_name(provider: str) -> str | None:
    """Return a provider's name in the price tables; None for a framework's name."""
    lower = provider.lower()
    if re.sub(r"[^a-z0-9]", "", lower) in _FRAMEWORKS:
        return None
    return _PROVIDER_ALIASES.get(lower, lower)


def _served_model(model: str, provider: str | None) -> tuple[str, str | None]:
    """Return a model's own name and its provider for a name such as `openai/gpt-4o-mini`.

    A prefix that contradicts a known provider is part of the name.
    """
    known = _published_name(provider) if provider else None
    prefix, mark, rest = model.partition("/" if "/" in model else ":")
    named = _published_name(prefix) if mark else None
    if not rest or named is None or known not in (None, named):
        return model, known
    return rest, named
