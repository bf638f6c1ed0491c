"""The public functions: they find settings and runs as the commands do, and say the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from outcome_parts import made_run, suite

import proctor
from proctor.cli.main import run as command
from proctor.errors import ProctorError
from proctor.runs import annotations
from proctor.runs.run import Run


def test_python_says_what_the_commands_say(tmp_path, capsys):
    """R-Q3: runs by path, tag, latest or as objects; the same figures either way."""
    old = made_run(tmp_path, {"x": suite([(9, 10)] * 4)}, name="old")
    new = made_run(tmp_path, {"x": suite([(5, 10)] * 4)}, name="new")
    annotations.tag(old, "baseline")

    def told(*args):
        command([*args, "--results", str(tmp_path), "--json"])
        return json.loads(capsys.readouterr().out)

    found = proctor.compare("baseline", "latest", results=tmp_path)
    p = told("compare", "baseline", "latest")["pairs"][0]["metrics"][0]["suite"]["p_value"]
    assert found.pass_rate.p == p
    gate = proctor.gate(Run(new), old, results=tmp_path)
    assert gate.verdict == told("gate", "latest", "--against", "baseline")["verdict"]
    board = proctor.api.leaderboard(results=tmp_path)
    low = told("leaderboard")["rows"][0]["pass_rate"]["low"]
    assert board.rows[0].pass_rate.low == pytest.approx(low)
    plan = proctor.api.power(0.1, run="latest", results=tmp_path)
    within = told("power", "--effect", "0.1", "--from", "latest")["within"]["value"]
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
