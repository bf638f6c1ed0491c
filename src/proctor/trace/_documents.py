"""Split the bytes of a file into JSON documents: one, one per line, or several in a row.

Guarantees: a valid file uses only the fast decoder; input it refuses (NaN, lone surrogates, UTF-16,
a torn line, junk between documents) is read by a slower, tolerant one, and anything unreadable is a
problem with its line and column. Nothing is raised.
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
"""Exceptions of the fast decoder; their messages lack a usable position."""

_NEXT_DOCUMENT = re.compile(r"^[{\[]", re.MULTILINE)
"""Resume point after an unreadable document: a line that opens another."""

_MAX_FAILURES = 1_000
"""Maximum broken documents in a file: searching on would cost more than it finds."""

_LINES_CHECKED = 4
"""Lines checked to distinguish a line file with torn lines from one broken document."""

_SPACE = re.compile(r"[\s,]*")


class Documents(NamedTuple):
    """The documents of a file with their locations, and whether each is on its own line."""

    found: Iterator[tuple[str, Any]]
    by_line: bool


def looks_like_json(data: bytes) -> bool:
    """Return whether bytes may be JSON, by their first character."""
    if data.startswith((codecs.BOM_UTF8, *_UTF16)):
        return True
    return data[:4096].lstrip()[:1] in _OPENINGS


def read_documents(data: bytes, out: Collector) -> Documents:
    """Return the documents of a file; report problems to the collector."""
    # PowerShell redirection writes UTF-16.
    for mark, encoding in _UTF16.items():
        if data.startswith(mark):
            data = data.decode(encoding, "replace").encode("utf-8", "replace")
    data = data.removeprefix(codecs.BOM_UTF8)
    start = len(data) - len(data.lstrip()) if data[:1].isspace() else 0
    end = data.find(b"\n", start)
    # A file of lines: the first is a whole document and another follows.
    if end >= 0 and data[end : end + 4096].strip() and _is_whole(data[start:end].strip()):
        return Documents(_lines(data, out), by_line=True)
    # One pretty-printed document: the most common export of a user interface.
    try:
        document = msgspec.json.decode(data)
    except _REFUSED:
        # A torn line in a file of lines: one of the others is a whole document.
        first_lines = data.split(b"\n", _LINES_CHECKED)[:_LINES_CHECKED]
        if any(_is_whole(line.strip()) for line in first_lines):
            return Documents(_lines(data, out), by_line=True)
        return Documents(_read_tolerantly(data, out), by_line=False)
    return Documents(iter([("", document)]), by_line=False)


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
                yield from _read_tolerantly(line, out, first_line=number, first_byte=start)
        start = end + 1


def _read_tolerantly(
    data: bytes, out: Collector, *, first_line: int = 1, first_byte: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yield consecutive documents; report the location of everything else."""
    out.place = ""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        out.problem(f"byte {first_byte + error.start}", "invalid UTF-8; replaced by U+FFFD")
        text = data.decode("utf-8", "replace")
    decoder = json.JSONDecoder()
    position = failures = 0
    line, counted = first_line, 0  # `line` is the line number of position `counted`
    # White space is skipped, and commas left over from a torn array.
    while (space := _SPACE.match(text, position)) and (position := space.end()) < len(text):
        line += text.count("\n", counted, position)
        counted = position
        try:
            document, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            out.place = ""
            out.problem(*_what_and_where(error, text, position, line))
            following = _NEXT_DOCUMENT.search(text, position + 1)
            failures += 1
            if following is None or failures >= _MAX_FAILURES:
                return
            position = following.start()
        else:
            yield f"line {line}", _clean(document)


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
