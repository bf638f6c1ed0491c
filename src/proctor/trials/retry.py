"""How long to wait before another try at a failure that may pass.

Promise: only transient failures are retried (`agents.failures` says which), a server's
Retry-After is honoured, and waits are drawn from the full range so that many clients spread out.
"""

from __future__ import annotations

from random import Random

from proctor.agents.failures import Transient

MAX_RETRIES = 3
BASE_DELAY = 1.0
MAX_DELAY = 30.0
MAX_RETRY_AFTER = 300.0
"""A server that asks for more than this is down for our purposes: the trial ends as infra."""


def delay_before(attempt: int, reason: Transient, random: Random) -> float:
    """Seconds to wait before try number `attempt` + 1 (the first retry follows attempt 0)."""
    drawn = random.uniform(0.0, min(BASE_DELAY * 2**attempt, MAX_DELAY))
    return max(drawn, reason.retry_after or 0.0)
