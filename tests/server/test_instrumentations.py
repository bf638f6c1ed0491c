"""Agents of real frameworks under real instrumentations send to a real `proctor serve`."""

import os
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from server_parts import started

from proctor.llm import MockLLM

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENVIRONMENT = ROOT / ".cache" / "test-envs" / "instrumentations"
PYTHON = ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
NEEDED = ("opentelemetry.exporter", "opentelemetry.instrumentation", "openinference")

ANSWER = "It is 4 degrees in Oslo."
SCRIPT = [
    {
        "tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}],
        "usage": {"input": 40, "output": 9},
    },
    {"text": ANSWER, "usage": {"input": 61, "output": 12}},
]

LLM, TOOL = ("llm", "gpt-4o-mini"), ("tool", "get_weather")
LOOP = {("agent", "weatherman"): [LLM, TOOL, LLM]}
"""The tree of an agent without further layers: parent → children by start."""


@pytest.fixture(scope="module")
def python() -> str:
    """An interpreter that has the instrumentations: this one, or that of their environment."""
    if all(find_spec(name.partition(".")[0]) and _found(name) for name in NEEDED):
        return sys.executable
    if not PYTHON.is_file():
        pytest.skip(f"no {PYTHON.relative_to(ROOT)}: `python3 dev.py test` makes it")
    return str(PYTHON)


def _found(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a `proctor serve` with an empty store."""
    folder = tmp_path_factory.mktemp("instrumented")
    process, address = started(f"sqlite:////{folder}/t.db".replace("/////", "////"))
    yield address
    process.terminate()
    process.wait(60)


def sent(python: str, server: str, name: str, **environment: str) -> tuple[dict, dict]:
    """The row and the whole of the one trace that an agent sent."""
    with MockLLM(SCRIPT) as model:
        process = subprocess.run(
            [python, HERE / "instrumented_agents.py", name],
            env={
                **os.environ,
                **model.environment,
                "OTEL_EXPORTER_OTLP_ENDPOINT": server,
                "OTEL_SERVICE_NAME": name,
                "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
                **environment,
            },
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert process.returncode == 0, process.stderr
        assert len(model.requests) == 2
    found = httpx.get(f"{server}/api/traces", params={"service": name}).json()
    assert found["count"] == 1, process.stderr
    (row,) = found["traces"]
    trace = httpx.get(f"{server}/api/traces/{row['trace_id']}").json()
    return row, trace


def called(span: dict) -> tuple[str, str]:
    """A span as the trees below write it."""
    kind = span.get("kind", "other")
    if kind == "llm":
        return kind, span["model"]
    return kind, span["tool_name"] if kind == "tool" else span.get("agent_name") or span["name"]


def tree(trace: dict) -> dict:
    """Parent → children in the order they began, over all spans that have children."""
    spans = {span["span_id"]: span for span in trace["spans"]}
    children = defaultdict(list)
    for span in sorted(spans.values(), key=lambda s: s["start_ns"]):
        parent = span.get("parent_id")
        assert parent is None or parent in spans
        if parent is not None:
            children[called(spans[parent])].append(called(span))
    return dict(children)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pydantic-ai", LOOP),
        ("openinference", LOOP),
        ("openllmetry", LOOP),
        ("genai", LOOP),
        (
            "langgraph",
            {
                ("chain", "weatherman"): [
                    ("chain", "think"),
                    ("chain", "tools"),
                    ("chain", "think"),
                ],
                ("chain", "think"): [LLM, ("chain", "tools_condition")] * 2,
                ("chain", "tools"): [TOOL],
            },
        ),
        (
            "openai-agents",
            {
                ("agent", "Agent workflow"): [("chain", "Agent workflow")],
                ("chain", "Agent workflow"): [("agent", "weatherman")],
                ("agent", "weatherman"): [("chain", "turn"), ("chain", "turn")],
                ("chain", "turn"): [LLM, TOOL, LLM],
            },
        ),
    ],
)
def test_a_real_instrumentation(python: str, server: str, name: str, expected: dict) -> None:
    """R-D7: the stored trace has the tools, the tokens, the words and the tree of what happened."""
    row, trace = sent(
        python,
        server,
        name,
        OTEL_SEMCONV_STABILITY_OPT_IN="gen_ai_latest_experimental",
        OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="EVENT_ONLY",
    )
    assert tree(trace) == expected
    assert (row["llm_calls"], row["tool_calls"], row["errors"]) == (2, 1, 0)
    assert (row["input_tokens"], row["output_tokens"]) == (101, 21)
    usage = [
        (s["input_tokens"], s["output_tokens"]) for s in trace["spans"] if s.get("kind") == "llm"
    ]
    assert sorted(usage) == [(40, 9), (61, 12)]
    assert trace["query"] == "How is the weather in Oslo?"
    assert trace["response"] == ANSWER
    assert (row["query"], row["response"]) == (trace["query"], trace["response"])
    by_tool = httpx.get(f"{server}/api/traces", params={"tool": "get_weather", "service": name})
    assert by_tool.json()["count"] == 1
