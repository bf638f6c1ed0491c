"""Limits on calls, tokens and money of a trial or of a whole run, checked before each model call.

Promise: a call is sent only if it fits with certainty. What it may use at most (its input as an
upper bound, the output it asks for) is reserved until its real usage is known, also for calls side
by side. If only a shorter answer fits, the call is sent with a lower maximum. Spending therefore
stays within the limit as long as a token is at least two bytes of the request on average, which
holds for text and code of every current tokenizer. Input that a request only refers to (an earlier
response, a file, an address of an image) counts as a whole context window.

Trade-off: near the limit calls wait for each other, because each reserves more than it will use.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import msgspec

from proctor.errors import ProctorError
from proctor.formatting import dollars
from proctor.trace.model import Span

BYTES_PER_TOKEN = 2

UNLIMITED_OUTPUT = 128_000
"""Output tokens assumed for a call that sets no maximum: no current model writes more at once."""

CONTEXT_WINDOW = 1_050_000
"""Input tokens of a call that refers to content held elsewhere: no common model reads more."""

# Content that is not in the request: earlier responses, conversations, files, images by address.
_REFERS = re.compile(
    rb'"(?:previous_response_id|conversation|file_id|file_uri|fileUri|cached_?[cC]ontent)"\s*:\s*"'
    rb'|"image_url"\s*:\s*(?:\{\s*"url"\s*:\s*)?"https?:'
    rb'|"type"\s*:\s*"url"\s*,\s*"url"\s*:\s*"|"url"\s*:\s*"https?:[^"]*"\s*,\s*"type"\s*:\s*"url"'
)

INTERRUPTED = "Disconnected"
"""Error type of a call whose response was not read to its end."""


class BudgetExceeded(ProctorError):
    """Raised for a call that does not fit into a budget."""


class RunLimitReached(ProctorError):
    """Ends a trial whose next call does not fit into the budget of the whole run."""


class CallBounds(msgspec.Struct, frozen=True, array_like=True):
    """What one call may use at most."""

    input_tokens: int
    output_tokens: int
    input_cost: float | None = None
    """Dollars of the input; None if the price is unknown or no money is limited."""
    token_cost: float | None = None
    """Dollars of one output token."""

    @classmethod
    def of(
        cls, body: bytes, asked: int | None, price: Callable[[int, int], float | None] | None
    ) -> CallBounds:
        """Return the bounds of a request; `price` takes input and output tokens."""
        tokens = len(body) // BYTES_PER_TOKEN + 1
        if _REFERS.search(body):
            tokens += CONTEXT_WINDOW
        least, most = (None, None) if price is None else (price(tokens, 0), price(tokens, 1000))
        each = None if least is None or most is None else (most - least) / 1000
        return cls(tokens, UNLIMITED_OUTPUT if asked is None else asked, least, each)

    def cost(self, output: int) -> float:
        """Return the dollars of the call with this many output tokens; 0 if they are unknown."""
        return (self.input_cost or 0.0) + output * (self.token_cost or 0.0)


class BudgetReservation(msgspec.Struct, array_like=True, eq=False):
    """What a call may use at most, until its usage is known."""

    tokens: int
    cost: float
    max_output: int | None = None
    """A lower maximum than the request's, or None."""
    number: int = 0
    """Its number at the driver of a run."""


class CallUsage(msgspec.Struct, frozen=True, array_like=True):
    """What a call used; None is unknown."""

    tokens: int | None
    cost_usd: float | None

    @classmethod
    def of(cls, span: Span) -> CallUsage:
        """Return the usage of a call that has ended.

        A call that was refused used nothing. What an interrupted one used is not known.
        """
        used = (span.input_tokens, span.output_tokens)
        if span.failed and used == (None, None) and span.error_type != INTERRUPTED:
            return cls(0, 0.0)
        return cls(None if None in used else sum(each or 0 for each in used), span.cost_usd)


class CallLedger(Protocol):
    """Where the model calls of all trials of a run are counted and recorded as they happen."""

    @property
    def limited(self) -> bool:
        """Whether calls need a reservation."""
        ...

    async def reserve(self, trial: str, bounds: CallBounds) -> BudgetReservation:
        """Wait until a call fits into the limits of the run; raise `BudgetExceeded` if it cannot.

        `trial` is the trial's key.
        """
        ...

    def ended(
        self, trial: str, reservation: BudgetReservation | None, usage: CallUsage, span: Span
    ) -> Future[None] | None:
        """Take a call that has ended; the future is done when it is on record, None if it is."""
        ...


class CallBudget:
    """Spending under limits. Any thread and event loop may use it."""

    def __init__(
        self,
        max_cost_usd: float | None = None,
        max_tokens: int | None = None,
        max_calls: int | None = None,
        *,
        of: str = "trial",
    ) -> None:
        self._max_cost, self._max_tokens, self._max_calls = max_cost_usd, max_tokens, max_calls
        self._of = of
        self.limited = (max_cost_usd, max_tokens, max_calls) != (None, None, None)
        """Whether any limit is set."""
        self.calls = 0
        self.tokens = 0
        self.cost = 0.0
        self._open: list[BudgetReservation] = []
        self._lock = threading.Lock()
        self._waiting: list[Future[None]] = []

    async def reserve(
        self, bounds: CallBounds, *, wanted: Callable[[], bool] = lambda: True
    ) -> BudgetReservation:
        """Wait for calls under way if this one might not fit beside them; raise if it cannot.

        While it waits, `wanted` says whether it still should.
        """
        while True:
            with self._lock:
                fits = self._fitting_output(bounds)
                if fits >= bounds.output_tokens or not self._open:
                    if fits < 1:
                        raise BudgetExceeded(self._exhausted())
                    output = min(bounds.output_tokens, fits)
                    lowered = None if output == bounds.output_tokens else output
                    tokens = bounds.input_tokens + output
                    reservation = BudgetReservation(tokens, bounds.cost(output), lowered)
                    self._open.append(reservation)
                    self.calls += 1
                    return reservation
                turn: Future[None] = Future()
                self._waiting.append(turn)
            await asyncio.wrap_future(turn)
            if not wanted():
                raise BudgetExceeded("the trial has ended")

    def settle(self, reservation: BudgetReservation, usage: CallUsage) -> None:
        """Replace a reservation by what the call used; of an unknown one, all of it counts."""
        with self._lock:
            self._open.remove(reservation)
            self.tokens += reservation.tokens if usage.tokens is None else usage.tokens
            self.cost += reservation.cost if usage.cost_usd is None else usage.cost_usd
        self.wake()

    def add(self, tokens: int, cost_usd: float) -> None:
        """Count what was used without a reservation; negative to correct an earlier figure."""
        with self._lock:
            self.tokens += tokens
            self.cost += cost_usd
        if self._waiting:
            self.wake()

    def wake(self) -> None:
        """Have the calls that wait look again."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.set_running_or_notify_cancel():
                each.set_result(None)

    def _fitting_output(self, bounds: CallBounds) -> int:
        """Return the most output tokens of a call that fits now; 0 if none does."""
        fits = UNLIMITED_OUTPUT
        if self._max_calls is not None and self.calls >= self._max_calls:
            return 0
        if self._max_tokens is not None:
            used = self.tokens + sum(each.tokens for each in self._open)
            fits = min(fits, self._max_tokens - used - bounds.input_tokens)
        if self._max_cost is not None:
            if bounds.input_cost is None or bounds.token_cost is None:
                raise BudgetExceeded(
                    "the model has no known price, so its cost cannot be limited",
                    hint="add the model to `prices` in the settings",
                )
            left = self._max_cost - self.cost - sum(each.cost for each in self._open)
            if left < bounds.input_cost:
                return 0
            if bounds.cost(UNLIMITED_OUTPUT) > left:
                fits = min(fits, int((left - bounds.input_cost) / bounds.token_cost))
        return max(fits, 0)

    def _exhausted(self) -> str:
        limits = {
            f"{self._max_calls} calls": self._max_calls,
            f"{self._max_tokens} tokens": self._max_tokens,
            dollars(self._max_cost or 0.0): self._max_cost,
        }
        limit = " and ".join(name for name, value in limits.items() if value is not None)
        used = f"{self.tokens} tokens, {dollars(self.cost)} used"
        if self._max_calls is not None:
            used = f"{self.calls} calls, {used}"
        return f"the {self._of}'s limit of {limit} does not allow another call ({used})"
