"""Run a Python agent in a child process, one per trial.

Guarantees: whatever the agent does to its process (segfault, `os._exit`, endless loop, memory
exhaustion) ends only that trial, and at the time limit the whole process group is killed. The
trade-off is a Python start per trial. Printed output is not an answer: the reply comes back through
a separate file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from proctor.agents.base import (
    AGENT_ERROR,
    RESOURCE_LIMIT,
    AgentError,
    AgentReply,
    AgentRequest,
    adopt_spans,
)
from proctor.agents.checkpoint import linked
from proctor.background import threads
from proctor.formatting import last_line
from proctor.llm.cassette import HandedOver, hand_over
from proctor.llm.rate_limits import Waits
from proctor.processes import ProcessGroup
from proctor.sandbox.place import find_program
from proctor.trace import Trace
from proctor.trace.capture import current_trace

if TYPE_CHECKING:
    from proctor.agents._python import PythonAgentConfig
    from proctor.sandbox.place import RunningSandbox


# -- processes of agents, ended with their trial, including everything they started ---------------

MARK = "PROCTOR_TRIAL_PROCESSES"
"""Environment variable by which the descendants of a trial's process are found."""

EXIT_POLL = 0.1
"""Seconds between two looks at a process whose pipes others may hold open."""

CALL_TIME = struct.Struct("d")
"""A reading of `time.perf_counter`, whose clock all processes share, in the pipe of a child.

Not the moment at which the parent reads it: its event loop may be late."""

# Maximum bytes of a dead process's last output: enough for a traceback.
MAX_STDERR = 4000


def file_beside(folder: Path | None, name: str) -> Path | None:
    """Return the file of the suite's folder that a part of a command names, if it does."""
    if folder is None or name.startswith("-"):
        return None
    file = folder / name
    # Not resolved: the interpreter of a virtual environment is a link.
    return file.absolute() if file.is_file() else None


def need_program(
    program: str,
    folder: Path | None,
    env: Mapping[str, str] | None = None,
    hint: str | None = None,
) -> Path:
    """Return where a program is, in the suite's folder or on the PATH; raise if it is not."""
    found = file_beside(folder, program) or find_program(program, (env or {}).get("PATH"))
    if found is None:
        raise AgentError(f"there is no program {program!r}", category="", hint=hint)
    return found


async def until_exit(child: asyncio.subprocess.Process, *reading: asyncio.Future[Any]) -> None:
    """Wait until the process itself has ended, or reading its output has failed.

    `child.wait()` also waits for its pipes, which a process it left in the background holds open.
    """
    while child.returncode is None:
        if any(each.done() and each.exception() is not None for each in reading):
            return
        waiting = {each for each in reading if not each.done()}
        if waiting:
            await asyncio.wait(waiting, timeout=EXIT_POLL, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(EXIT_POLL / 10)


async def end_processes(child: asyncio.subprocess.Process, mark: str) -> None:
    """Kill the process, its groups, and descendants in sessions of their own.

    Without a mark it is in a sandbox, which ends the rest with the trial.
    """
    if not mark:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        return
    # The group may be gone already; macOS reports a zombie's group as not permitted.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    # In a thread: it reads a file of each process on the machine.
    await threads.run(end_marked, mark)


def end_marked(mark: str) -> None:
    """Kill what is in the control group, and what carries the mark.

    Without a control group, a descendant that removes the mark ends with the worker.
    """
    ProcessGroup(mark).end()
    wanted = f"{MARK}={mark}".encode()
    for _ in range(100):  # a process may fork between two looks
        found = False
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if wanted in environment.read_bytes():
                    os.kill(int(environment.parent.name), signal.SIGKILL)
                    found = True
        if not found:
            return


async def read_tail(stream: asyncio.StreamReader) -> str:
    """Return the end of a stream, however much is written to it."""
    tail = b""
    while chunk := await stream.read(65536):
        tail = (tail + chunk)[-MAX_STDERR:]
    return tail.decode(errors="replace")


class ChildJob(msgspec.Struct, frozen=True):
    """Job of the child process."""

    agent: dict[str, Any]
    """Options of the agent."""
    base_dir: str | None
    input: Any
    request: dict[str, Any]
    """The other arguments of the `AgentRequest`."""
    workdir: str
    workspace: str | None = None
    cassette: HandedOver | None = None
    checkpoint: int | None = None
    """Number of the checkpoint socket."""
    calls: int | None = None
    """Number of the pipe that tells when the agent is called and when it has ended."""


class ChildResult(msgspec.Struct, omit_defaults=True):
    """Result of the child process: a reply, or the error that stopped it."""

    reply: AgentReply | None = None
    trace: Trace | None = None
    error_type: str = ""
    error_message: str = ""
    category: str = ""
    transient: bool = False
    status_code: int | None = None
    retry_after: float | None = None


class ProcessAgent:
    """Runs one trial of a Python agent in a child process."""

    def __init__(self, config: PythonAgentConfig) -> None:
        self._config = config

    async def run(self, request: AgentRequest) -> AgentReply:
        """Start the child, send the job, and wait for its result or its death."""
        if request.sandbox is not None:
            return await self._run_in(request.sandbox, request)
        mark = secrets.token_hex(16)
        with tempfile.TemporaryDirectory(prefix="proctor-child-") as folder:
            # A file, not a pipe: a process left behind by the agent would hold a pipe open.
            result = Path(folder, "result.json")
            with (
                linked(request.checkpoint) as link,
                _Calls(request.startup or Waits()) as calls,
            ):
                child = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "proctor.agents._child",
                    str(result),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    # Makes it a group leader: most of its descendants are in its group.
                    start_new_session=True,
                    cwd=request.workspace or request.workdir,
                    env={**os.environ, MARK: mark},
                    pass_fds=[end for end in (link, calls) if end is not None],
                )
                assert child.stderr is not None
                listening = asyncio.ensure_future(read_tail(child.stderr))
                try:
                    # It runs no code of users before it has its job.
                    ProcessGroup(mark).add(child.pid)
                    await _send(child, self._job(request, link, calls))
                    await until_exit(child, listening)
                finally:
                    await end_processes(child, mark)
                stderr = await listening
            return _parse_result(result, child.returncode or 0, stderr)

    async def _run_in(self, sandbox: RunningSandbox, request: AgentRequest) -> AgentReply:
        """Run the child in a sandbox, which only shares the trial's directory with us."""
        if hand_over() is not None:
            raise AgentError(
                "the model calls of an agent in a sandbox cannot be recorded here",
                category="",
                hint="record them with the model gateway, from an agent of kind command",
            )
        result = request.workdir / ".result.json"
        command = [sys.executable, "-m", "proctor.agents._child", str(result)]
        cwd = request.workspace or request.workdir
        with request.startup or Waits():
            started = await sandbox.exec(command, cwd=cwd, env={})
        child = cast("asyncio.subprocess.Process", started)
        assert child.stdout is not None
        assert child.stderr is not None
        streams = [asyncio.ensure_future(read_tail(each)) for each in (child.stdout, child.stderr)]
        try:
            await _send(child, self._job(request, None, None))
            await until_exit(child, *streams)
        finally:
            await end_processes(child, "")
        _, stderr = await asyncio.gather(*streams)
        if limit := sandbox.exceeded():
            message = f"the agent used more {limit} than its sandbox allows"
            raise AgentError(message, category=RESOURCE_LIMIT)
        return _parse_result(result, child.returncode or 0, stderr)

    def _job(self, request: AgentRequest, link: int | None, calls: int | None) -> bytes:
        config = self._config
        job = ChildJob(
            agent=config.model_dump(include={"target", "factory", "memory_mb"}),
            base_dir=None if config.base_dir is None else str(config.base_dir.resolve()),
            input=request.input,
            request=request.trial_fields(),
            workdir=str(request.workdir),
            workspace=None if request.workspace is None else str(request.workspace),
            cassette=hand_over(),
            checkpoint=link,
            calls=calls,
        )
        return msgspec.json.encode(job, enc_hook=str)


class _Calls:
    """Counts as start-up what a child process does before and after it calls the agent.

    Entered, it is the end of a pipe to which the child writes the time at either moment; None where
    the system has no such pipes, and the start counts as the agent's.
    """

    def __init__(self, startup: Waits) -> None:
        self._startup = startup
        self._last = 0.0
        self._ends: tuple[int, int] | None = None
        self._waiting = False

    def __enter__(self) -> int | None:
        if not hasattr(os, "killpg"):  # Windows
            return None
        self._ends = os.pipe()
        os.set_blocking(self._ends[0], False)
        asyncio.get_running_loop().add_reader(self._ends[0], self._read)
        self._toggle(time.perf_counter())
        return self._ends[1]

    def __exit__(self, *_error: object) -> None:
        if self._ends is None:
            return
        self._read()
        asyncio.get_running_loop().remove_reader(self._ends[0])
        for end in self._ends:
            os.close(end)
        if self._waiting:
            self._toggle(time.perf_counter())

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError, struct.error):
            read = os.read(self._ends[0] if self._ends else -1, 2 * CALL_TIME.size)
            for (at,) in CALL_TIME.iter_unpack(read):
                self._toggle(at)

    def _toggle(self, at: float) -> None:
        now = time.perf_counter()
        if not self._last <= at <= now:  # an agent wrote to the pipe
            at = now
        self._last, self._waiting = at, not self._waiting
        if self._waiting:
            self._startup.__enter__()
            self._startup.add(now - at)
        else:
            self._startup.__exit__()
            self._startup.add(at - now)


async def _send(child: asyncio.subprocess.Process, job: bytes) -> None:
    assert child.stdin is not None
    # A child that died already is reported by its exit code, not by the broken pipe.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        child.stdin.write(job)
        await child.stdin.drain()
    child.stdin.close()


def _parse_result(file: Path, code: int, stderr: str) -> AgentReply:
    try:
        result = msgspec.json.decode(file.read_bytes(), type=ChildResult)
    except (FileNotFoundError, msgspec.DecodeError):  # the process died early
        end = f"exited with code {code}"
        if code < 0:
            end = f"was killed by signal {-code}"
            with contextlib.suppress(ValueError):  # a signal without a name
                end = f"was killed by {signal.Signals(-code).name}"
        last = last_line(stderr)
        # Anything may send SIGKILL; only this says that a limit was reached.
        exhausted = last.startswith("MemoryError")
        raise AgentError(
            f"the agent's process {end} before it replied" + (last and f"; last output: {last}"),
            category=RESOURCE_LIMIT if exhausted else AGENT_ERROR,
        ) from None
    adopt_spans(result.trace)
    if result.trace is not None and (here := current_trace()) is not None:
        here.observe(*result.trace.observed)
    if result.reply is None:
        raise AgentError(
            f"{result.error_type}: {result.error_message}",
            category=result.category,
            transient=result.transient,
            status_code=result.status_code,
            retry_after=result.retry_after,
        )
    return result.reply
