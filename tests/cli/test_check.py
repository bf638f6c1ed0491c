"""`proctor scenario check`: scenarios that are fit to measure with, and those that are not."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import proctor
from experiment_parts import write_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_project(tmp_path / "project")


def check(project: Path, *args: Any) -> tuple[int, dict[str, Any]]:
    done = proctor("scenario", "check", *args, "--json", cwd=project)
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    return done.returncode, {each["case"]: each for each in found["scenarios"]}


def change(project: Path, old: str, new: str, name: str = "arithmetic/sum") -> None:
    path = project / "catalog" / name / "spec.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_good_catalog(project: Path) -> None:
    """R-S4, R-S5: every variant builds for every seed, chance completes, the solution solves."""
    code, found = check(project, "catalog/", "--seeds", 4)
    assert code == 0
    assert set(found) == {"arithmetic.sum@easy", "arithmetic.sum@hard", "luck.coin"}
    easy = found["arithmetic.sum@easy"]
    assert (easy["built"], easy["solution_min"], easy["solution_min_score"]) == (4, 1.0, 1.0)
    assert 0 <= easy["random_mean"] < 0.9
    assert found["luck.coin"]["notes"] == ["does not say how it is solved"]
    assert not (project / "results").exists(), "nothing is kept"
    done = proctor("scenario", "check", "arithmetic", cwd=project)
    assert "2 of 2 scenarios are fit" in done.stdout


def test_a_solution_that_does_not_solve(project: Path) -> None:
    """R-S4: reported with the seed and both scores."""
    change(project, "str(a + b)]}", "str(a + b + (1 if a > 6 else 0))]}")
    code, found = check(project, "catalog", "--seeds", 10)
    assert code == 1
    problems = found["arithmetic.sum@easy"]["problems"]
    assert problems
    assert all("its solution scores 0 with seed" in each for each in problems)
    assert found["luck.coin"]["problems"] == []


def test_a_scenario_that_chance_solves(project: Path) -> None:
    """R-S4: random may reach at most what is declared."""
    change(project, "max_score: 0.9", "max_score: 0.0")
    change(project, "default: 9, min: 1", "default: 1, min: 1")
    code, found = check(project, "catalog")
    assert code == 1
    assert "random scores 1 on average, it declares at most 0" in str(found["arithmetic.sum@easy"])


def test_a_scenario_that_does_not_build(project: Path) -> None:
    """R-S4: reported with its place, for the seeds it happens with; the others are checked."""
    change(project, "!ev a + b}", "!ev a / (b - b)}")
    code, found = check(project, "catalog")
    assert code == 1
    assert "does not build" in found["arithmetic.sum@hard"]["problems"][0]
    assert "spec.yaml:" in found["arithmetic.sum@hard"]["problems"][0]
    assert found["luck.coin"]["built"] == 5


def test_a_scenario_that_cannot_be_read(project: Path) -> None:
    """R-S4: one broken file does not keep the others from being checked."""
    change(project, "tags: [quick]", "tgas: [quick]", "luck/coin")
    code, found = check(project, "catalog", "--seeds", 2)
    assert code == 1
    assert "unknown key 'tgas'" in found["luck.coin"]["problems"][0]
    assert found["arithmetic.sum@easy"]["problems"] == []


def test_an_agent_that_cannot_complete_is_told(project: Path) -> None:
    """R-S4: an error of the declared solution is a problem of the scenario."""
    (project / "catalog/arithmetic/sum/solver.py").write_text(
        "def solve(input): raise KeyError('a')"
    )
    code, found = check(project, "catalog", "--seeds", "3,7")
    assert code == 1
    assert "scripted does not complete seed 3: " in found["arithmetic.sum@easy"]["problems"][0]


def test_what_cannot_be_checked(project: Path, tmp_path: Path) -> None:
    """R-S4: an empty folder, no such scope, no seeds: exit 2."""
    (tmp_path / "empty").mkdir()
    for args in ((tmp_path / "empty",), ("nowhere",), ("catalog", "--seeds", 0)):
        done = proctor("scenario", "check", *args, cwd=project)
        assert done.returncode == 2, done.stdout


def test_the_shipped_scenarios_are_fit(project: Path) -> None:
    """R-S5: what comes with Proctor passes its own check."""
    code, found = check(project, "mutualism", "--seeds", 2)
    assert code == 0, found
    assert len(found) >= 6
