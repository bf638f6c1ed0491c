"""The dimensions of quality that need no judge: pure functions of a trace and its configuration.

Promise: each gives a score in 0..1, or None with the reason when there is nothing to score;
every point taken off is an issue with the spans it is about and something to do about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from proctor.checks.metrics.tools import loops, redundancy
from proctor.checks.path_parts import tool_name
from proctor.checks.quality_model import (
    Dimension,
    QualityConfig,
    SpanLatency,
)
from proctor.checks.text import PatternTimeout, search
from proctor.checks.view import plain
from proctor.trace import Span, SpanKind, Trace

NO_CALLS = "the trace has no tool calls"


def tool_selection(trace: Trace, config: QualityConfig) -> Dimension:
    """2·|E∩U| / (|E|+|U|) of expected and used tools: 1 for exactly the expected ones."""
    name = "tool_selection"
    expected, why = _expected(trace, config)
    if expected is None:
        return Dimension(name=name, score=None, why=why)
    used = trace.tools_used
    if not expected and not used:
        return Dimension(name=name, score=1.0, why="no tool expected, none used")
    missing = [tool for tool in expected if tool not in used]
    needless = [tool for tool in used if tool not in expected]
    hits = len(expected) - len(missing)
    return Dimension(
        name=name,
        score=2 * hits / (len(expected) + len(used)),
        issues=(
            *(f"{tool_name(tool)} was expected and not used" for tool in missing),
            *(f"{tool_name(tool)} was used and not expected" for tool in needless),
        ),
        recommendations=(
            *((f"say in the instructions when to use {_names(missing)}",) if missing else ()),
            *((f"say when not to use {_names(needless)}, or do not offer it",) if needless else ()),
        ),
        span_ids=_call_ids(
            trace, [n for n, c in enumerate(trace.tool_calls) if c.name in needless]
        ),
    )


def _expected(trace: Trace, config: QualityConfig) -> tuple[list[str] | None, str]:
    """The tools a trace should use, each once; None and the reason when nothing says so."""
    if config.expected_tools is not None:
        return list(dict.fromkeys(config.expected_tools)), ""
    if not config.rules:
        return None, "no expected tools and no query rules are configured"
    query = trace.query if isinstance(trace.query, str) else str(plain(trace.query) or "")
    found: list[str] = []
    for rule in config.rules:
        try:
            if search(rule.when, query) is not None:
                found.extend(rule.tools)
        except PatternTimeout as error:
            return None, str(error)
    return (list(dict.fromkeys(found)), "") if found else (None, "no query rule matches the query")


def sequence(trace: Trace, config: QualityConfig) -> Dimension:
    """1, less a penalty for each immediate repeat and for each redundant order that is seen."""
    calls = trace.tool_calls
    if not calls:
        return Dimension(name="sequence", score=None, why=NO_CALLS)
    found = loops([call.name for call in calls])
    orders = _redundant_orders(trace, config)
    score = 1.0 - config.repeat_penalty * found.repeats - config.order_penalty * len(orders)
    repeated = [n for run in found.runs for n in range(run.start + 1, run.start + run.length)]
    return Dimension(
        name="sequence",
        score=_clamped(score),
        issues=(
            *(f"{tool_name(run.tool)} called {run.length} times in a row" for run in found.runs),
            *(
                f"{tool_name(_label(then))} after {tool_name(_label(first))}, which is redundant"
                for first, then in orders
            ),
        ),
        recommendations=(
            *(("let one call do the work of several in a row",) if found.runs else ()),
            *(("answer from what the first step found before taking the next",) if orders else ()),
        ),
        span_ids=(*_call_ids(trace, repeated), *(then.span_id for _, then in orders)),
    )


def _redundant_orders(trace: Trace, config: QualityConfig) -> list[tuple[Span, Span]]:
    """The first place where each configured order is seen."""
    mask = [span.kind in (SpanKind.TOOL, SpanKind.RETRIEVAL) for span in trace.index.spans]
    # A retrieval inside a tool is the same step seen twice.
    steps = trace.index.outermost(mask)
    found: list[tuple[Span, Span]] = []
    for order in config.redundant_orders:
        left = iter(steps)
        first = next((span for span in left if _is(span, order.first)), None)
        then = next((span for span in left if _is(span, order.then)), None)
        if first is not None and then is not None:
            found.append((first, then))
    return found


def _is(span: Span, pattern: str) -> bool:
    if pattern == "retrieval" and span.kind == SpanKind.RETRIEVAL:
        return True
    return fnmatchcase(_label(span).casefold(), pattern.casefold())


def redundant_calls(trace: Trace, config: QualityConfig) -> Dimension:
    """1 less the share of calls that repeat an earlier one: same tool, same input."""
    del config
    calls = trace.tool_calls
    found = redundancy(calls)
    if found.share is None:
        return Dimension(name="redundancy", score=None, why=NO_CALLS)
    counts = Counter(repeat.tool for repeat in found.repeats)
    return Dimension(
        name="redundancy",
        score=1.0 - found.share,
        figure=found.share,
        issues=tuple(
            f"{tool_name(tool)} called again with the same input, {number} of {len(calls)} calls"
            for tool, number in counts.items()
        ),
        recommendations=(
            ("keep results of earlier calls in the agent's context, or cache the tool",)
            if counts
            else ()
        ),
        span_ids=_call_ids(trace, [repeat.position for repeat in found.repeats]),
    )


def efficiency(trace: Trace, config: QualityConfig) -> Dimension:
    """By the number of tool calls, less a penalty for each redundant one."""
    calls = trace.tool_calls
    score = _stepped(len(calls), config.efficiency_steps, config.efficiency_beyond)
    repeats = redundancy(calls).repeats
    fine = config.efficiency_steps[0][0] if config.efficiency_steps else 0
    issues: list[str] = []
    if score < 1.0:
        issues.append(f"{len(calls)} tool calls, {fine:g} or fewer are best")
    if repeats:
        issues.append(f"{len(repeats)} redundant calls")
    return Dimension(
        name="efficiency",
        score=_clamped(score - config.redundant_call_penalty * len(repeats)),
        issues=tuple(issues),
        recommendations=("combine calls, or give tools that answer more at once",)
        if issues
        else (),
        span_ids=_call_ids(trace, [repeat.position for repeat in repeats]),
    )


def latencies(trace: Trace, config: QualityConfig) -> tuple[SpanLatency, ...]:
    """Every measured time against its target: the whole trace first, then by start."""
    targets = config.latency
    found: list[SpanLatency] = []
    if trace.duration is not None:
        found.append(_latency(None, "total", "total", trace.duration, targets.total, config))
    calls = {id(span) for span in trace.llm_calls}
    for span in trace.index.spans:
        target = {
            SpanKind.TOOL: targets.tool,
            SpanKind.RETRIEVAL: targets.retrieval,
            SpanKind.LLM: targets.llm if id(span) in calls else None,
        }.get(span.kind)
        if target is not None and span.duration is not None:
            label, kind = _label(span), str(span.kind)
            found.append(_latency(span.span_id, label, kind, span.duration, target, config))
    return tuple(found)


def _latency(
    span_id: str | None,
    name: str,
    kind: str,
    seconds: float,
    target: float,
    config: QualityConfig,
) -> SpanLatency:
    taken = seconds * 1000
    return SpanLatency(
        span_id=span_id,
        name=name,
        kind=kind,
        ms=round(taken, 3),
        target_ms=target,
        ratio=taken / target,
        score=_stepped(taken / target, config.latency_steps, config.latency_beyond),
    )


def latency(breakdown: Sequence[SpanLatency]) -> Dimension:
    """The mean over the total and each kind of span, a kind being the mean over its spans."""
    if not breakdown:
        return Dimension(name="latency", score=None, why="no span of the trace has ended")
    kinds: dict[str, list[float]] = {}
    for each in breakdown:
        kinds.setdefault(each.kind, []).append(each.score)
    slow = [each for each in breakdown if each.ratio > 1]
    slowest = sorted(slow, key=lambda each: -each.ratio)
    return Dimension(
        name="latency",
        score=sum(sum(scores) / len(scores) for scores in kinds.values()) / len(kinds),
        figure=1 - len(slow) / len(breakdown),
        issues=tuple(
            f"{tool_name(each.name)} took {each.ms:,.0f} ms, {each.ratio:.1f} × its target"
            for each in slowest
        ),
        recommendations=tuple(
            _FASTER[kind] for kind in dict.fromkeys(each.kind for each in slowest)
        ),
        span_ids=tuple(each.span_id for each in slowest if each.span_id is not None),
    )


_FASTER = {
    "total": "run independent steps at the same time",
    "tool": "make slow tools faster, or give them a time limit",
    "llm": "use a smaller model or shorter prompts where that is enough",
    "retrieval": "index, cache or narrow slow retrievals",
}


def error_recovery(trace: Trace, config: QualityConfig) -> Dimension:
    """The share of errors after which the same kind of step (the same tool) later worked.

    An error that goes up through the spans around it is one error, counted where it arose.
    """
    del config
    spans = trace.index.spans
    errors = trace.index.innermost([span.failed for span in spans])
    if not errors:
        return Dimension(name="error_recovery", score=None, why="the trace has no errors")
    successes = _last_successes(spans)
    left = [error for error in errors if not _recovered(error, successes)]
    return Dimension(
        name="error_recovery",
        score=(len(errors) - len(left)) / len(errors),
        issues=tuple(
            f"{tool_name(_label(error))} failed ({tool_name(error.error_type or 'error')}) "
            "and never worked after that"
            for error in left
        ),
        recommendations=(
            ("let the agent see the error, and say in its instructions what to try then",)
            if left
            else ()
        ),
        span_ids=tuple(error.span_id for error in left),
    )


def _last_successes(spans: Iterable[Span]) -> dict[tuple[str, str], int]:
    """When each kind of step (each tool by itself) last began and worked."""
    last: dict[tuple[str, str], int] = {}
    for span in spans:
        if not span.failed and span.end_ns is not None:
            key = _step(span)
            last[key] = max(last.get(key, span.start_ns), span.start_ns)
    return last


def _recovered(error: Span, successes: dict[tuple[str, str], int]) -> bool:
    ended = error.end_ns if error.end_ns is not None else error.start_ns
    last = successes.get(_step(error))
    return last is not None and last >= ended


def _step(span: Span) -> tuple[str, str]:
    return span.kind, _label(span) if span.kind == SpanKind.TOOL else ""


# -- parts ---------------------------------------------------------------------------------------


def _stepped(figure: float, steps: Iterable[tuple[float, float]], beyond: float) -> float:
    return next((score for most, score in steps if figure <= most), beyond)


def _clamped(score: float) -> float:
    # Sums of tenths are not exact; a penalty taken five times must still end at 0.
    return min(1.0, max(0.0, round(score, 10)))


def _label(span: Span) -> str:
    return span.tool_name or span.name


def _names(names: Sequence[str]) -> str:
    return ", ".join(tool_name(name) for name in names)


def _call_ids(trace: Trace, positions: Iterable[int]) -> tuple[str, ...]:
    calls = trace.tool_calls
    found = (calls[position].span_id for position in positions)
    return tuple(dict.fromkeys(span_id for span_id in found if span_id is not None))
