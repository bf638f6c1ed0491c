"""Objects in notebooks: small HTML in which nothing of an agent is markup."""

import csv
import html
import importlib
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor.diagnose import Category, Diagnosis, Finding
from proctor.diagnose.finding import Impact, Score
from proctor.report import charts
from proctor.report.facts import ReportFacts

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e\x1b[31m\ud800&"


class Seen(HTMLParser):
    """The elements and attributes of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(thing: Any) -> Seen:
    text = thing._repr_html_()
    text.encode()  # a lone surrogate would keep the notebook from being saved
    seen = Seen()
    seen.feed(text)
    assert seen.tags <= {"p", "strong", "table", "tr", "th", "td", "pre"}
    assert seen.attributes == []
    assert not {"\x1b", "\u202e"} & set(html.unescape(text))
    return seen


def suite(*inputs: str) -> proctor.Suite:
    checks: Any = {"expected_in_answer": ["yes"], "not_in_answer": [HOSTILE[:25]]}
    return proctor.Suite(
        cases=tuple(
            proctor.Case(id=f"case-{number}", input=text, correctness=checks)
            for number, text in enumerate(inputs)
        )
    )


def test_a_run(tmp_path: Path) -> None:
    """R-Q5: the verdict, each cell with its counts, and the most common failure."""

    def agent(question: str) -> str:
        return HOSTILE if question == "bad" else "yes"

    run = proctor.run(suite("good", "bad"), agent=agent, trials=2, results=tmp_path)
    assert run.verdict == "HARD FAIL"
    seen = shown(run)
    assert "HARD FAIL: 2 of 4 judged trials passed" in seen.text
    for part in ("case-0", "case-1", "2/2", "0/2", "100 %", "0 %", str(run.path)):
        assert part in seen.text
    assert "<script>" in seen.text  # the hostile answer is in the reason, as text


def test_a_run_that_passes_says_so(tmp_path: Path) -> None:
    """R-Q5: without a failed cell the verdict is PASS."""
    run = proctor.run(suite("good"), agent=lambda _question: "yes", results=tmp_path)
    assert (run.verdict, run.exit_code) == ("PASS", 0)


def test_a_trace() -> None:
    """R-Q5: the input, the output and the tree of spans."""
    with proctor.capture(query=HOSTILE) as trace:
        with proctor.capture.tool_call(HOSTILE, {"q": HOSTILE}) as step:
            step.tool_output = HOSTILE
        trace.response = HOSTILE
    seen = shown(trace)
    assert trace.trace_id in seen.text
    assert seen.text.count("alert(1)") >= 3


def test_a_diagnosis() -> None:
    """R-Q5: findings with their evidence, scores, notes."""
    finding = Finding(next(iter(Category)), HOSTILE, HOSTILE, HOSTILE, Impact.HIGH, 0.9, "rule")
    seen = shown(
        Diagnosis(HOSTILE, "offline", (finding,), {"plan": Score(2, HOSTILE)}, {}, (HOSTILE,))
    )
    assert "1 finding" in seen.text
    assert "plan: 2 of 5" in seen.text
    assert seen.text.count("alert(1)") == 6


def test_a_comparison(tmp_path: Path) -> None:
    """R-Q5: both pass rates, the difference with its interval, the p-value."""
    first = proctor.run(suite("a"), agent=lambda _q: "yes", trials=8, results=tmp_path)
    second = proctor.run(
        suite("a"), agents={HOSTILE[:40]: lambda _q: "no"}, trials=8, results=tmp_path
    )
    seen = shown(proctor.compare(first, second))
    for part in ("100 %", "0 %", "−100"):
        assert part in seen.text
    assert "alert(1)" in seen.text


def test_long_tables_are_cut(tmp_path: Path) -> None:
    """R-Q5: a notebook keeps its output: rows beyond a hundred are counted, not shown."""
    run = proctor.run(suite(*map(str, range(130))), agent=lambda _q: "yes", results=tmp_path)
    seen = shown(run)
    assert "30 more rows" in seen.text
    assert len(run._repr_html_()) < 20_000


@pytest.mark.parametrize("name", ["Run", "Trace", "Diagnosis"])
def test_public_classes_show_themselves(name: str) -> None:
    """R-Q5: what a notebook looks for is there."""
    assert callable(getattr(proctor, name)._repr_html_)


@pytest.fixture(scope="module")
def results_of_a_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every kind of result that users get."""
    folder = tmp_path_factory.mktemp("tables")
    agents: Any = {"good": lambda _q: "yes", "bad": lambda q: HOSTILE if q == "b" else "yes"}
    run, other = (
        proctor.run(suite("a", "b", "c"), agents=agents, trials=4, results=folder) for _ in range(2)
    )
    found = proctor.results.query(results=folder)
    return {
        "run": run,
        "trials": run.trials,
        "trial": run.trials[0],
        "set": found,
        "groups": found.group_by("agent"),
        "stats": found.stats(by="agent"),
        "sql": found.sql("SELECT agent, count(*) AS n FROM trials GROUP BY agent"),
        "board": proctor.api.leaderboard(run),
        "comparison": proctor.compare(run, other),
        "gate": proctor.gate(other, run),
        "plan": proctor.api.power(0.3, run=run),
        "difference": found.compare("good", "bad"),
        "rate": found.pass_rate(),
        "percentiles": found.percentiles("score"),
        "mean": found.mean("score"),
        "pass_at_k": found.pass_at_k(2),
    }


def test_every_result_shows_itself(results_of_a_run: dict[str, Any]) -> None:
    """R-Q5: small HTML, in which nothing of an agent is markup."""
    for name, found in results_of_a_run.items():
        assert shown(found).text, name


def test_every_table_is_a_data_frame_csv_and_latex(results_of_a_run: dict[str, Any]) -> None:
    """R-Q1 R-Q5: the same rows in pandas, polars, CSV and LaTeX."""
    pytest.importorskip("pandas", reason="the extra frames is not installed")
    pytest.importorskip("polars", reason="the extra frames is not installed")
    for name, found in results_of_a_run.items():
        if name == "trial":  # a record, not a table
            continue
        frame, rows = found.to_pandas(), found.records()
        assert len(frame) == found.to_polars().height == len(rows) > 0, name
        if name == "set":  # its columns are typed by the store
            continue
        assert list(frame.columns) == found.to_polars().columns == list(rows[0]), name
        read = list(csv.DictReader(io.StringIO(found.to_csv())))
        assert [list(row) for row in read] == [list(row) for row in rows], name
        tex = found.to_latex()
        ends = [line for line in tex.splitlines() if line.endswith(r"\\")]
        assert len(ends) == len(rows) + 1, name
        assert {len(re.findall(r"(?<!\\)&", line)) for line in ends} == {len(rows[0]) - 1}, name
    board = results_of_a_run["board"].to_pandas()
    assert board["pass_rate"].tolist() == pytest.approx([1, 2 / 3])


def test_charts_are_those_of_altair(results_of_a_run: dict[str, Any]) -> None:
    """R-Q4: results with an obvious chart return it, valid by Altair's schema."""
    altair = pytest.importorskip("altair", reason="the extra charts is not installed")
    for name in ("run", "trials", "set", "groups", "board", "comparison", "gate"):
        chart = results_of_a_run[name].plot()
        assert isinstance(chart, altair.TopLevelMixin), name
        assert chart.to_dict()["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
    with pytest.raises(proctor.ProctorError, match="has no chart"):
        results_of_a_run["sql"].plot()
    facts = ReportFacts(results_of_a_run["run"])
    for name in charts.specs(facts):
        assert isinstance(charts.plot(facts, name), altair.TopLevelMixin), name


NOTEBOOK = (
    (
        "import proctor\n"
        "def answer(question): return 'yes' if question != 'c' else 'no'\n"
        "checks = {'expected_in_answer': ['yes']}\n"
        "cases = [proctor.Case(id=name, input=name, correctness=checks) for name in 'abc']\n"
        "suite = proctor.Suite(cases=tuple(cases))"
    ),
    "run = proctor.run(suite, agent=answer, trials=4)\nrun",
    "again = await proctor.arun(suite, agent=answer, trials=2)\nagain.trials.to_pandas()",
    "run.plot()",
    "proctor.results.query('results').group_by('agent')",
)


@pytest.mark.slow
def test_a_real_notebook(tmp_path: Path) -> None:
    """R-R2 R-Q5: runs with and without `await`, a bar that ends full, tables and a chart."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    pytest.importorskip("altair", reason="the extra charts is not installed")
    nbformat = importlib.import_module("nbformat")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in NOTEBOOK])
    # Without a time limit: a busy machine is slow, and a kernel that died is an error anyway.
    client = nbclient.NotebookClient(
        book, timeout=None, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [[out.get("data", {}) for out in cell.outputs] for cell in book.cells]
    bars = [data["text/html"] for data in outputs[1] if "<progress" in data.get("text/html", "")]
    assert len(bars) == 1  # one display, updated in place
    assert '<progress max="12" value="12">' in bars[0]
    assert "12/12 done" in bars[0]
    assert "HARD FAIL: 8 of 12 judged trials passed" in outputs[1][-1]["text/html"]
    assert '<progress max="6" value="6">' in outputs[2][0]["text/html"]
    assert "hard_fail" in outputs[2][-1]["text/html"]
    assert "vega-lite" in outputs[3][-1]["text/html"]
    assert "Trials by agent" in outputs[4][-1]["text/html"]
