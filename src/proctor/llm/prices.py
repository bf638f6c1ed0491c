"""What a model call costs, from published price tables that come with the package.

No network: the tables are those of the installed `genai-prices`, and a user's own table goes
before them. A price that is not known is None, never 0, because a zero price silently disables
every limit on money.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from proctor.errors import ProctorError, refuse_unknown

PER_TOKENS = 1_000_000
"""Prices are written per million tokens, as providers publish them."""


class Price(NamedTuple):
    """Dollars per million tokens. A part that is None is not known, and neither is the sum."""

    input: float | None
    output: float | None
    cached_input: float | None = None
    cache_write: float | None = None


class PriceTable:
    """A user's own prices, by `model` or `provider:model` (the longer name wins).

    A value is `{input: 0.15, output: 0.6, cached_input: 0.075}` in dollars per million tokens,
    or the name of a published model whose prices apply: `"openai:gpt-4o-mini"`.
    """

    def __init__(self, prices: Mapping[str, Any] | None = None) -> None:
        self._prices: dict[str, Price | str] = {
            name: _parse(name, value) for name, value in (prices or {}).items()
        }

    def find(self, model: str, provider: str | None) -> Price | str | None:
        """The user's price for a model, the name it is priced as, or None."""
        if provider and (found := self._prices.get(f"{provider}:{model}")) is not None:
            return found
        return self._prices.get(model)


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
    """Dollars for one call, or None when its tokens or its price are not known.

    `input_tokens` includes the cached ones. Without a provider the published table is searched
    for the model's name; `unpriced` names of private endpoints find nothing there.
    """
    if input_tokens is None or output_tokens is None:
        return None
    counts = (input_tokens, output_tokens, cached_tokens or 0, cache_write_tokens or 0)
    own = prices.find(model, provider) if prices else None
    if isinstance(own, Price):
        return _own_cost(own, counts)
    if isinstance(own, str):
        named_provider, _, model = own.rpartition(":")
        provider = named_provider or None
    return _published_cost(model, provider, counts)


def _own_cost(price: Price, counts: tuple[int, int, int, int]) -> float | None:
    tokens_in, tokens_out, cached, written = counts
    plain = max(tokens_in - cached - written, 0)
    # A cache price that was not given is the price of plain input.
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
    return total / PER_TOKENS


def _published_cost(
    model: str, provider: str | None, counts: tuple[int, int, int, int]
) -> float | None:
    from genai_prices import Usage, calc_price

    tokens_in, tokens_out, cached, written = counts
    usage = Usage(
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cache_read_tokens=cached,
        cache_write_tokens=written,
    )
    try:
        priced = calc_price(usage, model, provider_id=provider)
    except (LookupError, ValueError):
        return None
    # Some entries of the table are models without token prices; their sum of nothing is not 0.
    table = vars(priced.model_price)
    for tokens, key in ((tokens_in, "input_mtok"), (tokens_out, "output_mtok")):
        if tokens and table.get(key) is None:
            return None
    return float(priced.total_price)


def _parse(name: str, value: Any) -> Price | str:
    where = f"prices[{name!r}]"
    if isinstance(value, str):
        return value
    if isinstance(value, Price):
        return value
    if not isinstance(value, Mapping):
        raise ProctorError(
            f"a price is a mapping or a model's name, not {type(value).__name__}",
            where=where,
            hint="write {input: 0.15, output: 0.6}, in dollars per million tokens",
        )
    given = cast(Mapping[str, Any], value)
    refuse_unknown(given, Price._fields, where)
    for key, dollars in given.items():
        if dollars is None:
            continue
        number = isinstance(dollars, int | float) and not isinstance(dollars, bool)
        if not number or not math.isfinite(dollars) or dollars < 0:
            raise ProctorError(f"{key} must be a number of dollars, not {dollars!r}", where=where)
    return Price(
        input=given.get("input"),
        output=given.get("output"),
        cached_input=given.get("cached_input"),
        cache_write=given.get("cache_write"),
    )
