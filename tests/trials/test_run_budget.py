"""Limits of a whole run on the calls of programs, and what killed attempts leave."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import proctor
import proctor.api
from proctor.gateway.budget import BudgetExceeded, CallBounds, CallUsage
from proctor.llm import MockLLM
from proctor.trials.options import RunBudget, RunOptions

PROGRAM = """
import json, os, signal, sys, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
for step in range(6):
    body = {"model": "m", "max_tokens": 1000, "messages": [{"role": "user", "content": str(step)}]}
    request = urllib.request.Request(url, json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    urllib.request.urlopen(request).read()
    if step == 1 and "kill" in sys.argv:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
print("done")
"""


class Greedy:
    """A model that uses all it may: every byte pair a token, and all the output it was allowed."""

    def __init__(self) -> None:
        self.tokens = 0
        self.cost = 0.0

    def __call__(self, request: Any) -> dict[str, Any]:
        size = len(json.dumps(request.body, separators=(",", ":"))) // 2
        most = request.body.get("max_completion_tokens") or request.body["max_tokens"]
        self.tokens += size + most
        self.cost += (size * 1.0 + most * 10.0) / 1e6
        return {"text": "x", "usage": {"input": size, "output": most}}


def suite(folder: Path, server: MockLLM, *arguments: str) -> Path:
    (folder / "agent.py").write_text(PROGRAM)
    (folder / "proctor.yaml").write_text("prices: {m: {input: 1.0, output: 10.0}}\n")
    agent = {
        "kind": "command",
        "command": [sys.executable, str(folder / "agent.py"), *arguments],
        "protocol": "text",
        "gateway": {"upstream": {"openai": server.base_url}},
    }
    case = {"id": "a", "input": "x", "correctness": {"expected_in_answer": ["done"]}}
    path = folder / "suite.yaml"
    path.write_text(json.dumps({"agent": agent, "cases": [case]}))
    return path


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "proctor", "run", *arguments]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize(("option", "limit"), [("--max-cost", 0.1), ("--max-tokens", 9000)])
def test_a_run_spends_no_more_than_its_limit_whatever_runs_side_by_side(
    tmp_path: Path, option: str, limit: float
) -> None:
    """R-N2: the server's own sums stay within the limit, and what is left is less than a call."""
    model = Greedy()
    with MockLLM(model) as server:
        path = suite(tmp_path, server)
        out, _ = start(
            tmp_path, str(path), "--trials", "6", "--concurrency", "4", option, str(limit)
        ).communicate()
        run = proctor.api.open_run("latest", results=tmp_path / "results")
        used = model.cost if option == "--max-cost" else model.tokens
        assert used <= limit, out
        assert used > limit * 0.95, out
        assert sum(trial.tokens or 0 for trial in run.trials) == model.tokens
        assert sum(trial.cost_usd or 0.0 for trial in run.trials) == pytest.approx(model.cost)
        # Nobody failed for lack of money: those trials are left to do.
        stopped = [trial for trial in run.trials if not trial.passed]
        assert stopped
        assert {trial.status.value for trial in stopped} == {"cancelled"}
        assert all("does not allow another call" in str(trial.error) for trial in stopped)
        assert run.stopped is not None
        assert "limit reached" in run.stopped
        assert run.path is not None
        out, _ = start(tmp_path, "--resume", str(run.path), option, str(limit * 100)).communicate()
        again = proctor.api.open_run(run.path)
        assert [trial.status.value for trial in again.trials] == ["passed"] * 6, out


def test_a_run_in_process_spends_no_more_than_its_limit(tmp_path: Path) -> None:
    """R-N2: the same without workers, from Python."""
    model = Greedy()
    with MockLLM(model) as server:
        path = suite(tmp_path, server)
        run = proctor.run(
            path,
            trials=6,
            concurrency=4,
            limits={"max_cost_usd": 0.1},
            results=tmp_path / "results",
        )
    assert 0.095 < model.cost <= 0.1
    assert {trial.status.value for trial in run.trials} <= {"cancelled", "passed"}
    assert run.stopped is not None


def test_a_trial_that_kills_its_worker_keeps_its_model_calls(tmp_path: Path) -> None:
    """R-N2: spans reach the driver as they happen; every lost attempt was paid for."""
    model = Greedy()
    with MockLLM(model) as server:
        path = suite(tmp_path, server, "kill")
        out, _ = start(tmp_path, str(path), "--trials", "1", "--max-retries", "0").communicate()
        run = proctor.api.open_run("latest", results=tmp_path / "results")
        (trial,) = run.trials
        assert trial.error is not None, out
        assert trial.error.type == "WorkerLost"
        trace = run.trace(trial)
        assert trace is not None
        # The last attempt's two calls, below the agent's span.
        assert [span.model for span in trace.llm_calls] == ["m", "m"]
        assert trace.spans[0].name == "command"
        assert {span.parent_id for span in trace.llm_calls} == {trace.spans[0].span_id}
        assert trial.llm_calls == len(server.requests) >= 2
        assert trial.tokens == model.tokens
        assert trial.cost_usd == pytest.approx(model.cost)
    assert run.path is not None
    assert not (run.path / ".calls").exists()


def test_what_a_killed_run_has_used_counts_when_it_is_resumed(tmp_path: Path) -> None:
    """R-N2: SIGKILL to the whole run; the limit holds over both invocations together."""
    model = Greedy()
    with MockLLM(model) as server:
        path = suite(tmp_path, server)
        process = start(tmp_path, str(path), "--trials", "4", "--max-cost", "0.2")
        while len(server.requests) < 7 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        folder = next((tmp_path / "results").glob("*/*/trials.jsonl"), None)
        run_folder = next((tmp_path / "results").glob("*/*/_spec_.yaml")).parent
        assert folder is None or len(folder.read_bytes().splitlines()) < 4
        assert list((run_folder / ".calls").iterdir())
        out, _ = start(tmp_path, "--resume", str(run_folder)).communicate()
        assert model.cost <= 0.2, out
        run = proctor.api.open_run(run_folder)
        known = sum(trial.cost_usd or 0.0 for trial in run.trials)
        # Calls in flight at the kill are known to the server only; all others are on record.
        assert model.cost - 4 * 0.0101 <= known <= model.cost + 1e-9


async def test_a_lost_attempt_releases_what_it_reserved() -> None:
    """R-N2: nobody waits for the calls of a dead worker, and they count in full."""
    budget = RunBudget(RunOptions(max_tokens=1000))
    bounds = CallBounds(100, 500)
    first = await budget.reserve("a", bounds)
    assert (first.tokens, first.max_output) == (600, None)
    waiting = asyncio.ensure_future(budget.reserve("b", bounds))
    dying = asyncio.ensure_future(budget.reserve("a", bounds))
    await asyncio.sleep(0)
    assert not waiting.done()
    budget.lose("a")
    second = await waiting
    assert (second.tokens, second.max_output) == (400, 300)
    with pytest.raises(BudgetExceeded):
        await dying
    # A late report of the dead worker changes nothing.
    budget.record("a", first.number, CallUsage(5, None), b"{}")
    assert budget.calls.tokens == 600
    budget.record("b", second.number, CallUsage(250, None), b"{}")
    assert budget.calls.tokens == 850
    with pytest.raises(BudgetExceeded):
        await budget.reserve("c", CallBounds(200, 1))
    assert "token limit reached: 850 of 1000" in (budget.exhausted() or "")


def test_input_that_a_request_only_refers_to_counts_as_a_context_window() -> None:
    """R-N2: an earlier response or a file may be of any length."""
    texts = {
        b'{"model":"m","previous_response_id":"resp_1","input":"hi"}': True,
        b'{"content":[{"type":"image_url","image_url":{"url":"https://a.b/c.png"}}]}': True,
        b'{"content":[{"type":"input_image","image_url": "https://a.b/c.png"}]}': True,
        b'{"source":{"type":"url","url":"https://a.b/c.pdf"}}': True,
        b'{"fileData":{"fileUri":"https://a.b/c"}}': True,
        b'{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}': False,
        b'{"type":"tool_use","input":{"url":"https://a.b/c"}}': False,
        b'{"tools":[{"parameters":{"properties":{"conversation":{"type":"string"}}}}]}': False,
        rb'{"content":"the key \"file_id\": \"x\" in a text"}': False,
    }
    for body, refers in texts.items():
        assert (CallBounds.of(body, 1, None).input_tokens > 1_000_000) is refers, body
