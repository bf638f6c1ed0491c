"""`litellm/PROVIDER/MODEL` names, through litellm (extra `litellm`).

Its price map is forced to the packaged copy before it is imported, because it otherwise fetches
one from the network. Its import takes seconds, so it happens at the first call.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from typing import TYPE_CHECKING, Any

from proctor.imports import absent_extra
from proctor.llm.chat_model import ModelError, ModelErrorKind, kind_of_status
from proctor.llm.providers import NamedModel, key_from
from proctor.llm.providers._http import chat_body
from proctor.llm.retry import causes, retry_after

if TYPE_CHECKING:
    from proctor.llm.chat_model import ChatReply, ChatRequest

UNREADABLE = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Errors of the client library when a gateway replies with unexpected JSON."""


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
            provider, _, model = self._model.rpartition("/")
            return self._reply("openai", response.model_dump(), provider or None, model)
        except TimeoutError as error:
            raise self._too_late(request) from error
        except openai.OpenAIError as error:
            raise self._failed(error) from error
        except UNREADABLE as error:
            problem = f"the reply has an unexpected shape ({type(error).__name__}: {error})"
            raise self._bad_reply(problem) from error

    def _options(self, request: ChatRequest) -> dict[str, Any]:
        options: dict[str, Any] = {
            **chat_body(self._model, request),
            "timeout": request.timeout,
            # The caller decides about retries.
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": True,  # models without a seed parameter are called without it
            "api_base": self._base_url,
        }
        for written, message in zip(options["messages"], request.messages, strict=True):
            if message.name is not None:  # of a tool, which some providers want
                written["name"] = message.name
        key = key_from(self._api_key_env, self.name)
        if key is not None or self._base_url is not None:
            # As in `get_model`: the provider's standard key is not sent to a custom endpoint.
            options["api_key"] = key or "no-key"
        return {key: value for key, value in options.items() if value is not None}

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
