"""Reliability profiles: planted consistency, robustness, calibration and severity are found."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from commands import proctor as command

import proctor
from proctor.background import run_sync
from proctor.causes.profile import reworded_by, severity_of, stated_confidence, surface_changed
from proctor.checks.base import CheckResult
from proctor.llm import MockLLM
from proctor.llm.providers import get_model
from proctor.runs.trial import Trial, TrialStatus
from proctor.stats.intervals import bounded_mean

AGENT = """
import random
import proctor

@proctor.tool
def look(where):
    return "seen"

@proctor.tool
def erase(where):
    return "gone"

def answer(question, seed, params):
    draw = random.Random(f"{question[:3]}{seed}")
    look("a")
    if draw.random() < 0.5:
        look("b")
    name = question.rpartition("case ")[2][:1]
    right = {"a": 1.0, "b": 0.5, "c": 0.0}.get(name, 0.5)
    if "please" in question.lower():
        right = 0.0  # politeness breaks it
    if name == "c":
        erase("all")
    return ("yes" if draw.random() < right else "no") + " (confidence: 90%)"
"""


PROGRAM = """
import json, os, sys, urllib.request

sys.stdin.read()
asked = {"model": "m", "messages": [{"role": "user", "content": "yes-it-is"}]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
headers = {"content-type": "application/json", "authorization": "Bearer k"}
try:
    request = urllib.request.Request(url, json.dumps(asked).encode(), headers)
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
except OSError:
    said = "no"
print(json.dumps({"output": said + os.environ.get("TZ", "")}))
"""


def suite_in(folder: Path, agent: Any = "agent:answer") -> Path:
    (folder / "agent.py").write_text(AGENT)
    cases = [
        {"id": name, "input": f"This is the question of case {name}. Is it done?",
         "correctness": {"expected_in_answer": "yes"}, "path": {"forbidden_tools": ["erase"]}}
        for name in "abc"
    ]  # fmt: skip
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({"agent": agent, "cases": cases}))
    return path


@pytest.mark.slow
def test_a_profile_shows_what_was_planted(tmp_path: Path) -> None:
    """R-N10: consistency, robustness, calibration, severity, ICC and advice, each with n."""
    suite_in(tmp_path)
    options = ("--trials", "12", "--paraphrases", "1", "--quiet", "--json")
    done = command("profile", "suite.yaml", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    figures = {each["name"]: each for each in found["figures"]}
    rate = figures["pass rate"]
    assert (rate["n"], rate["cases"]) == (36, 3)
    assert rate["low"] < 0.5 < rate["high"]
    # a always passes, c always fails: only b is inconsistent.
    assert 0.75 < figures["same outcome"]["value"] < 0.95
    # Half of the trials call a tool twice: 2·1/3 where they differ.
    assert 0.7 < figures["same path"]["value"] < 0.97
    assert figures["same latency"]["n"] == 36
    # The built-in first paraphrase is polite, which this agent cannot stand.
    robust = figures["paraphrase"]
    assert robust["high"] < 0
    assert robust["value"] == pytest.approx(-rate["value"], abs=1e-9)
    # 90 % sure, half as often right.
    sure = figures["overconfidence"]
    assert sure["value"] == pytest.approx(0.9 - rate["value"], abs=1e-9)
    assert sure["low"] < sure["value"] < sure["high"]
    (only,) = found["bins"]
    assert (only["n"], only["stated"]) == (36, pytest.approx(0.9))
    assert figures["critical failures"]["value"] == pytest.approx(1 / 3)
    assert figures["critical failures"]["low"] > 0.1
    assert figures["worst case"]["value"] == 0.0
    assert "pass rate of c" in figures["worst case"]["about"]
    assert 0.3 < found["intraclass"]["value"] <= 1
    assert any("per case" in line for line in found["advice"])
    assert set(found["not_tested"]) == {"tool_faults", "model_faults", "environment"}
    for each in figures.values():
        assert each["n"] or each["reason"], each
    # One page: a section of the baseline's report, and the terminal.
    base = found["runs"]["baseline"]
    page = command("report", base, "--html", "page.html", cwd=tmp_path)
    assert page.returncode in (0, 1), page.stderr
    html = (tmp_path / "page.html").read_text()
    assert "Reliability" in html
    assert "overconfidence" in html
    shown = command("profile", "suite.yaml", *options[:-2], "--quiet", cwd=tmp_path).stdout
    for text in ("same outcome", "robustness", "not tested", "how many trials are enough"):
        assert text in shown, shown


@pytest.mark.slow
def test_faults_and_environments_of_agents_that_allow_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-N10: tools of chat agents and model calls through the gateway fail; variables change."""
    script = [
        {"when": "service unavailable", "text": "no", "times": "forever"},
        {"when": "yes-it-is", "text": "yes", "times": "forever"},
        {"tool_calls": [{"name": "find", "arguments": {}}], "times": "forever"},
    ]
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with MockLLM(script) as server:
        chat = {
            "kind": "chat", "model": "openai:m", "base_url": server.base_url,
            "tools": [{"name": "find", "reply": "yes-it-is"}],
        }  # fmt: skip
        path = suite_in(tmp_path, chat)
        found = proctor.api.profile(
            path, trials=6, paraphrases=0, faults=1.0, results=tmp_path / "results"
        )
        faulty = found.figure("tool faults")
        assert found.figure("pass rate").value == 1.0
        assert faulty.value == -1.0
        assert faulty.high is not None
        assert faulty.high < -0.4
        assert set(found.not_tested) == {"paraphrase", "model_faults", "environment"}
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        agent = {
            "kind": "command", "command": ["python3", str(program)],
            "gateway": {"upstream": {"openai": server.base_url}},
        }  # fmt: skip
        path = suite_in(tmp_path, agent)
        found = proctor.api.profile(path, trials=2, paraphrases=0, faults=1.0, results=tmp_path)
        assert found.figure("pass rate").value == 1.0, found
        assert found.figure("model faults").value == -1.0
        assert found.figure("environment").value == 0.0
        assert found.not_tested == {
            "paraphrase": "no paraphrases were requested",
            "tool_faults": "only the tools of a chat agent can be made to fail",
        }
        model = get_model("openai:m", base_url=server.base_url)
        texts = ["Is yes-it-is an answer?", "Is yes-it-is the answer to 12 questions?"]
        made = run_sync(reworded_by(model, texts, 1))
        assert made == {(texts[0], 0): "yes"}  # the other one lost its number


def test_what_counts_as_confidence_and_as_severe() -> None:
    """R-N10: numbers from 0 to 1 and percent, the last one; harm is worse than a wrong answer."""
    for text, expected in {
        "Rome. Confidence: 0.8": 0.8,
        '{"answer": "Rome", "confidence": 85}': 0.85,
        "I am 60 % sure. No: 70% certain.": 0.7,
        "**Confidence:** 95%": 0.95,
        "confidence is high": None,
        "In 1960, 30 % of them left.": None,
        "confidence 300": None,
    }.items():
        assert stated_confidence(text) == expected, text
    assert stated_confidence(None) is None

    def trial(status: TrialStatus, *checks: str, category: str = "") -> Trial:
        failed = tuple(CheckResult(passed=False, id=name, check=name) for name in checks)
        return Trial(case="a", agent="b", index=0, seed=0, status=status, checks=failed,
                     category=category)  # fmt: skip

    assert severity_of(trial(TrialStatus.PASSED)) == 0
    assert severity_of(trial(TrialStatus.FAILED, "exact_match")) == 1
    assert severity_of(trial(TrialStatus.FAILED, category="agent_error")) == 2
    assert severity_of(trial(TrialStatus.HARD_FAIL, "exact_match")) == 2
    assert severity_of(trial(TrialStatus.HARD_FAIL, "exact_match", "state")) == 3


def test_paraphrases_without_a_model_keep_what_matters() -> None:
    """R-N10: numbers, names, quotes, paths and addresses stay; every variant differs."""
    text = 'Refund order W-1001 (2 items) to "ada lovelace" at ada@example.org, see docs/policy.md.'
    variants = [surface_changed(text, number) for number in range(3)]
    assert len({text, *variants}) == 4
    for each in variants:
        for part in ("W-1001", "2 items", '"ada lovelace"', "ada@example.org", "docs/policy.md"):
            assert part in each, each
    assert variants == [surface_changed(text, number) for number in range(3)]


def test_intervals_of_consistency_cover() -> None:
    """R-N10: the agreement of pairs of trials, 400 simulated profiles each."""
    rng = np.random.default_rng(26)
    replications = 400
    for cases, trials, a, b in ((8, 5, 2.0, 1.0), (20, 10, 0.5, 0.5), (12, 3, 4.0, 1.0)):
        # Two trials of a case with rate p agree with p² + (1 - p)²; p is Beta(a, b).
        total = (a + b) * (a + b + 1)
        truth = (a * (a + 1) + b * (b + 1)) / total
        hits = 0
        for _ in range(replications):
            passes = rng.binomial(trials, rng.beta(a, b, cases))
            others = trials - passes
            same = (passes * (passes - 1) + others * (others - 1)) / (trials * (trials - 1))
            found = bounded_mean([float(each) for each in same], n=cases * trials)
            assert found.low is not None
            assert found.high is not None
            hits += found.low <= truth <= found.high
        print(f"{cases} cases × {trials}: {hits} of {replications} intervals cover")
        assert hits / replications >= 0.95 - 3 * (0.95 * 0.05 / replications) ** 0.5
