"""An agent that is a chat model with tools: a loop small enough to read.

    ask the model → call the tools it asks for → tell it the results → … → its answer

Promise: every model call is an llm span and every tool call a tool span; a failing or unknown
tool is told to the model, not raised; a failing model is raised as the `ModelError` it is, so the
trial decides about another try. Running out of turns is the agent's failure and gives an answer.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

import msgspec
from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator

from proctor.agents.base import Agent, AgentConfig, AgentError, AgentReply, AgentRequest
from proctor.agents.chat_tools import LoadedTool, ToolBox, ToolConfig, ToolError, as_text
from proctor.background import threads
from proctor.llm.chat_model import ChatModel, ChatReply, ChatRequest
from proctor.llm.providers import is_model_name
from proctor.llm.rate_limits import provider_of, rate_limited
from proctor.trace import Message, ToolCall
from proctor.trace.capture import capture, span

DEFAULT_MAX_TURNS = 10
"""Enough for the tasks suites hold; an agent that needs more is usually going in circles."""

LOCAL = "local:"
"""Prefix of models served on this machine by the extra `local-llm`."""

VARIED = ("model", "system", "temperature", "max_tokens")
"""Options that a trial's params may set, so that experiments can vary them."""

ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatAgentConfig(AgentConfig):
    """A chat model with tools."""

    model_config = ConfigDict(protected_namespaces=())

    kind: Literal["chat"] = "chat"
    model: str = Field(min_length=1)
    """`PROVIDER:MODEL`, `litellm/PROVIDER/MODEL`, or `local:smollm2`."""
    base_url: str | None = None
    """An endpoint of your own; with `openai:NAME` any that speaks OpenAI chat completions."""
    api_key_env: str | None = None
    """The environment variable that holds its key; the provider's usual one when absent."""
    system: str | None = None
    """The system prompt."""
    tools: list[ToolConfig] = Field(default_factory=list[ToolConfig])
    """What the model may call."""
    max_turns: Annotated[int, Field(ge=1)] = DEFAULT_MAX_TURNS
    """Model calls at most."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of one model reply at most."""
    use_seed: bool = True
    """Pass the trial's seed to models that take one."""
    request_timeout: Annotated[float, Field(gt=0)] = 120.0
    """Seconds for one model call."""
    base_dir: Path | None = Field(default=None, exclude=True)
    """Where import paths of tools start; the suite's folder."""

    _models: dict[str, ChatModel] = PrivateAttr(default_factory=dict[str, ChatModel])

    @field_validator("model")
    @classmethod
    def _a_model(cls, value: str) -> str:
        """Told before anything runs, not once for every trial."""
        if not is_model_name(value):
            raise ValueError(
                f"{value!r} is not a model name; write PROVIDER:MODEL, such as "
                "openai:gpt-4o-mini, or litellm/PROVIDER/MODEL"
            )
        return value

    @field_validator("api_key_env")
    @classmethod
    def _a_name(cls, value: str | None) -> str | None:
        if value is not None and not (value.isidentifier() and value.upper() == value):
            # Not repeated in the message: it may well be the key itself.
            raise ValueError("api_key_env is the NAME of an environment variable, in capitals")
        return value

    @model_validator(mode="after")
    def _tools_differ(self) -> ChatAgentConfig:
        names = [tool.name for tool in self.tools if tool.name is not None]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two tools are named {twice!r}")
        return self

    @cached_property
    def loaded_tools(self) -> list[LoadedTool]:
        """The tools, imported once."""
        loaded = [tool.load(self.base_dir) for tool in self.tools]
        names = [tool.spec.name for tool in loaded]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise AgentError(f"two tools are named {twice!r}", hint="give one of them a `name`")
        return loaded

    def chat_model(self, name: str) -> ChatModel:
        """A model by name, at this agent's endpoint; made once, shared by trials."""
        model = self._models.get(name)
        if model is None:
            if name.startswith(LOCAL):
                model = _local_model(name.removeprefix(LOCAL))
            else:
                from proctor.llm import get_model

                model = get_model(
                    name,
                    base_url=self.base_url,
                    api_key_env=self.api_key_env,
                )
            self._models[name] = model
        return model

    def create(self) -> Agent:
        """A conversation of its own, over a shared client."""
        return ChatAgent(self)

    @property
    def provider(self) -> str | None:
        """The provider in the model's name, or the host of an endpoint of one's own."""
        return self.provider_for(self.model)

    def provider_for(self, model: str) -> str | None:
        """Whose limits and prices calls of a model count against."""
        return urlsplit(self.base_url).netloc if self.base_url else provider_of(model)

    def version(self) -> dict[str, Any]:
        """The model, the prompt and the names of the tools."""
        import hashlib

        system = self.system or ""
        return {
            "model": self.model,
            "base_url": self.base_url,
            "system_sha256": hashlib.sha256(system.encode()).hexdigest()[:16] if system else None,
            "tools": [tool.name or tool.python for tool in self.tools],
            "temperature": self.temperature,
        }


_local_lock = threading.Lock()
_local_servers: dict[str, Any] = {}


def _local_model(which: str) -> ChatModel:
    """The model on this machine: `smollm2`, or a GGUF file. Loaded once, kept for the process."""
    from proctor.llm import LocalModel

    with _local_lock:
        server = _local_servers.get(which)
        if server is None:
            server = LocalModel(None if which == "smollm2" else Path(which)).start()
            _local_servers[which] = server
    return server.chat_model()


class ChatAgent:
    """One conversation."""

    def __init__(self, config: ChatAgentConfig) -> None:
        self._config = config

    async def run(self, request: AgentRequest) -> AgentReply:
        """Ask, call tools, ask again, until the model answers or its turns are used up."""
        config = self._config
        options = {key: getattr(config, key) for key in VARIED}
        options.update({key: request.params[key] for key in VARIED if key in request.params})
        model = await threads.run(config.chat_model, options["model"])
        limited = rate_limited(model, config.provider_for(options["model"]))
        asker = _Asker(config, limited, options, request.seed)
        tools = ToolBox(config.loaded_tools)
        messages = opening(options["system"], request.input)
        said = ""
        for _ in range(config.max_turns):
            reply = await asker.ask(messages)
            said = reply.text or said
            if not reply.tool_calls:
                return AgentReply(answer=reply.text, metadata={"finish": reply.finish_reason})
            messages.append(Message("assistant", reply.text or None, reply.tool_calls))
            for call in reply.tool_calls:
                messages.append(await _called(tools, call))
        _record_exhaustion(config.max_turns)
        return AgentReply(answer=said, metadata={"finish": "max_turns"})


def _record_exhaustion(turns: int) -> None:
    """A span that checks can find: the model still wanted to go on."""
    from proctor.trace import SpanStatus

    with span("max_turns") as step:
        step.status = SpanStatus.ERROR
        step.error_type = "MaxTurns"
        step.error_message = f"no answer after {turns} model calls"


async def _called(tools: ToolBox, call: ToolCall) -> Message:
    """The result of one tool call, as the message that tells the model."""
    try:
        with capture.tool_call(call.name, call.arguments, call_id=call.id) as step:
            step.tool_output = result = await tools.call(call.name, call.arguments)
        content = as_text(result)
    except ToolError as error:
        content = f"error: {error}"
    return Message("tool", content, tool_call_id=call.id, name=call.name)


class _Asker:
    """Asks the model and records each call."""

    def __init__(
        self, config: ChatAgentConfig, model: ChatModel, options: Mapping[str, Any], seed: int
    ) -> None:
        self._config = config
        self._model = model
        self._options = options
        self._seed = seed if config.use_seed else None
        self._tools = tuple(tool.spec for tool in config.loaded_tools)

    async def ask(self, messages: list[Message]) -> ChatReply:
        """One model call, in a span of its own."""
        request = ChatRequest(
            messages=tuple(messages),
            tools=self._tools,
            temperature=self._options["temperature"],
            max_tokens=self._options["max_tokens"],
            seed=self._seed,
            timeout=self._config.request_timeout,
        )
        name = self._options["model"]
        with capture.llm_call(_bare(name), input_messages=request.messages) as step:
            # For an endpoint of one's own this is its host, which no price table lists: its
            # prices are unknown, whatever its model is called.
            provider = self._config.provider_for(name)
            facts: dict[str, Any] = {"gen_ai.provider.name": provider} if provider else {}
            step.attributes = facts
            reply = await self._model.complete(request)
            step.model = reply.model
            step.output_messages = (Message("assistant", reply.text or None, reply.tool_calls),)
            step.input_tokens = reply.usage.input_tokens
            step.output_tokens = reply.usage.output_tokens
            step.cost_usd = reply.cost_usd
            if reply.usage.cached_tokens:
                facts["gen_ai.usage.cache_read.input_tokens"] = reply.usage.cached_tokens
            if reply.finish_reason:
                facts["gen_ai.response.finish_reasons"] = [reply.finish_reason]
        return reply


def _bare(name: str) -> str:
    """The model without its provider, as providers report it."""
    return name.removeprefix("litellm/").rpartition("/" if "/" in name else ":")[2]


def opening(system: str | None, value: Any) -> list[Message]:
    """The first messages: the system prompt, and the input as text or as a conversation."""
    first = [Message("system", system)] if system else []
    turns: Any = value.get("messages", value) if isinstance(value, Mapping) else value  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(turns, list) and turns and all(isinstance(turn, Mapping) for turn in turns):  # pyright: ignore[reportUnknownVariableType]
        return first + [_turn(turn, i) for i, turn in enumerate(cast("list[Any]", turns))]
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    return [*first, Message("user", text)]


def _turn(turn: Mapping[str, Any], position: int) -> Message:
    role, content = turn.get("role"), turn.get("content")
    if role not in ROLES or not isinstance(content, str):
        raise AgentError(
            f"messages[{position}] of the input needs a role and a text as content",
            hint=f"roles are {', '.join(ROLES)}",
        )
    return Message(role, content)
