"""Call models of every common provider through `pydantic_ai.direct` (extra `llm`).

Guarantees: one HTTP request per `complete`, no hidden retries. The client is cached per event loop,
because its connections end with the loop they were opened in.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import warnings
import weakref
from typing import TYPE_CHECKING, Any, cast

from proctor.errors import ProctorError
from proctor.imports import absent_extra
from proctor.llm.chat_model import (
    ChatReply,
    ModelError,
    ModelErrorKind,
    TokenUsage,
    kind_of_status,
    parsed_arguments,
)
from proctor.llm.providers import UNREADABLE, NamedModel, ProviderOptions, key_from
from proctor.trace import ToolCall

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.providers import Provider
    from pydantic_ai.settings import ModelSettings

    from proctor.llm.chat_model import ChatRequest


# Providers that, with a base URL, stand for any OpenAI-compatible chat completions endpoint.
_CHAT_COMPLETIONS = frozenset({"openai", "openai-chat"})

# Provider prefix → name in the price table, where they differ.
_PRICED_AS = {"openai-chat": "openai", "openai-responses": "openai", "google-cloud": "google"}


class DirectModel(NamedModel):
    """A `ChatModel` over one of pydantic-ai's models."""

    def __init__(self, provider: str, model: str, options: ProviderOptions) -> None:
        super().__init__(model, options)
        self._provider = provider
        # Weak keys: a closed event loop takes its client with it.
        self._opening: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Model] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def name(self) -> str:
        """Return the model name as the user wrote it."""
        return f"{self._provider}:{self._model}"

    def check(self) -> None:
        """Raise if a call could not be made: no such provider, client library or key."""
        self._build()

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Make one call; every failure is a `ModelError`."""
        model = await self._open()
        from pydantic_ai import direct
        from pydantic_ai.exceptions import AgentRunError, UserError

        try:
            # The client's own timeout is per read, so a slow stream could last for ever.
            async with asyncio.timeout(request.timeout):
                with warnings.catch_warnings():
                    # Models without temperature or seed parameters are called without them.
                    warnings.simplefilter("ignore", UserWarning)
                    response = await direct.model_request(
                        model,
                        to_messages(request),
                        model_settings=_settings(request),
                        model_request_parameters=_parameters(request, model),
                        instrument=False,
                    )
        except TimeoutError as error:
            raise self._too_late(request) from error
        except UserError as error:
            raise self._refused(error) from error
        except AgentRunError as error:
            raise self._failed(error) from error
        except UNREADABLE as error:
            raise self._unreadable(error) from error
        return self._reply(response)

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        model = self._by_loop.pop(asyncio.get_running_loop(), None)
        if model is not None:
            await model.__aexit__(None, None, None)

    # -- from and to the client -----------------------------------------------------------

    async def _open(self) -> Model:
        loop = asyncio.get_running_loop()
        model = self._by_loop.get(loop)
        if model is not None:
            return model
        # Concurrent calls share one client, and none uses it before it is open.
        async with self._opening.setdefault(loop, asyncio.Lock()):
            model = self._by_loop.get(loop)
            if model is None:
                model = self._build()
                await model.__aenter__()
                self._by_loop[loop] = model
        return model

    def _build(self) -> Model:
        try:
            from pydantic_ai.exceptions import UserError
            from pydantic_ai.models import infer_model
        except ImportError as error:
            raise absent_extra(self.name, "llm") from error
        try:
            # pydantic-ai's `openai:` is the responses API, which other endpoints do not have.
            compatible = self._base_url is not None and self._provider in _CHAT_COMPLETIONS
            name = f"openai-chat:{self._model}" if compatible else self.name
            return infer_model(name, self._make_provider)
        except ImportError as error:
            raise ProctorError(
                f"{self.name} needs a client library that is not installed: {error}",
                hint=f'pip install "pydantic-ai-slim[{self._provider}]"',
            ) from error
        except UserError as error:
            raise self._refused(error) from error

    def _make_provider(self, name: str) -> Provider[Any]:
        from pydantic_ai.providers import infer_provider, infer_provider_class

        if self._base_url is None and self._api_key_env is None:
            try:
                return infer_provider(name)
            except ValueError as error:
                raise ProctorError(f"{self.name}: no provider {name!r} is known") from error
        key = key_from(self._api_key_env, self.name)
        if self._base_url is not None and name in _CHAT_COMPLETIONS:
            from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

            return OpenAICompatibleProvider("openai", base_url=self._base_url, api_key=key)
        options: dict[str, Any] = {"api_key": key} if key else {}
        if self._base_url is not None:
            # Some clients require a key; a placeholder keeps the user's real one from being sent.
            options = {"base_url": self._base_url, "api_key": key or "no-key"}
        try:
            provider_class: Any = infer_provider_class(name)
            return provider_class(**options)
        except (TypeError, ValueError) as error:
            raise ProctorError(
                f"{self.name}: {error}",
                hint="use openai:NAME for an endpoint that speaks OpenAI chat completions",
            ) from error

    def _reply(self, response: ModelResponse) -> ChatReply:
        from pydantic_ai.messages import ToolCallPart

        usage = _usage(response)
        provider = _PRICED_AS.get(self._provider, self._provider)
        model = response.model_name or self._model
        calls = tuple(
            ToolCall(
                name=part.tool_name, arguments=parsed_arguments(part.args), id=part.tool_call_id
            )
            for part in response.parts
            if isinstance(part, ToolCallPart)
        )
        if not calls and not response.text and response.finish_reason is None:
            # A stream of events that the client does not know ends like this.
            raise ModelError("the reply is empty", kind=ModelErrorKind.BAD_REPLY, model=self.name)
        # Only some protocols report this themselves.
        called = bool(calls) and response.finish_reason in (None, "stop")
        return ChatReply(
            text=response.text or "",
            model=model,
            tool_calls=calls,
            usage=usage,
            finish_reason="tool_call" if called else response.finish_reason,
            # A user's price is listed under the name in the suite, a published one under the dated
            # name of the reply.
            cost_usd=self._cost((self._model, model), provider, usage),
            id=response.provider_response_id,
        )

    def _refused(self, error: Exception) -> ModelError:
        # The client's own message is about its constructor.
        key = re.search(r"`(\w*API_KEY\w*)`", str(error))
        if key is None:
            return ModelError(str(error), kind=ModelErrorKind.REFUSED, model=self.name)
        return ModelError(
            f"the environment variable {key[1]} is not set",
            kind=ModelErrorKind.AUTH,
            model=self.name,
            hint=f"export {key[1]}=... with the key of the model's provider",
        )

    def _failed(self, error: Exception) -> ModelError:
        from pydantic_ai import exceptions as pai

        transient: bool | None = None
        match error:
            case pai.ContentFilterError():
                kind = ModelErrorKind.REFUSED
            case pai.ModelQuotaExceededError():
                # Status 429 too, but an exhausted quota does not recover by waiting.
                kind, transient = ModelErrorKind.RATE_LIMITED, False
            case pai.ModelTimeoutError() | pai.ModelRequestTimeout():
                kind = ModelErrorKind.TIMEOUT
            case pai.ModelConnectionError():
                kind = ModelErrorKind.CONNECTION
            case pai.ModelHTTPError(status_code=int(code)):
                kind = kind_of_status(code)
            case _:
                kind = ModelErrorKind.BAD_REPLY
        return ModelError(
            _explain(error),
            kind=kind,
            model=self.name,
            status=getattr(error, "status_code", None),
            retry_after=getattr(error, "retry_after", None),
            transient=transient,
        )


def to_messages(request: ChatRequest) -> list[ModelMessage]:
    """Return the conversation in pydantic-ai's types."""
    m = importlib.import_module("pydantic_ai.messages")
    # Tool results may come without a name, which pydantic-ai requires.
    tool_names = {call.id: call.name for message in request.messages for call in message.tool_calls}
    converted: list[Any] = []
    for message in request.messages:
        content = message.content or ""
        if message.role == "assistant":
            parts: list[Any] = [m.TextPart(content)] if content else []
            parts += [
                m.ToolCallPart(call.name, call.arguments or {}, call.id or f"call_{index}")
                for index, call in enumerate(message.tool_calls)
            ]
            converted.append(m.ModelResponse(parts=parts))
            continue
        if message.role in ("system", "developer"):
            part = m.SystemPromptPart(content)
        elif message.role == "tool":
            name = message.name or tool_names.get(message.tool_call_id) or "tool"
            part = m.ToolReturnPart(name, content, message.tool_call_id or "call_0")
        else:
            part = m.UserPromptPart(content)
        converted.append(m.ModelRequest(parts=[part]))
    return converted


def _settings(request: ChatRequest) -> ModelSettings:
    names = ("temperature", "max_tokens", "seed", "timeout")
    given = {name: value for name in names if (value := getattr(request, name)) is not None}
    if request.reasoning_effort is not None:
        given["thinking"] = request.reasoning_effort
    # The caller decides about retries.
    return cast("ModelSettings", {"max_retries": 0, **given})


def _parameters(request: ChatRequest, model: Model) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition
    from pydantic_ai.tools import ToolDefinition

    tools = [
        ToolDefinition(
            name=tool.name, description=tool.description, parameters_json_schema=tool.schema
        )
        for tool in request.tools
    ]
    if request.schema is None:
        return ModelRequestParameters(function_tools=tools)
    native = bool(model.profile.get("supports_json_schema_output", False))
    return ModelRequestParameters(
        function_tools=tools,
        output_mode="native" if native else "prompted",
        output_object=OutputObjectDefinition(
            json_schema=request.schema, name=request.schema.get("title") or "reply", strict=True
        ),
    )


def _usage(response: ModelResponse) -> TokenUsage:
    usage = response.usage
    # Zero tokens mean that the provider reported none: unknown, not free.
    if usage.unmeasured_requests or not (usage.input_tokens or usage.output_tokens):
        return TokenUsage()
    return TokenUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )


def _explain(error: Exception) -> str:
    body = getattr(error, "body", None)
    status = getattr(error, "status_code", None)
    text = str(error)
    if isinstance(body, dict):
        inner: Any = body.get("error", body)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if isinstance(inner, dict) and isinstance(inner.get("message"), str):  # pyright: ignore[reportUnknownMemberType]
            text = str(inner["message"])  # pyright: ignore[reportUnknownArgumentType]
    return f"HTTP {status}: {text}" if status else text
