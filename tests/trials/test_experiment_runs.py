"""Experiments carried out: the same twice, in any order, at any concurrency, after any kill."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from commands import proctor
from run_parts import (
    CLOCKS_AND_IDS,
    CLOCKS_OF_CELLS,
    Children,
    journal,
    only_run,
    rows,
    until,
    write_suite,
)

import proctor as api
from proctor import Experiment
from proctor.background import run_sync
from proctor.report import console
from proctor.report.facts import ReportFacts
from proctor.runs.run import Run
from proctor.trials.resume import arerun

CATALOG = {
    "quiz.sum": """\
description: Add two numbers
tags: [quick]
difficulty: !ref params.level
params:
  level: {type: choice, of: [easy, hard], default: easy}
  most: {type: int, default: 9, min: 1, max: 1000}
variants: {easy: {level: easy}, hard: {level: hard, most: 99}}
values:
  a: !ev randint(1, most)
  b: !ev randint(1, most)
input: !ev "'What is ' + str(a) + ' + ' + str(b) + '?'"
truth: {sum: !ev a + b}
correctness: {expected_in_answer: [!ev str(a + b)]}
solution: {agent: {kind: python, target: "solver:solve"}, min_score: 1.0}
""",
}

SOLVER = """
import re
def solve(input):
    return str(sum(int(n) for n in re.findall(r"[0-9]+", input)))
"""

# The first takes its time, so that a run can be killed before it is over.
BOTS = """
import random, re, time
def adds(input, seed):
    time.sleep(0.01)
    numbers = [int(n) for n in re.findall(r"[0-9]+", input)]
    return str(sum(numbers) if random.Random(seed).random() < 0.7 else 0)
def guesses(input, seed, params):
    return f"{random.Random(seed).randint(1, 30)} {sorted(params)}"
"""

EXPERIMENT: dict[str, Any] = {
    "cases": ["quiz.*", {"suite": "suite.yaml"}],
    "agents": ["bots2:adds", "bots2:guesses", "bots:steady"],
    "seeds": [3, 1, 8],
    "trials": 2,
    "params": {"most": [5, 20]},
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a catalog, a suite, agents and an experiment; its own cache of builds."""
    write_suite(tmp_path, cases=2)
    (tmp_path / "proctor.yaml").write_text("results: results\n")
    (tmp_path / "bots2.py").write_text(BOTS)
    for name, text in CATALOG.items():
        folder = tmp_path / "catalog" / Path(*name.split("."))
        folder.mkdir(parents=True)
        (folder / "spec.yaml").write_text(text)
        (folder / "solver.py").write_text(SOLVER)
    write(tmp_path, EXPERIMENT)
    return tmp_path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder: Path, experiment: dict[str, Any], name: str = "exp.yaml") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(experiment, sort_keys=False))
    return path


def lines(run: Path) -> list[bytes]:
    """The journal, clocks and ids taken out, byte for byte."""
    # The number of a line and its checksum follow from the order and from the clocks.
    apart = {*CLOCKS_AND_IDS, "seq", "crc"}
    kept = [{k: v for k, v in trial.items() if k not in apart} for trial in journal(run)]
    for trial in kept:
        for check in trial.get("checks", ()):
            check.pop("span_ids", None)
    return [msgspec.json.encode(trial) for trial in kept]


def cells(run: Path) -> list[dict[str, Any]]:
    """The summaries without percentiles of latency, which are clocks, and without ids."""
    found = json.loads((run / "results.json").read_text())["cells"]
    for cell in found:
        for name in CLOCKS_OF_CELLS:
            cell.pop(name)
        for failure in cell["failures"]:
            for sample in failure["samples"]:
                sample.pop("trace_id", None)
                sample.pop("span_ids", None)
    return found


def ran(project: Path, results: str, *args: Any, name: str = "exp.yaml") -> Path:
    done = proctor("run", project / name, "--results", project / results, "--quiet", *args)
    assert done.returncode in (0, 1), done.stderr
    return only_run(project / results)


@pytest.mark.slow
def test_twice_the_same_byte_for_byte(project: Path) -> None:
    """R-R5: journal, Parquet rows and summaries are equal, clocks and ids apart."""
    one, two = (ran(project, name, "--concurrency", 1) for name in ("one", "two"))
    assert len(lines(one)) == (2 + 2) * 3 * 2 * 3 * 2
    assert lines(one) == lines(two)
    assert rows(one) == rows(two)
    assert cells(one) == cells(two)
    assert len({row[7] for row in rows(one)}) > 1, "the agents must differ for this to mean much"


@pytest.mark.slow
def test_sequential_and_concurrent_agree(project: Path) -> None:
    """R-R5: the number of trials at a time changes nothing but the order of the journal."""
    one, many = (ran(project, f"at-{n}", "--concurrency", n) for n in (1, 16))
    assert sorted(lines(one)) == sorted(lines(many))
    assert rows(one) == rows(many)
    assert cells(one) == cells(many)


@pytest.mark.slow
def test_the_order_in_the_file_does_not_matter(project: Path) -> None:
    """R-S3, R-R5: cases, agents, seeds and axes in another order give the same bytes."""
    one = ran(project, "one", "--concurrency", 1)
    other = {
        key: list(reversed(value)) if isinstance(value, list) else value
        for key, value in reversed(EXPERIMENT.items())
    }
    other["params"] = {"most": [20, 5]}
    suite = yaml.safe_load((project / "suite.yaml").read_text())
    suite["cases"].reverse()
    (project / "suite.yaml").write_text(yaml.safe_dump(suite))
    write(project, other, "exp.yaml")
    two = ran(project, "two", "--concurrency", 1)
    assert lines(one) == lines(two)
    assert rows(one) == rows(two)
    assert cells(one) == cells(two)


@pytest.mark.slow
def test_a_killed_experiment_resumes_to_the_same(project: Path) -> None:
    """R-R5, R-R7, R-R9: kill -9 at any moment, resume from the folder: as if nothing happened.

    The experiment and the template are changed before the resume: what counts is in the folder.
    """
    reference = ran(project, "reference", "--concurrency", 4)
    expected, size = rows(reference), (reference / "trials.jsonl").stat().st_size
    moment = random.Random(11)
    spec = project / "catalog" / "quiz" / "sum" / "spec.yaml"
    cut = 0
    children = Children(project / "scratch")
    for number in range(6):
        spec.write_text(CATALOG["quiz.sum"])
        write(project, EXPERIMENT)
        root = project / f"killed-{number}"
        args = ("run", project / "exp.yaml", "--results", root, "--concurrency", 4, "--json")
        pid = children.start(*args)
        until(lambda r=root: len(list(r.glob("*/*/_spec_.yaml"))) == 1, every=0)
        run = only_run(root)
        wanted = moment.randrange(size)
        until(
            lambda r=run, w=wanted: (
                # Times have more or fewer digits: this run may end with a shorter journal.
                (r / "results.json").exists()
                or ((r / "trials.jsonl").exists() and (r / "trials.jsonl").stat().st_size >= w)
            ),
            every=0,
        )
        os.kill(pid, signal.SIGKILL)
        children.wait()
        before = len(journal(run))
        cut += before < len(expected)
        spec.write_text(CATALOG["quiz.sum"].replace("a + b", "a - b"))
        write(project, {"cases": ["nothing"]})
        if number % 2:
            shutil.rmtree(project / "cache", ignore_errors=True)
        assert children.run("run", "--resume", run, "--json") in (0, 1), children.err.read_text()
        assert rows(run) == expected
        assert len(journal(run)) == len(expected), "nothing is done twice"
    assert cut >= 3, "the kills must hit runs that are running"


@pytest.mark.slow
def test_a_spec_alone_recreates_the_run(project: Path) -> None:
    """R-R5, R-D1: catalog, suite and experiment are gone; only the agents' code is left."""
    first = ran(project, "first")
    for name in ("exp.yaml", "suite.yaml", "proctor.yaml"):
        (project / name).unlink()
    for path in (project / "catalog").rglob("spec.yaml"):
        path.unlink()
    shutil.rmtree(project / "cache")
    alone = project / "alone" / "exp" / "2026-01-01_001"
    alone.mkdir(parents=True)
    shutil.copy(first / "_spec_.yaml", alone)
    shutil.copy(first / "trials.jsonl", alone)
    done = run_sync(arerun(alone))
    assert done.sameness.identical, done.sameness.differences
    assert done.sameness.compared == len(lines(first))
    assert rows(done.second.path) == rows(first)
    assert done.second.spec["rerun_of"] == done.first.run_id


async def test_agents_see_neither_parameters_nor_truth(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-S4, R-R5: the scenario's parameters are the experiment's business."""
    seen: list[dict[str, Any]] = []

    async def peek(request: Any) -> str:
        seen.append({"params": request.params, "input": request.input})
        return "x"

    monkeypatch.chdir(project)
    experiment = Experiment(cases=("quiz.sum",), seeds=(1,), params={"most": (5, 20)})  # type: ignore[arg-type]
    run = await api.arun(experiment, agent=peek, results=project / "r")
    assert len(seen) == 2
    assert all(each["params"] == {} for each in seen)
    assert {trial.params["most"] for trial in run.trials()} == {5, 20}
    assert all(isinstance(each["input"], str) for each in seen)


async def test_suites_hand_parameters_to_agents(project: Path) -> None:
    """R-S3: where no scenario takes a parameter, it is the agent's."""
    experiment = Experiment(
        cases=({"suite": "suite.yaml"},),  # type: ignore[arg-type]
        params={"style": ("long", "short")},  # type: ignore[arg-type]
    )
    experiment.came_from(project)

    async def styled(input: str, params: dict[str, Any]) -> str:  # noqa: A002 (the word of the interface)
        return f"{input} {params['style']}"

    run = await api.arun(experiment, agent=styled, results=project / "r")
    assert sorted(t.answer or "" for t in run.trials()) == [
        f"word{n} {style}" for n in (0, 1) for style in ("long", "short")
    ]
    assert [cell.params for cell in run.cells] == ["style=long", "style=short"] * 2


@pytest.mark.slow
def test_the_spec_says_what_ran(project: Path) -> None:
    """R-D1: seeds, parameters, whole templates, versions, commit, and that the tree is dirty.

    Changes to tracked files are told by a hash of their diff, which a clean tree does not have.
    """
    for args in (("init", "-q"), ("add", "."), ("commit", "-qm", "x")):
        _git(project, *args)
    clean = Run(ran(project, "clean")).spec
    assert clean["provenance"]["git"] == {
        "commit": _git(project, "rev-parse", "HEAD"),
        "dirty": False,
    }
    (project / "bots2.py").write_text(BOTS + "\n# changed\n")
    dirty = Run(ran(project, "dirty"))
    spec = dirty.spec
    said = console.render(ReportFacts(dirty))
    assert f"uncommitted changes on top of {spec['provenance']['git']['commit'][:11]}" in said
    diff = _git(project, "diff", "HEAD", "--no-ext-diff", "--no-color")
    assert "+# changed" in diff
    assert spec["provenance"]["git"] == {
        "commit": _git(project, "rev-parse", "HEAD"),
        "dirty": True,
        "changes": hashlib.sha256(diff.encode()).hexdigest()[:8],
    }
    assert {"proctor", "python", "platform", "host", "packages"} <= set(spec["provenance"])
    assert spec["provenance"]["packages"]["pydantic"]
    experiment = spec["experiment"]
    assert experiment["seeds"] == [1, 3, 8]
    assert experiment["params"] == [{"most": 20}, {"most": 5}]
    kept = experiment["scenarios"]["templates"]["quiz.sum"]
    assert kept["files"] == {"quiz/sum/spec.yaml": CATALOG["quiz.sum"]}
    assert spec["agents"]["bots:steady"]["version"]["target"] == "bots:steady"


def _git(folder: Path, *args: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    (folder / ".gitignore").write_text("clean\ndirty\ncache\n__pycache__\n")
    command = ["git", "-C", str(folder), *identity, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
