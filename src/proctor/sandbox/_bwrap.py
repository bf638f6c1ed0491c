"""Sandboxes by bubblewrap: namespaces of the kernel, a few milliseconds per command.

Nothing runs between two commands: each one gets new namespaces with the same files. It sees the
programs of this machine (or of `rootfs`) read-only, an empty /tmp, the trial's directory and the
paths of `read`; no other process and no network. Privileges cannot be gained, what no namespace
separates (kernel keys, sockets of the virtual machine) is refused by a filter, and everything ends
with the command. Limits need control groups that we may write to; memory is otherwise limited for
each process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import struct
import subprocess
import sys
import uuid
from collections.abc import Generator, Mapping, Sequence
from errno import EAFNOSUPPORT, ENOSYS
from functools import lru_cache
from pathlib import Path

from proctor.background import threads
from proctor.sandbox.base import (
    Capabilities,
    SandboxBase,
    SandboxError,
    SandboxProcess,
    start_process,
)
from proctor.sandbox.options import SandboxLimits

SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders of this machine that programs need."""

ETC = (
    "alternatives", "ca-certificates", "debian_version", "fonts", "group", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "os-release",
    "passwd", "pki", "protocols", "services", "ssl", "timezone",
)  # fmt: skip
"""What they need of its settings: nothing that is secret."""

KERNEL = ("acpi", "bus", "fs", "irq", "scsi", "sys", "sysrq-trigger")
"""Parts of /proc that are read-only for root: the kernel lets its processes write there without
any capability, and what `sys/kernel/core_pattern` names would run outside."""

MEMORY_FOLDERS = ("/tmp", "/run", "/dev/shm")  # noqa: S108
"""Folders inside that, as / itself, are held in memory and forgotten after each command."""

MEMORY_SHARE = 16
"""The part of this machine's memory that each of them may take: no process is billed for it."""

_INSTALL = "apt-get install bubblewrap (or dnf, pacman, apk)"


class Bwrap(SandboxBase):
    """One trial's sandbox."""

    _group: ControlGroup | None = None

    async def capabilities(self) -> Capabilities:
        """Return whether bubblewrap works here, and which limits do."""
        return await threads.run(_capabilities)

    async def start(self) -> None:
        """Create the control groups for the limits, if there are any."""
        if self.options.limits.enforced and cgroup_problem() is None:
            self._group = await threads.run(ControlGroup, self.options.limits)

    def _arguments(self, cwd: str, program_inside: str, filtered: Sequence[str]) -> list[str]:
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxError("bubblewrap is not installed", hint=_INSTALL)
        arguments = [
            program, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
            "--hostname", "sandbox", *filtered, *_bounded_size(), "--tmpfs", "/",
        ]  # fmt: skip
        root = Path("/" if self.options.rootfs is None else self.options.rootfs)
        own = {"proc", "dev", "tmp", "sys", "run"}
        names = SYSTEM if self.options.rootfs is None else sorted(set(os.listdir(root)) - own)  # noqa: PTH208
        for name in names:
            entry = root / name
            if entry.is_symlink():
                arguments += ["--symlink", str(entry.readlink()), f"/{name}"]
            elif entry.exists():
                arguments += ["--ro-bind", str(entry), f"/{name}"]
        if self.options.rootfs is None:
            for name in ETC:
                arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        if os.geteuid() == 0:
            for name in KERNEL:
                arguments += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
        for folder in MEMORY_FOLDERS:
            arguments += [*_bounded_size(), "--tmpfs", folder]
        arguments += ["--remount-ro", "/dev"]
        if program_inside == _python() and not program_inside.startswith("/usr/"):
            arguments += ["--ro-bind", sys.base_prefix, sys.base_prefix]
        for path in self.read_only:
            arguments += ["--ro-bind", str(path), str(path)]
        for inside, outside in self.mounts.items():
            arguments += ["--bind", str(outside), inside]
        return [*arguments, "--bind", str(self.home), str(self.home), "--chdir", cwd, "--"]

    async def exec(
        self, command: Sequence[str], *, cwd: str, env: Mapping[str, str]
    ) -> SandboxProcess:
        """Start a command in new namespaces."""
        with _system_call_filter() as (filtered, files):
            return await self._start(command, cwd, env, filtered, files)

    async def _start(
        self,
        command: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        filtered: Sequence[str],
        files: Sequence[int],
    ) -> SandboxProcess:
        inside = self._arguments(cwd, command[0], filtered)
        memory = self.options.limits.memory_mb
        if self._group is not None:
            inside = [*self._group.joining(), *inside]
        elif memory is not None:
            inside += ["sh", "-c", f'ulimit -v {memory * 1024}; exec "$@"', "sh"]
        return await start_process([*inside, *command], env, files)

    def exceeded(self) -> str:
        """Return whether the kernel ended a process because memory ran out."""
        return "memory" if self._group is not None and self._group.out_of_memory() else ""

    async def stop(self) -> None:
        """Remove the control groups; the processes ended with their commands."""
        group, self._group = self._group, None
        if group is not None:
            await group.remove()


# -- system calls --------------------------------------------------------------------------------

FAMILIES = (1, 2, 10, 16)
"""Families of sockets that namespaces separate: Unix, IPv4, IPv6, netlink. Others, such as
AF_VSOCK, lead to the machine around a virtual one, whatever the network namespace."""

SYSTEM_CALLS = {
    "x86_64": (0xC000003E, 41, (248, 249, 250, 425)),
    "aarch64": (0xC00000B7, 198, (217, 218, 219, 425)),
}
"""For each processor: how the kernel names it, the number of `socket`, and those of `add_key`,
`request_key`, `keyctl` (keys of the user's session are in no namespace) and `io_uring_setup` (which
makes sockets without `socket`)."""


def _filter_program() -> bytes:
    """Return the filter of system calls for the kernel; empty for unknown processors.

    Programs for another kind of processor (32 bits) are refused: their numbers differ.
    """
    if (known := SYSTEM_CALLS.get(platform.machine())) is None:
        return b""
    processor, make_socket, refused = known
    load, equal, at_least, end = 0x20, 0x15, 0x35, 0x06
    allow, no_call, no_family = 0x7FFF0000, 0x00050000 | ENOSYS, 0x00050000 | EAFNOSUPPORT
    # Each line: operation, lines to skip if true and if false, value.
    lines = [(load, 0, 0, 4), (equal, 1, 0, processor), (end, 0, 0, no_call), (load, 0, 0, 0)]
    # The other numbers of x86_64, for programs with short pointers.
    lines += [(at_least, 0, 1, 0x40000000), (end, 0, 0, no_call)]
    for number in refused:
        lines += [(equal, 0, 1, number), (end, 0, 0, no_call)]
    lines += [(equal, 1, 0, make_socket), (end, 0, 0, allow), (load, 0, 0, 16)]
    for family in FAMILIES:
        lines += [(equal, 0, 1, family), (end, 0, 0, allow)]
    lines += [(end, 0, 0, no_family)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


@contextlib.contextmanager
def _system_call_filter() -> Generator[tuple[list[str], list[int]]]:
    """Yield the option of bubblewrap for the filter, and the file that it reads it from."""
    program = _filter_program()
    if not program:
        yield [], []
        return
    reading, writing = os.pipe()
    try:
        os.write(writing, program)
        os.close(writing)
        yield ["--seccomp", str(reading)], [reading]
    finally:
        os.close(reading)


def _python() -> str:
    """Return the interpreter that forwards connections: the system's, else our own."""
    system = Path("/usr/bin/python3")
    return str(system if system.exists() else Path(sys.executable).resolve())


@lru_cache(maxsize=1)
def _bounded_size() -> list[str]:
    """Return the option that bounds a folder in memory; bubblewrap before 0.7 has none."""
    program = shutil.which("bwrap")
    assert program is not None
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)  # noqa: S603
    if "--size" not in done.stdout:
        return []
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return ["--size", str(memory // MEMORY_SHARE)]


@lru_cache(maxsize=1)
def _capabilities() -> Capabilities:
    program = shutil.which("bwrap")
    if program is None:
        return Capabilities(False, "bubblewrap is not installed", _INSTALL)
    # As an agent would be started: distributions may forbid namespaces to users.
    probe = [program, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc"]
    try:
        with _system_call_filter() as (filtered, files):
            done = subprocess.run(  # noqa: S603
                [*probe, *filtered, "true"],
                capture_output=True, text=True, timeout=30, check=False, pass_fds=files,
            )  # fmt: skip
        version = subprocess.run(  # noqa: S603
            [program, "--version"], capture_output=True, text=True, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Capabilities(False, f"bubblewrap cannot be run: {error}", _INSTALL)
    if done.returncode != 0:
        hint = "allow unprivileged user namespaces: sysctl kernel.unprivileged_userns_clone=1"
        return Capabilities(False, done.stderr.strip() or f"exit code {done.returncode}", hint)
    problem = cgroup_problem()
    limits = frozenset({"cpus", "memory_mb", "pids"} if problem is None else {"memory_mb"})
    reason = version.stdout.strip() + ("" if problem is None else f"; {problem}")
    return Capabilities(
        True,
        reason,
        limits=limits,
        persistent=False,
        mounts=True,
        system_path=True,
        python=_python(),
    )


# -- control groups ------------------------------------------------------------------------------

CGROUPS = Path("/sys/fs/cgroup")


def _own_groups() -> dict[str, str]:
    """Return the control group of this process for each controller; "" is version 2."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    return {
        name: path
        for _, names, path in (line.split(":", 2) for line in lines)
        for name in names.split(",")
    }


def _parents() -> dict[str, Path]:
    """Return the folder in which a group can be made, for each controller."""
    groups = _own_groups()
    if (CGROUPS / "cgroup.controllers").exists():
        # A group with processes has no groups with limits below it: ours is beside this one.
        own = CGROUPS / groups.get("", "/").lstrip("/")
        return dict.fromkeys(
            ("cpu", "memory", "pids"), CGROUPS if os.geteuid() == 0 else own.parent
        )
    return {
        name: CGROUPS / name / groups.get(name, "/").lstrip("/")
        for name in ("cpu", "memory", "pids")
    }


@lru_cache(maxsize=1)
def cgroup_problem() -> str | None:
    """Return why limits cannot be enforced here; None if they can."""
    try:
        ControlGroup(SandboxLimits(cpus=1, memory_mb=64, pids=16)).remove_now()
    except SandboxError as error:
        return str(error)
    return None


class ControlGroup:
    """Control groups of one trial, of version 1 or 2."""

    def __init__(self, limits: SandboxLimits) -> None:
        name = f"proctor-{uuid.uuid4().hex[:12]}"
        self._second = (CGROUPS / "cgroup.controllers").exists()
        wanted: list[tuple[str, str, str]] = []
        if limits.memory_mb is not None:
            memory = str(limits.memory_mb << 20)
            files = (
                ("memory.max", "memory.swap.max") if self._second else ("memory.limit_in_bytes",)
            )
            wanted += [("memory", file, "0" if "swap" in file else memory) for file in files]
        if limits.pids is not None:
            wanted.append(("pids", "pids.max", str(limits.pids)))
        if limits.cpus is not None:
            quota = str(int(limits.cpus * 100_000))
            file, value = (
                ("cpu.max", f"{quota} 100000") if self._second else ("cpu.cfs_quota_us", quota)
            )
            wanted.append(("cpu", file, value))
        self.folders: list[Path] = []
        try:
            parents = _parents()
            for controller, file, value in wanted:
                folder = parents[controller] / name
                if folder not in self.folders:
                    folder.mkdir()
                    self.folders.append(folder)
                if file == "memory.swap.max" and not (folder / file).exists():
                    continue  # a kernel without swap
                (folder / file).write_text(value, encoding="ascii")
        except OSError as error:
            self.remove_now()
            raise SandboxError(
                f"control groups cannot be used: {error.strerror} ({error.filename})",
                hint="run as root, or in a systemd user session with delegated controllers",
            ) from None

    def joining(self) -> list[str]:
        """Return the start of a command that joins the groups before anything else."""
        joins = "".join(f"echo $$ > {folder}/cgroup.procs && " for folder in self.folders)
        return ["sh", "-c", f'{joins}exec "$@"', "sh"]

    def out_of_memory(self) -> bool:
        """Return whether the kernel ended a process of the group for lack of memory."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                file = folder / name
                if file.exists() and any(
                    line.startswith("oom_kill ") and line.split()[1] != "0"
                    for line in file.read_text(encoding="ascii").splitlines()
                ):
                    return True
        return False

    def remove_now(self) -> bool:
        """Remove the groups that are empty; return whether all were."""
        left: list[Path] = []
        for folder in self.folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:  # a process is still ending
                left.append(folder)
        self.folders = left
        return not left

    async def remove(self) -> None:
        """Remove the groups once their processes have ended."""
        for _ in range(200):
            if self.remove_now():
                return
            await asyncio.sleep(0.01)
