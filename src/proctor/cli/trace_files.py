"""What every command about traces takes: files of any format, whether to redact, what to write.

What is wrong with a file goes to standard error, one line each; the good traces are still worked
on, and the exit code is 2 when a file gave nothing.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from proctor.errors import EXIT_CANNOT_JUDGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proctor.trace import Trace
    from proctor.trace.assemble import TraceProblem

F = TypeVar("F", bound=Callable[..., Any])


def files_argument(command: F) -> F:
    """Files, folders, globs and `-`."""
    return click.argument("files", nargs=-1, required=True, metavar="FILE...")(command)


def redaction_option(command: F) -> F:
    """Whether secrets stay as they are."""
    return click.option("--no-redact", is_flag=True, help="Leave secrets as they are.")(command)


def json_option(command: F) -> F:
    """For programs."""
    option = click.option(
        "--json", "as_json", is_flag=True, help="One JSON document on standard output."
    )
    return option(command)


class Loaded:
    """Traces as they are read, file by file; problems are told at once and counted."""

    def __init__(self, files: tuple[str, ...]) -> None:
        from proctor.trace.load import iter_traces

        self.problems: list[TraceProblem] = []
        self.file = ""
        """The file that the last trace came from."""
        self.several = len(files) > 1 or not all(f == "-" or Path(f).is_file() for f in files)
        """Whether a trace may be in one of several files, so that it must be said in which."""
        self._traces = iter_traces(files, self._problem, on_file=self._begun)
        self._first: list[Trace] = []

    def _begun(self, file: str) -> None:
        self.file = file

    def _problem(self, problem: "TraceProblem") -> None:
        """Say on standard error what is wrong, and what to do where no file before said it."""
        from proctor.sanitize import line

        level = "error" if problem.fatal else "warning"
        click.echo(f"{level}: {line(str(problem), 500)}", err=True)
        if problem.hint and all(problem.hint != before.hint for before in self.problems):
            click.echo(f"hint: {line(problem.hint, 1000)}", err=True)
        self.problems.append(problem)

    def where(self) -> str:
        """The file of the last trace as people are shown it; empty where only one was named."""
        from proctor.sanitize import line

        return line(self.file, 400) if self.several and self.file else ""

    def __iter__(self) -> "Iterator[Trace]":
        yield from self._first
        yield from self._traces

    def begin(self) -> bool:
        """Whether there is a trace at all; reads up to the first."""
        self._first = [found for found in [next(self._traces, None)] if found is not None]
        return bool(self._first)

    def leave(self, code: int = 0) -> None:
        """End the command: 2 when some file gave nothing, else the given code."""
        if any(problem.fatal for problem in self.problems):
            code = EXIT_CANNOT_JUDGE
        if code:
            raise click.exceptions.Exit(code)

    def priced_and_clean(self, *, redact: bool) -> "Iterator[Trace]":
        """The traces as people are shown them: priced as trials are, and without secrets."""
        from proctor.llm.prices import price_trace
        from proctor.spec import load_configuration
        from proctor.trace.redact import redactor_for

        prices = load_configuration().settings.price_table()
        redactor = redactor_for(redact)
        for trace in self:
            price_trace(trace, prices)
            yield redactor.trace(trace) if redactor else trace


def write_json(key: str, items: "Iterable[Any]", loaded: Loaded) -> None:
    """One document: the items as they come, then what was wrong."""
    from proctor.trace.render import document

    for piece in document(key, items, loaded.problems):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
