"""Processes that agents run in: ended with their trial, whatever they started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal


async def end_group(child: asyncio.subprocess.Process) -> None:
    """Leave neither the process behind nor any of its group; it was started as a group leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    with contextlib.suppress(ProcessLookupError):
        await child.wait()
