"""Real files in detail: handoffs, errors, documents, costs, pairs of files, TRAIL.

Literals below were read in the raw files. Sums over a whole file are computed here a second time,
straight from the JSON, without any code of ours.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from proctor.trace import Message, Span, Trace
from proctor.trace.load import load_traces

ZERO_DIVISION = (
    "Code execution failed at line 'x = 1/0' due to: ZeroDivisionError: division by zero"
)


def load(shared: Path, file: str, number: int = 0) -> Trace:
    return load_traces(shared / "traces" / file)[number]


def named(trace: Trace, name: str) -> list[Span]:
    return [span for span in trace.index.spans if span.name == name]


# -- agents, handoffs, errors ----------------------------------------------------------------------


def test_handoff_span_of_openai_agents(shared: Path):
    """R-T7: a tool span "handoff to X" is a handoff, not a tool call."""
    trace = load(shared, "adot_cloudwatch/openai_agents_openinference_adot_spans.json")
    (handoff,) = trace.handoffs
    assert handoff.name == "handoff to math_specialist"
    assert (handoff.agent_name, handoff.handoff_to) == ("coordinator", "math_specialist")
    assert handoff.status == "error"  # the model asked for two handoffs at once
    assert trace.tool_sequence == ["multiply_numbers"]
    assert trace.session_id == "29fb7129-8624-4bd2-b37b-dea182f63ce8"


def test_handoff_between_sibling_agents(shared: Path):
    """R-T7: without a handoff span, the agent that stopped names the next one."""
    trace = load(shared, "produced/otel_genai_official_agents.otlp.json")
    handed = [(s.agent_name, s.handoff_to) for s in trace.index.spans if s.kind == "agent"]
    assert handed == [("Triage", "Weather specialist"), ("Weather specialist", None)]


def test_agents_called_as_tools_are_no_handoff(shared: Path):
    """R-T7: specialists that ran while the coordinator waited are no handoffs."""
    trace = load(shared, "openllmetry/strands_openai_agents_genai_live_spans.json")
    agents = [s.agent_name for s in trace.index.spans if s.kind == "agent"]
    assert agents == ["coordinator", "research_specialist", "math_specialist"]
    assert [s.handoff_to for s in trace.spans if s.handoff_to] == []


def test_delegation_inside_a_tool(shared: Path):
    """R-T7: pydantic-ai's sub-agent runs below the tool that asked it; usage is counted once."""
    trace = load(shared, "produced/pydantic_ai_v5.otlp.json")
    (expert,) = named(trace, "invoke_agent expert")
    node = trace.node(expert.span_id)
    assert node is not None
    assert node.parent is not None
    assert node.parent.span.tool_name == "ask_expert"
    (root,) = trace.roots
    assert (root.span.agent_name, root.span.input_tokens) == ("weather_agent", 176)
    assert trace.usage.input_tokens == 176 + 51
    assert trace.session_id == "01a1e12c-d946-7014-982b-ba6eb6cd0bc4"


ERRORS = [
    (
        "produced/langfuse_sdk.otlp.json",
        0,
        [("get_weather", None, "get_weather() missing 1 required positional argument: 'city'")],
    ),
    (
        "produced/openinference_openai.otlp.json",
        0,
        [("ChatCompletion", "openai.InternalServerError", "Error code: 500 - boom")],
    ),
    (
        "produced/otel_genai_official_openai.otlp.json",  # no exception event
        0,
        [("chat gpt-4o-mini", "openai.InternalServerError", "Error code: 500 - boom")],
    ),
    (
        "produced/openinference_smolagents.otlp.json",
        1,
        [
            (
                "Step 1",
                "smolagents.utils.AgentExecutionError",
                ZERO_DIVISION,
            )
        ],
    ),
    (
        "produced/pydantic_ai_legacy_1.0_v1.otlp.json",  # the exception said nothing
        0,
        [("running tool", "pydantic_ai.exceptions.ToolRetryError", None)],
    ),
    (
        "produced/pydantic_ai_v5.otlp.json",
        0,
        [("execute_tool get_weather", "pydantic_ai.exceptions.ToolRetryError", "unknown city")],
    ),
    (
        "produced/pydantic_ai_v5.otlp.json",
        1,
        [
            ("invoke_agent failing_agent", "RuntimeError", "tool exploded"),
            ("execute_tool boom", "RuntimeError", "tool exploded"),
        ],
    ),
    (
        "otel_genai/strands_otel_genai_convention_spans.json",
        0,
        [("execute_tool get_weather", "TimeoutError", None)],
    ),
]


@pytest.mark.parametrize(("file", "number", "errors"), ERRORS, ids=lambda value: str(value)[:60])
def test_errors(shared: Path, file: str, number: int, errors: list[tuple[str, str, str]]):
    """R-T7: what failed, how and why, from exception events, attributes or the status."""
    trace = load(shared, file, number)
    assert [(s.name, s.error_type, s.error_message) for s in trace.errors] == errors


def test_an_exception_that_was_handled_is_no_error(shared: Path):
    """R-T7: Jaeger's polling spans log a TimeoutError each, but ended well."""
    trace = load(shared, "jaeger/helm.json")
    polls = [s for s in trace.spans if any(event.name == "exception" for event in s.events)]
    assert polls
    assert [s.error_type for s in polls] == [None] * len(polls)
    assert [s.name for s in trace.errors] == ["GET"]


# -- tools, documents, money -----------------------------------------------------------------------


def test_tool_results_and_call_ids(shared: Path):
    """R-T7: results are taken out of LangChain's messages; lost call ids are found again."""
    (call,) = load(shared, "produced/openinference_langgraph.otlp.json").tool_calls
    assert (call.id, call.result) == ("call_1", "rainy, 57F in Paris")
    (call,) = load(shared, "langfuse/langgraph-python-2025-08-22.trace.json").tool_calls
    assert call.id == "call_1oGK863sxQHlPreFhDdEs3yl"
    assert call.result == [
        {"url": "https://example.com", "title": "Example Result", "q": "example"}
    ]
    (call,) = load(shared, "adot_cloudwatch/openinference_adot_spans.json").tool_calls
    assert (call.id, call.result) == ("tc_01", "Weather in Alaska: -5C, snowy")
    (call,) = load(shared, "langfuse/vercel-aisdk-2025-11-17.trace.json").tool_calls
    assert call.id == "call_DgKARp7a7IhJPDczfifMp6Ra"
    assert call.result == {"location": "San Francisco", "temperature": 64}
    calls = load(shared, "otlp_json/prism_quo_tav_agent.json").tool_calls
    assert [call.name for call in calls] == ["tavily_search", "tavily_extract"]
    assert calls[0].arguments == {
        "query": "latest AI trends 2024",
        "time_range": "year",
        "topic": "general",
    }
    assert calls[0].result["query"] == "latest AI trends 2024"


def test_retrieved_documents(shared: Path):
    """R-T7: ids, texts and scores of documents, also where the score is only in metadata."""
    (span,) = named(load(shared, "produced/openinference_langgraph.otlp.json"), "R")
    found = [(d.id, d.text, d.score, d.metadata["source"]) for d in span.documents]
    assert found == [
        ("d1", "Paris is rainy.", 0.91, "a.txt"),
        ("d2", "Rome is dry.", 0.42, "b.txt"),
    ]
    (span,) = named(load(shared, "produced/langfuse_sdk.otlp.json"), "retrieve")
    assert [(d.id, d.text, d.score) for d in span.documents] == [("d1", "Paris is rainy.", 0.91)]
    trace = load(shared, "otlp_json/prism_rag_earnings_agent.json")
    (span,) = named(trace, "VectorStoreRetriever")
    assert span.input == "what was meta's revenue in Q4 2023"
    assert [(d.id, d.score, len(d.text or "")) for d in span.documents] == [(None, None, 750)] * 3
    (span,) = named(trace, "chroma.collection.query")
    assert [(d.id, d.score) for d in span.documents] == [
        ("4c0ca22f-5b37-44af-aca6-36e798c054c6", 0.25226640701293945),
        ("381c8154-a66c-4de6-a92e-b89a0bdb27f1", 0.25226640701293945),
        ("c8e1a069-3d64-4821-815f-2f49c577f8a8", 0.2523272633552551),
    ]


@pytest.mark.parametrize(
    ("file", "cost"),
    [
        ("produced/langfuse_sdk.otlp.json", 0.001 + 0.002),
        ("langfuse/autogen-2025-06-06.trace.json", 2.5e-05),
        ("langfuse/langgraph-python-2025-08-22.trace.json", 7.5e-05 + 0.000159),
        ("langfuse/openai-agents-2025-09-30.trace.json", 0.00023 + 0.000402),
        ("langfuse/prism_langfuse-1.json", 0.00240375),
        ("pydantic_ai/strands_pydantic_ai_live_spans.json", 0.0028149 + 0.0026004),
        ("produced/openinference_openai.otlp.json", None),
    ],
)
def test_cost(shared: Path, file: str, cost: float | None):
    """R-T7: what the producer says it cost; unknown is unknown, not 0."""
    assert load(shared, file).total_cost == (None if cost is None else pytest.approx(cost))


def test_calls_are_counted_once_where_spans_nest(shared: Path):
    """R-T7: ADK wraps every model call in one or two further model spans."""
    assert len(load(shared, "jaeger/helm.json").llm_calls) == 2
    assert len(load(shared, "tempo/tempo_export_with_batches.json").llm_calls) == 2
    assert len(load(shared, "jaeger/k8s.json").llm_calls) == 1


# -- pairs: two files that must say the same -------------------------------------------------------


def test_the_same_call_in_two_conventions(shared: Path):
    """R-T7: GenAI attributes and their OpenInference translation give equal spans."""
    genai = load(shared, "otel_genai/otel_genai_client_span_tool_calls.json").spans[0]
    for name in ("tool_calls", "input_output_only"):
        file = f"openinference/openinference_client_span_{name}.json"
        other = load(shared, file).spans[0]
        for field in (
            "kind model input_tokens output_tokens input_messages output_messages input output"
        ).split():
            assert getattr(other, field) == getattr(genai, field), field
    assert [m.role for m in genai.input_messages] == ["user", "assistant", "tool"]
    assert genai.input_messages[1].tool_calls[0].arguments == {"location": "Paris"}


@pytest.mark.parametrize("name", ["openai-agents-2025-09-30", "pydantic-ai-tools-2025-06-06"])
def test_messages_as_langfuse_itself_normalises_them(shared: Path, name: str):
    """R-T7: our messages are those of Langfuse's own expected ChatML, system prompt aside."""
    folder = shared / "traces" / "langfuse"
    expected = json.loads((folder / f"{name}.chatml.json").read_text())
    trace = load_traces(folder / f"{name}.trace.json")[0]
    compared = 0
    for span in trace.spans:
        for side in ("input", "output"):
            chatml = expected.get(span.span_id, {}).get(side, {})
            if span.kind != "llm" or not chatml.get("success"):
                continue
            ours = getattr(span, f"{side}_messages")
            if chatml["data"][0].get("role") != "system":
                ours = [message for message in ours if message.role != "system"]
            assert [as_chatml(m) for m in ours] == [plain_chatml(m) for m in chatml["data"]]
            compared += 1
    assert compared == {"openai-agents-2025-09-30": 4, "pydantic-ai-tools-2025-06-06": 2}[name]


def as_chatml(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "calls": [(call.id, call.name, call.arguments) for call in message.tool_calls],
        "answers": message.tool_call_id,
    }


def plain_chatml(raw: dict[str, Any]) -> dict[str, Any]:
    raw = raw if "role" in raw else raw["json"]["message"]
    return {
        "role": raw["role"],
        "content": raw.get("content"),
        "calls": [
            (call["id"], call["name"], json.loads(call["arguments"]))
            for call in raw.get("tool_calls", [])
        ],
        "answers": raw.get("tool_call_id"),
    }


def test_sparse_message_indexes(shared: Path):
    """R-T7: the first message of the Responses API, which has index 1, is not lost."""
    trace = load(shared, "produced/openinference_openai.otlp.json")
    (span,) = named(trace, "Response")
    assert span.input_messages == (Message("user", "Weather?"),)


# -- TRAIL -----------------------------------------------------------------------------------------

TRAIL = [
    ("GAIA/0035f455b3ff2295167a844f04d85d34", 11, "33149", [], {"o3-mini"}),
    (
        "GAIA/0242ca2533fac5b8b604a9060b3e15d6",
        15,
        "negative binomial",
        [],
        {"o3-mini"},
    ),
    (
        "GAIA/0140b3f657eddf76ca82f72c49ac8e58",
        60,
        "### 1. Task outcome (short version):\nThe equine veterinarian’s surname is Louvrier.",
        [
            "web_search",
            "visit_page",
            "find_on_page_ctrl_f",
            *["page_down"] * 5,
            *["find_on_page_ctrl_f"] * 4,
        ],
        {"o3-mini"},
    ),
    (
        "SWE Bench/0e6f7928953ab5a568bae640ce915cc3",
        32,
        "--- a/src/marshmallow/fields.py\n+++ b/src/marshmallow/fields.py\n@@ -462,6 +462,9 @@",
        [],
        {"anthropic/claude-3-7-sonnet-latest"},
    ),
]


def raw_spans(shared: Path, name: str) -> list[dict[str, Any]]:
    """Every span of a TRAIL file, by nothing but the standard library."""
    waiting = json.loads((shared / "trail" / "data" / f"{name}.json").read_text())["spans"]
    found = []
    while waiting:
        span = waiting.pop()
        found.append(span)
        waiting.extend(span.get("child_spans") or [])
    return found


@pytest.mark.parametrize(("name", "spans", "response", "tools", "models"), TRAIL)
def test_trail(shared: Path, name, spans, response, tools, models):
    """R-T7: TRAIL's traces: size, answer, tools, models; tokens of the model spans alone."""
    trace = load_traces(shared / "trail" / "data" / f"{name}.json")[0]
    assert len(trace.spans) == spans
    assert (trace.response or "").startswith(response)
    assert trace.tool_sequence == tools
    assert {span.model for span in trace.spans if span.model} == models
    raw = [span["span_attributes"] for span in raw_spans(shared, name)]
    calls = [each for each in raw if each.get("openinference.span.kind") == "LLM"]
    assert len(trace.llm_calls) == len(calls)
    for ours, key in (("input_tokens", "prompt"), ("output_tokens", "completion")):
        total = sum(int(each.get(f"llm.token_count.{key}", 0)) for each in calls)
        assert getattr(trace.usage, ours) == total


def test_trail_arguments_errors_and_managed_agents(shared: Path):
    """R-T7: call envelopes are unwrapped, positional arguments named, the sub-agent known."""
    trace = load_traces(shared / "trail/data/GAIA/0140b3f657eddf76ca82f72c49ac8e58.json")[0]
    assert trace.tool_calls[2].arguments == {"search_string": "equine veterinarian"}
    assert trace.tool_calls[4].arguments == {"": ""}  # what the model really sent
    answers = trace.find({"tool_name": "final_answer"})
    assert list(answers[-1].span.tool_input) == ["answer"]
    assert [s.agent_name for s in trace.index.spans if s.kind == "agent"] == [
        "CodeAgent",
        "search_agent",
    ]
    failed = [s for s in trace.errors if s.kind == "tool"]
    assert [s.tool_name for s in failed] == ["page_down"] * 5
    assert {s.error_type for s in failed} == {"TypeError"}
    message = "PageDownTool.forward() got an unexpected keyword argument ''"
    assert {s.error_message for s in failed} == {message}
    assert str(trace.query).endswith("Introductory Chemistry materials as compiled 08/21/2023?")


@pytest.mark.slow
def test_all_of_trail(shared: Path):
    """R-T7: every distinct span loads, with a kind; only runs that crashed have no answer."""
    traces = load_traces(shared / "trail" / "data")
    raw = {
        (path.stem, span["span_id"])
        for path in (shared / "trail" / "data").rglob("*.json")
        for span in raw_spans(shared, f"{path.parent.name}/{path.stem}")
    }
    assert sum(len(trace.spans) for trace in traces) == len(raw) == 2728
    assert [trace.trace_id for trace in traces if trace.query is None] == []
    for trace in traces:
        assert {span.kind for span in trace.spans} <= {"llm", "tool", "agent", "chain"}
        if trace.response is None:
            assert any(span.failed for span in trace.of_kind("agent"))
    assert sum(trace.response is None for trace in traces) == 3
