"""Run agents of the OpenAI Agents SDK; its tracing is redirected into the trial's trace.

By default the SDK sends its traces to OpenAI. Inside a trial they go to the trial's trace only;
outside, the user's configuration is unchanged. This takes one provider in front of the user's,
installed at the first trial.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar, Literal

from pydantic import Field

from proctor.agents._chat import opening
from proctor.agents.base import AgentReply, AgentRequest
from proctor.agents.frameworks import (
    FrameworkAgentConfig,
    SpanBook,
    as_mapping,
    reply_of,
    token_count,
)
from proctor.llm.chat_model import FileMessage
from proctor.trace import Span, SpanKind
from proctor.trace.conventions.messages import messages_from


class OpenAIAgentsConfig(FrameworkAgentConfig):
    """An `agents.Agent` of the OpenAI Agents SDK."""

    kind: Literal["openai_agents"] = "openai_agents"
    max_turns: int | None = Field(default=None, ge=1)
    """Maximum turns; default: the SDK's limit."""

    package: ClassVar[str] = "agents"
    requirement: ClassVar[str] = "openai-agents>=0.6"

    def instance(self) -> Any:
        """Return the agent for one trial."""
        agent = super().instance()
        sdk: Any = importlib.import_module("agents")
        if not isinstance(agent, sdk.Agent):
            raise self.refuse(agent, "an agents.Agent")
        return agent

    async def run(self, request: AgentRequest) -> AgentReply:
        """Run the agent with its traces redirected to the trial."""
        agent = self.instance()
        sdk: Any = importlib.import_module("agents")
        tracing: Any = importlib.import_module("agents.tracing")
        with _installing:
            current = tracing.get_trace_provider()
            # The user may replace the provider between trials, so this is checked each time.
            if not isinstance(current, _provider_class()):
                tracing.set_trace_provider(_provider_class()(current))
        options: dict[str, Any] = {
            "run_config": sdk.RunConfig(workflow_name="proctor", trace_include_sensitive_data=True)
        }
        if self.max_turns is not None:
            options["max_turns"] = self.max_turns
        value = request.input
        if not isinstance(value, str):
            value = [
                {
                    "role": m.role,
                    "content": m.response_parts() if isinstance(m, FileMessage) else m.content,
                }
                for m in opening(None, value)
            ]
        session = request.session
        if session is not None and (earlier := session.memory.get(self.kind)) is not None:
            value = [*earlier, {"role": "user", "content": request.input}]
        # A context variable: trials that run in parallel have a book each.
        token = _book.set(SpanBook())
        try:
            result = await sdk.Runner.run(agent, value, **options)
        finally:
            _book.reset(token)
        if session is not None:
            session.memory[self.kind] = result.to_input_list()
        return reply_of(result.final_output)


_book: ContextVar[SpanBook | None] = ContextVar("proctor_openai_agents", default=None)
_installing = threading.Lock()


@functools.cache
def _provider_class() -> Any:
    """Return the class of a trace provider that is ours inside a trial and the user's elsewhere.

    It is created lazily, because it derives from the SDK's.
    """
    from agents.tracing import TracingProcessor
    from agents.tracing.provider import DefaultTraceProvider, TraceProvider

    class Processor(_Listener, TracingProcessor):
        pass

    def routed(name: str) -> Callable[..., Any]:
        def call(provider: Any, *args: Any, **more: Any) -> Any:
            # Inside a trial ours; settings and processors are always the user's.
            users = name in _SETTINGS or _book.get() is None
            return getattr(provider.users if users else provider.ours, name)(*args, **more)

        return call

    def create(provider: Any, users: Any) -> None:
        provider.users, provider.ours = users, DefaultTraceProvider()
        provider.ours.set_processors([Processor()])
        # The user may have disabled tracing; a trial needs its spans regardless.
        provider.ours.set_disabled(False)

    # Every method of the interface, also those that a later version of the SDK adds.
    methods = {name: routed(name) for name in dir(TraceProvider) if not name.startswith("_")}
    return type("RoutingProvider", (TraceProvider,), {**methods, "__init__": create})


_SETTINGS = frozenset(
    {"register_processor", "set_processors", "set_disabled", "force_flush", "shutdown"}
)


class _Listener:
    """Records the SDK's spans in the `SpanBook` of the current trial."""

    def on_trace_start(self, trace: Any) -> None:
        pass

    def on_trace_end(self, trace: Any) -> None:
        pass

    def on_span_start(self, span: Any) -> None:
        book, data = _book.get(), span.span_data
        if book is None:
            return
        if data.type in _INTERNAL:
            book.skip(span.span_id, span.parent_id)
            return
        kind = _KINDS.get(data.type, SpanKind.OTHER)
        name = "chat" if kind == SpanKind.LLM else str(getattr(data, "name", None) or data.type)
        book.begin(span.span_id, span.parent_id, name, kind)

    def on_span_end(self, span: Any) -> None:
        book = _book.get()
        if book is not None:
            _end(book, span)

    def shutdown(self) -> None:
        pass

    def force_flush(self) -> None:
        pass


_KINDS = {
    "agent": SpanKind.AGENT,
    "function": SpanKind.TOOL,
    "generation": SpanKind.LLM,
    "response": SpanKind.LLM,
    "handoff": SpanKind.HANDOFF,
    "guardrail": SpanKind.GUARDRAIL,
}

# Internal spans of the SDK, which only repeat the spans inside them.
_INTERNAL = frozenset({"task", "turn"})


def _end(book: SpanBook, span: Any) -> None:
    """End the span; its data is complete only now."""
    ours = book.end(span.span_id)
    if ours is None:
        return
    data = span.span_data
    if data.type == "agent":
        ours.agent_name = data.name
    elif data.type == "handoff":
        ours.name = f"handoff to {data.to_agent}"
        ours.agent_name = data.from_agent
        ours.handoff_to = data.to_agent
    elif data.type == "guardrail":
        ours.output = {"triggered": data.triggered}
    elif (reader := _READERS.get(data.type)) is not None:
        reader(ours, data)
    if span.error:
        error = as_mapping(span.error)
        detail = as_mapping(error.get("data")).get("error")
        text = f"{error.get('message')}: {detail}" if detail else str(error.get("message"))
        book.fail(span.span_id, "Error", text)


def _function(ours: Span, data: Any) -> None:
    from proctor.trace.conventions.values import parsed

    ours.tool_name = data.name
    ours.tool_input = parsed(data.input)
    ours.tool_output = data.output


def _generation(ours: Span, data: Any) -> None:
    usage = as_mapping(data.usage)
    ours.model = data.model
    ours.input_messages = messages_from(data.input)
    ours.output_messages = messages_from(data.output, "assistant")
    ours.input_tokens = token_count(usage.get("input_tokens"))
    ours.output_tokens = token_count(usage.get("output_tokens"))


def _response(ours: Span, data: Any) -> None:
    response = data.response
    ours.input_messages = messages_from(data.input)
    if response is None:
        return
    ours.model = response.model
    ours.output_messages = messages_from(
        [item.model_dump(mode="json") for item in response.output], "assistant"
    )
    if response.usage is not None:
        ours.input_tokens = response.usage.input_tokens
        ours.output_tokens = response.usage.output_tokens


_READERS = {
    "function": _function,
    "generation": _generation,
    "response": _response,
}
