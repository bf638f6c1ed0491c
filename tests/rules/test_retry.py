"""Which failures are retried is one rule: trials, judges, diagnosis and cassettes agree."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

import proctor
from proctor.agents.base import AgentError
from proctor.llm.chat_model import (
    ChatReply,
    ChatRequest,
    ModelError,
    ModelErrorKind,
    kind_of_status,
)
from proctor.llm.retry import (
    MAX_DELAY,
    RetryPolicy,
    complete_with_retries,
    is_transient_status,
    retry_delay,
    transient,
)
from proctor.spec import Case, Suite
from proctor.trace import Message

RETRIED = (408, 425, 429, 500, 502, 503, 504, 520, 529)
FINAL = (400, 401, 403, 404, 409, 422, 501, 505)


class StatusError(Exception):
    """The error of a client library."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"status {status}")
        self.response = SimpleNamespace(status_code=status, headers=headers or {})


def model_error(status: int, **more: Any) -> ModelError:
    return ModelError("x", kind=kind_of_status(status), status=status, **more)


class Failing:
    """A model that fails with these errors, then answers."""

    name = identity = "failing"

    def __init__(self, errors: Sequence[Exception]) -> None:
        self.errors, self.calls = list(errors), 0

    async def complete(self, _request: ChatRequest) -> ChatReply:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return ChatReply(text="fine", model="failing")


async def attempts_of_a_model(error: Exception) -> int:
    async def no_wait(_seconds: float) -> None: ...

    model = Failing([error])
    request = ChatRequest(messages=(Message("user", "q"),))
    try:
        await complete_with_retries(model, request, RetryPolicy(1, 30.0, no_wait))
    except type(error):
        pass
    return model.calls


def attempts_of_a_trial(folder: Path, error: Exception) -> int:
    calls = 0

    def agent(_question: str) -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise error
        return "fine"

    proctor.run(
        Suite(cases=(Case(id="c", input="q", correctness={"regex_match": "^"}),)),
        agent=agent,
        trials=1,
        results=folder,
    )
    return calls


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        *((model_error(status, retry_after=0.001), 2) for status in RETRIED),
        *((model_error(status), 1) for status in FINAL),
        (model_error(429, transient=False), 1),
        (AgentError("busy", transient=True, retry_after=0.001), 2),
        (AgentError("busy", status_code=529, retry_after=0.001), 2),
        (AgentError("never", transient=False, status_code=503), 1),
    ],
    ids=str,
)
async def test_a_trial_and_a_judge_retry_the_same_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, attempts: int
) -> None:
    """R-R3: an overloaded provider (529) is retried by both, a used-up quota (429) by neither."""
    import asyncio

    monkeypatch.setattr("proctor.llm.retry.BASE_DELAY", 0.001)
    assert await attempts_of_a_model(error) == attempts
    assert await asyncio.to_thread(attempts_of_a_trial, tmp_path, error) == attempts


@pytest.mark.parametrize("status", [*RETRIED, *FINAL])
def test_the_status_decides_where_nothing_else_does(status: int) -> None:
    """R-R3: the error of any client library, also as the cause of another error."""
    expected = status in RETRIED
    assert is_transient_status(status) == expected
    assert (transient(StatusError(status)) is not None) == expected
    wrapped = ValueError("the agent failed")
    wrapped.__cause__ = StatusError(status)
    assert (transient(wrapped) is not None) == expected
    assert model_error(status).transient == expected


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_the_wait_a_server_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    """R-R3: seconds, milliseconds, or nothing."""
    found = transient(StatusError(503, headers))
    assert found is not None
    assert found.retry_after == seconds


def test_the_wait_may_be_a_date() -> None:
    """R-R3: an HTTP date, an hour from now."""
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    found = transient(StatusError(429, {"retry-after": date}))
    assert found is not None
    assert found.rate_limited
    assert found.retry_after == pytest.approx(3600, abs=5)


def test_waits_spread_and_are_bounded() -> None:
    """R-R3: full jitter that doubles up to a limit; a server's wait is never undercut."""
    random = Random(1)
    waits = [[retry_delay(attempt, None, random) for _ in range(2000)] for attempt in range(8)]
    for attempt, drawn in enumerate(waits):
        longest = min(2.0**attempt, MAX_DELAY)
        assert min(drawn) < 0.05 * longest
        assert 0.95 * longest < max(drawn) <= longest
    assert retry_delay(0, 12.0, random) == 12.0


async def test_a_wait_that_is_too_long_is_an_error() -> None:
    """R-R3: a judge does not wait for a Retry-After above its limit."""
    error = ModelError("x", kind=ModelErrorKind.SERVER, status=503, retry_after=31.0)
    assert await attempts_of_a_model(error) == 1
