"""Error rates of the estimators by simulation, with seeds as instances.

Every rate is printed with its number of replications (`pytest -s`), and fails only if it misses its
bound by more than three Monte Carlo standard errors.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from proctor.stats.compare import mcnemar, on_population, on_suite
from proctor.stats.gate import GateRule, judge_gate
from proctor.stats.ranking import rank_sets

pytestmark = pytest.mark.slow

Rows = list[tuple[int, int]]


def rate(name: str, hits: int, replications: int) -> tuple[float, float]:
    """A simulated rate and three of its standard errors; printed."""
    share = hits / replications
    slack = 3 * math.sqrt(max(share * (1 - share), 1 / replications) / replications)
    print(f"{name}: {share:.3f} of {replications} replications")
    return share, slack


def at_most(name: str, hits: int, replications: int, bound: float) -> None:
    share, slack = rate(name, hits, replications)
    assert share <= bound + slack, name


def drawn(rng: np.random.Generator, rates: np.ndarray, trials: int) -> Rows:
    """Passes of each instance, as its estimators take them."""
    return [(int(x), trials) for x in rng.binomial(trials, rates)]


def significant(first: Rows, second: Rows, cases: Sequence[int], alpha: float = 0.05) -> bool:
    p_value = on_suite(first, second, cases=cases).test.p_value
    return p_value is not None and p_value <= alpha


AGENTS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "always repeat themselves": lambda rng, n: (rng.random(n) < 0.5).astype(float),
    "always repeat themselves, mostly right": lambda rng, n: (rng.random(n) < 0.8).astype(float),
    "nearly repeat themselves": lambda rng, n: rng.beta(0.1, 0.1, n),
}


@pytest.mark.parametrize("agents", AGENTS)
@pytest.mark.parametrize(
    ("templates", "seeds", "trials"), [(4, 5, 10), (1, 20, 10), (2, 10, 5), (2, 50, 1)]
)
def test_equal_agents_do_not_differ(agents, templates, seeds, trials):
    """R-Q1: agents with the same distribution over instances, whatever their repeats do: size at
    most 6 %."""
    rng = np.random.default_rng([41, templates, seeds, trials])
    n, replications, hits = templates * seeds, 400, 0
    cases = [at // seeds for at in range(n)]
    for _ in range(replications):
        first, second = (drawn(rng, AGENTS[agents](rng, n), trials) for _ in range(2))
        hits += significant(first, second, cases)
    name = f"size, {templates} × {seeds} × {trials}, agents that {agents}"
    at_most(name, hits, replications, 0.06)


@pytest.mark.parametrize(
    ("templates", "seeds", "trials"), [(4, 5, 10), (2, 10, 5), (2, 50, 1), (1, 20, 1)]
)
def test_one_agent_does_not_differ_from_itself(templates, seeds, trials):
    """R-Q1: independent trials of equally hard instances: size at most 6 %."""
    rng = np.random.default_rng([43, templates, seeds, trials])
    n, replications, hits = templates * seeds, 400, 0
    cases = [at // seeds for at in range(n)]
    for _ in range(replications):
        rates = rng.beta(1, 1, n)
        hits += significant(drawn(rng, rates, trials), drawn(rng, rates, trials), cases)
    at_most(f"size, {templates} × {seeds} × {trials}, one agent", hits, replications, 0.06)


@pytest.mark.parametrize(
    ("templates", "seeds", "trials"), [(2, 50, 1), (1, 20, 1), (2, 10, 1), (4, 5, 10)]
)
def test_power_is_that_of_mcnemar(templates, seeds, trials):
    """R-Q1: where one agent is worse, it is found at most 3 points less often than by McNemar's
    exact test; with repeats that never vary that is the test of the instances."""
    rng = np.random.default_rng([47, templates, seeds, trials])
    n, replications, ours, exact = templates * seeds, 600, 0, 0
    cases = [at // seeds for at in range(n)]
    worse = 0.15 if n >= 100 else 0.4
    for _ in range(replications):
        first = rng.random(n) < 0.9
        second = first & (rng.random(n) >= worse) | (rng.random(n) < 0.03)
        rows = [[(int(x) * trials, trials) for x in arm] for arm in (first, second)]
        ours += significant(*rows, cases)
        p_value = mcnemar(list(first), list(second)).p_value
        exact += p_value is not None and p_value <= 0.05
    found, slack = rate(f"power, {templates} × {seeds} × {trials}", ours, replications)
    reference, _ = rate("  McNemar's", exact, replications)
    assert found >= reference - 0.03 - slack
    assert reference > 0.3


def test_repeats_that_vary_tell_more():
    """R-Q1: 4 × 5 × 10 independent trials, 15 points worse: far above the power of one trial per
    instance, and close to that of the stratified test."""
    rng = np.random.default_rng(53)
    replications, ours, once = 300, 0, 0
    cases = [at // 5 for at in range(20)]
    for _ in range(replications):
        rates = 0.2 + 0.8 * rng.beta(1, 1, 20)
        first, second = drawn(rng, rates, 10), drawn(rng, rates - 0.15, 10)
        ours += significant(first, second, cases)
        once += significant(drawn(rng, rates, 1), drawn(rng, rates - 0.15, 1), cases)
    found, _ = rate("power, 10 varying trials", ours, replications)
    single, _ = rate("power, 1 trial", once, replications)
    assert found > 0.8
    assert single < 0.4


@pytest.mark.parametrize(("cases", "seeds"), [(8, 5), (30, 2), (1, 20)])
def test_size_for_a_population(cases, seeds):
    """R-Q1: equal agents whose rates differ by case and agent: over cases, size at most 6 %."""
    rng = np.random.default_rng(59)
    replications, hits = 400, 0
    keys = [at // seeds for at in range(cases * seeds)]
    for _ in range(replications):
        arms = [
            # With one case, its instances are the draws.
            np.repeat(rng.beta(0.5, 0.5, cases), seeds) if cases > 1 else rng.beta(0.5, 0.5, seeds)
            for _ in range(2)
        ]
        means = [list(rng.binomial(3, rates) / 3) for rates in arms]
        p_value = on_population(*means, cases=keys).test.p_value
        hits += p_value is not None and p_value <= 0.05
    at_most(f"size, population, {cases} cases × {seeds} seeds", hits, replications, 0.06)


@pytest.mark.parametrize(("templates", "seeds", "trials"), [(2, 10, 1), (4, 5, 10)])
def test_family_wise_error_of_a_leaderboard(templates, seeds, trials):
    """R-Q3: five equal agents; any two with places of their own is an error: at most 5 %."""
    rng = np.random.default_rng(61)
    n, replications, hits = templates * seeds, 500, 0
    cases = [at // seeds for at in range(n)]
    for _ in range(replications):
        hard = rng.random(n) < 0.5
        # Agents repeat themselves, and agree on the easy half of the instances.
        rows = {
            name: [(trials if right else 0, trials) for right in ~hard | (rng.random(n) < 0.6)]
            for name in "abcde"
        }
        found = rank_sets(
            {name: {str(at): x / k for at, (x, k) in enumerate(arm)} for name, arm in rows.items()},
            test=lambda a, b, _, rows=rows: on_suite(rows[a], rows[b], cases=cases).test,
        )
        hits += any((place.best, place.worst) != (1, 5) for place in found.places)
    at_most(f"family-wise error, {templates} × {seeds} × {trials}", hits, replications, 0.05)


def gate_rows(arm: Rows | list[list[float]]) -> dict:
    return {f"t{at // 5} [seed {at % 5}]": row for at, row in enumerate(arm)}


CASES = {f"t{at // 5} [seed {at % 5}]": f"t{at // 5}" for at in range(40)}


@pytest.mark.parametrize("estimand", ["suite", "population"])
@pytest.mark.parametrize("trials", [1, 5])
def test_size_of_the_gate_on_passes(trials, estimand):
    """R-Q2: no change, 8 templates × 5 seeds: a regression in at most 5.5 %."""
    rng = np.random.default_rng(67)
    replications, alarms = 500, 0
    # A margin next to nothing, so that the test alone decides: the hardest case for its size.
    rule = GateRule(margin=0.001, estimand=estimand)
    for _ in range(replications):
        rates = rng.beta(1, 0.5, 40)
        arms = [gate_rows(drawn(rng, rates, trials)) for _ in range(2)]
        alarms += judge_gate(*arms, rule=rule, cases=CASES).verdict == "REGRESSION"
    at_most(f"gate, passes, {trials} trials, {estimand}", alarms, replications, 0.055)


@pytest.mark.parametrize("estimand", ["suite", "population"])
@pytest.mark.parametrize("trials", [1, 4])
def test_size_and_power_of_the_gate_on_scores(trials, estimand):
    """R-Q2: fractional scores without a change alarm in at most 5.5 %, passes and scores together;
    a fall of 0.13 is found though every trial passes."""
    rng = np.random.default_rng(71)
    replications, alarms, caught, drops = 1_000, 0, 0, 150
    rule = GateRule(margin=0.001, estimand=estimand)

    def scores(shift: float, middle: np.ndarray) -> list[list[float]]:
        noise = rng.normal(0, 0.08, (40, trials))
        return np.clip(middle[:, None] - shift + noise, 0, 1).tolist()

    def counted(values: list[list[float]]) -> Rows:
        return [(sum(value >= 0.6 for value in row), len(row)) for row in values]

    for replication in range(replications):
        middle = rng.uniform(0.55, 1.0, 40)
        before, same, worse = (scores(shift, middle) for shift in (0, 0, 0.13))
        for after in (same, worse) if replication < drops else (same,):
            found = judge_gate(
                gate_rows(counted(before)),
                gate_rows(counted(after)),
                rule=rule,
                scores=(gate_rows(before), gate_rows(after)),
                cases=CASES,
            )
            if after is same:
                alarms += found.verdict == "REGRESSION"
            else:
                caught += found.verdict == "REGRESSION"
    at_most(f"gate, scores, {trials} trials, {estimand}", alarms, replications, 0.055)
    power, _ = rate("  power at −0.13", caught, drops)
    assert power > 0.9
