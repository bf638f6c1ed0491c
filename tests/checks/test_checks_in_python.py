"""Check objects and functions in Python: through a run, its folder, and the command line."""

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import proctor as command
from run_parts import journal
from trial_parts import tool, trace_of

import proctor
from proctor.checks import Contains, ForbidTools, MaxCost, Metric
from proctor.checks.base import CheckStatus
from proctor.errors import ProctorError
from proctor.spec.case_checks import check_trace, checks_of

MODULE = """
import pathlib
from proctor.checks import CheckContext, CheckResult, Metric

def answer(question):
    right = (pathlib.Path(__file__).parent / "right").exists()
    return "It is Paris [source]." if right else "It is Paris."

def cites_source(ctx: CheckContext[str]) -> CheckResult:
    found = "[source]" in ctx.output
    return CheckResult(passed=found, reason="cites a source" if found else "no [source]")

def sizes(ctx: CheckContext[str]) -> dict[str, Metric]:
    return {"words": Metric(len(ctx.output.split())), "spans": Metric(len(ctx.span_tree.spans))}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The user's own code, importable by name."""
    (tmp_path / "my_checks_x1.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("my_checks_x1")


def suite_of(*checks: Any) -> proctor.Suite:
    case = proctor.Case(id="capital", input="What is the capital of France?", checks=checks)
    return proctor.Suite(cases=[case])


def test_functions_and_objects_through_a_run(module: Any, tmp_path: Path) -> None:
    """R-C9 R-S1: results of both are in the journal; the spec names each so that it is found."""
    (tmp_path / "right").touch()
    checks = [
        *(Contains("Paris"), ForbidTools("delete"), MaxCost(0.01)),
        *(module.cites_source, module.sizes, lambda ctx: True),
    ]
    run = proctor.run(suite_of(*checks), agent=module.answer, trials=2, results=tmp_path / "out")
    found = {r.id: r for r in next(iter(run.trials())).checks}
    assert {name: str(r.status) for name, r in found.items()} == {
        "expected_in_answer": "pass",
        "cites_source": "pass",
        "sizes.words": "metric",
        "sizes.spans": "metric",
        "<lambda>": "pass",
        "forbidden_tools": "not_judged",
        "max_cost_usd": "not_judged",
    }
    assert found["sizes.words"].actual == 4
    spec = yaml.safe_load((run.path / "_spec_.yaml").read_text())
    assert spec["suite"]["cases"][0]["checks"] == [
        {
            "check": "proctor.checks:Contains",
            "params": {"texts": ["Paris"]},
            "id": "expected_in_answer",
        },
        {
            "check": "proctor.checks:ForbidTools",
            "params": {"tools": ["delete"]},
            "id": "forbidden_tools",
        },
        {"check": "proctor.checks:MaxCost", "params": {"usd": 0.01}, "id": "max_cost_usd"},
        {"check": "my_checks_x1:cites_source"},
        {"check": "my_checks_x1:sizes"},
        {"check": "given_in_python", "id": "<lambda>"},
    ]


def test_a_run_from_python_is_resumed_by_the_command(module: Any, tmp_path: Path) -> None:
    """R-R7 R-C9: what the spec names is imported again, and results keep their ids."""
    suite = suite_of(Contains("paris", weight=2), module.cites_source, module.sizes)
    run = proctor.run(suite, agent=module.answer, trials=1, results=tmp_path / "out")
    assert not next(iter(run.trials())).passed
    (tmp_path / "right").touch()
    done = command("run", "--retry-failed", run.path, "--quiet")
    # The first judged attempt counts, whatever the retry did.
    assert done.returncode == 1, done.stderr
    first, second = (
        [(c["id"], c["check"], c.get("weight", 1)) for c in line["checks"]]
        for line in journal(run.path)
    )
    assert first == second
    assert first[0] == ("expected_in_answer", "expected_in_answer", 2.0)


def test_a_local_function_cannot_be_resumed_and_says_why(module: Any, tmp_path: Path) -> None:
    """R-C9: no import path leads to it; the message says what to do."""
    suite = suite_of(lambda ctx: False)
    run = proctor.run(suite, agent=module.answer, trials=1, results=tmp_path / "out")
    done = command("run", "--retry-failed", run.path, "--quiet")
    assert done.returncode == 2
    assert "given in Python" in done.stderr
    assert "at the top level of a module" in done.stderr


def test_the_same_checks_from_a_file(module: Any, tmp_path: Path) -> None:
    """R-C9: by import path in YAML; metrics are in the results of `run` and `test`."""
    (tmp_path / "right").touch()
    case = {
        "id": "capital",
        "input": "capital?",
        "checks": [
            "my_checks_x1:cites_source",
            "my_checks_x1:sizes",
            {"check": "proctor.checks:Contains", "params": {"texts": "Paris"}, "weight": 3},
        ],
    }
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump({"agent": "my_checks_x1:answer", "cases": [case]}))
    tried = command("test", suite, "--format", "json")
    assert tried.returncode == 0, tried.stderr
    assert '"metric"' in tried.stdout
    done = command("run", suite, "--results", tmp_path / "out", "--quiet", "--trials", "1")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").glob("*/*")
    (line,) = journal(folder)
    found = {c["id"]: (c["status"], c.get("actual"), c.get("weight", 1)) for c in line["checks"]}
    assert found["sizes.words"] == ("metric", 4, 0.0)
    assert found["Contains"][0] == "pass"
    assert found["Contains"][2] == 3.0
    assert command("report", folder).returncode == 0


def test_one_trace_without_a_run() -> None:
    """R-C9: checks over a recorded trace, its structured response as JSON text and as value."""
    trace = trace_of(tool("search"), query="q", response={"city": "Paris"})
    seen: list[Any] = []
    case = proctor.Case(input="q", checks=[Contains('"Paris"'), lambda ctx: not seen.append(ctx)])
    results = asyncio.run(check_trace(trace, case))
    assert [str(r.status) for r in results] == ["pass", "pass"]
    assert results.score == 1.0
    assert seen[0].output == {"city": "Paris"}


def test_defaults_and_copies_keep_check_objects() -> None:
    """R-S1: merging defaults into a case built in Python loses none of its checks."""
    case = proctor.Case(id="c", input="q", checks=[Contains("x"), lambda ctx: Metric(1)])
    (merged,) = proctor.Suite(cases=[case], defaults={"threshold": 0.5}).cases
    assert merged.threshold == 0.5
    assert checks_of(merged)[0].model_dump() == checks_of(case)[0].model_dump()


def test_a_judge_that_does_not_exist_is_found_in_check_objects() -> None:
    """R-C7: as in YAML, before anything runs."""
    from proctor.checks import LLMJudge

    with pytest.raises(ValueError, match="there is no judge 'strict'"):
        suite_of(LLMJudge("Kind.", judge="strict"))


def test_every_public_check_class_has_an_example() -> None:
    """R-S1: one short docstring with an example for each."""
    from proctor import checks

    classes = [getattr(checks, name) for name in checks.__all__]
    ours = [c for c in classes if isinstance(c, type) and issubclass(c, checks.Check)]
    assert len(ours) >= 29
    missing = [c.__name__ for c in ours if "Example" not in (c.__doc__ or "")]
    assert missing == ["Check"]  # whose example is a whole class


def test_results_state_passed_without_storing_it() -> None:
    """R-C5: `passed` is read from the status, so that journals hold one verdict only."""
    stated = proctor.checks.CheckResult(passed=True, reason="so it is")
    assert (stated.status, stated.score, stated.passed) == (CheckStatus.PASS, 1.0, True)
    assert proctor.checks.CheckResult(score=0.4, passed=True).score == 0.4
    assert proctor.checks.CheckResult(passed=False).failed
    assert proctor.checks.CheckResult(reason="nothing to judge").status == CheckStatus.SKIP
    with pytest.raises(TypeError):
        proctor.checks.CheckResult(pased=True)  # pyright: ignore[reportCallIssue]


def test_unknown_check_class_is_refused_with_the_nearest(tmp_path: Path) -> None:
    """R-C9: by the same rules as other import paths."""
    case = proctor.Case(input="q", checks=["proctor.checks:Contans"])
    with pytest.raises(ProctorError, match="has no 'Contans'") as caught:
        checks_of(case)
    assert "Contains" in (caught.value.hint or "")
