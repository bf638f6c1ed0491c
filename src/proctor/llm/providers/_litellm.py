"""`litellm/PROVIDER/MODEL` names, through litellm (extra `litellm`).

Its price map is forced to the packaged copy before it is imported, because it otherwise fetches
one from the network. Its import takes seconds, so it happens at the first call.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from typing import TYPE_CHECKING, Any

from proctor.imports import absent_extra
from proctor.llm.chat_model import (
    ChatReply,
    ModelError,
    ModelErrorKind,
    TokenUsage,
    kind_of_status,
    parsed_arguments,
)
from proctor.llm.providers import UNREADABLE, NamedModel, key_from
from proctor.llm.retry import causes, retry_after
from proctor.trace import Message, ToolCall

if TYPE_CHECKING:
    from proctor.llm.chat_model import ChatRequest


# OpenAI's finish reasons → ours.
_FINISH = {"tool_calls": "tool_call", "function_call": "tool_call"}


class LiteModel(NamedModel):
    """A `ChatModel` over `litellm.acompletion`."""

    @property
    def name(self) -> str:
        """Return the model name as the user wrote it."""
        return f"litellm/{self._model}"

    def check(self) -> None:
        """Raise if litellm or the key is missing."""
        super().check()
        _litellm(self.name)

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Make one call; every failure is a `ModelError`."""
        litellm = _litellm(self.name)
        openai: Any = importlib.import_module("openai")  # litellm's errors derive from its own
        options = self._options(request)
        try:
            async with asyncio.timeout(request.timeout):
                response = await litellm.acompletion(**options)
            return self._reply(response)
        except TimeoutError as error:
            raise self._too_late(request) from error
        except openai.OpenAIError as error:
            raise self._failed(error) from error
        except UNREADABLE as error:
            raise self._unreadable(error) from error

    def _options(self, request: ChatRequest) -> dict[str, Any]:
        options: dict[str, Any] = {
            "model": self._model,
            "messages": [_message(message) for message in request.messages],
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "timeout": request.timeout,
            # The caller decides about retries.
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": True,  # models without a seed parameter are called without it
            "api_base": self._base_url,
        }
        if request.reasoning_effort is not None:
            options["reasoning_effort"] = request.reasoning_effort
        key = key_from(self._api_key_env, self.name)
        if key is not None or self._base_url is not None:
            # As in `get_model`: the provider's standard key is not sent to a custom endpoint.
            options["api_key"] = key or "no-key"
        if request.tools:
            functions = (
                {"name": tool.name, "description": tool.description, "parameters": tool.schema}
                for tool in request.tools
            )
            options["tools"] = [{"type": "function", "function": each} for each in functions]
        if request.schema is not None:
            name = request.schema.get("title") or "reply"
            described = {"name": name, "schema": request.schema, "strict": True}
            options["response_format"] = {"type": "json_schema", "json_schema": described}
        return {key: value for key, value in options.items() if value is not None}

    def _reply(self, response: Any) -> ChatReply:
        choice = response.choices[0]
        usage = _usage(getattr(response, "usage", None))
        provider, _, model = self._model.rpartition("/")
        return ChatReply(
            text=choice.message.content or "",
            model=response.model or self._model,
            tool_calls=tuple(
                ToolCall(
                    name=call.function.name,
                    arguments=parsed_arguments(call.function.arguments),
                    id=call.id,
                )
                for call in choice.message.tool_calls or ()
            ),
            usage=usage,
            finish_reason=_FINISH.get(choice.finish_reason, choice.finish_reason),
            cost_usd=self._cost((model,), provider or None, usage),
            id=response.id,
        )

    def _failed(self, error: Any) -> ModelError:
        openai: Any = importlib.import_module("openai")
        chain: list[Any] = list(causes(error))
        # Only errors of the client hold the provider's response; litellm makes up its own.
        responses = [
            getattr(c, "response", None)
            for c in chain
            if not type(c).__module__.startswith("litellm")
        ]
        codes = [getattr(response, "status_code", None) for response in responses]
        status = next((code for code in codes if isinstance(code, int)), None)
        # litellm reports a broken connection or invalid JSON as "internal server error, 500", so
        # the underlying errors are checked first.
        if any(isinstance(c, openai.APITimeoutError) for c in chain):
            kind = ModelErrorKind.TIMEOUT
        elif status is not None:
            kind = kind_of_status(status)
        elif any(isinstance(c, openai.APIConnectionError | OSError) for c in chain[1:]):
            kind = ModelErrorKind.CONNECTION
        elif any(isinstance(c, UNREADABLE) for c in chain[1:]):
            kind = ModelErrorKind.BAD_REPLY
        else:
            kind = kind_of_status(getattr(error, "status_code", None) or 500)
        return ModelError(
            str(getattr(error, "message", error)),
            kind=kind,
            model=self.name,
            status=status,
            retry_after=next((s for c in chain if (s := retry_after(c)) is not None), None),
        )


def _litellm(name: str) -> Any:
    # Before the import, which would fetch the map from the network.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    try:
        module: Any = importlib.import_module("litellm")
    except ImportError as error:
        raise absent_extra(name, "litellm") from error
    module.suppress_debug_info = True  # it prints advertisements for its issue tracker
    module.telemetry = False
    return module


def _message(message: Message) -> dict[str, Any]:
    converted: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        converted["tool_calls"] = [
            {
                "id": call.id or f"call_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments or {})},
            }
            for index, call in enumerate(message.tool_calls)
        ]
    rest = {"tool_call_id": message.tool_call_id, "name": message.name}
    return converted | {key: value for key, value in rest.items() if value is not None}


def _usage(usage: Any) -> TokenUsage:
    counted = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
    # As in the other provider: zero tokens mean unknown.
    if not any(counted):
        return TokenUsage()
    details = getattr(usage, "prompt_tokens_details", None)
    return TokenUsage(
        input_tokens=counted[0],
        output_tokens=counted[1],
        cached_tokens=getattr(details, "cached_tokens", None),
    )
