"""Read and write ATIF, the Agent Trajectory Interchange Format of Harbor (v1.0 to v1.8).

Guarantees: every step of an agent is a model span (a tool step without a model if `llm_call_count`
is 0) with its metrics, every tool call a tool span with its observation; embedded sub-agents are
below the call that refers to them. Written trajectories validate with Harbor's own models: one step
per message of the user and per model call, in order, each call with the results it got. What ATIF
has no field for (other spans, errors) stays in `extra`.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from proctor.sanitize import json_bytes
from proctor.trace._fields import BadValue, content_id, first_object, is_array, is_object, moment
from proctor.trace._fields import objects as each_object
from proctor.trace.assemble import MALFORMED, Collector
from proctor.trace.conventions.values import count, mapping, number, shown, structure, text
from proctor.trace.model import Message, Span, SpanKind, SpanStatus, ToolCall, Trace

NAME = "atif"
ABOUT = "ATIF trajectories (Harbor)"

VERSION = "ATIF-v1.7"
"""What is written; nothing here needs a newer one."""

_CACHED = "gen_ai.usage.cache_read.input_tokens"


def matches(document: Any) -> bool:
    """Return whether a document is a trajectory."""
    found = first_object(document)
    version = None if found is None else found.get("schema_version")
    return isinstance(version, str) and version.startswith("ATIF-")


def read(document: Any, out: Collector) -> None:
    """Read one trajectory or a list of them."""
    for place, item in each_object(document, "trajectory", out):
        if not is_array(item.get("steps")):
            out.problem(place, "the trajectory has no steps")
            continue
        steps = item["steps"]
        if odd := sum(not is_object(step) for step in steps):
            out.problem(place, f"{odd} of {len(steps)} steps skipped: not an object")
        try:
            out.finished.append(_trace(item, len(out.finished)))
        except MALFORMED as error:
            out.problem(place, f"trajectory not understood: {type(error).__name__}: {error}"[:200])


def _trace(item: dict[str, Any], position: int) -> Trace:
    trace_id = content_id(item, position)
    agent = mapping(item.get("agent"))
    spans: list[Span] = []
    root = _read_steps(item, None, trace_id, spans)
    metadata: dict[str, Any] = {"agent": agent}
    for key in ("notes", "final_metrics", "extra"):
        if item.get(key) is not None:
            metadata[key] = item[key]
    return Trace(
        trace_id=trace_id,
        spans=spans,
        query=root.input,
        response=text(root.output),
        session_id=text(item.get("session_id")),
        metadata=metadata,
    )


def _read_steps(item: dict[str, Any], parent: str | None, trace_id: str, spans: list[Span]) -> Span:
    """Add the spans of a trajectory, and of those embedded in it; return its agent's span."""
    agent = mapping(item.get("agent"))
    name = text(agent.get("name")) or "agent"
    embedded = {
        text(each.get("trajectory_id")): each
        for each in item.get("subagent_trajectories") or ()
        if is_object(each)
    }

    def add(label: str, kind: SpanKind, above: str | None, when: int) -> Span:
        span = Span(
            span_id=f"{len(spans) + 1:016x}",
            trace_id=trace_id,
            parent_id=above,
            name=label,
            kind=kind,
            start_ns=when,
            end_ns=when,
        )
        spans.append(span)
        return span

    root = add(name, SpanKind.AGENT, parent, 0)
    root.agent_name = name
    history: list[Message] = []
    steps = [step for step in item["steps"] if is_object(step)]
    times: list[int] = [0] * len(steps)
    for at, step in enumerate(steps):
        with suppress(BadValue):
            times[at] = moment(step.get("timestamp"))
    # Without a time, steps are a nanosecond apart, also those before the first time.
    first = next((at for at, time in enumerate(times) if time), 0)
    now = max(0, times[first] - first - 1) if times else 0
    for step, time in zip(steps, times, strict=True):
        now = max(now + 1, time)
        root.start_ns = root.start_ns or now
        said = _text(step.get("message"))
        source = step.get("source")
        results = _results(step)
        if source != "agent":
            history.append(Message("user" if source == "user" else "system", said))
            if source == "user" and root.input is None:
                root.input = said
            continue
        calls = [each for each in step.get("tool_calls") or () if is_object(each)]
        message = Message(
            "assistant",
            said or None,
            tuple(
                ToolCall(
                    str(c.get("function_name")),
                    structure(c.get("arguments")),
                    text(c.get("tool_call_id")),
                )
                for c in calls
            ),
        )
        if step.get("llm_call_count") != 0:
            model = text(step.get("model_name")) or text(agent.get("model_name"))
            span = add(f"chat {model}" if model else "chat", SpanKind.LLM, root.span_id, now)
            span.model, span.status = model, SpanStatus.OK
            span.input_messages, span.output_messages = tuple(history), (message,)
            metrics = mapping(step.get("metrics"))
            span.input_tokens = count(metrics.get("prompt_tokens"))
            span.output_tokens = count(metrics.get("completion_tokens"))
            span.cost_usd = number(metrics.get("cost_usd"))
            if (cached := count(metrics.get("cached_tokens"))) is not None:
                span.attributes = {_CACHED: cached}
        history.append(message)
        for call in calls:
            key, called = text(call.get("tool_call_id")), str(call.get("function_name"))
            tool = add(called, SpanKind.TOOL, root.span_id, now)
            tool.tool_name, tool.tool_call_id = called, key
            tool.tool_input = structure(call.get("arguments"))
            result = results.pop(key, None)
            if result is not None:
                tool.tool_output, tool.status = _text(result.get("content")), SpanStatus.OK
                history.append(Message("tool", _text(result.get("content")), tool_call_id=key))
                for ref in result.get("subagent_trajectory_ref") or ():
                    sub = embedded.pop(text(mapping(ref).get("trajectory_id")), None)
                    if sub is not None and is_array(sub.get("steps")):
                        _read_steps(sub, tool.span_id, trace_id, spans)
        if said and not calls:
            root.output = said
    root.end_ns = max(now, root.start_ns)
    return root


def _results(step: dict[str, Any]) -> dict[str | None, dict[str, Any]]:
    results = mapping(step.get("observation")).get("results")
    found = results if is_array(results) else []
    return {text(each.get("source_call_id")): each for each in found if is_object(each)}


def _text(content: Any) -> str:
    if is_array(content):
        return "\n".join(str(part.get("text", "")) for part in content if is_object(part))
    return content if isinstance(content, str) else ""


# -- writing -------------------------------------------------------------------------------------


def encode_atif(trace: Trace) -> bytes:
    """Return a trace as one ATIF trajectory, a line of JSON."""
    steps: list[dict[str, Any]] = []

    def add(source: str, said: str, when: int | None = None) -> dict[str, Any]:
        step: dict[str, Any] = {"step_id": len(steps) + 1, "source": source, "message": said}
        if when:
            step["timestamp"] = datetime.fromtimestamp(when / 1e9, UTC).isoformat()
        steps.append(step)
        return step

    ordered = sorted(trace.spans, key=lambda span: span.start_ns)
    calls = [span for span in ordered if span.kind is SpanKind.LLM]
    tools = [span for span in ordered if span.kind is SpanKind.TOOL]
    first_input = calls[0].input_messages if calls else ()
    for message in first_input:
        if message.role in ("system", "developer", "user"):
            add("user" if message.role == "user" else "system", message.content or "")
    if trace.query is not None and not any(step["source"] == "user" for step in steps):
        add("user", shown(trace.query) or "")
    placed: set[int] = set()
    for position, span in enumerate(calls):
        said = "\n".join(m.content for m in span.output_messages if m.content)
        step = add("agent", said, span.start_ns)
        step["llm_call_count"] = 1
        if span.model:
            step["model_name"] = span.model
        metrics = {
            "prompt_tokens": span.input_tokens,
            "completion_tokens": span.output_tokens,
            "cached_tokens": count(span.attributes.get(_CACHED)),
            "cost_usd": span.cost_usd,
        }
        if known := {key: value for key, value in metrics.items() if value is not None}:
            step["metrics"] = known
        if span.error_message:
            step["extra"] = {"error": span.error_message}
        requested = [call for m in span.output_messages for call in m.tool_calls]
        following = calls[position + 1].start_ns if position + 1 < len(calls) else None
        for number_, call in enumerate(requested):
            same = [
                (index, tool)
                for index, tool in enumerate(tools)
                if index not in placed
                and (tool.tool_call_id == call.id if call.id else tool.tool_name == call.name)
            ]
            key = call.id or f"call_{step['step_id']}_{number_}"
            _add_call(step, key, call.name, call.arguments, same[0][1] if same else None)
            placed.update(index for index, _ in same[:1])
        # Tools that no model is seen to have called ran between this call and the next.
        for index, tool in enumerate(tools):
            inside = following is None or tool.start_ns < following
            if index not in placed and tool.start_ns >= span.start_ns and inside:
                known_id = any(
                    tool.tool_call_id == c.id
                    for other in calls
                    for m in other.output_messages
                    for c in m.tool_calls
                    if c.id
                )
                if not known_id:
                    key = tool.tool_call_id or f"call_{step['step_id']}_{tool.span_id}"
                    _add_call(step, key, tool.tool_name or tool.name, tool.tool_input, tool)
                    placed.add(index)
    for index, tool in enumerate(tools):
        if index not in placed:
            step = add("agent", "", tool.start_ns)
            step["llm_call_count"] = 0
            key = tool.tool_call_id or f"call_{tool.span_id}"
            _add_call(step, key, tool.tool_name or tool.name, tool.tool_input, tool)
    if trace.response and not any(trace.response == step["message"] for step in steps):
        add("agent", trace.response)
    if not steps:
        add("user", "")
    agent = mapping(trace.metadata.get("agent"))
    roots = [span for span in trace.spans if span.parent_id is None]
    name = text(agent.get("name")) or (roots[0].name if roots else None) or "agent"
    document: dict[str, Any] = {
        "schema_version": VERSION,
        "session_id": trace.session_id or trace.trace_id,
        "trajectory_id": trace.trace_id,
        "agent": {"name": name, "version": text(agent.get("version")) or "unknown"},
        "steps": steps,
        "final_metrics": _totals(calls, len(steps)),
    }
    model = next((span.model for span in calls if span.model), None)
    if model:
        document["agent"]["model_name"] = model
    return json_bytes(document) + b"\n"


def _add_call(step: dict[str, Any], key: str, name: str, arguments: Any, tool: Span | None) -> None:
    """Add a tool call to a step, and its result if there was one."""
    taken = {call["tool_call_id"] for call in step.setdefault("tool_calls", [])}
    if key in taken:
        key = f"{key}_{len(taken)}"
    given = arguments if is_object(arguments) else {} if arguments is None else {"input": arguments}
    step["tool_calls"].append({"tool_call_id": key, "function_name": name, "arguments": given})
    if tool is None:
        return
    content = shown(tool.tool_output)
    if tool.error_message and not content:
        content = tool.error_message
    results = step.setdefault("observation", {"results": []})["results"]
    results.append({"source_call_id": key, "content": content or ""})


def _totals(calls: list[Span], steps: int) -> dict[str, Any]:
    """Return the sums of a trajectory; one that is not known for every call is left out."""
    totals: dict[str, Any] = {"total_steps": steps}
    for key, field in (
        ("total_prompt_tokens", "input_tokens"),
        ("total_completion_tokens", "output_tokens"),
        ("total_cost_usd", "cost_usd"),
    ):
        values = [getattr(span, field) for span in calls]
        if values and None not in values:
            totals[key] = sum(values)
    return totals
