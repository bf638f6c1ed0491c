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
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from proctor.llm.cassette import HandedOver, hand_over
from proctor.llm.rate_limits import Waits
from proctor.trace import Trace
from proctor.trace.capture import current_trace

if TYPE_CHECKING:
    from proctor.agents._python import PythonAgentConfig


# Agent processes, killed with their trial, including their descendants.


async def end_group(child: asyncio.subprocess.Process) -> None:
    """Kill the process and its group; it was started as a group leader."""
    # The group may be gone already; macOS reports a zombie's group as not permitted.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    with contextlib.suppress(ProcessLookupError):
        await child.wait()


# Maximum bytes of a dead process's last output: enough for a traceback.
MAX_STDERR = 4000


class ChildJob(msgspec.Struct, frozen=True):
    """Job of the child process."""

    agent: dict[str, Any]
    """Options of the agent."""
    base_dir: str | None
    input: Any
    request: dict[str, Any]
    """The other arguments of the `AgentRequest`."""
    workdir: str
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
        with tempfile.TemporaryDirectory(prefix="proctor-child-") as folder:
            # Files, not pipes: a process left behind by the agent would hold a pipe open forever.
            result, stderr_file = Path(folder, "result.json"), Path(folder, "stderr.txt")
            async with linked(request.checkpoint) as link:
                with _Calls(request.startup or Waits()) as calls, stderr_file.open("wb") as stderr:  # noqa: ASYNC230 (a new file on a local disk)
                    child = await asyncio.create_subprocess_exec(
                        sys.executable,
                        "-m",
                        "proctor.agents._child",
                        str(result),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL,
                        stderr=stderr,
                        # Makes it a group leader, so that `end_group` reaches its descendants too.
                        start_new_session=True,
                        cwd=request.workdir,
                        pass_fds=[end for end in (link, calls) if end is not None],
                    )
                    try:
                        await _send(child, self._job(request, link, calls))
                        code = await child.wait()
                    finally:
                        await end_group(child)
            return _parse_result(result, code, stderr_file)

    def _job(self, request: AgentRequest, link: int | None, calls: int | None) -> bytes:
        config = self._config
        job = ChildJob(
            agent=config.model_dump(include={"target", "factory", "memory_mb"}),
            base_dir=None if config.base_dir is None else str(config.base_dir.resolve()),
            input=request.input,
            request=request.trial_fields(),
            workdir=str(request.workdir),
            cassette=hand_over(),
            checkpoint=link,
            calls=calls,
        )
        return msgspec.json.encode(job, enc_hook=str)


class _Calls:
    """Counts as start-up what a child process does before and after it calls the agent.

    Entered, it is the end of a pipe to which the child writes a byte at either moment; None where
    the system has no such pipes, and the start counts as the agent's.
    """

    def __init__(self, startup: Waits) -> None:
        self._startup = startup
        self._ends: tuple[int, int] | None = None
        self._waiting = False

    def __enter__(self) -> int | None:
        if not hasattr(os, "killpg"):  # Windows
            return None
        self._ends = os.pipe()
        os.set_blocking(self._ends[0], False)
        asyncio.get_running_loop().add_reader(self._ends[0], self._read)
        self._toggle()
        return self._ends[1]

    def __exit__(self, *_error: object) -> None:
        if self._ends is None:
            return
        self._read()
        asyncio.get_running_loop().remove_reader(self._ends[0])
        for end in self._ends:
            os.close(end)
        if self._waiting:
            self._toggle()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in os.read(self._ends[0] if self._ends else -1, 2):
                self._toggle()

    def _toggle(self) -> None:
        self._waiting = not self._waiting
        if self._waiting:
            self._startup.__enter__()
        else:
            self._startup.__exit__()


async def _send(child: asyncio.subprocess.Process, job: bytes) -> None:
    assert child.stdin is not None
    # A child that died already is reported by its exit code, not by the broken pipe.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        child.stdin.write(job)
        await child.stdin.drain()
    child.stdin.close()


def _parse_result(file: Path, code: int, stderr: Path) -> AgentReply:
    try:
        result = msgspec.json.decode(file.read_bytes(), type=ChildResult)
    except (FileNotFoundError, msgspec.DecodeError):  # the process died early
        end = f"exited with code {code}"
        if code < 0:
            end = f"was killed by signal {-code}"
            with contextlib.suppress(ValueError):  # a signal without a name
                end = f"was killed by {signal.Signals(-code).name}"
        with stderr.open("rb") as output:
            output.seek(max(0, stderr.stat().st_size - MAX_STDERR))
            lines = output.read().decode(errors="replace").strip().splitlines()
        last = f"; last output: {lines[-1]}" if lines else ""
        exhausted = code == -signal.SIGKILL or (lines and lines[-1].startswith("MemoryError"))
        raise AgentError(
            f"the agent's process {end} before it replied{last}",
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
