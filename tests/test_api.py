"""The public functions: they find settings and runs as the commands do, and say the same."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from outcome_parts import made_run, suite

import proctor
from proctor.checks import CheckContext, CheckResult, Contains, Excludes, MaxCost
from proctor.cli.main import run as command
from proctor.errors import ProctorError
from proctor.runs import annotations
from proctor.runs.run import Run


def test_python_says_what_the_commands_say(tmp_path, capsys):
    """R-Q3: runs by path, tag, latest or as objects; the same figures either way."""
    old = made_run(tmp_path, {"x": suite([(9, 10)] * 4)}, name="old")
    new = made_run(tmp_path, {"x": suite([(5, 10)] * 4)}, name="new")
    annotations.tag(old, "baseline")

    def as_json(*args):
        command([*args, "--results", str(tmp_path), "--json"])
        return json.loads(capsys.readouterr().out)

    found = proctor.compare("baseline", "latest", results=tmp_path)
    p = as_json("compare", "baseline", "latest")["pairs"][0]["metrics"][0]["suite"]["p_value"]
    assert found.pass_rate.p == p
    gate = proctor.gate(Run(new), old, results=tmp_path)
    assert gate.verdict == as_json("gate", "latest", "--against", "baseline")["verdict"]
    board = proctor.api.leaderboard(results=tmp_path)
    low = as_json("leaderboard")["rows"][0]["pass_rate"]["low"]
    assert board.rows[0].pass_rate.low == pytest.approx(low)
    plan = proctor.api.power(0.1, run="latest", results=tmp_path)
    within = as_json("power", "--effect", "0.1", "--from", "latest")["within"]["value"]
    assert plan.within is not None
    assert plan.within.value == pytest.approx(within)


# -- the results folder --------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that keeps runs in `out`: two of them, the first tagged `main`."""
    (tmp_path / "proctor.yaml").write_text("results: out\n")
    old = made_run(tmp_path / "out", {"x": suite([(9, 10)] * 4)}, name="old")
    made_run(tmp_path / "out", {"x": suite([(5, 10)] * 4)}, name="new")
    annotations.tag(old, "main")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROCTOR_RESULTS", raising=False)
    return tmp_path


def from_python(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """What the Python functions say of the runs they find on their own."""
    change = proctor.compare("main", "latest")
    return {
        "trials": len(proctor.results.query()),
        "p": change.pass_rate.p,
        "gate": proctor.gate("latest", against="main").verdict,
        "ranked": [row.name for row in proctor.api.leaderboard("latest", "main").rows],
    }


def from_commands(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """The same figures by the commands."""

    def printed(*args: str) -> Any:
        command([*args, "--json"])
        return json.loads(capsys.readouterr().out)

    change = printed("compare", "main", "latest")
    return {
        "trials": printed("sql", "select count(*) as n from trials")["rows"][0]["n"],
        "p": change["pairs"][0]["metrics"][0]["adjusted"],
        "gate": printed("gate", "latest", "--against", "main")["verdict"],
        "ranked": [row["name"] for row in printed("leaderboard", "latest", "main")["rows"]],
    }


CALLERS = pytest.mark.parametrize("caller", [from_python, from_commands])


@CALLERS
@pytest.mark.parametrize("where", ["proctor.yaml", "pyproject.toml", "PROCTOR_RESULTS", "default"])
def test_both_callers_find_the_results_folder(
    project: Path,
    caller: Callable[..., dict[str, object]],
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """R-S6, R-Q3: settings name the results folder for the commands and for Python alike."""
    if where == "pyproject.toml":
        (project / "proctor.yaml").unlink()
        (project / "pyproject.toml").write_text('[tool.proctor]\nresults = "out"\n')
    elif where == "PROCTOR_RESULTS":
        (project / "proctor.yaml").write_text("results: nowhere\n")
        monkeypatch.setenv("PROCTOR_RESULTS", str(project / "out"))
    elif where == "default":
        (project / "proctor.yaml").unlink()
        (project / "out").rename(project / "results")
    found = caller(capsys)
    assert found["trials"] == 80
    assert found["p"] == pytest.approx(0.0001, abs=0.001)
    assert found["gate"] == "REGRESSION"
    assert len(found["ranked"]) == 2  # type: ignore[arg-type]


@CALLERS
def test_a_folder_inside_the_project_uses_its_results(
    project: Path,
    caller: Callable[..., dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """R-S6: a relative results folder starts at the settings file, wherever the user is."""
    (project / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(project / "deep" / "er")
    assert caller(capsys)["trials"] == 80


def test_wrong_settings_are_an_error_for_both_callers(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-S6: a typo in proctor.yaml is reported, not skipped in favour of the default."""
    (project / "proctor.yaml").write_text("reslts: out\n")
    with pytest.raises(ProctorError, match="reslts"):
        proctor.results.query()
    assert command(["results"]) == 2
    assert "did you mean 'results'" in capsys.readouterr().err


# -- checks --------------------------------------------------------------------------------------


def asked(answer: Any) -> proctor.Trace:
    with proctor.capture(query="What is the capital of France?") as trace:
        with proctor.capture.llm_call("house", input_tokens=1_000_000, output_tokens=0):
            pass
        trace.response = answer
    return trace


def test_a_trace_is_checked_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-C1: `proctor.check` gives every check's result, and nothing is written."""
    monkeypatch.chdir(tmp_path)

    def brief(ctx: CheckContext[str]) -> CheckResult:
        return CheckResult(passed=len(ctx.output) < 10, reason="fewer than ten characters")

    case = proctor.Case(
        input="What is the capital of France?",
        checks=[Contains("Paris"), Excludes("London"), brief],
    )
    good, bad = proctor.check(asked("Paris"), case), proctor.check(asked("London, or so"), case)
    assert [result.status for result in good] == ["pass", "pass", "pass"]
    assert [result.status for result in bad] == ["fail", "fail", "fail"]
    assert (good.score, bad.score) == (1.0, 0.0)
    assert proctor.check(asked("London"), case, answer="Paris").score == 1.0
    assert list(tmp_path.iterdir()) == []


def test_settings_price_a_checked_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-C1, R-S6: cost checks use the prices of the settings, as a run does."""
    (tmp_path / "proctor.yaml").write_text("prices: {house: {input: 2.0, output: 1.0}}\n")
    monkeypatch.chdir(tmp_path)
    for limit, status in ((3.0, "pass"), (1.0, "fail")):
        case = proctor.Case(input="q", checks=[MaxCost(limit, required=True)])
        (result,) = proctor.check(asked("Paris"), case)
        assert (result.status, result.actual) == (status, 2.0)


async def test_a_trace_is_checked_inside_an_event_loop() -> None:
    """R-C1: notebooks have a running loop; checks that wait work there too."""

    async def slow(ctx: CheckContext[str]) -> bool:
        await asyncio.sleep(0)
        return ctx.output == "Paris"

    case = proctor.Case(input="q", checks=[slow])
    assert proctor.check(asked("Paris"), case).score == 1.0


# -- evaluate ------------------------------------------------------------------------------------


def answers(folder: Path) -> Path:
    """A suite of three cases, one of which its agent gets wrong."""
    (folder / "people.py").write_text("def answer(question): return question.upper()\n")
    file = folder / "suite.yaml"
    file.write_text(
        "agent: people:answer\n"
        "cases:\n"
        "  - {id: loud, input: hello, correctness: {expected_in_answer: [HELLO]}}\n"
        "  - {id: louder, input: stop, tags: [smoke], correctness: {expected_in_answer: [STOP]}}\n"
        "  - {id: quiet, input: hush, correctness: {not_in_answer: [HUSH], case_sensitive: true}}\n"
    )
    return file


def test_evaluate_is_proctor_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-C1: each case once, nothing kept, with the results and the exit code of the command."""
    file = answers(tmp_path)
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    run = proctor.evaluate(file)
    assert command(["test", "suite.yaml", "--format", "json"]) == run.exit_code == 1
    printed = capsys.readouterr().out
    assert {trial.case: trial.passed for trial in run.trials} == {
        "loud": True,
        "louder": True,
        "quiet": False,
    }
    for trial in run.trials:
        assert f'"{trial.case}"' in printed
        trace = run.trace(trial)
        assert trace is not None
        assert trace.response == trial.answer
    assert "in memory" in run._repr_html_()
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before


async def test_evaluate_chooses_cases_and_agents(tmp_path: Path) -> None:
    """R-C1: cases by id, tag or filter; other agents than the suite's; inside an event loop."""
    file = answers(tmp_path)
    assert [t.case for t in proctor.evaluate(file, cases="loud*").trials] == ["loud", "louder"]
    assert [t.case for t in proctor.evaluate(file, tags=["smoke"]).trials] == ["louder"]
    assert [t.case for t in proctor.evaluate(file, filter="!tag:smoke").trials] == ["loud", "quiet"]
    run = proctor.evaluate(file, agents={"same": str.lower, "loud": str.upper}, cases="quiet")
    assert {cell.agent: cell.verdict for cell in run.cells} == {
        "same": "PASS",
        "loud": "HARD FAIL",
    }
    with pytest.raises(ProctorError, match="agent or agents"):
        proctor.evaluate(file, agent=str.lower, agents=["people:answer"])
