"""Tested causes: error rates and coverage by simulation, planted causes end to end."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from commands import proctor as command

from proctor.causes.ab import look_shares
from proctor.causes.why import (
    RESAMPLE,
    UNCHANGED,
    ArmCount,
    Counterfactual,
    TestedCause,
    WhyResult,
    outcome_of,
    sequential,
)
from proctor.llm import MockLLM
from proctor.llm.mock import ScriptRequest
from proctor.report.console_results import render_why
from proctor.runs.annotations import experiments_of
from proctor.runs.run import Run
from proctor.stats.intervals import newcombe

EXPERIMENTS = 1000


def experiment(
    rates: dict[str, float], rng: np.random.Generator, suspects: int = 3, per_look: int = 8
) -> tuple[str, bool, bool]:
    """Simulate one suspect: its outcome, and whether the intervals cover (all, the first)."""
    totals = {name: [0, 0] for name in rates}

    def observe() -> dict[str, ArmCount]:
        for name, rate in rates.items():
            totals[name][0] += int(rng.binomial(per_look, rate))
            totals[name][1] += per_look
        return {name: ArmCount(*each) for name, each in totals.items()}

    figures, _ = sequential(observe, {}, look_shares(0.05 / suspects, 3))
    covers = [
        one.low <= rates[one.name] - rates[UNCHANGED] <= one.high
        for one in figures
        if one.low is not None and one.high is not None
    ]
    return outcome_of(figures), all(covers), covers[0]


@pytest.mark.slow
def test_intervals_cover_and_suspects_without_effect_are_rarely_decisive() -> None:
    """R-G10: 1,000 simulated experiments of each kind, with sequential stopping."""
    rng = np.random.default_rng(26)
    error = 3 * (0.05 * 0.95 / EXPERIMENTS) ** 0.5  # three Monte Carlo standard errors
    for base in (0.0, 0.2, 0.5):
        rates = {UNCHANGED: base, "resample": base, "passing call": base, "hint": base}
        null = [experiment(rates, rng, suspects=1) for _ in range(EXPERIMENTS)]
        wrong = sum(outcome == "decisive" for outcome, _, _ in null) / EXPERIMENTS
        named = sum(outcome in ("decisive", "contributing") for outcome, _, _ in null)
        print(f"no effect at {base}: {wrong:.3f} decisive, {named / EXPERIMENTS:.3f} any effect")
        assert wrong <= 0.05 + error
        assert named / EXPERIMENTS <= 0.05 + error
    for base, effect in ((0.0, 0.0), (0.1, 0.3), (0.2, 0.6), (0.5, 0.4), (0.0, 0.9)):
        rates = {UNCHANGED: base, "resample": base + effect}
        found = [experiment(rates, rng, suspects=1) for _ in range(EXPERIMENTS)]
        covered = sum(first for _, _, first in found) / EXPERIMENTS
        print(f"effect {effect} at {base}: intervals cover in {covered:.3f}")
        assert covered >= 0.93 - error
    strong = {UNCHANGED: 0.1, "resample": 0.7, "passing call": 0.9}
    outcomes = [experiment(strong, rng)[0] for _ in range(EXPERIMENTS)]
    assert outcomes.count("decisive") / EXPERIMENTS >= 0.95


def test_the_interval_of_a_difference() -> None:
    """R-G10: the example of Newcombe's paper (1998, method 10)."""
    assert newcombe(48, 80, 56, 70) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    low, high = newcombe(0, 10, 10, 10)
    assert low < 1.0 == high


@pytest.mark.slow
def test_a_planted_cause_is_ranked_first(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-G10: end to end; `benchmarks/causes.py` does this 100 times."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    import causes  # pyright: ignore[reportMissingImports]

    for step, seed in ((1, 1), (2, 2), (3, 3)):
        result = causes.planted(  # pyright: ignore[reportAttributeAccessIssue]
            tmp_path, step, seed
        )
        assert result is not None
        first = result.causes[0]
        assert (first.step, first.outcome) == (step, "decisive"), result
        assert all(cause.outcome != "decisive" for cause in result.causes[1:]), result
        assert result.trials <= 400
        assert first.best is not None
        assert first.best.low is not None
        assert first.best.low > 0


@pytest.mark.slow
def test_the_demo_names_its_tested_cause(tmp_path: Path) -> None:
    """R-G10: `why` on a failure of the demo, and the diagnosis says that it was tested."""
    assert command("demo", cwd=tmp_path).returncode == 0
    run = Run(next((tmp_path / "results" / "demo").iterdir()))
    failing = {t.case: t for t in run.trials() if t.agent == "hasty" and not t.passed}
    name = failing["late-return"].name
    done = command("why", f"{run.path}:{name}", "--quiet", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    first = found["causes"][0]
    assert (first["outcome"], first["step"]) == ("decisive", 1)
    assert "read_policy" in first["what"]
    assert {"resample", "passing call"} <= {each["name"] for each in first["counterfactuals"]}
    assert first["passed"] == 0
    assert experiments_of(run.path)[name, 1].outcome == "decisive"
    told = command("diagnose", str(run.path), "--failed", "--details", cwd=tmp_path).stdout
    assert "tested  decisive: with " in told
    # A trial that passed has no cause, and the budget is kept.
    passing = next(t for t in run.trials() if t.passed)
    refused = command("why", f"{run.path}:{passing.name}", cwd=tmp_path)
    assert refused.returncode == 2
    assert "passed, so nothing broke" in refused.stderr
    small = command(
        "why", f"{run.path}:{name}", "--max-trials", "40", "--json", "--quiet", cwd=tmp_path
    )
    assert json.loads(small.stdout)["trials"] <= 40


POLICIES = """
def read_policy(name: str) -> str:
    \"\"\"Read a policy.\"\"\"
    return {"returns": "30 days", "shipping": "2 days"}[name]
"""


def shop_model(draw: random.Random) -> Any:
    """A model that reads the wrong policy in four of ten trials, and answers what it read."""

    def reply(request: ScriptRequest) -> Any:
        results = [m.content or "" for m in request.messages if m.role == "tool"]
        usage = {"input": 1000, "output": 100}
        if not results:
            name = "shipping" if draw.random() < 0.4 else "returns"
            call = {"name": "read_policy", "arguments": {"name": name}}
            return {"tool_calls": [call], "usage": usage}
        return {"text": f"You may return it within {results[-1]}.", "usage": usage}

    return reply


@pytest.mark.slow
def test_a_chat_agent_is_tested_within_a_cost_limit(tmp_path: Path) -> None:
    """R-G10: `why` on a chat agent, against a scripted model: the wrong call is decisive, the
    answer after it is not, replayed calls cost nothing, and `--max-cost` ends the experiment."""
    (tmp_path / "shop_tools.py").write_text(POLICIES)
    with MockLLM({"replies": [], "default": shop_model(random.Random(3))}) as server:
        agent = {
            "kind": "chat",
            "model": "openai:gpt-4o-mini",
            "base_url": server.base_url,
            "tools": [{"python": "shop_tools:read_policy"}],
        }
        case: dict[str, Any] = {"id": "late", "input": "May I return it?"}
        case["correctness"] = {"expected_in_answer": ["30 days"]}
        suite = {"agents": {"clerk": agent}, "cases": [case]}
        (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
        # A server on this machine has no published price.
        prices = {"prices": {"gpt-4o-mini": "openai:gpt-4o-mini"}}
        (tmp_path / "proctor.yaml").write_text(yaml.safe_dump(prices))

        def proctor(*arguments: str) -> dict[str, Any]:
            env = {"OPENAI_API_KEY": "k"}
            done = command(*arguments, "--json", "--quiet", cwd=tmp_path, env=env)
            assert done.stdout, done.stderr
            return json.loads(done.stdout)

        env = {"OPENAI_API_KEY": "k"}
        command("run", "suite.yaml", "--trials", "12", "--quiet", cwd=tmp_path, env=env)
        run = Run(next((tmp_path / "results" / "suite").iterdir()))
        failing = next(t for t in run.trials() if not t.passed)
        found = proctor("why", f"{run.path}:{failing.name}")
        first, *others = found["causes"]
        assert (first["step"], first["outcome"]) == (1, "decisive"), json.dumps(found)[:3000]
        assert first["passed"] == 0, "as recorded it always fails"
        assert {"resample", "passing call", "hint"} <= {c["name"] for c in first["counterfactuals"]}
        assert all(each["outcome"] != "decisive" for each in others)
        # gpt-4o-mini: 1000 tokens in and 100 out are 0.00021 dollars; only the unchanged answer of
        # step 2 or the step and its answer are called in a trial.
        assert 0 < found["cost_usd"] <= found["trials"] * 2 * 0.00022
        # As in every run, a trial that has begun when the limit is reached is not cut off.
        options = ("--max-cost", "0.004", "--concurrency", "1")
        limited = proctor("why", f"{run.path}:{failing.name}", *options)
        assert 0.003 < limited["cost_usd"] <= 0.004 + 2 * 0.00022
        assert limited["trials"] < found["trials"]
        assert "0.004" in limited["stopped"] or "budget" in limited["stopped"], limited["stopped"]
        assert limited["causes"][-1]["reason"] or limited["causes"][-1]["judged"]
        # Too few for all suspects: they are for the most suspicious one, in a single look.
        few = proctor("why", f"{run.path}:{failing.name}", "--max-trials", "18")
        judged = {cause["step"]: cause["judged"] for cause in few["causes"]}
        assert (few["trials"], judged) == (16, {1: 4, 2: 0}), few
        assert few["stopped"] == "the budget is used up"


def test_an_effect_that_few_trials_do_not_show_says_what_to_try() -> None:
    """R-G10: no effect shown is not no effect: where the rates differ, try more trials."""

    def shown(passed: int) -> str:
        again = Counterfactual(name=RESAMPLE, change="", passed=passed, judged=24, difference=0.0)
        cause = TestedCause(
            step=4, agent="a", location="s", what="cancels", outcome="no effect shown",
            judged=24, counterfactuals=(again,),
        )  # fmt: skip
        result = WhyResult(
            run="r", trial="t", alpha=0.05, looks=3, trials=48, cost_usd=None, causes=(cause,)
        )
        return render_why(result)

    assert "try --at 4 --trials 48" in shown(6)
    assert "try" not in shown(0)
