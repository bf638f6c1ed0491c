"""The report of a large run in a real browser: long names, many cases, a reference run."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browser, opened, violations
from report_runs import HOSTILE, make_run

from proctor.report.facts import ReportFacts
from proctor.report.figures import gate_line
from proctor.report.html.page import render_page
from proctor.runs.run import Run

AGENTS = ("openai/gpt-6-mini", "anthropic/claude-sonnet-5-20260101", "hasty")

DIFF = (
    f"--- a/shop.py\n+++ b/shop.py\n@@ -1,2 +1,2 @@\n def total(items):\n-    return 0\n"
    f"+    return sum(items)  # {HOSTILE[:40]}\n"
)
WORKSPACE = {
    "paths": {"shop.py": "changed", f"{HOSTILE[:40]}.txt": "added"},
    "changed": 2,
    "added": 1,
    "removed": 1,
    "diff": DIFF,
}


def long_id(at: int) -> str:
    return f"customer-support/returns-and-refunds/very-long-scenario-name-{at:03d}-with-suffix"


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of 40 cases × 3 agents × 4 trials, compared with an earlier run."""
    folder = tmp_path_factory.mktemp("large")
    before, after = (
        make_run(
            folder / "made" / f"2026-05-28_00{number}",
            agents=AGENTS,
            cases=40,
            trials=4,
            pass_rates=rates,
            case_id=long_id,
            workspace=WORKSPACE,
        )
        for number, rates in ((1, (0.95, 0.8, 0.6)), (2, (0.9, 0.5, 0.62)))
    )
    run = Run(after)
    page = render_page(run, ReportFacts(run, baseline=Run(before)))
    (folder / "report.html").write_text(page.text, encoding="utf-8")
    return folder / "report.html"


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_rule_of_axe_is_broken(running: Any, large: Path, theme: str) -> None:
    """R-Q5: the page, its tables and a trial, in both themes."""
    with opened(running, large, theme=theme, width=1280) as (page, seen):
        assert violations(page) == []
        for button in page.locator("[data-show=table]").all():
            button.click()
        assert violations(page) == []
        page.locator("#trial-list tbody a").first.click()
        page.locator("dialog[open] .diff").wait_for()
        assert violations(page) == []
        assert seen.problems == []


@pytest.mark.parametrize("width", [1440, 1280, 390])
def test_nothing_is_clipped(running: Any, large: Path, width: int) -> None:
    """R-Q3: on a laptop every table is whole; on a phone wide ones scroll in their own box."""
    with opened(running, large, width=width) as (page, _):
        assert page.evaluate("document.documentElement.scrollWidth") == width
        for button in page.locator("[data-show=table]").all():
            button.click()
        for folded in page.locator(".moves > summary").all():
            folded.click()
        wide = page.evaluate(
            "[...document.querySelectorAll('.scroll')]"
            ".filter((it) => it.scrollWidth > it.clientWidth).map((it) => it.ariaLabel)"
        )
        assert wide == [] or width == 390
        changes = page.locator(".change .scroll").first
        assert changes.evaluate("it => it.scrollWidth <= it.clientWidth")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_link_leads_to_the_heading_of_its_section(running: Any, large: Path, width: int) -> None:
    """R-Q3: also where charts above the section are drawn only now."""
    pytest.importorskip("vl_convert", reason="the extra charts is not installed")
    with opened(running, large, width=width) as (page, seen):
        for name in ("cost", "trials", "cells", "leaderboard", "timeline"):
            page.locator(f".bar-top a[href='#{name}']").click()
            page.wait_for_selector(f"html[data-placed='#{name}']", state="attached")
            top = page.locator(f"#{name}-title").evaluate("it => it.getBoundingClientRect().top")
            end = page.evaluate("scrollY + innerHeight >= document.body.scrollHeight - 2")
            assert 30 <= top <= 120 or (end and top > 0), (name, top)
        assert seen.problems == []
    # The same where the address names the section from the start.
    context = running.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.goto(f"{large.as_uri()}#timeline")
    page.wait_for_selector("html[data-placed='#timeline']", state="attached")
    top = page.locator("#timeline-title").evaluate("it => it.getBoundingClientRect().top")
    assert 30 <= top <= 900
    context.close()


def test_names_with_slashes_and_changed_cases_lead_to_their_trials(
    running: Any, large: Path
) -> None:
    """R-Q3 R-R10: an agent `openai/gpt` is one agent; a changed case leads to its own trials."""
    with opened(running, large) as (page, _):
        samples = page.locator(".samples a").all_inner_texts()
        assert samples
        for words in samples:
            case, agent = re.match(r"(.+) × (.+), trial", words).groups()  # type: ignore[union-attr]
            assert agent in AGENTS
            assert case.endswith("-with-suffix")
        page.locator(".moves > summary").first.click()  # folded, since there are several agents
        link = page.locator(".change a[data-case]").first
        link.click()
        listed = page.locator("#trial-list tbody tr")
        assert set(listed.locator("th").all_inner_texts()) == {link.inner_text()}
        assert set(listed.locator("td").nth(0).all_inner_texts()) <= set(AGENTS)
        assert listed.count() == 4


def test_a_case_whose_id_contains_another_is_not_listed_with_it(
    running: Any, tmp_path: Path
) -> None:
    """R-Q3: `case-1` leads to its own trials, not to those of `case-10`."""
    run = Run(
        make_run(tmp_path / "made" / "2026-05-28_001", cases=11, case_id=lambda at: f"case-{at}")
    )
    file = tmp_path / "report.html"
    file.write_text(render_page(run, ReportFacts(run), with_charts=False).text, encoding="utf-8")
    with opened(running, file) as (page, _):
        page.locator("table.heat button[data-case=case-1]").click()
        names = page.locator("#trial-list tbody th")
        assert set(names.all_inner_texts()) == {"case-1"}
        page.get_by_label("Case contains").press("End")
        page.get_by_label("Case contains").press_sequentially("0")
        assert set(names.all_inner_texts()) == {"case-10"}


def test_an_inconclusive_gate_says_why_in_words(tmp_path: Path) -> None:
    """R-S4: `0 points` and `INCONCLUSIVE` together do not contradict each other."""
    runs = [Run(make_run(tmp_path / "made" / f"2026-05-28_00{n}")) for n in (1, 2)]
    since = ReportFacts(runs[1], baseline=runs[0]).since
    assert since is not None
    words = {arm.gate.verdict: gate_line(arm.gate) for arm in since.arms}
    assert words["INCONCLUSIVE"].startswith("0 points")
    assert "neither shows nor rules out a regression" in words["INCONCLUSIVE"]
    assert "a drop of 5 points or more counts as one" in words["INCONCLUSIVE"]


def test_cases_as_pass_rates_scores_and_bars(running: Any, large: Path) -> None:
    """R-Q4: three charts of one table; a cut label names its case under the pointer."""
    pytest.importorskip("vl_convert", reason="the extra charts is not installed")
    with opened(running, large, width=1280) as (page, seen):
        figure = page.locator(".figure[data-chart=heatmap]")
        figure.scroll_into_view_if_needed()
        pictures = set[str]()
        for show, name in (("chart", "heatmap"), ("scores", "scores"), ("bars", "bars")):
            figure.locator(f"[data-show={show}]").click()
            page.wait_for_selector(f"[data-chart=heatmap][data-drawn={name}]")
            pictures.add(figure.locator("canvas").evaluate("it => it.toDataURL()"))
            with page.expect_download() as saved:
                figure.locator("[data-save=svg]").click()
            assert saved.value.suggested_filename == f"{name}.svg"
            drawn = Path(saved.value.path()).read_text(encoding="utf-8")
            labels = re.findall(r">([^<>]*-with-suffix)<", drawn)
            assert len(set(labels)) == 40
        assert len(pictures) == 3
        figure.locator("[data-show=chart]").click()
        page.wait_for_selector("[data-chart=heatmap][data-drawn=heatmap]")
        box = figure.locator("canvas").bounding_box()
        page.mouse.move(box["x"] + 100, box["y"] + 60)
        shown = page.locator("#vg-tooltip-element.visible")
        shown.wait_for()
        assert shown.inner_text().startswith("customer-support/returns-and-refunds/very-long")
        assert seen.problems == []


def test_every_table_can_be_saved(running: Any, tmp_path: Path) -> None:
    """R-Q4: as CSV without formulas and as LaTeX, with every row of the list of trials."""
    run = Run(
        make_run(
            tmp_path / "made" / "2026-05-28_001",
            agents=("50 % & more_$", "=cmd()"),
            cases=18,
            case_id=lambda at: f'=id "{at}", {HOSTILE[:20]}',
        )
    )
    file = tmp_path / "report.html"
    file.write_text(render_page(run, ReportFacts(run), with_charts=False).text, encoding="utf-8")
    saved: dict[str, str] = {}
    tables = 0
    # A page for each format: Chromium drops downloads beyond ten in a second.
    for form in ("csv", "tex"):
        with opened(running, file) as (page, seen):
            buttons = page.locator(f"main [data-table={form}]").all()
            tables = page.locator("main .scroll > table").count()
            assert len(buttons) == tables < 10
            for button in buttons:
                with page.expect_download() as download:
                    button.click()
                text = Path(download.value.path()).read_bytes().decode()
                saved[download.value.suggested_filename] = text
            assert seen.problems == []
    assert len(saved) == 2 * tables
    for name, text in saved.items():
        if name.endswith(".csv"):
            rows = list(csv.reader(io.StringIO(text)))
            assert len({len(row) for row in rows}) == 1
            assert not any(cell.startswith("=") for row in rows for cell in row)
        else:
            lines = [line for line in text.splitlines() if line.endswith("\\\\")]
            columns = len(re.match(r"\\begin\{tabular\}\{([lr]+)\}", text)[1])  # type: ignore[index]
            assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {columns - 1}
            assert text.rstrip().endswith(r"\end{tabular}")
    assert len(saved["trials.csv"].splitlines()) == 109
    assert r"50 \% \& more\_\$" in saved["leaderboard.tex"]


def test_a_trial_shows_what_changed_in_its_workspace(running: Any, large: Path) -> None:
    """R-N1 R-Q3: files and lines, coloured by their sign; nothing in them is markup."""
    with opened(running, large) as (page, seen):
        page.locator("#trial-list tbody a").first.click()
        page.locator("dialog[open] .diff").wait_for()
        assert "2 files, 1 lines added, 1 removed" in page.locator("dialog").inner_text()
        assert page.locator(".paths li").all_inner_texts()[0] == "shop.py changed"
        assert page.locator(".diff .removed").inner_text().strip() == "-    return 0"
        assert "<script>" in page.locator(".diff .added").inner_text()
        assert page.locator(".diff .file").count() == 2
        assert page.evaluate("window.pwned") is None
        assert seen.problems == []
