"""Chat model with tools, in a short loop.

    call the model → call the tools it requests → send it the results → … → its answer

Guarantees: every model call is an llm span and every tool call a tool span; the error of a failing
or unknown tool is sent to the model, not raised; a model failure is raised as `ModelError`, so that
the trial decides about a retry. Reaching the turn limit is a failure of the agent, and still gives
an answer.
"""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator

from proctor.agents._chat_tools import LoadedTool, ToolBox, ToolConfig, ToolError
from proctor.agents.base import AgentConfig, AgentError, AgentReply, AgentRequest, as_text
from proctor.agents.mcp import McpToolServer, connections, with_mcp_tools
from proctor.background import threads
from proctor.llm.chat_model import Attachment, ChatModel, ChatRequest, FileMessage
from proctor.llm.providers import is_model_name
from proctor.llm.rate_limits import provider_of, rate_limited
from proctor.trace import Message, SpanStatus, ToolCall
from proctor.trace.capture import capture, span
from proctor.trace.model import EVERYTHING, Observable

# Enough for the tasks in typical suites; an agent that needs more is usually in a loop.
DEFAULT_MAX_TURNS = 10

# Prefix of local models (extra `local-llm`).
LOCAL = "local:"

# Options that a trial's params may override, so that experiments can vary them.
VARIED = ("model", "system", "temperature", "max_tokens")

ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatAgentConfig(AgentConfig):
    """A chat model with tools."""

    model_config = ConfigDict(protected_namespaces=())

    kind: Literal["chat"] = "chat"
    model: str = Field(min_length=1)
    """`PROVIDER:MODEL`, `litellm/PROVIDER/MODEL`, or `local:smollm2`."""
    base_url: str | None = None
    """Custom endpoint; with `openai:NAME` any OpenAI-compatible chat completions API."""
    api_key_env: str | None = None
    """Environment variable with the API key; default: the provider's standard variable."""
    system: str | None = None
    """The system prompt."""
    tools: list[ToolConfig] = Field(default_factory=list[ToolConfig])
    """Tools the model may call; one named like a tool of `mcp_servers` replaces it."""
    mcp_servers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")], McpToolServer] = Field(
        default_factory=dict[str, McpToolServer]
    )
    """MCP servers by name, whose tools the model may call as well."""
    max_turns: Annotated[int, Field(ge=1)] = DEFAULT_MAX_TURNS
    """Maximum number of model calls."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Maximum tokens of one model reply."""
    use_seed: bool = True
    """Pass the trial's seed to models that accept one."""
    request_timeout: Annotated[float, Field(gt=0)] = 120.0
    """Timeout of one model call in seconds."""
    base_dir: Path | None = Field(default=None, exclude=True)
    """Base folder of import paths of tools: the suite's folder."""

    _models: dict[str, ChatModel] = PrivateAttr(default_factory=dict[str, ChatModel])

    @field_validator("model")
    @classmethod
    def _check_model(cls, value: str) -> str:
        """Reject an invalid name before any trial runs."""
        if not is_model_name(value):
            raise ValueError(
                f"{value!r} is not a model name; write PROVIDER:MODEL, such as "
                "openai:gpt-4o-mini, or litellm/PROVIDER/MODEL"
            )
        return value

    @field_validator("api_key_env")
    @classmethod
    def _check_key_name(cls, value: str | None) -> str | None:
        if value is not None and not (value.isidentifier() and value.upper() == value):
            # The value is not repeated in the message: it may be the key.
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
        """Return the tools, imported once."""
        loaded = [tool.load(self.base_dir) for tool in self.tools]
        names = [tool.spec.name for tool in loaded]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            hint = "give one of them a `name`"
            raise AgentError(f"two tools are named {twice!r}", category="", hint=hint)
        return loaded

    def chat_model(self, name: str) -> ChatModel:
        """Return the model of a name at this agent's endpoint, shared by all trials."""
        model = self._models.get(name)
        if model is None:
            if name.startswith(LOCAL):
                model = _local_model(name.removeprefix(LOCAL))
            else:
                from proctor.llm import get_model

                model = get_model(name, base_url=self.base_url, api_key_env=self.api_key_env)
            self._models[name] = model
        return model

    def check(self) -> None:
        """Raise if a tool cannot be imported, or the model's client or key is missing."""
        from proctor.llm.providers import NamedModel

        _ = self.loaded_tools
        for server in self.mcp_servers.values():
            server.check_program(self.base_dir)
        model = self.chat_model(self.model)
        if isinstance(model, NamedModel):
            model.check()

    @property
    def observes(self) -> tuple[Observable, ...]:
        """Return everything: the conversation is ours."""
        return EVERYTHING

    @property
    def provider(self) -> str | None:
        """Return the provider in the model's name, or the host of a custom endpoint."""
        return self.provider_for(self.model)

    def provider_for(self, model: str) -> str | None:
        """Return the provider whose limits and prices apply to a model."""
        return urlsplit(self.base_url).netloc if self.base_url else provider_of(model)

    def version(self) -> dict[str, Any]:
        """Return the model, the prompt and the names of the tools."""
        import hashlib

        system = self.system or ""
        return {
            "model": self.model,
            "base_url": self.base_url,
            "system_sha256": hashlib.sha256(system.encode()).hexdigest()[:16] if system else None,
            "tools": [tool.name or tool.python for tool in self.tools],
            **({"mcp_servers": sorted(self.mcp_servers)} if self.mcp_servers else {}),
            "temperature": self.temperature,
        }

    async def run(self, request: AgentRequest) -> AgentReply:
        """Call the model and its tools until it answers or reaches the turn limit."""
        options = {key: getattr(self, key) for key in VARIED}
        options.update({key: request.params[key] for key in VARIED if key in request.params})
        # In a thread: the first call imports a client library or loads a local model.
        model = await threads.run(self.chat_model, options["model"])
        limited = rate_limited(model, self.provider_for(options["model"]))
        seed = request.seed if self.use_seed else None
        session = request.session
        async with contextlib.AsyncExitStack() as stack:
            messages = opening(None, request.input)
            if session is not None and "chat" in session.memory:
                # Later turns go on with the same tools and messages, their calls included.
                tools, earlier = session.memory["chat"]
                earlier += messages
                messages = earlier
            else:
                loaded = self.loaded_tools
                if self.mcp_servers:
                    opened = await stack.enter_async_context(
                        connections(self.mcp_servers, self.base_dir, request)
                    )
                    loaded = with_mcp_tools(loaded, opened)
                tools = ToolBox(loaded, session, request.seed)
                messages = [*opening(options["system"]), *messages]
                if session is not None:
                    session.memory["chat"] = (tools, messages)
                    session.on_close(stack.pop_all().aclose)
            return await self._converse(limited, options, seed, tools, messages)

    async def _converse(
        self,
        chat_model: ChatModel,
        options: Mapping[str, Any],
        seed: int | None,
        tools: ToolBox,
        messages: list[Message],
    ) -> AgentReply:
        """Go back and forth between the model and its tools, with a span for each call."""
        name, text = options["model"], ""
        # Without the provider, as providers report it.
        model = name.removeprefix("litellm/").rpartition("/" if "/" in name else ":")[2]
        # For a custom endpoint this is its host, which no price table lists: its prices are
        # unknown, even if the model's name is known.
        provider = self.provider_for(name)
        for _ in range(self.max_turns):
            request = ChatRequest(
                messages=tuple(messages),
                tools=tools.specs,
                temperature=options["temperature"],
                max_tokens=options["max_tokens"],
                seed=seed,
                timeout=self.request_timeout,
            )
            recorded = tuple(m.recorded if isinstance(m, FileMessage) else m for m in messages)
            with capture.llm_call(model, input_messages=recorded) as step:
                facts: dict[str, Any] = {"gen_ai.provider.name": provider} if provider else {}
                step.attributes = facts
                reply = await chat_model.complete(request)
                said = Message("assistant", reply.text or None, reply.tool_calls)
                step.model, step.output_messages = reply.model, (said,)
                step.input_tokens = reply.usage.input_tokens
                step.output_tokens = reply.usage.output_tokens
                step.cost_usd = reply.cost_usd
                if reply.usage.cached_tokens:
                    facts["gen_ai.usage.cache_read.input_tokens"] = reply.usage.cached_tokens
                if reply.finish_reason:
                    facts["gen_ai.response.finish_reasons"] = [reply.finish_reason]
            text = reply.text or text
            if not reply.tool_calls:
                messages.append(Message("assistant", reply.text))
                return AgentReply(answer=reply.text, metadata={"finish": reply.finish_reason})
            messages.append(said)
            # One after the other, in the model's order: tools may depend on each other.
            messages += [await _call_tool(tools, call) for call in reply.tool_calls]
        # A span of its own, so that checks can find an agent that ran in circles.
        with span("max_turns") as step:
            step.status = SpanStatus.ERROR
            step.error_type = "MaxTurns"
            step.error_message = f"no answer after {self.max_turns} model calls"
        return AgentReply(answer=text, metadata={"finish": "max_turns"})


_local_lock = threading.Lock()
_local_servers: dict[str, Any] = {}


def _local_model(which: str) -> ChatModel:
    """Return the local model (`smollm2` or a GGUF file), loaded once per process."""
    from proctor.llm import LocalModel

    with _local_lock:
        server = _local_servers.get(which)
        if server is None:
            server = LocalModel(None if which == "smollm2" else Path(which)).start()
            _local_servers[which] = server
    return server.chat_model()


async def _call_tool(tools: ToolBox, call: ToolCall) -> Message:
    """Return the result of one tool call as a message to the model."""
    try:
        with capture.tool_call(call.name, call.arguments, call_id=call.id) as step:
            step.tool_output = result = await tools.call(call.name, call.arguments)
        content = as_text(result)
    except ToolError as error:
        content = f"error: {error}"
    return Message("tool", content, tool_call_id=call.id, name=call.name)


def opening(system: str | None, value: Any = None) -> list[Message]:
    """Return the initial messages: the system prompt, and the input as text, as the parts of one
    message or as a conversation.
    """
    first = [Message("system", system)] if system else []
    if value is None:
        return first
    turns: Any = value.get("messages", value) if isinstance(value, Mapping) else value  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if _are_parts(turns):
        return [*first, _turn({"role": "user", "content": turns}, 0)]
    if isinstance(turns, list) and turns and all(isinstance(turn, Mapping) for turn in turns):  # pyright: ignore[reportUnknownVariableType]
        return first + [_turn(turn, i) for i, turn in enumerate(cast("list[Any]", turns))]
    return [*first, Message("user", as_text(value))]


# What a part of a message has, and a message does not.
_FILE_KEYS = frozenset("image_url source file inline_data inlineData data".split())


def _are_parts(value: Any) -> bool:
    """Return whether an input is a list of text and files: the parts of one message."""
    if not isinstance(value, list):
        return False
    parts = [part for part in cast("list[Any]", value) if not isinstance(part, str)]
    if not all(isinstance(part, Mapping) and "role" not in part for part in parts):
        return False
    files = [part for part in parts if _FILE_KEYS & part.keys()]
    return bool(files) and all("text" in part for part in parts if part not in files)


def _turn(turn: Mapping[str, Any], position: int) -> Message:
    role, content = turn.get("role"), turn.get("content")
    where = f"messages[{position}] of the input"
    if role in ROLES and isinstance(content, str):
        return Message(role, content)
    if role not in ROLES or not isinstance(content, list):
        raise AgentError(
            f"{where} needs a role and content: text or a list of parts",
            category="",
            hint=f"roles are {', '.join(ROLES)}",
        )
    texts: list[str] = []
    files: list[Attachment] = []
    for at, part in enumerate(cast("list[Any]", content)):
        if isinstance(part, str) or isinstance(part.get("text"), str):
            texts.append(part if isinstance(part, str) else part["text"])
        else:
            files.append(_attachment(part, f"{where}, content[{at}]"))
    return FileMessage(role, "\n".join(texts), files=tuple(files))


def _attachment(part: Mapping[str, Any], where: str) -> Attachment:
    """Return the file of a part in the spelling of OpenAI, Anthropic, Gemini, or our own.

    Its bytes are in the case: nothing is fetched, so that a trial is the same everywhere.
    """
    found: dict[str, Any] = dict(part)
    for key in ("source", "file", "inline_data", "inlineData", "image_url"):
        inner = found.get(key)
        if isinstance(inner, Mapping):
            found |= cast("Mapping[str, Any]", inner)
        elif isinstance(inner, str):
            found["url"] = inner
    given = found.get("data") or found.get("file_data") or found.get("url")
    media = found.get("media_type") or found.get("mime_type") or found.get("mimeType")
    if isinstance(given, str) and given.startswith("data:"):
        head, _, given = given.removeprefix("data:").partition(",")
        media = head.partition(";")[0] or media
    elif isinstance(given, str) and given.startswith(("http:", "https:")):
        raise AgentError(
            f"{where} is an address", category="", hint="put the bytes into the case, as base64"
        )
    try:
        data = base64.b64decode(str(given or ""), validate=True)
    except ValueError:
        data = b""
    if not data or not isinstance(media, str):
        raise AgentError(
            f"{where} is neither text nor a file",
            category="",
            hint='write {type: image, media_type: image/png, data: "<base64>"}',
        )
    return Attachment(media, data, str(found.get("name") or found.get("filename") or "file"))
