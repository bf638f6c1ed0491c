"""Run a command, a program in any language, with one process per trial.

The input is written to standard input and the answer is read from standard output. With `protocol:
json` both are one JSON object:

    in:  {"input": …, "case": "…", "trial": "…", "seed": 7, "params": {…}, "workdir": "…",
          "workspace": "…" (if the case has one; it is the working directory then)}
    out: {"answer": "…", "output": …, "tool_calls": [{"name", "arguments", "result"}],
          "usage": {"model", "input_tokens", "output_tokens", "cost_usd"}, "error": "…"}

Only `answer` (or `error`) is required. The last line of standard output that is a JSON object is
the reply, so a program may print other text before it. A line `{"checkpoint": …}` at any time saves
state; a resumed trial gets it back as `checkpoint` next to `input`. In a conversation the process
lives until its end: each turn is a line in (with `session` and `history`) and a line out; a program
that exits after a reply is started again. With `protocol: text` both are plain text. Spans sent to
OTEL_EXPORTER_OTLP_ENDPOINT under TRACEPARENT join the trial's trace.

In the command and its variables, `{input}` is the input, `{input_file}` a file that holds it,
`{workspace}` the folder to work in and `{gateway}` the trial's address at the model gateway. A
command that names its input gets nothing on standard input. With `gateway: true` the program's
model calls go through the gateway (`proctor.gateway`), which makes them spans.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, cast

import msgspec
from pydantic import Field

from proctor.agents._process import (
    MARK,
    end_processes,
    file_beside,
    need_program,
    read_tail,
    until_exit,
)
from proctor.agents.base import (
    AGENT_ERROR,
    RESOURCE_LIMIT,
    AgentConfig,
    AgentError,
    AgentReply,
    AgentRequest,
    CommandLine,
    as_reply,
    as_text,
)
from proctor.agents.checkpoint import Checkpoint
from proctor.background import threads
from proctor.formatting import last_line
from proctor.gateway.budget import RunLimitReached
from proctor.gateway.options import GatewayOptions
from proctor.processes import ProcessGroup
from proctor.sandbox.place import installation, shown_path
from proctor.sanitize import without_surrogates
from proctor.trace.capture import capture, current_trace

if TYPE_CHECKING:
    from proctor.agents.session import AgentSession

# Maximum bytes of standard output; a program that writes more is out of control.
MAX_OUTPUT = 64 * 1024 * 1024

# Exit code of a shell whose command was killed.
KILLED_IN_SHELL = 128 + signal.SIGKILL

_WHERE_PROGRAMS_ARE = "use a program on the PATH, or a file in the suite's folder"

_HOW_TO_ANSWER = 'print {"answer": "…"} as the last line, or set protocol: text'


class CommandReply(msgspec.Struct, omit_defaults=True):
    """Reply of a program under `protocol: json`; unknown keys are ignored."""

    answer: str | msgspec.UnsetType | None = msgspec.UNSET
    output: Any = None
    error: str | None = None
    tool_calls: list[CommandToolCall] | msgspec.UnsetType = msgspec.UNSET
    usage: CommandUsage | None = None
    metadata: dict[str, Any] = {}


class CommandToolCall(msgspec.Struct, omit_defaults=True):
    """A tool call made by the program."""

    name: str
    arguments: Any = None
    result: Any = None
    error: str | None = None


class CommandUsage(msgspec.Struct, omit_defaults=True):
    """Usage of the program's model calls."""

    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class CommandAgentConfig(AgentConfig):
    """A program that reads the input and writes the answer."""

    kind: Literal["command"] = "command"
    command: Annotated[CommandLine, Field(min_length=1)]
    """Program and arguments; executed directly, never through a shell."""
    protocol: Literal["json", "text"] = "json"
    """Format of input and answer."""
    env: dict[str, str] = Field(default_factory=dict)
    """Additional environment variables."""
    gateway: GatewayOptions | bool = False
    """Whether, and how, its model calls go through the model gateway."""
    base_dir: Path | None = Field(default=None, exclude=True)
    """Base folder of relative program paths: the suite's folder."""

    has_process: ClassVar[bool] = True

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Return what only agents in this process can use."""
        return ("state", "approvals")

    def version(self) -> dict[str, Any]:
        """Return the command line."""
        return {"command": self.command}

    @property
    def program(self) -> tuple[str, str]:
        """The name of the program, and how to get it."""
        return self.command[0], _WHERE_PROGRAMS_ARE

    def check(self) -> None:
        """Raise if there is no such program; nothing is executed."""
        self._program()

    def _program(self) -> Path | None:
        """Return where the program is on this machine, or raise; None if it is in an image."""
        if self.sandbox is not None and (self.sandbox.image or self.sandbox.rootfs):
            return None  # what is in an image is known when it runs
        name, install = self.program
        return need_program(name, self.base_dir, self.env, install)

    async def run(self, request: AgentRequest) -> AgentReply:
        """Start the process, send the input and wait; the process never outlives the trial."""
        places = self.places(request)
        if self.gateway is False:
            return await self._reply(request, places, {})
        from proctor.gateway.calls import GatewaySession, SpanSink
        from proctor.gateway.server import shared_gateway

        # In a thread: the first trial loads the server.
        gateway = await threads.run(shared_gateway)
        conversation = request.session
        async with contextlib.AsyncExitStack() as stack:
            sink = SpanSink.of_capture()
            calls = None if conversation is None else conversation.memory.get("gateway")
            if calls is None:
                options = GatewayOptions() if self.gateway is True else self.gateway
                folders = (str(request.workdir), request.workdir.name, places["{workspace}"])
                calls = GatewaySession(
                    sink, options, request.seed, request.prices, folders, request.ledger
                )
                await stack.enter_async_context(gateway.session(calls))
                if conversation is not None:
                    # The process keeps the address of its first turn.
                    conversation.memory["gateway"] = calls
                    conversation.on_close(stack.pop_all().aclose)
            calls.sink = sink
            places["{gateway}"] = gateway.address(calls)
            work = asyncio.ensure_future(self._reply(request, places, gateway.environment(calls)))
            try:
                reply = await _within_run_limit(work, calls.run_limit)
            except AgentError as error:
                if calls.refused is not None:
                    message = f"{calls.refused}; {error.message}"
                    raise AgentError(message, category=RESOURCE_LIMIT) from error
                if calls.failure is not None:
                    # The agent failed because its model did: that says nothing about the agent.
                    status, reason = calls.failure
                    message = f"{error.message}; the last model call failed: {reason}"
                    raise AgentError(message, transient=True, status_code=status or None) from error
                raise
        if calls.calls and (trace := current_trace()) is not None:
            trace.observe("model_calls", "tool_calls", "arguments")
        return reply

    def places(self, request: AgentRequest) -> dict[str, str]:
        """Return the values of the placeholders of the command."""
        text = as_text(request.input)
        workspace = request.workspace or request.workdir
        places = {"{input}": text, "{workspace}": str(workspace)}
        if self._names("{input_file}"):
            file = request.workdir / ".proctor-input"
            # A new file: in a later turn, an agent may have left a link in its place.
            file.unlink(missing_ok=True)
            with file.open("x", encoding="utf-8") as stream:
                stream.write(text)
            places["{input_file}"] = str(file)
        return places

    def command_line(self) -> list[str]:
        """Return program and arguments, with placeholders."""
        return self.command

    def variables(self) -> dict[str, str]:
        """Return the environment variables to add, with placeholders."""
        return self.env

    def _names(self, *placeholders: str) -> bool:
        written = (*self.command_line(), *self.env.values())
        return any(each in text for text in written for each in placeholders)

    async def _reply(
        self, request: AgentRequest, places: dict[str, str], variables: dict[str, str]
    ) -> AgentReply:
        if request.session is not None and self.protocol == "json":
            return await self._turn(request, request.session, places, variables)
        mark = "" if request.sandbox is not None else secrets.token_hex(16)
        child = await self._start(request, mark, places, variables)
        named = self._names("{input}", "{input_file}")
        question = b"" if named else self._input_bytes(request)
        try:
            checkpoint = request.checkpoint if self.protocol == "json" else None
            out, stderr = await _converse(child, question, checkpoint, mark)
        except BaseException:
            await end_processes(child, mark)
            raise
        limit = request.sandbox.exceeded() if child.returncode and request.sandbox else ""
        if limit:
            message = f"the command used more {limit} than its sandbox allows"
            raise AgentError(message, category=RESOURCE_LIMIT)
        return self.reply(out, stderr, child.returncode or 0, request)

    def reply(self, out: bytes, stderr: str, code: int, request: AgentRequest) -> AgentReply:
        """Return the reply that a finished process wrote, or raise what its end means."""
        if code:
            raise _died(code, stderr)
        if self.protocol == "text":
            return as_reply(out.decode(errors="replace").strip())
        return _parse_reply(out)

    async def _turn(
        self,
        request: AgentRequest,
        session: AgentSession,
        places: dict[str, str],
        variables: dict[str, str],
    ) -> AgentReply:
        """Send one turn to the process of the conversation, started if it is not running."""
        program: _Program | None = session.memory.get("command")
        replied = program is not None
        while True:
            if program is None or program.child.returncode is not None:
                mark = "" if request.sandbox is not None else secrets.token_hex(16)
                child = await self._start(request, mark, places, variables)
                assert child.stderr is not None
                program = _Program(child, mark, asyncio.ensure_future(read_tail(child.stderr)))
                session.memory["command"] = program
                session.on_close(program.end)
            child = program.child
            assert child.stdin is not None
            assert child.stdout is not None
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                child.stdin.write(self._input_bytes(request))
                await child.stdin.drain()
            read = 0
            while line := await child.stdout.readline():
                read += len(line)
                if read > MAX_OUTPUT:
                    raise AgentError(f"the command wrote more than {MAX_OUTPUT // 2**20} MB")
                if line.lstrip().startswith(b"{"):
                    with contextlib.suppress(msgspec.DecodeError):
                        found = msgspec.json.decode(line, type=dict[str, Any])
                        if found.keys() & {"answer", "output", "error"}:
                            return _parse_reply(line)
            code = await child.wait()
            # A program for single questions exits after its reply, perhaps only now.
            if code or not replied:
                raise _died(code, await program.stderr)
            replied = False

    def _input_bytes(self, request: AgentRequest) -> bytes:
        if self.protocol == "text":
            return as_text(request.input).encode()
        job = {
            "input": request.input,
            "case": request.case,
            "trial": request.trial,
            "seed": request.seed,
            "params": request.params,
            "workdir": str(request.workdir),
        }
        if request.session is not None:
            job |= {"session": request.session.id, "history": request.history}
        if request.workspace is not None:
            job["workspace"] = str(request.workspace)
        if (state := request.checkpoint.load()) is not None:
            job["checkpoint"] = state
        return msgspec.json.encode(job, enc_hook=str) + b"\n"

    def shown_in_sandbox(self) -> Sequence[Path]:
        """Return the files of the suite's folder that the command names, and its program's own."""
        files = (file_beside(self.base_dir, each) for each in self.command_line())
        program = self._program()
        own = [] if program is None else installation(program)
        return [*(file for file in files if file is not None), *own]

    async def _start(
        self, request: AgentRequest, mark: str, places: dict[str, str], variables: dict[str, str]
    ) -> asyncio.subprocess.Process:
        from proctor.agents._otlp_receiver import shared_receiver

        # One receiver per process: the trace id assigns spans to trials.
        receiver = shared_receiver()
        # The program runs elsewhere: names of files in the suite's folder become full paths.
        program, *arguments = [
            str(file_beside(self.base_dir, each) or each) for each in self.command_line()
        ]
        arguments = [_expanded(argument, places) for argument in arguments]
        own = {name: _expanded(value, places) for name, value in self.variables().items()}
        if request.sandbox is not None:
            if (found := self._program()) is not None and installation(found):
                program = str(shown_path(found))
            env = {**receiver.environment(), **variables, **own}
            if request.sandbox.options.network == "none":
                env = own  # endpoints that cannot be reached
            cwd = Path(places["{workspace}"])
            child = await request.sandbox.exec([program, *arguments], cwd=cwd, env=env)
            return cast("asyncio.subprocess.Process", child)
        try:
            child = await asyncio.create_subprocess_exec(
                program,
                *arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Some programs trust PWD more than their working directory.
                env={
                    **os.environ,
                    "PWD": places["{workspace}"],
                    **receiver.environment(),
                    **variables,
                    **own,
                    MARK: mark,
                },
                cwd=places["{workspace}"],
                start_new_session=True,
                limit=MAX_OUTPUT,  # of a line
            )
        except OSError as error:
            hint = None
            if isinstance(error, FileNotFoundError):
                _, hint = self.program
            elif isinstance(error, PermissionError):
                hint = f"chmod +x {program}"
            message = f"cannot run {program}: {error.strerror}"
            raise AgentError(message, category="", hint=hint) from None
        ProcessGroup(mark).add(child.pid)
        return child


async def _within_run_limit(work: asyncio.Future[AgentReply], reached: Future[str]) -> AgentReply:
    """Return the reply; end the program when the run has no budget for its next call.

    An agent would answer the refusal by trying again, and fail for no fault of its own.
    """
    # Shielded: cancelling the copy would cancel what later turns of the conversation wait for.
    limit = asyncio.shield(asyncio.wrap_future(reached))
    try:
        await asyncio.wait({work, limit}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        work.cancel()  # no effect on one that is done
        await asyncio.wait({work})
    if limit.done():
        raise RunLimitReached(limit.result())
    limit.cancel()
    return work.result()


class _Program(NamedTuple):
    """The process of a conversation."""

    child: asyncio.subprocess.Process
    mark: str
    stderr: asyncio.Future[str]

    async def end(self) -> None:
        """End the process with everything it started."""
        self.stderr.cancel()
        await end_processes(self.child, self.mark)


def _died(code: int, stderr: str) -> AgentError:
    """Return the error for a command that exited without a reply."""
    last = last_line(stderr)
    end = f"the command exited with code {code}"
    if code in (-signal.SIGKILL, KILLED_IN_SHELL):
        end += " (SIGKILL, as the system sends it when memory runs out)"
    # Anything may send the signal; only this says that a limit was reached.
    exhausted = last.startswith("MemoryError")
    return AgentError(
        f"{end}: {last}".rstrip(": "), category=RESOURCE_LIMIT if exhausted else AGENT_ERROR
    )


def _expanded(text: str, places: dict[str, str]) -> str:
    """Return a text with its placeholders replaced; other braces are left alone."""
    if "{" not in text:
        return text
    expanded = re.sub(r"\{[a-z_]+\}", lambda found: places.get(found[0], found[0]), text)
    return expanded.replace("\0", "")  # no argument of a program can hold it


async def _converse(
    child: asyncio.subprocess.Process, question: bytes, checkpoint: Checkpoint | None, mark: str
) -> tuple[bytes, str]:
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    # Both streams are read while the input is written: a full pipe would block the program.
    reading = asyncio.ensure_future(_read_output(child.stdout, checkpoint))
    listening = asyncio.ensure_future(read_tail(child.stderr))
    try:
        # A program may answer without reading its input.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            child.stdin.write(question)
            await child.stdin.drain()
        child.stdin.close()
        await until_exit(child, reading, listening)
        # What it left in the background holds the pipes, and has nothing to answer.
        await end_processes(child, mark)
        out, stderr = await asyncio.gather(reading, listening)
    finally:
        reading.cancel()
        listening.cancel()
    return out, stderr


async def _read_output(stream: asyncio.StreamReader, checkpoint: Checkpoint | None) -> bytes:
    """Return the output of a command without its states, which are saved as they arrive."""
    out = bytearray()
    while len(out) <= MAX_OUTPUT:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the limit of the stream
            break
        if not line:
            return bytes(out)
        # The cheap test first: most lines are output, and decoding each would be slow.
        if checkpoint is not None and line.lstrip()[:1] == b"{" and b'"checkpoint"' in line:
            with contextlib.suppress(msgspec.DecodeError):
                state = msgspec.json.decode(line, type=CommandState)
                await asyncio.to_thread(checkpoint.save, state.checkpoint)
                continue
        out += line
    raise AgentError(f"the command wrote more than {MAX_OUTPUT // 2**20} MB")


class CommandState(msgspec.Struct, forbid_unknown_fields=True):
    """Line of output by which a program saves its state."""

    checkpoint: Any


def _parse_reply(out: bytes) -> AgentReply:
    for line in reversed(out.splitlines()):
        if line.lstrip().startswith(b"{"):
            try:
                reply = msgspec.json.decode(line, type=CommandReply)
            except msgspec.DecodeError:
                # JSON may escape half of a surrogate pair, which only this decoder accepts.
                try:
                    plain = without_surrogates(json.loads(line))
                    reply = msgspec.convert(plain, CommandReply)
                except (ValueError, RecursionError):  # both decoders' errors are ValueErrors
                    continue
            return _record(reply)
    raise AgentError("the command wrote no JSON object", hint=_HOW_TO_ANSWER)


def _record(reply: CommandReply) -> AgentReply:
    """Return the reply and record the calls it reports in the trace."""
    calls = reply.tool_calls or []
    # A program that reports its calls reports all of them, also when there are none.
    if reply.tool_calls is not msgspec.UNSET and (trace := current_trace()) is not None:
        trace.observe("tool_calls", "arguments")
    for call in calls:
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
    if answer is msgspec.UNSET and reply.output is None and not calls:
        # A misspelt key must not count as an empty answer.
        raise AgentError('the JSON object has no "answer"', hint=_HOW_TO_ANSWER)
    if answer is msgspec.UNSET or answer is None:
        answer = "" if reply.output is None else msgspec.json.encode(reply.output).decode()
    return AgentReply(answer=answer, output=reply.output, metadata=reply.metadata)
