"""Stop early with error rates that stay valid although every trial is looked at.

SPRT when a good and a bad rate are known; a Beta-mixture e-process when only the required one is.
Curtailment is free: it stops a fixed "c of n" rule once decided. After any of these, no fixed-n
interval may be reported: the stopping has used up its guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from proctor.errors import ProctorError
from proctor.stats._distributions import log_beta_mass_below
from proctor.stats.types import Estimand, checked, share

Verdict = Literal["continue", "meets", "below", "undecided"]
"""meets: the required rate is met. below: it is not. undecided: the trials ran out."""


@dataclass(frozen=True, slots=True)
class SequentialLook:
    """State after some trials. `evidence` is the log likelihood ratio or log E."""

    verdict: Verdict
    passes: int
    n: int
    evidence: float | None
    method: str
    estimand: Estimand = "suite"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Sprt:
    """Wald's test of p ≥ `good` against p ≤ `bad`, truncated at `limit` trials.

    `alpha` bounds the probability of calling a good agent bad; `beta` that of calling a bad one
    good.
    """

    good: float = 0.9
    bad: float = 0.7
    alpha: float = 0.05
    beta: float = 0.05
    limit: int = 40

    def __post_init__(self) -> None:
        for what in ("good", "bad", "alpha", "beta"):
            share(getattr(self, what), what)
        if self.bad >= self.good or self.alpha + self.beta >= 1 or self.limit < 1:
            raise ProctorError(
                f"no SPRT has good {self.good}, bad {self.bad}, alpha {self.alpha},"
                f" beta {self.beta}, limit {self.limit}",
                hint="bad < good, alpha + beta < 1, limit from 1 on",
            )

    def look(self, passes: int, n: int) -> SequentialLook:
        """Return the verdict after `n` trials, if none was reached before."""
        checked([(passes, n)])
        ratio = passes * math.log(self.bad / self.good)
        ratio += (n - passes) * math.log((1 - self.bad) / (1 - self.good))
        method = f"SPRT, p ≥ {self.good} against p ≤ {self.bad}, at most {self.limit} trials"
        verdict: Verdict = "continue"
        if ratio >= math.log((1 - self.beta) / self.alpha):
            verdict = "below"
        elif ratio <= math.log(self.beta / (1 - self.alpha)):
            verdict = "meets"
        elif n >= self.limit:
            verdict = "undecided"
        why = "the trials ran out between the bounds" if verdict == "undecided" else None
        return SequentialLook(verdict, passes, n, ratio, method, reason=why)


@dataclass(frozen=True, slots=True)
class EProcess:
    """Evidence against p ≥ `required`, valid at any stopping time: alarm at E ≥ 1/alpha.

    E mixes the likelihood over rates below the required one by Beta(½, ½). It never returns
    "meets": evidence for a rate needs an alternative to be tested against.
    """

    required: float = 0.9
    alpha: float = 0.05
    limit: int | None = None

    def __post_init__(self) -> None:
        share(self.required, "required")
        share(self.alpha, "alpha")
        if self.limit is not None and self.limit < 1:
            raise ProctorError(f"limit is {self.limit}", hint="limit from 1 on, or none")

    def look(self, passes: int, n: int) -> SequentialLook:
        """Return the verdict after `n` trials."""
        checked([(passes, n)])
        log_e = self.log_e(passes, n)
        method = f"Beta-mixture e-process against p ≥ {self.required}"
        verdict: Verdict = "continue"
        if log_e >= -math.log(self.alpha):
            verdict = "below"
        elif self.limit is not None and n >= self.limit:
            verdict = "undecided"
        why = "no alarm when the trials ran out" if verdict == "undecided" else None
        return SequentialLook(verdict, passes, n, log_e, method, reason=why)

    def log_e(self, total: float, n: int) -> float:
        """Return log E after `n` scores in [0, 1] that sum to `total`; for passes their number.

        Scores between 0 and 1 keep the bound: the likelihood ratio is convex in the score, so it
        lies below its chord from fail to pass, whose mean is at most 1 for means ≥ `required`.
        """
        mass = log_beta_mass_below(self.required, total + 0.5, n - total + 0.5)
        return mass + self._log_weight(total, n)

    def log_e_at_most(self, total: float, n: int) -> float:
        """Return a bound of log E from above, by a few logarithms whatever `n` is.

        It has the mass of all rates in place of those below the required one. Log E itself takes
        ever more steps: of all looks, only the few near an alarm need it.
        """
        mass = math.lgamma(total + 0.5) + math.lgamma(n - total + 0.5) - math.lgamma(n + 1)
        return mass + self._log_weight(total, n)

    def _log_weight(self, total: float, n: int) -> float:
        """Return what both share: the prior's mass and the likelihood at the required rate."""
        prior = math.log(2 * math.asin(math.sqrt(self.required)))  # of Beta(½, ½), not normalised
        lost = n - total
        return -prior - total * math.log(self.required) - lost * math.log(1 - self.required)


@dataclass(frozen=True, slots=True)
class Curtailed:
    """The fixed rule "at least `needed` of `total` pass", stopped once it is decided."""

    needed: int
    total: int

    def __post_init__(self) -> None:
        if not 0 <= self.needed <= self.total or self.total < 1:
            raise ProctorError(
                f"invalid rule: {self.needed} of {self.total}", hint="0 ≤ needed ≤ total"
            )

    def look(self, passes: int, n: int) -> SequentialLook:
        """Return the verdict of the full number of trials as soon as it is certain."""
        checked([(passes, n)])
        verdict: Verdict = "continue"
        if passes >= self.needed:
            verdict = "meets"
        elif passes + max(0, self.total - n) < self.needed:
            verdict = "below"
        return SequentialLook(verdict, passes, n, None, f"at least {self.needed} of {self.total}")


def follow(look: Callable[[int, int], SequentialLook], outcomes: Iterable[bool]) -> SequentialLook:
    """Test after every outcome, in order, and stop at the first verdict."""
    passes, n = 0, 0
    # Before the first outcome: a rule such as "0 of 5" is decided without any.
    found = look(0, 0)
    for outcome in outcomes:
        if found.verdict != "continue":
            break
        passes, n = passes + bool(outcome), n + 1
        found = look(passes, n)
    return found
