"""Logs in files that do not grow for ever.

Promise: a file is at most `MOST_BYTES` and is kept with `KEPT` older ones, whatever is logged and
however long it goes on; a record is one line (a traceback is indented below it), with the time in
UTC, without secrets and without characters a terminal would obey. One process writes a file.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from collections.abc import Generator
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from proctor.errors import ProctorError
from proctor.sanitize import line
from proctor.trace.redact import default_redactor
from proctor.user_dirs import with_folder

MOST_BYTES = 10 << 20
"""Bytes of one file: a day of a busy server, and still a file an editor opens."""

KEPT = 5
"""Files before the present one: with it, 60 MB at most."""

LONGEST = 20_000
"""Characters of one record: a traceback fits, an agent that answers with a book does not."""


class _Lines(logging.Formatter):
    """`2026-01-31T02:00:00.123Z INFO proctor.run: …`, fit to be read and kept."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines of a record."""
        at = datetime.fromtimestamp(record.created, UTC)
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        lines = default_redactor().text(message).split("\n")
        said = "\n    ".join(line(each, LONGEST) for each in lines)[:LONGEST]
        moment = f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
        return f"{moment} {record.levelname} {record.name}: {said}"


@contextlib.contextmanager
def logging_to(
    path: Path, level: str = "info", *, most_bytes: int = MOST_BYTES, kept: int = KEPT
) -> Generator[None]:
    """Log to a file meanwhile: all there is from Proctor, of other packages what they warn of."""
    if path.is_dir():
        raise ProctorError(
            "a log is a file, and this is a folder", where=str(path), hint="name a file in it"
        )
    handler = RotatingFileHandler(
        with_folder(path),
        maxBytes=most_bytes,
        backupCount=kept,
        encoding="utf-8",
        errors="backslashreplace",
        delay=True,  # whoever only checks a command line leaves no file behind
    )
    handler.setFormatter(_Lines())
    handler.setLevel(level.upper())
    root, ours = logging.getLogger(), logging.getLogger("proctor")
    before = (root.level, ours.level)
    console = None if root.handlers else _console()
    added = [each for each in (handler, console) if each is not None]
    for each in added:
        root.addHandler(each)
    wanted = logging.getLevelNamesMapping()[level.upper()]
    ours.setLevel(min(wanted, ours.level or logging.CRITICAL))
    try:
        yield
    finally:
        for each in added:
            root.removeHandler(each)
            each.close()
        root.setLevel(before[0])
        ours.setLevel(before[1])


def _console() -> logging.Handler:
    """What logging does where nobody has set it up: warnings go to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    return handler


def cut(path: Path, most_bytes: int = MOST_BYTES) -> bool:
    """Begin a file anew that another process writes, when it is too long; whether it was.

    What it held is beside it as `….1`. The writer has it open to append, so its next line goes to
    the beginning; the lines of the moment between the copy and the cut are lost.
    """
    try:
        if path.stat().st_size <= most_bytes:
            return False
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        with path.open("r+b") as file:
            file.truncate(0)
    except OSError:  # gone, or held by Windows: the next look may be better
        return False
    return True
