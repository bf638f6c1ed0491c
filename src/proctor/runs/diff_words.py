"""Two texts compared word by word.

Promise: what is told as equal, removed and added puts both texts together again, white space of
the newer one kept. Texts without spaces (Chinese, Japanese, Korean) are compared by character.
"""

from __future__ import annotations

import re
from itertools import groupby

from proctor.checks.metrics.alignment import lcs_alignment, positions_of
from proctor.runs.diff_model import WordChange

# A word, a character of a script that does not part words, or a sign; then its white space.
_WORD = re.compile(
    r"(?:[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
    r"|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
    r"|[^\w\s])\s*|\s+"
)

MAX_PAIRS = 100_000_000
"""Most pairs of words that are aligned (10,000 against 10,000, 12 MB); beyond it the differing
middle is told as replaced whole.
"""


def word_changes(before: str, after: str) -> tuple[WordChange, ...]:
    """The stretches both texts share and those only one of them has, in order."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    olds, news = [word.strip() for word in old], [word.strip() for word in new]
    start, end = _shared(olds, news)
    pairs = [(n, n) for n in range(start)]
    left, right = len(olds) - end, len(news) - end
    if (left - start) * (right - start) <= MAX_PAIRS:
        places = positions_of(news[start:right])
        rows = [places.get(word, 0) for word in olds[start:left]]
        pairs += [(start + i, start + j) for i, j in lcs_alignment(rows, right - start)]
    pairs += [(left + n, right + n) for n in range(end)]
    return _stretches(old, new, pairs)


def _shared(a: list[str], b: list[str]) -> tuple[int, int]:
    """How many words both begin and end with."""
    shortest = min(len(a), len(b))
    start = end = 0
    while start < shortest and a[start] == b[start]:
        start += 1
    while end < shortest - start and a[-1 - end] == b[-1 - end]:
        end += 1
    return start, end


def _stretches(
    old: list[str], new: list[str], pairs: list[tuple[int, int]]
) -> tuple[WordChange, ...]:
    told: list[tuple[str, str]] = []
    i = j = 0
    for one, other in [*pairs, (len(old), len(new))]:
        told += [("removed", word) for word in old[i:one]]
        told += [("added", word) for word in new[j:other]]
        if one < len(old):
            told.append(("equal", new[other]))
        i, j = one + 1, other + 1
    return tuple(
        WordChange(op, "".join(word for _, word in group))
        for op, group in groupby(told, key=lambda each: each[0])
    )
