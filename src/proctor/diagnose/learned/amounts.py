"""How much a step reads at a time: what its code cuts out of a text, and what it was then shown.

Agents that work on long files are told to read them in small pieces, and annotators mark those
that do not: at the step that asks for too much, or at the one that is shown it.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .scenes import Scene

_SLICE = re.compile(r"\[[^\]\n:]*:\s*[^\]\n]*?(\d{2,7})\]")
_CODE = re.compile(
    r"^[ \t]*(?:def|return|if|for|import|from|class|raise|else|elif|try|except|with|while|@\w+)\b"
    r"|^[ \t]*self\.",
    re.MULTILINE,
)
_LETTERS = re.compile(r"(?:^\w?$\n){5}|(?:'.', ){5}", re.MULTILINE)
"""A text printed letter by letter, as lines or as a list: the code took it for a list of lines."""

_NOTHING = re.compile(r"output from code snippet:\s*None\s*\Z")

READ = 20_000
"""Characters of an observation in which lines of code are counted."""

LETTERS_WITHIN = 4000
"""Characters of an observation in which a text printed letter by letter is looked for."""

PIECE = 500
"""Characters that prompts allow at a time; code that slices at most so many keeps to it."""

SOME = 2000
"""A slice up to here is meant to be printed; a longer one to be searched."""

LONG = 950
"""Characters of an observation beyond a piece of 500 and the framework's own words."""

SHORT = 130
"""Characters of an observation that holds nothing besides the framework's own words."""

FEW, MANY = 3, 8
"""Lines of code that tell a passage of a file from a name in it, and from a single function."""


def facts_of_amounts(scene: Scene) -> dict[str, float]:
    """Facts of a model call: what it asks to read, and what it was shown before."""
    facts = _asked(scene)
    before = scene.previous
    if before is None:
        return facts
    shown = before.move.came_back
    lines = len(_CODE.findall(shown[:READ]))
    too_much = not before.move.failure and lines >= FEW and len(shown) > LONG
    asks = bool(facts.get("reads too much"))
    return facts | {
        "was shown code": math.log1p(min(lines, 60)) / math.log1p(60),
        "was shown some code": float(lines >= FEW),
        "was shown much code": float(lines >= MANY),
        "was shown a piece": float(len(shown) > PIECE + 200),
        "was shown more than a piece": float(len(shown) > LONG),
        "was shown single letters": float(bool(_LETTERS.search(shown[:LETTERS_WITHIN]))),
        "was shown None": float(len(shown) < SHORT and bool(_NOTHING.search(shown))),
        "was shown too much": float(too_much),
        "over the limit": float(too_much or asks),
        "twice over the limit": float(too_much and asks),
        "read too much before": float(max(_slices(before), default=0) > PIECE),
    }


def _asked(scene: Scene) -> dict[str, float]:
    """What the slices of its code say; the first move of an agent only looks around."""
    sizes = _slices(scene) if scene.move.index else []
    if not sizes:
        return {}
    most, over = max(sizes), sum(size > PIECE for size in sizes)
    return {
        "reads pieces": float(most <= PIECE),
        "reads too much": float(PIECE < most <= SOME),
        "reads all": float(most > SOME),
        "slices too long": math.log1p(min(over, 5)) / math.log1p(5),
    }


def _slices(scene: Scene) -> list[int]:
    return [int(size) for size in _SLICE.findall(scene.move.text)]
