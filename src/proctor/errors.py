"""Errors a user can act on: what is wrong, where, and what to do about it.

Anything else that escapes is a bug in Proctor. One base class, so that the command line and
callers in Python can tell the two apart with a single `except`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

EXIT_PASS, EXIT_FAIL = 0, 1
"""Exit codes of a verdict: nothing that counts failed, or something did."""

EXIT_CANNOT_JUDGE = 2
"""Exit code without a verdict: errors of configuration, usage or infrastructure."""


class ProctorError(Exception):
    """An error that the user can fix.

    `where` is its place (`file:line:column`, a span id, an option), `hint` says how to fix it.
    `str(error)` is one line: the place, when known, and the message. Python shows the hint below a
    traceback, as a note.

        raise ProctorError("trials must be at least 1", where="suite.yaml:3:9", hint="write 1")
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
    """Return an error in one line, for records that store nothing else of it.

    An error that the user can fix has its hint; any other has the line of the user's own code that
    it came through, because `KeyError: 'price'` alone does not help.
    """
    message = str(error) or repr(error)
    if isinstance(error, ProctorError):
        return f"{message} ({error.hint})" if error.hint else message
    place = _raised_at(error)
    return f"{message} (at {place})" if place else message


def _raised_at(error: BaseException) -> str | None:
    """Return `file:line` of the innermost frame in neither Proctor nor an installed package."""
    import os
    from pathlib import Path

    # Our files, those of the standard library, and code that has no file (`<string>`).
    others = (f"{Path(__file__).parent}{os.sep}", f"{Path(os.__file__).parent}{os.sep}", "<")
    found: str | None = None
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not file.startswith(others) and "site-packages" not in file:
            module = str(step.tb_frame.f_globals.get("__name__", ""))
            depth = module.count(".") + (2 if file.endswith("__init__.py") else 1)
            # `shop/agent.py` for the module `shop.agent`: the same on every machine.
            found = f"{'/'.join(Path(file).parts[-depth:])}:{step.tb_lineno}"
        step = step.tb_next
    return found


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, at any depth: one reason is enough for a message."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first  # pyright: ignore[reportUnknownArgumentType]


def did_you_mean(word: str, known: "Iterable[str]") -> str | None:
    """Return the hint for an unknown word: the known words like it, or None if there are none.

    Case is ignored, because a wrong case is the most common mistake.
    """
    import difflib  # here, because this module is always loaded and errors are rare

    by_folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(word.casefold(), by_folded, n=3, cutoff=0.6)
    if not near:
        return None
    return f"did you mean {' or '.join(repr(by_folded[name]) for name in near)}?"


def hint_among(word: str, known: "Collection[str]") -> str:
    """Return the hint for an unknown word: the known words like it, or else all of them."""
    return did_you_mean(word, known) or f"known: {', '.join(known) or 'none'}"


def refuse_unknown(given: "Iterable[object]", known: "Collection[str]", where: str) -> None:
    """Raise an error for the first unknown key: a typo must not become a default."""
    for key in given:
        if key not in known:
            raise ProctorError(
                f"unknown key {key!r}", where=where, hint=hint_among(str(key), known)
            )
