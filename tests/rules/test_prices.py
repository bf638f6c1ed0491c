"""The price of a model call is one rule: a trial, the live store and `proctor trace` agree."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_parts import TRACE, started, wire_request, write

import proctor
from proctor.llm.prices import LINEAR_TOKENS, PriceTable, cost_usd, price_span, price_trace
from proctor.server.store import open_store
from proctor.spec import Case, Suite
from proctor.trace import Span, SpanKind, Trace

CALL: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "claude-sonnet-4-5",
    "gen_ai.usage.input_tokens": 500,
    "gen_ai.usage.output_tokens": 4,
}


def cost_in_trial(folder: Path, attributes: dict[str, Any]) -> float | None:
    """Run one trial whose agent makes this model call."""

    def agent(_question: str) -> str:
        with proctor.capture.llm_call(
            attributes["gen_ai.request.model"],
            input_tokens=attributes["gen_ai.usage.input_tokens"],
            output_tokens=attributes["gen_ai.usage.output_tokens"],
        ) as call:
            call.attributes.update(attributes)
        return "done"

    suite = Suite(cases=(Case(id="c", input="q", correctness={"regex_match": "^"}),))
    return proctor.run(suite, agent=agent, trials=1, results=folder).totals.cost_usd


def cost_live(folder: Path, attributes: dict[str, Any]) -> float | None:
    """Store a trace with this model call as the server does; the list and the trace agree."""
    store = open_store(f"sqlite:////{folder}/live.db".replace("/////", "////"))
    write(store, {"id": 1}, {"id": 2, "parent": 1, "attributes": attributes})
    row, trace = store.row(TRACE), store.trace(TRACE)
    store.close()
    assert row.cost_usd == pytest.approx(trace.usage.cost_usd)
    return row.cost_usd


@pytest.mark.parametrize(
    ("key", "counted_as"),
    [
        ("gen_ai.usage.cache_read.input_tokens", "cached_tokens"),
        ("gen_ai.usage.cache_read_input_tokens", "cached_tokens"),
        ("llm.token_count.prompt_details.cache_read", "cached_tokens"),
        ("gen_ai.usage.cache_creation.input_tokens", "cache_write_tokens"),
        ("gen_ai.usage.cache_creation_input_tokens", "cache_write_tokens"),
        ("gen_ai.usage.cache_write.input_tokens", "cache_write_tokens"),
        ("llm.token_count.prompt_details.cache_write", "cache_write_tokens"),
    ],
)
def test_cached_tokens_cost_the_same_in_a_trial_and_live(
    tmp_path: Path, key: str, counted_as: str
) -> None:
    """R-D7: every spelling of cached tokens is known to both callers."""
    attributes = {**CALL, key: 222}
    expected = cost_usd("claude-sonnet-4-5", input_tokens=500, output_tokens=4, **{counted_as: 222})
    without = cost_usd("claude-sonnet-4-5", input_tokens=500, output_tokens=4)
    assert expected != pytest.approx(without)
    assert cost_in_trial(tmp_path, attributes) == pytest.approx(expected)
    assert cost_live(tmp_path, attributes) == pytest.approx(expected)


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.provider.name": "aws.bedrock"},
        {"gen_ai.system": "Anthropic"},
        {"llm.system": "anthropic"},
        {"gen_ai.usage.cache_read.input_tokens": "222"},
        {"gen_ai.usage.cache_read.input_tokens": 222.0},
    ],
)
def test_the_provider_is_found_by_every_name_it_has(
    tmp_path: Path, attributes: dict[str, Any]
) -> None:
    """R-D7: spellings of a provider or a number are read the same way by both callers."""
    model = "anthropic.claude-3-haiku-20240307-v1:0" if "bedrock" in str(attributes) else None
    whole = {**CALL, **({"gen_ai.request.model": model} if model else {}), **attributes}
    in_trial = cost_in_trial(tmp_path, whole)
    assert in_trial is not None
    assert cost_live(tmp_path, {k: _wire(v) for k, v in whole.items()}) == pytest.approx(in_trial)


def _wire(value: Any) -> Any:
    return str(value) if isinstance(value, float) else value


PRICES = "prices: {our-model: {input: 1000, output: 2000}}\n"
OWN = {**CALL, "gen_ai.request.model": "our-model"}
OWN_COST = 0.5 + 0.008


def test_prices_of_the_settings_reach_a_trial_and_the_live_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-D7: `prices:` of proctor.yaml apply in a trial, in `proctor serve` and in `store add`."""
    (tmp_path / "proctor.yaml").write_text(PRICES, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert cost_in_trial(tmp_path / "results", OWN) == pytest.approx(OWN_COST)
    body = wire_request({"id": 1}, {"id": 2, "parent": 1, "attributes": OWN})
    for readers in ("0", "1"):  # decoded in the server, or in a process of its own
        process, address = started(f"sqlite:///live-{readers}.db", "--readers", readers)
        try:
            headers = {"content-type": "application/x-protobuf"}
            httpx.post(f"{address}/v1/traces", content=body, headers=headers).raise_for_status()
            found = httpx.get(f"{address}/api/traces").json()["traces"]
            whole = httpx.get(f"{address}/api/traces/{TRACE}").json()
        finally:
            process.terminate()
            process.communicate()
        assert found[0]["cost_usd"] == pytest.approx(OWN_COST)
        costs = [span["cost_usd"] for span in whole["spans"] if span.get("cost_usd")]
        assert costs == [pytest.approx(OWN_COST)]


def test_prices_of_the_settings_apply_to_files_added_to_the_store(tmp_path: Path) -> None:
    """R-D7: `proctor store add` prices a file as `proctor serve` prices a request."""
    (tmp_path / "proctor.yaml").write_text(PRICES, encoding="utf-8")
    span = wire_request({"id": 1}, {"id": 2, "parent": 1, "attributes": OWN})
    (tmp_path / "trace.pb").write_bytes(span)
    for command in (["add", "trace.pb"], ["export", "-o", "out.jsonl"]):
        done = subprocess.run(
            [sys.executable, "-m", "proctor", "store", *command],
            cwd=tmp_path,
            env={**os.environ, "PROCTOR_RESULTS": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    store = open_store(f"sqlite:////{tmp_path}/proctor-traces.db".replace("/////", "////"))
    assert store.row(TRACE).cost_usd == pytest.approx(OWN_COST)
    store.close()
    (trace,) = proctor.load_traces(tmp_path / "out.jsonl")
    assert trace.usage.cost_usd == pytest.approx(OWN_COST)


def call(model: str, tokens: tuple[int | None, int | None], **attributes: object) -> Span:
    return Span(
        span_id="1",
        trace_id="2",
        name="chat",
        kind=SpanKind.LLM,
        model=model,
        input_tokens=tokens[0],
        output_tokens=tokens[1],
        attributes=attributes,
    )


@pytest.mark.parametrize(
    "tokens", [(400, 40), (0, 0), (LINEAR_TOKENS, LINEAR_TOKENS), (250_000, 9_000)]
)
@pytest.mark.parametrize("model", ["gpt-4o-mini", "claude-sonnet-4-5", "gemini-2.5-pro"])
def test_cached_rates_give_the_published_price(model: str, tokens: tuple[int, int]) -> None:
    """R-D7: the remembered price per token is exact, and tiers are priced call by call."""
    span = call(model, tokens)
    price_span(span)
    expected = cost_usd(model, input_tokens=tokens[0], output_tokens=tokens[1])
    assert expected is not None
    assert span.cost_usd == pytest.approx(expected)


@pytest.mark.parametrize(
    "span",
    [
        call("my-own-model", (10, 10)),
        call("gpt-4o", (10, 10), **{"gen_ai.provider.name": "our-gateway"}),
        call("gpt-4o", (None, None)),
        Span(span_id="1", trace_id="2", name="x", kind=SpanKind.TOOL, model="gpt-4o"),
    ],
)
def test_an_unknown_cost_stays_unknown(span: Span) -> None:
    """R-D7: no price, no tokens, no model call: no cost, and no zero."""
    price_span(span)
    assert span.cost_usd is None


def test_a_users_price_wins_over_the_recorded_cost_which_wins_over_the_published() -> None:
    """R-D7: the order of the three sources; a recorded cost is not lost to an unknown one."""
    table = PriceTable({"gpt-4o": {"input": 1.0, "output": 1.0}})
    recorded, unknown = call("gpt-4o", (10, 10)), call("gpt-4o", (None, None))
    recorded.cost_usd = unknown.cost_usd = 7.0
    price_span(recorded)
    assert recorded.cost_usd == 7.0
    trace = Trace(trace_id="2", spans=[recorded, unknown])
    price_trace(trace, table)
    assert [span.cost_usd for span in trace.spans] == [pytest.approx(20e-6), 7.0]


def test_a_price_table_survives_the_way_to_another_process() -> None:
    """R-D7: a table made from the plain form of another finds the same prices."""
    table = PriceTable({"a": {"input": 1, "output": 2.5}, "openai:b": "openai:gpt-4o-mini"})
    again = PriceTable(table.to_dict())
    for model, provider in (("a", None), ("b", "openai"), ("b", None)):
        assert again.find(model, provider) == table.find(model, provider)
