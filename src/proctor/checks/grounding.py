"""Grounding without a model: which claims of an answer the evidence supports.

Deterministic, linear in the evidence, and every unsupported claim is listed. It compares words and
numbers, not meaning: it finds invented figures, names, dates and quotations, and cannot see a
negation, a wrong relation between right words, or a figure that was correctly computed.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Literal, NamedTuple

from proctor.formatting import and_more
from proctor.sanitize import line

# -- claims of an answer --------------------------------------------------------------------------
# Those that can be looked up: numbers, days, names, quotes, sentences. Linear in the length of the
# answer. What may well be no claim (list markers, citation marks, headings, courtesies, questions)
# is left out rather than counted against the answer.

# -- numbers -------------------------------------------------------------------------------------
# 1,234.5, 1234.5 and 1.2345k are one number; 90 minutes and 1.5 hours one duration; 2024-03-15 and
# March 15, 2024 one day. A comma is never a decimal point, and signs are ignored: "fell by 5" means
# the same as "-5".


class Quantity(NamedTuple):
    """A number as written: its value, what it counts, and how finely it was given.

    `raw` is the figure before its unit is taken into account, `value` the figure in the base
    unit of `dimension` ("" without a unit), `step` the weight of its last written digit.
    """

    start: int
    end: int
    raw: float
    value: float
    dimension: str
    step: float


class Date(NamedTuple):
    """A day, with its year when that was given."""

    start: int
    end: int
    year: int | None
    month: int
    day: int


_NUMBER_FORMS = (
    # 2024-03-15
    r"(?P<year>\d{4})-\d{2}-(?P<day>\d{2})(?!\d)",
    # 14:30, 2:30 pm, 14:30:00.5
    (
        r"(?P<hour>\d{1,2}):(?P<minute>[0-5]\d)(?::\d{2}(?:\.\d+)?)?(?!\d)"
        r"(?:[ \u202f]?(?P<half>[APap])\.?[Mm]\b)?"
    ),
    # 2 pm
    r"(?P<oclock>\d{1,2})[ \u202f]?(?P<noon>[APap])\.?[Mm]\b",
    # 1,234.5, and a magnitude or a unit, attached or one space away, then a unit after that
    (
        r"(?P<figure>(?:\d{1,3}(?:[,_'\u2019\u00a0\u202f]\d{3})+|\d{1,18})(?:\.\d{1,18})?)(?![\d_])"
        r"(?:[ \u00a0\u202f-]?(?P<first>%|°\s?[CFcf]?|[A-Za-z\u00b5]{1,12})"
        r"(?:[ \u00a0-]?(?P<second>[A-Za-z]{1,12}))?)?"
    ),
)
# Not inside a word or an identifier, nor the tail of another number; an ISO time follows a T.
NUMBER = re.compile(rf"(?=\d)(?:(?<![\w.])|(?<=\dT))(?:{'|'.join(_NUMBER_FORMS)})")
# The name a value was given: `duration_minutes": 90`, `price_usd=12`.
_LABEL = re.compile(r"(?<![A-Za-z])([A-Za-z]{2,12})[\"']?[ ]?[:=][ ]?[\"']?\Z")
_LABEL_REACH = 20
_CURRENCIES = {"$": "usd", "€": "eur", "£": "gbp", "¥": "jpy", "₹": "inr"}
_MAGNITUDES = {
    "k": 1e3, "K": 1e3, "thousand": 1e3, "M": 1e6, "mn": 1e6, "million": 1e6, "millions": 1e6,
    "B": 1e9, "bn": 1e9, "billion": 1e9, "billions": 1e9, "tn": 1e12, "trillion": 1e12,
}  # fmt: skip
_APPROXIMATELY = re.compile(
    r"(?:about|around|roughly|approximately|approx\.?|nearly|almost|over|circa|some|~|≈)\s*\W?$",
    re.I,
)

# Dimensions of a time of day (in minutes) and of the day of a month in a date. Neither is evidence
# for a count.
CLOCK, DAY = "clock", "day"

# Spelling → (dimension, size of one in the base unit of that dimension).
_UNITS: dict[str, tuple[str, float]] = {}
for _dimension, _table in {
    "percent": {"%": 1, "percent": 1, "pct": 1},
    "length": {
        "mm": 1e-3, "cm": 1e-2, "m": 1, "meter": 1, "meters": 1, "metre": 1, "metres": 1,
        "km": 1e3, "kilometer": 1e3, "kilometers": 1e3, "kilometre": 1e3, "kilometres": 1e3,
        "mile": 1609.344, "miles": 1609.344, "mi": 1609.344, "ft": 0.3048, "feet": 0.3048,
    },
    "mass": {"mg": 1e-6, "g": 1e-3, "gram": 1e-3, "grams": 1e-3, "kg": 1, "lb": 0.45359237,
             "lbs": 0.45359237, "pounds": 0.45359237, "tonnes": 1e3, "tonne": 1e3},
    "time": {
        "ns": 1e-9, "\u00b5s": 1e-6, "us": 1e-6, "ms": 1e-3, "millisecond": 1e-3,
        "milliseconds": 1e-3, "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
        "min": 60, "mins": 60, "minute": 60, "minutes": 60, "h": 3600, "hr": 3600, "hrs": 3600,
        "hour": 3600, "hours": 3600, "day": 86400, "days": 86400, "week": 604800,
        "weeks": 604800,
    },
    # Months and years have no fixed length, so each is a dimension of its own.
    "months": {"month": 1, "months": 1},
    "years": {"year": 1, "years": 1, "yr": 1, "yrs": 1},
    "ordinal": {"st": 1, "nd": 1, "rd": 1, "th": 1},
    "celsius": {"°c": 1, "celsius": 1}, "fahrenheit": {"°f": 1, "fahrenheit": 1},
    "degrees": {"°": 1, "degrees": 1},
    "bytes": {"bytes": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12},
    "usd": {"usd": 1, "dollar": 1, "dollars": 1}, "eur": {"eur": 1, "euro": 1, "euros": 1},
    "gbp": {"gbp": 1}, "jpy": {"jpy": 1, "yen": 1}, "inr": {"inr": 1, "rupees": 1},
}.items():  # fmt: skip
    _UNITS.update({spelling: (_dimension, float(size)) for spelling, size in _table.items()})

COUNTABLE = frozenset(dimension for dimension, _ in _UNITS.values()) | {""}
"""The dimensions whose figures may support a figure without a unit."""

NUMBER_WORDS = {
    word: float(value)
    for value, word in enumerate(
        """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
        fifteen sixteen seventeen eighteen nineteen twenty""".split()
    )
} | {"thirty": 30.0, "forty": 40.0, "fifty": 50.0, "sixty": 60.0, "hundred": 100.0}


def quantities(text: str) -> Iterator[Quantity]:
    """Yield every number of a text with its unit, in order."""
    for found in NUMBER.finditer(text):
        yield from read_quantities(text, found)


def read_quantities(text: str, found: re.Match[str]) -> Iterator[Quantity]:
    """Yield the quantities of a match of `NUMBER`; a date is a year and the day of a month."""
    start, end = found.span()
    if found["figure"] is not None:
        yield _read_figure(text, found)
    elif found.lastgroup == "day":
        yield Quantity(start, end, float(found["year"]), float(found["year"]), "", 1.0)
        yield Quantity(start, end, float(found["day"]), float(found["day"]), DAY, 1.0)
    else:
        half = found["half"] or found["noon"] or ""
        hour = int(found["hour"] or found["oclock"])
        hour = hour % 12 + (12 if half in "Pp" else 0) if half else hour
        minutes = float(hour * 60 + int(found["minute"] or 0))
        yield Quantity(start, end, minutes, minutes, CLOCK, 0.0)


def _read_figure(text: str, found: re.Match[str]) -> Quantity:
    """Return a figure with its magnitude and its unit, or the currency before it."""
    start, end = found.span("figure")
    whole, _, fraction = found["figure"].partition(".")
    plain = "".join(digit for digit in whole if digit.isdigit())
    raw = float(f"{plain}.{fraction}" if fraction else plain)
    step = 10.0 ** -len(fraction)
    currency = _CURRENCIES.get(text[start - 1]) if start else None
    magnitude, unit = _suffix(found, currency=currency is not None)
    if magnitude is not None:
        raw, step, end = raw * magnitude, step * magnitude, found.end("first")
    if currency is not None:
        return Quantity(start - 1, end, raw, raw, currency, step)
    if unit is not None:
        end = found.end("first" if magnitude is None else "second")
    else:
        unit = _unit(label_before(text, start))
    dimension, size = _UNITS[unit] if unit is not None else ("", 1.0)
    return Quantity(start, end, raw, raw * size, dimension, step)


def label_before(text: str, start: int) -> str:
    """Return the last word of the label before a value (`price_usd=`), or an empty text."""
    if not start or text[start - 1] not in ":= \"'":
        return ""
    found = _LABEL.search(text, max(0, start - _LABEL_REACH), start)
    return found.group(1) if found else ""


def _suffix(found: re.Match[str], *, currency: bool) -> tuple[float | None, str | None]:
    """Return the magnitude and the unit that follow a figure, if any."""
    first = found["first"]
    if not first:
        return None, None
    magnitude = _MAGNITUDES.get(first) or _MAGNITUDES.get(first.lower() if len(first) > 1 else "")
    if magnitude is None and first == "m" and currency:
        magnitude = 1e6  # "$5m"; without a currency it is metres
    # One letter is a magnitude only when attached: "5 K" may be anything.
    if magnitude is not None and (len(first) > 1 or found.start("first") == found.end("figure")):
        return magnitude, _unit(found["second"] or "")
    return None, _unit(first)


def _unit(spelling: str) -> str | None:
    lowered = "".join(spelling.lower().split())
    return lowered if lowered in _UNITS else None


def rounded_to(text: str, quantity: Quantity) -> float:
    """Return how far the exact figure may be from this one: half its last significant digit."""
    if not quantity.step:
        return 0.0
    if _APPROXIMATELY.search(text, max(0, quantity.start - 16), quantity.start):
        digits = f"{quantity.raw / quantity.step:.0f}"
        zeros = len(digits) - len(digits.rstrip("0"))
        return quantity.step * 10.0**zeros / 2
    # A small whole number is a count, and counts are not rounded.
    return quantity.step / 2 if quantity.step != 1 or quantity.raw >= 10 else 0.0


# -- dates ----------------------------------------------------------------------------------

_MONTHS = {
    name: number
    for number, names in enumerate(
        "january jan|february feb|march mar|april apr|may|june jun|july jul|august aug|"
        "september sep sept|october oct|november nov|december dec".split("|"),
        1,
    )
    for name in names.split()
}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
# Looked for only where a word or a number starts, and only at letters that start a month.
_DATE = re.compile(
    r"(?=[\djfmasondJFMASOND])(?<![^\W_])(?:"
    r"(?P<y1>\d{4})-(?P<m1>\d{2})-(?P<d1>\d{2})(?!\d)"
    # In "January 1,830.50" is a figure, and no day.
    rf"|(?P<m2>(?i:{_MONTH}))\.? (?P<d2>\d{{1,2}})(?:st|nd|rd|th)?(?!\d|,\d{{3}}(?!\d)|\.\d)"
    r"(?:,? (?P<y2>\d{4})\b)?"
    rf"|(?P<d3>\d{{1,2}})(?:st|nd|rd|th)?\.? (?P<m3>(?i:{_MONTH}))\b\.?(?:,? (?P<y3>\d{{4}})\b)?"
    r")"
)
CALENDAR = frozenset(_MONTHS) | frozenset(
    "monday tuesday wednesday thursday friday saturday sunday today tomorrow yesterday".split()
)


def dates(text: str) -> Iterator[Date]:
    """Yield every day in a text: 2024-03-15, March 15, 2024, 15 March."""
    for found in _DATE.finditer(text):
        number = "1" if found["y1"] else "2" if found["m2"] else "3"
        month_text = found[f"m{number}"].lower()
        month = int(month_text) if month_text.isdigit() else _MONTHS[month_text]
        day, year = int(found[f"d{number}"]), found[f"y{number}"]
        if 1 <= month <= 12 and 1 <= day <= 31:
            yield Date(found.start(), found.end(), int(year) if year else None, month, day)


# -- words ---------------------------------------------------------------------------------------
# Words are compared folded, stemmed and without stop words. Endings and stop words are English;
# other languages written with spaces are compared word by word without stemming, scripts without
# spaces character by character.


_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
# A run of letters and digits; scripts without spaces go character by character.
WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W_{_IDEOGRAPHS}]+")

STOP_WORDS = frozenset(
    """a about above after again all also although always am an and any are as at be because been
    before being below between both but by can cannot could did do does done down during each
    either else ever every few for from further had has have having he her here hers him his how
    however i if in into is it its itself just may maybe me might more moreover most much must my
    neither no nor not now of off on once one only or other our ours out over own per perhaps
    quite rather really s same shall she should since so some such t than that the their theirs
    them then there these they this those though thus to too under until up upon us very was we
    were what when where whether which while who whom whose why will with within without would
    yes yet you your yours yours based according additionally finally first second third next
    overall please sure sorry thanks okay unfortunately currently sum answer""".split()
)


def folded(word: str) -> str:
    """Return a word without case and accents, so that `Zürich` and `ZURICH` are equal."""
    if word.isascii():
        return word.lower()
    parts = unicodedata.normalize("NFKD", word.casefold())
    return "".join(part for part in parts if not unicodedata.combining(part))


def stem(word: str) -> str:
    """Return a folded word without its commonest English endings: `booked` matches `booking`."""
    if len(word) > 4 and word.isascii():
        if word.endswith("ies"):
            return word[:-3] + "y"
        for ending in ("ing", "ed", "es", "s"):
            rest = word[: -len(ending)]
            if word.endswith(ending) and len(rest) > 2 and not word.endswith("ss"):
                return rest.removesuffix("e") if len(rest) > 3 else rest
        return word.removesuffix("e")
    return word


def words_of(text: str) -> list[str]:
    """Return the folded words of a text, in order."""
    return [folded(found) for found in WORD.findall(text)]


def content_words(text: str) -> list[str]:
    """Return the stems of a text, each once, without stop words and bare numbers."""
    words = (w for w in words_of(text) if w not in STOP_WORDS and not w[0].isdigit())
    return list(dict.fromkeys(stem(w) for w in words if len(w) > 1 or not w.isascii()))


ClaimKind = Literal["number", "date", "name", "quote", "sentence"]

# A sentence of fewer meaningful words says too little to be found or missed.
MIN_SENTENCE_WORDS = 3


class Candidate(NamedTuple):
    """A claim before it is looked up: its place in the answer, and what to look for.

    `words` are folded words in order (names, quotations) or stems (sentences); `slack` is the
    tolerance of a number; `head_optional` marks a name whose first word opens a sentence and
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
    """Return every claim of an answer, in order; a repeated claim counts once."""
    # Blanked, not removed, so that every claim keeps its place in the answer.
    text = _MARKUP.sub(lambda mark: " " * len(mark.group()), answer)
    found = sorted(
        [*_numbers(text), *_quotes(text), *_names(text), *_sentences(text)],
        key=lambda claim: (claim.start, claim.end, claim.kind),
    )
    distinct: dict[tuple[object, ...], Candidate] = {}
    for claim in found:
        if claim.quantity is not None:
            key = (claim.kind, claim.quantity.value, claim.quantity.dimension)
        else:
            key = (claim.kind, claim.words if claim.date is None else claim.date[2:])
        distinct.setdefault(key, claim)
    return list(distinct.values())


# Emphasis, the rules of tables, link targets, terminal escapes. Repeats are bounded, so that no
# text makes it slow.
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
    """Ranges of a text, for lookups in ascending order."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._ranges = sorted(spans, reverse=True)

    def holds(self, place: int) -> bool:
        """Return whether a range holds `place`, which must not be smaller than the last one."""
        while self._ranges and self._ranges[-1][1] <= place:
            self._ranges.pop()
        return bool(self._ranges) and self._ranges[-1][0] <= place


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
# What may be between two words of one name: "Bank of the West".
_JOINT = re.compile(r"(?: (?:of|de|del|der|di|da|la|le|van|von|the|&)){0,2} ")
_LONGEST_JOINT = 10
_OPENS_SENTENCE = re.compile(r"(?:\A|[.!?:;\n“\"«(•|>])[\s\"“«(–—-]*\Z")
_NO_NAMES = STOP_WORDS | frozenset("mr mrs ms dr prof".split())


def _names(text: str) -> Iterator[Candidate]:
    headings = Spans([found.span() for found in _HEADING.finditer(text)])
    counted = Spans([(number.start, number.end) for number in quantities(text)])
    group: list[re.Match[str]] = []
    for token in _TOKEN.finditer(text):
        start = token.start()
        if not _name_like(token.group()) or headings.holds(start) or counted.holds(start):
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


def _name_like(word: str) -> bool:
    """Return whether a word is written like a name: a capital, or letters mixed with digits."""
    if word[0].isupper():
        return len(word) > 1 or not word.isascii()
    letters = sum(letter.isalpha() for letter in word)
    return 1 < letters < len(word) and any(c.isdigit() for c in word) and word[0].isalpha()


def _name(text: str, group: list[re.Match[str]]) -> Iterator[Candidate]:
    """Yield the name in a group of capitalised words, if there is one."""
    named = list(dropwhile(lambda token: folded(token.group()) in _NO_NAMES, group))
    words = [word for token in named for word in words_of(_bare(token.group()))]
    if not words or all(word in CALENDAR for word in words):
        return
    before = max(0, named[0].start() - 8)
    opens = len(named) == len(group) and bool(
        _OPENS_SENTENCE.search(text[before : named[0].start()])
    )
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
# Addressed to the user, not about facts; a refusal claims nothing either.
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
    parts: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if end > done:
            parts += [text[done : max(start, done)], " " * (end - max(start, done))]
            done = end
    words_only = "".join([*parts, text[done:]])
    for start, end in _sentence_spans(text):
        sentence = text[start:end].replace("’", "'")
        claims_nothing = sentence.endswith(("?", ":", "\uff1f")) or sentence[0] == "#"
        if claims_nothing or _COURTESY.match(sentence):
            continue
        words = content_words(words_only[start:end])
        if len(words) >= MIN_SENTENCE_WORDS:
            yield Candidate("sentence", start, end, tuple(words))


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


# -- an index of the evidence ---------------------------------------------------------------------
# For the words, numbers and days of an answer. Each text is read once, and only what the claims
# need is stored: time is linear in the evidence, memory in its relevant part. Nothing is found
# across two texts.

# A sentence is looked for in stretches of this many words, two neighbours at a time: about a
# paragraph. Over a whole long document any sentence's words would be found somewhere.
_STRETCH = 40
# Words between two texts that belong to neither, so that no stretch or phrase spans both.
_BETWEEN_TEXTS = 3 * _STRETCH
# "Smith, Jane A." is still Jane Smith: how many other words may be among those of a name.
_NAME_SLACK = 3
# Equal up to the noise of floating point: a few roundings of a conversion.
_EQUAL = 1e-14


class EvidencePosition(NamedTuple):
    """A place in the evidence: which text, and the characters in it."""

    source: int
    start: int
    end: int


class Passage(NamedTuple):
    """The stretch with the most words of a sentence, and those words."""

    found: frozenset[str]
    place: EvidencePosition


class Evidence:
    """Texts, indexed for a given list of claims."""

    def __init__(self, texts: Sequence[str], claims: Iterable[Candidate]) -> None:
        self.texts = texts
        claims = list(claims)
        exact = {w for claim in claims if claim.kind in ("name", "quote") for w in claim.words}
        stems = {w for claim in claims if claim.kind == "sentence" for w in claim.words}
        self._exact: dict[str, list[int]] = {word: [] for word in exact}
        self._stems: dict[str, list[int]] = {word: [] for word in stems}
        self._places: dict[int, EvidencePosition] = {}
        self._numbers: list[tuple[float, Quantity, int]] = []
        self._dates: dict[tuple[int | None, int, int], EvidencePosition] = {}
        kinds = {claim.kind for claim in claims}
        self._read_words(counting="number" in kinds)
        if "number" in kinds:
            self._read_numbers()
        if "date" in kinds:
            for source, text in enumerate(self.texts):
                for day in dates(text):
                    place = EvidencePosition(source, day.start, day.end)
                    self._dates.setdefault((day.year, day.month, day.day), place)
                    self._dates.setdefault((None, day.month, day.day), place)
        self._exact_sets: dict[str, set[int]] = {}
        self._by_raw = sorted(self._numbers, key=lambda entry: entry[0])
        by_value = ((entry[1].value, *entry[1:]) for entry in self._numbers)
        self._by_value = sorted(by_value, key=lambda entry: entry[0])

    # -- reading ----------------------------------------------------------------------------

    def _read_words(self, *, counting: bool) -> None:
        # Raw word → the lists that get its positions. Folding is done once per distinct word.
        known: dict[str, tuple[list[int], ...]] = {}
        ordinal = 0
        for source, text in enumerate(self.texts):
            for ordinal, found in enumerate(WORD.finditer(text), ordinal):  # noqa: B020 (counts on from text to text)
                word = found.group()
                lists = known.get(word)
                if lists is None:
                    plain = folded(word)
                    wanted = (self._exact.get(plain), self._stems.get(stem(plain)))
                    lists = known[word] = tuple(each for each in wanted if each is not None)
                    if counting and plain in NUMBER_WORDS:
                        value = NUMBER_WORDS[plain]
                        start, end = found.span()
                        spelt = Quantity(start, end, value, value, "", 1.0)
                        self._numbers.append((value, spelt, source))
                for places in lists:
                    places.append(ordinal)
                if lists:
                    self._places[ordinal] = EvidencePosition(source, found.start(), found.end())
            ordinal += _BETWEEN_TEXTS

    def _read_numbers(self) -> None:
        # Data repeats itself: a figure with the same unit and label is parsed once.
        seen: set[tuple[str, str, str]] = set()
        for source, text in enumerate(self.texts):
            for found in NUMBER.finditer(text):
                start = found.start()
                written = (found.group(), text[start - 1 : start], label_before(text, start))
                if written not in seen:
                    seen.add(written)
                    for quantity in read_quantities(text, found):
                        self._numbers.append((quantity.raw, quantity, source))

    # -- looking up -------------------------------------------------------------------------

    def phrase(self, words: Sequence[str]) -> EvidencePosition | None:
        """Find these words one after the other."""
        # The rarest word has the fewest places to try.
        rarest = min(range(len(words)), key=lambda n: len(self._exact[words[n]]))
        others = [(n - rarest, self._set(w)) for n, w in enumerate(words) if n != rarest]
        for ordinal in self._exact[words[rarest]]:
            if all(ordinal + shift in places for shift, places in others):
                first = self._places[ordinal - rarest]
                last = self._places[ordinal - rarest + len(words) - 1]
                return EvidencePosition(first.source, first.start, last.end)
        return None

    def name(self, words: Sequence[str]) -> EvidencePosition | None:
        """Find these words close together, in any order."""
        found = self.phrase(words)
        if found is not None or len(words) == 1:
            return found
        rarest = min(words, key=lambda word: len(self._exact[word]))
        reach = len(words) - 1 + _NAME_SLACK
        others = [self._set(word) for word in words if word != rarest]
        for ordinal in self._exact[rarest]:
            around = range(ordinal - reach, ordinal + reach + 1)
            if all(any(place in places for place in around) for places in others):
                return self._places[ordinal]
        return None

    def _set(self, word: str) -> set[int]:
        if word not in self._exact_sets:
            self._exact_sets[word] = set(self._exact[word])
        return self._exact_sets[word]

    def passage(self, stems: Iterable[str]) -> Passage | None:
        """Find the stretch of text with the most of these stems; None if no text has any."""
        blocks: dict[int, set[str]] = {}
        first: dict[int, int] = {}
        for word in stems:
            for ordinal in self._stems[word]:
                block = ordinal // _STRETCH
                blocks.setdefault(block, set()).add(word)
                first[block] = min(ordinal, first.get(block, ordinal))
        if not blocks:
            return None
        held = {block: words | blocks.get(block + 1, set()) for block, words in blocks.items()}
        best = max(sorted(held), key=lambda block: len(held[block]))  # the first of several
        return Passage(frozenset(held[best]), self._places[first[best]])

    def date(self, year: int | None, month: int, day: int) -> EvidencePosition | None:
        """Find a day; without a year, in any year."""
        return self._dates.get((year, month, day))

    def number(self, wanted: Quantity, slack: float) -> EvidencePosition | None:
        """Find a number that, rounded as the wanted one is, equals the wanted one.

        Units must not contradict each other: a figure without one agrees with any.
        """
        raw, dimension = wanted.raw, wanted.dimension
        if not dimension:
            return self._near(self._by_raw, raw, slack, COUNTABLE)
        if dimension == CLOCK:
            # "2:30" may mean the afternoon.
            same = self._near(self._by_raw, raw, 0.0, {CLOCK})
            return same or self._near(self._by_raw, raw + 12 * 60, 0.0, {CLOCK})
        size = wanted.value / raw if raw else 1.0
        near = self._near(self._by_value, wanted.value, slack * size, {dimension})
        if near is None:
            # Evidence without a unit, such as a cell of a table, agrees with any unit.
            near = self._near(self._by_raw, raw, slack, {"", DAY if dimension == "ordinal" else ""})
        if near is None and dimension == "percent":
            # Data often holds 0.15 where an answer says 15 %.
            near = self._near(self._by_raw, raw / 100, slack / 100, {""})
        return near

    def other_unit(self, wanted: Quantity) -> EvidencePosition | None:
        """Find the same figure with another unit."""
        return self._near(self._by_raw, wanted.raw, 0.0, COUNTABLE)

    def _near(
        self,
        numbers: Sequence[tuple[float, Quantity, int]],
        value: float,
        slack: float,
        dimensions: frozenset[str] | set[str],
    ) -> EvidencePosition | None:
        slack += abs(value) * _EQUAL
        low = bisect_left(numbers, value - slack, key=lambda entry: entry[0])
        for place in range(low, len(numbers)):
            found, quantity, source = numbers[place]
            if found > value + slack:
                return None
            if quantity.dimension in dimensions:
                return EvidencePosition(source, quantity.start, quantity.end)
        return None


# -- grounding -------------------------------------------------------------------------------------

# Half of a sentence's words within one paragraph: paraphrases keep more, inventions fewer.
DEFAULT_OVERLAP = 0.5
# More claims than any answer for a person makes. Each may have to be looked up at many places, so
# an endless answer is judged by its start, and the reason says so.
MAX_CLAIMS = 1_000
# Characters around a piece of evidence: about a line.
_SNIPPET_MARGIN = 60
_SHOWN = 3
_SHOWN_CHARS = 80


class CheckedClaim(NamedTuple):
    """One claim: its text and place, whether it is supported, and by what.

    `evidence` is the piece of text that supports it, `source` the position of that text among
    those given. `detail` says what is missing when it is not supported.
    """

    kind: ClaimKind
    text: str
    start: int
    end: int
    supported: bool
    source: int | None = None
    evidence: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Grounding:
    """How much of an answer is supported: supported claims over all claims.

    `score` is None when nothing could be checked; `reason` then says why.
    """

    score: float | None
    reason: str
    claims: tuple[CheckedClaim, ...] = ()
    method: Literal["words and numbers"] = "words and numbers"

    @property
    def unsupported(self) -> tuple[CheckedClaim, ...]:
        """The claims that the evidence does not support, in the order of the answer."""
        return tuple(claim for claim in self.claims if not claim.supported)


def ground(
    answer: str,
    evidence: Sequence[str],
    *,
    question: str = "",
    min_overlap: float = DEFAULT_OVERLAP,
) -> Grounding:
    """Look up every claim of an answer in tool outputs and retrieved documents.

    A claim that the question makes, and the evidence does not, counts neither way.
    `min_overlap` is the share of a sentence's meaningful words that one passage must hold.
    """
    if not any(text.strip() for text in evidence):
        return Grounding(None, "no evidence was given: no tool output and no document has text")
    found = claims_of(answer)
    if not found:
        return Grounding(None, "the answer makes no claim that can be looked up")
    candidates = found[:MAX_CLAIMS]
    texts = Evidence(evidence, candidates)
    asked = _Question(question, candidates)
    judged = (_judge(answer, claim, texts, asked, min_overlap) for claim in candidates)
    claims = tuple(claim for claim in judged if claim is not None)
    if not claims:
        return Grounding(None, "the answer says only what the question said")
    supported = sum(claim.supported for claim in claims)
    reason = f"{supported} of {len(claims)} claims are supported by the evidence"
    if len(found) > MAX_CLAIMS:
        reason += f" (the first {MAX_CLAIMS} of {len(found)} looked up)"
    if supported < len(claims):
        wrong = [claim for claim in claims if not claim.supported]
        listed = and_more(wrong, _SHOWN, lambda c: f'{c.kind} "{line(c.text, _SHOWN_CHARS)}"')
        reason += f"; unsupported: {listed}"
    return Grounding(supported / len(claims), reason, claims)


class _Question:
    """The words of the question, and the claims it already makes."""

    def __init__(self, question: str, claims: Sequence[Candidate]) -> None:
        self.words = frozenset(content_words(question))
        self._evidence = Evidence([question], claims) if question.strip() else None

    def gives(self, claim: Candidate) -> bool:
        """Return whether a number, day, name or quotation is in the question."""
        return self._evidence is not None and _place(claim, self._evidence) is not None


def _judge(
    answer: str, claim: Candidate, texts: Evidence, asked: _Question, min_overlap: float
) -> CheckedClaim | None:
    """Return the claim with its verdict; None when it only repeats the question."""
    said = (claim.kind, answer[claim.start : claim.end], claim.start, claim.end)
    if claim.kind == "sentence":
        return _judge_sentence(said, claim, texts, asked, min_overlap)
    place = _place(claim, texts)
    if place is not None:
        return CheckedClaim(*said, True, place.source, snippet(texts.texts[place.source], place))
    if asked.gives(claim):
        return None
    return CheckedClaim(*said, False, detail=_lacking(claim, texts))


def _place(claim: Candidate, texts: Evidence) -> EvidencePosition | None:
    if claim.quantity is not None:
        return texts.number(claim.quantity, claim.slack)
    if claim.date is not None:
        return texts.date(claim.date.year, claim.date.month, claim.date.day)
    if claim.kind == "quote":
        return texts.phrase(claim.words)
    found = texts.name(claim.words)
    # "Yesterday Oslo": the word that opens a sentence may not belong to the name.
    if found is None and claim.head_optional:
        return texts.name(claim.words[1:])
    return found


def _lacking(claim: Candidate, texts: Evidence) -> str:
    if claim.quantity is not None and claim.quantity.dimension:
        other = texts.other_unit(claim.quantity)
        if other is not None:
            text = snippet(texts.texts[other.source], other, margin=0)
            return f"the evidence has this figure only as {text!r}"
    if claim.kind == "name" and len(claim.words) > 1:
        known = [word for word in claim.words if texts.phrase([word]) is not None]
        if known:
            return f"the evidence has only {', '.join(known)}"
    return "not in the evidence"


def _judge_sentence(
    said: tuple[ClaimKind, str, int, int],
    claim: Candidate,
    texts: Evidence,
    asked: _Question,
    min_overlap: float,
) -> CheckedClaim:
    # Words of the question need no evidence; the others do.
    own = [word for word in claim.words if word not in asked.words]
    # A sentence made of the question's words is looked up whole: repeating them proves nothing.
    words = own if len(own) >= MIN_SENTENCE_WORDS else list(claim.words)
    passage = texts.passage(words)
    held = passage.found if passage is not None else frozenset[str]()
    missing = [word for word in words if word not in held]
    supported = len(held) >= min_overlap * len(words)
    if passage is not None and supported:
        place = passage.place
        return CheckedClaim(*said, True, place.source, snippet(texts.texts[place.source], place))
    detail = f"no passage holds more than {len(held)} of {len(words)} words; lacking: "
    return CheckedClaim(*said, False, detail=detail + ", ".join(missing[:8]))


def snippet(text: str, place: EvidencePosition, margin: int = _SNIPPET_MARGIN) -> str:
    """Return the text around a place, on one line, with ellipses where it was cut."""
    start, end = max(0, place.start - margin), min(len(text), place.end + margin)
    inner = " ".join(text[start:end].split())
    if not margin:
        return inner
    return f"{'…' if start else ''}{inner}{'…' if end < len(text) else ''}"
