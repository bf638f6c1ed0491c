"""Latency is the agent's own: not that of checks, start-up, imports or our own rate limits."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import proctor
from run_one_parts import context_of
from run_parts import journal, only_run

from proctor import run
from proctor.agents._python import PythonAgentConfig
from proctor.llm.chat_model import ChatReply, ChatRequest
from proctor.llm.rate_limits import RateLimit, RateLimited, RateLimiter, Reservation
from proctor.runs.trial import PlannedTrial
from proctor.trace import Message
from proctor.trials.run_trial import PreparedCase, run_trial

PARTS = """
import asyncio, time

async def quick(input):
    await asyncio.sleep(0.01)
    return "fine"

def plain(input):
    time.sleep(0.01)
    return "fine"

def slow(ctx):
    time.sleep(2)
    return True
"""


def lines_of(
    folder: Path, agent: Any, *options: str, parts: str = PARTS, **case: Any
) -> list[dict[str, Any]]:
    """The journal of a run of four cases, which exits with 0."""
    (folder / "bot.py").write_text(parts)
    cases = [{"id": f"c{n}", "input": "q", **case} for n in range(4)]
    suite = folder / "suite.yaml"
    suite.write_text(yaml.safe_dump({"agent": agent, "cases": cases}))
    results = folder / "r"
    done = proctor("run", suite, "--results", results, "--quiet", "--trials", "3", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return journal(only_run(results))


FINE = {"correctness": {"expected_in_answer": ["fine"]}}
SLOW = {"checks": ["bot:slow"]}


@pytest.mark.slow
def test_a_slow_check_adds_nothing_to_other_agents(tmp_path: Path) -> None:
    """R-R8, R-C6: a check of 2 s neither delays agents beside it nor times them out."""
    options = ("--concurrency", "3", "--timeout", "1.9", "--trials", "2")
    found = lines_of(tmp_path, "bot:quick", *options, **SLOW)
    assert len(found) == 8
    assert max(line["latency_ms"] for line in found) < 1900
    assert all(line["check_ms"] >= 2000 for line in found), "recorded apart"


@pytest.mark.slow
def test_starting_a_process_is_not_the_agents_time(tmp_path: Path) -> None:
    """R-A2: with `isolation: process` latency is that of the call; the start is recorded apart."""
    agent = {"kind": "python", "target": "bot:timed", "isolation": "process"}
    # The start takes longer than the limit. What the call took by its own clock is its answer: on
    # a busy machine the way there and back adds to that, but never the start.
    parts = (
        PARTS + "\ndef timed(input):\n    began = time.perf_counter()\n    plain(input)\n"
        "    return f'fine {(time.perf_counter() - began) * 1000}'\n\ntime.sleep(5)\n"
    )
    limited: dict[str, Any] = {
        **FINE,
        "cost": {"max_latency_ms": 4900},
        "required": ["max_latency_ms"],
    }
    options = ("--concurrency", "2", "--timeout", "4.9", "--trials", "1")
    found = lines_of(tmp_path, agent, *options, parts=parts, **limited)
    assert len(found) == 4
    for line in found:
        assert float(line["answer"].split()[1]) <= line["latency_ms"] < 4900
        assert line["startup_ms"] >= 5000, "recorded apart"


async def test_latency_is_by_the_clock_of_the_process_that_calls(tmp_path: Path) -> None:
    """R-A2: with `isolation: process` a driver that is busy meanwhile does not shorten it."""
    (tmp_path / "bot.py").write_text(
        "import pathlib, time\n"
        "here = pathlib.Path(__file__).parent\n"
        "(here / 'loaded').touch()\n"
        "while not (here / 'busy').exists(): time.sleep(0.005)\n"
        "def agent(input):\n    time.sleep(0.2)\n    (here / 'ended').touch()\n"
        "    return 'fine'\n"
    )
    config = PythonAgentConfig(target="bot:agent", isolation="process", base_dir=tmp_path)

    async def busy() -> None:
        while not (tmp_path / "loaded").exists():  # noqa: ASYNC110 (another process makes it)
            await asyncio.sleep(0.005)
        (tmp_path / "busy").touch()
        while not (tmp_path / "ended").exists():
            time.sleep(0.005)  # noqa: ASYNC251 (the event loop is to be late)

    planned = PlannedTrial(case="c", agent="a", index=0, seed=0)
    (trial, _), _ = await asyncio.gather(run_trial(planned, context_of(config)), busy())
    assert trial.answer == "fine", trial.error
    assert trial.latency_ms is not None
    assert trial.latency_ms >= 200


async def test_building_scenarios_is_not_the_latency_of_the_first_agent() -> None:
    """R-R8: instances are built when trials start, and agents beside them are no slower for it."""

    async def agent(question: str) -> str:
        await asyncio.sleep(0.01)
        return question

    context = context_of(PythonAgentConfig.of(agent), "a")
    built = context.cases["c"]

    def build(_: PlannedTrial) -> PreparedCase:
        time.sleep(0.5)  # as a large scenario does
        return built

    context.cases = {"c": PreparedCase(built.case, build=build)}
    planned = [PlannedTrial(case="c", agent="a", index=at, seed=at) for at in range(4)]
    done = await asyncio.gather(*(run_trial(each, context) for each in planned))
    assert [trial.answer for trial, _ in done] == ["a"] * 4
    # The first waited 1.5 s for the others before.
    assert max(trial.latency_ms or 0.0 for trial, _ in done) < 1000


def test_what_trials_share_is_loaded_before_the_first(tmp_path: Path) -> None:
    """R-R8: an agent with a model client finds the price tables loaded: no trial pays for them."""
    (tmp_path / "groq.py").write_text("")  # a client, by its name
    lines = "import groq, sys\ndef answer(q): return str('genai_prices' in sys.modules)\n"
    case = {"correctness": {"exact_match": "True"}}
    assert len(lines_of(tmp_path, "bot:answer", parts=lines, **case)) == 12


def test_times_are_columns_of_the_table(tmp_path: Path) -> None:
    """R-Q4: queueing, start-up and checking are in results.parquet."""
    lines_of(tmp_path, "bot:quick", **FINE)
    query = "select queue_ms, startup_ms, check_ms > 0 as checked from trials limit 1"
    done = proctor("sql", query, "--results", tmp_path / "r", "--json")
    assert done.returncode == 0, done.stderr
    assert '"checked": true' in done.stdout, done.stdout


async def test_waiting_for_our_own_rate_limit_is_not_the_agents_time() -> None:
    """R-R8: a call that waits for a permit adds to `queue_ms`, and does not time out its trial."""

    class Full:
        async def acquire(self, tokens: int = 0) -> Reservation:
            await asyncio.sleep(2)
            return Reservation(0.0, tokens, RateLimiter(RateLimit()))

    class Echo:
        name = identity = "test:echo"

        async def complete(self, request: ChatRequest) -> ChatReply:
            return ChatReply(text=request.messages[0].content or "", model="echo")

    async def agent(question: str) -> str:
        asked = ChatRequest(messages=(Message("user", question),))
        calls = [RateLimited(Echo(), Full()).complete(asked) for _ in range(3)]
        return "".join(reply.text for reply in await asyncio.gather(*calls))

    context = context_of(PythonAgentConfig.of(agent), "a")
    context.options = context.options.model_copy(update={"timeout": 1.9})
    trial, _ = await run_trial(PlannedTrial(case="c", agent="a", index=0, seed=0), context)
    assert (trial.answer, trial.error) == ("aaa", None)
    assert trial.latency_ms is not None
    assert trial.latency_ms < 1900
    assert 2000 <= trial.queue_ms < 4000, "three waits at a time count once"


CROWD = """
import asyncio, time

async def answer(input):
    await asyncio.sleep(0.01)
    time.sleep(0.005)
    await asyncio.sleep(0.01)
    return "fine"
"""


@pytest.mark.parametrize("here", [False, True])
def test_a_process_that_cannot_keep_up_is_named(tmp_path: Path, here: bool, capsys) -> None:
    """R-R8: with too many trials at a time, latencies are those of the process; few are fine."""
    (tmp_path / "crowd.py").write_text(CROWD)
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump({"agent": "crowd:answer", "cases": [{"input": "q", **FINE}]}))

    def messages(at_once: int) -> str:
        if here:
            run(suite, trials=at_once, concurrency=at_once, results=tmp_path / "here")
            return capsys.readouterr().err
        options = ("--trials", str(at_once), "--concurrency", str(at_once), "--results", "there")
        return proctor("run", suite, *options, cwd=tmp_path).stderr

    assert "one process cannot keep up with 300 trials at a time" in messages(300)
    assert "keep up" not in messages(4)
