"""`proctor list` and `proctor agent list`: filtered, for people and programs."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import proctor
from experiment_parts import write_experiment, write_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return write_project(tmp_path / "project")


def listed(project: Path, *args: Any) -> list[dict[str, Any]]:
    done = proctor("list", *args, "--json", cwd=project)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def listed_agents(project: Path, *args: Any) -> list[dict[str, Any]]:
    done = proctor("agent", "list", *args, "--json", cwd=project)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_cases_of_the_catalog(project: Path) -> None:
    """R-S3, R-S4: scenarios with every variant; those that ship are there too."""
    found = listed(project, "cases")
    ids = [each["id"] for each in found]
    assert {"arithmetic.sum@easy", "arithmetic.sum@hard", "luck.coin"} <= set(ids)
    assert "mutualism.hidden_dependency@hard" in ids
    hard = listed(project, "cases", "--filter", "difficulty:hard tag:numbers")
    assert hard == [
        {
            "id": "arithmetic.sum@hard",
            "difficulty": "hard",
            "type": "question",
            "tags": ["quick", "numbers"],
            "description": "Add two numbers",
        }
    ]
    table = proctor("list", "cases", "--filter", "coin", cwd=project).stdout.splitlines()
    assert [line.split()[0] for line in table] == ["id", "luck.coin"]


def test_a_broken_template_is_told_and_the_others_are_listed(project: Path) -> None:
    """R-S4: with its place, and exit 2."""
    path = project / "catalog" / "luck" / "coin" / "spec.yaml"
    path.write_text(path.read_text().replace("tags:", "tgas:"))
    done = proctor("list", "cases", cwd=project)
    assert done.returncode == 2
    assert "spec.yaml:2:1: unknown key 'tgas'" in done.stderr
    assert "arithmetic.sum@easy" in done.stdout
    assert "luck.coin" not in done.stdout


def test_cases_of_suites(project: Path) -> None:
    """R-S3: the same of a suite's cases."""
    assert [c["id"] for c in listed(project, "cases", "suite.yaml")] == ["case-0", "case-1"]
    assert [c["id"] for c in listed(project, "cases", "suite.yaml", "--filter", "*-1")] == [
        "case-1"
    ]
    done = proctor("list", "cases", "--filter", "tag:none", cwd=project)
    assert (done.returncode, "none of" in done.stderr) == (2, True)


def test_agents_by_name_and_kind(project: Path) -> None:
    """R-S3, R-A1: those of the settings and those that ship."""
    names = {each["name"]: each for each in listed_agents(project)}
    assert names["adder"]["kind"] == "python"
    assert {"random", "scripted", "human"} <= set(names)
    assert [a["name"] for a in listed_agents(project, "--filter", "kind:random")] == ["random"]


def test_what_no_agent_fits_is_told_of_agents(project: Path) -> None:
    """R-S3: a filter that matches nothing says of what."""
    done = proctor("agent", "list", "--filter", "kind:nope", cwd=project)
    assert done.returncode == 2
    assert "agents is selected by --filter 'kind:nope'" in done.stderr


def test_experiments_of_the_project(project: Path) -> None:
    """R-S3: by their dotted names; a broken file is reported, the others are listed."""
    write_experiment(project, "one", cases="luck.coin", agents=["random"], seeds=4)
    write_experiment(project, "many", cases="luck.coin", experiments={"a": {}, "b": {"seeds": 2}})
    code = "from proctor import Experiment\nexperiment = Experiment(cases='luck.coin')"
    (project / "experiments" / "coded.py").write_text(code)
    found = listed(project, "experiments")
    assert [(each["name"], each["seeds"]) for each in found] == [
        ("experiments.coded", 1),
        ("experiments.many.a", 1),
        ("experiments.many.b", 2),
        ("experiments.one", 4),
    ]
    for each in found:
        assert (
            proctor("run", each["name"], "--dry-run", "--agent", "random", cwd=project).returncode
            == 0
        )
    (project / "experiments" / "bad.yaml").write_text("cases: x\nsedes: 3\n")
    done = proctor("list", "experiments", "--filter", "many.*", cwd=project)
    assert done.returncode == 2
    assert "unknown key 'sedes'" in done.stderr
    assert "experiments.many.a" in done.stdout
    assert "experiments.one" not in done.stdout
