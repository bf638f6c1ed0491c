"""Run coding agents: programs that work in a folder, described by a preset each.

    agent: {kind: claude_code, model: claude-sonnet-4-5}

A preset is data: the program, its flags for a run without questions, variables, configuration
files, and where it writes its session. Everything else is the command kind: each trial gets a
process, a workspace and a configuration folder of its own, so that trials side by side do not share
sessions, and its model calls go through the gateway.

Guarantees: what the gateway saw is the record of model calls, since it has exact usage; the session
adds the tool calls with their results and times, and Claude Code's own telemetry what happens
inside of them. Each call is one span, by its id. Without the gateway the session is the record.

Any agent that speaks the Agent Client Protocol (ACP) on standard input and output works as well:

    agent: {kind: acp, command: [opencode, acp]}

Each trial starts the program, opens a session in its workspace, sends the input as the prompt and
waits for the end of the turn. Requests for permission are granted, since no person answers; the
agent reads files and runs commands with its own tools. Text and tool calls that it reports
become the answer and spans; model calls are those that the gateway saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from pydantic import Field

from proctor.agents._command import MAX_OUTPUT, CommandAgentConfig
from proctor.agents._process import end_processes, read_tail
from proctor.agents.base import AGENT_ERROR, AgentError, AgentReply, AgentRequest, as_reply
from proctor.formatting import last_line
from proctor.gateway.observe import SCOPE
from proctor.gateway.options import GatewayOptions
from proctor.imports import absent_extra
from proctor.sandbox.workspace import NotReadable, read_inside
from proctor.trace.capture import current_trace, new_span_id
from proctor.trace.formats.coding_sessions import COUNTED, session_trace
from proctor.trace.model import Span, SpanKind, SpanStatus, ToolCall, Trace

COUNTED_LINES = 1_000_000
"""Nanoseconds that lines without a time may be apart, one for each."""

WORKSPACE, HOME = "workspace", "home"
"""Folders of a trial: where the agent works, and where it has its configuration and sessions."""


@dataclass(frozen=True)
class Preset:
    """What Proctor knows about one coding agent."""

    program: str
    install: str
    arguments: str
    """Flags of a run without questions. The input is standard input, unless they name it."""
    model: tuple[str, ...] = ("--model", "{model}")
    env: dict[str, str] = field(default_factory=dict[str, str])
    gateway: tuple[str, ...] = ()
    """Flags that send model calls to the gateway where variables do not."""
    gateway_env: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, str] = field(default_factory=dict[str, str])
    """Configuration files, by path below the trial's configuration folder."""
    credentials: tuple[str, str] | None = None
    """The login of the user, which is copied if no key is set: from, to."""
    sessions: str | None = None
    """Session files below the configuration folder, if they say more than standard output."""
    answer: Callable[[Path], str | None] = lambda _workdir: None
    """Reads the answer from files below the trial's directory."""


def _left(workdir: Path, file: Path) -> bytes:
    """Return a file that a program wrote; nothing for a link, a pipe or one that is too large."""
    try:
        return read_inside(workdir, str(file.relative_to(workdir)), MAX_OUTPUT)
    except NotReadable:
        return b""


def _mini_answer(workdir: Path) -> str | None:
    with contextlib.suppress(ValueError, AttributeError, KeyError, TypeError):
        document = json.loads(_left(workdir, workdir / HOME / "trajectory.json"))
        return cast("str | None", document["info"].get("submission"))
    return None


_GEMINI_SETTINGS = json.dumps(
    {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True},
    }
)

_OPENCODE_PROVIDERS = {
    "openai": {"options": {"baseURL": "{gateway}/openai"}},
    "anthropic": {"options": {"baseURL": "{gateway}/anthropic/v1"}},
    "google": {"options": {"baseURL": "{gateway}/gemini/v1beta"}},
}

PRESETS: dict[str, Preset] = {
    "claude_code": Preset(
        "claude",
        "npm install -g @anthropic-ai/claude-code",
        "-p --output-format stream-json --verbose --permission-mode bypassPermissions",
        env={
            "CLAUDE_CONFIG_DIR": "{home}/claude",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            # Spans of its tools, sent to the trial's own receiver.
            "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
            "CLAUDE_CODE_ENHANCED_TELEMETRY_BETA": "1",
            # Without it, the program refuses to work without questions for the user root.
            "IS_SANDBOX": "1",
        },
        credentials=("~/.claude/.credentials.json", "claude/.credentials.json"),
    ),
    "codex": Preset(
        "codex",
        "npm install -g @openai/codex",
        # A login shell would run the user's profile for each command.
        "exec --json --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox "
        "-c allow_login_shell=false -",
        env={"CODEX_HOME": "{home}/codex"},
        gateway=(
            "-c",
            'model_provider="proctor"',
            "-c",
            'model_providers.proctor={name="p",base_url="{gateway}/openai",env_key="OPENAI_API_KEY"}',
        ),
        files={"codex/.keep": ""},
        credentials=("~/.codex/auth.json", "codex/auth.json"),
        sessions="codex/sessions/**/rollout-*.jsonl",
    ),
    "gemini": Preset(
        "gemini",
        "npm install -g @google/gemini-cli",
        "--yolo --skip-trust --output-format stream-json",
        env={"GEMINI_CLI_HOME": "{home}"},
        files={".gemini/settings.json": _GEMINI_SETTINGS},
    ),
    "qwen": Preset(
        "qwen",
        "npm install -g @qwen-code/qwen-code",
        "--yolo --output-format stream-json --auth-type openai",
        env={
            "QWEN_HOME": "{home}/qwen",
            "QWEN_RUNTIME_DIR": "{home}/qwen",
            "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        },
    ),
    "opencode": Preset(
        "opencode",
        "npm install -g opencode-ai",
        "run --format json {input}",
        env={
            "XDG_CONFIG_HOME": "{home}/config",
            "XDG_DATA_HOME": "{home}/data",
            "XDG_STATE_HOME": "{home}/state",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_PERMISSION": '{"edit": "allow", "bash": "allow", "webfetch": "allow"}',
        },
        gateway_env={
            "OPENCODE_CONFIG_CONTENT": json.dumps(
                {"provider": _OPENCODE_PROVIDERS, "autoupdate": False, "share": "disabled"}
            )
        },
    ),
    "aider": Preset(
        "aider",
        "pip install aider-chat",
        "--message-file {input_file} --yes-always --no-check-update --no-analytics --no-pretty "
        "--no-stream --no-show-model-warnings --no-auto-commits --no-gitignore --no-git "
        "--no-show-release-notes --chat-history-file {home}/chat.md "
        "--input-history-file {home}/input --llm-history-file {home}/llm.txt",
        env={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    "mini_swe": Preset(
        "mini",
        "pip install mini-swe-agent",
        "-t {input} --yolo --exit-immediately -o {home}/trajectory.json",
        env={
            "MSWEA_CONFIGURED": "true",
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_GLOBAL_CONFIG_DIR": "{home}/mini",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        answer=_mini_answer,
    ),
}


class CodingAgentConfig(CommandAgentConfig):
    """A coding agent that works in a folder of its own."""

    kind: Literal[  # pyright: ignore[reportIncompatibleVariableOverride]
        "claude_code", "codex", "gemini", "qwen", "opencode", "aider", "mini_swe"
    ] = "claude_code"
    command: list[str] = Field(default_factory=list[str])
    """The program, if it has another name or place; flags belong in `arguments`."""
    protocol: Literal["json", "text"] = "text"
    gateway: GatewayOptions | bool = True
    model: str | None = None
    """Model name, as the program spells it."""
    arguments: list[str] = Field(default_factory=list[str])
    """Further arguments of the program."""

    @property
    def preset(self) -> Preset:
        """What is known about the agent."""
        return PRESETS[self.kind]

    @property
    def program(self) -> tuple[str, str]:
        """The name of the program, and how to install it."""
        return (self.command or [self.preset.program])[0], self.preset.install

    def command_line(self) -> list[str]:
        """Return program and arguments, with placeholders."""
        preset = self.preset
        command = self.command or [preset.program]
        named = [each.replace("{model}", self.model or "") for each in preset.model]
        # Subcommands come first, and `-` or the input last.
        given = preset.arguments.split()
        last = [given.pop()] if given[-1] in ("-", "{input}") else []
        return [
            *command,
            *given,
            *(named if self.model else ()),
            *(preset.gateway if self.gateway is not False else ()),
            *self.arguments,
            *last,
        ]

    def variables(self) -> dict[str, str]:
        """Return the environment variables to add, with placeholders."""
        through = self.preset.gateway_env if self.gateway is not False else {}
        return {**self.preset.env, **through, **self.env}

    def version(self) -> dict[str, Any]:
        """Return the agent, its model and its arguments."""
        return {"kind": self.kind, "model": self.model, "arguments": self.arguments}

    def places(self, request: AgentRequest) -> dict[str, str]:
        """Make the folders of the trial, and return the values of the placeholders."""
        places = super().places(request)
        if places["{workspace}"] == str(request.workdir):
            workspace = request.workdir / WORKSPACE
            workspace.mkdir(exist_ok=True)
            places["{workspace}"] = str(workspace)
        home = request.workdir / HOME
        places["{home}"] = str(home)
        if request.session is not None:
            if request.session.memory.get("files"):
                return places  # what is there now is the agent's, links included
            request.session.memory["files"] = True
        for name, content in {"proctor": "", **self.preset.files}.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(content, encoding="utf-8")
        if self.preset.credentials is not None:
            source, target = self.preset.credentials
            own = Path(source).expanduser()
            if own.is_file():
                (home / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(own, home / target)
        return places

    def reply(self, out: bytes, stderr: str, code: int, request: AgentRequest) -> AgentReply:
        """Return the answer of the session, whose tool calls join the trace."""
        home = request.workdir / HOME
        session = _session(out)
        if self.preset.sessions is not None:
            files = sorted(home.glob(self.preset.sessions))
            found = [_session(_left(request.workdir, file)) for file in files]
            recorded = [each for each in found if each is not None]
            if recorded:
                if session is not None:
                    recorded[0].response = session.response or recorded[0].response
                    recorded[0].spans[0].error_message = session.spans[0].error_message
                session = recorded[0]
        if session is None:
            answered = super().reply(out, stderr, code, request)
            written = self.preset.answer(request.workdir)
            return as_reply(written) if written else answered
        adopt_session(session)
        problem = session.spans[0].error_message
        if problem is not None or code:
            reason = problem or f"exit code {code}: {last_line(stderr)}"
            raise AgentError(f"{self.preset.program} failed: {reason}".rstrip(": "))
        metadata = {key: value for key, value in session.metadata.items() if key != "tools"}
        if session.session_id:
            metadata["session_id"] = session.session_id
        return AgentReply(answer=session.response or "", metadata=metadata)


def _session(content: bytes) -> Trace | None:
    """Return the session whose lines a program wrote; None if it wrote none."""
    lines: list[Any] = []
    for line in content.splitlines():
        if line.lstrip().startswith(b"{"):
            with contextlib.suppress(msgspec.DecodeError, ValueError):
                lines.append(msgspec.json.decode(line))
    return session_trace(lines) if lines else None


def adopt_session(session: Trace) -> None:
    """Add what only the session knows to the captured trace.

    Model calls that the gateway or the program's own telemetry saw are there already, with exact
    usage. A tool call of the telemetry has its times; the session adds arguments and result.
    """
    here = current_trace()
    if here is None:
        return
    calls = [span for span in here.spans if span.kind is SpanKind.LLM]
    seen = [span for span in calls if span.scope == SCOPE]
    shown = {
        span.tool_call_id: span
        for span in here.spans
        if span.kind is SpanKind.TOOL and span.tool_call_id is not None
    }
    # Calls of tools, and when the model had asked for them.
    requested = {
        call.id: span.end_ns
        for span in seen
        for message in span.output_messages
        for call in message.tool_calls
    }
    root = here.spans[0].span_id
    fresh = {span.span_id: new_span_id() for span in session.spans}
    fresh[session.spans[0].span_id] = root
    # A session without times is in the order of its lines, from the start of the trial.
    moved = here.spans[0].start_ns if session.spans[0].start_ns < COUNTED else 0
    for span in session.spans[1:]:
        if calls and span.kind is SpanKind.LLM:
            continue
        same = shown.get(span.tool_call_id or "")
        if same is not None and span.kind is SpanKind.TOOL:
            fresh[span.span_id] = same.span_id
            for name in ("tool_input", "tool_output", "error_type", "error_message"):
                if getattr(same, name) is None:
                    setattr(same, name, getattr(span, name))
            if span.status is SpanStatus.ERROR:
                same.status = span.status
            continue
        if seen and span.tool_call_id not in requested:
            # An id of the program's own; the name must do to recognise the call.
            span.tool_call_id = None
        span.trace_id = here.trace_id
        span.start_ns += moved
        span.end_ns = None if span.end_ns is None else span.end_ns + moved
        asked = requested.get(span.tool_call_id) if span.kind is SpanKind.TOOL else None
        if asked and span.end_ns is not None and span.end_ns - span.start_ns < COUNTED_LINES:
            # Its start has no time of its own in the session, only its result has.
            span.start_ns, span.end_ns = asked, max(asked, span.end_ns)
        span.span_id = fresh[span.span_id]
        span.parent_id = fresh.get(span.parent_id or "", root)
        here.spans.append(span)
    here.observe("model_calls", "tool_calls", "arguments")
    here.forget()


def _name_as_requested(tools: Iterable[Span], here: Trace) -> None:
    """Give tool calls the name, the id and the arguments with which the model requested them.

    The protocol has titles for people, and ids and inputs of the program's own.
    """
    calls = [call for span in here.spans for m in span.output_messages for call in m.tool_calls]
    by_id = {call.id: call for call in calls if call.id}
    for span in tools:
        key = str(span.tool_call_id)
        found = by_id.get(key)
        if found is None:  # Gemini CLI writes the name in front
            alike = [call for call in calls if key.startswith((f"{call.name}_", f"{call.name}-"))]
            found = next((call for call in alike if call.id and key.endswith(call.id)), None)
            if found is None and alike:
                found = ToolCall(max((call.name for call in alike), key=len), span.tool_input)
        if found is not None:
            span.name = span.tool_name = found.name
            span.tool_input, span.tool_call_id = found.arguments, found.id


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
            message = f"{error.message}: {last_line(await errors)}".rstrip(": ")
            raise AgentError(message, category=AGENT_ERROR) from error
        finally:
            await end_processes(child, mark)
            errors.cancel()
            if (here := current_trace()) is not None:
                _name_as_requested(turn.tools.values(), here)
            adopt_session(turn.trace())
            if here is not None:
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
        """Grant the permission, for this call only if there is a choice."""
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
        """Return the tools below the span of the session."""
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
