"""Layer 3, cost: what did it take? A failure warns.

Every check is a field of `CostChecks` and a function of the same name. What the trace does not
tell (a price, a token count) is skipped with the reason; a known part that is already over the
limit fails all the same.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from proctor.checks.fields import Count, Limit, Number
from proctor.schema import Strict


class CostChecks(Strict):
    """What may it take? A failure warns."""

    max_cost_usd: Limit | None = None
    """The most money, in US dollars."""
    max_total_tokens: Count | None = None
    """The most tokens, read and written."""
    max_llm_calls: Count | None = None
    """The most model calls."""
    max_latency_ms: Limit | None = None
    """The longest time from the first start to the last end, in milliseconds."""
    max_cost_multiplier: Annotated[float, Number, Field(gt=0, allow_inf_nan=False)] | None = None
    """The most money as a multiple of the baseline's."""
    blocking: bool = False
    """Whether a failure makes the trial a hard failure."""
