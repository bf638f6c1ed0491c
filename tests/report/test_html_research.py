"""Research in the HTML report: what was decided, in the words of the console; absent elsewhere."""

import json
from pathlib import Path

from report_runs import make_run

from proctor.report.facts import ReportFacts
from proctor.report.html.page import render_page
from proctor.runs.run import RESEARCH_FILE as FILE
from proctor.runs.run import Run


def test_research_has_a_section(tmp_path: Path) -> None:
    """R-Q8 R-Q5: kind, rounds and findings; text stays text; a run without research has none."""
    run = Run(make_run(tmp_path / "made" / "2026-05-28_001", cases=2, trials=1))
    plain = render_page(run, ReportFacts(run), with_charts=False).text
    assert 'id="research"' not in plain
    record = {
        "kind": "sweep",
        "ended": True,
        "rounds": [{"decided": ["noise=0.1"]}, {"decided": ["noise=0.2"]}],
        "summary": ["careful: best of 8 is noise=0.1: <b>0.9</b>"],
    }
    (run.path / FILE).write_text(json.dumps(record), encoding="utf-8")
    page = render_page(run, ReportFacts(run), with_charts=False).text
    section = page.split('<section id="research"')[1].split("</section>")[0]
    assert "sweep: 2 rounds" in section
    assert "best of 8 is noise=0.1: &lt;b&gt;0.9&lt;/b&gt;" in section
    assert '<a href="#research">Research</a>' in page
