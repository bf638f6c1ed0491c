"""The JSON documents in the bytes of a file: one, one a line, or several in a row.

Promise: a file that is sound takes the fast decoder alone; what that refuses (NaN, lone
surrogates, UTF-16, a torn line, junk between documents) is read the patient way, and what
cannot be read is a problem with its line and column. Nothing is raised.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from proctor.sanitize import without_surrogates
from proctor.trace.assemble import Collector

_OPENINGS = (b"{", b"[")
_ENDINGS = (b"}", b"]")

_UTF16 = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}

_REFUSED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the fast decoder raises; it says too little about the place to be passed on."""

_NEXT_DOCUMENT = re.compile(r"^[{\[]", re.MULTILINE)
"""Where to go on after a document that cannot be read: a line that opens another."""

_MOST_FAILURES = 1_000
"""Broken documents after which a file is given up: looking on would cost more than it finds."""

_LINES_TRIED = 4
"""Lines looked at to tell a file of lines, of which some are torn, from one broken document."""

_SPACE = re.compile(r"[\s,]*")


class Documents(NamedTuple):
    """The documents of a file with their places, and whether they stand one a line."""

    found: Iterator[tuple[str, Any]]
    by_line: bool


def looks_like_json(data: bytes) -> bool:
    """Whether bytes may be JSON at all, by their first character."""
    if data.startswith((codecs.BOM_UTF8, *_UTF16)):
        return True
    return data[:4096].lstrip()[:1] in _OPENINGS


def read_documents(data: bytes, out: Collector) -> Documents:
    """The documents of a file; problems go to the collector as they are met."""
    for mark, encoding in _UTF16.items():
        if data.startswith(mark):
            data = data.decode(encoding, "replace").encode("utf-8", "replace")
    data = data.removeprefix(codecs.BOM_UTF8)
    if _one_a_line(data):
        return Documents(_lines(data, out), by_line=True)
    try:
        document = msgspec.json.decode(data)
    except _REFUSED:
        if _torn_lines(data):
            return Documents(_lines(data, out), by_line=True)
        return Documents(_patiently(data, out), by_line=False)
    return Documents(iter([("", document)]), by_line=False)


def _one_a_line(data: bytes) -> bool:
    """Whether the first line is a whole document and another follows."""
    start = len(data) - len(data.lstrip()) if data[:1].isspace() else 0
    end = data.find(b"\n", start)
    return end >= 0 and bool(data[end : end + 4096].strip()) and _is_whole(data[start:end].strip())


def _torn_lines(data: bytes) -> bool:
    """Whether one of the first lines of a broken file is a whole document by itself."""
    return any(_is_whole(line.strip()) for line in data.split(b"\n", _LINES_TRIED)[:_LINES_TRIED])


def _is_whole(line: bytes) -> bool:
    if line[:1] not in _OPENINGS or line[-1:] not in _ENDINGS:
        return False
    try:
        msgspec.json.decode(line)
    except _REFUSED:
        return False
    return True


def _lines(data: bytes, out: Collector) -> Iterator[tuple[str, Any]]:
    start = number = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        line = data[start:end].strip()
        number += 1
        if line:
            try:
                yield f"line {number}", msgspec.json.decode(line)
            except _REFUSED:
                yield from _patiently(line, out, first_line=number, first_byte=start)
        start = end + 1


def _patiently(
    data: bytes, out: Collector, *, first_line: int = 1, first_byte: int = 0
) -> Iterator[tuple[str, Any]]:
    """Documents in a row, with the place of everything that is not one."""
    out.place = ""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        out.problem(f"byte {first_byte + error.start}", "invalid UTF-8; replaced by U+FFFD")
        text = data.decode("utf-8", "replace")
    decoder = json.JSONDecoder()
    position = failures = 0
    line, counted = first_line, 0  # `line` is the number of the line on which `counted` stands
    while (position := _skip(text, position)) < len(text):
        line += text.count("\n", counted, position)
        counted = position
        try:
            document, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            out.place = ""
            out.problem(*_what_and_where(error, text, position, line))
            following = _NEXT_DOCUMENT.search(text, position + 1)
            failures += 1
            if following is None or failures >= _MOST_FAILURES:
                return
            position = following.start()
        else:
            yield f"line {line}", _clean(document)


def _skip(text: str, position: int) -> int:
    """Past white space, and commas left over from an array that was torn."""
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _clean(document: Any) -> Any:
    try:
        return without_surrogates(document)
    except RecursionError:
        return None


def _what_and_where(
    error: ValueError | RecursionError, text: str, start: int, line: int
) -> tuple[str, str]:
    if isinstance(error, json.JSONDecodeError):
        at = error.pos
        last = text.rfind("\n", 0, at)
        place = f"line {line + text.count(chr(10), start, at)} column {at - last}"
        cut_off = at >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        return place, "JSON ends too early" if cut_off else f"JSON is broken: {error.msg}"
    why = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:80]
    return f"line {line}", f"JSON cannot be read: {why}"
