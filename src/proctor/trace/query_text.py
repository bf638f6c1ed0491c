"""Span and trace queries as people type them: YAML or JSON text, or `@file`.

Promise: what cannot be understood is one line with its place in the text; nothing in a query is
ever executed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from proctor.trace.quantifiers import TraceQuery, parse_query
from proctor.trace.query import QueryError, SpanQuery


def read_query_text(text: str) -> SpanQuery | TraceQuery:
    """The query in a text, or in the file that `@path` names."""
    where, body = "query", text
    if text.startswith("@"):
        where = text[1:]
        try:
            body = Path(where).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise QueryError(f"cannot read the query: {reason}", where=where) from None
    mapping = _mapping(body, where)
    try:
        return parse_query(mapping)
    except QueryError as error:
        place = f"{where}: {error.where}" if error.where else where
        raise QueryError(error.message, where=place, hint=error.hint) from None


def _mapping(body: str, where: str) -> dict[str, Any]:
    import yaml

    try:
        found: Any = yaml.safe_load(body)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        raise QueryError(f"not YAML: {error.problem or 'cannot be read'}", where=place) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise QueryError(f"not YAML: {str(error).splitlines()[0]}", where=where) from None
    if not isinstance(found, dict):
        raise QueryError(
            f"a query is a mapping, not {'nothing' if found is None else repr(found)[:60]}",
            where=where,
            hint="for example '{kind: tool, has_status: error}'",
        )
    mapping = cast("dict[Any, Any]", found)
    return {str(key): value for key, value in mapping.items()}
