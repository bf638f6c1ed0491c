"""Standard output kept for reports while other people's code runs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Generator, Iterable
from typing import Any, TextIO, cast

STDOUT, STDERR = 1, 2


@contextlib.contextmanager
def stdout_kept_clean() -> Generator[None]:
    """Send whatever is printed meanwhile to standard error.

    An agent that prints would break the one document on standard output. Python's stream and the
    descriptor below it are both turned, since child processes inherit only the latter. Lines stay
    whole whoever prints at the same time, so that each event of a run has a line of its own.
    """
    stream = sys.stdout
    stream.flush()
    with _lines_kept_whole(sys.stderr):
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


@contextlib.contextmanager
def _lines_kept_whole(out: TextIO) -> Generator[None]:
    lines = WholeLines(out)
    aside = cast("TextIO", lines)
    with contextlib.redirect_stdout(aside), contextlib.redirect_stderr(aside):
        try:
            yield
        finally:
            lines.end()


class WholeLines:
    """A stream that hands on lines when they are whole: `print` writes its line break apart, and
    another thread's line could come between the two."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._begun: dict[int, str] = {}
        """By thread: a line that has no end yet."""

    def write(self, text: str) -> int:
        """Keep what this thread wrote until its line ends."""
        thread = threading.get_ident()
        whole, newline, rest = (self._begun.pop(thread, "") + text).rpartition("\n")
        if rest:
            self._begun[thread] = rest
        if newline:
            self._out.write(whole + newline)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """As `write`, one after the other."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Hand on what this thread began, too."""
        self._out.write(self._begun.pop(threading.get_ident(), ""))
        self._out.flush()

    def end(self) -> None:
        """Hand on what any thread began: nothing that was printed is lost."""
        for thread in list(self._begun):
            self._out.write(self._begun.pop(thread, ""))
        self._out.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def _is_descriptor(stream: TextIO) -> bool:
    """Whether a stream writes where the descriptor of standard output does."""
    try:
        return os.path.sameopenfile(stream.fileno(), STDOUT)
    except (AttributeError, OSError, ValueError):
        return False
