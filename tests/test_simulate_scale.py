"""The simulation behind docs/explanation/a-million-trials.md: it counts right and repeats."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from proctor.llm.rate_limits import RateLimit, RateLimiter


@pytest.fixture(scope="module")
def script() -> ModuleType:
    tools = str(Path(__file__).resolve().parent.parent / "tools")
    sys.path.insert(0, tools)
    try:
        import simulate_scale
    finally:
        sys.path.remove(tools)
    return simulate_scale


def test_the_same_seed_gives_the_same_run(script: ModuleType) -> None:
    """R-R5: figures of the document can be made again from its costs and its seed."""
    world = script.World(trials=2_000, machines=5, slots=4, mtbf_hours=0.05)
    one, two, other = (script.Play(world, 1e-4, seed).to_end() for seed in (7, 7, 8))
    assert one == two
    assert one != other
    assert one.deaths > 0
    assert one.repeated > 0
    assert one.done == 2_000, "what a dead machine had begun is done by others"


def test_slots_are_the_limit_until_the_driver_is(script: ModuleType) -> None:
    """R-R12: with an idle driver the rate is slots over seconds; with a busy one, its own."""
    free = script.World(trials=40_000, machines=10, slots=16, spread=0.01, mtbf_hours=1e9)
    played = script.Play(free, 1e-6, 0).to_end()
    assert played.rate == pytest.approx(160 / 20, rel=0.01)
    assert played.waiting < 0.001
    busy = free._replace(seconds=0.01)
    played = script.Play(busy, 1e-3, 0).to_end()
    assert played.rate == pytest.approx(1 / 1e-3, rel=0.01)
    assert played.driver == pytest.approx(1.0, abs=0.01)
    assert played.waiting > 0.5


def test_a_provider_is_the_limit_where_it_lets_less_through(script: ModuleType) -> None:
    """R-R8: requests a minute over requests a trial, whatever the number of machines."""
    world = script.World(trials=20_000, machines=50, spread=0.1, limit=4_200, mtbf_hours=1e9)
    played = script.Play(world, 1e-5, 0).to_end()
    assert played.rate == pytest.approx(4_200 / 60 / 7, rel=0.02)
    assert played.permits > 0.5


async def test_a_permit_costs_the_same_in_a_full_window() -> None:
    """R-R8: what calls of the window used is kept, not added up: settled, and gone with them."""
    now = 0.0
    limiter = RateLimiter(RateLimit(tokens_per_minute=1_000), clock=lambda: now)
    first, second = [await limiter.acquire(400) for _ in range(2)]
    first.settle(100)
    second.settle(None)
    third = await limiter.acquire(500)  # 100 + 400 + 500: just within
    now = 61.0
    again = await limiter.acquire(1_000)  # the window is empty again
    for late in (first, second, third):
        late.settle(999_999)  # no longer of anybody's concern
    again.settle(10)
    assert (await limiter.acquire(990)).tokens == 990
