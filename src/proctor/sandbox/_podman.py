"""Sandboxes by podman: one container per trial, commands in it by `podman exec`.

Options of the engine (`--runtime=runc`, `--cgroup-manager=cgroupfs`) are given with every call, so
that nothing of this machine's configuration needs to change. Images of trials are never pulled: one
that is missing is an error, because a trial must not depend on a registry. Only a build pulls the
base image that its Dockerfile names, if it is missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from proctor.formatting import last_line
from proctor.sandbox.base import (
    Capabilities,
    SandboxBase,
    SandboxError,
    SandboxProcess,
    start_process,
)

IDLE = "chmod 1777 / 2>&-; trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
"""What a container does between commands. First, the root folder becomes writable, for paths such
as /tests: engines make it read-only or root's, which matters to commands without capabilities."""

MAX_PROCESSES = 32768
"""Processes of a user in a container, unless `pids` allows fewer; the default of engines."""

_INSTALL = "apt-get install podman (or dnf, pacman, apk)"


class Podman(SandboxBase):
    """One trial's container."""

    _container = ""

    async def capabilities(self) -> Capabilities:
        """Return whether podman can be called; a start shows the rest."""
        if shutil.which("podman") is None:
            return Capabilities(False, "podman is not installed", _INSTALL)
        code, out, error = await self._call("version", "--format", "{{.Client.Version}}")
        if code != 0:
            return Capabilities(False, _reason(error), "see `podman info`")
        limits = frozenset({"cpus", "memory_mb", "pids"})
        return Capabilities(True, f"podman {out.strip()}", limits=limits, mounts=True)

    async def build(self, folder: Path, name: str) -> None:
        """Build the image of a folder with a Dockerfile, unless there is one of this name."""
        if (await self._call("image", "exists", name))[0] == 0:
            return
        arguments = ["build", "--pull=missing", "--tag", name, str(folder)]
        child = await start_process(["podman", *self.options.engine, *arguments], os.environ)
        try:
            said, error = await child.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):  # of a build that took too long
                if child.returncode is None:
                    os.killpg(child.pid, signal.SIGTERM)
        if child.returncode != 0:
            # What the last step wrote, and what podman says about it.
            lines = [
                last_line(said.decode(errors="replace")),
                _reason(error.decode(errors="replace")),
            ]
            raise SandboxError(f"podman cannot build {folder}: {'; '.join(filter(None, lines))}")

    async def start(self) -> None:
        """Start the container."""
        options, limits = self.options, self.options.limits
        name = f"proctor-{uuid.uuid4().hex[:12]}"
        arguments = [
            "run", "--detach", "--rm", "--name", name, "--network", "none", "--hostname", "sandbox",
            # Root of the container, whatever the image says: its files must stay the user's.
            "--user", "0:0",
            "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pull", "never",
            "--volume", f"{self.home}:{self.home}:rw",
        ]  # fmt: skip
        for limit, (soft, hard) in inherited_limits().items():
            arguments += ["--ulimit", f"{limit}={soft}:{hard}"]
        for inside, outside in self.mounts.items():
            arguments += ["--volume", f"{outside}:{inside}:rw"]
        for path in self.read_only:
            arguments += ["--volume", f"{path}:{path}:ro"]
        for flag, value in (
            ("--cpus", limits.cpus),
            ("--memory", None if limits.memory_mb is None else f"{limits.memory_mb}m"),
            ("--pids-limit", limits.pids),
        ):
            if value is not None:
                arguments += [flag, str(value)]
        if options.rootfs is not None:
            # An overlay: what agents write outside their directory is gone with the container.
            arguments += ["--rootfs", f"{options.rootfs}:O", "sh", "-c", IDLE]
        else:
            arguments += ["--entrypoint", "sh", str(options.image), "-c", IDLE]
        code, _, error = await self._call(*arguments)
        if code != 0:
            await self._call("rm", "--force", "--ignore", name)
            raise SandboxError(f"podman cannot start a container: {_reason(error)}")
        self._container = name

    async def exec(
        self, command: Sequence[str], *, cwd: str, env: Mapping[str, str]
    ) -> SandboxProcess:
        """Start a command in the container."""
        named: list[str] = []
        # A name alone takes the value from podman's own environment, which no other user can read;
        # the variables that podman itself needs are written out.
        own = {"PATH", "HOME", "TMPDIR", *(name for name in env if name.startswith("XDG_"))}
        for name, value in env.items():
            named += ["--env", f"{name}={value}" if name in own else name]
        given = {name: value for name, value in env.items() if name not in own}
        arguments = ["exec", "--interactive", *named, "--workdir", cwd, self._container, *command]
        whole = ["podman", *self.options.engine, *arguments]
        return await start_process(whole, {**os.environ, **given})

    async def stop(self) -> None:
        """Remove the container with everything in it."""
        name, self._container = self._container, ""
        if name:
            await self._call("rm", "--force", "--time", "0", "--ignore", name)

    async def _call(self, *arguments: str) -> tuple[int, str, str]:
        child = await start_process(["podman", *self.options.engine, *arguments], os.environ)
        out, error = await child.communicate()
        return child.returncode or 0, out.decode(errors="replace"), error.decode(errors="replace")


def inherited_limits() -> dict[str, tuple[int, int]]:
    """Return limits of open files and processes, which engines set to more than they may have."""
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = MAX_PROCESSES if processes < 0 else min(processes, MAX_PROCESSES)
    return {"nofile": files, "nproc": (most, most)}


def _reason(error: str) -> str:
    lines = [line for line in error.strip().splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ") if lines else "it says no reason"
