"""Flakiness against the integrated posterior and enumeration of pairs."""

import itertools

import pytest
from scipy.integrate import quad

from proctor.errors import ProctorError
from proctor.stats.gate import agent_flakiness, infrastructure_flakiness, judge_flakiness


@pytest.mark.parametrize(("passes", "n"), [(1, 2), (1, 5), (5, 10), (5, 5), (0, 8), (19, 20)])
def test_the_posterior_is_jeffreys(passes, n):
    """R-Q2: P(.05 < p < .95) is the numerically integrated Jeffreys posterior."""

    def density(q):
        return q ** (passes - 0.5) * (1 - q) ** (n - passes - 0.5)

    expected = quad(density, 0.05, 0.95)[0] / quad(density, 0, 1)[0]
    found = agent_flakiness(passes, n)
    assert found.mass == pytest.approx(expected, abs=1e-6)
    assert found.flaky == (expected > 0.9)
    assert found.flaky == (passes not in (0, 19, n))


def test_sources_stand_apart():
    """R-Q2: agent, judge and infrastructure are counted each on its own denominator."""
    agent = agent_flakiness(5, 5, errors=5)
    assert (agent.rate, agent.flaky, agent.n, agent.left_out) == (1.0, False, 5, 5)
    infrastructure = infrastructure_flakiness(5, 5)
    assert (infrastructure.rate, infrastructure.flaky, infrastructure.n) == (0.5, True, 10)


def test_judge_flips_are_pairs_that_disagree():
    """R-Q2: the flip rate is what counting every pair of judgements gives."""
    votes = [[True, True, False], [True, True, True, True], [False, True], [True]]
    shares = []
    for row in votes[:3]:
        pairs = list(itertools.combinations(row, 2))
        shares.append(sum(a != b for a, b in pairs) / len(pairs))
    found = judge_flakiness(votes)
    assert found.rate == pytest.approx(sum(shares) / 3)
    assert (found.n, found.left_out, found.flaky) == (3, 1, True)
    assert judge_flakiness([[True, True]] * 4).flaky is False


def test_nothing_seen_is_not_stable():
    """R-Q2: without trials flakiness is null, not False."""
    for found in (agent_flakiness(0, 0), infrastructure_flakiness(0, 0), judge_flakiness([[True]])):
        assert (found.rate, found.flaky) == (None, None)
        assert found.reason
    with pytest.raises(ProctorError):
        agent_flakiness(3, 2)
