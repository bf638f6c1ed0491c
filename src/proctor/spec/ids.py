"""Ids of cases: stable, and safe as the name of a file on every system.

Baselines and results are kept under a case's id, so an id is held to what Windows allows as a
file name, and two ids that differ only in case are the same.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from typing import Any

LONGEST_SLUG = 60
"""Readable in a table, and far from the limits of paths."""

LONGEST_ID = 100
"""With a suffix and a folder this stays within the 260 characters of an old Windows path."""

_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
_ALLOWED = re.compile(r"\w[\w.@+=~()\[\]-]*")
_DIGEST = 6


def problem_with_id(text: str) -> str | None:
    """Why a text cannot be the id of a case; None when it can."""
    if not text:
        return "an id must not be empty"
    if len(text) > LONGEST_ID:
        return f"an id has at most {LONGEST_ID} characters, this one {len(text)}"
    if not _ALLOWED.fullmatch(text):
        return (
            f"the id {text!r} must begin with a letter or digit and hold only letters, digits "
            f"and . _ - @ + = ~ ( ) [ ], such as {slug(text)!r}"
        )
    if _RESERVED.fullmatch(text) or text.endswith("."):
        return f"the id {text!r} cannot be the name of a file on Windows"
    return None


def slug(value: Any) -> str:
    """An id made from a case's input: its words, and a digest of the whole when they are cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = "-".join(re.findall(r"[^\W_]+", plain))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    if not words:
        return f"case-{digest}"
    if _RESERVED.fullmatch(words):
        return f"case-{words}"
    if len(words) <= LONGEST_SLUG:
        return words
    room = LONGEST_SLUG - _DIGEST - 1
    kept = words[:room]
    if "-" in kept and words[room] != "-":
        kept = kept.rpartition("-")[0]
    return f"{kept.rstrip('-')}-{digest}"


def same_id(text: str) -> str:
    """What two ids have in common when no file system tells them apart."""
    return unicodedata.normalize("NFC", text).casefold()
