"""The TRAIL taxonomy and the scoring of predictions against gold."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.diagnose.finding import Category, Group, official_label, parse_category
from proctor.errors import ProctorError
from proctor.trail.scorer import (
    Annotation,
    Mark,
    parse_annotation,
    read_annotations,
    score,
    without_trailing_commas,
)

marks = st.builds(
    Mark,
    st.sampled_from(["a", "b", "c", "d"]),
    st.sampled_from([c.value for c in Category]),
)
annotations = st.builds(Annotation, st.lists(marks, min_size=1, max_size=6).map(tuple))
folders = st.dictionaries(st.sampled_from(["t1", "t2", "t3"]), annotations, min_size=1)


def marked(*pairs: tuple[str, str], **scores: object) -> Annotation:
    return Annotation(tuple(Mark(place, label) for place, label in pairs), scores)


def test_taxonomy() -> None:
    """R-G1: 21 leaves under three groups, each with a meaning."""
    assert len(Category) == 21
    counts = {group: sum(c.group == group for c in Category) for group in Group}
    assert counts == {Group.REASONING: 9, Group.SYSTEM: 8, Group.PLANNING: 4}
    assert all(category.meaning for category in Category)


@pytest.mark.parametrize(
    ("label", "category"),
    [
        ("Language-Only", Category.LANGUAGE_ONLY),
        ("Context Handling Failure", Category.CONTEXT),
        ("Goal deviation", Category.GOAL_DEVIATION),
        ("Tool Selection", Category.TOOL_SELECTION),
        ("Task Orchestration Error", Category.ORCHESTRATION),
        ("tool related", Category.TOOL_RELATED),
        ("RESOURCE_ABUSE", Category.RESOURCE_ABUSE),
        ("Tool", None),
        ("", None),
        ("errors", None),
    ],
)
def test_spellings(label: str, category: Category | None) -> None:
    """R-G1: the spellings of the gold files are read; what names no leaf is not guessed."""
    assert parse_category(label) is category


def test_every_gold_label_is_known(shared: Path) -> None:
    """R-G1: every label of the gold names a leaf; the one broken file is repaired, and said."""
    for name, problems in (("gaia", 1), ("swe_bench", 0)):
        read = read_annotations(shared / "trail" / f"processed_annotations_{name}")
        assert len(read.problems) == problems
        labels = {mark.label for a in read.by_trace.values() for mark in a.marks}
        assert labels
        assert {label for label in labels if parse_category(label) is None} == set()


def test_official_label() -> None:
    """R-G5: the official reading: without case and spaces, then by part, else kept as it is."""
    assert official_label("toolselection errors") == "Tool Selection Errors"
    assert official_label("Context Handling Failure") == "Context Handling Failures"
    assert official_label("tool") == "Tool-related"
    assert official_label(" Task Orchestration Error ") == "task orchestration error"
    assert official_label("") == ""


def test_hand_made_case() -> None:
    """R-G5: each metric on a case small enough to work out by hand."""
    gold = {
        "t1": marked(("a", "Formatting Errors"), ("b", "Goal Deviation"), ("b", "Timeout Issues")),
        "t2": marked(("c", "Formatting Errors")),
        "t3": marked(("z", "Rate Limiting")),
    }
    predicted = {
        "t1": marked(("a", "formatting errors"), ("a", "Goal Deviation"), ("b", "timeout issues")),
        "t2": marked(("d", "Formatting Errors"), ("d", "Service Errors")),
        "t4": marked(("y", "Rate Limiting")),
    }
    card = score(gold, predicted)
    assert card.traces == 2
    assert card.location_accuracy == pytest.approx((2 / 2 + 0 / 1) / 2)
    assert card.joint_accuracy == pytest.approx((2 / 3 + 0 / 1) / 2)
    assert (card.pair_precision, card.pair_recall) == (pytest.approx(2 / 5), pytest.approx(2 / 4))
    assert card.pair_f1 == pytest.approx(4 / 9)
    assert card.findings_per_trace == 2.5
    # Formatting: both traces right; Goal Deviation and Timeout right; Service has no support.
    assert card.weighted_f1 == pytest.approx(1.0)
    assert card.categories[Category.SERVICE].precision == 0
    assert card.categories[Category.FORMATTING].support == 2
    assert card.without_prediction == ("t3",)
    assert card.without_gold == ("t4",)


def test_correlations() -> None:
    """R-G5: Pearson as officially computed: zero is taken for unknown, reliability is cut; with n
    and p, and none for fewer than ten traces."""
    names = "abcdefghijkl"
    golds = (1, 3, 5, 2, 4, 1, 5, 3, 2, 4, 5, 1)
    given = (0, 2.9, 4, 2.2, 3.7, 1.5, 4.8, 2, 2.5, 3.9, 4.1, 2)
    gold = {n: marked(reliability_score=g, overall=g) for n, g in zip(names, golds, strict=True)}
    predicted = {
        n: marked(reliability_score=p, overall=p) for n, p in zip(names, given, strict=True)
    }
    found = score(gold, predicted).correlations
    for key, read in (
        ("overall", [-1 if p == 0 else p for p in given]),
        ("reliability_score", [-1 if p == 0 else int(p) for p in given]),
    ):
        assert found[key].coefficient == pytest.approx(np.corrcoef(golds, read)[0, 1])
        assert found[key].n == 12
        assert (found[key].p_value or 1) < 0.01
    assert found["security_score"].coefficient is None
    few = score({n: gold[n] for n in "abc"}, predicted).correlations["overall"]
    assert (few.coefficient, few.n) == (None, 3)
    assert "needs 10 cases" in (few.reason or "")


def test_nothing_to_score() -> None:
    """R-G5: a number that cannot be computed is None, never 0."""
    card = score({}, {"t": marked(("a", "Timeout Issues"))})
    assert (
        card.joint_accuracy is card.weighted_f1 is card.pair_f1 is card.findings_per_trace is None
    )


@given(gold=folders)
def test_perfect_prediction(gold: dict[str, Annotation]) -> None:
    """R-G5: the gold itself scores 1 everywhere."""
    card = score(gold, gold)
    assert card.joint_accuracy == card.location_accuracy == 1
    assert card.pair_f1 == card.pair_precision == 1
    assert card.weighted_f1 == pytest.approx(1)


@given(gold=folders, predicted=folders)
def test_bounds(gold: dict[str, Annotation], predicted: dict[str, Annotation]) -> None:
    """R-G5: joint accuracy never exceeds location accuracy; flooding is free there, not in F1."""
    card = score(gold, predicted)
    if card.joint_accuracy is None or card.location_accuracy is None:
        assert not gold.keys() & predicted.keys()
        return
    assert 0 <= card.joint_accuracy <= card.location_accuracy + 1e-12 <= 1 + 1e-9
    everywhere = Annotation(tuple(Mark(p, c.value) for p in "abcd" for c in Category))
    flooded = score(gold, dict.fromkeys(gold, everywhere))
    assert flooded.joint_accuracy == 1
    assert flooded.pair_precision is not None
    assert flooded.pair_precision < 0.1


def test_malformed_files(tmp_path: Path) -> None:
    """R-G5: a trailing comma is repaired and said, anything else is reported, none is skipped."""
    (tmp_path / "a.json").write_text('{"errors": [{"location": "x", "category": ",]"},],}')
    (tmp_path / "b.json").write_text('{"errors": [')
    (tmp_path / "c.json").write_text('{"errors": 3}')
    read = read_annotations(tmp_path)
    assert read.by_trace == {"a": Annotation((Mark("x", ",]"),), {})}
    names = ["a.json", "a.json", "b.json", "c.json"]  # of the first the comma, and its category
    assert [p.split(":")[0] for p in read.problems] == names
    assert read.unread == 2
    with pytest.raises(ProctorError, match="no such folder"):
        read_annotations(tmp_path / "absent")


@given(text=st.text(alphabet=',]}"\\ a', max_size=12))
def test_commas_in_strings_stay(text: str) -> None:
    """R-G5: the repair never changes what a string says."""
    import json

    document = json.dumps({"errors": [{"location": text, "category": "x"}]})
    assert without_trailing_commas(document) == document
    annotation, repaired = parse_annotation(document)
    assert (annotation.marks[0].location, repaired) == (text, False)
