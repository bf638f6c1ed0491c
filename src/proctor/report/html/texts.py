"""Texts on their way into a page: without secrets, with every character visible, and cut.

Promise: nothing reaches a page but through here. What is cut says how much is missing.
"""

from __future__ import annotations

import json
from typing import Any

from proctor.report.html.markup import visible
from proctor.report.text import plain
from proctor.trace.redact import Redactor
from proctor.trace.redact_marks import MARK

LONGEST = 4_000
"""Characters shown of one text: two screens. The whole of it is in the run folder."""

WORD = 200
"""Characters of a name."""

ITEMS = 200
"""Items shown of a list or a mapping."""


class Texts:
    """Makes values fit for a page; counts what it took out."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self.redacted = 0

    def said(self, text: str | None) -> str | None:
        """A text of any length, as shown."""
        return None if text is None else cut(visible(self.clean(text)))

    def word(self, text: str) -> str:
        """A name, as shown."""
        return cut(visible(self.clean(text)), WORD)

    def value(self, value: Any) -> str | None:
        """Any value as text: strings as they are, the rest as JSON."""
        if value is None:
            return None
        if isinstance(value, str):
            return self.said(value)
        whole = plain(self.clean(value), most=LONGEST)
        return cut(visible(json.dumps(whole, ensure_ascii=False, indent=1)))

    def clean(self, value: Any) -> Any:
        """A value without its secrets; places that lose one are counted."""
        redacted = self._redactor.value(value)
        if redacted is not value:
            self.redacted += max(1, _marks(redacted) - _marks(value))
        return redacted


def _marks(value: Any) -> int:
    return len(MARK.findall(value if isinstance(value, str) else repr(value)))


def cut(text: str, limit: int = LONGEST) -> str:
    """At most `limit` characters, and how many more there are."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} characters more)"
