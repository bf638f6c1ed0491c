"""Words as grounding compares them: folded, stemmed, without those that carry no meaning.

Promise: deterministic and cheap. English endings and stop words; other languages written with
spaces are compared word by word as they stand, scripts without spaces character by character.
"""

from __future__ import annotations

import re
import unicodedata

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
    """A word without case and accents, so that `Zürich` and `ZURICH` are one."""
    if word.isascii():
        return word.lower()
    parts = unicodedata.normalize("NFKD", word.casefold())
    return "".join(part for part in parts if not unicodedata.combining(part))


def stem(word: str) -> str:
    """A folded word without its commonest English endings: enough to see `booked` in `booking`."""
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
    """The folded words of a text, in order."""
    return [folded(found) for found in WORD.findall(text)]


def content_words(text: str) -> list[str]:
    """The stems that carry a text's meaning, each once: no stop words, no bare numbers."""
    words = (w for w in words_of(text) if w not in STOP_WORDS and not w[0].isdigit())
    return list(dict.fromkeys(stem(w) for w in words if len(w) > 1 or not w.isascii()))
