"""Run LangGraph graphs and any LangChain runnable; a callback handler records the spans.

The input becomes a user message under `messages` (or the state itself, if the case's input is a
mapping of its keys); the answer is the text of the last message, or the value under `output_key`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

from pydantic import Field

from proctor.agents.base import AgentError, AgentReply, AgentRequest
from proctor.agents.frameworks import (
    FrameworkAgentConfig,
    SpanBook,
    as_mapping,
    reply_of,
    token_count,
)
from proctor.trace import Document, Message, SpanKind, SpanStatus
from proctor.trace.conventions.messages import messages_from
from proctor.trace.conventions.values import encode_json

# LangGraph's tag for internal steps.
HIDDEN = "langsmith:hidden"


class LangGraphAgentConfig(FrameworkAgentConfig):
    """A compiled LangGraph graph, or another LangChain runnable."""

    kind: Literal["langgraph"] = "langgraph"
    input_key: str = "messages"
    """State key of the input; `messages` makes it a user message."""
    output_key: str | None = None
    """State key of the answer, if it is not the last message."""
    recursion_limit: int | None = Field(default=None, ge=1)
    """Maximum steps of the graph; default: LangGraph's limit."""

    package: ClassVar[str] = "langchain_core"
    requirement: ClassVar[str] = "langgraph>=1.0"

    def instance(self) -> Any:
        """Return the graph for one trial."""
        graph = super().instance()
        if not callable(getattr(graph, "ainvoke", None)):
            hint = " (call .compile() first)" if hasattr(graph, "compile") else ""
            raise self.refuse(graph, f"a compiled graph or runnable{hint}")
        return graph

    async def run(self, request: AgentRequest) -> AgentReply:
        """Invoke the graph with our callback handler."""
        graph = self.instance()
        options: dict[str, Any] = {
            "callbacks": [_handler_class()(SpanBook())],
            # A graph with a checkpointer needs a thread id; each trial has its own.
            "configurable": {"thread_id": request.trace_id or request.trial or "trial"},
        }
        if self.recursion_limit is not None:
            options["recursion_limit"] = self.recursion_limit
        given, session = self._state(graph, request.input), request.session
        # A graph with a checkpointer remembers the thread by its id; others get all messages.
        remembers = getattr(graph, "checkpointer", None) is not None
        if session is not None and not remembers and self.input_key == "messages":
            given = {"messages": [*session.memory.get(self.kind, ()), *given["messages"]]}
        state = await graph.ainvoke(given, options)
        if session is not None:
            session.memory[self.kind] = as_mapping(state).get("messages", ())
        return self._reply(state)

    def _state(self, graph: Any, value: Any) -> Any:
        """Return the initial state. LangGraph drops keys that a graph does not have without a word,
        so what the graph does not know goes to the model as a message.
        """
        if not isinstance(value, Mapping):
            if self.input_key == "messages" and _is_conversation(value):
                return {"messages": value}
            if self.input_key == "messages":
                return {"messages": [{"role": "user", "content": value}]}
            return {self.input_key: value}
        given = dict(cast("Mapping[str, Any]", value))
        builder = getattr(graph, "builder", None)  # of graphs, not of other runnables
        schemas: Any = getattr(builder, "schemas", {})
        known = as_mapping(schemas.get(getattr(builder, "input_schema", None)))
        rest = {key: given[key] for key in given if key not in known}
        if not known or not rest or given.get("messages"):
            return given
        if "messages" not in known:
            if len(rest) < len(given):
                return given
            raise AgentError(
                f"the graph has no {', '.join(map(repr, rest))} in its input",
                category="",
                hint=f"it takes {', '.join(known)}",
            )
        only = next(iter(rest.values()))
        text = only if len(rest) == 1 and isinstance(only, str) else encode_json(rest)
        state = {key: given[key] for key in given if key in known}
        return {**state, "messages": [{"role": "user", "content": text}]}

    def _reply(self, state: Any) -> AgentReply:
        key = self.output_key
        values = as_mapping(state)
        if key is not None:
            if key not in values:
                raise AgentError(
                    f"the final state has no {key!r}", hint=f"it has {', '.join(values)}"
                )
            return reply_of(values[key])
        messages = values.get("messages")
        if isinstance(messages, Sequence) and messages:
            return AgentReply(answer=_text(cast("Sequence[Any]", messages)[-1]))
        content = getattr(state, "content", None)
        return AgentReply(answer=content) if isinstance(content, str) else reply_of(state)


def _is_conversation(value: Any) -> bool:
    turns = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(turns) and all("role" in as_mapping(turn) for turn in turns)


def _text(message: Any) -> str:
    text = getattr(message, "text", None)
    # A method in older versions, a callable property in newer ones.
    return text if isinstance(text, str) else str(getattr(message, "content", message))


@functools.cache
def _handler_class() -> Any:
    """Return the handler class, created lazily because it derives from LangChain's."""
    from langchain_core.callbacks import BaseCallbackHandler

    class Handler(_Steps, BaseCallbackHandler):
        run_inline = True  # run handlers in the task of the step, so that spans start in order
        raise_error = False

    return Handler


class _Steps:
    """Records LangChain's callbacks as spans."""

    def __init__(self, book: SpanBook) -> None:
        self._book = book

    # -- chains and nodes -------------------------------------------------------------------

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: Any, parent_run_id: Any = None, **more: Any
    ) -> None:
        """Start the span of a graph, a node or a runnable."""
        if HIDDEN in (more.get("tags") or ()):
            self._book.skip(run_id, parent_run_id)
            return
        name = more.get("name") or as_mapping(serialized).get("name") or "chain"
        self._book.begin(run_id, parent_run_id, str(name), SpanKind.CHAIN)

    def on_chain_end(self, outputs: Any, *, run_id: Any, **more: Any) -> None:
        """End the span."""
        self._book.end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: Any, **more: Any) -> None:
        """End the span with an error; also used for models, tools and retrievers."""
        self._book.fail(run_id, type(error).__name__, str(error))

    on_llm_error = on_tool_error = on_retriever_error = on_chain_error

    # -- models -----------------------------------------------------------------------------

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: Any, parent_run_id: Any = None, **more: Any
    ) -> None:
        """Start the span of a chat model call."""
        dumped = [message.model_dump() for message in (messages[0] if messages else ())]
        messages_in = messages_from(dumped)
        self._model(run_id, parent_run_id, messages_in, more)

    def on_llm_start(
        self, serialized: Any, prompts: Any, *, run_id: Any, parent_run_id: Any = None, **more: Any
    ) -> None:
        """Start the span of a text completion call."""
        messages_in = tuple(Message("user", prompt) for prompt in prompts)
        self._model(run_id, parent_run_id, messages_in, more)

    def _model(
        self, run_id: Any, parent: Any, messages_in: tuple[Message, ...], more: Mapping[str, Any]
    ) -> None:
        about = as_mapping(more.get("metadata"))
        provider = about.get("ls_provider")
        self._book.begin(
            run_id,
            parent,
            "chat",
            SpanKind.LLM,
            model=about.get("ls_model_name"),
            input_messages=messages_in,
            attributes={"gen_ai.provider.name": provider} if isinstance(provider, str) else {},
        )

    def on_llm_end(self, response: Any, *, run_id: Any, **more: Any) -> None:
        """End the span of a model call."""
        span = self._book.end(run_id)
        rounds = response.generations
        if span is None or not rounds or not rounds[0]:
            return
        first = rounds[0][0]
        message = getattr(first, "message", None)
        if message is None:
            span.output_messages = (Message("assistant", first.text),)
            return
        span.output_messages = messages_from(message.model_dump(), "assistant")
        usage = as_mapping(getattr(message, "usage_metadata", None))
        span.input_tokens = token_count(usage.get("input_tokens"))
        span.output_tokens = token_count(usage.get("output_tokens"))
        about = as_mapping(getattr(message, "response_metadata", None))
        span.model = about.get("model_name") or about.get("model") or span.model

    # -- tools and retrievers ---------------------------------------------------------------

    def on_tool_start(
        self,
        serialized: Any,
        input_str: str,
        *,
        run_id: Any,
        parent_run_id: Any = None,
        **more: Any,
    ) -> None:
        """Start the span of a tool call."""
        name = str(as_mapping(serialized).get("name") or more.get("name") or "tool")
        arguments = more.get("inputs")
        self._book.begin(
            run_id,
            parent_run_id,
            name,
            SpanKind.TOOL,
            tool_name=name,
            tool_input=input_str if arguments is None else arguments,
        )

    def on_tool_end(self, output: Any, *, run_id: Any, **more: Any) -> None:
        """End the span of a tool call; a reported error marks it as failed."""
        span = self._book.end(run_id)
        if span is None:
            return
        span.tool_call_id = getattr(output, "tool_call_id", None)
        span.tool_output = getattr(output, "content", output)
        if getattr(output, "status", None) == "error":
            span.status = SpanStatus.ERROR
            span.error_message = str(span.tool_output)

    def on_retriever_start(
        self, serialized: Any, query: str, *, run_id: Any, parent_run_id: Any = None, **more: Any
    ) -> None:
        """Start the span of a retrieval."""
        name = str(more.get("name") or "retrieve")
        self._book.begin(run_id, parent_run_id, name, SpanKind.RETRIEVAL, input=query)

    def on_retriever_end(self, documents: Any, *, run_id: Any, **more: Any) -> None:
        """End the span of a retrieval."""
        span = self._book.end(run_id)
        if span is not None:
            span.documents = tuple(
                Document(
                    id=getattr(document, "id", None),
                    text=getattr(document, "page_content", None),
                    metadata=dict(getattr(document, "metadata", None) or {}),
                )
                for document in documents
            )
