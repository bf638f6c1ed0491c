"""What is told of an error that nobody foresaw: a report on disk, or everything with `--debug`.

A report holds the traceback, the versions and the command line, redacted; it stays on this
machine. Where it cannot be written the one line on the terminal has to do.
"""

from __future__ import annotations

import logging
import os
import platform
import shlex
import sys
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

KEPT_REPORTS = 20
"""Reports that stay; older ones are taken away, so that a loop of failing jobs fills no disk."""


class _Redacted(logging.Formatter):
    """Lines of the log without what the environment and its looks say is secret."""

    def format(self, record: logging.LogRecord) -> str:
        from proctor.trace.redact import default_redactor

        return default_redactor().text(super().format(record))


def start_debug_log(args: Sequence[str]) -> logging.Logger:
    """Show on standard error what Proctor does; of other packages only what they find worth it.

    Clients of HTTP would write every header at their lowest level, keys among them.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Redacted("debug: %(relativeCreated)6.0f ms %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logger = logging.getLogger("proctor")
    logger.setLevel(logging.DEBUG)
    logger.debug("%s", _versions())
    logger.debug("in %s: proctor %s", Path.cwd(), shlex.join(args))
    return logger


def keep_report(error: BaseException, args: Sequence[str]) -> Path | None:
    """Write what happened to a file of the user's own; None where that is not possible."""
    from proctor.places import user_folder
    from proctor.trace.redact import default_redactor

    now = datetime.now(UTC)
    text = "\n".join(
        (
            f"{now.isoformat(timespec='seconds')}  {_versions()}",
            f"proctor {shlex.join(args)}",
            "",
            "".join(traceback.format_exception(error)),
        )
    )
    folder = user_folder("state", "errors")
    path = folder / f"{now:%Y-%m-%d_%H%M%S}_{os.getpid()}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(default_redactor().text(text), encoding="utf-8", errors="backslashreplace")
        for old in sorted(folder.glob("*.txt"))[:-KEPT_REPORTS]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def _versions() -> str:
    from proctor import __version__

    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"Proctor {__version__}, {python}, {platform.platform(terse=True)}"
