"""Random numbers of templates: the same everywhere, a stream for each place, the right shapes."""

import math
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from proctor.scenarios import _randomness as randomness
from proctor.scenarios._randomness import Place, RandomSource, Stream

N = 4_000

WORDS = [
    0xB0D0F794198D9254,
    0x16EC0692E2AEE7A9,
    0xA9323D1CF31B4C1F,
    0x388A4A0611E60DFC,
    0xDE0CF1E1360BA6F0,
]
UNIFORM = 6.90688584954435
NORMAL = 0.2659555346091758
LOGNORMAL = 1.3046770444224445
SHUFFLED = [4, 5, 3, 0, 2, 7, 6, 1]


def stream(seed: int = 7, place: Place = ("here",)) -> Stream:
    return RandomSource("a.b", seed).stream(place)


def test_the_stream_is_written_down() -> None:
    """R-S4: builds are equal on any machine; a change of any digit below is a new version."""
    source = stream()
    assert [source.bits() for _ in range(5)] == WORDS
    assert stream().uniform(0, 10) == UNIFORM
    assert stream().normal(0, 1) == NORMAL
    assert stream().lognormal(0, 1) == LOGNORMAL
    assert stream().sample(range(8), 8) == SHUFFLED


@given(st.integers(0, 2**63 - 1), st.lists(st.text(max_size=5) | st.integers(0, 99), max_size=4))
def test_a_stream_depends_on_its_name_seed_and_place_alone(seed: int, steps: list[Any]) -> None:
    """R-S4: two places, two seeds or two templates never share a stream; one always does."""
    place = tuple(steps)
    first = [RandomSource("a", seed).stream(place).bits() for _ in range(2)]
    assert first[0] == first[1]
    others = [
        RandomSource("a", seed + 1).stream(place),
        RandomSource("b", seed).stream(place),
        RandomSource("a", seed).stream((*place, 0)),
        RandomSource("a", seed).stream((*place, "0")),
    ]
    assert len({first[0], *(other.bits() for other in others)}) == 5


DISTRIBUTIONS: list[tuple[Callable[[Stream], float], Any]] = [
    (lambda s: s.unit(), stats.uniform()),
    (lambda s: s.uniform(-2, 5), stats.uniform(-2, 7)),
    (lambda s: s.normal(3, 2), stats.norm(3, 2)),
    (lambda s: s.lognormal(0.5, 0.7), stats.lognorm(0.7, scale=math.exp(0.5))),
    (lambda s: s.exponential(4), stats.expon(scale=4)),
    (lambda s: s.triangular(1, 5, 2), stats.triang(0.25, 1, 4)),
]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("draw", "law"), DISTRIBUTIONS)
def test_continuous_draws_follow_their_law(
    draw: Callable[[Stream], float], law: Any, seed: int
) -> None:
    """R-S4: each distribution against scipy's (Kolmogorov-Smirnov; seeds are fixed)."""
    source = stream(seed)
    assert stats.kstest([draw(source) for _ in range(N)], law.cdf).pvalue > 0.001


@pytest.mark.parametrize(
    ("draw", "law"),
    [
        (lambda s: s.below(6), stats.randint(0, 6)),
        (lambda s: s.poisson(3.5), stats.poisson(3.5)),
        (lambda s: s.binomial(9, 0.3), stats.binom(9, 0.3)),
        (
            lambda s: s.weighted([0, 1, 2], [1, 0, 3]),
            stats.rv_discrete(values=([0, 2], [0.25, 0.75])),
        ),
        (lambda s: s.sample(range(5), 2)[1], stats.randint(0, 5)),
    ],
)
def test_discrete_draws_follow_their_law(draw: Callable[[Stream], int], law: Any) -> None:
    """R-S4: counts against scipy's probabilities (chi squared; the rare values in one cell)."""
    source = stream(3)
    seen = Counter(draw(source) for _ in range(N))
    common = [k for k in range(30) if law.pmf(k) * N >= 5]
    observed = [seen[k] for k in common]
    expected = [law.pmf(k) * N for k in common]
    rest, left = N - sum(observed), N - sum(expected)
    if left > 1e-6:
        observed, expected = [*observed, rest], [*expected, left]
    else:
        assert rest == 0
    assert stats.chisquare(observed, expected).pvalue > 0.001


@given(st.integers(1, 2**100), st.integers(0, 50))
def test_below_stays_below(limit: int, seed: int) -> None:
    """R-S4: whole numbers of any size are drawn without leaving their bounds."""
    source = stream(seed)
    assert all(0 <= source.below(limit) < limit for _ in range(3))


@given(st.lists(st.integers(), max_size=20), st.integers(0, 9))
def test_a_shuffle_keeps_everything(items: list[int], seed: int) -> None:
    """R-S4: shuffling loses and invents nothing, and does not touch what it was given."""
    before = list(items)
    assert sorted(stream(seed).sample(items, len(items))) == sorted(items)
    assert items == before


# -- portable mathematics ------------------------------------------------------------------------

REALS = st.floats(-600, 600).filter(lambda x: abs(x) > 1e-6)


def near(found: float, exact: Decimal) -> bool:
    """Whether a double is the nearest to an exact value."""
    return found == float(exact)


@given(REALS)
def test_logarithms_and_powers_are_correctly_rounded(x: float) -> None:
    """R-S4: no last digit depends on a C library: against 80 digits, to the bit."""
    with localcontext() as context:
        context.prec = 80
        assert near(randomness.exp(x), Decimal(x).exp())
        assert near(randomness.ln(abs(x)), Decimal(abs(x)).ln())
        y = 0.01 * x
        assert near(randomness.power(abs(x), y), (Decimal(y) * Decimal(abs(x)).ln()).exp())


@given(st.floats(-1e6, 1e6))
def test_sines_agree_with_the_c_library(x: float) -> None:
    """R-S4: an independent implementation agrees but for its own last bit."""
    assert math.isclose(randomness.sin(x), math.sin(x), rel_tol=4e-16, abs_tol=1e-18)
    assert math.isclose(randomness.cos(x), math.cos(x), rel_tol=4e-16, abs_tol=1e-18)


def test_edges_of_powers() -> None:
    """R-S4: zero, signs and overflow are what mathematics says, or an error."""
    assert randomness.power(0.0, 0.0) == 1.0
    assert randomness.power(0.0, 2.5) == 0.0
    assert randomness.power(-2.0, 3.0) == -8.0
    assert randomness.power(-2.0, -2.0) == 0.25
    assert randomness.power(10.0, -400.0) == 0.0
    assert randomness.exp(-1e9) == 0.0
    for bad in (lambda: randomness.power(10.0, 400.0), lambda: randomness.exp(1e9)):
        with pytest.raises(OverflowError):
            bad()
    with pytest.raises(ZeroDivisionError):
        randomness.power(0.0, -1.0)
    with pytest.raises(ValueError):
        randomness.power(-8.0, 0.5)
