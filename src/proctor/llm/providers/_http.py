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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from proctor.errors import ProctorError, did_you_mean
from proctor.llm.chat_model import FileMessage, ModelError, ModelErrorKind, kind_of_status
from proctor.llm.providers import NamedModel, ProviderOptions, key_from
from proctor.llm.retry import requested_delay
from proctor.trace import Message, ToolCall
from proctor.trace.conventions.values import mapping, text

if TYPE_CHECKING:
    import httpx

    from proctor.llm.chat_model import Attachment, ChatReply, ChatRequest
    from proctor.llm.protocols import Protocol


class _Provider(NamedTuple):
    """Where a provider's API is, and the environment variables of its key and address."""

    protocol: Protocol
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
    "openai-chat": _Provider("openai", *_OPENAI),
    "openai-responses": _Provider("responses", *_OPENAI),
    "anthropic": _Provider(
        "anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"
    ),
    "google": _GOOGLE,
    "google-gla": _GOOGLE,
    "gemini": _GOOGLE,
    "cerebras": _Provider("openai", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "deepseek": _Provider("openai", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    "fireworks": _Provider("openai", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "grok": _Provider("openai", "https://api.x.ai/v1", "XAI_API_KEY"),
    "groq": _Provider("openai", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": _Provider("openai", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "moonshotai": _Provider("openai", "https://api.moonshot.ai/v1", "MOONSHOTAI_API_KEY"),
    "ollama": _Provider("openai", "http://localhost:11434/v1", None, "OLLAMA_BASE_URL"),
    "openrouter": _Provider("openai", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "together": _Provider("openai", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "x-ai": _Provider("openai", "https://api.x.ai/v1", "XAI_API_KEY"),
}

# Provider prefix → name in the price table, where they differ.
_PRICED_AS = {"openai-chat": "openai", "openai-responses": "openai", "grok": "x-ai"}

_ANTHROPIC_VERSION = "2023-06-01"
_ANTHROPIC_MAX_TOKENS = 4096  # the API demands a limit; the smallest that all its models accept

_THINKING = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384}
"""Tokens to think with for each effort, where an API wants a number; 1,024 is the least."""


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

        protocol, url, key = self._endpoint()
        path, headers, body = _WRITERS[protocol](self._model, key, request)
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
            document = mapping(response.json())
        except ValueError as error:
            raise self._bad_reply(f"the reply is not JSON: {error}") from error
        priced_as = _PRICED_AS.get(self._provider, self._provider)
        return self._reply(protocol, document, priced_as, self._model)

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _endpoint(self) -> tuple[Protocol, str, str | None]:
        """Return the protocol, its base URL and the key to send."""
        known = _PROVIDERS.get(self._provider)
        if known is None:
            raise ProctorError(
                f"{self.name}: no provider {self._provider!r} is known",
                hint=did_you_mean(self._provider, _PROVIDERS)
                or f"litellm/{self._provider}/{self._model} calls it with litellm",
            )
        if self._base_url is not None:
            # Other servers rarely have the responses API. The provider's own key is not for them.
            protocol = "openai" if self._provider == "openai" else known.protocol
            return protocol, self._base_url.rstrip("/"), key_from(self._api_key_env, self.name)
        variable = self._api_key_env or known.key
        if variable == "GEMINI_API_KEY" and not os.environ.get(variable):
            variable = "GOOGLE_API_KEY" if os.environ.get("GOOGLE_API_KEY") else variable
        address = os.environ.get(known.address, "") if known.address else ""
        return known.protocol, (address or known.url).rstrip("/"), key_from(variable, self.name)

    def _failed(self, response: httpx.Response) -> ModelError:
        status, transient = response.status_code, None
        try:
            document = mapping(response.json())
        except ValueError:
            document = {}
        error = mapping(document.get("error"))
        if error.get("code") == "insufficient_quota":
            transient = False  # status 429 too, but an exhausted quota does not recover by waiting
        message = text(error.get("message")) or text(document.get("message")) or response.text
        return ModelError(
            f"HTTP {status}: {message}",
            kind=kind_of_status(status),
            model=self.name,
            status=status,
            retry_after=requested_delay(response.headers),
            transient=transient,
        )


# -- a request as each protocol writes it: path, headers and body --------------------------------

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


def chat_body(model: str, request: ChatRequest) -> dict[str, Any]:
    """Return the body of a request for OpenAI chat completions, which most servers understand."""
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
    return body


def _write_chat(model: str, key: str | None, request: ChatRequest) -> _Wire:
    return "/chat/completions", _bearer(key), chat_body(model, request)


def _bearer(key: str | None) -> dict[str, str]:
    # Servers on this machine reject a request without a key as often as one with a wrong key.
    return {"Authorization": f"Bearer {key or 'no-key'}"}


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
        if isinstance(message, FileMessage):
            items.append({"role": message.role, "content": message.response_parts()})
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


_WRITERS: dict[str, Callable[[str, str | None, ChatRequest], _Wire]] = {
    "openai": _write_chat,
    "responses": _write_responses,
    "anthropic": _write_anthropic,
    "gemini": _write_gemini,
}
