"""Where one trial works: its copy of the workspace, inside its sandbox if it has one.

The files of a case are built once for each run and machine; every trial gets a copy. What cannot be
prepared (a folder, a setup command, a sandbox) raises: trouble of the infrastructure with its
reason, never a failure of the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from proctor.background import threads
from proctor.files import lock_file
from proctor.sandbox.options import ShellCommand, Workspace, argv, command_text
from proctor.sandbox.workspace import (
    Changes,
    Snapshot,
    WorkspaceError,
    build,
    copy_tree,
    kept_files,
    remove_tree,
)

MAX_OUTPUT = 1 << 20
"""Bytes of a command's output that are read; its end counts, where errors are."""

WORKSPACE = "workspace"
"""Name of the workspace in the private directory of a trial."""


class CommandOutput(msgspec.Struct, frozen=True):
    """How a command ended: `code` is None after a timeout, negative after a signal."""

    code: int | None
    output: str
    """The end of standard output and standard error, in the order of writing."""


class TrialWorkspace:
    """The files and the sandbox of one trial; checks find it as `ctx.workspace`.

    Example: `def built(ctx): return (ctx.workspace.path / "dist").is_dir()`.
    """

    def __init__(
        self, path: Path, options: Workspace | None = None, snapshot: Snapshot | None = None
    ) -> None:
        self.path = path
        """The folder in which the agent works."""
        self.options = options
        self._snapshot = snapshot

    @cached_property
    def changes(self) -> Changes | None:
        """What the agent changed, up to the first look; None without a `workspace`."""
        return None if self._snapshot is None else self._snapshot.changes()

    @property
    def original(self) -> Path | None:
        """The files as they were before the agent ran."""
        return None if self._snapshot is None else self._snapshot.original

    def record(self) -> dict[str, Any]:
        """Return what is stored with the trial: the changes and the files to keep."""
        found: dict[str, Any] = {}
        if (changes := self.changes) is not None:
            found |= changes.record()
        if self.options is not None and self.options.keep:
            found["files"] = kept_files(self.path, tuple(self.options.keep))
        return found

    async def run(
        self, command: ShellCommand, *, seconds: float, env: Mapping[str, str] | None = None
    ) -> CommandOutput:
        """Run a command in the workspace; everything it started ends with it."""
        try:
            child = await asyncio.create_subprocess_exec(
                *argv(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=self.path,
                start_new_session=True,
            )
        except OSError as error:
            reason = f"cannot run {argv(command)[0]}: {error.strerror}"
            raise WorkspaceError(reason) from None
        return await output_of(child, seconds)

    async def must(self, commands: Sequence[ShellCommand], what: str) -> None:
        """Run commands of the suite; one that fails is an error of the infrastructure."""
        seconds = 600.0 if self.options is None else self.options.timeout
        for command in commands:
            done = await self.run(command, seconds=seconds)
            if done.code != 0:
                end = f"exited with {done.code}"
                if done.code is None:
                    end = f"took longer than {seconds:g} s"
                last = (done.output.strip().splitlines() or [""])[-1][:300]
                shown = command_text(command)
                raise WorkspaceError(f"{what} `{shown}` {end}: {last}".rstrip(": "))

    async def tear_down(self, commands: Sequence[ShellCommand]) -> None:
        """Run commands after the verdict; a failure is logged, since it can change nothing."""
        try:
            await self.must(commands, "teardown")
        except WorkspaceError as error:
            logging.getLogger("proctor").warning("%s", error)

    async def close(self) -> None:
        """Run the teardown commands of the trial."""
        if self.options is not None and self.options.teardown:
            await self.tear_down(tuple(self.options.teardown))


async def output_of(child: asyncio.subprocess.Process, seconds: float) -> CommandOutput:
    """Wait for a command, keep the end of its output, and end everything it started."""
    assert child.stdout is not None
    tail = bytearray()

    async def read() -> None:
        assert child.stdout is not None
        while chunk := await child.stdout.read(65536):
            tail.extend(chunk)
            del tail[:-MAX_OUTPUT]

    reading = asyncio.ensure_future(read())
    waiting = asyncio.ensure_future(child.wait())
    try:
        # The process itself, not its pipe, which a process left in the background holds open.
        async with asyncio.timeout(seconds):
            while child.returncode is None and not reading.done():
                await asyncio.wait({reading, waiting}, timeout=0.1, return_when="FIRST_COMPLETED")
            await waiting
        code = child.returncode
    except TimeoutError:
        code = None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(child.pid, signal.SIGKILL)
            else:
                child.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.wait({reading, waiting})
        reading.cancel()
        waiting.cancel()
    return CommandOutput(code, tail.decode(errors="replace"))


class Workspaces:
    """The files of each case of a run, which its trials copy; made where it is first needed.

    The folder exists before worker processes are forked, so that they share it, and one of them
    builds the files of a case while the others wait.
    """

    def __init__(self, cases: Mapping[str, Workspace]) -> None:
        self._cases = cases
        self.folder = Path(tempfile.mkdtemp(prefix="proctor-files-"))
        self._remove = weakref.finalize(self, _remove_own, self.folder, os.getpid())

    async def __aenter__(self) -> None:
        """Use them for a run."""

    async def open(self, case: str, options: Workspace, base: Path, home: Path) -> TrialWorkspace:
        """Copy the files of a case into a trial's directory and run its setup."""
        place = self._place(case)
        original = place / "files"
        if not original.is_dir():
            await self._build(place, options, base)
        path = home / WORKSPACE
        await threads.run(copy_tree, original, path)
        workspace = TrialWorkspace(path, options)
        if options.setup:
            await workspace.must(tuple(options.setup), "setup")
            # Only the agent's changes count, so the state after the setup is kept.
            original = home / ".before"
            await threads.run(copy_tree, path, original)
        snapshot = await threads.run(Snapshot, path, original)
        return TrialWorkspace(path, options, snapshot)

    async def _build(self, place: Path, options: Workspace, base: Path) -> None:
        place.mkdir(exist_ok=True)  # noqa: ASYNC240 (one call, of a microsecond)
        with (place / "lock").open("a+b") as lock:
            await threads.run(lock_file, lock)
            if (place / "files").is_dir():
                return
            draft = place / "draft"
            shutil.rmtree(draft, ignore_errors=True)  # of a worker that died
            await threads.run(build, options, base, draft)
            await TrialWorkspace(draft, options).must(tuple(options.setup_case), "setup_case")
            draft.rename(place / "files")

    async def __aexit__(self, *_error: object) -> None:
        """Run the teardown of each case that was set up, and delete all files."""
        for case, options in self._cases.items():
            files = self._place(case) / "files"
            if options.teardown_case and files.is_dir():
                await TrialWorkspace(files, options).tear_down(tuple(options.teardown_case))
        await threads.run(self._remove)

    def _place(self, case: str) -> Path:
        return self.folder / hashlib.sha256(case.encode()).hexdigest()[:16]


def _remove_own(folder: Path, owner: int) -> None:
    """Delete a folder, unless this process is a fork of the one that made it."""
    if os.getpid() == owner:
        remove_tree(folder)
