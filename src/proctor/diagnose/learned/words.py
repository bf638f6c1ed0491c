"""Texts of a span as hashed words: the same buckets on every machine, no vocabulary to ship.

Two words may share a bucket. Texts are cut, so that a long trace costs milliseconds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BUCKETS = 1 << 13
"""Doubling it gains nothing measurable on TRAIL; the model stays small."""

_WORD = re.compile(r"[a-z_]{2,24}|[<>/=]{2,}")

FIELDS = ("said", "told", "failed", "shown", "failed before", "plan")
"""What a span said, what it was told last, how its step failed, what came back, how the step
before failed, and the plan it follows. Each has buckets of its own."""

_SINGLE = frozenset({"told"})
"""Fields whose pairs of words are left out: prompts repeat, and pairs would only count that."""

_MOST = {"said": 3000, "told": 1200, "failed": 500, "shown": 1200}
"""Characters read of each field."""

_STRIDE = 31
"""Tells the first word of a pair from the second."""


class Words(NamedTuple):
    """The buckets a text falls into, each once, and the log of how often."""

    buckets: NDArray[np.intp]
    values: NDArray[np.float32]


NOTHING = Words(np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.float32))


class Hasher:
    """Counts words into buckets, remembering the codes of words within one trace."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def __call__(self, field: str, text: str) -> Words:
        """Log counts of a text's words, and of pairs of them, by bucket."""
        words = _WORD.findall(text[: _MOST[field]].lower())
        if not words:
            return NOTHING
        known = self._codes
        for word in set(words) - known.keys():
            known[word] = crc32(word.encode())
        codes = np.fromiter((known[word] for word in words), dtype=np.int64, count=len(words))
        if field not in _SINGLE:
            codes = np.concatenate([codes, codes[:-1] * _STRIDE + codes[1:]])
        counts = np.bincount(codes % BUCKETS, minlength=BUCKETS)
        buckets = np.flatnonzero(counts)
        return Words(buckets, np.log1p(counts[buckets]).astype(np.float32))
