"""The limits of one trial on calls, tokens and money, checked before each model call.

Promise: a call is sent only if it fits with certainty. What it may use at most (its input as an
upper bound, the output it asks for) is reserved until its real usage is known, also for calls side
by side. If only a shorter answer fits, the call is sent with a lower maximum. Spending therefore
stays within the limit as long as a token is at least two bytes of the request on average, which
holds for text and code of every current tokenizer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from proctor.errors import ProctorError
from proctor.formatting import dollars
from proctor.gateway.options import GatewayOptions
from proctor.trace.model import Span

BYTES_PER_TOKEN = 2

UNLIMITED_OUTPUT = 128_000
"""Output tokens assumed for a call that sets no maximum: no current model writes more at once."""

INTERRUPTED = "Disconnected"
"""Error type of a call whose response was not read to its end."""

Price = Callable[[int, int], "float | None"]
"""Takes input and output tokens of a call; returns dollars, or None if they are unknown."""


class BudgetExceeded(ProctorError):
    """Raised for a call that does not fit into the budget of its trial."""


@dataclass(slots=True, eq=False)
class BudgetReservation:
    """What a call may use at most."""

    tokens: int
    cost: float
    max_output: int | None
    """A lower maximum than the request's, or None."""


class TrialBudget:
    """Spending of one trial. Used from the gateway's event loop only."""

    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self.calls = 0
        self.tokens = 0
        self.cost = 0.0
        self._open: list[BudgetReservation] = []
        self._settled = asyncio.Event()

    @property
    def limited(self) -> bool:
        """Whether any limit is set."""
        options = self._options
        return (options.max_cost_usd, options.max_tokens, options.max_calls) != (None, None, None)

    async def reserve(
        self, request_bytes: int, asked: int | None, price: Price
    ) -> BudgetReservation:
        """Wait for calls under way if this one might not fit beside them; raise if it cannot."""
        tokens_in = request_bytes // BYTES_PER_TOKEN + 1
        while True:
            fits = self._fitting_output(tokens_in, price)
            wanted = UNLIMITED_OUTPUT if asked is None else asked
            if fits >= wanted or not self._open:
                break
            self._settled.clear()
            await self._settled.wait()
        if fits < 1:
            raise BudgetExceeded(self._exhausted())
        output = min(wanted, fits)
        cost = price(tokens_in, output) if self._options.max_cost_usd is not None else None
        lowered = None if output == wanted else output
        reservation = BudgetReservation(tokens_in + output, cost or 0.0, lowered)
        self._open.append(reservation)
        self.calls += 1
        return reservation

    def settle(self, reservation: BudgetReservation, span: Span) -> None:
        """Replace a reservation by what the call used.

        A call that was refused used nothing. What an interrupted one used is not known, so all
        that it may have used counts.
        """
        self._open.remove(reservation)
        used = (span.input_tokens, span.output_tokens)
        if span.failed and used == (None, None) and span.error_type != INTERRUPTED:
            reservation.tokens, reservation.cost = 0, 0.0
        known = None if None in used else sum(count or 0 for count in used)
        self.tokens += reservation.tokens if known is None else known
        self.cost += reservation.cost if span.cost_usd is None else span.cost_usd
        self._settled.set()

    def _fitting_output(self, tokens_in: int, price: Price) -> int:
        """Return the most output tokens of a call that fits now; 0 if none does."""
        options, fits = self._options, UNLIMITED_OUTPUT
        if options.max_calls is not None and self.calls >= options.max_calls:
            return 0
        if options.max_tokens is not None:
            used = self.tokens + sum(each.tokens for each in self._open)
            fits = min(fits, options.max_tokens - used - tokens_in)
        if options.max_cost_usd is not None:
            left = options.max_cost_usd - self.cost - sum(each.cost for each in self._open)
            least, most = price(tokens_in, 0), price(tokens_in, UNLIMITED_OUTPUT)
            if least is None or most is None:
                raise BudgetExceeded(
                    "the model has no known price, so its cost cannot be limited",
                    hint="add the model to `prices` in the settings",
                )
            if left < least:
                return 0
            if most > left:
                fits = min(fits, int((left - least) / (most - least) * UNLIMITED_OUTPUT))
        return max(fits, 0)

    def _exhausted(self) -> str:
        options = self._options
        limits = {
            f"{options.max_calls} calls": options.max_calls,
            f"{options.max_tokens} tokens": options.max_tokens,
            dollars(options.max_cost_usd or 0.0): options.max_cost_usd,
        }
        limit = " and ".join(name for name, value in limits.items() if value is not None)
        used = f"{self.calls} calls, {self.tokens} tokens, {dollars(self.cost)} used"
        return f"the trial's limit of {limit} does not allow another call ({used})"
