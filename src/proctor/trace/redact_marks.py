"""What a secret leaves behind: a mark with its kind, put where the secret stood in a text.

Promise: marks are never looked into again, so redacting twice changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

from proctor.trace.redact_names import BARE_TOKEN
from proctor.trace.redact_tokens import Hit

MARK = re.compile(r"\[redacted:[A-Za-z0-9_-]+\]")
"""What a secret leaves behind."""


def mark(kind: str) -> str:
    """What stands where a secret of this kind was."""
    return f"[redacted:{kind}]"


def occurrences(data: bytes, value: bytes) -> Iterable[Hit]:
    """Where a value of the environment stands."""
    position = data.find(value)
    while position >= 0:
        yield Hit(position, position + len(value), "environment")
        position = data.find(value, position + len(value))


def replaced(data: bytes, hits: list[Hit]) -> bytes:
    """The text with each stretch of overlapping hits replaced by the mark of its first."""
    hits.sort(key=_by_place)
    parts: list[bytes] = []
    position = 0
    for start, end, kind, quote in hits:
        if start >= position:
            parts += (data[position:start], quote, mark(kind).encode(), quote)
        position = max(position, end)
    parts.append(data[position:])
    return b"".join(parts)


def _by_place(hit: Hit) -> tuple[int, int]:
    return hit.start, -hit.end


def between_marks(text: str, pattern: re.Pattern[str], kind: str) -> str:
    """Replace matches outside earlier marks, so that redacting twice changes nothing."""
    replace = partial(pattern.sub, lambda _: mark(kind))
    if "[redacted:" not in text:
        return replace(text)
    parts: list[str] = []
    position = 0
    for found in MARK.finditer(text):
        parts += (replace(text[position : found.start()]), found.group())
        position = found.end()
    return "".join([*parts, replace(text[position:])])


def held_text(value: str, kind: str) -> str:
    """The text under a name that says `kind`; the value itself where it can be no secret."""
    if not value.strip() or MARK.fullmatch(value):
        return value
    if kind == BARE_TOKEN:
        random = len(value) >= 12 and not re.search(r"\s", value) and re.search(r"\d", value)
        return mark("token") if random and re.search(r"[A-Za-z]", value) else value
    if kind != "password" and value.isdecimal():
        return value
    if kind == "authorization":
        scheme, space, rest = value.partition(" ")
        if MARK.fullmatch(rest):
            return value
        return f"{scheme} {mark(kind)}" if space and scheme.isalpha() else mark(kind)
    return mark(kind)
