"""Capturing what happens in a block of Python."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import trace as otel_trace

from proctor.errors import ProctorError
from proctor.trace import SpanKind, SpanStatus, Trace
from proctor.trace.capture import capture, carry, documents, span, tool


@tool
def add(a: int, b: int = 2) -> int:
    return a + b


@tool(name="slow_echo")
async def echo(text: str) -> str:
    await asyncio.sleep(0)
    return text


@tool
def broken() -> None:
    raise ValueError("no such record")


def test_a_document_with_an_unknown_key_is_refused() -> None:
    """R-T6: the error names the key and those that exist."""
    with pytest.raises(ProctorError, match="unknown key 'content'") as raised:
        documents([{"content": "x"}])
    assert "text" in str(raised.value.hint)


def test_helpers_build_one_tree() -> None:
    """R-T6: tool, llm, retrieval, handoff and planning helpers nest where they are used."""
    with capture(query="what is 1 + 2?") as trace:
        capture.planning("add the numbers")
        with span("step"):
            assert add(1) == 3
            with capture.retrieval("sums") as found:
                found.documents = documents(["1 + 2 = 3", {"id": "d2", "text": "x", "score": 0.5}])
        with capture.llm_call("m-1", input_tokens=10) as call:
            call.output_tokens = 5
        with capture.tool_call("lookup", {"q": "x"}) as step:
            step.tool_output = "found"
        capture.handoff("billing", from_agent="triage")
        trace.response = "3"

    root = trace.roots[0]
    assert [n.name for n in root.children] == [
        "plan",
        "step",
        "chat",
        "lookup",
        "handoff to billing",
    ]
    assert [n.name for n in root.children[1].children] == ["add", "retrieve"]
    assert [(c.name, c.arguments, c.result) for c in trace.tool_calls] == [
        ("add", {"a": 1, "b": 2}, 3),
        ("lookup", {"q": "x"}, "found"),
    ]
    assert trace.total_tokens == 15
    assert [d.score for s in trace.of_kind(SpanKind.RETRIEVAL) for d in s.documents] == [None, 0.5]
    assert (trace.handoffs[0].handoff_to, trace.handoffs[0].agent_name) == ("billing", "triage")
    assert (trace.query, trace.response, root.span.output) == ("what is 1 + 2?", "3", "3")


def test_an_exception_is_recorded_and_raised_again() -> None:
    """R-T6: an exception becomes an error span and is re-raised."""
    with pytest.raises(ValueError, match="no such record"), capture(query="q") as trace:
        broken()
    failed = trace.first({"name_equals": "broken"})
    assert failed is not None
    assert (failed.status, failed.span.error_type) == (SpanStatus.ERROR, "ValueError")
    assert failed.span.error_message == "no such record"
    assert trace.roots[0].status == SpanStatus.ERROR
    assert not trace.of_kind(SpanKind.ERROR), "the tool span already carries the error"


def test_an_exception_outside_any_step_gets_a_span_of_its_own() -> None:
    """R-T6: an error that no step carries still has a place in the trace."""
    with pytest.raises(TimeoutError), capture(query="q") as trace:
        raise TimeoutError("too slow")
    (error,) = trace.of_kind(SpanKind.ERROR)
    assert (error.name, error.status) == ("TimeoutError", SpanStatus.TIMEOUT)
    assert error.parent_id == trace.roots[0].span_id


def test_spans_of_instrumentations_land_in_the_same_tree() -> None:
    """R-T6: OpenTelemetry spans inside the block, and ours inside theirs, share one tree."""
    with capture(query="q") as trace:
        # Asked for inside: the first capture installs a provider where there is none.
        tracer = otel_trace.get_tracer("some.instrumentation")
        with tracer.start_as_current_span("chat gpt-x") as outer:
            outer.set_attribute("gen_ai.operation.name", "chat")
            outer.set_attribute("gen_ai.request.model", "gpt-x")
            outer.set_attribute("gen_ai.usage.input_tokens", 7)
            assert add(4, b=5) == 9
    chat = trace.first({"name_equals": "chat gpt-x"})
    assert chat is not None
    assert chat.parent is not None
    assert chat.parent.span_id == trace.roots[0].span_id
    assert [child.name for child in chat.children] == ["add"]
    assert (chat.kind, chat.span.model, chat.span.input_tokens) == (SpanKind.LLM, "gpt-x", 7)
    assert chat.span.scope == "some.instrumentation"


def test_an_instrumentation_that_starts_a_trace_of_its_own_is_adopted() -> None:
    """R-T6: spans started with an empty context inside the block are not lost."""
    from opentelemetry.context import Context

    with capture(query="q") as trace:
        otel_trace.get_tracer("t").start_span("detached", context=Context()).end()
    detached = trace.first({"name_equals": "detached"})
    assert detached is not None
    assert detached.span.trace_id == trace.trace_id
    assert detached.parent == trace.roots[0]


async def _one(number: int) -> Trace:
    with capture(query=number) as trace:
        for _ in range(3):
            await echo(f"{number}")
        with otel_trace.get_tracer("x").start_as_current_span(f"otel-{number}"):
            await asyncio.sleep(0)
        trace.response = str(number)
    return trace


def _alone(trace: Trace, number: int) -> bool:
    said = {call.arguments["text"] for call in trace.tool_calls}
    foreign = [s for s in trace.spans if s.name.startswith("otel-") and s.name != f"otel-{number}"]
    return len(trace.spans) == 5 and said == {str(number)} and not foreign


async def test_two_hundred_concurrent_tasks_never_mix() -> None:
    """R-T6: 200 captures at once in tasks keep their spans apart."""
    traces = await asyncio.gather(*(_one(number) for number in range(200)))
    assert all(_alone(trace, number) for number, trace in enumerate(traces))


def test_two_hundred_concurrent_threads_never_mix() -> None:
    """R-T6: 200 captures at once in threads keep their spans apart."""
    gate = threading.Barrier(50)

    def work(number: int) -> Trace:
        gate.wait(timeout=120)
        return asyncio.run(_one(number))

    with ThreadPoolExecutor(50) as pool:
        traces = list(pool.map(work, range(200)))
    assert all(_alone(trace, number) for number, trace in enumerate(traces))


def test_a_thread_of_your_own_carries_the_capture() -> None:
    """R-T6: `carry` binds work for a bare thread to the capture it was made in."""
    with capture(query="q") as trace:
        thread = threading.Thread(target=carry(lambda: add(1)))
        thread.start()
        thread.join()
        bare = threading.Thread(target=lambda: add(2))
        bare.start()
        bare.join()
    assert [call.arguments["a"] for call in trace.tool_calls] == [1]


def test_outside_a_capture_nothing_changes() -> None:
    """R-T6: helpers and decorated tools work, unrecorded, where nothing is captured."""
    assert add(1, 1) == 2
    assert asyncio.run(echo("x")) == "x"
    with span("nowhere") as step:
        step.output = 1
    with capture() as trace:
        pass
    assert [s.name for s in trace.spans] == ["agent"]


def test_a_step_without_with_warns() -> None:
    """R-T6: a call that looks like a record and records nothing says so, where it is written."""
    with capture("q") as trace:
        with pytest.warns(RuntimeWarning, match=r"with proctor.capture.retrieval\(") as seen:
            capture.retrieval("sums", scores=[0.2])
        with capture.retrieval("sums", scores=[0.2]):
            pass
    assert seen[0].filename == __file__
    assert [span.name for span in trace.spans if span.kind == "retrieval"] == ["retrieve"]
