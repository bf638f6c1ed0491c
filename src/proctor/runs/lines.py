"""Files that only grow, one JSON document a line, by any number of writers at once.

Promise: a line is there whole or not at all, and no writer loses another's. A line that a crash
tore, or that is not what it should be, is skipped and named; the file is never rewritten.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from proctor.errors import ProctorError
from proctor.sanitize import json_bytes

Line = TypeVar("Line", bound=msgspec.Struct)


def append_line(path: Path, line: msgspec.Struct) -> None:
    """Add a line at the end, forced to the platter."""
    encoded = json_bytes(line)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:
            wait_for_others(file.fileno())
            end = file.seek(0, os.SEEK_END)
            torn = b""
            if end:
                file.seek(end - 1)
                torn = b"" if file.read(1) == b"\n" else b"\n"
            file.write(torn + encoded + b"\n")
            os.fsync(file.fileno())
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(path)) from None


def read_lines(path: Path, kind: type[Line], problems: list[str] | None = None) -> Iterator[Line]:
    """Every line that can be read, in the order they were written; none without the file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ProctorError(f"cannot read: {error.strerror}", where=str(path)) from None
    decoder = msgspec.json.Decoder(kind)
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            yield decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            if problems is not None:
                problems.append(f"{path}:{number}: {error}")


def wait_for_others(descriptor: int) -> None:
    """Have an open file for oneself, once others have let go; released when it is closed, however.

    Not on Windows, where an append of one write is whole.
    """
    try:
        import fcntl
    except ImportError:
        return
    locker: Any = fcntl
    locker.flock(descriptor, locker.LOCK_EX)
