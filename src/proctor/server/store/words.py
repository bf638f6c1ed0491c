"""Every text of a request in one place, to be searched for secrets at once.

Promise: what is found clean here is what redaction would leave as it is: each name, key and value
is looked at, at any depth. What cannot be told apart cheaply (values of a foreign type, names that
make a secret of what stands under them) is never called clean; the careful way decides then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from proctor.trace.redact_names import secret_kind

if TYPE_CHECKING:
    from proctor.server.store.rows import Chunk
    from proctor.trace import Event, Trace
    from proctor.trace.redact import Redactor

_ID_DIGITS = "0123456789abcdef"
_LONGEST_ID = 32
_WITHOUT_TEXT = frozenset({int, float, bool, type(None)})
_DEEPEST = 32
"""Deeper values are left to the careful way."""


class Words:
    """The texts and names of some traces, each once."""

    def __init__(self, parts: Iterable[tuple[Trace, Chunk]]) -> None:
        self._texts: set[str] = set()
        self._names: set[str] = set()
        self._odd = False
        for trace, chunk in parts:
            self._id(trace.trace_id)
            self._mapping(trace.metadata, 0)
            for span in trace.spans:
                self._id(span.span_id)
                self._id(span.parent_id)
                self._text(span.name)
                self._text(span.scope)
                self._text(span.error_message)
                self._mapping(span.attributes, 0)
                self._events(span.events)
            for log in chunk.logs:
                self._id(log.span_id)
                self._events((log.event,))

    def are_clean(self, redactor: Redactor) -> bool:
        """Whether a redactor would leave all of it as it is; False where it may not."""
        if self._odd or any(secret_kind(name) is not None for name in self._names):
            return False
        return redactor.are_clean(self._texts | self._names)

    def _events(self, events: Iterable[Event]) -> None:
        for event in events:
            self._text(event.name)
            self._mapping(event.attributes, 0)

    def _id(self, identity: str | None) -> None:
        if identity and (len(identity) > _LONGEST_ID or identity.strip(_ID_DIGITS)):
            self._texts.add(identity)

    def _text(self, text: str | None) -> None:
        if text:
            self._texts.add(text)

    def _mapping(self, mapping: Mapping[str, Any], depth: int) -> None:
        self._names.update(mapping)
        add = self._texts.add
        for value in mapping.values():
            kind = value.__class__
            if kind is str:
                add(value)
            elif kind not in _WITHOUT_TEXT:
                self._value(value, depth + 1)

    def _value(self, value: Any, depth: int) -> None:
        if depth > _DEEPEST:
            self._odd = True
        elif value.__class__ is str:
            self._texts.add(value)
        elif value.__class__ is dict:
            self._mapping(cast("dict[str, Any]", value), depth)
        elif value.__class__ is list or value.__class__ is tuple:
            for item in cast("list[Any]", value):
                self._value(item, depth + 1)
        elif value.__class__ not in _WITHOUT_TEXT:
            self._odd = True
