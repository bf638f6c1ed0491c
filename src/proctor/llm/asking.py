"""Ask a model until it answers: retries of what may pass, within the rates in force.

Promise: a transient failure is asked again after the wait the provider named, or after a spread
one; anything else, and a wait that is too long, is raised at once. Every reply costs one call.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from proctor.llm.chat_model import ChatModel, ChatReply, ChatRequest, ModelError
from proctor.llm.rate_limits import rate_limited


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a failing call is made again, and how long a wait may be, in seconds."""

    retries: int = 3
    longest_wait: float = 30.0
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    rng: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 (spreads waits)


async def ask(
    model: ChatModel, request: ChatRequest, patience: Patience | None = None
) -> ChatReply:
    """The model's reply, or the `ModelError` of the last try."""
    patience = patience or Patience()
    for attempt in range(patience.retries):
        try:
            return await rate_limited(model).complete(request)
        except ModelError as error:
            told = error.retry_after or 0.0
            if not error.transient or told > patience.longest_wait:
                raise
            spread = patience.rng.uniform(0, min(2.0**attempt, patience.longest_wait))
            await patience.sleep(max(told, spread))
    return await rate_limited(model).complete(request)
