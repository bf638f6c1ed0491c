"""Rates of providers: exact in every window, first come first served."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.llm import ChatReply, ChatRequest, TokenUsage
from proctor.llm.rate_limits import (
    WINDOW,
    RateLimit,
    RateLimited,
    RateLimiter,
    estimate_tokens,
    provider_of,
    rate_limited,
)
from proctor.trace import Message


class Clock:
    """Time that passes only by sleeping, so that a test of minutes takes none."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def limiter(clock: Clock, requests: int | None = None, tokens: int | None = None) -> RateLimiter:
    limit = RateLimit(requests_per_minute=requests, tokens_per_minute=tokens)
    return RateLimiter(limit, clock=clock, sleep=clock.sleep)


calls = st.lists(
    st.tuples(st.floats(0, 40, allow_nan=False), st.integers(0, 60)), min_size=1, max_size=60
)


@given(calls, st.none() | st.integers(1, 7), st.none() | st.integers(1, 100))
def test_no_minute_is_above_the_rate(asked, requests, tokens):
    """R-R8: in whatever 60 seconds, at most so many requests and tokens, however asked for."""
    clock = Clock()
    started: list[tuple[float, int]] = []

    async def run():
        limit = limiter(clock, requests, tokens)
        for pause, size in asked:
            clock.now += pause
            await limit.acquire(size)
            started.append((clock.now, size))

    asyncio.run(run())
    assert len(started) == len(asked)
    for begin, _ in started:
        window = [size for at, size in started if begin <= at < begin + WINDOW]
        assert requests is None or len(window) <= requests
        # A call larger than the whole limit goes, but alone.
        weighty = [size for size in window if size]
        assert tokens is None or sum(window) <= tokens or len(weighty) == 1


@given(calls, st.integers(1, 7), st.integers(1, 100))
def test_no_call_waits_longer_than_needed(asked, requests, tokens):
    """R-R8: a call that had to wait could not have gone a moment earlier."""
    clock = Clock()
    started: list[tuple[float, int]] = []

    async def run():
        limit = limiter(clock, requests, tokens)
        for pause, size in asked:
            clock.now += pause
            before = clock.now
            await limit.acquire(size)
            if clock.now > before:
                earlier = [s for at, s in started if at > clock.now - WINDOW - 1e-6]
                full = len(earlier) >= requests
                assert full or (sum(earlier) + size > tokens and sum(earlier) > 0)
            started.append((clock.now, size))

    asyncio.run(run())


async def test_first_come_first_served():
    """R-R8: a small call does not overtake a large one; a cancelled one blocks nobody."""
    clock, order = Clock(), []
    limit = limiter(clock, tokens=100)

    async def call(name, size):
        await limit.acquire(size)
        order.append(name)

    await call("first", 90)
    tasks = [asyncio.create_task(call(n, s)) for n, s in (("big", 90), ("gone", 50), ("small", 5))]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["first", "big", "small"]


class Model:
    """A model that says how many tokens it used."""

    name = identity = "openai:m"

    def __init__(self, used: TokenUsage) -> None:
        self.used = used

    async def complete(self, request: ChatRequest) -> ChatReply:
        return ChatReply(text="ok", model="m", usage=self.used)


@pytest.mark.parametrize(
    ("used", "waits"), [(TokenUsage(10, 10), 0), (TokenUsage(900, 90), 1), (TokenUsage(), 1)]
)
async def test_what_a_call_really_used_counts(used, waits):
    """R-R8: the estimate holds until usage is known; unknown usage leaves it standing."""
    clock = Clock()
    model = RateLimited(Model(used), limiter(clock, tokens=1000))
    request = ChatRequest.of("x" * 400, max_tokens=500)
    assert estimate_tokens(request) == 600
    for _ in range(2):
        await model.complete(request)
    assert len(clock.slept) == waits


def test_an_estimate_counts_everything_sent():
    """R-R8: tools, their arguments and the room for a reply are part of a reservation."""
    from proctor.llm import ToolSpec
    from proctor.trace import ToolCall

    bare = ChatRequest.of("hello", max_tokens=1)
    tools = ChatRequest.of("hello", max_tokens=1, tools=(ToolSpec("t", "d" * 400),))
    call = Message("assistant", None, (ToolCall(name="t", arguments={"q": "x" * 400}),))
    assert estimate_tokens(tools) >= estimate_tokens(bare) + 100
    assert estimate_tokens(ChatRequest(messages=(call,), max_tokens=1)) >= 100


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("openai:gpt-4o", "openai"),
        ("openai-responses:gpt-4o", "openai"),
        ("litellm/anthropic/claude", "anthropic"),
        ("local:smollm2", "local"),
        ("nonsense", None),
    ],
)
def test_whose_limit_it_is(model, provider):
    """R-R8: names of one account share its limits."""
    assert provider_of(model) == provider


RUN_WITH_LIMITS = """
import asyncio
from test_rates import WINDOW, Clock
from proctor.agents.base import AgentRequest
from proctor.agents.registry import agent_config
from proctor.llm import MockLLM
from proctor.llm.rate_limits import RateLimit, rates_in_force


async def run():
    clock = Clock()
    with MockLLM([{"text": "ok", "times": "forever"}]) as server:
        host = server.base_url.split("/")[2]
        options = {"kind": "chat", "model": "openai:m", "base_url": server.base_url}
        config = agent_config(options)
        rates = {host: RateLimit(requests_per_minute=2), "openai": RateLimit(requests_per_minute=1)}
        with rates_in_force(rates, clock=clock, sleep=clock.sleep):
            await asyncio.gather(*(config.create().run(AgentRequest("q")) for _ in range(5)))
        print(len(server.requests), len(clock.slept), round((clock.now - 1000) / WINDOW, 6))


asyncio.run(run())
"""


def test_limits_of_a_run_hold_chat_agents():
    """R-R8: agents in tasks of a run wait for their provider; other providers are not held."""
    # A process of its own: what other tests have done to this one must not matter here.
    done = subprocess.run(
        [sys.executable, "-c", RUN_WITH_LIMITS],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["5", "2", "2.0"]
    model = Model(TokenUsage())
    assert rate_limited(model) is model
