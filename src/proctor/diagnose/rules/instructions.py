"""Rules on instructions that stand in the prompt and can be checked by reading the output.

Only what a prompt states in so many words is checked: a closing tag, a limit on characters. The
phrases are English, and a prompt that says it otherwise is not understood.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from proctor.diagnose.model import Impact
from proctor.diagnose.taxonomy import Category

from .base import Hit, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proctor.diagnose.moves import Move, Moves

_TAG = re.compile(
    r"(?:write|append|add|include|end(?:ing)? with) the ['\"`]?(?:\\n|\n)?(</?[a-z_]+>)"
)
_LIMIT = re.compile(r"(\d{2,5}) characters at a time")
_SLICE = re.compile(r"\[[^\]\n:]*:\s*[^\]\n]*?(\d{2,6})\]")

SLACK = 300
"""Characters around a printed passage that are the framework's own words, not the content."""


class MissingTag(Rule):
    """The prompt asks for a closing tag; the output has none."""

    name = "missing_tag"
    category = Category.NON_COMPLIANCE
    impact = Impact.LOW
    confidence = 0.26

    def find(self, moves: Moves) -> Iterator[Hit]:
        """The first output of each agent that lacks it."""
        seen: set[tuple[str, str]] = set()
        for move in moves.moves:
            asked = _TAG.search(move.told)
            if not asked or not move.text or (move.agent, asked.group(1)) in seen:
                continue
            seen.add((move.agent, asked.group(1)))
            if asked.group(1) not in move.text:
                tail = move.text.strip().rsplit("\n", 1)[-1]
                yield Hit(move.span, f"The output lacks the tag {asked.group(1)}.", (tail,))


class LimitExceeded(Rule):
    """The prompt bounds how many characters are read at a time; the agent reads more."""

    name = "limit_exceeded"
    category = Category.NON_COMPLIANCE
    confidence = 0.36

    def find(self, moves: Moves) -> Iterator[Hit]:
        """The code that asks for more, and the model call that is shown more."""
        for move in moves.moves:
            limit = _limit(move)
            if limit is None:
                continue
            for found in _SLICE.finditer(move.text):
                if int(found.group(1)) > limit:
                    yield Hit(
                        move.span,
                        f"Reads {found.group(1)} characters; the limit is {limit}.",
                        (found.group(),),
                    )
                    break
            shown = moves.after(move)
            if shown is not None and not move.failure and len(move.came_back) > limit + SLACK:
                yield Hit(
                    shown.span,
                    f"Was shown {len(move.came_back)} characters; the limit is {limit}.",
                    (move.came_back.rsplit("\n", 1)[-1], move.came_back),
                )


def _limit(move: Move) -> int | None:
    for message in move.span.input_messages[:2]:
        content = message.content or ""
        found = _LIMIT.search(content) if "characters at a time" in content else None
        if found:
            return int(found.group(1))
    return None
