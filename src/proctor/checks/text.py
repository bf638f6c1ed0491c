"""Comparing answers with texts and patterns.

Promise: two texts that a reader sees as the same compare as the same (Unicode NFC, one kind of
line end, case ignored unless asked), and a pattern that never ends is really stopped.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Any

from proctor.errors import ProctorError

PATTERN_SECONDS = 1.0
"""Time for one pattern on one answer: a sound pattern reads 10 MB in a fraction of it."""

SHOWN_CHARS = 200
"""How much of a text stands in a reason; `expected` and `actual` hold it whole."""


class PatternTimeout(Exception):
    """A pattern backtracked for too long to say whether it matches."""

    def __init__(self, pattern: str, text: str) -> None:
        super().__init__(
            f"the pattern {shown(pattern)} ran longer than {PATTERN_SECONDS:g} s on a text of "
            f"{len(text):,} characters: it backtracks without end; avoid nested repeats such "
            "as (a+)+"
        )


def normalised(text: str, *, case_sensitive: bool = False) -> str:
    """The form in which texts are compared: NFC, `\\n` line ends, case folded unless asked."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if case_sensitive:
        return text
    folded = text.casefold()
    return folded if folded.isascii() else unicodedata.normalize("NFC", folded)


@lru_cache(maxsize=256)
def _compiled(pattern: str, case_sensitive: bool) -> Any:
    import regex  # the standard library's cannot be stopped

    try:
        return regex.compile(pattern, 0 if case_sensitive else regex.IGNORECASE)
    except regex.error as error:
        raise ProctorError(f"{shown(pattern)} is not a regular expression: {error}") from None
    except (RecursionError, OverflowError, MemoryError):
        raise ProctorError(f"{shown(pattern)} is too large for a regular expression") from None


def check_pattern(pattern: str) -> None:
    """Refuse what is not a regular expression."""
    _compiled(pattern, False)


def search(pattern: str, text: str, *, case_sensitive: bool = False) -> str | None:
    """The first match of a pattern anywhere in a text; `PatternTimeout` when it never ends."""
    try:
        match = _compiled(pattern, case_sensitive).search(text, timeout=PATTERN_SECONDS)
    except TimeoutError:
        raise PatternTimeout(pattern, text) from None
    return None if match is None else str(match.group())


def shown(text: str, limit: int = SHOWN_CHARS) -> str:
    """A text in quotes on one line, its middle cut out when it is long."""
    if len(text) > limit:
        half = limit // 2
        cut = len(text) - 2 * half
        return f"{text[:half]!r} … ({cut:,} characters) … {text[-half:]!r}"
    return repr(text)
