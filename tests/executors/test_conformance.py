"""What holds of a run holds wherever its trials run: the same tests on every executor."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from executor_parts import marks, run_of, statuses, suite_of
from run_parts import journal, rows

import proctor
from proctor.errors import ProctorError
from proctor.llm import MockLLM
from proctor.runs.folder import RunFolder
from proctor.runs.run import Run
from proctor.runs.trial import PlannedTrial, Trial
from proctor.spec import load_suite
from proctor.trials.options import RunOptions
from proctor.trials.prepare import prepare
from proctor.trials.resume import aresume, restore
from proctor.trials.session import INFRA, Session, new_folder, run_session

Where = dict[str, Any]


async def test_every_way_a_trial_can_end(tmp_path: Path, where: Where) -> None:
    """R-R1, R-R10, R-R11, R-R12, R-R13: statuses, verdicts, ranking and summary of a run."""
    path = suite_of(tmp_path, "says", "well", "raise", trials=2)
    written = yaml.safe_load(path.read_text())
    wrong = {"id": "wrong", "input": "a", "trials": 2}
    contains = [{"type": "output_contains", "value": text} for text in ("a", "z")]
    low = {"id": "low", "input": "a", "trials": 2, "threshold": 0.9, "assertions": contains}
    written["cases"] += [{**wrong, "correctness": {"expected_in_answer": ["b"]}}, low]
    path.write_text(yaml.safe_dump(written))
    run = await run_of(path, where)
    found = statuses(run)
    assert found == {"c0": "passed", "c1": "failed", "wrong": "hard_fail", "low": "failed"}
    verdicts = {cell.case: cell.verdict.value for cell in run.cells}
    assert verdicts["c0"] == "PASS"
    assert verdicts["c1"] == "FAIL"
    assert verdicts["wrong"] == "HARD FAIL"
    (cell,) = [cell for cell in run.cells if cell.case == "wrong"]
    assert (cell.trials, cell.hard_fail, cell.pass_rate) == (2, 2, 0.0)
    assert [failure.count for failure in cell.failures] == [2]
    assert run.exit_code == 1
    errors = {t.error.message for t in run.trials() if t.case == "c1" and t.error}
    assert len(errors) == 1  # wherever it ran, the file is called the same
    assert re.fullmatch(r"no \(at bots\.py:\d+\)", errors.pop())


async def test_traces_come_home_whole(tmp_path: Path, where: Where) -> None:
    """R-R12, R-T3: what an agent did is in the run folder wherever it was done."""
    run = await run_of(suite_of(tmp_path, "steady", "q"), where, trials=5)
    for trial in run.trials():
        trace = run.trace(trial)
        assert trace is not None
        (step,) = [span for span in trace.spans if span.tool_name]
        assert (step.tool_name, step.tool_output) == ("dice", trial.seed % 6)
        assert trace.trace_id == trial.trace_id


async def test_transient_failures_only_are_tried_again(tmp_path: Path, where: Where) -> None:
    """R-R3: a connection that fails is tried again and counted; a wrong value is not."""
    run = await run_of(suite_of(tmp_path, "says", "flaky", "raise"), where, trials=1)
    flaky, wrong = sorted(run.trials(), key=lambda t: t.case)
    assert (flaky.status, flaky.retries) == ("passed", 1)
    assert flaky.retry_errors == ("ConnectionError: come back later",)
    assert (wrong.status, wrong.category, wrong.retries) == ("failed", "agent_error", 0)


@pytest.mark.parametrize(("rule", "ran"), [("hard_fail", 1), ("out_of_reach", 2)])
async def test_a_decided_cell_is_left(tmp_path: Path, where: Where, rule: str, ran: int) -> None:
    """R-R4: with one at a time nothing is begun that a finished trial has made needless."""
    path = suite_of(tmp_path, "plain", "q")
    path.write_text(path.read_text().replace("expected_in_answer", "not_in_answer"))
    run = await run_of(path, where, trials=9, concurrency=1, early_stop=(rule,))
    assert run.totals.trials == ran
    assert run.cells[0].early_stop is not None


async def test_every_trial_has_its_seed_and_a_fresh_agent(tmp_path: Path, where: Where) -> None:
    """R-R5, R-A3: seeds are those of the plan, and nothing is left of an earlier trial."""
    seeded = await run_of(suite_of(tmp_path / "a", "plain", "q"), where, trials=6, seed=5)
    assert [t.answer for t in seeded.trials()] == [f"q {t.seed}" for t in seeded.trials()]
    assert len({t.seed for t in seeded.trials()}) == 6
    path = suite_of(tmp_path / "b", "Counting", "1")
    fresh = await run_of(path, where, trials=6)
    assert {t.answer for t in fresh.trials()} == {"1"}


@pytest.mark.parametrize(
    ("options", "ran", "why"),
    [
        ({"max_cost_usd": 0.35}, 4, "cost limit reached: $0.40 of $0.35"),
        ({"max_tokens": 250}, 3, "token limit reached: 300 of 250"),
        ({"max_trials": 2}, 2, "trial limit reached: 2 started"),
        ({"max_seconds": 0}, 0, "time limit reached: 0 s"),
    ],
)
async def test_each_cap_stops_the_run(
    tmp_path: Path, where: Where, options: dict[str, Any], ran: int, why: str
) -> None:
    """R-R8, R-R11: no trial starts once a cap of the whole run is reached."""
    path = suite_of(tmp_path, "priced", "a")
    run = await run_of(path, where, trials=10, concurrency=1, **options)
    assert (run.totals.trials, run.stopped) == (ran, why)
    assert run.exit_code == 2


async def test_an_unknown_price_stops_a_run_with_a_money_cap(tmp_path: Path, where: Where) -> None:
    """R-R8, R-A4: what cannot be counted cannot be capped, and it is said what to do."""
    path = suite_of(tmp_path, "unpriced", "a")
    run = await run_of(path, where, trials=10, concurrency=1, max_cost_usd=5)
    assert run.totals.trials == 1
    assert run.stopped is not None
    assert "give prices in the settings, or cap tokens instead" in run.stopped


async def test_a_trial_has_its_time(tmp_path: Path, where: Where) -> None:
    """R-R1, R-R8: a trial that takes too long has failed, and the others are judged."""
    run = await run_of(suite_of(tmp_path, "says", "slow", "well"), where, trials=1, timeout=1.5)
    late, well = sorted(run.trials(), key=lambda t: t.case)
    assert (late.status, late.category, well.status) == ("failed", "timeout", "passed")
    assert late.error is not None
    assert "took longer than 1.5 s" in late.error.message


class StopsAt:
    """An observer that stops its session once something was seen so many times."""

    def __init__(self, seen: Callable[[], int], times: int) -> None:
        self.seen, self.times = seen, times
        self.begun: list[PlannedTrial] = []
        self.ended: list[Trial] = []

    def watch(self, session: Session) -> None:
        self.task = asyncio.ensure_future(self._stop(session))

    async def _stop(self, session: Session) -> None:
        while self.seen() < self.times:  # noqa: ASYNC110 (another process does it)
            await asyncio.sleep(0.01)
        session.stop("told to")

    def planned(self, total: int, kept: Any) -> None: ...

    def started(self, trial: PlannedTrial) -> None:
        self.begun.append(trial)

    def finished(self, trial: Trial) -> None:
        self.ended.append(trial)

    def skipped(self, trial: PlannedTrial) -> None: ...


async def stopped_run(
    path: Path, where: Where, seen: Callable[[], int], times: int, **options: Any
) -> RunFolder:
    """The folder of a run that was stopped once something was seen so many times."""
    options = {"concurrency": 8, **options}
    ready = prepare(load_suite(path), RunOptions(**where, **options))
    folder = new_folder(ready, path.parent / "results")
    watch = StopsAt(seen, times)
    run = await run_session(ready, folder, observer=watch, on_session=watch.watch)
    assert run.stopped == "told to"
    assert len(watch.begun) == len(watch.ended), "what began is recorded"
    return folder


async def test_permits_of_a_provider_are_those_of_the_whole_run(
    tmp_path: Path, where: Where
) -> None:
    """R-R8, R-R12: three requests a minute are three, however many workers ask."""
    with MockLLM([{"text": "q", "times": "forever"}]) as server:
        host = server.base_url.split("/")[2]
        agent = {"kind": "chat", "model": "openai:m", "base_url": server.base_url}
        path = suite_of(tmp_path, agent, "q")
        limits = f"limits: {{rates: {{'{host}': {{requests_per_minute: 3}}}}}}\n"
        (tmp_path / "proctor.yaml").write_text(limits)
        folder = await stopped_run(path, where, lambda: len(server.requests), 3, trials=8)
        assert len(server.requests) == 3
    counted = [line["status"] for line in journal(folder.path)]
    assert set(counted) <= {"passed", "cancelled"}
    assert counted.count("passed") <= 3


async def test_a_stopped_run_is_resumed(tmp_path: Path, where: Where) -> None:
    """R-R6, R-R7: running trials are recorded as cancelled; a resumed run does what is left."""
    path = suite_of(tmp_path, "slow", "done")
    folder = await stopped_run(
        path, where, lambda: len(marks(tmp_path, "began")), 2, trials=5, concurrency=2
    )
    assert [line["status"] for line in journal(folder.path)] == ["cancelled"] * 2
    (tmp_path / "go").touch()
    run = await aresume(folder.path)
    assert [t.status.value for t in run.trials()] == ["passed"] * 5
    assert len(journal(folder.path)) == 7
    elsewhere = restore(folder.path, executor="local")[0].options
    assert (elsewhere.executor, elsewhere.workers) == ("local", None)


async def test_what_an_agent_saved_is_given_back(tmp_path: Path, where: Where) -> None:
    """R-R7, R-R9: the state of a trial is kept by the run, not by the process that ran it."""
    path = suite_of(tmp_path, "remembers", "sitting")
    folder = await stopped_run(path, where, lambda: len(marks(tmp_path, "saved")), 1, trials=1)
    assert list(folder.path.glob(".checkpoints/*.state"))
    (tmp_path / "go").touch()
    run = await aresume(folder.path)
    assert [t.answer for t in run.trials()] == ["sitting 2"]
    assert not list(folder.path.glob(".checkpoints/*.state"))


async def test_only_what_was_not_judged_is_run_again(tmp_path: Path, where: Where) -> None:
    """R-R7: a rerun of infrastructure errors leaves every verdict as it is."""
    path = suite_of(tmp_path, "says", "flaky", "well")
    first = await run_of(path, where, trials=1, max_retries=0)
    assert statuses(first) == {"c0": "infra_error", "c1": "passed"}
    again = await aresume(first.path, rerun=INFRA)
    assert statuses(again) == {"c0": "passed", "c1": "passed"}
    assert [(line["case"], line.get("attempt", 1)) for line in journal(first.path)][-1] == ("c0", 2)
    assert len(journal(first.path)) == 3


async def test_secrets_stay_out(tmp_path: Path, where: Where, monkeypatch: Any) -> None:
    """R-T9: a key is not on disk, wherever the agent read it."""
    monkeypatch.setenv("SHOP_API_KEY", "ghp_9f8e7d6c5b4a39281706Zz1Yy2Xx3Ww4Vv5U")
    run = await run_of(suite_of(tmp_path, "leaky", "key"), where, trials=2)
    (answer,) = {t.answer for t in run.trials()}
    assert answer is not None
    assert answer.startswith("the key is [redacted")
    trace = run.trace(next(iter(run.trials())))
    assert trace is not None
    assert "9f8e7d6c" not in str(trace.response)


async def test_a_recorded_run_repeats_without_the_model(tmp_path: Path, where: Where) -> None:
    """R-A5: answers are recorded, and given back, wherever the trials run."""
    cassette = tmp_path / "calls.jsonl"
    with MockLLM([{"text": f"q {n}"} for n in range(6)]) as server:
        agent = {"kind": "chat", "model": "openai:tiny", "base_url": server.base_url}
        path = suite_of(tmp_path, agent, "q")
        live = await run_of(path, where, trials=6, kept="live", record_to=str(cassette))
        assert len(server.requests) == 6
    again = await run_of(path, where, trials=6, kept="again", replay_from=str(cassette))
    assert [t.error for run in (live, again) for t in run.trials() if t.error] == []
    answers = [{t.index: t.answer for t in run.trials()} for run in (live, again)]
    assert answers[0] == answers[1]
    assert sorted(map(str, answers[0].values())) == [f"q {n}" for n in range(6)]


async def test_an_agent_made_in_code(tmp_path: Path, where: Where) -> None:
    """R-R12, R-A2: a function at hand, with what it closes over, is an agent anywhere."""
    secret_word = "abracadabra"

    async def closure(question: str) -> str:
        return f"{question} {secret_word}"

    path = suite_of(tmp_path, "plain", "q")
    run = await run_of(path, where, trials=3, agent=closure)
    assert {t.answer for t in run.trials()} == {"q abracadabra"}


async def test_scenarios_are_built_where_they_are_played(tmp_path: Path, where: Where) -> None:
    """R-R12, R-S4, R-S5: a batch over worlds gives the same results on every executor."""
    cases, agents = "mutualism.hidden_dependency", ["random", "scripted"]
    axes: dict[str, Any] = {"cases": cases, "agents": agents, "seeds": 2}
    here = await proctor.arun(**axes, results=tmp_path / "here")
    there = await proctor.arun(**axes, results=tmp_path / "there", **where)
    assert rows(there.path) == rows(here.path)
    assert len(rows(here.path)) == 4


async def test_code_that_is_not_there_is_one_error(tmp_path: Path, where: Where) -> None:
    """R-R11, R-A2: an agent that cannot be imported ends the run before its first trial."""
    path = suite_of(tmp_path, "plain", "q")
    path.write_text(path.read_text().replace("bots:plain", "bots:plane"))
    with pytest.raises(ProctorError, match="plane"):
        await run_of(path, where)
    assert not list((tmp_path / "results").glob("*/*"))


async def test_relative_paths_start_where_the_user_stands(
    tmp_path: Path, where: Where, monkeypatch: Any
) -> None:
    """R-R12: a worker on this machine stands where the driver stands."""
    monkeypatch.chdir(tmp_path)
    path = suite_of(tmp_path, "plain", "q")
    (tmp_path / "bots.py").write_text("import os\ndef plain(input): return os.getcwd()\n")
    run: Run = await run_of(path, where, trials=2)
    assert {t.answer for t in run.trials()} == {str(tmp_path)}
