"""The protocol of sandboxes, which other packages can implement, and how a kind is found.

A sandbox is made for one trial: `start`, any number of `exec`, `read` and `write`, then `stop`,
which ends everything in it. `capabilities` says what works here, and why something does not. A
package publishes its class under the entry point group `proctor.sandboxes`; it is called with a
`SandboxSetting`.

Trouble of a sandbox is a `SandboxError`: infrastructure with its reason, never a verdict.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol, cast, runtime_checkable

from proctor.errors import hint_among
from proctor.sandbox.options import BUILT_IN, SandboxOptions
from proctor.sandbox.workspace import WorkspaceError

GROUP = "proctor.sandboxes"
"""Entry points of sandboxes: name → a callable that takes a `SandboxSetting`."""

STREAM_LIMIT = 64 << 20
"""Bytes of a line of output."""

_CLASSES = {
    "bwrap": "proctor.sandbox._bwrap:Bwrap",
    "podman": "proctor.sandbox._podman:Podman",
    "docker": "proctor.sandbox._docker:Docker",
}


class SandboxError(WorkspaceError):
    """Raised when a sandbox cannot be used or has failed."""


class SandboxSetting(NamedTuple):
    """What a sandbox is made from."""

    options: SandboxOptions
    home: Path
    """The trial's own directory, with its workspace: read and write, at the same path."""
    read: tuple[Path, ...] = ()
    """Files and folders to show read-only, at the same path."""
    mounts: Mapping[str, Path] = MappingProxyType({})
    """Folders of the trial's directory that are shown, read and write, at other paths too."""


class Capabilities(NamedTuple):
    """What a sandbox can do here. If it does not work, `reason` says why and `hint` what to do."""

    works: bool
    reason: str = ""
    hint: str | None = None
    limits: frozenset[str] = frozenset()
    """The limits it enforces: cpus, memory_mb, pids."""
    isolates_network: bool = True
    """Whether nothing outside can be reached, but Unix sockets in the trial's directory can."""
    shares_files: bool = True
    """Whether it shows the trial's directory itself; if not, files are copied in and out."""
    persistent: bool = True
    """Whether processes that a command leaves behind stay until `stop`."""
    system_path: bool = False
    """Whether it shows the programs of this machine, so that its PATH applies."""
    mounts: bool = False
    """Whether it can show a folder at another path (`mounts` of its setting)."""
    python: str = "python3"
    """The interpreter inside, which forwards connections."""


class SandboxProcess(Protocol):
    """A process in a sandbox, as `asyncio` has them."""

    @property
    def stdin(self) -> asyncio.StreamWriter | None: ...  # noqa: D102
    @property
    def stdout(self) -> asyncio.StreamReader | None: ...  # noqa: D102
    @property
    def stderr(self) -> asyncio.StreamReader | None: ...  # noqa: D102
    @property
    def returncode(self) -> int | None: ...  # noqa: D102

    async def wait(self) -> int:
        """Wait for its end and return its exit code."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class Sandbox(Protocol):
    """Where the processes of one trial run."""

    async def capabilities(self) -> Capabilities:
        """Return what it can do here; called before `start`."""
        ...

    async def start(self) -> None:
        """Prepare it, or raise `SandboxError`."""
        ...

    async def exec(
        self, command: Sequence[str], *, cwd: str, env: Mapping[str, str]
    ) -> SandboxProcess:
        """Start a command with exactly these environment variables."""
        ...

    async def read(self, path: str) -> bytes:
        """Return the content of a file inside."""
        ...

    async def write(self, path: str, content: bytes) -> None:
        """Write a file inside."""
        ...

    async def stop(self) -> None:
        """End everything in it and release what it used; may be called again."""
        ...

    def exceeded(self) -> str:
        """Return the name of the limit that ended a process; empty if none is known to have."""
        ...


@runtime_checkable
class ImageBuilder(Protocol):
    """A sandbox that can also build the image of a Dockerfile."""

    async def build(self, folder: Path, name: str) -> None:
        """Build the image of a folder with a Dockerfile, unless there is one of this name."""
        ...


class SandboxBase:
    """What the built-in sandboxes share: files go through commands, which see what agents see."""

    def __init__(self, setting: SandboxSetting) -> None:
        self.options, self.home, self.read_only, self.mounts = setting

    async def exec(
        self, command: Sequence[str], *, cwd: str, env: Mapping[str, str]
    ) -> SandboxProcess:
        """Start a command."""
        raise NotImplementedError

    async def read(self, path: str) -> bytes:
        """Return the content of a file inside."""
        return await self._finish(["cat", "--", path])

    async def write(self, path: str, content: bytes) -> None:
        """Write a file inside."""
        await self._finish(["sh", "-c", 'cat > "$1"', "sh", path], content)

    def exceeded(self) -> str:
        """Return the limit that ended a process, where the kind can tell."""
        return ""

    async def _finish(self, command: Sequence[str], content: bytes = b"") -> bytes:
        process = await self.exec(command, cwd="/", env={"PATH": "/usr/bin:/bin"})
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(content)
        process.stdin.close()
        out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
        if await process.wait() != 0:
            raise SandboxError(err.decode(errors="replace").strip() or f"{command[0]} failed")
        return out


async def start_process(
    command: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int] = ()
) -> asyncio.subprocess.Process:
    """Start a program of this machine that runs a command in a sandbox."""
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
            pass_fds=pass_fds,
            limit=STREAM_LIMIT,
        )
    except OSError as error:
        raise SandboxError(f"cannot run {command[0]}: {error.strerror}") from None


def sandbox_class(kind: str) -> Callable[[SandboxSetting], Sandbox]:
    """Return what makes sandboxes of a kind."""
    if (place := _CLASSES.get(kind)) is not None:
        module, _, name = place.partition(":")
        return cast("Callable[[SandboxSetting], Sandbox]", getattr(import_module(module), name))
    for entry in entry_points(group=GROUP, name=kind):
        return cast("Callable[[SandboxSetting], Sandbox]", entry.load())
    raise SandboxError(
        f"there is no sandbox {kind!r}",
        hint=hint_among(kind, known_sandboxes()),
    )


def known_sandboxes() -> list[str]:
    """Return every kind, built in or installed."""
    return [*BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))]
