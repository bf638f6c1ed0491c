"""Hostile text made fit for one line of a terminal.

Promise: what comes out holds no control character, no escape sequence, no bidirectional
override, no lone surrogate and no line break, and is at most `limit` characters long. A
terminal thus shows agent output and never obeys it.
"""

from __future__ import annotations

import re

ELLIPSIS = "…"

# Escape sequences go as a whole: CSI (`\x1b[31m`), OSC (titles, links; ended by BEL or ST), then
# any other two-character escape. Each part is bounded or possessive, so hostile text is linear.
_ESCAPES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]{0,64}+[ -/]{0,16}+[@-~]?+"
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]{0,4096}+(?:\x07|\x1b\\\\|\x9c)?+"
    "|\x1b[ -/]{0,16}+[0-~]?+"
)
# C0 and C1 controls and DEL; invisible marks that turn or hide text (bidirectional controls,
# zero-width spaces, the byte order mark, interlinear marks, tag characters); lone surrogates.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_SPACES = re.compile(r"\s+")

# Cutting first keeps huge values cheap; this many raw characters always suffice for one line.
_SLACK = 4


def safe(text: object, limit: int = 200) -> str:
    """`text` on one line of at most `limit` characters, with nothing a terminal would obey."""
    raw = text if isinstance(text, str) else str(text)
    cut = raw[: limit * _SLACK + 256]
    line = _SPACES.sub(" ", _INVISIBLE.sub("", _SPACES.sub(" ", _ESCAPES.sub("", cut)))).strip()
    if len(line) > limit:
        return line[: max(0, limit - 1)].rstrip() + ELLIPSIS
    return line + ELLIPSIS if len(cut) < len(raw) and len(line) < limit else line
