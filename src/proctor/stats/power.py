"""Plan the number of cases and trials that detect a difference, or support a claim.

Normal approximations, good enough to choose a size. For a population more trials cannot reduce the
variance of true case differences: when that dominates, only more cases help, and the plan says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.stats._distributions import normal_quantile
from proctor.stats.compare import arm_variance, mean_and_deviation
from proctor.stats.types import Estimand, judged, paired, share


@dataclass(frozen=True, slots=True)
class SampleSize:
    """Size of an experiment: `cases`, each with `trials` in the two arms, detects `effect`.

    `power` is the probability of detection; `n` counts the trials of both arms.
    """

    effect: float | None
    cases: int
    trials: tuple[float, float]
    n: int
    alpha: float
    power: float
    method: str
    estimand: Estimand
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ZeroFailureClaim:
    """Claim supported by passes without a failure: a rate of at least `rate`, one-sided."""

    rate: float | None
    n: int
    level: float
    method: str = "Clopper–Pearson, one-sided, all passed"
    estimand: Estimand = "suite"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Variance:
    """A variance estimated from counts, with its number of cases."""

    value: float | None
    method: str
    n: int
    cases: int
    left_out: int
    reason: str | None = None


def within_variance(counts: Sequence[tuple[int, ...]]) -> Variance:
    """Return σ²: the mean variance of a single trial within its case; needs two trials per case."""
    rows = [row for row in judged(counts) if row.trials > 1]
    n, left_out = sum(row.trials for row in rows), len(counts) - len(rows)
    method = "mean of p(1−p)·k/(k−1) over cases"
    if not rows:
        return Variance(None, method, 0, 0, left_out, "no case has two judged trials")
    each = (row.rate * (1 - row.rate) * row.trials / (row.trials - 1) for row in rows)
    return Variance(math.fsum(each) / len(rows), method, n, len(rows), left_out)


def difference_variance(
    first: Sequence[tuple[int, ...]], second: Sequence[tuple[int, ...]]
) -> Variance:
    """Return ω²: the variance of true case differences, after subtracting trial noise."""
    arms = paired(first, second)
    # One trial shows no variance.
    repeated = [
        (a, b)
        for a, b in zip(arms.first, arms.second, strict=True)
        if a.trials > 1 and b.trials > 1
    ]
    n, left_out = sum(a.trials + b.trials for a, b in repeated), len(first) - len(repeated)
    method = "variance of differences minus trial noise, not below 0"
    if len(repeated) < 2:
        why = "fewer than two cases have two judged trials in each arm"
        return Variance(None, method, n, len(repeated), left_out, why)
    gaps = [b.rate - a.rate for a, b in repeated]
    _, deviation = mean_and_deviation(gaps)
    # Without this, trial noise would count as a difference between cases and inflate the plan.
    noise = math.fsum(
        row.rate * (1 - row.rate) / (row.trials - 1) for pair in repeated for row in pair
    ) / len(repeated)
    return Variance(max(0.0, deviation**2 - noise), method, n, len(repeated), left_out)


def plan_population(
    effect: float,
    *,
    omega2: float,
    sigma2: tuple[float, float],
    trials: tuple[int, int],
    alpha: float = 0.05,
    power: float = 0.8,
) -> SampleSize:
    """Return the cases for a two-sided paired comparison: (z+z)²(ω² + sA/kA + sB/kB)/δ²."""
    _checked(effect, trials, (omega2, *sigma2))
    spread = _quantiles(alpha / 2, power) ** 2
    noise = sigma2[0] / trials[0] + sigma2[1] / trials[1]
    # One case shows no variation between cases, however large the effect.
    cases = max(2, _ceil(spread * (omega2 + noise) / effect**2))
    method = f"paired differences, two-sided alpha {alpha}"
    why = None
    if omega2 > noise:
        why = "true case differences outweigh trial noise: more trials help little, add cases"
    n = cases * sum(trials)
    return SampleSize(effect, cases, trials, n, alpha, power, method, "population", why)


def plan_suite(
    effect: float, *, cases: int, sigma2: float, alpha: float = 0.05, power: float = 0.8
) -> SampleSize:
    """Return the trials per case and arm for a one-sided comparison on exactly these cases."""
    _checked(effect, (cases,), (sigma2,))
    needed = 2 * sigma2 * (_quantiles(alpha, power) / effect) ** 2 / cases
    method = _suite_method(alpha)
    trials = max(1, _ceil(needed))
    return SampleSize(
        effect, cases, (trials, trials), 2 * cases * trials, alpha, power, method, "suite"
    )


def detectable(
    cases: int, trials: int, *, sigma2: float, alpha: float = 0.05, power: float = 0.8
) -> SampleSize:
    """Return the smallest drop found by k trials per case and arm: (z+z)·√(2·s/(S·k))."""
    _checked(1.0, (cases, trials), (sigma2,))
    error = math.sqrt(2 * sigma2 / (cases * trials))
    return _found(error, cases, (trials, trials), 2 * cases * trials, (alpha, power))


def detectable_between(
    first: Sequence[tuple[int, ...]],
    second: Sequence[tuple[int, ...]],
    *,
    alpha: float = 0.05,
    power: float = 0.8,
) -> SampleSize:
    """Return the smallest drop that these two arms could have detected."""
    arms = paired(first, second)
    cases = len(arms.first)
    if not cases:
        why = "no case in both arms"
        return SampleSize(None, 0, (0, 0), 0, alpha, power, _suite_method(alpha), "suite", why)
    error = math.sqrt(arm_variance(arms.first) + arm_variance(arms.second))
    before, after = (sum(row.trials for row in arm) / cases for arm in (arms.first, arms.second))
    return _found(error, cases, (before, after), arms.n, (alpha, power))


def detectable_over(
    gaps: Sequence[float],
    *,
    n: int,
    alpha: float = 0.05,
    power: float = 0.8,
    unit: str = "case",
) -> SampleSize:
    """Return the smallest drop that one difference per draw of a population could have shown.

    Trials of the same draws do not make it smaller. `unit` is what a draw is.
    """
    draws, fewest = len(gaps), fewest_draws(alpha)
    deviation = mean_and_deviation(gaps)[1] if draws > 1 else 0.0
    trials = n / 2 / max(1, draws)
    error = deviation / math.sqrt(max(1, draws))
    found = _found(error, draws, (trials, trials), n, (alpha, power))
    found = replace(found, estimand="population", method=f"between draws, one-sided alpha {alpha}")
    if draws >= fewest:
        return found
    why = f"{plural(draws, unit)}: below {fewest} no drop is significant at alpha {alpha:g}"
    return replace(found, effect=None, reason=why)


def fewest_draws(alpha: float) -> int:
    """Return the fewest draws that can be significant: signs that all agree have p = 2^−draws."""
    return _ceil(-math.log2(alpha))


def more_draws(
    gaps: Sequence[float], distance: float, *, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Return how many more draws distinguish drops that are `distance` apart."""
    deviation = mean_and_deviation(gaps)[1] if len(gaps) > 1 else 0.0
    # Draws that all agree leave open that another kind has a share as large as the distance.
    agreed = _ceil(math.log(alpha) / math.log1p(-min(distance, 0.999)))
    varied = _ceil((_quantiles(alpha, power) * deviation / distance) ** 2)
    return max(1, max(varied or agreed, fewest_draws(alpha)) - len(gaps))


def _found(
    error: float, cases: int, trials: tuple[float, float], n: int, rates: tuple[float, float]
) -> SampleSize:
    """Return the plan whose effect is as many standard errors as alpha and power require.

    Without any variance there is none: it would promise that the smallest drop is detected.
    """
    method, reach = _suite_method(rates[0]), _quantiles(*rates) * error
    if not error:
        why = "no case varied: the noise of a trial is unknown"
        return SampleSize(None, cases, trials, n, *rates, method, "suite", why)
    if reach > 1:
        why = "not even a drop from always to never would be found reliably"
        return SampleSize(None, cases, trials, n, *rates, method, "suite", why)
    return SampleSize(reach, cases, trials, n, *rates, method, "suite")


def _suite_method(alpha: float) -> str:
    return f"within-case noise, one-sided alpha {alpha}"


def supported_rate(passes: int, *, level: float = 0.95) -> ZeroFailureClaim:
    """Return the pass rate supported by passes without a failure."""
    if passes < 0:
        raise ProctorError(f"{passes} passes", hint="the number of passes is 0 or more")
    share(level, "level")
    if not passes:
        return ZeroFailureClaim(None, 0, level, reason="no trial")
    return ZeroFailureClaim((1 - level) ** (1 / passes), passes, level)


def passes_to_claim(rate: float, *, level: float = 0.95) -> ZeroFailureClaim:
    """Return how many passes without a failure (`n`) support a claim of at least `rate`."""
    share(rate, "rate")
    share(level, "level")
    return ZeroFailureClaim(rate, _ceil(math.log(1 - level) / math.log(rate)), level)


def _quantiles(alpha: float, power: float) -> float:
    share(alpha, "alpha")
    if not 0.5 <= power < 1:
        raise ProctorError(f"power is {power}", hint="power lies between 0.5 and 1")
    return normal_quantile(1 - alpha) + normal_quantile(power)


def _ceil(value: float) -> int:
    """Round up, ignoring what float rounding adds to a whole number."""
    return math.ceil(value - 1e-9)


def _checked(effect: float, sizes: Sequence[float], variances: Sequence[float]) -> None:
    if not 0 < abs(effect) <= 1:
        raise ProctorError(f"the effect is {effect}", hint="a share, such as 0.1 for 10 points")
    if any(not 0 < size < math.inf for size in sizes):
        raise ProctorError("cases and trials are numbers from 1 on", hint=f"found {list(sizes)}")
    if any(not 0 <= value <= 1 for value in variances):
        raise ProctorError(
            f"variances of rates lie between 0 and 1, found {list(variances)}",
            hint="within a case at most 0.25; differences at most 1",
        )
