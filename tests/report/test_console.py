"""The console report: what a person sees."""

import re
from pathlib import Path

import click
from report_parts import case, check, hostile, mixed, report
from report_runs import make_run

from proctor.report.facts import ReportFacts
from proctor.report.outputs import FORMATS, render
from proctor.runs.run import Run
from proctor.spec.located import SourceLocation


def plain(of):
    return click.unstyle(render("console", of))


def row(of, name):
    return next(line.split() for line in plain(of).splitlines() if f" {name} " in line)


def test_a_row_for_every_case():
    """R-C5: mark, case, score and the three layers, worst first."""
    assert row(mixed(), "good")[:6] == ["✓", "good", "1.00", "PASS", "WARN", "SKIP"]
    assert row(mixed(), "wrong")[:6] == ["✗", "wrong", "0.00", "FAIL", "SKIP", "SKIP"]
    assert row(mixed(), "crash")[:6] == ["!", "crash", "–", "–", "–", "–"]


def test_reasons_can_be_acted_on():
    """R-C5: a failure says why, what was expected, what came, where; a warning too."""
    text = plain(mixed())
    assert "✗ wrong  a blocking check failed  suite.yaml:12" in text
    assert "FAIL expected_in_answer: the answer lacks 'Paris'" in text
    assert 'expected ["Paris"]' in text
    assert 'actual   "Rome"' in text
    assert "spans    s1, s2" in text
    assert "WARN max_tool_calls: 9 calls, at most 8" in text
    assert "SCORE 0.50, 0.8 needed" in text
    assert "ERROR RuntimeError: no connection" in text


def test_a_place_without_lines_is_its_name():
    """R-C5: a case from a scenario template has a file but no line, in every format."""
    built = report(case("wrong", "hard_fail", check(), place=SourceLocation("mutualism")))
    assert "a blocking check failed  mutualism\n" in plain(built)
    for name in FORMATS:
        assert "mutualism:" not in render(name, built), name


def test_sums_have_denominators():
    """R-Q5: every count has its denominator, and a lower bound of a cost is marked."""
    text = plain(mixed())
    assert (
        "1 of 7 cases passed; 2 failed (1 on a blocking check); 1 could not be judged; "
        "1 stopped; 2 not run; 2 warnings" in text
    )
    assert "cost ≥ $0.41, 3 calls unpriced · 900 tokens · judges $0.01 · 2.0 s" in text


def test_unknown_cost_is_said():
    """R-A4: calls without a price are reported, not counted as free."""
    assert "cost unknown, 2 calls unpriced" in plain(report(case(unpriced_calls=2)))
    assert plain(report(case())).splitlines()[-1] == "cost: n/a (no model calls recorded) · 2.0 s"


def test_who_judged_is_said():
    """R-C7: a passed check that was judged names its method."""
    assert "PASS llm_judge: by judge gpt: " in plain(mixed())
    failed = report(case("x", "hard_fail", check(name="grounded", method="grounding (words)")))
    assert "FAIL grounded: the answer lacks 'Paris' (by grounding (words))" in plain(failed)


def test_agents_are_named_when_there_are_several():
    """R-Q5: with two agents each row says whose it is."""
    assert row(report(case(agent="one"), case("b", agent="two")), "b")[2] == "two"
    assert "agents:answer" not in plain(report(case()))


def test_hostile_text_is_not_obeyed():
    """R-Q5: no control character reaches the terminal, and every line is one of ours."""
    text = plain(hostile())
    obeyed = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ud800-\udfff]")
    assert obeyed.findall(text) == []
    labels = ("FAIL", "WARN", "PASS", "SKIP", "UNSCORED", "ERROR", "SCORE", "expected", "actual")
    ours = (
        *labels,
        "skipped",
        "spans",
        "note:",
        "✗",
        "!",
        "suite.yaml",
        "case",
        "0 of 3",
        "cost: n/a",
    )
    assert [line for line in text.split("\n") if line and not line.strip().startswith(ours)] == []


def test_floods_are_cut():
    """R-Q5: ten megabytes of answer are a few lines on the screen."""
    assert len(plain(hostile("x" * 10_000_000))) < 60_000


def test_a_large_run_lists_what_failed_or_changed(tmp_path: Path) -> None:
    """R-Q5: agents first, then the worst cells; the rest is counted, with the command for it."""
    rates = {1: (1.2, 1.2, 1.2), 2: (1.2, 1.2, 0.8)}
    before, after = (
        Run(
            make_run(
                tmp_path / "made" / f"2026-05-28_00{number}",
                agents=("one", "two", "three"),
                cases=40,
                pass_rates=found,
            )
        )
        for number, found in rates.items()
    )
    failed = [cell for cell in after.cells if cell.verdict != "PASS"]
    assert len(failed) > 20
    text = plain(ReportFacts(after))
    lines = text.splitlines()
    assert len(lines) < 50
    assert lines[0].split()[:2] == ["agent", "rank"]
    listed = cell_rows(text)
    assert len(listed) == 20
    assert not any(" PASS " in text for text in listed)
    rest, passed = len(failed) - 20, 120 - len(failed)
    assert f"not listed: {rest} more that did not pass or changed, {passed} cells that" in text
    assert f"proctor results {after.path} --group-by case,agent" in text
    # A cell that passes but changed is listed, too.
    text = plain(ReportFacts(before, baseline=after))
    assert "Since made/2026-05-28_002" in text
    assert any(" PASS " in text for text in cell_rows(text))
    # Few cells are all listed.
    small = Run(make_run(tmp_path / "made" / "2026-05-28_003", cases=4))
    assert len(cell_rows(plain(ReportFacts(small)))) == 8


def cell_rows(text: str) -> list[str]:
    return re.findall(r"^  case-\d+  .*", text, re.MULTILINE)
