"""Facts about every sample file that a person can check by opening it.

Literals were read in the raw files; token totals are written as the sum of what the spans say.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from proctor.trace import Trace
from proctor.trace.load import load_traces

HELM_ANSWER = (
    "There are two Helm releases installed in the cluster:\n\n1. Release name: kagent\n"
    "   - Namespace: kagent\n   - Revision: 2\n   - Status: deployed\n   - Chart: kagent-0.7.14\n"
)


class Facts(NamedTuple):
    """What a file says about one of its traces, by its number in the file."""

    file: str
    spans: int
    kinds: dict[str, int]
    query: str | None
    response: str | None
    tokens: tuple[int | None, int | None]
    models: set[str]
    tools: Sequence[tuple[str, Any]] = ()
    number: int = 0


WEATHER = [("get_weather", {"city": "Paris"})]
HAIKU = "Lines of code align,  \nLogic dances through the night—  \nDreams in data flow."
MINI = "gpt-4o-mini-2024-07-18"

# Embedding calls are `other`: they have a model and tokens, but are no turn of an agent.
FACTS = [
    Facts(
        "produced/langfuse_sdk.otlp.json",
        5,
        {"retrieval": 1, "llm": 1, "tool": 2, "agent": 1},
        "Weather in Paris?",
        "rainy, 57F in Paris",
        (12, 5),  # 10 plus 2 read from the cache, which Langfuse counts apart
        {"gpt-4o-mini"},
        [*WEATHER, ("get_weather", {})],
    ),
    Facts(
        "produced/openinference_langgraph.otlp.json",
        11,
        {"retrieval": 1, "chain": 5, "llm": 2, "agent": 2, "tool": 1},
        "Weather in Paris?",
        "It is rainy and 57F in Paris.",
        (14 + 19, 17 + 17),
        {MINI},
        WEATHER,  # the tool span's input is just `Paris`
    ),
    Facts(
        "produced/openinference_openai.otlp.json",
        6,
        {"llm": 4, "other": 2},
        "Weather in Paris?",
        "It is rainy and 57F in Paris.",
        (16 + 18 + 50, 17 + 17 + 12),
        {MINI, "gpt-4o-mini", "text-embedding-3-small"},
        WEATHER,
    ),
    Facts(
        "produced/openinference_smolagents.otlp.json",
        7,
        {"llm": 2, "tool": 2, "chain": 2, "agent": 1},
        "Weather in Paris? smolagents",
        "Rainy, 57F in Paris",
        (888 + 942, 17 + 17),  # the agent span repeats this sum: 1830 and 34
        {"gpt-4o-mini"},
        WEATHER,  # and `final_answer`, which is no tool call
    ),
    Facts(
        "produced/openinference_smolagents.otlp.json",
        9,
        {"llm": 3, "tool": 2, "chain": 3, "agent": 1},
        "CODEAGENT Weather in Paris?",
        "Rainy, 57F in Paris",
        (2422 + 2538 + 2638, 17 * 3),
        {"gpt-4o-mini"},
        WEATHER,  # and `final_answer`, which is no tool call
        number=1,
    ),
    *(
        Facts(
            f"produced/{name}.otlp.json",
            5,
            {"llm": 3, "other": 2},
            "Weather in Paris?",
            "It is rainy and 57F in Paris.",
            (16 + 18, 17 + 17),
            {MINI, "gpt-4o-mini", "text-embedding-3-small"},
            WEATHER,
        )
        for name in (
            "openllmetry_openai",
            "openllmetry_openai_legacy_0.47",
            "otel_genai_official_openai",
        )
    ),
    Facts(
        "produced/otel_genai_official_agents.otlp.json",
        4,
        {"agent": 2, "tool": 1, "chain": 1},
        None,  # content was not captured
        None,
        (None, None),
        set(),
        WEATHER,
    ),
    Facts(
        "produced/pydantic_ai_legacy_1.0_v1.otlp.json",
        8,
        {"llm": 3, "tool": 2, "chain": 2, "agent": 1},
        "Weather in Paris?",
        "Rainy, 57F in Paris.",
        (58 + 67 + 71, 5 + 10 + 15),
        {"function:script:"},
        [("get_weather", {"city": "Atlantis"}), *WEATHER],
    ),
    Facts(
        "produced/pydantic_ai_v5.otlp.json",
        9,
        {"llm": 4, "tool": 3, "agent": 2},
        "Weather in Paris?",
        "Rainy, 57F in Paris; take an umbrella.",
        (53 + 58 + 51 + 65, 5 + 15 + 3 + 23),
        {"function:script:", "test"},
        [("get_weather", {"city": "Atlantis"}), *WEATHER, ("ask_expert", {"q": "umbrella?"})],
    ),
    Facts(
        "produced/pydantic_ai_v5.otlp.json",
        3,
        {"llm": 1, "tool": 1, "agent": 1},
        "go",
        None,  # the run crashed
        (51, 2),
        {"function:<lambda>:"},
        [("boom", {})],
        number=1,
    ),
    Facts(
        "langfuse/autogen-2025-06-06.trace.json",
        2,
        {"chain": 1, "llm": 1},
        "Say 'Hello World!'",
        "Hello World!",
        (41, 3),
        {"gpt-4o"},
    ),
    Facts(
        "langfuse/google-gemini-2025-08-01.trace.json",
        1,
        {"llm": 1},
        "What is Langfuse?",
        "**Langfuse** is an **open-source observability and evaluation platform",
        (6, 2055),  # the 1104 reasoning tokens are part of the 2055: the total is 2061
        {"gemini-2.5-flash"},
    ),
    Facts(
        "langfuse/langgraph-python-2025-08-22.trace.json",
        9,
        {"chain": 6, "llm": 2, "tool": 1},
        "Search the web for 'example' and summarize.",
        'The search for "example" primarily leads to the website [example.com]',
        (60 + 108, 15 + 51),
        {"gpt-4o-2024-08-06"},
        [("Web-Search", {"query": "example"})],
    ),
    Facts(
        "langfuse/llamaindex-2025-06-05.trace.json",
        2,
        {"chain": 1, "llm": 1},
        "What is Langfuse?",
        "Langfuse is a tool designed to help developers monitor and debug",
        (13, 81),
        {"gpt-4o"},
    ),
    Facts(
        "langfuse/openai-agents-2025-09-30.trace.json",
        5,
        {"agent": 2, "llm": 2, "tool": 1},
        "What's the weather in Tokyo?",
        "The weather in Tokyo is currently sunny.",
        (55 + 85, 15 + 29),
        {"gpt-4.1-2025-04-14"},
        [("get_weather", {"city": "Tokyo"})],
    ),
    *(
        Facts(
            f"langfuse/{name}-2025-06-06.trace.json",
            3,
            {"agent": 1, "chain": 1, "llm": 1},
            "What is Langfuse?",
            "Langfuse is a tool designed for observability and monitoring",
            (31, 96),
            {"gpt-4o", "gpt-4o-2024-08-06"},  # asked for, and answered by
        )
        for name in ("pydantic-ai", "pydantic-ai-tools")
    ),
    Facts(
        "langfuse/vercel-aisdk-2025-11-17.trace.json",
        3,
        {"agent": 1, "llm": 1, "tool": 1},
        "What is the weather like today in San Francisco?",
        None,  # it stopped after the tool call
        (62, 85),
        {"gpt-5", "gpt-5-2025-08-07"},
        [("getWeather", {"location": "San Francisco"})],
    ),
    Facts(
        "langfuse/prism_langfuse-1.json",
        5,
        {"llm": 2, "agent": 1, "chain": 2},
        "what's your name",
        "I’m the Langfuse Support Assistant. How can I help you",
        (1115, 101),
        {"gpt-5", "gpt-5-2025-08-07"},  # asked for, and answered by
    ),
    *(
        Facts(
            file,
            1,
            {"llm": 1},
            "Weather in Paris?",
            "The weather in Paris is currently rainy with a temperature of 57°F.",
            (97, 52),
            {"gpt-4-0613"},
        )
        for file in (
            "otel_genai/otel_genai_client_span_tool_calls.json",
            "openinference/openinference_client_span_tool_calls.json",
            "openinference/openinference_client_span_input_output_only.json",
        )
    ),
    Facts(
        "otel_genai/otel_genai_tool_execution_span.json",
        1,
        {"tool": 1},
        None,
        None,
        (None, None),
        set(),
        [("get_weather", {"city": "New York"})],
    ),
    Facts(
        "otel_genai/strands_autogen_live_spans.json",
        1,
        {"agent": 1},
        None,
        None,
        (None, None),
        set(),
    ),
    Facts(
        "otel_genai/strands_autogen_live_spans.json",
        2,
        {"agent": 1, "tool": 1},
        None,
        None,
        (None, None),
        set(),
        [("calculate", None)],
        number=1,
    ),
    Facts(
        "otel_genai/strands_otel_genai_convention_spans.json",
        5,
        {"agent": 1, "llm": 2, "tool": 2},
        "What's the weather in Paris and London?",
        "The weather in Paris is rainy at 57°F. I was unable to retrieve London's weather",
        (80 + 120, 25 + 35),  # the agent's own 150 and 42 are another, partial count
        {"gpt-4o"},
        [("get_weather", {"location": "Paris"}), ("get_weather", {"location": "London"})],
    ),
    Facts(
        "openinference/strands_openinference_live_spans.json",
        6,
        {"llm": 2, "tool": 1, "agent": 1, "chain": 2},
        "What is the weather difference between Taipei and Seattle?",
        "Taipei is warmer than Seattle overall.",
        (None, None),
        set(),
        [("finish", {"answer": "Taipei is warmer"})],
    ),
    Facts(
        "openinference/strands_smolagents_live_spans.json",
        7,
        {"llm": 2, "tool": 2, "chain": 2, "agent": 1},
        "What is the population of Tokyo?",
        "The population of Tokyo is approximately 14 million people as of 2023.",
        (2366 + 3890, 52 + 111),
        {"bedrock/us.anthropic.claude-haiku-4-5-20251001-v1:0"},
    ),
    Facts(
        "openllmetry/strands_openai_agents_genai_live_spans.json",
        17,
        {"llm": 8, "tool": 5, "agent": 3, "chain": 1},
        "Look up the stock price for AMZN, then calculate what 1000 shares would be worth by "
        "multiplying the price by 1000.",
        "The current stock price of Amazon (AMZN) is $240.98. Therefore, 1,000 shares would be "
        "worth $240,980.",
        (225 + 141 + 174 + 275 + 187 + 217 + 246 + 405, 23 + 17 + 18 + 24 + 20 + 20 + 98 + 33),
        {MINI},
        [
            ("ask_research_specialist", {"query": "current stock price of AMZN"}),
            ("lookup_stock_price", {"ticker": "AMZN"}),
            ("ask_math_specialist", {"query": "240.98 multiplied by 1000"}),
            ("multiply_numbers", {"a": 240, "b": 1000}),
            ("multiply_numbers", {"a": 0, "b": 1000}),
        ],
    ),
    Facts(
        "pydantic_ai/strands_pydantic_ai_live_spans.json",
        4,
        {"llm": 2, "tool": 1, "agent": 1},
        "What's the weather like in Seattle right now?",
        "The current weather in Seattle is 62°F and cloudy with light rain.",
        (588 + 663, 53 + 25),
        {"us.anthropic.claude-sonnet-4-5-20250929-v1:0"},
        [("get_weather", {"city": "Seattle"})],
    ),
    Facts(
        "vercel_ai_sdk/ai-generateObject.json",
        1,
        {"chain": 1},
        "Generate a simple recipe for scrambled eggs.",
        '{"name":"Scrambled Eggs","ingredients":["2 eggs",',
        (63, 156),
        {"gpt-4o-mini"},
    ),
    Facts(
        "vercel_ai_sdk/ai-generateText-doGenerate.json",
        1,
        {"llm": 1},
        "Write a haiku about programming.",
        HAIKU,
        (14, 20),
        {MINI},
    ),
    Facts(
        "vercel_ai_sdk/ai-generateText-doGenerate.json",
        1,
        {"llm": 1},
        "And what is 3 + 3?",  # asked in the fourth message
        "3 + 3 equals 6.",
        (50, 9),
        {MINI},
        number=1,
    ),
    Facts(
        "vercel_ai_sdk/ai-generateText.json",
        1,
        {"agent": 1},
        "Write a haiku about programming.",
        HAIKU,
        (14, 20),
        {"gpt-4o-mini"},
    ),
    Facts(
        "vercel_ai_sdk/ai-generateText.json",
        1,
        {"agent": 1},
        "And what is 3 + 3?",
        "3 + 3 equals 6.",
        (50, 9),
        {"gpt-4o-mini"},
        number=1,
    ),
    Facts(
        "vercel_ai_sdk/ai-streamText-doStream.json",
        1,
        {"llm": 1},
        "Write a short poem about TypeScript.",
        "In code’s embrace, where types align,  \nTypeScript dances, clear and fine.",
        (15, 112),
        {MINI},
    ),
    Facts(
        "adot_cloudwatch/openinference_adot_spans.json",
        6,
        {"llm": 2, "tool": 1, "chain": 3},
        "What is the weather in Alaska?",
        "The weather in Alaska is -5C and snowy.",
        (None, None),
        set(),
        [("get_weather", {"city": "Alaska"})],
    ),
    Facts(
        "adot_cloudwatch/openinference_adot_spans.json",
        2,
        {"llm": 1, "chain": 1},
        "Tell me a joke",
        "Why did the chicken cross the road? To get to the other side!",
        (None, None),
        set(),
        number=1,
    ),
    Facts(
        "adot_cloudwatch/openai_agents_openinference_adot_spans.json",
        16,
        {"llm": 3, "handoff": 1, "agent": 3, "chain": 4, "tool": 1, "other": 4},
        "What is 42 * 7, and what's the weather in Seattle?",
        "The product of \\(42 \\times 7\\) is \\(294\\).",
        (148 + 257 + 287, 47 + 19 + 41),
        {"gpt-4o-2024-08-06"},
        [("multiply_numbers", {"a": 42, "b": 7})],
    ),
    Facts(
        "jaeger/helm.json",
        96,
        {"llm": 4, "tool": 1, "agent": 1, "chain": 1, "other": 89},
        "list all Helm releases",
        HELM_ANSWER,
        (1820 + 1956, 13 + 117),  # four usage-bearing model spans, two calls
        {"gpt-4.1-mini", "gpt-4.1-mini-2025-04-14"},
        [("helm_list_releases", {})],
    ),
    Facts(
        "jaeger/k8s.json",
        73,
        {"llm": 2, "agent": 1, "chain": 1, "other": 69},
        "list all Helm releases",
        "To list all Helm releases, I would typically use Helm CLI commands",
        (2203, 139),
        {"gpt-4.1-mini", "gpt-4.1-mini-2025-04-14"},
    ),
    Facts(
        "otlp_json/proto_example_trace.json",
        1,
        {"other": 1},
        None,
        None,
        (None, None),
        set(),
    ),
    Facts(
        "otlp_json/prism_rag_earnings_agent.json",
        18,
        {"chain": 11, "retrieval": 2, "llm": 1, "other": 4},
        "what was meta's revenue in Q4 2023",
        "Meta Platforms Inc.'s revenue in Q4 2023 was $40.1 billion.",
        (629, 19),
        {"gpt-3.5-turbo"},
    ),
    Facts(
        "otlp_json/prism_quo_tav_agent.json",
        29,
        # Two instrumentations side by side: each call of LangChain has a second span of OpenAI's.
        {"chain": 9, "agent": 10, "llm": 3, "tool": 2, "other": 5},
        "What are the latest AI trends in 2024?",
        "In 2024, several key trends have emerged in the field of artificial intelligence",
        (None, None),
        {"gpt-4o", "gpt-4o-2024-08-06"},
    ),
    Facts(
        "tempo/tempo_export_with_batches.json",
        86,
        {"llm": 6, "tool": 1, "agent": 2, "other": 77},
        "list all helm releases\n",
        "There are two Helm releases currently deployed:\n\n1. Release Name: kagent",
        (2256 + 2392, 13 + 116),  # three nested model spans for each of two calls
        {"gpt-4.1-mini", "gpt-4.1-mini-2025-04-14"},
        [("helm_list_releases", {})],
    ),
]

GOLDEN = {"eval_set_helm.json", "evalset_k8s_2026-02-20.json"}


def load(shared: Path, file: str, number: int = 0) -> Trace:
    return load_traces(shared / "traces" / file)[number]


def kinds(trace: Trace) -> dict[str, int]:
    found: dict[str, int] = {}
    for span in trace.spans:
        found[span.kind.value] = found.get(span.kind.value, 0) + 1
    return found


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: f"{facts.file}[{facts.number}]")
def test_what_a_file_says(shared: Path, facts: Facts):
    """R-T7: spans, kinds, question, answer, tokens, models and tool calls of every sample."""
    trace = load(shared, facts.file, facts.number)
    assert len(trace.spans) == facts.spans
    assert kinds(trace) == facts.kinds
    assert trace.query == facts.query
    assert (trace.response is None) == (facts.response is None)
    assert (trace.response or "").startswith(facts.response or "")
    assert (trace.usage.input_tokens, trace.usage.output_tokens) == facts.tokens
    assert {span.model for span in trace.spans if span.model} == facts.models
    if facts.tools:
        assert [(call.name, call.arguments) for call in trace.tool_calls] == list(facts.tools)


def test_every_sample_has_its_facts(shared: Path):
    """R-T7: every sample, and every trace in it, is tested."""
    samples = {
        path.relative_to(shared / "traces").as_posix()
        for path in (shared / "traces").rglob("*.json")
        if path.name not in GOLDEN and ".chatml." not in path.name
    }
    assert samples == {facts.file for facts in FACTS}
    for file in samples:
        traces = load_traces(shared / "traces" / file)
        assert not traces.problems
        assert len(traces) == sum(facts.file == file for facts in FACTS)


@pytest.mark.parametrize("name", sorted({f.file for f in FACTS if f.file.startswith("produced/")}))
def test_protobuf_says_the_same_as_json(shared: Path, name: str):
    """R-T7: the bytes an instrumentation sent and their JSON twin give equal traces."""
    twin = name.removesuffix(".json") + ".pb"
    assert list(load_traces(shared / "traces" / twin)) == list(
        load_traces(shared / "traces" / name)
    )
