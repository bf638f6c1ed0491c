"""Quality of a trace: eight dimensions and what they come to.

`score_trace` is pure and needs no model; `score_trace_with` asks a judge as well, for reasoning.
Promise: a judge that fails leaves its dimension without a score and the rest as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from proctor.checks.base import CheckContext
from proctor.checks.grounded import retrieval
from proctor.checks.judge import Judge, JudgeInput
from proctor.checks.judge_checks import DEFAULT_JUDGE
from proctor.checks.quality_dimensions import (
    AVERAGE,
    DIMENSIONS,
    LEVELS,
    Dimension,
    Quality,
    QualityConfig,
    SpanLatency,
    combined,
    efficiency,
    error_recovery,
    latencies,
    latency,
    redundant_calls,
    sequence,
    tool_selection,
)
from proctor.errors import ProctorError, describe_error
from proctor.llm.chat_model import ClosingModel
from proctor.trace import Trace

NO_JUDGE = "no judge is configured"
NOT_ASKED = "not asked for"


def score_trace(
    trace: Trace,
    config: QualityConfig | None = None,
    *,
    answer: str | None = None,
    dimensions: Collection[str] = DIMENSIONS,
) -> Quality:
    """The quality of a trace, without a judge; only the dimensions asked for are worked out.

    `answer` stands in for the trace's own response, `overall` among the dimensions for those
    with a weight.
    """
    config = config or QualityConfig()
    asked = _asked(dimensions, config)
    breakdown = latencies(trace, config) if "latency" in asked else ()
    work = {
        "tool_selection": lambda: tool_selection(trace, config),
        "sequence": lambda: sequence(trace, config),
        "redundancy": lambda: redundant_calls(trace, config),
        "efficiency": lambda: efficiency(trace, config),
        "latency": lambda: latency(breakdown),
        "error_recovery": lambda: error_recovery(trace, config),
        "retrieval": lambda: retrieval(trace, answer),
        "reasoning": lambda: Dimension(name="reasoning", score=None, why=NO_JUDGE),
    }
    found = tuple(
        work[name]() if name in asked else Dimension(name=name, score=None, why=NOT_ASKED)
        for name in DIMENSIONS
    )
    return _together(trace, found, config, breakdown)


async def score_trace_with(
    judge: Judge,
    trace: Trace,
    config: QualityConfig | None = None,
    *,
    answer: str | None = None,
    dimensions: Collection[str] = DIMENSIONS,
) -> Quality:
    """The quality of a trace, its reasoning judged too."""
    config = config or QualityConfig()
    scored = score_trace(trace, config, answer=answer, dimensions=dimensions)
    if "reasoning" not in _asked(dimensions, config):
        return scored
    judged = await reasoning(judge, trace, answer)
    found = tuple(judged if each.name == "reasoning" else each for each in scored.dimensions)
    return _together(trace, found, config, scored.latency_breakdown)


async def score_traces_with(
    judge: Judge, traces: Iterable[Trace], config: QualityConfig | None = None
) -> list[Quality]:
    """The quality of several traces, one after the other; the judge's models are closed after."""
    try:
        return [await score_trace_with(judge, trace, config) for trace in traces]
    finally:
        for model in judge.models:
            if isinstance(model, ClosingModel):
                await model.aclose()


async def score_context(
    context: CheckContext[Any],
    *,
    expected_tools: tuple[str, ...] | None = None,
    dimensions: Collection[str] = DIMENSIONS,
) -> Quality:
    """The quality of a trial, with its expected tools and the default judge, if there is one."""
    config = QualityConfig(expected_tools=expected_tools)
    judge = context.judges.get(DEFAULT_JUDGE)
    if judge is None:
        return score_trace(context.trace, config, answer=context.answer, dimensions=dimensions)
    return await score_trace_with(
        judge, context.trace, config, answer=context.answer, dimensions=dimensions
    )


async def reasoning(judge: Judge, trace: Trace, answer: str | None = None) -> Dimension:
    """How sound the steps are, by a judge."""
    name = "reasoning"
    if not trace.tool_calls:
        return Dimension(name=name, score=None, why="the trace has no steps to judge")
    try:
        judged = JudgeInput.from_trace(trace, answer=answer)
        verdict = await judge.judge(judged, "reasoning")
    except ProctorError as error:
        return Dimension(name=name, score=None, why=describe_error(error), failed=True)
    method = f"judge {', '.join(model.name for model in judge.models)}"
    if verdict.normalised is None:
        why = f"the judge gave no verdict: {verdict.reason}"
        return Dimension(name=name, score=None, why=why, method=method, failed=True)
    issues = () if verdict.passed else (verdict.rationale,)
    advice = () if verdict.passed else ("read the judge's reason beside the steps it names",)
    return Dimension(
        name=name,
        score=verdict.normalised,
        why=verdict.rationale,
        issues=issues,
        recommendations=advice,
        method=method,
    )


def _asked(dimensions: Collection[str], config: QualityConfig) -> set[str]:
    asked = set(dimensions)
    if "overall" in asked:
        asked |= {name for name, weight in config.weights.items() if weight}
    return asked


def _together(
    trace: Trace,
    found: tuple[Dimension, ...],
    config: QualityConfig,
    breakdown: tuple[SpanLatency, ...],
) -> Quality:
    levelled = tuple(_levelled(each) for each in found)
    overall, weights = combined(levelled, config.weights)
    return Quality(
        trace_id=trace.trace_id,
        dimensions=levelled,
        overall=overall,
        level=None if overall is None else AVERAGE.of(overall),
        weights=weights,
        latency_breakdown=breakdown,
    )


def _levelled(dimension: Dimension) -> Dimension:
    figure = dimension.score if dimension.figure is None else dimension.figure
    if dimension.score is None or figure is None:
        return dimension
    return msgspec.structs.replace(dimension, level=LEVELS.get(dimension.name, AVERAGE).of(figure))
