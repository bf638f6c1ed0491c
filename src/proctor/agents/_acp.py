"""Run agents that speak the Agent Client Protocol (ACP) on standard input and output.

    agent: {kind: acp, command: [opencode, acp]}

Each trial starts the program, opens a session in its workspace, sends the input as the prompt and
waits for the end of the turn. Requests for permission are granted, since nobody is there to ask;
the agent reads files and runs commands with its own tools. Text and tool calls that it reports
become the answer and spans; model calls are those that the gateway saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import Any, Literal

from proctor.agents._coding import adopt_session
from proctor.agents._command import CommandAgentConfig
from proctor.agents._process import end_processes, read_tail
from proctor.agents.base import AGENT_ERROR, AgentError, AgentReply, AgentRequest
from proctor.gateway.options import GatewayOptions
from proctor.imports import absent_extra
from proctor.trace.capture import current_trace, new_span_id
from proctor.trace.model import Span, SpanKind, SpanStatus, Trace


class AcpAgentConfig(CommandAgentConfig):
    """A program that speaks the Agent Client Protocol."""

    kind: Literal["acp"] = "acp"  # pyright: ignore[reportIncompatibleVariableOverride]
    gateway: GatewayOptions | bool = True

    async def _reply(
        self, request: AgentRequest, places: dict[str, str], variables: dict[str, str]
    ) -> AgentReply:
        try:
            import acp
        except ImportError:
            raise absent_extra("kind acp", "acp", AgentError) from None
        mark = "" if request.sandbox is not None else secrets.token_hex(16)
        child = await self._start(request, mark, places, variables)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        errors = asyncio.ensure_future(read_tail(child.stderr))
        turn: Any = _Turn()
        try:
            connection = acp.connect_to_agent(turn, child.stdin, child.stdout)
            try:
                work = asyncio.ensure_future(self._prompt(acp, connection, places))
                ended = asyncio.ensure_future(child.wait())
                await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
                if not work.done():
                    work.cancel()
                    code = child.returncode
                    raise AgentError(f"the agent exited with code {code} before its turn ended")
                stopped = work.result()
            except (acp.RequestError, ConnectionError, EOFError) as error:
                raise AgentError(f"the turn failed: {error}") from error
            finally:
                with contextlib.suppress(Exception):
                    await connection.close()
        except AgentError as error:
            await end_processes(child, mark)
            last = ((await errors).strip().splitlines() or [""])[-1]
            message = f"{error.message}: {last}".rstrip(": ")
            raise AgentError(message, category=AGENT_ERROR) from error
        finally:
            await end_processes(child, mark)
            errors.cancel()
            adopt_session(turn.trace())
            if (here := current_trace()) is not None:
                # The package traces its own messages, which say nothing about the agent.
                here.spans[:] = [s for s in here.spans if not s.name.startswith("acp.")]
        if stopped in ("refusal", "cancelled"):
            raise AgentError(f"the turn ended with {stopped}")
        return AgentReply(answer="".join(turn.said), metadata={"stop_reason": stopped})

    async def _prompt(self, acp: Any, connection: Any, places: dict[str, str]) -> str:
        await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        session = await connection.new_session(cwd=places["{workspace}"], mcp_servers=[])
        prompt = [acp.text_block(places["{input}"])]
        answered = await connection.prompt(session_id=session.session_id, prompt=prompt)
        return str(answered.stop_reason)


class _Turn:
    """What an agent reports while it works: its text since the last tool call, and its tools."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.tools: dict[str, Span] = {}

    def on_connect(self, conn: Any) -> None:
        """Take the connection, which is not needed."""

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_more: Any
    ) -> Any:
        """Grant what is asked for, for this once if there is a choice."""
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        for kind in ("allow_once", "allow_always"):
            for option in options:
                if option.kind == kind:
                    chosen = AllowedOutcome(option_id=option.option_id, outcome="selected")
                    return RequestPermissionResponse(outcome=chosen)
        return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))

    async def session_update(self, session_id: str, update: Any, **_more: Any) -> None:
        """Record a piece of text, or the state of a tool call."""
        kind = getattr(update, "session_update", "")
        if kind == "agent_message_chunk":
            self.said.append(getattr(update.content, "text", None) or "")
        elif kind in ("tool_call", "tool_call_update"):
            self.said.clear()
            now = time.time_ns()
            key = update.tool_call_id
            span = self.tools.get(key)
            if span is None:
                name = getattr(update, "title", None) or "tool"
                span = self.tools[key] = Span(
                    span_id=new_span_id(),
                    trace_id="",
                    name=name,
                    kind=SpanKind.TOOL,
                    start_ns=now,
                    end_ns=now,
                    tool_name=name,
                    tool_call_id=key,
                )
            span.end_ns = max(now, span.start_ns)
            if (given := getattr(update, "raw_input", None)) is not None:
                span.tool_input = given
            if (output := _output(update)) is not None:
                span.tool_output = output
            status = getattr(update, "status", None)
            if status in ("completed", "failed"):
                span.status = SpanStatus.OK if status == "completed" else SpanStatus.ERROR

    def trace(self) -> Trace:
        """Return the tools below a span that stands for the session."""
        root = Span(span_id="0", trace_id="", name="session", kind=SpanKind.AGENT)
        for span in self.tools.values():
            span.parent_id = root.span_id
        return Trace(trace_id="0", spans=[root, *self.tools.values()])


def _output(update: Any) -> Any:
    """Return the result of a tool call: its raw value, or else the text shown to people."""
    if (raw := getattr(update, "raw_output", None)) is not None:
        return raw
    parts = [getattr(each, "content", None) for each in getattr(update, "content", None) or ()]
    texts: list[str] = [text for part in parts if (text := getattr(part, "text", None))]
    return "\n".join(texts) if texts else None
