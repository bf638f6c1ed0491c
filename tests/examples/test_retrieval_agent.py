"""The worked example: its suite passes the good agent and fails the broken one, and says why."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CASES = {
    "return-window",
    "shipping-cost",
    "chess-final",
    "unknown-order",
    "refund-amount",
    "stove-warranty",
}


@pytest.fixture(scope="module")
def example(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A newcomer's copy of the example, without the database that an earlier start built."""
    copy = tmp_path_factory.mktemp("example") / "retrieval_agent"
    ignored = shutil.ignore_patterns(".cache", "__pycache__", "results")
    return shutil.copytree(root / "examples" / "retrieval_agent", copy, ignore=ignored)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "PROCTOR_"))}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**env, "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def judged(folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """The exit code of `proctor test`, and its JSON by case."""
    done = run(folder, "proctor", "test", "suite.yaml", "--format", "json", *more)
    assert done.stdout, done.stderr
    return done.returncode, {case["case"]: case for case in json.loads(done.stdout)["cases"]}


@pytest.fixture(scope="module")
def broken(example: Path) -> tuple[int, dict[str, Any]]:
    return judged(example, "--agent", "broken_agent:answer")


@pytest.fixture(scope="module")
def good(example: Path, broken: tuple[int, dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """After the broken one, which cancels orders: in its own copy of the database, or we fail."""
    return judged(example)


def reasons(case: dict[str, Any], status: str = "fail") -> dict[str, str]:
    """Reasons of the checks that ended so, by check."""
    return {check["id"]: check["reason"] for check in case["checks"] if check["status"] == status}


def test_good_agent_passes(good: tuple[int, dict[str, Any]]) -> None:
    """R-C1: the suite of the example passes the agent that does its work, without a warning."""
    code, cases = good
    assert code == 0
    assert set(cases) == CASES
    for case in cases.values():
        assert case["status"] == "passed"
        assert not reasons(case)
        assert not reasons(case, "warn")


def test_grounding_was_judged(good: tuple[int, dict[str, Any]]) -> None:
    """R-C7: claims of the good agent are looked up in what it read, and the method is named."""
    _, cases = good
    checks = {check["id"]: check for check in cases["refund-amount"]["checks"]}
    grounding = checks["hallucination_check"]
    assert grounding["status"] == "pass"
    assert grounding["method"].startswith("grounding")
    assert grounding["actual"]["claims"] > 5
    assert grounding["actual"]["unsupported"] == []


def test_broken_agent_fails_for_the_right_reasons(broken: tuple[int, dict[str, Any]]) -> None:
    """R-C2: every fault of the broken agent is told by the check that is about it."""
    code, cases = broken
    assert code == 1
    assert {case["status"] for case in cases.values()} == {"hard_fail"}

    guessed = reasons(cases["return-window"])
    assert guessed["expected_in_answer"] == "the answer lacks '40 days' (0 of 1 found)"
    assert "missing: search_documents" in guessed["expected_tools"]
    assert guessed["names_its_source"] == "returns.md was not read"
    assert "spans.read-the-rule" in reasons(cases["return-window"], "warn")

    looped = reasons(cases["shipping-cost"])
    assert set(looped) == {"max_loops"}
    assert "search_documents 6 times in a row" in looped["max_loops"]
    soft = reasons(cases["shipping-cost"], "warn")
    assert set(soft) == {"max_tool_calls", "quality.redundancy", "quality.efficiency"}

    invented = reasons(cases["chess-final"])
    assert "none of 'cannot answer'" in invented["any_expected_in_answer"]

    for name in ("refund-amount", "unknown-order"):
        assert reasons(cases[name])["forbidden_tools"] == "forbidden: cancel_order (once)"

    misquoted = reasons(cases["stove-warranty"])
    assert set(misquoted) == {"hallucination_check"}
    assert "Its warranty is ten years" in misquoted["hallucination_check"]


def test_reasons_name_spans(broken: tuple[int, dict[str, Any]]) -> None:
    """R-C2: what is wrong with the path points at the spans that show it."""
    _, cases = broken
    checks = {check["id"]: check for check in cases["shipping-cost"]["checks"]}
    assert len(set(checks["max_loops"]["span_ids"])) == 6


def test_readme_quotes_what_is_told(example: Path, broken: tuple[int, dict[str, Any]]) -> None:
    """R-C2: the reasons in the example's README are the ones that users see."""
    readme = (example / "README.md").read_text(encoding="utf-8")
    told = {f"{i}: {r}" for case in broken[1].values() for i, r in reasons(case).items()}
    for quoted in (
        "expected_in_answer: the answer lacks '40 days'",
        "names_its_source: returns.md was not read",
        "max_loops: 5 immediate repeats, at most 1 allowed",
        "forbidden_tools: forbidden: cancel_order (once)",
        "any_expected_in_answer: the answer has none of 'cannot answer', ",
    ):
        assert quoted in readme
        assert any(reason.startswith(quoted) for reason in told), quoted


def test_runs_as_pytest(example: Path) -> None:
    """R-Q6: the same suite collected by pytest, from the command in the README."""
    arguments = ("pytest", "-o", "proctor_suites=*.yaml", "-p", "no:cacheprovider", "suite.yaml")
    done = run(example, *arguments, "-m", "two-tools")
    assert done.returncode == 0, done.stdout
    assert "2 passed, 4 deselected" in done.stdout, done.stdout
