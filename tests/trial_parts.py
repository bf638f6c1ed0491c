"""Small traces and trials, put together by hand, and judged the way a run judges them."""

import itertools
from typing import Any

from proctor.checks.base import CheckContext, CheckResult, CheckResults
from proctor.checks.evaluate import evaluate
from proctor.checks.judge import Judge, JudgeSettings
from proctor.llm import MockLLM, get_model
from proctor.spec.case_checks import checks_of
from proctor.spec.suite import Case
from proctor.trace import Span, SpanKind, SpanStatus, Trace
from proctor.trace.model import EVERYTHING

MS = 1_000_000
"""Nanoseconds in a millisecond."""


def span(kind: str, name: str, *, ms: float = 10, failed: bool = False, **fields: Any) -> Span:
    """A span; where it starts and its ids are set by `trace_of`."""
    status = SpanStatus.ERROR if failed else SpanStatus.OK
    return Span(
        span_id="",
        trace_id="t1",
        name=name,
        kind=SpanKind(kind),
        status=status,
        end_ns=int(ms * MS),
        **fields,
    )


def tool(name: str, arguments: Any = None, result: Any = None, **fields: Any) -> Span:
    return span("tool", name, tool_name=name, tool_input=arguments, tool_output=result, **fields)


def llm(
    model: str = "m", tokens: int | None = 100, usd: float | None = None, **fields: Any
) -> Span:
    return span("llm", "chat", model=model, input_tokens=tokens, cost_usd=usd, **fields)


def trace_of(*steps: Span | str, query: Any = "q", response: str | None = None) -> Trace:
    """A trace of steps one after the other, with span ids s1, s2, …; a text is a tool call.

    Nothing but these steps was done: everything was observed.
    """
    clock = 0
    spans: list[Span] = []
    for number, step in zip(itertools.count(1), steps, strict=False):
        each = tool(step) if isinstance(step, str) else step
        length = each.end_ns
        each.span_id, each.start_ns = f"s{number}", clock
        clock += length or 0
        each.end_ns = None if length is None else clock
        spans.append(each)
    return Trace(trace_id="t1", spans=spans, query=query, response=response, observed=EVERYTHING)


def context_of(
    trace: Trace | None = None, answer: str = "", *, case: Any = None, **more: Any
) -> CheckContext:
    return CheckContext(case or Case(input="q"), trace or trace_of(), answer, **more)


async def judged(
    case: dict[str, Any], trace: Trace | None = None, answer: str = "", **more: Any
) -> CheckResults:
    """What a trial of a case comes to; the case is read and planned as from a suite."""
    whole = Case.model_validate({"input": "q", **case})
    return await evaluate(checks_of(whole), context_of(trace, answer, case=whole, **more))


async def result(
    case: dict[str, Any], trace: Trace | None = None, answer: str = "", **more: Any
) -> CheckResult:
    """The only result of a case with one check."""
    (only,) = await judged(case, trace, answer, **more)
    return only


def verdict(score: int | dict[str, int], rationale: str = "Because.") -> dict[str, Any]:
    """What a scripted judge replies: one score, or one for each criterion."""
    key = "scores" if isinstance(score, dict) else "score"
    return {"json": {"rationale": rationale, key: score}}


def judge_at(server: MockLLM) -> Judge:
    """A judge whose model is a scripted server; it does not wait between retries."""

    async def at_once(_seconds: float) -> None:
        return None

    model = get_model("openai:judge", base_url=server.base_url, identity="judge")
    return Judge(model, settings=JudgeSettings(retries=1), sleep=at_once)
