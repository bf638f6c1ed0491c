"""Read model calls from HTTP traffic: a request and its response become the span of a model call.

    protocol = model_protocol("POST", "https://api.openai.com/v1/chat/completions")
    span = read_model_call(protocol, url, request_body, response_body, "application/json")

Used wherever Proctor sees what passes between an agent and a model: by its own models, for clients
in this process, in the model gateway and in the scripted server. Recognised are OpenAI chat
completions and responses, Anthropic messages, Gemini generateContent, Bedrock converse and Ollama
chat, whole or streamed; every other server that speaks one of these is recognised by its path.

Guarantees: never raises, whatever the bytes are; what cannot be read is left out of the span.
`input_tokens` includes cached tokens, as in the GenAI conventions, although Anthropic and Bedrock
report them separately.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from proctor.trace.conventions.messages import messages_from
from proctor.trace.conventions.values import count, first, is_list, is_mapping, mapping, text
from proctor.trace.model import NO_TOOLS_OFFERED, Message, Span, SpanKind, SpanStatus

Protocol = Literal["openai", "responses", "anthropic", "gemini", "bedrock", "ollama"]

MAX_BODY = 64 * 1024 * 1024
"""Bytes of a request or response that are read; a longer one gives a span without content."""

_PATHS: tuple[tuple[re.Pattern[str], Protocol], ...] = (
    (re.compile(r"/chat/completions$"), "openai"),
    (re.compile(r"/responses$"), "responses"),
    (re.compile(r"/v1/messages$"), "anthropic"),
    (re.compile(r"/(?:models|tunedModels)/[^/]+:(?:streamG|g)enerateContent$"), "gemini"),
    (re.compile(r"/model/[^/]+/converse(?:-stream)?$"), "bedrock"),
    (re.compile(r"/api/chat$"), "ollama"),
)

# Host → name of the provider in the GenAI conventions. A host that is not here says nothing about
# who serves the model, so a price is looked up by the model's name alone.
_PROVIDERS = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.deepseek.com": "deepseek",
    "api.x.ai": "x_ai",
    "api.cohere.com": "cohere",
    "api.perplexity.ai": "perplexity",
    "api.together.xyz": "together",
    "api.fireworks.ai": "fireworks",
    "openrouter.ai": "openrouter",
}
_PROVIDER_SUFFIXES = {
    ".openai.azure.com": "azure.ai.openai",
    ".services.ai.azure.com": "azure.ai.inference",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    ".amazonaws.com": "aws.bedrock",
}


def model_protocol(method: str, url: str) -> Protocol | None:
    """Return the protocol of a request to a model; None for any other request."""
    if method.upper() != "POST":
        return None
    path = urlsplit(url).path.rstrip("/")
    return next((name for pattern, name in _PATHS if pattern.search(path)), None)


def read_model_call(
    protocol: Protocol,
    url: str,
    request: bytes,
    response: bytes,
    content_type: str = "",
    status: int = 200,
    *,
    span: Span | None = None,
) -> Span:
    """Fill a span with a model call, or a new one without ids and times, and return it."""
    asked = mapping(_decoded(request))
    span = span or Span(span_id="", trace_id="", name="chat", kind=SpanKind.LLM)
    attributes = span.attributes = {"gen_ai.operation.name": "chat"}
    if provider := provider_of(url):
        attributes["gen_ai.provider.name"] = provider
    span.model = text(asked.get("model")) or _model_in_path(url)
    if span.model:
        attributes["gen_ai.request.model"] = span.model
        span.name = f"chat {span.model}"
    span.input_messages = request_messages(asked)
    # A stored prompt may bring tools of its own.
    if asked and not _offers_tools(asked) and "prompt" not in asked:
        attributes[NO_TOOLS_OFFERED] = True
    read_reply(span, protocol, _response_document(protocol, response, content_type), status)
    return span


def read_reply(span: Span, protocol: Protocol, answered: dict[str, Any], status: int = 200) -> None:
    """Fill a span with the reply of a model, one document."""
    attributes = span.attributes
    requested, span.model = span.model, text(first(answered, ("model", "modelVersion")))
    if span.model and span.model != requested:
        attributes["gen_ai.response.model"] = span.model
    span.model = span.model or requested
    if identity := text(first(answered, ("id", "responseId"))):
        attributes["gen_ai.response.id"] = identity
    span.output_messages, reasons = _output(protocol, answered)
    if reasons:
        attributes["gen_ai.response.finish_reasons"] = reasons
    _read_usage(span, mapping(first(answered, ("usage", "usageMetadata"))) or answered)
    if status >= 400 or answered.get("error"):
        span.status = SpanStatus.ERROR
        problem = mapping(answered.get("error")) or answered
        span.error_type = text(first(problem, ("type", "code", "status"))) or str(status)
        message = text(first(problem, ("message", "error")))
        span.error_message = message or f"the model's server answered with status {status}"
        attributes["error.type"] = span.error_type
    else:
        span.status = SpanStatus.OK


def provider_of(url: str) -> str | None:
    """Return the provider whose host a URL names; None for a proxy or a server of one's own."""
    host = (urlsplit(url).hostname or "").lower()
    if host in _PROVIDERS:
        return _PROVIDERS[host]
    return next((name for end, name in _PROVIDER_SUFFIXES.items() if host.endswith(end)), None)


def _model_in_path(url: str) -> str | None:
    """Return the model that Gemini, Bedrock and Azure name in the path."""
    found = re.search(r"/(?:models?|tunedModels|deployments)/([^/:]+)", urlsplit(url).path)
    return unquote(found[1]) if found else None


def _decoded(body: bytes) -> Any:
    if not body or len(body) > MAX_BODY:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The fast decoder refuses lone surrogates and NaN, which servers do send.
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return None


# -- requests ----------------------------------------------------------------------------------


def _offers_tools(asked: Mapping[str, Any]) -> bool:
    """Return whether the model may request tools, in the words of any protocol."""
    return bool(
        first(asked, ("tools", "functions")) or mapping(asked.get("toolConfig")).get("tools")
    )


def request_messages(asked: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return the conversation of a request: instructions first, then the messages."""
    messages: list[Message] = []
    instructions = first(
        asked, ("system", "instructions", "systemInstruction", "system_instruction")
    )
    if instructions:
        if is_mapping(instructions):  # Gemini's is a message of its own
            instructions = first(instructions, ("parts", "text"))
        messages += messages_from({"role": "system", "content": instructions}, "system")
    messages += messages_from(first(asked, ("messages", "input", "contents")), "user")
    return tuple(messages)


# -- responses ---------------------------------------------------------------------------------


def _response_document(protocol: Protocol, body: bytes, content_type: str) -> dict[str, Any]:
    """Return a response as one document; the events of a stream are put together."""
    if len(body) > MAX_BODY:
        return {}
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/vnd.amazon.eventstream":
        return _join_bedrock(_amazon_events(body))
    if kind == "text/event-stream" or body[:6] in (b"event:", b"data: "):
        events = _server_sent_events(body)
    else:
        whole = _decoded(body)
        if is_mapping(whole):
            return whole
        # Gemini without `alt=sse` streams a JSON array, Ollama a document per line.
        events = whole if is_list(whole) else [_decoded(line) for line in body.splitlines()]
    documents = [event for event in events if is_mapping(event)]
    try:
        return _JOIN[protocol](documents)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError):
        # A server may stream anything; the last whole document is better than none.
        return documents[-1] if documents else {}


def _server_sent_events(body: bytes) -> list[Any]:
    """Return the JSON of every event of a stream."""
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n")
    events: list[bytes] = []
    for block in body.split(b"\n\n"):
        if block.startswith(b"data:") and b"\n" not in block:
            data = block[5:]
        else:
            lines = block.split(b"\n")
            data = b"\n".join(line[5:] for line in lines if line.startswith(b"data:"))
        data = data.strip()
        if data and data != b"[DONE]":
            events.append(data)
    # At once, which is twice as fast; one by one if an event is no JSON.
    whole = _decoded(b"[" + b",".join(events) + b"]")
    return list(whole) if is_list(whole) and whole else [_decoded(event) for event in events]


def _amazon_events(body: bytes) -> Iterator[dict[str, Any]]:
    """Yield `{event type: payload}` for each message of Amazon's binary event stream."""
    at = 0
    while at + 16 <= len(body):
        total = int.from_bytes(body[at : at + 4])
        headers_length = int.from_bytes(body[at + 4 : at + 8])
        if total < 16 or at + total > len(body):
            return
        headers = body[at + 12 : at + 12 + headers_length]
        payload = _decoded(body[at + 12 + headers_length : at + total - 4])
        # A header is: length of the name, name, type 7 (text), length of the value, value.
        named = re.search(rb"\x0b:event-type\x07..([A-Za-z]+)", headers, re.DOTALL)
        if named and is_mapping(payload):
            yield {named[1].decode(): payload}
        at += total


def _join_openai(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    done: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        # Every chunk repeats the head; the last ones add the usage.
        if not done or "usage" in chunk or "error" in chunk:
            done.update({k: v for k, v in chunk.items() if k != "choices" and v is not None})
        parts = chunk.get("choices")
        for part in parts if is_list(parts) else ():
            if not is_mapping(part):
                continue
            index = part.get("index") or 0
            choice = choices.get(index)
            if choice is None:
                message: dict[str, Any] = {"role": "assistant"}
                choice = choices[index] = {"message": message, "calls": {}}
                choice |= {"content": [], "refusal": []}
            if part.get("finish_reason"):
                choice["finish_reason"] = part["finish_reason"]
            delta = part.get("delta")
            if not is_mapping(delta):
                continue
            # Class comparisons instead of a loop over keys: this runs for every token.
            if (said := delta.get("content")).__class__ is str:
                choice["content"].append(said)
            if (said := delta.get("refusal")).__class__ is str:
                choice["refusal"].append(said)
            if "tool_calls" not in delta:
                continue
            calls: dict[Any, dict[str, Any]] = choice["calls"]
            for piece in mappings(delta["tool_calls"]):
                # Most servers number the calls; some send each call whole, without a number.
                number = piece.get("index", len(calls))
                call = calls.setdefault(number, {"function": {"name": "", "arguments": ""}})
                call["id"] = piece.get("id") or call.get("id")
                for key, value in mapping(piece.get("function")).items():
                    if isinstance(value, str):
                        call["function"][key] = call["function"].get(key, "") + value
    for choice in choices.values():
        texts = {key: choice.pop(key) for key in ("content", "refusal")}
        choice["message"] |= {key: "".join(pieces) for key, pieces in texts.items() if pieces}
        choice["message"]["tool_calls"] = list(choice["calls"].values())
    done["choices"] = [choices[index] for index in sorted(choices)]
    return done


def _join_responses(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the response of the last event that holds one: it is complete at the end."""
    done: dict[str, Any] = {}
    items: list[Any] = []
    for event in events:
        if is_mapping(event.get("response")):
            done = event["response"]
        elif event.get("type") == "response.output_item.done":
            items.append(event.get("item"))
        elif event.get("type") == "error":
            done = {**done, "error": event.get("error") or event}
    # A stream that was cut has its finished items only in their own events.
    return done if done.get("output") else {**done, "output": items}


def _join_anthropic(events: list[dict[str, Any]]) -> dict[str, Any]:
    done: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        kind = event.get("type")
        if kind == "message_start":
            done = dict(mapping(event.get("message")))
        elif kind == "content_block_start":
            blocks[event["index"]] = dict(mapping(event.get("content_block")))
        elif kind == "content_block_delta":
            delta = mapping(event.get("delta"))
            block = blocks.setdefault(event["index"], {"type": "text"})
            for key, target in (("text", "text"), ("partial_json", "json"), ("thinking", "text")):
                if isinstance(delta.get(key), str):
                    block[target] = block.get(target, "") + delta[key]
        elif kind == "message_delta":
            done.update(mapping(event.get("delta")))
            done["usage"] = {**mapping(done.get("usage")), **mapping(event.get("usage"))}
        elif kind == "error":
            done["error"] = event.get("error")
    for block in blocks.values():
        if "json" in block:
            block["input"] = _decoded(block.pop("json").encode()) or {}
    done["content"] = [blocks[index] for index in sorted(blocks)]
    return done


def _join_gemini(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    done: dict[str, Any] = {}
    parts: list[dict[str, Any]] = []
    for chunk in chunks:
        done.update({key: value for key, value in chunk.items() if key != "candidates"})
        for candidate in mappings(chunk.get("candidates"))[:1]:
            done["finishReason"] = candidate.get("finishReason") or done.get("finishReason")
            for part in mappings(mapping(candidate.get("content")).get("parts")):
                # Text arrives in pieces of one part; calls arrive whole.
                if parts and set(part) == {"text"} == set(parts[-1]):
                    parts[-1]["text"] += part["text"]
                else:
                    parts.append(dict(part))
    content = {"role": "model", "parts": parts}
    done["candidates"] = [{"content": content, "finishReason": done.pop("finishReason", None)}]
    return done


def _join_bedrock(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    done: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        for kind, payload in event.items():
            block = blocks.setdefault(payload.get("contentBlockIndex", 0), {})
            delta = mapping(payload.get("delta"))
            if kind == "contentBlockStart":
                block.update(mapping(payload.get("start")))
            elif isinstance(delta.get("text"), str):
                block["text"] = block.get("text", "") + delta["text"]
            elif is_mapping(delta.get("toolUse")):
                call = block.setdefault("toolUse", {})
                call["input"] = call.get("input", "") + str(delta["toolUse"].get("input", ""))
            elif kind in ("messageStop", "metadata"):
                done.update(payload)
    content = [blocks[index] for index in sorted(blocks) if blocks[index]]
    done["output"] = {"message": {"role": "assistant", "content": content}}
    return done


def _join_ollama(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    done: dict[str, Any] = {}
    said, calls = "", list[Any]()
    for chunk in chunks:
        message = mapping(chunk.get("message"))
        said += text(message.get("content")) or ""
        calls += mappings(message.get("tool_calls"))
        done.update(chunk)
    done["message"] = {"role": "assistant", "content": said, "tool_calls": calls}
    return done


_JOIN = {
    "openai": _join_openai,
    "responses": _join_responses,
    "anthropic": _join_anthropic,
    "gemini": _join_gemini,
    "bedrock": _join_bedrock,
    "ollama": _join_ollama,
}


def _output(protocol: Protocol, answered: dict[str, Any]) -> tuple[tuple[Message, ...], list[str]]:
    """Return the messages of a response, and why the model stopped."""
    said: list[Any]
    if protocol == "openai":
        choices = mappings(answered.get("choices"))
        said = [choice.get("message") for choice in choices]
        reasons = [choice.get("finish_reason") for choice in choices]
    elif protocol == "responses":
        said = [
            {**item, "content": _whole_text(item.get("content"))} if "content" in item else item
            for item in mappings(answered.get("output"))
        ]
        incomplete = mapping(answered.get("incomplete_details")).get("reason")
        reasons = [incomplete or answered.get("status")]
    elif protocol == "gemini":
        candidates = mappings(answered.get("candidates"))
        contents = [mapping(candidate.get("content")) for candidate in candidates]
        said = [{**each, "parts": _whole_text(each.get("parts"))} for each in contents if each]
        reasons = [candidate.get("finishReason") for candidate in candidates]
    elif protocol == "bedrock":
        said = [mapping(answered.get("output")).get("message")]
        reasons = [answered.get("stopReason")]
    elif protocol == "ollama":
        said, reasons = [answered.get("message")], [answered.get("done_reason")]
    else:
        blocks = _whole_text(answered.get("content"))
        said = [{"role": "assistant", "content": blocks}] if blocks else []
        reasons = [answered.get("stop_reason")]
    return messages_from(said, "assistant"), [each for each in reasons if isinstance(each, str)]


def _whole_text(parts: Any) -> Any:
    """Return the parts of a reply with its text in one piece, and without the model's thoughts.

    Servers cut a text anywhere: for citations, or as it was written.
    """
    if not is_list(parts):
        return parts
    joined: list[Any] = []
    for part in (each for each in parts if not mapping(each).get("thought")):
        before, here = mapping(joined[-1] if joined else None), mapping(part)
        start, rest = text(before.get("text")), text(here.get("text"))
        if start and rest and before.get("type") == here.get("type"):
            joined[-1] = {**before, "text": start + rest}
        else:
            joined.append(part)
    return joined


def _read_usage(span: Span, usage: Mapping[str, Any]) -> None:
    """Read the token counts of any protocol; a missing count stays unknown."""
    attributes = span.attributes
    details = mapping(first(usage, ("prompt_tokens_details", "input_tokens_details")))
    read = count(
        first(
            {**details, **usage},
            (
                "cache_read_input_tokens",
                "cached_tokens",
                "cachedContentTokenCount",
                "cacheReadInputTokens",
            ),
        )
    )
    written = count(first(usage, ("cache_creation_input_tokens", "cacheWriteInputTokens")))
    span.input_tokens = count(
        first(
            usage,
            (
                "prompt_tokens",
                "input_tokens",
                "promptTokenCount",
                "inputTokens",
                "prompt_eval_count",
            ),
        )
    )
    separate = {"cache_read_input_tokens", "cache_creation_input_tokens", "cacheReadInputTokens"}
    if span.input_tokens is not None and separate & set(usage):
        span.input_tokens += (read or 0) + (written or 0)
    span.output_tokens = count(
        first(
            usage,
            (
                "completion_tokens",
                "output_tokens",
                "candidatesTokenCount",
                "outputTokens",
                "eval_count",
            ),
        )
    )
    more = mapping(first(usage, ("completion_tokens_details", "output_tokens_details")))
    reasoning = count(first({**more, **usage}, ("reasoning_tokens", "thoughtsTokenCount")))
    # Gemini counts thoughts apart from the candidates; the others include them.
    if "thoughtsTokenCount" in usage:
        span.output_tokens = (span.output_tokens or 0) + (reasoning or 0)
    if span.output_tokens is None and span.input_tokens is not None and "promptTokenCount" in usage:
        span.output_tokens = 0
    for key, value in (
        ("gen_ai.usage.input_tokens", span.input_tokens),
        ("gen_ai.usage.output_tokens", span.output_tokens),
        ("gen_ai.usage.cache_read.input_tokens", read),
        ("gen_ai.usage.cache_creation.input_tokens", written),
        ("gen_ai.usage.reasoning.output_tokens", reasoning),
    ):
        if value is not None:
            attributes[key] = value


def mappings(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; empty for what is no list."""
    return [item for item in value if is_mapping(item)] if is_list(value) else []
