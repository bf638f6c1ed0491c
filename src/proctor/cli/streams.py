"""Standard output kept for reports while other people's code runs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from typing import TextIO

STDOUT, STDERR = 1, 2


@contextlib.contextmanager
def stdout_kept_clean() -> Generator[None]:
    """Send whatever is printed meanwhile to standard error.

    An agent that prints would break the one document on standard output. Python's stream and the
    descriptor below it are both turned, since child processes inherit only the latter.
    """
    stream = sys.stdout
    stream.flush()
    with contextlib.redirect_stdout(sys.stderr):
        if not _is_descriptor(stream):
            yield
            return
        saved = os.dup(STDOUT)
        os.dup2(STDERR, STDOUT)
        try:
            yield
        finally:
            stream.flush()
            os.dup2(saved, STDOUT)
            os.close(saved)


def _is_descriptor(stream: TextIO) -> bool:
    """Whether a stream writes where the descriptor of standard output does."""
    try:
        return os.path.sameopenfile(stream.fileno(), STDOUT)
    except (AttributeError, OSError, ValueError):
        return False
