"""The parts of the page: text that cannot become markup, tables that lose nothing, a size kept."""

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import make_run

from proctor.report.charts import STATUSES, config
from proctor.report.facts import ReportFacts
from proctor.report.html import page as page_module
from proctor.report.html._context import bar_width
from proctor.report.html.page import MAX_BYTES, columns, data_block, environment, render_page
from proctor.report.html.trial_data import cut, harm_first
from proctor.runs.plan_order import row_order
from proctor.runs.run import Run
from proctor.runs.trial import Trial
from proctor.sanitize import visible

LIMIT = 3_000_000


class Reader(HTMLParser):
    """What a parser makes of some markup."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(), st.text())
def test_text_never_becomes_markup(inside: str, attribute: str) -> None:
    """R-Q5: whatever a text is, a parser reads one element, one attribute and that text."""
    reader = Reader()
    template = environment().from_string('<p title="{{ attribute }}">{{ inside }}</p>')
    reader.feed(template.render(inside=inside, attribute=attribute))
    reader.close()
    assert reader.tags == ["p"]
    assert reader.text == visible(inside)
    assert reader.attributes == [("title", visible(attribute))]


@given(st.text())
def test_every_character_can_be_seen(text: str) -> None:
    """R-Q5: no control and no turning mark is left; what can be seen is as it was."""
    shown = visible(text)
    assert not re.search(
        "[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b\ufeff]", shown
    )
    assert visible(shown) == shown
    if text.isprintable() and text.isascii():
        assert shown == text


def rows_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows from columns, as the scripts of the page read them."""
    names = list(table)
    read = {
        name: table[name]
        if isinstance(table[name], list)
        else [table[name]["words"][at] for at in table[name]["at"]]
        for name in names
    }
    return [dict(zip(names, row, strict=True)) for row in zip(*read.values(), strict=True)]


CELLS = st.tuples(
    st.text(max_size=5) | st.none(), st.integers(-9, 9), st.floats(-1e6, 1e6) | st.none()
)


@given(st.lists(CELLS, max_size=20))
def test_columns_lose_nothing_but_digits(rows: list[tuple[Any, ...]]) -> None:
    """R-Q3: a table reads back as it was, numbers to four digits after the point."""
    found = rows_of(json.loads(json.dumps(columns(("a", "b", "c"), rows))))
    assert [(row["a"], row["b"]) for row in found] == [row[:2] for row in rows]
    for row, (_, _, number) in zip(found, rows, strict=True):
        assert row["c"] == (None if number is None else pytest.approx(number, abs=1e-4))


@given(st.text())
def test_no_text_ends_a_block_of_data(text: str) -> None:
    """R-Q5: `</script>` and `<!--` cannot be written inside the data."""
    clean = text.encode("utf-8", "replace").decode()
    made = data_block("x", {"said": f"</script><!--<script>{clean}"})
    inner = made.removeprefix('<script type="application/json" id="data-x">')
    inner = inner.removesuffix("</script>")
    assert "<" not in inner
    assert json.loads(inner) == {"said": f"</script><!--<script>{clean}"}


def test_a_bar_is_never_wider_than_its_ground() -> None:
    """R-Q3: shares outside 0..1 are drawn at the ends, an unknown one not at all."""
    assert [bar_width(share) for share in (7.0, 1.0, 0.5, 0.0, -2.0)] == [
        "100", "100", "50", "0", "0",
    ]  # fmt: skip
    drawn = environment().from_string('{% from "macros.html" import bar %}{{ bar(width, "bad") }}')
    assert 'width="100" height="8" rx="1" class="fill bad"' in drawn.render(width=bar_width(7.0))
    assert drawn.render(width=bar_width(None)).strip() == ""


def test_what_is_cut_says_how_much() -> None:
    """R-Q3: no text is shortened silently."""
    assert cut("abcdef", 4) == "abcd… (2 more characters)"
    assert cut("abcd", 4) == "abcd"


def test_harm_comes_first_and_every_cell_before_a_second() -> None:
    """R-Q3: when not all traces fit, each failing cell is shown before any is shown twice."""
    ended = [
        (status, case)
        for case, status in (
            ("x", "passed"),
            ("y", "hard_fail"),
            ("z", "hard_fail"),
            ("w", "failed"),
        )
        for _ in range(2)
    ]
    order = [(ended[at][1], at % 2) for at in harm_first(ended)]
    assert order == [
        ("y", 0), ("z", 0), ("y", 1), ("z", 1), ("w", 0), ("w", 1), ("x", 0), ("x", 1),
    ]  # fmt: skip


def test_a_huge_run_lists_its_worst_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-Q3: what cannot be listed is counted, and it is never what went wrong."""
    run = Run(make_run(tmp_path / "made" / "2026-05-28_001", cases=10, trials=5))
    facts = ReportFacts(run)
    failed = sum(row.status != "passed" for row in facts.rows)
    monkeypatch.setattr(page_module, "MAX_ROWS", failed + 3)
    made = render_page(run, facts, with_charts=False)
    rows = rows_of(json.loads(block(made.text, "trials")))
    assert len(rows) == failed + 3
    assert sum(row["status"] == "passed" for row in rows) == 3
    assert f"This page lists {failed + 3}, failing ones first" in made.text


def block(page: str, name: str) -> str:
    found = re.search(rf'<script type="[a-z/]+" id="data-{name}">([^<]*)</script>', page)
    assert found is not None, name
    return found[1]


def unpacked(page: str, name: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(block(page, name))))


def test_ten_thousand_trials_stay_below_three_megabytes(tmp_path: Path) -> None:
    """R-Q3: all are listed, failing ones have their traces, and the page says what is left out."""
    folder = make_run(
        tmp_path / "made" / "2026-05-28_001",
        agents=("alpha", "beta", "gamma", "delta"),
        cases=500,
        trials=5,
        pass_rates=(0.99, 0.95, 0.9, 0.8),
    )
    run = Run(folder)
    made = render_page(run, ReportFacts(run))
    assert made.size <= MAX_BYTES < LIMIT
    trials = rows_of(json.loads(block(made.text, "trials")))
    assert len(trials) == 10_000
    contents = "\n".join(made.inside)
    found = re.search(r"([\d,]+) of 10,000 traces, .*; the others are in (.*)/traces", contents)
    assert found is not None
    assert found[2] == str(folder)
    with_trace, first_block = 0, {}
    for at in range(1 + max(row["block"] for row in trials if row["block"] is not None)):
        held = unpacked(made.text, f"details-{at}")
        first_block[at] = held
        with_trace += sum("spans" in one for one in held)
    assert with_trace == int(found[1].replace(",", ""))
    assert 1_000 < with_trace < 10_000
    failing = [row for row in trials if row["status"] == "hard_fail"]
    assert failing
    assert all("spans" in first_block[row["block"]][row["place"]] for row in failing)


def test_each_row_leads_to_its_own_trial(tmp_path: Path) -> None:
    """R-Q3: the details of a row are those of the trial it names."""

    def say_who(trial: Trial, _rng: object) -> None:
        trial.answer = f"{trial.case}/{trial.agent}/{trial.index}"

    run = Run(make_run(tmp_path / "made" / "2026-05-28_001", cases=7, change=say_who))
    page = render_page(run, ReportFacts(run), with_charts=False).text
    rows = rows_of(json.loads(block(page, "trials")))
    assert len(rows) == 42
    for row in rows:
        held = unpacked(page, f"details-{row['block']}")[row["place"]]
        assert held["answer"] == f"{row['case']}/{row['arm']}/{row['repeat']}"
    assert [t.case for t in sorted(run.trials(), key=row_order)] == [row["case"] for row in rows]


def test_a_damaged_trace_file_costs_its_traces_only(tmp_path: Path) -> None:
    """R-Q3 R-R9: the report is made all the same, and says what could not be read."""
    folder = make_run(tmp_path / "made" / "2026-05-28_001")
    (segment,) = (folder / "traces").iterdir()
    segment.write_bytes(b"x" * segment.stat().st_size)
    run = Run(folder)
    made = render_page(run, ReportFacts(run), with_charts=False)
    assert "24 traces could not be read back." in made.inside
    assert any(line.startswith("0 of 24 traces") for line in made.inside)
    assert "All is well." in json.dumps(unpacked(made.text, "details-0"))


def test_styles_and_charts_share_their_colours(root: Path) -> None:
    """R-Q4: a status has one colour, in the page and in its charts, in either theme."""
    css = (root / "src/proctor/report/html/theme.css").read_text(encoding="utf-8")
    for at, theme in enumerate(("light", "dark")):
        pairs = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", css)
        set_to = {name: colours[at] for name, *colours in pairs}
        ranges = config(theme)["range"]  # type: ignore[arg-type]
        assert [set_to[name] for name in STATUSES] == ranges["ordinal"]
        assert [set_to[f"rate-{at}"] for at in range(5)] == ranges["diverging"]
