"""Secrets that a name gives away, in text: `password=…`, `"api_key": "…"`, `Authorization: …`.

Promise: finds pairs in prose, code, headers, query strings, JSON, and JSON inside JSON strings
(any number of backslashes), in linear time: every name looks a bounded way to its left, and
every value that is looked at is passed over. Prose about passwords is left as it is: a value
after a bare name must look like a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from proctor.trace.redact_names import BARE_TOKEN, MAX_NAME, secret_kind
from proctor.trace.redact_tokens import Hit

# Every name `secret_kind` knows ends in (the plural of) one of these; each is one fast scan.
STEMS = (
    b"pass",
    b"pwd",
    b"secret",
    b"key",
    b"token",
    b"credential",
    b"authorization",
    b"cookie",
    b"connection",
    b"signature",
)

# The rest of the name, then perhaps a closing quote, then `:` or `=` (or `=>`, `:=`).
_AFTER_STEM = rb"[a-z0-9_-]{0,16}+([\\]{0,15}+[\"'`])?+\]?+[ \t]{0,8}+(?:=>|:=|[:=])(?![:=])"
_SEARCHES = [re.compile(re.escape(stem) + _AFTER_STEM) for stem in STEMS]
_SEARCH_OF: dict[bytes, re.Pattern[bytes]] = dict(zip(STEMS, _SEARCHES, strict=True))
_NAME = re.compile(r"[A-Za-z0-9_.\-]+\Z")
_NAME_END = re.compile(rb"[A-Za-z0-9_-]{0,16}+")

_OPENING = re.compile(rb"[ \t]{0,8}+([\\]{0,15}+)([\"'`])")
_BARE = re.compile(rb"[ \t]{0,8}+([^\s\"'`,;&<>(){}\[\]|\\]++)")
_SCHEME = re.compile(rb"[ \t]*+(?:bearer|basic|token|digest|apikey|negotiate)[ \t]+", re.IGNORECASE)
_COOKIES = re.compile(rb"[ \t]{0,8}+([^\r\n\"'`\\]{1,8192}+)")
_LINE_END = re.compile(rb"[ \t]*+(?:\r?\n|\Z|#)")
_LINE_START = re.compile(rb"[\n\r][ \t]*(?:- |export |set |\* )?[ \t]*\Z")

# An open quote without an end is a text cut short; the value is then taken like a bare one.
_MAX_QUOTED = 4096

_NOT_A_VALUE = re.compile(
    rb"(?i)(?:none|null|nil|undefined|true|false|str|string|int|bool|any|bytes|optional|required"
    rb"|secretstr|os\.environ.*|os\.getenv.*|getenv.*|process\.env.*|self\..*|config\..*"
    rb"|settings\..*|args\..*|env\..*|\$.*|%.*|\*+|\.+|x+|-+|_+|<.*|your[-_ ].*|\[redacted:.*)\Z"
)
_VALUE_SIGNS = re.compile(rb"[0-9!@#$%^*+=/~]|[a-z][A-Z]")
_AFTER_A_TEXT = tuple(bytes([sign]) for sign in b"])},;:+ \t\\")
_DIGITS = re.compile(rb"[0-9][0-9.,]*")
_SOME_LETTERS = re.compile(rb"[A-Za-z0-9][^A-Za-z0-9]*+[A-Za-z0-9][^A-Za-z0-9]*+[A-Za-z0-9]")
_RANDOM = re.compile(rb"(?=[^0-9]*+[0-9])(?=[^A-Za-z]*+[A-Za-z])[^\s]{12,}\Z")


class _Value(NamedTuple):
    start: int
    end: int
    quoted: bool


def pairs(data: bytes, low: bytes) -> Iterator[Hit]:
    """Secret values after secret names; `low` is `data` in lower case."""
    for stem, search in zip(STEMS, _SEARCHES, strict=True):
        if stem not in low:
            continue
        position = 0
        while found := search.search(low, position):
            position = found.end()
            kind = _kind_at(data, found.start())
            if kind is None:
                continue
            value = _value_at(data, found.end(), kind)
            if value is None:
                continue
            position = max(position, value.end)
            if _is_secret(data, found, value, kind):
                kind = "token" if kind == BARE_TOKEN else kind
                # `"password": 1234`: a mark in place of a number needs the quotes of its name.
                quote = (found.group(1) or b"") if not value.quoted else b""
                yield Hit(value.start, value.end, kind, quote)


def named_at(data: bytes, low: bytes, stem: bytes) -> Iterator[int]:
    """Where a secret name with this stem stands before `:` or `=`, whatever comes after it."""
    for found in _SEARCH_OF[stem].finditer(low):
        if _kind_at(data, found.start()) is not None:
            yield found.start()


def _kind_at(data: bytes, stem: int) -> str | None:
    """The kind of the whole name around a stem."""
    end = _NAME_END.match(data, stem)
    stop = end.end() if end else stem
    left = data[max(0, stem - MAX_NAME) : stop].decode("latin-1")
    name = _NAME.search(left)
    return secret_kind(name.group()) if name else None


def _value_at(data: bytes, position: int, kind: str) -> _Value | None:
    if opening := _OPENING.match(data, position):
        end = _closing(data, opening.end(), opening.group(2), len(opening.group(1)))
        if end is not None:
            start = opening.end()
            if kind == "authorization" and (scheme := _SCHEME.match(data, start, end)):
                start = scheme.end()
            return _Value(start, end, True)
        position = opening.end()
    if kind == "authorization" and (scheme := _SCHEME.match(data, position)):
        position = scheme.end()
    pattern = _COOKIES if kind == "cookie" else _BARE
    bare = pattern.match(data, position)
    return _Value(*bare.span(1), False) if bare else None


def _closing(data: bytes, start: int, quote: bytes, level: int) -> int | None:
    """Where a quoted value ends.

    A quote behind `level` backslashes opens it. Inside, each backslash is written `level + 1`
    times, so the closing quote stands behind `level` plus an even number of those; one behind
    fewer than `level` ends the text around.
    """
    limit = min(len(data), start + _MAX_QUOTED)
    position = start
    while (found := data.find(quote, position, limit)) >= 0:
        text = data[start:found]
        behind = len(text) - len(text.rstrip(b"\\"))
        if behind < level or (behind - level) % (2 * (level + 1)) == 0:
            end = found - min(behind, level)
            return None if b"\n" in data[start:end] else end
        position = found + 1
    return None


def _is_secret(data: bytes, name: re.Match[bytes], value: _Value, kind: str) -> bool:
    text = data[value.start : value.end]
    if not text.strip() or _NOT_A_VALUE.match(text):
        return False
    if kind == BARE_TOKEN:
        return bool(_RANDOM.match(text))
    if kind != "password" and (_DIGITS.fullmatch(text) or not _SOME_LETTERS.search(text)):
        return False
    if kind == "cookie" and not name.group().endswith(b":"):
        return False  # code that handles cookies; a header has a colon
    if kind == "credential" and not (len(text) >= 8 and _VALUE_SIGNS.search(text)):
        return False  # `credentials: "include"`, `connection string: see below`
    if name.group(1):  # a quoted name: JSON, or code, where a bare word is a variable
        return value.quoted or bool(_DIGITS.fullmatch(text))
    if value.quoted:
        # In `"Enter password: "` and `["password="]` the quote ends the text around the name.
        return text[:1] not in _AFTER_A_TEXT
    if data[value.end : value.end + 1] in (b"(", b"["):
        return False  # a call or a lookup in code
    separator = name.group().rstrip(b"=>:")
    if name.group().endswith(b"=") and separator == separator.rstrip():
        return not _is_same_name(name, text)
    return _stands_alone(data, name, value) or bool(_VALUE_SIGNS.search(text))


def _is_same_name(name: re.Match[bytes], text: bytes) -> bool:
    """`api_key=api_key`, `password=db_password`: a variable handed on in code."""
    return secret_kind(text.decode("latin-1")) is not None and not _VALUE_SIGNS.search(text)


def _stands_alone(data: bytes, name: re.Match[bytes], value: _Value) -> bool:
    """A line of a settings file: nothing but the name, the separator and the value."""
    if not _LINE_END.match(data, value.end):
        return False
    head = data[max(0, name.start() - MAX_NAME) : name.start()].rstrip(
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-\"'"
    )
    return bool(_LINE_START.search(b"\n" + head if len(head) < MAX_NAME else head))
