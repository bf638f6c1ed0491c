"""An index of the evidence for the words, numbers and days of an answer.

Each text is read once, and only what the claims need is stored: time is linear in the evidence,
memory in its relevant part. Nothing is found across two texts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from proctor.checks.grounding._claims import (
    CLOCK,
    COUNTABLE,
    DAY,
    NUMBER,
    NUMBER_WORDS,
    WORD,
    Candidate,
    Quantity,
    dates,
    folded,
    label_before,
    read_quantities,
    stem,
)

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
        best: tuple[int, int] | None = None
        for block in sorted(blocks):
            size = len(blocks[block] | blocks.get(block + 1, set()))
            if best is None or size > best[0]:
                best = (size, block)
        if best is None:
            return None
        block = best[1]
        found = blocks[block] | blocks.get(block + 1, set())
        return Passage(frozenset(found), self._places[first[block]])

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
