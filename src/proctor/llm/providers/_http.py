"""Call models over the HTTP APIs of OpenAI, Anthropic and Google, which many others speak, too.

Guarantees: one request per `complete`, no hidden retries; no client library is needed, so that
Proctor installs beside every agent framework. Connections are cached per event loop, because they
end with the loop they were opened in.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import os
import weakref
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from proctor.errors import ProctorError, did_you_mean
from proctor.llm.chat_model import (
    ChatReply,
    FileMessage,
    ModelError,
    ModelErrorKind,
    TokenUsage,
    kind_of_status,
    parsed_arguments,
)
from proctor.llm.providers import UNREADABLE, NamedModel, ProviderOptions, key_from
from proctor.trace import Message, ToolCall
from proctor.trace.conventions.values import count, first, is_list, is_mapping, mapping, text

if TYPE_CHECKING:
    import httpx

    from proctor.llm.chat_model import Attachment, ChatRequest

Api = Literal["chat", "responses", "anthropic", "gemini"]


class _Provider(NamedTuple):
    """Where a provider's API is, and the environment variables of its key and address."""

    api: Api
    url: str
    key: str | None
    address: str | None = None


_OPENAI = ("https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL")
_GOOGLE = _Provider(
    "gemini",
    "https://generativelanguage.googleapis.com",
    "GEMINI_API_KEY",
    "GOOGLE_GEMINI_BASE_URL",
)
_PROVIDERS = {
    "openai": _Provider("responses", *_OPENAI),
    "openai-chat": _Provider("chat", *_OPENAI),
    "openai-responses": _Provider("responses", *_OPENAI),
    "anthropic": _Provider(
        "anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"
    ),
    "google": _GOOGLE,
    "google-gla": _GOOGLE,
    "gemini": _GOOGLE,
    "cerebras": _Provider("chat", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "deepseek": _Provider("chat", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    "fireworks": _Provider("chat", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "grok": _Provider("chat", "https://api.x.ai/v1", "XAI_API_KEY"),
    "groq": _Provider("chat", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": _Provider("chat", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "moonshotai": _Provider("chat", "https://api.moonshot.ai/v1", "MOONSHOTAI_API_KEY"),
    "ollama": _Provider("chat", "http://localhost:11434/v1", None, "OLLAMA_BASE_URL"),
    "openrouter": _Provider("chat", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "together": _Provider("chat", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "x-ai": _Provider("chat", "https://api.x.ai/v1", "XAI_API_KEY"),
}

# Provider prefix → name in the price table, where they differ.
_PRICED_AS = {"openai-chat": "openai", "openai-responses": "openai", "grok": "x-ai"}

_ANTHROPIC_VERSION = "2023-06-01"
_ANTHROPIC_MAX_TOKENS = 4096  # the API demands a limit; the smallest that all its models accept

_THINKING = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384}
"""Tokens to think with for each effort, where an API wants a number; 1,024 is the least."""

_FINISH = {
    "stop": "stop", "end_turn": "stop", "stop_sequence": "stop", "completed": "stop",
    "length": "length", "max_tokens": "length", "max_output_tokens": "length",
    "tool_calls": "tool_call", "function_call": "tool_call", "tool_use": "tool_call",
    "content_filter": "content_filter", "refusal": "content_filter", "safety": "content_filter",
}  # fmt: skip


class HttpModel(NamedModel):
    """A `ChatModel` over HTTP."""

    def __init__(self, provider: str, model: str, options: ProviderOptions) -> None:
        super().__init__(model, options)
        self._provider = provider
        # Weak keys: a closed event loop takes its connections with it.
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def name(self) -> str:
        """Return the model name as the user wrote it."""
        return f"{self._provider}:{self._model}"

    def check(self) -> None:
        """Raise if a call could not be made: no such provider or no key. Loads the client."""
        importlib.import_module("httpx")
        self._endpoint()

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Make one call; every failure is a `ModelError`."""
        import httpx

        api, url, key = self._endpoint()
        write, read = _APIS[api]
        path, headers, body = write(self._model, key, request)
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = httpx.AsyncClient(timeout=None)  # noqa: S113 (below)
        try:
            # The client's own timeout is per read, so a slow stream could last for ever.
            async with asyncio.timeout(request.timeout):
                response = await client.post(f"{url}{path}", json=body, headers=headers)
        except TimeoutError as error:
            raise self._too_late(request) from error
        except httpx.HTTPError as error:
            problem = str(error) or type(error).__name__
            kind = ModelErrorKind.CONNECTION
            raise ModelError(problem, kind=kind, model=self.name) from error
        if response.status_code >= 400:
            raise self._failed(response)
        try:
            reply = read(response.json())
        except UNREADABLE as error:
            raise self._unreadable(error) from error
        if not reply.text and not reply.tool_calls and reply.finish_reason is None:
            raise ModelError("the reply is empty", kind=ModelErrorKind.BAD_REPLY, model=self.name)
        return self._priced(reply)

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _endpoint(self) -> tuple[Api, str, str | None]:
        """Return the API, its base URL and the key to send."""
        known = _PROVIDERS.get(self._provider)
        if known is None:
            raise ProctorError(
                f"{self.name}: no provider {self._provider!r} is known",
                hint=did_you_mean(self._provider, _PROVIDERS)
                or f"litellm/{self._provider}/{self._model} calls it with litellm",
            )
        if self._base_url is not None:
            # Other servers rarely have the responses API. The provider's own key is not for them.
            api = "chat" if self._provider == "openai" else known.api
            return api, self._base_url.rstrip("/"), key_from(self._api_key_env, self.name)
        variable = self._api_key_env or known.key
        if variable == "GEMINI_API_KEY" and not os.environ.get(variable):
            variable = "GOOGLE_API_KEY" if os.environ.get("GOOGLE_API_KEY") else variable
        address = os.environ.get(known.address, "") if known.address else ""
        return known.api, (address or known.url).rstrip("/"), key_from(variable, self.name)

    def _priced(self, reply: ChatReply) -> ChatReply:
        import msgspec

        provider = _PRICED_AS.get(self._provider, self._provider)
        model = reply.model or self._model
        # A user's price is listed under the name in the suite, a published one under the dated
        # name of the reply.
        cost = self._cost((self._model, model), provider, reply.usage)
        return msgspec.structs.replace(reply, model=model, cost_usd=cost)

    def _failed(self, response: httpx.Response) -> ModelError:
        status, transient = response.status_code, None
        try:
            document = mapping(response.json())
        except UNREADABLE:
            document = {}
        error = mapping(document.get("error"))
        if error.get("code") == "insufficient_quota":
            transient = False  # status 429 too, but an exhausted quota does not recover by waiting
        message = text(error.get("message")) or text(document.get("message")) or response.text
        wait = response.headers.get("retry-after-ms"), response.headers.get("retry-after")
        try:
            seconds = float(wait[0]) / 1000 if wait[0] else float(wait[1]) if wait[1] else None
        except ValueError:  # a date
            seconds = None
        return ModelError(
            f"HTTP {status}: {message}",
            kind=kind_of_status(status),
            model=self.name,
            status=status,
            retry_after=seconds,
            transient=transient,
        )


# -- the APIs: a request as path, headers and body; a response as a reply ------------------------

_Wire = tuple[str, dict[str, str], dict[str, Any]]


def _given(request: ChatRequest, **names: str) -> dict[str, Any]:
    """Return the options that are set, by their names in an API."""
    found = {names[name]: getattr(request, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _files(message: Message) -> tuple[Attachment, ...]:
    return message.files if isinstance(message, FileMessage) else ()


def _schema_name(schema: dict[str, Any]) -> str:
    title = str(schema.get("title") or "reply")
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in title)[:64]


def _schema_prompt(schema: dict[str, Any]) -> str:
    """Return the instruction for models that cannot be held to a schema."""
    shown = json.dumps(schema, ensure_ascii=False)
    return f"Reply with one JSON object that matches this JSON Schema, and nothing else:\n{shown}"


def _arguments_text(call: ToolCall) -> str:
    return json.dumps(call.arguments if call.arguments is not None else {}, ensure_ascii=False)


def _call_ids(message: Message) -> list[tuple[str, ToolCall]]:
    return [(call.id or f"call_{at}", call) for at, call in enumerate(message.tool_calls)]


def _write_chat(model: str, key: str | None, request: ChatRequest) -> _Wire:
    messages: list[dict[str, Any]] = []
    for message in request.messages:
        written: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.tool_calls:
            written["content"] = message.content
            written["tool_calls"] = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _arguments_text(call)},
                }
                for call_id, call in _call_ids(message)
            ]
        elif message.role == "tool":
            written["tool_call_id"] = message.tool_call_id or "call_0"
        elif files := _files(message):
            parts: list[dict[str, Any]] = [{"type": "text", "text": message.content or ""}]
            for file in files:
                if file.is_image:
                    parts.append({"type": "image_url", "image_url": {"url": file.data_url}})
                else:
                    about = {"filename": file.name, "file_data": file.data_url}
                    parts.append({"type": "file", "file": about})
            written["content"] = parts
        messages.append(written)
    body: dict[str, Any] = {"model": model, "messages": messages}
    body |= _given(
        request,
        temperature="temperature",
        max_tokens="max_tokens",
        seed="seed",
        reasoning_effort="reasoning_effort",
    )
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": t.schema},
            }
            for t in request.tools
        ]
    if request.schema is not None:
        shape = {"name": _schema_name(request.schema), "schema": request.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": shape}
    return "/chat/completions", _bearer(key), body


def _bearer(key: str | None) -> dict[str, str]:
    # Servers on this machine reject a request without a key as often as one with a wrong key.
    return {"Authorization": f"Bearer {key or 'no-key'}"}


def _read_chat(answered: Any) -> ChatReply:
    choice = answered["choices"][0]
    said, usage = choice["message"], mapping(answered.get("usage"))
    return ChatReply(
        text=text(said.get("content")) or text(said.get("refusal")) or "",
        model=text(answered.get("model")) or "",
        tool_calls=tuple(
            ToolCall(
                name=call["function"]["name"],
                arguments=parsed_arguments(call["function"].get("arguments") or {}),
                id=call.get("id"),
            )
            for call in said.get("tool_calls") or ()
        ),
        usage=_usage(usage, "prompt_tokens", "completion_tokens"),
        finish_reason=_finish(choice.get("finish_reason"), bool(said.get("tool_calls"))),
        id=text(answered.get("id")),
    )


def _usage(usage: dict[str, Any], tokens_in: str, tokens_out: str) -> TokenUsage:
    read, written = count(usage.get(tokens_in)), count(usage.get(tokens_out))
    # Zero tokens mean that the provider reported none: unknown, not free.
    if not read and not written:
        return TokenUsage()
    details = mapping(first(usage, ("prompt_tokens_details", "input_tokens_details")))
    return TokenUsage(read, written, count(details.get("cached_tokens")) or 0, 0)


def _finish(reason: Any, called: bool) -> str | None:
    if reason is None:
        return "tool_call" if called else None
    finish = _FINISH.get(str(reason).lower(), "error")
    # Only some protocols report calls themselves.
    return "tool_call" if called and finish == "stop" else finish


def _write_responses(model: str, key: str | None, request: ChatRequest) -> _Wire:
    items: list[dict[str, Any]] = []
    for message in request.messages:
        if message.role == "tool":
            items.append(
                {
                    "type": "function_call_output",
                    "call_id": message.tool_call_id or "call_0",
                    "output": message.content or "",
                }
            )
            continue
        if files := _files(message):
            parts: list[dict[str, Any]] = [{"type": "input_text", "text": message.content or ""}]
            for file in files:
                if file.is_image:
                    parts.append({"type": "input_image", "image_url": file.data_url})
                else:
                    about = {"filename": file.name, "file_data": file.data_url}
                    parts.append({"type": "input_file", **about})
            items.append({"role": message.role, "content": parts})
        elif message.content or not message.tool_calls:
            items.append({"role": message.role, "content": message.content or ""})
        items += [
            {
                "type": "function_call",
                "call_id": call_id,
                "name": call.name,
                "arguments": _arguments_text(call),
            }
            for call_id, call in _call_ids(message)
        ]
    body: dict[str, Any] = {"model": model, "input": items, "store": False}
    body |= _given(request, temperature="temperature", max_tokens="max_output_tokens")
    if request.reasoning_effort is not None:
        body["reasoning"] = {"effort": request.reasoning_effort}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": t.name,
                "description": t.description,
                "parameters": t.schema,
                "strict": False,
            }
            for t in request.tools
        ]
    if request.schema is not None:
        shape = {"name": _schema_name(request.schema), "schema": request.schema, "strict": True}
        body["text"] = {"format": {"type": "json_schema", **shape}}
    return "/responses", _bearer(key), body


def _read_responses(answered: Any) -> ChatReply:
    said: list[str] = []
    calls: list[ToolCall] = []
    for item in answered["output"]:
        if item["type"] == "message":
            said += [str(p.get("text") or p.get("refusal") or "") for p in item["content"]]
        elif item["type"] == "function_call":
            arguments = parsed_arguments(item.get("arguments") or {})
            calls.append(ToolCall(name=item["name"], arguments=arguments, id=item.get("call_id")))
    reason = mapping(answered.get("incomplete_details")).get("reason") or answered.get("status")
    return ChatReply(
        text="".join(said),
        model=text(answered.get("model")) or "",
        tool_calls=tuple(calls),
        usage=_usage(mapping(answered.get("usage")), "input_tokens", "output_tokens"),
        finish_reason=_finish(reason, bool(calls)),
        id=text(answered.get("id")),
    )


def _write_anthropic(model: str, key: str | None, request: ChatRequest) -> _Wire:
    system: list[str] = []
    messages: list[dict[str, Any]] = []
    for message in request.messages:
        if message.role in ("system", "developer"):
            system.append(message.content or "")
            continue
        role = "assistant" if message.role == "assistant" else "user"
        parts: list[dict[str, Any]] = []
        if message.role == "tool":
            called = message.tool_call_id or "call_0"
            result = {"tool_use_id": called, "content": message.content or ""}
            parts.append({"type": "tool_result", **result})
        elif message.content:
            parts.append({"type": "text", "text": message.content})
        for file in _files(message):
            data = base64.b64encode(file.data).decode("ascii")
            source = {"type": "base64", "media_type": file.media_type, "data": data}
            kind = "image" if file.is_image else "document"
            parts.append({"type": kind, "source": source})
        parts += [
            {"type": "tool_use", "id": call_id, "name": call.name, "input": call.arguments or {}}
            for call_id, call in _call_ids(message)
        ]
        # The API wants turns to alternate, and all results of a turn in one message.
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += parts
        else:
            messages.append({"role": role, "content": parts})
    if request.schema is not None:
        system.append(_schema_prompt(request.schema))
    body: dict[str, Any] = {"model": model, "max_tokens": _ANTHROPIC_MAX_TOKENS}
    body |= {"messages": messages, **({"system": "\n\n".join(system)} if system else {})}
    body |= _given(request, temperature="temperature", max_tokens="max_tokens")
    if request.reasoning_effort is not None:
        budget = _THINKING[request.reasoning_effort]
        body["thinking"] = {"type": "enabled", "budget_tokens": budget}
        # The limit includes the thinking, and thinking allows no other temperature.
        body["max_tokens"] += budget
        body.pop("temperature", None)
    if request.tools:
        body["tools"] = [
            {"name": t.name, "description": t.description, "input_schema": t.schema}
            for t in request.tools
        ]
    headers = {"x-api-key": key or "no-key", "anthropic-version": _ANTHROPIC_VERSION}
    return "/v1/messages", headers, body


def _read_anthropic(answered: Any) -> ChatReply:
    blocks, usage = answered["content"], mapping(answered.get("usage"))
    calls = tuple(
        ToolCall(name=b["name"], arguments=b.get("input"), id=b.get("id"))
        for b in blocks
        if b["type"] == "tool_use"
    )
    read, written = (count(usage.get(f"cache_{k}_input_tokens")) or 0 for k in ("read", "creation"))
    plain, output = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
    known = bool(plain or output)
    return ChatReply(
        text="".join(str(b.get("text") or "") for b in blocks if b["type"] == "text"),
        model=text(answered.get("model")) or "",
        tool_calls=calls,
        # Anthropic counts cached tokens apart from the input.
        usage=TokenUsage((plain or 0) + read + written, output, read, written)
        if known
        else TokenUsage(),
        finish_reason=_finish(answered.get("stop_reason"), bool(calls)),
        id=text(answered.get("id")),
    )


def _write_gemini(model: str, key: str | None, request: ChatRequest) -> _Wire:
    names = {call.id: call.name for m in request.messages for call in m.tool_calls}
    system: list[dict[str, Any]] = []
    contents: list[dict[str, Any]] = []
    for message in request.messages:
        if message.role in ("system", "developer"):
            system.append({"text": message.content or ""})
            continue
        role = "model" if message.role == "assistant" else "user"
        parts: list[dict[str, Any]] = []
        if message.role == "tool":
            name = message.name or names.get(message.tool_call_id) or "tool"
            result = {"name": name, "response": {"result": message.content or ""}}
            parts.append({"functionResponse": result})
        elif message.content:
            parts.append({"text": message.content})
        for file in _files(message):
            data = base64.b64encode(file.data).decode("ascii")
            parts.append({"inlineData": {"mimeType": file.media_type, "data": data}})
        parts += [
            {"functionCall": {"name": call.name, "args": call.arguments or {}}}
            for call in message.tool_calls
        ]
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})
    options = _given(request, temperature="temperature", max_tokens="maxOutputTokens", seed="seed")
    if request.reasoning_effort is not None:
        options["thinkingConfig"] = {"thinkingBudget": _THINKING[request.reasoning_effort]}
    if request.schema is not None:
        shape = {"responseJsonSchema": request.schema, "responseMimeType": "application/json"}
        options |= shape
    body: dict[str, Any] = {"contents": contents, "generationConfig": options}
    if system:
        body["systemInstruction"] = {"parts": system}
    if request.tools:
        declared = [
            {"name": t.name, "description": t.description, "parametersJsonSchema": t.schema}
            for t in request.tools
        ]
        body["tools"] = [{"functionDeclarations": declared}]
    return f"/v1beta/models/{model}:generateContent", {"x-goog-api-key": key or "no-key"}, body


def _read_gemini(answered: Any) -> ChatReply:
    candidate = answered["candidates"][0]
    parts: Any = mapping(candidate.get("content")).get("parts") or ()
    if not is_list(parts) or not all(is_mapping(part) for part in parts):
        raise ValueError("the parts are no list of objects")
    calls = tuple(
        ToolCall(name=call["name"], arguments=call.get("args"), id=call.get("id"))
        for call in (part["functionCall"] for part in parts if "functionCall" in part)
    )
    usage = mapping(answered.get("usageMetadata"))
    tokens_in, said = (count(usage.get(f"{k}TokenCount")) for k in ("prompt", "candidates"))
    thought = count(usage.get("thoughtsTokenCount")) or 0
    cached = count(usage.get("cachedContentTokenCount")) or 0
    return ChatReply(
        text="".join(str(p.get("text") or "") for p in parts if not p.get("thought")),
        model=text(answered.get("modelVersion")) or "",
        tool_calls=calls,
        usage=TokenUsage(tokens_in, (said or 0) + thought, cached, 0)
        if tokens_in
        else TokenUsage(),
        finish_reason=_finish(candidate.get("finishReason"), bool(calls)),
        id=text(answered.get("responseId")),
    )


_APIS = {
    "chat": (_write_chat, _read_chat),
    "responses": (_write_responses, _read_responses),
    "anthropic": (_write_anthropic, _read_anthropic),
    "gemini": (_write_gemini, _read_gemini),
}
