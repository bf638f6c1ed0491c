"""Texts of a span as hashed words: the same buckets on every machine, no vocabulary to ship.

Two words may share a bucket. Texts are cut, so that a long trace costs milliseconds.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise
from zlib import crc32

BUCKETS = 1 << 13
"""Doubling it gains nothing measurable on TRAIL; the model stays small."""

_WORD = re.compile(r"[A-Za-z_]{2,24}|[<>/=]{2,}")

FIELDS = ("said", "told", "failed", "shown", "failed before", "plan")
"""What a span said, what it was told last, how its step failed, what came back, how the step
before failed, and the plan it follows. Each has buckets of its own."""

_SINGLE = frozenset({"told"})
"""Fields whose pairs of words are left out: prompts repeat, and pairs would only count that."""

_MOST = {"said": 3500, "told": 1200, "failed": 500, "shown": 1200, "plan": 3000}
"""Characters read of each field."""


class Hasher:
    """Counts words into buckets, remembering buckets within one trace."""

    def __init__(self) -> None:
        self._buckets: dict[str, int] = {}

    def __call__(self, field: str, text: str) -> dict[int, float]:
        """Log counts of a text's words, and of pairs of them, by bucket."""
        words = [word.lower() for word in _WORD.findall(text[: _MOST[field]])]
        counts: Counter[int] = Counter()
        for key, times in Counter(words).items():
            counts[self._bucket(key)] += times
        if field not in _SINGLE:
            for pair, times in Counter(pairwise(words)).items():
                counts[self._bucket(" ".join(pair))] += times
        return {bucket: math.log1p(times) for bucket, times in counts.items()}

    def _bucket(self, key: str) -> int:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = crc32(key.encode()) % BUCKETS
        return bucket
