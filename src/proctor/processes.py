"""Find, measure and end the processes of agents, with everything they started.

Promise: where this process may create a control group (Linux, as root or with a delegated group),
nothing an agent started outlives its end, whatever its session, parent or environment. Elsewhere
descendants are found by their parents, so one whose parents have all ended must be found by its
adopter (`trials/worker.py`) or by its environment (`agents/_process.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import sleep

MEMORY_SHARE = 0.8
"""The part of this machine's memory (or of its container) that a worker may use."""

TASKS_PER_PROCESS = 4
"""A control group counts threads as well: these many for each process that is allowed."""

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_TRIES = 1000


def descendants(pid: int, most: int = 1 << 15) -> list[int]:
    """Return the processes that a process and its descendants have started, `most` at most."""
    found = [pid]
    for each in found:  # it grows
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{each}/task"):  # noqa: PTH208 (called often)
                with open(f"/proc/{each}/task/{task}/children", "rb") as file:  # noqa: PTH123
                    found += map(int, file.read().split())
        if len(found) > most:
            break
    return found[1:]


def memory_of(pids: list[int], enough: float) -> int:
    """Return the bytes that processes use; exact, shared pages counted once, above `enough`."""
    used = _sum_of(pids, "statm", lambda text: int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    if used <= enough:
        return used
    return _sum_of(
        pids,
        "smaps_rollup",
        lambda text: int(text[text.index(b"\nPss:") + 5 :].split(maxsplit=1)[0]) << 10,
    )


def _sum_of(pids: list[int], name: str, read: Callable[[bytes], int]) -> int:
    used = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            used += read(Path(f"/proc/{pid}/{name}").read_bytes())
    return used


@cache
def memory_limit() -> float:
    """Return the bytes that a worker may use if no setting says so."""
    found = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            found.append(float((_CONTROL_GROUPS / name).read_text()))
    return MEMORY_SHARE * min(found)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process, if there is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class ProcessGroup:
    """Processes that end together; does nothing where the system allows no such group."""

    def __init__(self, name: str) -> None:
        base = _own_group()
        self._folder = None if base is None else base / f"proctor-{name}"

    @property
    def available(self) -> bool:
        """Whether such a group can be made."""
        return self._folder is not None

    def add(self, pid: int, processes: int | None = None) -> None:
        """Put a process into the group, with what it starts; limit how many there may be."""
        if self._folder is None:
            return
        try:
            remove_left_groups(self._folder.parent)
            self._folder.mkdir(exist_ok=True)
            (self._folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            self._remove()
            return
        if processes is not None:
            with contextlib.suppress(OSError):  # version 2 may leave this to the group above
                limit = self._folder / "pids.max"
                if limit.exists():
                    limit.write_text(str(processes * TASKS_PER_PROCESS))

    def end(self) -> None:
        """Kill every process of the group and remove it."""
        for _ in range(_TRIES):
            if self._folder is None or not self._folder.exists():
                return
            for group in (self._folder, *self._folder.glob("**/proctor-*")):
                with contextlib.suppress(OSError):
                    for pid in (group / "cgroup.procs").read_text().split():
                        kill(int(pid))
            self._remove()
            sleep(0.001)

    def _remove(self) -> None:
        if self._folder is None:
            return
        for group in (*sorted(self._folder.glob("**/proctor-*"), reverse=True), self._folder):
            with contextlib.suppress(OSError):
                group.rmdir()


def remove_left_groups(base: Path) -> None:
    """Remove empty groups of workers that were killed together with the process that ends them."""
    for group in base.glob("proctor-*"):
        pid = group.name.removeprefix("proctor-")
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            for each in (*group.glob("**/proctor-*/"), group):
                with contextlib.suppress(OSError):  # something in it still runs
                    each.rmdir()


def _own_group() -> Path | None:
    """Return the folder of this process's group: the one that counts processes, or the only one."""
    try:
        lines = Path("/proc/self/cgroup").read_text().split()
    except OSError:
        return None
    for hierarchy, folder in (("pids", _CONTROL_GROUPS / "pids"), ("", _CONTROL_GROUPS)):
        for line in lines:
            _, controllers, path = line.split(":", 2)
            own = folder / path.lstrip("/")
            if controllers == hierarchy and os.access(own / "cgroup.procs", os.W_OK):
                return own
    return None
