"""Read what coding agents write about their sessions, one JSON object per line.

Supported: Claude Code (`--output-format stream-json`, and the files below `~/.claude/projects`),
Codex (`exec --json`, and rollout files), Qwen Code (stream and session files), Gemini CLI
(`stream-json`) and OpenCode (`run --format json`).

Guarantees: one agent span around everything, a model span for each reply and a tool span for each
call, with its result; calls of a sub-agent are below the call that started it. Figures that a
session does not state are None: Claude's stream has no output tokens of single replies, Codex's
`exec --json` only the sum of a turn, which is then one model span.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from proctor.trace._fields import BadValue, in_range, is_array, is_object, iso_ns
from proctor.trace.assemble import MALFORMED, Collector
from proctor.trace.conventions.messages import messages_from
from proctor.trace.conventions.values import count, first, mapping, number, parsed, text
from proctor.trace.model import Message, Span, SpanKind, SpanStatus, Trace

NAME = "coding_session"
ABOUT = "sessions of coding agents (Claude Code, Codex, Qwen Code, Gemini CLI, OpenCode)"

# The agent that writes each dialect; Qwen Code writes that of Claude Code.
AGENTS = {
    "claude": "claude-code",
    "exec": "codex",
    "rollout": "codex",
    "gemini": "gemini-cli",
    "opencode": "opencode",
}

_SESSION_KEYS = ("session_id", "sessionId", "sessionID", "thread_id")
_LONGEST_HISTORY = 1_000


def dialect_of(line: Any) -> str | None:
    """Return which agent wrote a line; None if it is not a line of a session."""
    if not is_object(line) or not isinstance(kind := line.get("type"), str):
        return None
    if is_object(line.get("payload")) and "timestamp" in line:
        return "rollout" if kind in _ROLLOUT else None
    if kind in _EXEC and line.keys() & {"thread_id", "item", "usage", "error", "message"}:
        return "exec"
    if "sessionID" in line and (is_object(line.get("part")) or kind == "error"):
        return "opencode"
    if kind in _CLAUDE and line.keys() & {"session_id", "sessionId"} and "span_id" not in line:
        return "claude"
    if kind in ("init", "message", "tool_use", "tool_result", "result") and "timestamp" in line:
        return "gemini" if kind != "init" or "session_id" in line else None
    return None


_ROLLOUT = frozenset(
    "session_meta response_item event_msg turn_context compacted token_usage_record".split()
)
_EXEC = frozenset(
    (
        "thread.started turn.started turn.completed turn.failed item.started item.updated "
        "item.completed error"
    ).split()
)
_CLAUDE = frozenset(
    "system assistant user result tool_result summary attachment queue-operation".split()
)


def matches(document: Any) -> bool:
    """Return whether a document is a session: its first line, or a list of lines."""
    return dialect_of(document[0] if is_array(document) and document else document) is not None


def read(document: Any, out: Collector) -> None:
    """Read a list of lines as one session; Gemini and Codex name it only in their first line."""
    lines = document if is_array(document) else [document]
    try:
        trace = session_trace(lines)
    except MALFORMED as error:
        out.problem("", f"session not understood: {type(error).__name__}: {error}"[:200])
        return
    if trace is None:
        out.problem("", "the session has no steps")
    else:
        out.finished.append(trace)


def session_trace(lines: list[Any]) -> Trace | None:
    """Return the trace of a session; None if its lines hold none."""
    session = _Session()
    readers: dict[str, Callable[[_Session, dict[str, Any]], None]] = {
        "claude": _claude,
        "exec": _codex_exec,
        "rollout": _codex_rollout,
        "gemini": _gemini,
        "opencode": _opencode,
    }
    for line in lines:
        dialect = dialect_of(line)
        if dialect is not None:
            session.agent = session.agent or AGENTS[dialect]
            session.at(first(line, ("timestamp",)))
            session.id = session.id or text(first(line, _SESSION_KEYS))
            readers[dialect](session, line)
    return session.finish()


COUNTED = 10**15
"""Times below it are numbers of lines: no program wrote sessions in the first days of 1970."""


class _Session:
    """A session while it is read."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.agent = ""
        self.model: str | None = None
        self.metadata: dict[str, Any] = {}
        self.query: str | None = None
        self.answer: str | None = None
        self.error: str | None = None
        self.history: list[Message] = []
        self.spans: list[Span] = []
        self.tools: dict[str, Span] = {}
        self.calls: dict[str, Span] = {}
        self.now = self.start = 0
        self.call: Span | None = None
        """The model call that is being read, where several lines make one."""

    def at(self, when: Any) -> None:
        """Set the time of the next spans; a line without one is a nanosecond later.

        Lines before the first time are moved to just before it: the streams of some programs
        have times in the results of tools only.
        """
        self.now += 1
        before = self.now
        try:
            if isinstance(when, str):
                self.now = max(self.now, iso_ns(when))
            elif isinstance(when, int):
                self.now = max(self.now, in_range(when * 1_000_000, "time"))
        except BadValue:
            pass
        if before < COUNTED <= self.now:
            moved = self.now - before
            self.start += moved if self.start else 0
            for span in self.spans:
                span.start_ns += moved
                span.end_ns = None if span.end_ns is None else span.end_ns + moved
        self.start = self.start or self.now

    def add(self, name: str, kind: SpanKind, parent: str | None = None) -> Span:
        """Add a span that starts now, below a tool call or the session itself."""
        above = self.tools.get(parent or "")
        span = Span(
            span_id=f"{len(self.spans) + 2:016x}",
            trace_id="",
            parent_id=f"{1:016x}" if above is None else above.span_id,
            name=name,
            kind=kind,
            start_ns=self.now,
            end_ns=self.now,
            scope=NAME,
        )
        self.spans.append(span)
        return span

    def reply(self, key: str | None, message: Message | None, parent: str | None = None) -> Span:
        """Add a reply of the model, or extend the one with this key; start its tool calls."""
        span = self.calls.get(key or "")
        if span is None:
            span = self.add(f"chat {self.model}" if self.model else "chat", SpanKind.LLM, parent)
            span.model = self.model
            span.input_messages = tuple(self.history[-_LONGEST_HISTORY:])
            if key:
                span.attributes = {"gen_ai.response.id": key}
                self.calls[key] = span
        span.end_ns = self.now
        if message is not None:
            span.output_messages = (*span.output_messages, message)
            for call in message.tool_calls:
                self.tool(call.id, call.name, call.arguments, parent)
            if message.content and not parent:
                self.answer = message.content
        return span

    def tool(self, key: str | None, name: str, arguments: Any, parent: str | None = None) -> Span:
        """Add a tool call, once."""
        known = self.tools.get(key or "")
        if known is not None:
            return known
        span = self.add(name, SpanKind.TOOL, parent)
        span.tool_name, span.tool_call_id, span.tool_input = name, key, parsed(arguments)
        self.tools[key or span.span_id] = span
        return span

    def result(self, key: str | None, output: Any, failed: bool = False) -> None:
        """Set the result of a tool call."""
        span = self.tools.get(key or "")
        if span is None:
            span = self.tool(key, "tool", None)
        span.tool_output, span.end_ns = output, self.now
        span.status = SpanStatus.ERROR if failed else SpanStatus.OK
        if failed:
            span.error_message = output if isinstance(output, str) else None

    def said(self, role: str, content: Any, parent: str | None = None) -> None:
        """Add messages of the user, and results of tools, to the history."""
        for message in messages_from({"role": role, "content": content}, role):
            if message.role == "tool":
                self.result(message.tool_call_id, message.content)
            elif self.query is None and role == "user" and not parent:
                self.query = message.content
            self.history.append(message)

    def finish(self) -> Trace | None:
        """Return the trace, with the agent's span around everything."""
        if not self.spans and self.query is None:
            return None
        identity = self.id or f"{self.query}{self.start}{len(self.spans)}"
        trace_id = blake2b(identity.encode("utf-8", "replace"), digest_size=16).hexdigest()
        root = Span(
            span_id=f"{1:016x}",
            trace_id=trace_id,
            name="session",
            kind=SpanKind.AGENT,
            start_ns=self.start,
            end_ns=self.now,
            scope=NAME,
            agent_name="qwen-code" if "qwen" in (self.model or "").lower() else self.agent,
            input=self.query,
            output=self.answer,
        )
        if self.error is not None:
            root.status, root.error_message = SpanStatus.ERROR, self.error
        for span in self.spans:
            span.trace_id = trace_id
            if span.kind is SpanKind.LLM and span.status is SpanStatus.UNSET:
                span.status = SpanStatus.OK
        return Trace(
            trace_id=trace_id,
            spans=[root, *self.spans],
            query=self.query,
            response=self.answer,
            session_id=self.id,
            metadata=self.metadata,
        )


def _usage(span: Span, usage: dict[str, Any]) -> None:
    """Set the tokens of a call; those read from or written to a cache are part of the input."""
    plain = count(first(usage, ("input_tokens", "promptTokenCount", "input")))
    cached = count(
        first(usage, ("cache_read_input_tokens", "cached_input_tokens", "cachedContentTokenCount"))
    )
    written = count(first(usage, ("cache_creation_input_tokens", "cache_write_input_tokens")))
    # Only Anthropic counts them apart from the other input.
    apart = "cache_creation_input_tokens" in usage or "cache_read_input_tokens" in usage
    if plain is not None:
        extra = (cached or 0) + (written or 0) if apart else 0
        span.input_tokens = plain + extra
    span.output_tokens = count(first(usage, ("output_tokens", "candidatesTokenCount", "output")))
    for key, value in (("cache_read", cached), ("cache_creation", written)):
        if value:
            span.attributes = {**span.attributes, f"gen_ai.usage.{key}.input_tokens": value}


# -- Claude Code and Qwen Code -----------------------------------------------------------------


def _claude(session: _Session, line: dict[str, Any]) -> None:
    kind, message = line["type"], mapping(line.get("message"))
    parent = text(line.get("parent_tool_use_id"))
    if kind == "system" and line.get("subtype") == "init":
        session.model = text(line.get("model"))
        for key in ("cwd", "claude_code_version", "permissionMode", "tools"):
            if line.get(key):
                session.metadata[key] = line[key]
    elif kind == "system" and line.get("subtype") == "ui_telemetry":
        event = mapping(mapping(line.get("systemPayload")).get("uiEvent"))
        if call := session.tools.get(text(event.get("call_id")) or ""):
            call.end_ns = session.now
    elif kind == "assistant":
        model = text(first({**line, **message}, ("model",)))
        session.model = session.model if model in (None, "<synthetic>") else model
        content = message.get("content", message.get("parts"))
        read = messages_from({"role": "assistant", "content": content}, "assistant")
        key = text(message.get("id")) or text(line.get("uuid"))
        span = session.reply(key, None, parent)
        for each in read:
            session.reply(key, each, parent)
            session.history.append(each)
        usage = mapping(message.get("usage")) or mapping(line.get("usageMetadata"))
        _usage(span, usage)
        if message.get("usage") and not message.get("stop_reason"):
            # The count of a reply that was still being written.
            span.output_tokens = span.output_tokens or None
    elif kind in ("user", "tool_result") and not line.get("isMeta"):
        content = message.get("content", message.get("parts"))
        session.said("user", content, parent)
        for part in content if is_array(content) else ():
            if is_object(part) and part.get("type") == "tool_result" and part.get("is_error"):
                key = text(part.get("tool_use_id"))
                session.result(
                    key, getattr(session.tools.get(key or ""), "tool_output", None), True
                )
    elif kind == "result":
        for key in ("total_cost_usd", "num_turns", "usage", "modelUsage", "subtype"):
            if line.get(key) is not None:
                session.metadata[key] = line[key]
        said = text(line.get("result"))
        if line.get("is_error"):
            session.error = said or text(line.get("subtype")) or "the session failed"
        elif said is not None:
            session.answer = said


# -- Codex ---------------------------------------------------------------------------------------


def _codex_exec(session: _Session, line: dict[str, Any]) -> None:
    kind, item = line["type"], mapping(line.get("item"))
    if kind == "turn.completed":
        span = session.call or session.reply(None, None)
        _usage(span, mapping(line.get("usage")))
        span.end_ns, session.call = session.now, None
    elif kind in ("turn.failed", "error"):
        session.error = text(mapping(line.get("error")).get("message")) or text(line.get("message"))
    elif kind == "turn.started":
        session.call = session.reply(None, None)
    elif kind.startswith("item."):
        key, what = text(item.get("id")), text(item.get("type")) or "item"
        if what == "agent_message" and kind == "item.completed":
            message = Message("assistant", text(item.get("text")))
            session.answer = message.content
            if session.call is not None:
                session.call.output_messages = (*session.call.output_messages, message)
        elif what in _EXEC_TOOLS:
            name, arguments, output = _EXEC_TOOLS[what](item)
            session.tool(key, name, arguments)
            if kind == "item.completed":
                failed = item.get("status") == "failed" or bool(item.get("exit_code"))
                session.result(key, output, failed)


_EXEC_TOOLS: dict[str, Callable[[dict[str, Any]], tuple[str, Any, Any]]] = {
    "command_execution": lambda item: (
        "shell",
        {"command": item.get("command")},
        item.get("aggregated_output"),
    ),
    "file_change": lambda item: (
        "apply_patch",
        {"changes": item.get("changes")},
        item.get("status"),
    ),
    "mcp_tool_call": lambda item: (
        str(item.get("tool")),
        item.get("arguments"),
        item.get("result") or item.get("error"),
    ),
    "web_search": lambda item: ("web_search", {"query": item.get("query")}, None),
}


def _codex_rollout(session: _Session, line: dict[str, Any]) -> None:
    kind, payload = line["type"], mapping(line.get("payload"))
    what = text(payload.get("type"))
    if kind == "session_meta":
        session.id = text(payload.get("id"))
        for key in ("cwd", "cli_version", "originator"):
            if payload.get(key):
                session.metadata[key] = payload[key]
    elif kind == "turn_context":
        session.model = text(payload.get("model")) or session.model
    elif kind == "token_usage_record":
        _close_call(session, mapping(payload.get("usage")), text(payload.get("response_id")))
    elif kind == "event_msg" and what == "token_count":
        # Older versions have no usage records; the newest count is that of the open call.
        last = mapping(mapping(payload.get("info")).get("last_token_usage"))
        if last and session.call is not None:
            _close_call(session, last, None)
    elif kind == "event_msg" and what == "user_message":
        session.query = text(payload.get("message")) or session.query
    elif kind == "event_msg" and what == "task_complete":
        session.answer = text(payload.get("last_agent_message")) or session.answer
    elif kind == "response_item":
        _codex_item(session, what or "", payload)


def _codex_item(session: _Session, what: str, payload: dict[str, Any]) -> None:
    if what == "message" and payload.get("role") != "assistant":
        session.said(text(payload.get("role")) or "user", payload.get("content"))
        # What precedes it (instructions, the environment) has the same role.
        if payload.get("role") == "user":
            session.query = session.history[-1].content
    elif what.endswith("_output"):
        content = payload.get("output")
        key = text(payload.get("call_id"))
        session.result(key, content)
        session.history.append(Message("tool", text(content), tool_call_id=key))
    elif what == "message":
        session.call = session.call or session.reply(None, None)
        for each in messages_from({"role": "assistant", "content": payload.get("content")}):
            session.call.output_messages = (*session.call.output_messages, each)
            session.history.append(each)
            session.answer = each.content or session.answer
    elif what in ("function_call", "custom_tool_call", "local_shell_call"):
        session.call = session.call or session.reply(None, None)
        arguments = first(payload, ("arguments", "input", "action"))
        name = text(payload.get("name")) or "shell"
        key = text(payload.get("call_id")) or text(payload.get("id"))
        call = {"id": key, "name": name, "arguments": arguments, "type": "tool_call"}
        for each in messages_from({"role": "assistant", "content": [call]}, "assistant"):
            session.call.output_messages = (*session.call.output_messages, each)
            session.history.append(each)
        session.tool(key, name, arguments)


def _close_call(session: _Session, usage: dict[str, Any], identity: str | None) -> None:
    span = session.call
    if span is None:
        return
    _usage(span, usage)
    if identity:
        span.attributes = {**span.attributes, "gen_ai.response.id": identity}
    span.end_ns, session.call = session.now, None


# -- Gemini CLI and OpenCode ---------------------------------------------------------------------


def _gemini(session: _Session, line: dict[str, Any]) -> None:
    kind = line["type"]
    if kind == "init":
        session.model = text(line.get("model"))
    elif kind == "message" and line.get("role") == "user":
        session.said("user", line.get("content"))
    elif kind == "message":
        piece = text(line.get("content")) or ""
        if session.call is None:
            session.call = session.reply(None, Message("assistant", ""))
        whole = f"{session.call.output_messages[-1].content or ''}{piece}"
        session.call.output_messages = (Message("assistant", whole),)
        session.call.end_ns, session.answer = session.now, whole
    elif kind == "tool_use":
        session.call = None
        name = text(line.get("tool_name")) or "tool"
        session.tool(text(line.get("tool_id")), name, line.get("parameters"))
    elif kind == "tool_result":
        failed = line.get("status") not in (None, "success")
        session.result(text(line.get("tool_id")), line.get("output"), failed)
    elif kind == "result":
        session.metadata["stats"] = line.get("stats")
        if line.get("status") not in (None, "success"):
            session.error = text(mapping(line.get("error")).get("message")) or "the session failed"


def _opencode(session: _Session, line: dict[str, Any]) -> None:
    kind, part = line["type"], mapping(line.get("part"))
    if kind == "step_start":
        session.call = session.reply(None, None)
    elif kind == "text":
        message = Message("assistant", text(part.get("text")))
        session.answer = message.content
        if session.call is not None:
            session.call.output_messages = (*session.call.output_messages, message)
    elif kind == "tool_use":
        state = mapping(part.get("state"))
        key = text(part.get("callID"))
        span = session.tool(key, text(part.get("tool")) or "tool", state.get("input"))
        output = first(state, ("output", "error"))
        session.result(key, output, state.get("status") == "error")
        times = mapping(state.get("time"))
        if isinstance(began := times.get("start"), int) and isinstance(times.get("end"), int):
            span.start_ns, span.end_ns = began * 1_000_000, times["end"] * 1_000_000
    elif kind == "step_finish" and session.call is not None:
        tokens = mapping(part.get("tokens"))
        cache = mapping(tokens.get("cache"))
        reported = {"input_tokens": tokens.get("input"), "output_tokens": tokens.get("output")}
        reported |= {"cache_read_input_tokens": cache.get("read")}
        reported |= {"cache_creation_input_tokens": cache.get("write")}
        _usage(session.call, reported)
        session.call.cost_usd = number(part.get("cost"))
        session.call.end_ns, session.call = session.now, None
    elif kind == "error":
        session.error = str(mapping(line.get("error")) or line.get("error"))[:1000]
