"""An agent that is a command: a program in any language, one process per trial.

The input goes to its standard input and the answer comes from its standard output. With
`protocol: json` one JSON object goes each way:

    in:  {"input": …, "case": "…", "trial": "…", "seed": 7, "params": {…}, "workdir": "…"}
    out: {"answer": "…", "output": …, "tool_calls": [{"name", "arguments", "result"}],
          "usage": {"model", "input_tokens", "output_tokens", "cost_usd"}, "error": "…"}

Only `answer` (or `error`) is needed. The last line of standard output that is a JSON object is
the reply, so a program may print other things before it. A line `{"checkpoint": …}`, whenever it
comes, is state to be saved; a resumed trial is given it back as `checkpoint` beside `input`. With
`protocol: text` plain text goes each way. Spans sent to OTEL_EXPORTER_OTLP_ENDPOINT under
TRACEPARENT join the trial's trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import subprocess
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Field

from proctor.agents.base import (
    Agent,
    AgentConfig,
    AgentError,
    AgentReply,
    AgentRequest,
    as_reply,
    shortened,
)
from proctor.agents.checkpoint import Checkpoint
from proctor.agents.process import end_group
from proctor.trace.capture import capture

MAX_OUTPUT = 64 * 1024 * 1024
"""Bytes of standard output read: beyond it a program is flooding, not answering."""

MAX_STDERR = 4000

_HOW_TO_ANSWER = 'print {"answer": "…"} as the last line, or set protocol: text'


def _words(value: Any) -> Any:
    return shlex.split(value) if isinstance(value, str) else value


class CommandReply(msgspec.Struct, omit_defaults=True):
    """What a program may answer under `protocol: json`; unknown keys are ignored."""

    answer: str | msgspec.UnsetType | None = msgspec.UNSET
    output: Any = None
    error: str | None = None
    tool_calls: list[CommandToolCall] = []
    usage: CommandUsage | None = None
    metadata: dict[str, Any] = {}


class CommandToolCall(msgspec.Struct, omit_defaults=True):
    """A tool call the program made."""

    name: str
    arguments: Any = None
    result: Any = None
    error: str | None = None


class CommandUsage(msgspec.Struct, omit_defaults=True):
    """What the program's model calls used."""

    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class CommandAgentConfig(AgentConfig):
    """A program that reads a question and writes an answer."""

    kind: Literal["command"] = "command"
    command: Annotated[list[str], BeforeValidator(_words), Field(min_length=1)]
    """The program and its arguments; run directly, never through a shell."""
    protocol: Literal["json", "text"] = "json"
    """How input and answer are written."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables beside those of this process."""
    base_dir: Path | None = Field(default=None, exclude=True)
    """Where relative program paths start: the suite's folder."""

    def create(self) -> Agent:
        """A process of its own."""
        return CommandAgent(self)

    def version(self) -> dict[str, Any]:
        """The command as written."""
        return {"command": self.command}


class CommandAgent:
    """Runs the command once."""

    def __init__(self, config: CommandAgentConfig) -> None:
        self._config = config

    async def run(self, request: AgentRequest) -> AgentReply:
        """Start it, tell it, wait for it; whatever happens, it ends with the trial."""
        child = await self._start(request)
        try:
            lines = _Lines(request.checkpoint if self._config.protocol == "json" else None)
            out, said = await _converse(child, self._question(request), lines)
        finally:
            await end_group(child)
        if child.returncode:
            last = said.strip().splitlines()[-1:] or [""]
            raise AgentError(
                f"the command exited with code {child.returncode}: {last[0]}".rstrip(": ")
            )
        if self._config.protocol == "text":
            return as_reply(out.decode(errors="replace").strip())
        return _understood(out)

    def _question(self, request: AgentRequest) -> bytes:
        if self._config.protocol == "text":
            value = request.input
            return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        job = {
            "input": request.input,
            "case": request.case,
            "trial": request.trial,
            "seed": request.seed,
            "params": request.params,
            "workdir": str(request.workdir),
        }
        if (state := request.checkpoint.load()) is not None:
            job["checkpoint"] = state
        return msgspec.json.encode(job, enc_hook=str) + b"\n"

    async def _start(self, request: AgentRequest) -> asyncio.subprocess.Process:
        from proctor.agents.otlp_receiver import shared_receiver

        receiver = shared_receiver()
        program, *arguments = self._config.command
        base = self._config.base_dir
        if base is not None and (base / program).is_file():
            program = str((base / program).resolve())
        try:
            return await asyncio.create_subprocess_exec(
                program,
                *(_relative(argument, base) for argument in arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **receiver.environment(), **self._config.env},
                cwd=request.workdir,
                start_new_session=True,
            )
        except OSError as error:
            raise _not_started(program, error) from None


def _not_started(program: str, error: OSError) -> AgentError:
    hint = None
    if isinstance(error, FileNotFoundError):
        hint = "name a program on the PATH, or a file beside the suite"
    elif isinstance(error, PermissionError):
        hint = f"chmod +x {program}"
    return AgentError(f"cannot run {program}: {error.strerror}", hint=hint)


def _relative(argument: str, base: Path | None) -> str:
    """A file of the suite's folder by its full path, since the program runs elsewhere."""
    if base is None or argument.startswith("-") or not (base / argument).is_file():
        return argument
    return str((base / argument).resolve())


async def _converse(
    child: asyncio.subprocess.Process, question: bytes, lines: _Lines
) -> tuple[bytes, str]:
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    reading = asyncio.ensure_future(lines.read(child.stdout, MAX_OUTPUT))
    listening = asyncio.ensure_future(_tail(child.stderr))
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            child.stdin.write(question)
            await child.stdin.drain()
        child.stdin.close()
        out, said = await asyncio.gather(reading, listening)
        await child.wait()
    finally:
        reading.cancel()
        listening.cancel()
    return out, said


class _Lines:
    """Takes what a command writes: states to be saved are, at once; the rest is its answer."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        self._checkpoint = checkpoint
        self._out = bytearray()
        self._line = bytearray()

    async def read(self, stream: asyncio.StreamReader, most: int) -> bytes:
        """Everything but states, until the command closes its output."""
        while chunk := await stream.read(65536):
            if self._checkpoint is None:
                self._out += chunk
            else:
                await self._take(chunk, self._checkpoint)
            if len(self._out) + len(self._line) > most:
                raise AgentError(f"the command wrote more than {most // 2**20} MB")
        return bytes(self._out + self._line)

    async def _take(self, chunk: bytes, checkpoint: Checkpoint) -> None:
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            line = bytes(self._line + part)
            self._line.clear()
            if (state := _state_in(line)) is None:
                self._out += line + b"\n"
            else:
                await asyncio.to_thread(checkpoint.save, state.checkpoint)
        self._line += rest


class CommandState(msgspec.Struct, forbid_unknown_fields=True):
    """A line by which a program saves its state."""

    checkpoint: Any


def _state_in(line: bytes) -> CommandState | None:
    if not line.lstrip().startswith(b"{") or b'"checkpoint"' not in line:
        return None
    try:
        return msgspec.json.decode(line, type=CommandState)
    except msgspec.DecodeError:
        return None


async def _tail(stream: asyncio.StreamReader) -> str:
    tail = b""
    while chunk := await stream.read(65536):
        tail = (tail + chunk)[-MAX_STDERR:]
    return tail.decode(errors="replace")


def _understood(out: bytes) -> AgentReply:
    for line in reversed(out.splitlines()):
        if line.lstrip().startswith(b"{"):
            try:
                reply = msgspec.json.decode(line, type=CommandReply)
            except msgspec.DecodeError:
                continue
            return _recorded(reply)
    raise AgentError(
        "the command wrote no JSON object",
        hint=_HOW_TO_ANSWER,
    )


def _recorded(reply: CommandReply) -> AgentReply:
    """The reply, with the calls it tells of put into the trace."""
    for call in reply.tool_calls:
        with contextlib.suppress(AgentError), capture.tool_call(call.name, call.arguments) as step:
            step.tool_output = call.result
            if call.error:
                raise AgentError(call.error)
    if reply.usage is not None:
        with capture.llm_call(reply.usage.model) as step:
            step.input_tokens = reply.usage.input_tokens
            step.output_tokens = reply.usage.output_tokens
            step.cost_usd = reply.usage.cost_usd
    if reply.error is not None:
        raise AgentError(reply.error)
    answer = reply.answer
    if answer is msgspec.UNSET and reply.output is None and not reply.tool_calls:
        # A misspelt key must not pass for an agent that had nothing to say.
        raise AgentError('the JSON object has no "answer"', hint=_HOW_TO_ANSWER)
    if answer is msgspec.UNSET or answer is None:
        answer = "" if reply.output is None else msgspec.json.encode(reply.output).decode()
    return AgentReply(answer=shortened(answer), output=reply.output, metadata=reply.metadata)
