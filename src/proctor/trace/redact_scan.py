"""Whether many texts together hold anything that could be a secret: one search instead of many.

Promise: texts are only called clean when searching each of them by itself would find nothing.
They are joined by line breaks, which every search takes for the end of a text; finding something
that spans two texts only costs time. Short inputs are searched word by word; long ones first lose
the words whose rarest three letters occur nowhere, in one pass over the bytes.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from proctor.trace.redact_pairs import STEMS, named_at
from proctor.trace.redact_tokens import DETECTORS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_LONG = 4096
"""Bytes from which a pass over all letters is cheaper than looking for one word after another."""

_BLOCK = 16_384
"""Bytes looked at together: their codes stay in the processor's second cache."""

_BITS = 5
_BY_FREQUENCY = "etaoinshrdlcumwfgypbvkjxqz"
"""Letters, the most common in English first; any other sign is rarer still."""


class _Grams(NamedTuple):
    """Letters as small numbers, and for each three of them the words that they speak for."""

    classes: bytes
    words: NDArray[Any]
    """One bit a word, by the code of three letters."""


def clean(data: bytes, values: Iterable[bytes] = ()) -> bool:
    """Whether UTF-8 texts, joined by line breaks, surely hold no secret and none of `values`."""
    data = b"\n" + data + b"\n"
    low = data.lower()
    found = _present(data, low)
    for stem in STEMS:
        if stem in found and any(named_at(data, low, stem)):
            return False
    for detector in DETECTORS:
        if not found.isdisjoint(detector.needles) and any(detector.find(data, low)):
            return False
    return not any(value in data for value in values)


@cache
def _words() -> tuple[bytes, ...]:
    return (*STEMS, *(needle for detector in DETECTORS for needle in detector.needles))


def _present(data: bytes, low: bytes) -> set[bytes]:
    """The words that are there; `low` is `data` in lower case."""
    words = _words()
    if len(data) < _LONG:
        return {word for word in words if word in low}
    import numpy as np

    grams = _grams()
    small = data.translate(grams.classes)
    found: set[bytes] = set()
    unknown = (1 << len(words)) - 1
    for start in range(0, len(small), _BLOCK):
        part = np.frombuffer(small, np.uint8, min(_BLOCK + 2, len(small) - start), start)
        letters = part.astype(np.uint16)
        codes = letters[:-2] << 2 * _BITS
        codes |= letters[1:-1] << _BITS
        codes |= letters[2:]
        # No code is out of bounds; `clip` only spares the check.
        likely = int(np.bitwise_or.reduce(grams.words.take(codes, mode="clip"))) & unknown
        while likely:
            position = likely.bit_length() - 1
            likely ^= 1 << position
            word = words[position]
            # Its rarest letters stand in this block, and the rest of it near them.
            if low.find(word, max(0, start - len(word)), start + _BLOCK + len(word)) >= 0:
                found.add(word)
                unknown ^= 1 << position
    return found


@cache
def _grams() -> _Grams:
    import numpy as np

    # Capitals are small letters, digits are one sign, and what is in no word is another.
    signs = {sign: number for number, sign in enumerate(b"abcdefghijklmnopqrstuvwxyz", 1)}
    signs |= dict.fromkeys(b"0123456789", 27) | {ord("-"): 28, ord("_"): 29, ord(":"): 30}
    signs |= {sign - 32: number for sign, number in signs.items() if chr(sign).islower()}
    classes = bytes(signs.get(byte, 0) for byte in range(256))
    table = np.zeros(1 << 3 * _BITS, np.uint64)
    for position, word in enumerate(_words()):
        a, b, c = max(zip(word, word[1:], word[2:], strict=False), key=_rarity)
        code = classes[a] << 2 * _BITS | classes[b] << _BITS | classes[c]
        table[code] |= np.uint64(1 << position)
    return _Grams(classes, table)


def _rarity(letters: tuple[int, int, int]) -> int:
    places = (_BY_FREQUENCY.find(chr(letter)) for letter in letters)
    return sum(place if place >= 0 else len(_BY_FREQUENCY) for place in places)
