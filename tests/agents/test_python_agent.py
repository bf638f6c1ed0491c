"""Python callables as agents, in this process and in one of their own."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from run_one_parts import Tried, run_one

from proctor.agents._python import PythonAgentConfig
from proctor.agents.base import AgentError, AgentReply, AgentRequest
from proctor.background import run_sync
from proctor.runs.trial import TrialStatus

HERE = Path(__file__).parent


def zoo(name: str, **options: Any) -> PythonAgentConfig:
    return PythonAgentConfig(target=f"zoo:{name}", base_dir=HERE, **options)


async def tried(
    config: PythonAgentConfig, *, value: Any = "x", seconds: float | None = None
) -> Tried:
    return await run_one(config, value, timeout=seconds, max_retries=0)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("fine", "fine: about x"),
        ("returns_none", ""),
        ("returns_bytes", "café \ufffd"),
        ("prints_rubbish", "said"),
        ("leaks_tasks", "leaked"),
        ("leaks_threads", "leaked"),
        ("Counter", "1"),
        ("Runner", "x!"),
    ],
)
async def test_answers_whatever_their_type(name: str, answer: str) -> None:
    """R-A2: plain and async callables, classes; None, bytes and text become the answer."""
    for _ in range(2):
        trial, trace = await tried(zoo(name))
        assert (trial.status, trial.answer) == (TrialStatus.PASSED, answer)
        assert trace is not None
        assert trace.response == answer


async def test_a_factory_makes_a_fresh_agent_for_each_trial() -> None:
    """R-A3: state does not pass from one trial to the next."""
    config = zoo("make_counter", factory=True)
    assert [(await tried(config)).trial.answer for _ in range(3)] == ["1", "1", "1"]


async def test_a_class_that_says_nowhere_what_to_call_is_named() -> None:
    """R-A2: a trial of an object that cannot be called says what its class needs."""
    trial = (await tried(zoo("Uncallable"))).trial
    assert trial.error is not None
    assert "a Uncallable cannot be called" in trial.error.message
    assert "`run` or `__call__`" in trial.error.message


async def test_an_agent_may_change_its_input_without_harm() -> None:
    """R-A3: each trial gets the input as it was written."""
    value = {"q": "x"}
    config = zoo("mutates")
    assert [(await tried(config, value=value)).trial.answer for _ in range(2)] == ["1", "1"]
    assert value == {"q": "x"}


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        (lambda question: question, "x"),
        (lambda question, seed: f"{question} {seed}", "x 5"),
        (lambda question, seed=0, *, workdir: f"{question} {seed} {workdir.exists()}", "x 5 True"),
        (lambda seed, input: f"{input} {seed}", "x 5"),  # noqa: A006 (the word users write)
        (lambda request: f"{request.input} {request.seed} {request.index}", "x 5 0"),
        (lambda question, request: f"{question} {request.seed}", "x 5"),
        (lambda seed: seed, "x"),
    ],
)
async def test_arguments_by_name(function: Any, answer: str) -> None:
    """R-A2: known names are given what they name; a first of any other name is the input."""
    trial = (await tried(PythonAgentConfig.of(function))).trial
    assert (trial.error, trial.answer) == (None, answer)


async def test_a_process_is_told_which_trial_it_is() -> None:
    """R-A2: an agent in a process of its own is given what it would be given without."""
    config = zoo("tells_its_trial", isolation="process")
    trial, _ = await run_one(config, index=3, timeout=60)
    assert (trial.error, trial.answer) == (None, "c 3 5 True")


@pytest.mark.parametrize("isolation", ["none", "process"])
async def test_a_directory_of_its_own_that_goes_afterwards(isolation: str) -> None:
    """R-A3: a temporary directory per trial, passed to the agent; never a changed directory."""
    before = Path.cwd()
    trial, *_ = await tried(zoo("writes_here", isolation=isolation))
    assert trial.status == TrialStatus.PASSED, trial.error
    assert trial.answer is not None
    assert not Path(trial.answer).exists()  # noqa: ASYNC240 (one look at a local disk)
    assert Path.cwd() == before


@pytest.mark.parametrize(
    ("name", "isolation", "says"),
    [
        ("raises", "none", "the agent is broken"),
        ("raises", "process", "ValueError: the agent is broken"),
        ("exits", "process", "exited with code 3"),
        ("exits_hard", "process", "exited with code 3"),
        ("segfaults", "process", "killed by SIGSEGV"),
        ("kills_itself", "process", "killed by SIGKILL"),
    ],
)
async def test_what_breaks_an_agent_ends_its_trial_only(
    name: str, isolation: str, says: str
) -> None:
    """R-R1: an agent that crashes has failed, it is said how, and the next trial is unaffected."""
    trial, *_ = await tried(zoo(name, isolation=isolation))
    assert trial.status == TrialStatus.FAILED
    # A kill alone does not say that memory ran out.
    assert trial.category == "agent_error"
    assert trial.error is not None
    assert says in trial.error.message
    following, *_ = await tried(zoo("fine", isolation=isolation))
    assert following.status == TrialStatus.PASSED


@pytest.mark.parametrize(
    ("name", "isolation"),
    [
        ("sleeps", "none"),
        ("sleeps_async", "none"),
        ("will_not_stop", "none"),
        ("loops", "process"),
        ("sleeps", "process"),
    ],
)
def test_a_timeout_really_ends_the_trial(name: str, isolation: str) -> None:
    """R-R8: an agent that hangs, spins or ignores being stopped ends at its time limit."""
    began = time.monotonic()
    trial, *_ = run_sync(tried(zoo(name, isolation=isolation), seconds=0.6))
    assert time.monotonic() - began < 600, "not the hour that the agent takes"
    assert (trial.status, trial.error and trial.error.type) == (
        TrialStatus.FAILED,
        "TrialTimeout",
    )


async def test_memory_is_bounded_in_a_process_of_its_own() -> None:
    """R-A2: with a memory limit a greedy agent fails alone."""
    trial, *_ = await tried(zoo("eats_memory", isolation="process", memory_mb=1024))
    assert (trial.status, trial.category) == (TrialStatus.FAILED, "resource_limit")
    assert trial.error is not None
    assert "MemoryError" in trial.error.message


async def test_a_process_leaves_no_children_behind() -> None:
    """R-A2: what the agent started ends with its trial."""
    trial, *_ = await tried(zoo("forks", isolation="process"))
    assert trial.status == TrialStatus.PASSED
    assert trial.answer is not None
    until = time.monotonic() + 60  # The kernel takes its moment to end a killed process.
    while _alive(trial.answer) and time.monotonic() < until:  # noqa: ASYNC110 (another process does it)
        await asyncio.sleep(0.01)
    assert not _alive(trial.answer)


def _alive(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_spans_of_a_child_process_stand_in_the_trace() -> None:
    """R-T6: tools called in the child are in the trial's trace, below its root."""
    _, trace = await tried(zoo("fine", isolation="process"))
    assert trace is not None
    assert trace.tool_sequence == ["lookup"]
    assert [call.arguments for call in trace.tool_calls] == [{"word": "x"}]
    assert len(trace.roots) == 1


async def test_a_flood_is_cut_in_the_journal() -> None:
    """R-R9: a 100 MB answer neither kills the run nor fills the journal."""
    trial, trace = await tried(zoo("returns_flood"))
    assert trial.status == TrialStatus.PASSED
    assert trial.answer is not None
    assert len(trial.answer) < 101_000
    assert trace is not None
    assert len(trace.response or "") < 11_000_000


async def test_a_missing_target_is_a_clear_error() -> None:
    """R-A2: a target that does not exist is named, with the nearest one that does."""
    trial, *_ = await tried(zoo("fin"))
    assert trial.error is not None
    assert "fin" in trial.error.message


async def test_replies_may_be_structured() -> None:
    """R-A2: a mapping is answered as its JSON and kept whole."""
    config = PythonAgentConfig.of(lambda _: {"total": 3})
    reply = await config.create().run(AgentRequest("x"))
    assert reply == AgentReply(answer='{"total":3}', output={"total": 3})
    with pytest.raises(AgentError, match="generator"):
        await PythonAgentConfig.of(lambda _: (c for c in "ab")).create().run(AgentRequest("x"))
