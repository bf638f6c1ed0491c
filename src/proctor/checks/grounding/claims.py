"""What an answer claims that can be looked up: numbers, days, names, quotations, sentences.

Promise: linear in the length of the answer, and shy: what may well be no claim (list markers,
citation marks, headings, courtesies, questions) is left out rather than held against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from proctor.checks.grounding.quantities import (
    CALENDAR,
    Date,
    Quantity,
    dates,
    quantities,
    rounded_to,
)
from proctor.checks.grounding.words import STOP_WORDS, content_words, folded, words_of

ClaimKind = Literal["number", "date", "name", "quote", "sentence"]

# A sentence of fewer meaningful words says too little to be found or missed.
MIN_SENTENCE_WORDS = 3


class Candidate(NamedTuple):
    """A claim before it is looked up: its place in the answer, and what to look for.

    `words` are folded words in order (names, quotations) or stems (sentences); `slack` is how
    far off a number may be; `head_optional` marks a name whose first word opens a sentence and
    may be an ordinary word.
    """

    kind: ClaimKind
    start: int
    end: int
    words: tuple[str, ...] = ()
    quantity: Quantity | None = None
    date: Date | None = None
    slack: float = 0.0
    head_optional: bool = False


def claims_of(answer: str) -> list[Candidate]:
    """Every claim of an answer, in order; the same thing said twice is one claim."""
    text = _without_markup(answer)
    found = sorted([*_numbers(text), *_quotes(text), *_names(text), *_sentences(text)], key=_place)
    seen: dict[tuple[object, ...], Candidate] = {}
    for claim in found:
        seen.setdefault(_identity(claim), claim)
    return list(seen.values())


def _place(claim: Candidate) -> tuple[int, int, str]:
    return claim.start, claim.end, claim.kind


def _identity(claim: Candidate) -> tuple[object, ...]:
    if claim.quantity is not None:
        return claim.kind, claim.quantity.value, claim.quantity.dimension
    if claim.date is not None:
        return claim.kind, *claim.date[2:]
    return claim.kind, claim.words


def _without_markup(answer: str) -> str:
    """The answer with Markdown's marks blanked out, every other character in its place."""
    return _MARKUP.sub(lambda mark: " " * len(mark.group()), answer)


# Emphasis, the rules of tables, link targets, terminal escapes. Bounded, so that no text makes
# it slow.
_MARKUP = re.compile(
    r"[*`]+|^[-:| \t]+$|\]\([^()\s]{0,2000}\)|https?://[^\s)>\]]+|\x1b\[[\d;]{0,20}[A-Za-z]",
    re.MULTILINE,
)


# -- numbers and days -----------------------------------------------------------------------

# Numbers that count the answer's own parts: list markers, citation marks, headings.
_MARKER = re.compile(r"^[ \t]*\d+[.)](?=\s)|\[\d+(?:, ?\d+)*\]|^#+ .*$", re.MULTILINE)


def _numbers(text: str) -> Iterator[Candidate]:
    days = list(dates(text))
    for day in days:
        yield Candidate("date", day.start, day.end, date=day)
    skipped = [(day.start, day.end) for day in days]
    skipped += [found.span() for found in _MARKER.finditer(text)]
    covered = Spans(skipped)
    for number in quantities(text):
        if not covered.holds(number.start):
            slack = rounded_to(text, number)
            yield Candidate("number", number.start, number.end, quantity=number, slack=slack)


class Spans:
    """Stretches of a text, asked in rising order whether they hold a place."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._left = sorted(spans, reverse=True)

    def holds(self, place: int) -> bool:
        """Whether a stretch holds `place`, which is no smaller than the one asked before."""
        while self._left and self._left[-1][1] <= place:
            self._left.pop()
        return bool(self._left) and self._left[-1][0] <= place


# -- quotations -----------------------------------------------------------------------------

# Straight quotes only around something that starts and ends like text: 5" is an inch.
_QUOTE = re.compile(
    r"“([^“”\n]{1,1000})”|«([^«»\n]{1,1000})»|(?<!\w)\"(?=\S)([^\"\n]{1,1000})(?<=\S)\"(?!\w)"
)
_ELLIPSIS = re.compile(r"\.\.\.|…|\[[^\]]*\]")


def _quotes(text: str) -> Iterator[Candidate]:
    for found in _QUOTE.finditer(text):
        group = found.lastindex or 0
        start = found.start(group)
        # A quotation with something left out is several quotations.
        for part in _ELLIPSIS.split(found.group(group)):
            words = tuple(words_of(part))
            if len(words) > 1 or len("".join(words)) > 3:
                at = text.index(part, start)
                yield Candidate("quote", at, at + len(part), words)


# -- names ----------------------------------------------------------------------------------

_TOKEN = re.compile(r"[^\W_]+(?:[.'’&-][^\W_]+)*")
# What may stand between two words of one name: "Bank of the West".
_JOINT = re.compile(r"(?: (?:of|de|del|der|di|da|la|le|van|von|the|&)){0,2} ")
_LONGEST_JOINT = 10
_OPENS_SENTENCE = re.compile(r"(?:\A|[.!?:;\n“\"«(•|>])[\s\"“«(–—-]*\Z")
_TITLES = frozenset("mr mrs ms dr prof".split())


def _names(text: str) -> Iterator[Candidate]:
    headings = Spans([found.span() for found in _HEADING.finditer(text)])
    counted = Spans([(number.start, number.end) for number in quantities(text)])
    group: list[re.Match[str]] = []
    for token in _TOKEN.finditer(text):
        start = token.start()
        if not _is_named(token.group()) or headings.holds(start) or counted.holds(start):
            continue
        gap = start - group[-1].end() if group else 0
        joined = gap <= _LONGEST_JOINT and _JOINT.fullmatch(text, start - gap, start)
        if group and _bare(group[-1].group()) != group[-1].group():
            joined = None  # "Norway's Oslo" is two names
        if group and not joined:
            yield from _name(text, group)
            group = []
        group.append(token)
    yield from _name(text, group)


# A line that titles what follows, or a label before its value ("Total Price: …").
_HEADING = re.compile(r"^[ \t]*(?:#+ .*$|(?:[-•] *)?[^\W\d][^:\n.!?]{0,40}:(?=\s|$))", re.MULTILINE)


def _is_named(word: str) -> bool:
    """Whether a word is written like a name: a capital first, or letters mixed with digits."""
    if word[0].isupper():
        return len(word) > 1 or not word.isascii()
    letters = sum(letter.isalpha() for letter in word)
    return 1 < letters < len(word) and any(c.isdigit() for c in word) and word[0].isalpha()


def _name(text: str, group: list[re.Match[str]]) -> Iterator[Candidate]:
    """The name a group of capitalised words makes, if it makes one."""
    first = len(group)
    for place, token in enumerate(group):
        if folded(token.group()) not in STOP_WORDS and folded(token.group()) not in _TITLES:
            first = place
            break
    named = group[first:]
    words = [word for token in named for word in words_of(_bare(token.group()))]
    if not words or all(word in CALENDAR for word in words):
        return
    before = max(0, named[0].start() - 8)
    opens = first == 0 and bool(_OPENS_SENTENCE.search(text[before : named[0].start()]))
    whole = named[0].group()
    if opens and len(named) == 1 and not (whole.isupper() or any(c.isdigit() for c in whole)):
        return  # any word may open a sentence
    start, end = named[0].start(), named[-1].start() + len(_bare(named[-1].group()))
    yield Candidate("name", start, end, tuple(words), head_optional=opens and len(named) > 1)


def _bare(word: str) -> str:
    return word.removesuffix("'s").removesuffix("’s")


# -- sentences ------------------------------------------------------------------------------

_BREAK = re.compile(r"(?<=[.!?])[\"”»)]?\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|st|e\.g|i\.e|etc|vs|approx|no|inc|ltd)|\b[A-Z])\.\Z", re.I
)
# Said to the user rather than about the world; a refusal claims nothing either.
_COURTESY = re.compile(
    r"\W*(?:let me know|i hope|feel free|please|would you|if you(?:'d| would| need| have| want)"
    r"|(?:i'm |i am )?(?:sorry|glad|happy)|thank|sure|of course|certainly|here (?:is|are)|here's"
    r"|(?:unfortunately,? )?(?:i|we) (?:could not|couldn't|cannot|can't|did not|didn't|do not|don't"
    r"|was not|wasn't|was unable|am unable|have no)|there (?:is|was) no information)\b",
    re.IGNORECASE,
)


def _sentences(text: str) -> Iterator[Candidate]:
    # Figures and days are claims of their own, and are written in too many ways to be words.
    spans = [(n.start, n.end) for n in quantities(text)] + [(d.start, d.end) for d in dates(text)]
    wordy = _blanked(text, spans)
    for start, end in _sentence_spans(text):
        sentence = text[start:end].replace("’", "'")
        if (
            sentence.endswith(("?", ":", "\uff1f"))
            or _COURTESY.match(sentence)
            or sentence[0] == "#"
        ):
            continue
        words = content_words(wordy[start:end])
        if len(words) >= MIN_SENTENCE_WORDS:
            yield Candidate("sentence", start, end, tuple(words))


def _blanked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    parts: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if end > done:
            parts += [text[done : max(start, done)], " " * (end - max(start, done))]
            done = end
    return "".join([*parts, text[done:]])


def _sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for found in _BREAK.finditer(text):
        if "\n" not in found.group() and _ABBREVIATION.search(
            text[max(0, found.start() - 8) : found.start()]
        ):
            continue
        yield from _trimmed(text, start, found.end())
        start = found.end()
    yield from _trimmed(text, start, len(text))


def _trimmed(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    inner = text[start:end]
    left = len(inner) - len(inner.lstrip(" \t\r\n-•>|"))
    right = len(inner.rstrip())
    if left < right:
        yield start + left, start + right
