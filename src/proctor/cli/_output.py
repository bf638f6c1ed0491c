"""What commands print: colour for terminals, and standard output reserved for results."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from proctor.cli._command import colour_choice
from proctor.errors import ProctorError
from proctor.user_dirs import with_folder

if TYPE_CHECKING:
    from proctor.trace.render import TreeLine

# File descriptors, which child processes inherit; `sys.stdout` may be something else.
STDOUT, STDERR = 1, 2

_KIND_COLOURS = {
    "agent": "magenta",
    "planning": "magenta",
    "llm": "blue",
    "tool": "cyan",
    "retrieval": "green",
    "handoff": "yellow",
    "guardrail": "yellow",
}


def wants_colour() -> bool:
    """Return whether standard output gets colour: as chosen, else where it is a terminal."""
    chosen = colour_choice(os.environ)
    return sys.stdout.isatty() if chosen is None else chosen


def echo_json(document: Any) -> None:
    """Print one JSON document; structs become objects, and paths and dates text."""
    import json

    import msgspec

    # Not msgspec's own encoder: it refuses lone surrogates, which agents do write.
    click.echo(json.dumps(msgspec.to_builtins(document, enc_hook=str), indent=2))


@contextlib.contextmanager
def appending(path: Path) -> Generator[Callable[[bytes], None]]:
    """Yield a function that appends a line to a file, whole and flushed."""
    try:
        file = with_folder(path).open("ab")
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(path)) from error

    def append(line: bytes) -> None:
        file.write(line + b"\n")
        file.flush()

    with file:
        yield append


def echo_report(text: str) -> None:
    """Print a report, in colour where the terminal allows it."""
    click.echo(text, color=wants_colour())


def coloured(line: TreeLine) -> str:
    """Colour a line of a trace tree. Colour only repeats what the text says."""
    failed = bool(line.error)
    name = click.style(line.name, bold=True, fg="red" if failed else None)
    kind = click.style(line.kind, fg=_KIND_COLOURS.get(line.kind)) + " " if line.kind else ""
    parts = (
        f"{click.style(line.indent, dim=True)}{line.mark} {kind}{name}",
        click.style(line.detail, dim=True) if line.detail else "",
        click.style(line.error, fg="red") if line.error else "",
    )
    return "  ".join(part for part in parts if part)


@contextlib.contextmanager
def stdout_reserved() -> Generator[None]:
    """Redirect everything that is printed inside the block to standard error.

    An agent that prints would break the one document on standard output. Python's stream and the
    file descriptor are both redirected, because child processes inherit only the descriptor.
    Lines of several threads stay whole, so that each event of a run has a line of its own.
    """
    stream = sys.stdout
    # What was printed before belongs to standard output; it must not move with the descriptor.
    stream.flush()
    lines = WholeLines(sys.stderr)
    aside = cast("TextIO", lines)
    with contextlib.redirect_stdout(aside), contextlib.redirect_stderr(aside):
        try:
            try:
                is_descriptor = os.path.sameopenfile(stream.fileno(), STDOUT)
            except (AttributeError, OSError, ValueError):
                is_descriptor = False
            if not is_descriptor:  # a test or a notebook has replaced the stream
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
        finally:
            lines.end()


class WholeLines:
    """A stream that writes whole lines only."""

    # `print` writes its line break separately: another thread's line could come between.

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._unfinished: dict[int, str] = {}
        """By thread: a line that has no end yet."""

    def write(self, text: str) -> int:
        """Buffer what this thread wrote until its line ends."""
        thread = threading.get_ident()
        whole, newline, rest = (self._unfinished.pop(thread, "") + text).rpartition("\n")
        if rest:
            self._unfinished[thread] = rest
        if newline:
            self._out.write(whole + newline)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the lines one after the other."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write the unfinished line of this thread, too."""
        self._out.write(self._unfinished.pop(threading.get_ident(), ""))
        self._out.flush()

    def end(self) -> None:
        """Write the unfinished lines of all threads, so that nothing is lost."""
        for thread in list(self._unfinished):
            self._out.write(self._unfinished.pop(thread, ""))
        self._out.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)
