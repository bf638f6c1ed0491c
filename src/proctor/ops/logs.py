"""Log files of bounded size.

Guarantees: a file has at most `MAX_BYTES`, and `BACKUPS` older ones stay beside it, however much is
logged. A record is one line (a traceback is indented below it), with the time in UTC, and without
secrets and control characters. Trade-off: a log file must have only one writing process.
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

MAX_BYTES = 10 << 20
"""Bytes of one file: a day of a busy server, and still a file that an editor opens."""

BACKUPS = 5
"""Older files beside the current one: with it, 60 MB at most."""

MAX_RECORD = 20_000
"""Characters of one record: enough for a traceback, not for an agent that answers with a book."""


class _LineFormatter(logging.Formatter):
    """Formats as `2026-01-31T02:00:00.123Z INFO proctor.run: …`, sanitised and redacted."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        # Redacted before it is split: a private key spans several lines.
        lines = default_redactor().text(message).split("\n")
        text = "\n    ".join(line(each, MAX_RECORD) for each in lines)[:MAX_RECORD]
        moment = f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
        return f"{moment} {record.levelname} {record.name}: {text}"


@contextlib.contextmanager
def logging_to(
    path: Path, level: str = "info", *, max_bytes: int = MAX_BYTES, backups: int = BACKUPS
) -> Generator[None]:
    """Log to a file inside the block: Proctor from `level` on, other packages from WARNING on."""
    if path.is_dir():
        raise ProctorError(
            "the log file is a folder", where=str(path), hint="name a file in this folder"
        )
    handler = RotatingFileHandler(
        with_folder(path),
        maxBytes=max_bytes,
        backupCount=backups,
        encoding="utf-8",
        errors="backslashreplace",
        delay=True,  # a command that fails on its arguments leaves no empty file behind
    )
    handler.setFormatter(_LineFormatter())
    handler.setLevel(level.upper())
    handlers: list[logging.Handler] = [handler]
    root, ours = logging.getLogger(), logging.getLogger("proctor")
    if not root.handlers:
        # Without any handler, Python prints warnings to standard error. Ours would turn that off.
        console = logging.StreamHandler(sys.stderr)
        console.setLevel(logging.WARNING)
        handlers.append(console)
    levels_before = (root.level, ours.level)
    for each in handlers:
        root.addHandler(each)
    # Never raise the level: `--debug` may have set a lower one.
    wanted = logging.getLevelNamesMapping()[level.upper()]
    ours.setLevel(min(wanted, ours.level or logging.CRITICAL))
    try:
        yield
    finally:
        for each in handlers:
            root.removeHandler(each)
            each.close()
        root.setLevel(levels_before[0])
        ours.setLevel(levels_before[1])


def truncate_log(path: Path, max_bytes: int = MAX_BYTES) -> bool:
    """Empty a file that another process writes, if it is too long; return whether it was.

    Its content is copied to `….1` first. The writer has the file open for appending, so its next
    line goes to the beginning. Lines written between the copy and the cut are lost.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        with path.open("r+b") as file:
            file.truncate(0)
    except OSError:  # deleted, or locked by Windows: the next attempt may succeed
        return False
    return True
