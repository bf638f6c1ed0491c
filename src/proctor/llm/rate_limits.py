"""Limit requests and tokens per minute of a provider, first come first served.

Guarantees: in no window of 60 seconds, wherever it begins, are more requests started or more tokens
reserved than the limit. That is why this is a sliding window and not a token bucket, which lets
through twice its rate around a refill. Tokens are estimated before a call and corrected after it; a
call larger than the whole limit runs alone.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
from pydantic import Field

from proctor.strict import Strict

if TYPE_CHECKING:
    from proctor.llm.chat_model import ChatModel, ChatReply, ChatRequest

WINDOW = 60.0
"""Seconds; providers state their limits per minute."""

# Characters per token of English text; close enough for a reservation.
_CHARS_PER_TOKEN = 4

# Tokens reserved for a reply when the request sets no maximum.
_REPLY_TOKENS = 500

Clock = Callable[[], float]
Sleep = Callable[[float], Coroutine[Any, Any, None]]

# Prefixes that use the same account → its name in the settings.
_ALIASES = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "google-gla": "google",
    "google-vertex": "google",
    "google-cloud": "google",
}


class RateLimit(Strict):
    """Limits of one provider per minute; None is no limit."""

    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None


@dataclass(slots=True, eq=False)
class Reservation:
    """Reservation of one call. `settle` corrects the estimate."""

    at: float
    tokens: int
    _limiter: RateLimiter

    def settle(self, tokens: int | None) -> None:
        """Set the tokens used by the call; None (unknown) leaves the estimate."""
        if tokens is not None:
            self._limiter.correct(self, tokens)


class Permit(Protocol):
    """Permission for one call."""

    def settle(self, tokens: int | None) -> None:
        """Set the tokens used by the call; None if unknown."""
        ...


class Limiter(Protocol):
    """Source of permits: a `RateLimiter` here, or one in another process."""

    async def acquire(self, tokens: int = 0) -> Permit:
        """Wait for one request of about `tokens` tokens."""
        ...


class RateLimiter:
    """Admits calls in order of arrival, as fast as the limit allows."""

    def __init__(
        self, limit: RateLimit, *, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.limit = limit
        self._clock = clock
        self._sleep = sleep
        self._recent: deque[Reservation] = deque()
        # A running total, because a window may hold tens of thousands of calls.
        self._used = 0
        self._guard = threading.Lock()
        # An asyncio lock belongs to one event loop, a limiter to the process.
        self._queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )

    async def acquire(self, tokens: int = 0) -> Reservation:
        """Wait for one request of about `tokens` tokens."""
        queue = self._queues.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with queue:  # held by the longest waiting call, so none overtakes it
            while True:
                result = self._reserve(tokens)
                if isinstance(result, Reservation):
                    return result
                await self._sleep(result)

    def _reserve(self, tokens: int) -> Reservation | float:
        """Return a reservation, or the seconds until one is possible."""
        with self._guard:
            now = self._clock()
            while self._recent and _leaves_window_at(self._recent[0]) <= now:
                self._used -= self._recent.popleft().tokens
            free_at = self._tokens_free_at(now, tokens)
            most = self.limit.requests_per_minute
            if most is not None and len(self._recent) >= most:
                free_at = max(free_at, _leaves_window_at(self._recent[len(self._recent) - most]))
            if free_at > now:
                return free_at - now
            reservation = Reservation(now, tokens, self)
            self._recent.append(reservation)
            self._used += tokens
            return reservation

    def correct(self, reservation: Reservation, tokens: int) -> None:
        """Correct the tokens of a call, unless it has left the window."""
        with self._guard:
            # Older reservations were subtracted from the total when they left the window.
            if self._recent and reservation.at >= self._recent[0].at:
                self._used += tokens - reservation.tokens
            reservation.tokens = tokens

    def _tokens_free_at(self, now: float, tokens: int) -> float:
        most = self.limit.tokens_per_minute
        if most is None:
            return now
        used = self._used
        free_at = now
        for reservation in self._recent:
            # With an empty window even a call beyond the limit may run.
            if used + tokens <= most or used <= 0:
                break
            used -= reservation.tokens
            free_at = _leaves_window_at(reservation)
        return free_at


def _leaves_window_at(reservation: Reservation) -> float:
    """Return when a call leaves the window, rounded up."""
    return math.nextafter(reservation.at + WINDOW, math.inf)


class Waits(msgspec.Struct, eq=False):
    """Seconds that a trial waited for its own harness, not for its agent.

    A context manager that may be entered again: waits that overlap count once.
    """

    _depth: int = 0
    _since: float = 0.0
    _total: float = 0.0

    def __enter__(self) -> None:
        if not self._depth:
            self._since = time.perf_counter()
        self._depth += 1

    def __exit__(self, *_error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._total += time.perf_counter() - self._since

    def add(self, seconds: float) -> None:
        """Count more, or less: what began or ended earlier than it was seen."""
        self._total += seconds

    @property
    def seconds(self) -> float:
        """The sum so far, a wait under way included."""
        return self._total + (time.perf_counter() - self._since if self._depth else 0.0)


queue_waits: ContextVar[Waits | None] = ContextVar("proctor_queue_waits", default=None)
"""Where waiting for a rate limit is added up, while a trial runs."""


class RateLimited:
    """A `ChatModel` that waits for its limiter."""

    def __init__(self, model: ChatModel, limiter: Limiter) -> None:
        self._model = model
        self._limiter = limiter

    @property
    def name(self) -> str:
        """Return the model name as the user wrote it."""
        return self._model.name

    @property
    def identity(self) -> str:
        """Return the model and its endpoint."""
        return self._model.identity

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Wait for a permit, then make one call."""
        with queue_waits.get() or nullcontext():
            reservation = await self._limiter.acquire(estimate_tokens(request))
        reply = await self._model.complete(request)
        usage = reply.usage
        if usage.input_tokens is not None and usage.output_tokens is not None:
            reservation.settle(usage.input_tokens + usage.output_tokens)
        return reply


def estimate_tokens(request: ChatRequest) -> int:
    """Return the estimated tokens of a call, input and reply."""
    characters = sum(len(message.content or "") for message in request.messages)
    characters += sum(
        len(str(call.arguments)) for message in request.messages for call in message.tool_calls
    )
    characters += sum(len(tool.description) + len(str(tool.schema)) for tool in request.tools)
    reply = _REPLY_TOKENS if request.max_tokens is None else request.max_tokens
    return characters // _CHARS_PER_TOKEN + reply


def provider_of(model: str) -> str | None:
    """Return the provider whose limits apply to a model: `openai:gpt-4o` → `openai`."""
    if model.startswith("litellm/"):
        provider = model.removeprefix("litellm/").partition("/")[0]
    else:
        provider, colon, _ = model.partition(":" if ":" in model else "/")
        if not colon:
            return None
    return _ALIASES.get(provider, provider)


# -- the limits of a run -------------------------------------------------------------------------

_in_force: ContextVar[Mapping[str, Limiter] | None] = ContextVar("proctor_rates", default=None)


@contextmanager
def rates_in_force(
    rates: Mapping[str, RateLimit], *, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep
) -> Generator[None]:
    """Apply these limits to every model call inside the block, and in tasks started in it."""
    limiters = {
        _ALIASES.get(provider, provider): RateLimiter(limit, clock=clock, sleep=sleep)
        for provider, limit in rates.items()
    }
    with limiters_in_force(limiters):
        yield


@contextmanager
def limiters_in_force(limiters: Mapping[str, Limiter]) -> Generator[None]:
    """Apply limits like `rates_in_force`, with a given limiter for each provider."""
    token = _in_force.set(limiters)
    try:
        yield
    finally:
        _in_force.reset(token)


def limiter_in_force(provider: str) -> Limiter | None:
    """Return the limiter of a provider; None if it has no limit."""
    return (_in_force.get() or {}).get(provider)


def limited_providers() -> tuple[str, ...]:
    """Return the providers that have limits."""
    return tuple(_in_force.get() or ())


def rate_limited(model: ChatModel, provider: str | None = None) -> ChatModel:
    """Return the model with the active limits of its provider, if there are any."""
    limiter = limiter_in_force(provider or provider_of(model.name) or "")
    return model if limiter is None else RateLimited(model, limiter)
