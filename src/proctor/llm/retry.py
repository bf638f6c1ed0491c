"""Which failures are transient, and how long to wait before the next attempt.

One rule for trials, judges, diagnosis and object stores: rate limits, timeouts, lost connections
and server errors are retried, however a client library spells them, also when they are only the
cause of the exception that was raised. A server's Retry-After is honoured; other waits are drawn
from the full range ("full jitter"), so that many clients that failed together spread out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from proctor.llm.chat_model import ChatModel, ChatReply, ChatRequest

MAX_RETRIES = 3
BASE_DELAY = 1.0
MAX_DELAY = 30.0
MAX_RETRY_AFTER = 300.0
"""A server that asks for more than this is down for our purposes: the trial ends as infra."""

RATE_LIMITED = 429
_TRANSIENT_CLIENT_ERRORS = frozenset({408, 425, RATE_LIMITED})
# Not implemented, and an unsupported HTTP version: the next attempt gets the same answer.
_PERMANENT_SERVER_ERRORS = frozenset({501, 505})

ACCOUNT_REFUSED = frozenset({401, 402, 403})
"""Statuses of a missing key, an unpaid bill and a forbidden model: no agent can help that."""

# Client libraries raise their own classes for a lost connection or a timeout; each of them has
# one of these names in its ancestry.
_TRANSIENT_NAMES = frozenset(
    {"APIConnectionError", "APITimeoutError", "TransportError", "TimeoutException", "Timeout"}
)


class Transient(NamedTuple):
    """A failure worth another attempt: its HTTP status and the delay the server requests."""

    status_code: int | None
    retry_after: float | None

    @property
    def rate_limited(self) -> bool:
        """Whether the server asked to slow down."""
        return self.status_code == RATE_LIMITED


def transient(error: BaseException) -> Transient | None:
    """Return why a failure, or one it was raised from, is worth another attempt; else None.

    An exception with an attribute `transient` of True or False decides for itself: a quota that
    is used up has the status of a rate limit, but no wait helps.
    """
    for cause in causes(error):
        status = status_code(cause)
        decided = getattr(cause, "transient", None)
        if isinstance(cause, BaseExceptionGroup):
            # A task group raises what its tasks did: a retry helps if it helps all of them.
            members = cast("BaseExceptionGroup[BaseException]", cause).exceptions
            reasons = [transient(each) for each in members]
            found = [reason for reason in reasons if reason is not None]
            if len(found) < len(reasons):
                return None
            return max(found, key=lambda reason: reason.retry_after or 0.0)
        if decided is False:
            return None
        if decided is True:
            return Transient(status, retry_after(cause))
        if status is not None:
            return Transient(status, retry_after(cause)) if is_transient_status(status) else None
        if isinstance(cause, TimeoutError | ConnectionError):
            return Transient(None, None)
        if any(base.__name__ in _TRANSIENT_NAMES for base in type(cause).__mro__):
            return Transient(None, None)
    return None


def is_transient_status(status: int) -> bool:
    """Return whether a request that got this HTTP status may succeed later."""
    if status >= 500:
        return status not in _PERMANENT_SERVER_ERRORS
    return status in _TRANSIENT_CLIENT_ERRORS


def retry_delay(attempt: int, retry_after: float | None, random: Random) -> float:
    """Return the seconds to wait after failed attempt number `attempt`, counted from 0."""
    drawn = random.uniform(0.0, min(BASE_DELAY * 2**attempt, MAX_DELAY))
    return max(drawn, retry_after or 0.0)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those it was raised from or while handling."""
    seen: set[int] = set()
    here: BaseException | None = error
    while here is not None and id(here) not in seen:
        seen.add(id(here))
        yield here
        here = here.__cause__ or (None if here.__suppress_context__ else here.__context__)


def status_code(error: BaseException) -> int | None:
    """Return the HTTP status that an exception, or the response it holds, names."""
    response = getattr(error, "response", None)
    for holder in (error, response):
        for name in ("status_code", "status", "http_status"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def retry_after(error: BaseException) -> float | None:
    """Return the seconds that an exception, or the response it holds, asks to wait."""
    stated = parse_retry_after(getattr(error, "retry_after", None))
    if stated is not None:
        return stated
    return requested_delay(getattr(getattr(error, "response", None), "headers", None))


def requested_delay(headers: Any) -> float | None:
    """Return the seconds that the headers of a response ask to wait."""
    if not hasattr(headers, "get"):
        return None
    try:  # OpenAI and others send milliseconds as well, which are more precise
        return max(0.0, float(headers.get("retry-after-ms")) / 1000)
    except (TypeError, ValueError):
        return parse_retry_after(headers.get("retry-after"))


def parse_retry_after(value: Any) -> float | None:
    """Return the seconds of a Retry-After value: a number or an HTTP date; None if unreadable."""
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


# -- model calls -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a failed model call is repeated, and the longest wait in seconds."""

    retries: int = MAX_RETRIES
    longest_wait: float = MAX_DELAY
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    random: Random = field(default_factory=lambda: Random(0))  # noqa: S311 (spreads waits)


async def complete_with_retries(
    model: ChatModel, request: ChatRequest, policy: RetryPolicy | None = None
) -> ChatReply:
    """Return the model's reply within the rate limits in force, repeating transient failures.

    Raises the `ModelError` of the last attempt; one that is not transient, or that asks for more
    than `longest_wait`, is raised at once. Every reply costs one call.
    """
    from proctor.llm.rate_limits import rate_limited

    policy = policy or RetryPolicy()
    for attempt in range(policy.retries):
        try:
            return await rate_limited(model).complete(request)
        except Exception as error:
            reason = transient(error)
            if reason is None or (reason.retry_after or 0.0) > policy.longest_wait:
                raise
            wait = retry_delay(attempt, reason.retry_after, policy.random)
        await policy.sleep(min(wait, policy.longest_wait))
    return await rate_limited(model).complete(request)
