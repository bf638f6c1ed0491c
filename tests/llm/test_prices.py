"""What a call costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.errors import ProctorError
from proctor.llm import PriceTable, cost_usd


def test_published_prices():
    """R-A4: per call, from the published table: gpt-4o-mini is $0.15 in and $0.60 out a million."""
    cost = cost_usd("gpt-4o-mini", "openai", input_tokens=1000, output_tokens=100)
    assert cost == pytest.approx((1000 * 0.15 + 100 * 0.60) / 1e6)
    dated = cost_usd("gpt-4o-mini-2024-07-18", "openai", input_tokens=1000, output_tokens=100)
    assert dated == cost


def test_cached_tokens_are_cheaper():
    """R-A4: tokens read from a prompt cache have a price of their own."""
    cost = cost_usd("gpt-4o-mini", "openai", input_tokens=1000, output_tokens=0, cached_tokens=1000)
    assert cost == pytest.approx(1000 * 0.075 / 1e6)


@pytest.mark.parametrize(
    ("model", "provider"),
    [("no-such-model", None), ("no-such-model", "openai"), ("gpt-4o-mini", "no-such-provider")],
)
def test_an_unknown_price_is_none(model, provider):
    """R-A4: unknown prices are null, never 0."""
    assert cost_usd(model, provider, input_tokens=10, output_tokens=10) is None


@pytest.mark.parametrize(
    ("model", "provider", "same"),
    [
        ("openai/gpt-4o-mini", None, ("gpt-4o-mini", "openai")),
        ("gemini/gemini-2.5-flash", None, ("gemini-2.5-flash", "google")),
        ("models/gemini-2.5-flash", "gcp.gemini", ("gemini-2.5-flash", "google")),
        ("azure/gpt-4o", None, ("gpt-4o", "azure")),
        ("anthropic:claude-sonnet-4-5", None, ("claude-sonnet-4-5", "anthropic")),
        (
            "openrouter/anthropic/claude-sonnet-4.5",
            None,
            ("anthropic/claude-sonnet-4.5", "openrouter"),
        ),
        ("gpt-4o-mini", "strands-agents", ("gpt-4o-mini", "openai")),
        ("gpt-4o-mini", "LangChain", ("gpt-4o-mini", "openai")),
        ("gpt-4o-mini", "microsoft.agent_framework", ("gpt-4o-mini", "openai")),
        ("gpt-4o-mini", "gcp.vertex.agent", ("gpt-4o-mini", "openai")),
        ("gpt-4o-mini", "spring_ai", ("gpt-4o-mini", "openai")),
        (
            "anthropic.claude-3-haiku-20240307-v1:0",
            "amazon-bedrock",
            ("anthropic.claude-3-haiku-20240307-v1:0", "aws"),
        ),
        ("openai/gpt-4o-mini", "llama_index", ("gpt-4o-mini", "openai")),
    ],
)
def test_prefixes_and_framework_names_do_not_hide_a_price(model, provider, same):
    """R-A4: a provider in front of the model is read; a framework's name is no provider."""
    expected = cost_usd(*same, input_tokens=1000, output_tokens=100)
    assert expected
    assert cost_usd(model, provider, input_tokens=1000, output_tokens=100) == expected
    own = PriceTable({same[0]: {"input": 2.0, "output": 0.0}})
    cost = cost_usd(model, provider, prices=own, input_tokens=1000, output_tokens=100)
    assert cost == pytest.approx(0.002)


def test_another_server_of_a_known_model_has_no_price():
    """R-A4: an unknown provider may have its own prices, whatever the model is called."""
    for model in ("gpt-4o-mini", "openai/gpt-4o-mini", "house/gpt-4o-mini"):
        assert cost_usd(model, "llm.house.example", input_tokens=10, output_tokens=10) is None
    assert cost_usd("house/gpt-4o-mini", input_tokens=10, output_tokens=10) is None


def test_every_entry_without_token_prices_is_none():
    """R-A4: entries of the table that price something else than tokens give None, not 0."""
    from genai_prices.data import providers

    for provider in providers:
        for model in provider.models:
            cost = cost_usd(model.id, provider.id, input_tokens=1000, output_tokens=1000)
            if cost == 0:
                # A published zero (a free tier) is a price; a missing one is not.
                prices = model.prices if isinstance(model.prices, list) else [model.prices]
                flat = [getattr(price, "prices", price) for price in prices]
                assert any(getattr(price, "input_mtok", None) is not None for price in flat)


def test_unknown_tokens_are_an_unknown_cost():
    """R-A4: a call whose tokens nobody counted has no cost."""
    assert cost_usd("gpt-4o-mini", "openai", input_tokens=None, output_tokens=5) is None
    assert cost_usd("gpt-4o-mini", "openai", input_tokens=5, output_tokens=None) is None


TOKENS = st.integers(0, 10**7)
DOLLARS = st.floats(0, 1000)


@given(TOKENS, TOKENS, DOLLARS, DOLLARS)
def test_a_users_price_goes_first(tokens_in, tokens_out, price_in, price_out):
    """R-A4: the user's table overrides the published one."""
    table = PriceTable({"gpt-4o-mini": {"input": price_in, "output": price_out}})
    cost = cost_usd(
        "gpt-4o-mini", "openai", input_tokens=tokens_in, output_tokens=tokens_out, prices=table
    )
    assert cost == pytest.approx((tokens_in * price_in + tokens_out * price_out) / 1e6)


def test_the_longer_name_wins_and_a_name_may_stand_for_another():
    """R-A4: `provider:model` before `model`; a price may be that of a published model."""
    table = PriceTable(
        {
            "m": {"input": 1, "output": 1},
            "house:m": {"input": 2, "output": 2},
            "clone": "openai:gpt-4o-mini",
            "half": {"input": 1},
        }
    )

    def cost(model, provider=None):
        return cost_usd(model, provider, input_tokens=10**6, output_tokens=10**6, prices=table)

    assert (cost("m"), cost("m", "house"), cost("m", "other")) == (2, 4, 2)
    assert cost("clone", "house") == pytest.approx(0.75)
    assert cost("half") is None


@pytest.mark.parametrize(
    ("prices", "says", "hint"),
    [
        ({"m": {"inptu": 1}}, "unknown key 'inptu'", "input"),
        ({"m": {"input": -1}}, "equal to 0", None),
        ({"m": {"input": "1"}}, "valid number", None),
        ({"m": {"input": float("nan")}}, "finite number", None),
        ({"m": 3}, "valid dictionary", None),
    ],
)
def test_slips_in_a_table_are_named(prices, says, hint):
    """R-A4: a wrong price is refused where it is written, not found in a bill."""
    with pytest.raises(ProctorError, match=says) as caught:
        PriceTable(prices)
    assert "'m'" in (caught.value.where or "")
    if hint:
        assert hint in caught.value.hint
