"""Hostile text made fit for each place it is shown in.

Promise: what an agent said can neither leave its place (a line, a cell, an attribute, a workflow
command) nor be obeyed there. Texts are cut for people; only JSON holds them whole.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import msgspec

from proctor.trace.text import safe

SHOWN = 200
"""Characters of an expected or actual value that a person is shown: two lines of a terminal."""

REASON = 500
"""Characters of a reason that a person is shown: it is meant to be read whole."""

DEEPEST = 64
"""Levels of a nested value that are written out; nobody reads further, and encoders give up."""

_RUNNER_COMMAND = re.compile(r"##(?=(?:vso)?\[)")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Everything the XML 1.0 production Char leaves out, and the C1 controls, which it discourages.
_NOT_XML = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~$^=:-])")
_BARE_ADDRESS = re.compile(r"\b(www)\.", re.IGNORECASE)
_BACKTICKS = re.compile("`+")
# C0 and C1 controls but tab and line breaks; bidirectional and zero-width marks; tag characters.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064"
    "\u2066-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_CONTROL_PICTURES = 0x2400
"""The first of Unicode's pictures of C0 controls: U+2400 shows NUL."""


def line(text: object, limit: int = REASON) -> str:
    """One line that neither a terminal nor the log of a build obeys.

    Old workflow commands (`##[…]`, `##vso[…]`) are read anywhere in a line, so they are broken up;
    `::…::` counts only where a line begins, and our lines begin with words of our own.
    """
    return _RUNNER_COMMAND.sub("## ", safe(text, limit))


def shown(value: Any, limit: int = SHOWN) -> str:
    """A value on one line: text in quotes, anything else as JSON."""
    # Cut before it is written: a text may have millions of characters, a list as many items.
    brief = plain(value, most=limit * 4)
    return line(json.dumps(brief, ensure_ascii=False, allow_nan=False), limit)


def plain(value: Any, *, most: int | None = None, depth: int = 0) -> Any:
    """A value that every JSON parser takes: no NaN, no lone surrogate, no endless nesting.

    With `most`, texts are cut to so many characters and collections to so many items.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return whole_text(value[:most])
    if depth >= DEEPEST:
        return "… (nested too deeply to show)"
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        items = islice(cast("Mapping[Any, Any]", value).items(), most)
        return {
            whole_text(str(key)[:most]): plain(item, most=most, depth=depth + 1)
            for key, item in items
        }
    if isinstance(value, list | tuple | set | frozenset):
        parts = islice(cast("list[Any]", value), most)
        return [plain(item, most=most, depth=depth + 1) for item in parts]
    return whole_text(str(value)[:most])


def whole_text(text: str) -> str:
    """A text that UTF-8 can hold: lone surrogates become U+FFFD."""
    return _SURROGATE.sub("\ufffd", str(text))


def visible(text: str) -> str:
    """Return a text with every character visible: controls as pictures or as [U+202E]."""

    def shown(match: re.Match[str]) -> str:
        code = ord(match.group())
        return chr(_CONTROL_PICTURES + code) if code < 0x20 else f"[U+{code:04X}]"

    return _INVISIBLE.sub(shown, whole_text(text))


def xml(text: str) -> str:
    """A text with only characters that XML may hold; escaping is the writer's."""
    return _NOT_XML.sub("\ufffd", text)


def markdown(text: object, limit: int = REASON) -> str:
    """One line of plain words in Markdown: no markup, no HTML, no link, no mention."""
    words = line(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    marked = _BARE_ADDRESS.sub(r"\1\\.", _MARKDOWN.sub(r"\\\1", words))
    # A zero-width space after @ keeps hosts from telling somebody that they were named.
    return marked.replace("@", "@\u200b")


def markdown_code(text: str) -> str:
    """A line as code in Markdown, fenced so that no backtick in it ends the code."""
    longest = max(map(len, _BACKTICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{fence}{pad}{text or ' '}{pad}{fence}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table; cells are Markdown already."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join(' --- ' for _ in head)}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def tokens(sent: int | None, got: int | None) -> str | None:
    """What a model call read and wrote, as told to people; None where neither is known."""
    if sent is None and got is None:
        return None
    told = ("?" if count is None else f"{count:,}" for count in (sent, got))
    return "{} in, {} out".format(*told)


def seconds(milliseconds: float | None) -> str:
    """A duration as told to people."""
    if milliseconds is None:
        return ""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.1f} s"
