"""Judges and providers against real services: only with PROCTOR_LIVE=1 and a key.

    PROCTOR_LIVE=1 OPENAI_API_KEY=… pytest tests/llm/test_live.py

PROCTOR_LIVE_MODEL selects another model, such as anthropic:claude-haiku-4-5.
"""

import os

import pytest

from proctor.checks.judge import Judge, JudgeInput
from proctor.llm import get_model
from proctor.llm.chat_model import ChatRequest

MODEL = os.environ.get("PROCTOR_LIVE_MODEL", "openai:gpt-5-mini")

pytestmark = pytest.mark.skipif(
    os.environ.get("PROCTOR_LIVE") != "1", reason="PROCTOR_LIVE=1 calls real providers"
)


async def test_a_provider_answers_and_is_priced() -> None:
    """R-A4: a real call has an answer and tokens."""
    model = get_model(MODEL)
    reply = await model.complete(ChatRequest.of("Say: pong"))
    assert "pong" in reply.text.lower()
    assert reply.usage.input_tokens
    assert reply.usage.output_tokens


async def test_a_judge_tells_right_from_wrong() -> None:
    """R-C7: a real judge passes a right answer and fails a wrong one, with a reason."""
    judge = Judge(get_model(MODEL))
    rule = "The answer names Paris as the capital of France."
    right, wrong = [
        await judge.judge(JudgeInput(input="Capital of France?", answer=answer), rule)
        for answer in ("It is Paris.", "It is Lyon.")
    ]
    assert right.passed
    assert not wrong.passed
    assert right.rationale
