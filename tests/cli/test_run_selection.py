"""`proctor run` with several targets, globs and filters: an experiment without a file."""

from pathlib import Path
from typing import Any

import pytest
from commands import proctor
from experiment_parts import write_project
from run_parts import only_run

from proctor.runs.run import Run


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_project(tmp_path / "project")


def cells(project: Path) -> set[tuple[str, str, str, int]]:
    run = Run(only_run(project / "results"))
    return {(c.case, c.agent, c.params, c.trials) for c in run.cells}


def run(project: Path, *args: Any) -> Any:
    return proctor("run", *args, "--quiet", cwd=project)


def test_a_glob_agents_and_seeds(project: Path) -> None:
    """R-S3: a slash means a dot; every combination is a cell."""
    done = run(project, "arithmetic/*", "--agents", "adder,people:zero", "--seeds", 3)
    assert done.returncode == 1, "one of the two is always wrong"
    assert cells(project) == {
        (f"arithmetic.sum@{level}", agent, "", 3)
        for level in ("easy", "hard")
        for agent in ("adder", "people:zero")
    }
    assert only_run(project / "results").parent.name == "batch"


def test_suites_filters_exclusions_and_axes(project: Path) -> None:
    """R-S3: whatever an experiment file can select, the command can."""
    cases = ("difficulty:hard,difficulty:easy tag:quick", "--exclude", "*.coin")
    done = run(project, *cases, "--agents", "adder", "--axis", "most=3,4", "--name", "both")
    assert done.returncode == 0, done.stderr
    assert only_run(project / "results").parent.name == "both"
    assert cells(project) == {
        (f"arithmetic.sum@{level}", "adder", f"most={most}", 1)
        for level in ("easy", "hard")
        for most in (3, 4)
    }


def test_a_suite_and_names_together(project: Path) -> None:
    """R-S3: several targets add up."""
    done = run(project, "suite.yaml", "luck.coin", "--agents", "bots:instant")
    assert done.returncode == 0, done.stderr
    assert {case for case, *_ in cells(project)} == {"case-0", "case-1", "luck.coin"}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--agents", "adder"), "name what to run"),
        (("nothing*", "--agents", "adder"), "no scenario is selected by 'nothing*'"),
        (("luck.*",), "no agent: say what is under test"),
        (("luck.coin", "--agents", "random", "--axis", "x"), "NAME=A,B,C"),
        (("luck.coin", "--agents", "random", "--seeds", "0"), "at least one seed"),
        (("luck.coin", "--agents", "random", "--axis", "x=1"), "has no parameter 'x'"),
    ],
)
def test_what_is_refused(args: tuple[str, ...], expected: str, project: Path) -> None:
    """R-S3: exit 2 and nothing made."""
    done = run(project, *args)
    assert done.returncode == 2
    assert expected in done.stderr
    assert not (project / "results").exists()


def test_a_dry_batch(project: Path) -> None:
    """R-R7: the plan and its size; nothing is made."""
    args = ("arithmetic.*", "--agents", "adder,random", "--seeds", 10, "--dry-run")
    done = run(project, *args)
    assert done.returncode == 0
    assert "40 trials: 2 cases × 2 agents × 10 seeds (0..9)" in done.stdout
    assert not (project / "results").exists()
