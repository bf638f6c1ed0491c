"""The spans of `serve.py`: export requests of invented spans of 1.5 KB, and of TRAIL's own."""

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from _measure import ROOT
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from proctor.trace import Span
from proctor.trace.load import load_traces

WORDS = "weather river station market train ticket order status customer answer harbour".split()
NOW = 1_794_800_000_000_000_000


class Load(NamedTuple):
    """Bodies to be sent, and how many spans they hold in all."""

    bodies: list[bytes]
    spans: int

    @property
    def each(self) -> float:
        """Bytes of a span."""
        return sum(map(len, self.bodies)) / self.spans


def invented(requests: int, spans: int = 100, seed: int = 0, trace_spans: int = 10) -> Load:
    """Agents that ask a model and use a tool, ten spans a trace, as OpenInference writes them."""
    rng = random.Random(seed)
    bodies = []
    for _ in range(requests):
        request, group = _empty()
        trace_id = root = b""
        for number in range(spans):
            if number % trace_spans == 0:
                trace_id, root = rng.randbytes(16), b""
            span = group.spans.add(trace_id=trace_id, span_id=rng.randbytes(8), parent_span_id=root)
            root = root or span.span_id
            span.start_time_unix_nano = NOW + number * 1000
            span.end_time_unix_nano = span.start_time_unix_nano + rng.randrange(10**9)
            span.name, attributes = _step(number % trace_spans, rng)
            _put(span.attributes, attributes)
        bodies.append(request.SerializeToString())
    return Load(bodies, requests * spans)


def _step(number: int, rng: random.Random) -> tuple[str, dict[str, Any]]:
    text = " ".join(rng.choices(WORDS, k=170))
    if number == 0:
        return "agent", {
            "openinference.span.kind": "AGENT",
            "input.value": text[:300],
            "output.value": text[300:],
            "session.id": f"s{rng.randrange(500)}",
        }
    if number % 3 == 0:
        return "search", {
            "openinference.span.kind": "TOOL",
            "tool.name": "search",
            "input.value": json.dumps({"query": text[:80]}),
            "output.value": text,
        }
    return "ChatCompletion", {
        "openinference.span.kind": "LLM",
        "llm.model_name": "gpt-4o-mini",
        "llm.token_count.prompt": 400,
        "llm.token_count.completion": 40,
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": text[:1000],
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": text[1000:],
    }


def trail(copies: int, seed: int = 0, files: int = 30) -> Load | None:
    """Return TRAIL's traces as export requests, each copy with its own ids."""
    paths = sorted((ROOT.parent / "shared" / "trail" / "data").rglob("*.json"))
    chosen = paths[:: max(1, len(paths) // files)]
    traces = load_traces(chosen) if chosen else ()
    if not traces:
        return None
    rng = random.Random(seed)
    bodies, spans = [], 0
    for _ in range(copies):
        for trace in traces:
            trace_id = rng.randbytes(16)
            for part in _parts(trace.spans):
                request, group = _empty()
                for span in part:
                    _copy(group.spans.add(), span, trace_id)
                bodies.append(request.SerializeToString())
                spans += len(part)
    return Load(bodies, spans)


def _parts(spans: list[Span], size: int = 100) -> Iterator[list[Span]]:
    for start in range(0, len(spans), size):
        yield spans[start : start + size]


def _copy(target: Any, span: Span, trace_id: bytes) -> None:
    target.trace_id = trace_id
    target.span_id = _eight(span.span_id)
    if span.parent_id:
        target.parent_span_id = _eight(span.parent_id)
    target.name = span.name
    target.start_time_unix_nano = span.start_ns
    target.end_time_unix_nano = span.end_ns or 0
    _put(target.attributes, span.attributes)


def _eight(identity: str) -> bytes:
    return bytes.fromhex(identity)[:8].rjust(8, b"\1")


def _empty() -> tuple[ExportTraceServiceRequest, Any]:
    request = ExportTraceServiceRequest()
    batch = request.resource_spans.add()
    _put(batch.resource.attributes, {"service.name": "benchmark"})
    return request, batch.scope_spans.add()


def _put(target: Any, attributes: dict[str, Any]) -> None:
    for key, value in attributes.items():
        item = target.add(key=key)
        if isinstance(value, bool):
            item.value.bool_value = value
        elif isinstance(value, int):
            item.value.int_value = value
        elif isinstance(value, float):
            item.value.double_value = value
        else:
            item.value.string_value = value if isinstance(value, str) else json.dumps(value)
