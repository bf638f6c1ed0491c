"""What a model call of a live trace costs, where its producer did not say so.

Promise: the same published prices as in trials; a model, provider or number of tokens that is not
known leaves the cost unknown. The table is asked once an hour for each model, not for each call:
below `LINEAR` tokens a price is so much for each token, beyond it (tiers) the table is asked.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import NamedTuple

from proctor.llm.prices import cost_usd
from proctor.trace import Span, SpanKind
from proctor.trace.conventions.values import count, first

LINEAR = 30_000
"""Tokens up to which no published price has tiers: the lowest begins at 32,000."""

SAMPLE = 10_000
"""Tokens that are priced to learn what one costs."""

EVERY = 3600
"""Seconds for which a price is remembered: some are lower at night."""

_PROVIDERS = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system")
_CACHED = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read",
)
_WRITTEN = (
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_creation_input_tokens",
    "llm.token_count.prompt_details.cache_write",
)
_ASKED = frozenset((*_PROVIDERS, *_CACHED, *_WRITTEN))
# What instrumentations call a provider, where the price table has another name for it.
_NAMES = {
    "aws.bedrock": "aws",
    "aws_bedrock": "aws",
    "bedrock": "aws",
    "az.ai.inference": "azure",
    "az.ai.openai": "azure",
    "azure.ai.inference": "azure",
    "azure.ai.openai": "azure",
    "gcp.gemini": "google",
    "gcp.gen_ai": "google",
    "gcp.vertex_ai": "google",
    "vertexai": "google",
    "vertex_ai": "google",
    "mistralai": "mistral",
    "mistral_ai": "mistral",
    "xai": "x-ai",
    "x_ai": "x-ai",
}


class _Rates(NamedTuple):
    """Dollars for each token; None where one call after the other must be priced."""

    input: float
    output: float
    cached: float
    written: float


def warm() -> None:
    """Read the price table now, which takes a moment, rather than at the first call."""
    _rates("gpt-4o-mini", None, int(time.time()) // EVERY)


def fill_cost(span: Span) -> None:
    """Set the cost of a model call that names a model and its tokens but no cost."""
    if span.kind is not SpanKind.LLM or span.cost_usd is not None or not span.model:
        return
    tokens_in, tokens_out = span.input_tokens, span.output_tokens
    if tokens_in is None or tokens_out is None:
        return
    given = span.attributes
    provider, cached, written = None, 0, 0
    if not _ASKED.isdisjoint(given):  # in one look, since most calls say nothing of all this
        named = first(given, _PROVIDERS)
        provider = named.lower() if isinstance(named, str) and named else None
        cached, written = count(first(given, _CACHED)) or 0, count(first(given, _WRITTEN)) or 0
    span.cost_usd = _cost(
        span.model[:200],
        _NAMES.get(provider, provider) if provider else None,
        (tokens_in, tokens_out, cached, written),
    )


def _cost(model: str, provider: str | None, tokens: tuple[int, int, int, int]) -> float | None:
    known, rates = _rates(model, provider, int(time.time()) // EVERY)
    if not known:
        return None
    tokens_in, tokens_out, cached, written = tokens
    plain = tokens_in - cached - written
    if rates is None or max(tokens_in, tokens_out) > LINEAR or plain < 0:
        return _asked(model, provider, tokens)
    return (
        plain * rates.input
        + tokens_out * rates.output
        + cached * rates.cached
        + written * rates.written
    )


def _asked(model: str, provider: str | None, tokens: tuple[int, int, int, int]) -> float | None:
    try:
        return cost_usd(
            model,
            provider,
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            cached_tokens=tokens[2],
            cache_write_tokens=tokens[3],
        )
    except (ArithmeticError, TypeError):
        return None  # numbers no call can have


@lru_cache(maxsize=4096)
def _rates(model: str, provider: str | None, hour: int) -> tuple[bool, _Rates | None]:
    """Whether a model has a price, and what each of its tokens costs."""
    del hour  # it only ends what is remembered
    samples = (
        (SAMPLE, 0, 0, 0),
        (0, SAMPLE, 0, 0),
        (SAMPLE, 0, SAMPLE, 0),
        (SAMPLE, 0, 0, SAMPLE),
    )
    if _asked(model, provider, (SAMPLE, SAMPLE, 0, 0)) is None:
        return False, None
    prices = [_asked(model, provider, sample) for sample in samples]
    known = [price / SAMPLE for price in prices if price is not None]
    return True, _Rates(*known) if len(known) == len(samples) else None
