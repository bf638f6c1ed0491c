"""Models through litellm. It pins client libraries of its own, so it has its own environment.

Set PROCTOR_LITELLM_PYTHON to a Python that has the extra `litellm`, or install it here.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from proctor.llm import MockLLM

PYTHON = os.environ.get("PROCTOR_LITELLM_PYTHON") or (
    sys.executable if importlib.util.find_spec("litellm") else None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="the extra `litellm` is not installed"),
]

PROGRAM = """
import asyncio, json, os, sys
sys.path.insert(0, sys.argv[1])
from proctor.llm import ChatRequest, ModelError, ToolSpec, get_model

async def main():
    for name, base_url in json.loads(sys.argv[2]):
        model = get_model(name, base_url=base_url)
        request = ChatRequest.of("hi", system="s", tools=(ToolSpec("find"),), temperature=0.0)
        try:
            reply = await model.complete(request)
            calls = [[call.name, call.arguments] for call in reply.tool_calls]
            print(json.dumps([reply.text, calls, reply.usage[:2], reply.cost_usd]))
        except ModelError as error:
            print(json.dumps([error.kind, error.transient, error.status, error.retry_after]))

asyncio.run(main())
assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
"""


def ask(root, questions: list[tuple[str, str]]) -> list:
    command = [PYTHON, "-c", PROGRAM, str(root / "src"), json.dumps(questions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_replies_and_failures(root):
    """R-C7 R-A4: text, tool calls and usage; failures by kind, with Retry-After."""
    call = {"name": "find", "arguments": {"q": 1}}
    replies = [
        {"text": "hello", "usage": {"input": 9, "output": 2}},
        {"tool_calls": [call], "usage": {"input": 9, "output": 2}},
        {"error": {"status": 429, "retry_after": 1.5}},
        {"error": 500},
        {"error": 401},
        {"malformed": "bad_json", "text": "x"},
    ]
    with MockLLM([*replies, *replies]) as server:
        found = ask(
            root,
            [("litellm/openai/gpt-4o-mini", server.base_url)] * 6
            + [("litellm/anthropic/claude-x", server.url)] * 6,
        )
    expected = [
        ["hello", [], [9, 2], None],
        ["", [["find", {"q": 1}]], [9, 2], None],
        ["rate_limited", True, 429, 1.5],
        ["server", True, 500, None],
        ["auth", False, 401, None],
        ["bad_reply", False, None, None],
    ]
    assert found == expected * 2
    assert [m.role for m in server.requests[0].messages] == ["system", "user"]
