"""Charts: files for papers, drawn from the facts of the report."""

import json
import struct
import sys
from pathlib import Path

import pytest
from report_runs import make_run

from proctor.errors import ProctorError
from proctor.report import charts
from proctor.report.facts import ReportFacts
from proctor.runs.run import Run

pytest.importorskip("vl_convert", reason="the extra charts is not installed")


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> ReportFacts:
    folder = tmp_path_factory.mktemp("run") / "made" / "2026-05-28_001"
    return ReportFacts(Run(make_run(folder, agents=("b", "a"), pass_rates=(0.9, 0.2))))


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG\r\n"), ("svg", b"<svg")])
def test_every_chart_becomes_a_file(
    facts: ReportFacts, tmp_path: Path, form: charts.Format, begins: bytes
) -> None:
    """R-Q4: heatmap, bars, score versus difficulty, histogram, cost and timeline, offline."""
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
