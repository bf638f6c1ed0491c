"""Run one trial in this child process and send the result back: the other end of `process`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

from proctor.agents._process import CALL_TIME, ChildJob, ChildResult
from proctor.agents._python import PythonAgentConfig
from proctor.agents.base import AgentRequest, category_of
from proctor.agents.checkpoint import LinkedStore
from proctor.background import run_sync
from proctor.errors import describe_error
from proctor.files import replacing
from proctor.gateway.observe import observing
from proctor.llm.cassette import taken_over
from proctor.llm.retry import transient
from proctor.sanitize import json_bytes
from proctor.trace.capture import capture


def main() -> None:
    """Read the job from standard input, write the result to the file named by the argument."""
    place = Path(sys.argv[1])
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=ChildJob)
    # Before anything of the user's is imported.
    _limit_memory(job.agent["memory_mb"])
    with taken_over(job.cassette), observing():
        result = run_sync(_run(job))
    # Renamed into place: the parent never reads half a result. No sync, as it does not outlive the
    # trial.
    with replacing(place, sync=False) as aside:
        aside.write_bytes(json_bytes(result))
    # Threads left running by the agent must not keep the process alive.
    os._exit(0)


async def _run(job: ChildJob) -> ChildResult:
    base_dir = Path(job.base_dir) if job.base_dir else None
    config = PythonAgentConfig(**job.agent, base_dir=base_dir)
    request = AgentRequest(job.input, **job.request)
    request.give_workdir(Path(job.workdir))
    request.workspace = None if job.workspace is None else Path(job.workspace)
    if job.checkpoint is not None:
        request.keep_states(LinkedStore(job.checkpoint), request.trial)
    result = ChildResult()
    try:
        with capture(job.input, name="process", trace_id=request.trace_id) as trace:
            result.trace = trace
            agent = config.create()
            _tell(job.calls)
            try:
                result.reply = await agent.run(request)
            finally:
                _tell(job.calls)
            trace.observe(*config.observes)
    except Exception as error:  # noqa: BLE001 (handed to the parent, which raises it)
        result.error_type = type(error).__name__
        result.error_message = describe_error(error)
        result.category = category_of(error)
        if (passing := transient(error)) is not None:
            result.transient = True
            result.status_code, result.retry_after = passing
    return result


def _tell(pipe: int | None) -> None:
    """Tell the parent when the agent is called, or has ended: its clock runs in between."""
    if pipe is not None:
        os.write(pipe, CALL_TIME.pack(time.perf_counter()))


def _limit_memory(megabytes: int | None) -> None:
    if megabytes is None:
        return
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return
    limit = megabytes * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
