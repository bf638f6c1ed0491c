"""Places in files, and what is wrong there.

Promise: a problem names file, line and column, says what to do when that can be guessed, and
travels with all others of the same file, so that a user mends a suite in one go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from proctor.errors import ProctorError

MOST_NOTES = 20
"""Problems shown below a traceback: as many as are mended before the file is tried again."""


class Place(NamedTuple):
    """Somewhere a person can go to: `file:line:column`, counted from 1.

    What has no lines (an environment variable, an option) is a name alone.
    """

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in self if part is not None)


class Problem(NamedTuple):
    """One thing to put right, where it is, and (when it can be guessed) how."""

    place: Place
    message: str
    hint: str | None = None

    @property
    def file(self) -> str:
        """The file, as it was named on the way to it."""
        return self.place.file

    @property
    def line(self) -> int | None:
        """The line, from 1; None for what has no lines."""
        return self.place.line

    @property
    def column(self) -> int | None:
        """The column in characters, from 1; None for what has no lines."""
        return self.place.column

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class SpecError(ProctorError):
    """What a user wrote cannot be used; `problems` holds every reason, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted_problems(problems)
        first = self.problems[0]
        more = len(self.problems) - 1
        others = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
        see_all = f"`proctor validate {first.file}` lists them all"
        super().__init__(
            first.message + others,
            where=str(first.place),
            hint=first.hint or (see_all if more else None),
        )
        for problem in self.problems[1:MOST_NOTES]:
            self.add_note(f"{problem}\n  hint: {problem.hint}" if problem.hint else str(problem))


def sorted_problems(problems: Iterable[Problem]) -> list[Problem]:
    """In the order a reader meets them, each once: a slip in `defaults` shows in every case."""
    return sorted(
        dict.fromkeys(problems),
        key=lambda p: (p.file, p.line or 0, p.column or 0, p.message),
    )
