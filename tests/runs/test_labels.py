"""Human labels: stored with the run, sampled at random, and used in report, compare and gate."""

import json

import pytest
from outcome_parts import made_run, suite

from proctor.checks.judge_audit import krippendorff_alpha
from proctor.cli.main import run as command
from proctor.errors import ProctorError
from proctor.report.facts import ReportFacts
from proctor.report.html.page import render_page
from proctor.results.gate import judge_runs
from proctor.results.outcomes import corrected, outcomes_of, ratings_of, trial_agreement
from proctor.runs.annotations import (
    LABELS,
    HumanLabel,
    in_random_order,
    label,
    labels_of,
    sampled_labels,
)
from proctor.runs.run import Run, verify
from proctor.stats.gate import GateRule


def labelled(path, wrong: float, count: int, rule: str = "random") -> Run:
    """Label the first trials of the random queue; people fail a share of what passed."""
    run = Run(path)
    passed = 0
    for trial in in_random_order(run.trials(), run.run_id)[:count]:
        passed += trial.passed
        agrees = not trial.passed or passed * wrong % 1 >= wrong
        verdict = "pass" if trial.passed and agrees else "fail"
        label(path, trial.name, verdict, rater="ana", rule=rule)
    return Run(path)


def test_labels_are_lines_that_last_and_are_verified(tmp_path) -> None:
    """R-N11: the last label of a rater counts, all stay, damage is found, bad ones refused."""
    path = made_run(tmp_path, {"fast": suite([(2, 3)])})
    label(path, "case-00/fast/0/0", "pass", rater="ana")
    label(path, "case-00/fast/0/0", "fail", rater="ben", category="tone", comment="rude")
    label(path, "case-00/fast/0/0", "fail", rater="ana", rule="random", blind=True)
    found = labels_of(path)
    assert [(each.rater, each.verdict) for each in found] == [("ben", "fail"), ("ana", "fail")]
    assert (found[0].category, found[0].comment, found[1].blind) == ("tone", "rude", True)
    assert len((path / LABELS).read_text().splitlines()) == 3
    assert verify(path)[0] == []
    with pytest.raises(ProctorError, match="has no trial"):
        label(path, "case-00/slow/0/0", "pass")
    with pytest.raises(ProctorError, match="no rater"):
        label(path, "case-00/fast/0/0", "pass", rater=" ")
    content = (path / LABELS).read_bytes()
    (path / LABELS).write_bytes(content.replace(b'"rude"', b'"kind"'))
    assert "labels.jsonl" in verify(path)[0][0].where
    assert [each.rater for each in labels_of(path)] == ["ana"]


def test_only_a_random_sample_corrects(tmp_path) -> None:
    """R-N11: labels of chosen trials count only up to where the random queue has come."""
    run = Run(made_run(tmp_path, {"fast": suite([(5, 10)] * 2)}))
    queue = [trial.name for trial in in_random_order(run.trials(), run.run_id)]
    assert queue != sorted(queue)
    for at, rule in (
        (2, "disagreement"),
        (3, "random"),
        (9, "chosen"),
        (12, "sample"),
        (1, "skip"),
    ):
        verdict = "skip" if rule == "skip" else "pass"
        label(run.path, queue[at], verdict, rater="ana", rule="random" if rule == "skip" else rule)
    label(run.path, queue[3], "fail", rater="ben")
    found = sampled_labels(run.trials(), labels_of(run.path), run.run_id)
    assert found == {queue[2]: 1.0, queue[3]: 0.5, queue[12]: 1.0}
    only_chosen = Run(made_run(tmp_path, {"fast": suite([(5, 10)])}))
    label(only_chosen.path, "case-00/fast/0/0", "fail")
    assert (
        corrected(outcomes_of(only_chosen)[0].instances, ratings_of(only_chosen)["fast", ""])
        is None
    )


def test_agreement_of_raters() -> None:
    """R-N11: kappa of each pair, Krippendorff's alpha of all; undefined is None, no skips."""
    # Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability": four raters.
    units = [
        (1, 1, 1), (2, 2, 3, 2), (3, 3, 3, 3), (3, 3, 3, 3), (2, 2, 2, 2), (1, 2, 3, 4),
        (4, 4, 4, 4), (1, 1, 2, 1), (2, 2, 2, 2), (5, 5, 5), (1, 1), (3,),
    ]  # fmt: skip
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha([("pass", "pass"), ("pass",)]) is None
    assert krippendorff_alpha([]) is None
    given = [("ana", "a", "pass"), ("ana", "b", "fail"), ("ben", "a", "pass"), ("ben", "b", "pass")]
    given += [("ben", "c", "skip")]
    labels = [HumanLabel(at="", rater=who, trial=trial, verdict=said) for who, trial, said in given]
    found = trial_agreement(labels, {"a": True, "b": False, "c": True})
    assert found.raters == {"ana": 2, "ben": 2}
    assert found.pairs == (
        ("ana", "ben", 2, 1, 0.0), ("ana", "judge", 2, 2, 1.0), ("ben", "judge", 2, 1, 0.0),
    )  # fmt: skip
    assert (found.alpha, found.doubly) == (0.0, 2)


def test_labels_correct_report_compare_and_gate(tmp_path, capsys) -> None:
    """R-N11: a judge overlooks a regression: the naive gate passes, the corrected fails."""
    for name, wrong in (("good", 0.0), ("bad", 0.6)):
        path = made_run(tmp_path, {"fast": suite([(36, 40)] * 10)}, name=name)
        assert labelled(path, wrong, 80).saved
    good, bad = (Run(next((tmp_path / name).iterdir())) for name in ("good", "bad"))
    plain = judge_runs(bad, good)
    assert plain.verdict == "NO REGRESSION"
    shown = plain.arms[0].corrected
    assert shown is not None
    assert shown.drop is not None
    assert shown.drop > 0.3
    strict = judge_runs(bad, good, rule=GateRule(corrected=True))
    assert (strict.verdict, strict.exit_code()) == ("REGRESSION", 1)
    assert strict.reason.startswith("corrected by labels: a drop of")
    assert judge_runs(good, bad, rule=GateRule(corrected=True)).verdict == "NO REGRESSION"

    def said(*words: str) -> tuple[int, str]:
        code = command([*words, "--results", str(tmp_path)])
        return code, " ".join(capsys.readouterr().out.split())

    code, text = said("gate", str(bad.path), "--against", str(good.path))
    assert code == 0
    assert "corrected by labels: drop" in text
    assert "judge 90 %; 80 labels of 400 trials, the judge agrees on" in text
    assert said("gate", str(bad.path), "--against", str(good.path), "--corrected")[0] == 1
    code, text = said("compare", str(good.path), str(bad.path))
    assert "pass rates corrected by labels:" in text
    assert "difference −" in text
    for form in ("console", "markdown", "json"):
        out = tmp_path / f"report.{form}"
        said("report", str(bad.path), "--format", form, "-o", str(out))
        assert "pass rate corrected by labels" in out.read_text(), form
    page = render_page(bad, ReportFacts(bad), with_charts=False).text
    assert "pass rate corrected by labels" in page
    code, text = said("runs", "label", str(bad.path), "case-00/fast/0/1", "pass", "--rater", "ben")
    assert "ben (chosen)" in text
    assert "ana and judge agree on" in text
    code, text = said("runs", "label", str(bad.path), "--json")
    listed = json.loads(text)
    assert len(listed["labels"]) in (80, 81)
    assert listed["corrected"]["fast"]["naive"] == pytest.approx(0.9)
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["corrected"]["fast"]["rate"]["value"] < 0.6
    # Without labels in the reference there is no corrected drop, and that is not a pass.
    (good.path / LABELS).unlink()
    code, text = said("gate", str(bad.path), "--against", str(good.path), "--corrected")
    assert code == 2
    assert "no labels in the reference" in text
    code, text = said("compare", str(good.path), str(bad.path))
    assert "no difference: no labels of a random sample in the first" in text
