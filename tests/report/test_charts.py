"""Charts: files for papers, drawn from the facts of the report."""

import json
import struct
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import make_run

from proctor.errors import ProctorError
from proctor.report import charts
from proctor.report.facts import ReportFacts
from proctor.report.html._context import report_context
from proctor.runs.run import Run
from proctor.runs.trial import Trial

pytest.importorskip("vl_convert", reason="the extra charts is not installed")


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> ReportFacts:
    folder = tmp_path_factory.mktemp("run") / "made" / "2026-05-28_001"
    return ReportFacts(Run(make_run(folder, agents=("b", "a"), pass_rates=(0.9, 0.2))))


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG\r\n"), ("svg", b"<svg")])
def test_every_chart_becomes_a_file(
    facts: ReportFacts, tmp_path: Path, form: charts.Format, begins: bytes
) -> None:
    """R-Q4: heatmaps of pass rate and score, bars of agents and of cases, score versus
    difficulty, histogram, cost and timeline, offline.
    """
    written = charts.write_charts(facts, tmp_path / "charts", form)
    assert [path.stem for path in written] == list(charts.CHARTS)
    for path in written:
        content = path.read_bytes()
        assert content.startswith(begins)
        assert len(content) > 2_000


def test_a_chart_shows_the_numbers_of_the_report(facts: ReportFacts, tmp_path: Path) -> None:
    """R-Q4: what the picture says is what the tables say."""
    (heatmap,) = [p for p in charts.write_charts(facts, tmp_path, "svg") if p.stem == "heatmap"]
    drawn = heatmap.read_text(encoding="utf-8")
    for cell in facts.cells:
        judged = cell.passed + cell.failed + cell.hard_fail
        assert f">{cell.passed}/{judged}<" in drawn
    assert ">100 %<" in drawn  # shares are written as in the text around a chart
    # Agents stand in the order of the leaderboard, not of the alphabet.
    assert facts.names == ["b", "a"]
    assert drawn.index(">b<") < drawn.index(">a<")


def test_specs_hold_no_data_of_their_own(facts: ReportFacts) -> None:
    """R-Q4: each names its table; a page holds the table once."""
    for name, spec in charts.specs(facts).items():
        assert "datasets" not in spec, name
        assert spec["data"]["name"] in charts.datasets(facts)
        assert "http" not in json.dumps({k: v for k, v in spec.items() if k != "$schema"})


def test_what_there_is_nothing_to_draw_of_is_left_out(tmp_path: Path) -> None:
    """R-Q4: no cost known, no chart of cost; an unknown figure is never drawn as zero."""
    run = Run(make_run(tmp_path / "made" / "2026-05-28_001", costs=False))
    assert "cost" not in charts.specs(ReportFacts(run))


def test_without_the_extra_the_message_says_what_to_install(
    facts: ReportFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-Q4: one line, with the command."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert not charts.available()
    with pytest.raises(ProctorError, match="extra `charts`") as raised:
        charts.write_charts(facts, tmp_path)
    assert raised.value.hint == 'pip install "proctor[charts]"'


def test_long_names_stand_at_a_slant_and_are_cut(tmp_path: Path) -> None:
    """R-Q4: in a picture too, no name of an agent pushes a panel away or runs over another."""

    def drawn(*agents: str) -> tuple[int, int, list[int]]:
        run = make_run(tmp_path / agents[0] / "2026-05-28_001", agents=agents, cases=2)
        facts = ReportFacts(Run(run))
        spec = charts.specs(facts)
        heads = spec["heatmap"]["layer"][0]["encoding"]["x"]["axis"]
        (path,) = [p for p in charts.write_charts(facts, tmp_path / agents[0]) if "hist" in p.name]
        size = struct.unpack(">II", path.read_bytes()[16:24])
        return (
            heads["labelAngle"],
            heads["labelLimit"],
            [round(side / charts.SCALE) for side in size],
        )

    angle, _, (width, _) = drawn("careful", "hasty")
    assert angle == 0
    slanted, limit, (wide, _) = drawn("a-name-that-goes-on-and-on-and-on-for-ever-and-ever", "b")
    assert (slanted, limit) == (40, 120)
    assert wide == width


@given(st.lists(st.text("ab/-", min_size=1, max_size=40), unique=True, max_size=12))
def test_no_two_labels_are_the_same(names: list[str]) -> None:
    """R-Q4: ids that are cut stay distinct, whatever they have in common."""
    labels = charts.short_labels(names, 9)
    shown = [labels.get(name, name) for name in names]
    assert len(set(shown)) == len(names)
    assert all(len(label) <= 9 + len(" (12)") for label in shown)
    assert set(labels) == {name for name in names if len(name) > 9}


def test_bars_of_cases_and_levels_have_the_intervals_of_the_results(facts: ReportFacts) -> None:
    """R-Q4: Wilson's interval of each case; that of exactly the cases of each difficulty."""
    from proctor.stats.intervals import suite_mean, wilson

    tables = {name: table.records() for name, table in charts.datasets(facts).items()}
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in facts.rows:
        if row.score is not None:
            scores[row.case, row.arm].append(row.score)
    for cell in tables["cells"]:
        low, high = wilson(cell["rate"], cell["judged"])
        assert (cell["low"], cell["high"]) == pytest.approx((low, high))
    assert [level["level"] for level in tables["levels"]][:3] == ["easy", "medium", "hard"]
    for level in tables["levels"]:
        name, arm = level["level"], level["arm"]
        own = [c["case"] for c in tables["cells"] if (c["level"], c["arm"]) == (name, arm)]
        assert level["cases"] == len(own)
        expected = suite_mean([scores[case, arm] for case in own])
        found = (level["score"], level["low"], level["high"])
        assert found == pytest.approx((expected.value, expected.low, expected.high))


def test_the_frontier_of_cost_and_quality(tmp_path: Path) -> None:
    """R-Q4: an agent that is dearer and worse than another is below; a lower bound never wins."""

    def priced(trial: Trial, _rng: object) -> None:
        trial.cost_usd = {"cheap": 0.01, "good": 0.05, "waste": 0.06, "unknown": 0.001}[trial.agent]
        trial.unpriced_calls = int(trial.agent == "unknown")

    run = make_run(
        tmp_path / "made" / "2026-05-28_001",
        agents=("cheap", "good", "waste", "unknown"),
        cases=12,
        pass_rates=(0.5, 1.2, 0.7, 1.2),
        change=priced,
    )
    facts = ReportFacts(Run(run))
    assert facts.frontier == {"cheap": None, "good": None, "waste": "good"}
    rows = {row["arm"]: row for row in charts.datasets(facts)["arms"].records()}
    assert {name: row["frontier"] for name, row in rows.items()} == {
        "cheap": True,
        "good": True,
        "waste": False,
        "unknown": None,
    }
    assert rows["good"]["cost"] == pytest.approx(0.05)
    assert rows["unknown"]["price"].startswith("≥")
    context = report_context(facts, rows={}, listed=0, contents=())
    assert "dashed line" in context["cost"]
    one = facts.replace(frontier={"good": None, "waste": "good"})
    context = report_context(one, rows={}, listed=0, contents=())
    assert "good is at once the cheapest and the best" in context["cost"]  # and no line is drawn
