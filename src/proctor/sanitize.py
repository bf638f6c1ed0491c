"""Make untrusted text safe for each place it is shown or stored in.

Text from agents, models, files and clients can hold escape sequences that a terminal obeys,
invisible characters that hide or reorder what a reader sees, markup, and lone surrogates that no
encoder accepts. Each function below names its place: a terminal (`printable`), one line
(`line`), Markdown, XML, a page (`visible`), JSON (`json_value`, `json_bytes`). All use one table
of invisible characters, so a character that is removed in one place is never obeyed in another.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import islice
from typing import Any, cast

ELLIPSIS = "…"

REASON_CHARS = 500
"""Characters of a reason that a person is shown: long enough to read it whole."""

VALUE_CHARS = 200
"""Characters of an expected or actual value that a person is shown: two lines of a terminal."""

MAX_DEPTH = 64
"""Levels of a nested value that are kept; no reader looks further, and encoders give up."""

SURROGATES = "\ud800-\udfff"
INVISIBLE = (
    "\x00-\x1f\x7f-\x9f"  # C0 controls, DEL and C1 controls
    "\u2028\u2029"  # line and paragraph separators
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # bidirectional controls: text reads reordered
    "\u200b\u2060-\u2064\ufeff"  # zero-width spaces and operators, the byte order mark
    "\ufff9-\ufffb"  # interlinear annotations
    "\U000e0000-\U000e007f" + SURROGATES  # tag characters: a hidden copy of ASCII
)
"""The one table of characters that a terminal obeys or a reader cannot see, as a regex class.

Zero-width joiners (U+200C, U+200D) and variation selectors are not in it: emoji and several
scripts need them, and they neither hide nor reorder other characters.
"""

_INVISIBLE = re.compile(f"[{INVISIBLE}]")
_SURROGATE = re.compile(f"[{SURROGATES}]")

# Escape sequences are removed as a whole: CSI (`\x1b[31m`), OSC (titles, links; ended by BEL or
# ST), then any other two-character escape. Each part is bounded or possessive, so that hostile
# text takes linear time.
_ESCAPE_SEQUENCES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]{0,64}+[ -/]{0,16}+[@-~]?+"
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]{0,4096}+(?:\x07|\x1b\\\\|\x9c)?+"
    "|\x1b[ -/]{0,16}+[0-~]?+"
)
_SPACES = re.compile(r"\s+")
# Old workflow commands (`##[…]`, `##vso[…]`) are obeyed anywhere in a line of a build log;
# `::…::` only at the beginning of one, and our lines begin with words of our own.
_LINE_COMMAND = re.compile(r"((?:^|[\r\n])\s*(?:\x1b\[[0-9;]{0,32}m\s*)*)::")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_RUNNER_COMMAND = re.compile(r"##(?=(?:vso)?\[)")
# Everything the XML 1.0 production Char leaves out, and the C1 controls, which it discourages.
_NOT_XML = re.compile(
    f"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f{SURROGATES}\ufdd0-\ufdef\ufffe\uffff]"
)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~$^=:-])")
_BARE_ADDRESS = re.compile(r"\b(www)\.", re.IGNORECASE)
_BACKTICKS = re.compile("`+")
_CONTROL_PICTURES = 0x2400
"""Unicode has a picture of each C0 control here: U+2400 shows NUL."""


# -- for people --------------------------------------------------------------------------------


def printable(text: str, *, keep: str = "") -> str:
    r"""Return text with every invisible character written as an escape such as `\x1b`.

    Characters in `keep` stay: a newline, for text that may have several lines.
    """
    if text.isascii() and text.isprintable():
        return text

    def escaped(match: re.Match[str]) -> str:
        character = match.group()
        if character in keep:
            return character
        return character.encode("unicode_escape").decode("ascii")

    return _INVISIBLE.sub(escaped, text)


def to_stdout(text: str) -> str:
    """Return data as stdout takes it: unchanged in a file or pipe, harmless on a terminal."""
    return printable(text, keep="\n\r\t") if sys.stdout.isatty() else text


def forwarded(text: str) -> str:
    """Return what an agent printed so that neither a terminal nor a build log obeys it.

    Colours stay; other escape sequences and invisible characters are removed, and commands of a
    build system (`::stop-commands::`, `##[…]`) are taken apart.
    """
    text = _ESCAPE_SEQUENCES.sub(lambda m: m[0] if _COLOUR.fullmatch(m[0]) else "", text)
    text = _INVISIBLE.sub(lambda m: m[0] if m[0] in "\n\r\t\x1b" else "", text)
    return _LINE_COMMAND.sub(r"\1: :", _RUNNER_COMMAND.sub("## ", text))


def line(text: object, limit: int = REASON_CHARS) -> str:
    """Return one line of at most `limit` characters that no terminal and no build log obeys.

    Invisible characters and escape sequences are removed, white space becomes one space.
    """
    raw = text if isinstance(text, str) else str(text)
    # Cutting first keeps huge values cheap; four times the limit suffices for almost any line.
    cut = raw[: limit * 4 + 256]
    clean = _SPACES.sub(" ", _ESCAPE_SEQUENCES.sub("", cut))
    clean = _SPACES.sub(" ", _INVISIBLE.sub("", clean)).strip()
    clean = _RUNNER_COMMAND.sub("## ", clean)
    if len(clean) > limit:
        return clean[: max(0, limit - 1)].rstrip() + ELLIPSIS
    return clean + ELLIPSIS if len(cut) < len(raw) and len(clean) < limit else clean


def shown(value: Any, limit: int = VALUE_CHARS) -> str:
    """Return a value on one line: text in quotes, anything else as JSON."""
    import json

    # Cut before it is encoded: a text may have millions of characters, a list as many items.
    brief = json_value(value, most=limit * 4)
    return line(json.dumps(brief, ensure_ascii=False, allow_nan=False), limit)


def visible(text: str) -> str:
    """Return text for a page, where invisible characters show as pictures or as [U+202E]."""

    def picture(match: re.Match[str]) -> str:
        character = match.group()
        if character in "\t\n\r":
            return character
        code = ord(character)
        return chr(_CONTROL_PICTURES + code) if code < 0x20 else f"[U+{code:04X}]"

    return _INVISIBLE.sub(picture, valid_unicode(text))


def markdown(text: object, limit: int = REASON_CHARS) -> str:
    """Return one line of plain words in Markdown: no markup, no HTML, no link, no mention."""
    words = line(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    marked = _BARE_ADDRESS.sub(r"\1\\.", _MARKDOWN.sub(r"\\\1", words))
    # A zero-width space after @ keeps hosts from notifying the person who has that name.
    return marked.replace("@", "@\u200b")


def markdown_code(text: str) -> str:
    """Return a line as code in Markdown, fenced so that no backtick in it ends the code."""
    longest = max(map(len, _BACKTICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{fence}{pad}{text or ' '}{pad}{fence}"


FORMULA = frozenset("=+-@\t\r\n|%\uff1d\uff0b\uff0d\uff20")
"""First characters that make a spreadsheet evaluate a text, or start a program (DDE).

The last four are the full-width forms, which some programs treat like the ASCII ones.
"""


def escape_formula(text: str) -> str:
    """Prefix a text with a quote where a spreadsheet would read it as a formula."""
    plain = text.replace("\0", "\ufffd")
    # Some programs evaluate a formula even after leading blanks.
    first = plain.lstrip(" ")[:1]
    return f"'{plain}" if first and first in FORMULA else plain


# -- for programs ------------------------------------------------------------------------------


def xml(text: str) -> str:
    """Return text with only the characters XML may hold; escaping is the writer's job."""
    return _NOT_XML.sub("\ufffd", text)


def valid_unicode(text: str) -> str:
    """Return text that UTF-8 can hold: lone surrogates become U+FFFD."""
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    # By way of UTF-16, two halves of a pair that were decoded one by one become one character.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def json_value(value: Any, *, most: int | None = None) -> Any:
    """Return plain JSON data for any value: no NaN, no lone surrogate, no endless nesting.

    Records become mappings by field name; a value JSON has no form for becomes its text. With
    `most`, texts are cut to that many characters and collections to that many items.
    """
    return _json_value(value, most, 0)


def _json_value(value: Any, most: int | None, depth: int) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return valid_unicode(value[:most])
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= MAX_DEPTH:
        return "… (nested too deeply to show)"
    fields = _fields(value)
    if fields is not None:
        items = islice(fields.items(), most)
        return {
            valid_unicode(str(key)[:most]): _json_value(item, most, depth + 1)
            for key, item in items
        }
    if isinstance(value, set | frozenset):
        value = sorted(cast("set[Any]", value), key=repr)  # a set has another order in each process
    if isinstance(value, list | tuple):
        return [_json_value(item, most, depth + 1) for item in cast("list[Any]", value)[:most]]
    if isinstance(value, Enum):
        return _json_value(value.value, most, depth + 1)
    if isinstance(value, bytes | bytearray):
        import base64

        return base64.b64encode(value[:most]).decode()  # as msgspec encodes them in run files
    for method in ("isoformat", "tolist", "item"):  # dates and times, arrays and numbers of numpy
        if callable(convert := getattr(value, method, None)):
            return _json_value(convert(), most, depth + 1)
    return valid_unicode(str(value)[:most])


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """Return the items of a mapping or the fields of a record, or None for other values."""
    if isinstance(value, Mapping):
        return cast("Mapping[Any, Any]", value)
    if isinstance(value, type):
        return None
    if (names := getattr(value, "__struct_fields__", None)) is not None:  # msgspec
        return {name: getattr(value, name) for name in names}
    if (names := getattr(value, "__dataclass_fields__", None)) is not None:
        return {name: getattr(value, name) for name in names}
    if callable(as_dict := getattr(value, "_asdict", None)):  # a named tuple
        return cast("Mapping[str, Any]", as_dict())
    if callable(dump := getattr(value, "model_dump", None)):  # pydantic
        return cast("Mapping[str, Any]", dump(mode="json"))
    return None


def json_bytes(value: Any) -> bytes:
    """Encode a record as the run files hold it; lone surrogates, which UTF-8 lacks, are replaced.

    The encoder is tried first, because almost no record holds a surrogate and looking for one
    costs more than encoding does.
    """
    import msgspec

    try:
        return msgspec.json.encode(value, enc_hook=json_value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, enc_hook=json_value, str_keys=True)
        return msgspec.json.encode(without_surrogates(plain))


def map_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """Return a copy of plain data (dicts, lists) with each text changed; keys stay as they are."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value).items()
        return {key: map_texts(item, change) for key, item in entries}
    if isinstance(value, list | tuple):
        return [map_texts(item, change) for item in cast("list[Any]", value)]
    return value


def without_surrogates(value: Any) -> Any:
    """Return the same JSON value with every lone surrogate replaced, in keys as well."""
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, list | tuple):
        return [without_surrogates(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {without_surrogates(key): without_surrogates(item) for key, item in items}
    return value
