"""Checks of the answer's text: Contains, ContainsAny, Excludes, Equals, Matches.

Two texts that a reader sees as the same compare as the same (Unicode NFC, one kind of line end,
case ignored unless `case_sensitive`), and a pattern that never ends is stopped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from proctor.checks.base import (
    Check,
    CheckContext,
    CheckResult,
    OneOrMoreTexts,
    Text,
    Texts,
    checked_by,
    failed,
    passed,
    unscored,
)
from proctor.errors import ProctorError
from proctor.formatting import and_more

PATTERN_SECONDS = 1.0
"""Time for one pattern on one answer: a sound pattern reads 10 MB in a fraction of it."""

SHOWN_CHARS = 200
"""How much of a text a reason quotes; `expected` and `actual` hold it whole."""

WHOLE_CHARS = 80
"""Up to this length a reader finds the difference of two texts without being shown the place."""

_SHOWN_TEXTS = 5
"""How many texts a reason quotes; `expected` holds them all."""


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise `ProctorError` for what is not a regular expression."""
    for pattern in patterns:
        _compiled(pattern, False)


Patterns = Annotated[Texts, checked_by(check_patterns)]
if TYPE_CHECKING:  # `Matches("a+")` and `Matches(["a+", "b+"])` are both fine
    OneOrMorePatterns = Sequence[str]
else:
    OneOrMorePatterns = Patterns


class _TextsCheck(Check):
    """A check of which texts the answer contains."""

    quick: ClassVar[bool] = True
    texts: OneOrMoreTexts = Field(kw_only=False)
    case_sensitive: bool = False

    def found_in(self, answer: str) -> list[str]:
        folded = normalised(answer, self.case_sensitive)
        return [text for text in self.texts if _normalised(text, self.case_sensitive) in folded]


class Contains(_TextsCheck):
    """All of the texts are in the answer; the score is the share that is.

    Example: `Contains("Paris")`, `Contains(["Paris", "France"], case_sensitive=True)`.
    """

    name: ClassVar[str] = "expected_in_answer"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        texts, answer = self.texts, ctx.answer
        found = self.found_in(answer)
        details: dict[str, Any] = {"expected": list(texts), "actual": answer}
        if len(found) == len(texts):
            return passed(f"the answer contains {_quoted(texts)}", **details)
        missing = [text for text in texts if text not in found]
        return failed(
            f"{subject_of(answer)} lacks {_quoted(missing)} ({len(found)} of {len(texts)} found)",
            score=len(found) / len(texts),
            **details,
        )


class ContainsAny(_TextsCheck):
    """At least one of the texts is in the answer.

    Example: `ContainsAny(["30 days", "a month"])`.
    """

    name: ClassVar[str] = "any_expected_in_answer"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        found = self.found_in(ctx.answer)
        details: dict[str, Any] = {"expected": list(self.texts), "actual": ctx.answer}
        if found:
            return passed(f"the answer contains {_quoted(found)}", **details)
        return failed(f"{subject_of(ctx.answer)} has none of {_quoted(self.texts)}", **details)


class Excludes(_TextsCheck):
    """None of the texts is in the answer.

    Example: `Excludes(["I cannot", "as an AI"])`.
    """

    name: ClassVar[str] = "not_in_answer"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        found = self.found_in(ctx.answer)
        details: dict[str, Any] = {"expected": list(self.texts), "actual": ctx.answer}
        if not found:
            return passed(f"the answer does not contain {_quoted(self.texts)}", **details)
        return failed(f"the answer contains {_quoted(found)}, which it must not", **details)


class Equals(Check):
    """The answer is the text, up to surrounding white space, line ends and (by default) case.

    Example: `Equals("42")`.
    """

    name: ClassVar[str] = "exact_match"
    quick: ClassVar[bool] = True
    text: Text = Field(kw_only=False)
    case_sensitive: bool = False

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        wanted, answer = self.text.strip(), ctx.answer.strip()
        ours = normalised(answer, self.case_sensitive).strip()
        theirs = normalised(wanted, self.case_sensitive).strip()
        details: dict[str, Any] = {"expected": self.text, "actual": ctx.answer}
        if ours == theirs:
            return passed(f"the answer is {shown(self.text)}", **details)
        if not answer:
            return failed(f"the answer is empty, expected {shown(wanted)}", **details)
        if max(len(ours), len(theirs)) <= WHOLE_CHARS:
            return failed(f"the answer is {shown(answer)}, expected {shown(wanted)}", **details)
        # Long texts are shown around the first difference.
        pairs = enumerate(zip(ours, theirs, strict=False))
        place = next((n for n, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
        around = slice(max(0, place - 20), place + 40)
        there = f"{shown(ours[around])}, expected {shown(theirs[around])}"
        return failed(f"the answer differs from character {place + 1} on: {there}", **details)


class Matches(Check):
    """Every regular expression is found somewhere in the answer; the score is the share that is.

    Example: `Matches(r"\\d+ days")`.
    """

    name: ClassVar[str] = "regex_match"
    patterns: OneOrMorePatterns = Field(kw_only=False)
    case_sensitive: bool = False

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        patterns, answer = self.patterns, ctx.answer
        details: dict[str, Any] = {"expected": list(patterns), "actual": answer}
        try:
            matches = [search(p, answer, self.case_sensitive) for p in patterns]
        # The pattern is at fault, not the agent: neither passed nor failed.
        except PatternTimeout as error:
            return unscored(str(error), **details)
        found = [match for match in matches if match is not None]
        if len(found) == len(patterns):
            return passed(f"found {_quoted(found)}", **details)
        missing = [p for p, match in zip(patterns, matches, strict=True) if match is None]
        return failed(
            f"{subject_of(answer)} has no match of {_quoted(missing)} "
            f"({len(found)} of {len(patterns)} found)",
            score=len(found) / len(patterns),
            **details,
        )


# -- comparing texts -----------------------------------------------------------------------------


def normalised(text: str, case_sensitive: bool = False) -> str:
    """Return the form in which texts are compared: NFC, `\\n` line ends, case folded."""
    # The tests spare long answers, which are mostly ASCII, a copy at each step.
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if case_sensitive:
        return text
    folded = text.casefold()
    # Folding can break NFC: `İ` becomes an `i` and a combining dot.
    return folded if folded.isascii() else unicodedata.normalize("NFC", folded)


_normalised = lru_cache(maxsize=1024)(normalised)
"""For the texts of a case, which are the same in all its trials; answers are not cached."""


class PatternTimeout(Exception):
    """A pattern backtracked for too long to say whether it matches."""

    def __init__(self, pattern: str, text: str) -> None:
        super().__init__(
            f"the pattern {shown(pattern)} ran longer than {PATTERN_SECONDS:g} s on a text of "
            f"{len(text):,} characters: it backtracks without end; avoid nested repeats such "
            "as (a+)+"
        )


# Cached: the patterns of a suite are compiled once for all trials.
@lru_cache(maxsize=256)
def _compiled(pattern: str, case_sensitive: bool) -> Any:
    import regex  # unlike `re`, it can be stopped by a timeout

    try:
        return regex.compile(pattern, 0 if case_sensitive else regex.IGNORECASE)
    except regex.error as error:
        raise ProctorError(f"{shown(pattern)} is not a regular expression: {error}") from None
    # Deeply nested groups, or repeats of huge repeats.
    except (RecursionError, OverflowError, MemoryError):
        raise ProctorError(f"{shown(pattern)} is too large for a regular expression") from None


def search(pattern: str, text: str, case_sensitive: bool = False) -> str | None:
    """Return the first match of a pattern in a text; raise `PatternTimeout` if it never ends."""
    try:
        match = _compiled(pattern, case_sensitive).search(text, timeout=PATTERN_SECONDS)
    except TimeoutError:
        raise PatternTimeout(pattern, text) from None
    return None if match is None else str(match.group())


# -- wording of reasons --------------------------------------------------------------------------


def shown(text: str, limit: int = SHOWN_CHARS) -> str:
    """Quote a text on one line, its middle cut out when it is long."""
    if len(text) > limit:
        half = limit // 2
        cut = len(text) - 2 * half
        return f"{text[:half]!r} … ({cut:,} characters) … {text[-half:]!r}"
    return repr(text)


def _quoted(texts: Sequence[str]) -> str:
    return and_more(texts, _SHOWN_TEXTS, lambda text: shown(text, 80))


def subject_of(answer: str) -> str:
    """Return the subject of a sentence about an answer, which says so when it is empty."""
    return "the answer" if answer.strip() else "the answer is empty: it"
