"""pass@k and pass^k without bias, from n trials a case.

Both count subsets: the share of all sets of k of a case's trials that hold at least one pass,
or nothing but passes. Cases with fewer than k trials are refused, never extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from proctor.errors import ProctorError
from proctor.stats.kinds import CaseCounts, Estimand, judged


@dataclass(frozen=True, slots=True)
class PassK:
    """The mean over cases; `left_out` counts cases without a judged trial."""

    value: float | None
    k: int
    method: Literal["pass@k", "pass^k"]
    n: int
    cases: int
    left_out: int
    estimand: Estimand = "suite"
    reason: str | None = None


def pass_at_k(counts: Sequence[tuple[int, ...]], k: int) -> PassK:
    """How likely it is that at least one of k trials passes: mean of 1 − C(n−c,k)/C(n,k)."""
    return _mean(
        counts,
        k,
        "pass@k",
        lambda row: 1 - math.comb(row.trials - row.passes, k) / math.comb(row.trials, k),
    )


def pass_hat_k(counts: Sequence[tuple[int, ...]], k: int) -> PassK:
    """How likely it is that all of k trials pass: mean of C(c,k)/C(n,k)."""
    return _mean(
        counts, k, "pass^k", lambda row: math.comb(row.passes, k) / math.comb(row.trials, k)
    )


def _mean(
    counts: Sequence[tuple[int, ...]],
    k: int,
    method: Literal["pass@k", "pass^k"],
    of_case: Callable[[CaseCounts], float],
) -> PassK:
    if k < 1:
        raise ProctorError(f"{method}: k is {k}", hint="k is 1 or more")
    rows = judged(counts)
    short = [row.trials for row in rows if row.trials < k]
    if short:
        raise ProctorError(
            f"{method}: {len(short)} of {len(rows)} cases have fewer than {k} trials"
            f" (the fewest: {min(short)})",
            hint=f"run at least {k} trials a case, or ask for k ≤ {min(short)}",
        )
    n, left_out = sum(row.trials for row in rows), len(counts) - len(rows)
    if not rows:
        return PassK(None, k, method, n, 0, left_out, reason="no judged trial")
    value = math.fsum(of_case(row) for row in rows) / len(rows)
    return PassK(value, k, method, n, len(rows), left_out)
