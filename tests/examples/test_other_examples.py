"""The other worked examples: the commands of their READMEs, what they show, how they end."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

COMMANDS = Path(sys.executable).parent
"""Where the `proctor` and the `pytest` of this environment are."""


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "PROCTOR_"))}
    path = f"{COMMANDS}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1", **more}


def shell(folder: Path, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A line as a user types it, or as GitHub runs a step."""
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture
def example(request: pytest.FixtureRequest, root: Path, tmp_path: Path) -> Path:
    """A newcomer's copy of one example, away from this repository and its settings."""
    ignored = shutil.ignore_patterns(".cache", "__pycache__", "results")
    source = root / "examples" / request.param
    return shutil.copytree(source, tmp_path / request.param, ignore=ignored)


def judged(folder: Path, *more: str) -> tuple[int, dict[tuple[str, str], Any]]:
    """The exit code of `proctor test`, and its JSON by agent and case."""
    done = shell(folder, " ".join(["proctor test suite.yaml --format json", *more]))
    assert done.stdout, done.stderr
    cases = json.loads(done.stdout)["cases"]
    return done.returncode, {(case["agent"], case["case"]): case for case in cases}


def told(case: dict[str, Any], *statuses: str) -> dict[str, str]:
    """Reasons of the checks that ended so, by check."""
    wanted = statuses or ("fail", "warn")
    return {check["id"]: check["reason"] for check in case["checks"] if check["status"] in wanted}


@pytest.mark.slow
@pytest.mark.parametrize("example", ["pydantic_ai_agent"], indirect=True)
def test_pydantic_ai(example: Path) -> None:
    """R-A2: a pydantic-ai agent as it is; careful passes, hasty is told of on every layer."""
    pytest.importorskip("pydantic_ai")
    code, cases = judged(example)
    assert code == 1
    assert {case["status"] for (agent, _), case in cases.items() if agent == "careful"} == {
        "passed"
    }
    assert not any(told(case) for (agent, _), case in cases.items() if agent == "careful")
    # Fresh dependencies: what one trial books is free again in the next.
    assert cases["hasty", "only-the-great-hall"]["status"] == "passed"
    fails = told(cases["hasty", "smallest-that-fits"], "fail")
    assert fails == {
        "jmespath": 'response_json.room is "Forum": does not equal "Garden"',
        "forbidden_tools": "forbidden: cancel_booking (once)",
    }
    warns = told(cases["hasty", "smallest-that-fits"], "warn")
    assert "missing: free_rooms" in warns["expected_tools"]
    assert "spans.nothing-failed" in warns
    readme = (example / "README.md").read_text(encoding="utf-8")
    for id_, reason in fails.items():
        assert f"`{id_}: {reason}`" in readme


@pytest.mark.slow
@pytest.mark.parametrize("example", ["langgraph_agent"], indirect=True)
def test_langgraph(example: Path) -> None:
    """R-A2: a LangGraph graph; nodes, handoffs and a tool that failed are there to check."""
    pytest.importorskip("langgraph")
    code, cases = judged(example)
    assert code == 0
    assert len(cases) == 4
    assert not any(told(case) for case in cases.values())
    code, generous = judged(example, "--agent generous")
    assert code == 1
    by_case = {case: row for (_, case), row in generous.items()}
    assert told(by_case["nothing-to-refund"], "fail")["forbidden_tools"] == (
        "forbidden: refund (once)"
    )
    assert "amount is 100.0, reference 89.5" in told(by_case["paid-twice"])["expected_tools"]
    assert by_case["storage-down"]["status"] == "passed"


@pytest.mark.skipif(shutil.which("perl") is None, reason="there is no Perl here")
@pytest.mark.parametrize("example", ["perl_agent"], indirect=True)
def test_another_language(example: Path) -> None:
    """R-A2: a program in Perl; the calls it tells of are spans that checks see."""
    code, cases = judged(example)
    assert code == 0
    assert not any(told(case) for case in cases.values())
    code, careless = judged(example, "--agent careless")
    assert code == 1
    counted = next(row for (_, case), row in careless.items() if case == "count-errors")
    assert "read_log 4 times in a row" in told(counted, "fail")["max_loops"]
    line = 'echo \'{"input": "How many errors did the mail service have?"}\' | perl agent.pl'
    assert line in (example / "README.md").read_text(encoding="utf-8")
    said = json.loads(shell(example, line).stdout)
    assert said["answer"] == "The mail service had no errors."
    assert [call["name"] for call in said["tool_calls"]] == ["list_services", "read_log"]


@pytest.mark.skipif(shutil.which("perl") is None, reason="there is no Perl here")
@pytest.mark.parametrize("example", ["perl_agent"], indirect=True)
def test_its_json_is_json(example: Path) -> None:
    """R-A2: what the Perl program reads and writes are the same values, whatever the text."""
    value = {"a": ['q"\\/ \n\t', "é 😀", -2.5, 0, 17, {}], "b": {"c": [], "d": None}, "e": "1e5"}
    code = "print write_json(read_json(scalar <STDIN>))"
    done = subprocess.run(
        ["perl", "-I", str(example), "-MTinyJson=read_json,write_json", "-e", code],
        input=json.dumps(value),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert json.loads(done.stdout) == value


def steps(workflow: dict[str, Any], job: str, event: str, cached: bool) -> list[str]:
    """The command lines of a job that would run on an event, without what installs."""
    holds = {
        f"github.event_name == '{event}'": True,
        "steps.main.outputs.cache-matched-key": cached,
        "always()": True,
    }
    return [
        step["run"]
        for step in workflow["jobs"][job]["steps"]
        if "run" in step
        and not step["run"].startswith("pip ")
        and holds.get(step.get("if", "always()"), False)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("example", ["github_workflow"], indirect=True)
def test_github_workflow(example: Path) -> None:
    """R-Q5 R-Q2: the steps of the workflow on main, on a pull request, and on a bad one."""
    text = (example / ".github/workflows/evals.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML 1.1 reads `on` as true
    summary = example / "summary.md"

    def play(job: str, event: str, cached: bool = False) -> subprocess.CompletedProcess[str]:
        summary.write_text("")
        done = None
        for line in steps(workflow, job, event, cached):
            actions = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
            done = shell(example, line, **actions)
            if done.returncode:
                break
        assert done is not None
        return done

    right = play("right", "pull_request")
    assert right.returncode == 0, right.stderr
    assert "4 of 4 cases passed" in right.stdout
    assert "<testsuite" in (example / "junit.xml").read_text(encoding="utf-8")
    assert summary.read_text()
    kept = play("worse", "push")
    assert kept.returncode == 0, kept.stderr
    # The same agent again: bad luck is no regression.
    same = play("worse", "pull_request", cached=True)
    assert same.returncode == 0, same.stdout + same.stderr
    assert "<!doctype html>" in (example / "report.html").read_text(encoding="utf-8").lower()
    agent = example / "evals" / "agent.py"
    worse = agent.read_text(encoding="utf-8").replace("FORGETS = 0.05", "FORGETS = 0.5")
    agent.write_text(worse, encoding="utf-8")
    bad = play("worse", "pull_request", cached=True)
    assert bad.returncode == 1
    assert "REGRESSION" in bad.stdout


@pytest.mark.parametrize("example", ["pytest_project"], indirect=True)
def test_pytest_project(example: Path) -> None:
    """R-Q6: suite, fixture and repeated tests in one project; one that is worse fails, with why."""
    quiet = "-p no:cacheprovider -p no:xdist -p no:randomly"
    done = shell(example, f"pytest {quiet}")
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
    assert "1 passed" in shell(example, f"pytest {quiet} -m smoke").stdout
    tests = example / "tests" / "test_travel_desk.py"
    tests.write_text(tests.read_text(encoding="utf-8").replace("lazy=0.1", "lazy=0.5"))
    done = shell(example, f"pytest {quiet} tests")
    assert done.returncode == 1
    assert re.search(r"\d+ of 20 trials passed .*, 16 needed for a threshold of 0.8", done.stdout)


def test_every_example_has_a_start(root: Path) -> None:
    """R-S1: every example says in its README what to type, and is found from the list."""
    listed = (root / "examples" / "README.md").read_text(encoding="utf-8")
    folders = [path for path in (root / "examples").iterdir() if path.is_dir()]
    assert len(folders) >= 7
    for folder in folders:
        readme = (folder / "README.md").read_text(encoding="utf-8")
        assert re.search(r"^\$ (proctor|pytest)", readme, re.MULTILINE), folder.name
        assert f"({folder.name}/README.md)" in listed, folder.name
