"""Errors a user can act on: what is wrong, where, and what to do about it.

Anything else that escapes is a bug in Proctor. One base class, so that the command line and
callers in Python can tell the two apart with a single `except`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

EXIT_PASS, EXIT_FAIL = 0, 1
"""The exit codes of what was judged: nothing that counts failed, or something did."""

EXIT_CANNOT_JUDGE = 2
"""The exit code of everything that could not be judged: configuration, usage, infrastructure."""


class ProctorError(Exception):
    """Something the user can put right.

    `where` is a place a person can go to (`file:line:column`, a span id, an option), `hint` is
    what to do there. `str(error)` is one line: the place, when known, and the message. Python
    shows the hint below a traceback, as a note.
    """

    exit_code = EXIT_CANNOT_JUDGE

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        exit_code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


def describe_error(error: BaseException) -> str:
    """An error in one line, for records that keep nothing else of it.

    What the user can put right says how; of anything else, the line of the user's own code that
    it came through is added, since `KeyError: 'price'` alone leads nowhere.
    """
    said = str(error) or repr(error)
    if isinstance(error, ProctorError):
        return f"{said} ({error.hint})" if error.hint else said
    place = _raised_at(error)
    return f"{said} (at {place})" if place else said


def _raised_at(error: BaseException) -> str | None:
    """`file:line` of the innermost frame that is neither ours nor an installed package's."""
    import os
    from pathlib import Path

    others = (f"{Path(__file__).parent}{os.sep}", f"{Path(os.__file__).parent}{os.sep}", "<")
    found: str | None = None
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not file.startswith(others) and "site-packages" not in file:
            module = str(step.tb_frame.f_globals.get("__name__", ""))
            found = f"{_as_imported(Path(file), module)}:{step.tb_lineno}"
        step = step.tb_next
    return found


def _as_imported(file: "Path", module: str) -> str:
    """`shop/agent.py` of the module `shop.agent`: the same wherever the project lies."""
    depth = module.count(".") + (2 if file.name == "__init__.py" else 1)
    return "/".join(file.parts[-depth:])


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, however deep: one reason is enough for a person."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first  # pyright: ignore[reportUnknownArgumentType]


def did_you_mean(word: str, known: "Iterable[str]") -> str | None:
    """The hint for an unknown word: its nearest known neighbours, or None when none is near.

    Case is ignored, because a wrong case is the commonest slip of all.
    """
    import difflib

    by_folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(word.casefold(), by_folded, n=3, cutoff=0.6)
    if not near:
        return None
    return f"did you mean {' or '.join(repr(by_folded[name]) for name in near)}?"


def hint_among(word: str, known: "Collection[str]") -> str:
    """The hint for a word that is none of the known ones: those near it, or else all of them."""
    return did_you_mean(word, known) or f"there are {', '.join(known) or 'none'}"


def refuse_unknown(given: "Iterable[object]", known: "Collection[str]", where: str) -> None:
    """Refuse the first key that nobody reads: a typo must not become a default."""
    for key in given:
        if key not in known:
            raise ProctorError(
                f"unknown key {key!r}", where=where, hint=hint_among(str(key), known)
            )
