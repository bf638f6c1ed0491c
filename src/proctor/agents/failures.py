"""Which failures of an agent may pass by themselves.

Timeouts, lost connections, 429 and 5xx, however a client library spells them; also when they are
only the cause of what was raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

TRANSIENT_STATUS = frozenset({429, 500, 502, 503, 504})
RATE_LIMITED = 429

# Client libraries raise their own classes for a lost connection or a timeout; all of them carry
# one of these words in a class name of their ancestry.
_TRANSIENT_NAMES = frozenset(
    {"APIConnectionError", "APITimeoutError", "TransportError", "TimeoutException", "Timeout"}
)


class Transient(NamedTuple):
    """Why a failure may pass: its status code and the wait the server asked for, if any."""

    status_code: int | None
    retry_after: float | None

    @property
    def rate_limited(self) -> bool:
        """Whether we were asked to slow down."""
        return self.status_code == RATE_LIMITED


def transient(error: BaseException) -> Transient | None:
    """Whether a failure, or one it was raised from, is worth another try."""
    for cause in _causes(error):
        status = _status_code(cause)
        if status is not None:
            return Transient(status, _retry_after(cause)) if status in TRANSIENT_STATUS else None
        if getattr(cause, "transient", None) is True:
            return Transient(None, _retry_after(cause))
        if isinstance(cause, TimeoutError | ConnectionError):
            return Transient(None, None)
        if any(base.__name__ in _TRANSIENT_NAMES for base in type(cause).__mro__):
            return Transient(None, None)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    here: BaseException | None = error
    while here is not None and id(here) not in seen:
        seen.add(id(here))
        yield here
        here = here.__cause__ or (None if here.__suppress_context__ else here.__context__)


def _status_code(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    for holder in (error, response):
        for name in ("status_code", "status", "http_status"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def _retry_after(error: BaseException) -> float | None:
    stated: Any = getattr(error, "retry_after", None)
    if stated is None:
        headers: Any = getattr(getattr(error, "response", None), "headers", None)
        stated = headers.get("retry-after") if hasattr(headers, "get") else None
    return parse_retry_after(stated)


def parse_retry_after(value: Any) -> float | None:
    """Seconds from a Retry-After value: a number, or an HTTP date; None when unreadable."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        pass
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        when = parsedate_to_datetime(str(value))
    except (TypeError, ValueError):
        return None
    if when.tzinfo is None:  # HTTP dates are in UTC, also where they do not say so
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())
