"""The HTML report in a real browser: what a reader sees, and what cannot happen to them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from browser import browser, contrast, opened
from report_runs import HOSTILE, check, make_run

from proctor.report import charts
from proctor.report.facts import ReportFacts
from proctor.report.html.page import render_page
from proctor.runs.run import Run
from proctor.runs.trial import Trial, TrialStatus

TEXT_ON_GROUND = (
    "h1",
    ".note",
    ".verdict",
    ".failures .chip.bad",
    ".failures .chip.soft",
    ".tiles dt",
    "nav a",
    "td.r0, td.r2, td.r3",
    "td.r10",
    "#trial-list tbody a",
)


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as started:
        yield started


def written(run: Path, target: Path, **options: Any) -> Path:
    found = Run(run)
    target.write_text(render_page(found, ReportFacts(found), **options).text, encoding="utf-8")
    return target


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    return written(make_run(folder / "made" / "2026-05-28_001"), folder / "report.html")


@pytest.fixture(scope="module")
def plain_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    run = make_run(folder / "made" / "2026-05-28_001")
    return written(run, folder / "report.html", with_charts=False)


def scroll_through(page: Any) -> None:
    """See every part, so that every chart is drawn."""
    for figure in page.locator(".figure[data-chart]").all():
        figure.scroll_into_view_if_needed()


def charts_drawn(page: Any) -> int:
    scroll_through(page)
    shown = page.locator(".figure:has(.chart:not([hidden]))")
    for at in range(shown.count()):
        shown.nth(at).locator("canvas").wait_for()
    return shown.count()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_makes_no_error_and_no_request(running: Any, page_file: Path, theme: str) -> None:
    """R-Q3 R-Q5: charts included, nothing is fetched and nothing is logged."""
    pytest.importorskip("vl_convert", reason="the extra charts is not installed")
    with opened(running, page_file, theme=theme) as (page, seen):
        assert charts_drawn(page) >= 5  # all but the leaderboard, which begins as a table
        page.locator("[data-chart=leaderboard] [data-show=chart]").click()
        page.locator("[data-chart=leaderboard] canvas").wait_for()
        page.locator("#trial-list tbody a").first.click()
        page.locator("dialog[open] .spans").wait_for()
        assert seen.problems == []
        assert seen.requests == [page_file.as_uri()]


def test_without_the_charts_extra_tables_say_it_all(running: Any, plain_file: Path) -> None:
    """R-Q3 R-Q4: the same page without Vega; one line says how to get charts."""
    with opened(running, plain_file) as (page, seen):
        assert seen.problems == []
        assert page.locator("canvas").count() == 0
        assert charts.INSTALL in page.locator(".hint").inner_text()
        for name in ("heatmap", "difficulty", "histogram", "cost", "timeline"):
            assert page.locator(f".figure[data-chart={name}] table").is_visible(), name
        heat = page.locator("table.heat tbody tr").first
        shown = heat.locator("td").first.inner_text()
        assert re.fullmatch(r"\d/\d · \d\.\d\d( hard fail)?", shown)


def hostile_run(folder: Path) -> Path:
    def attack(trial: Trial, _rng: object) -> None:
        trial.status = TrialStatus.HARD_FAIL
        trial.checks = (check("lacks", False, f"reason {HOSTILE}", blocking=True),)
        trial.score = 0.0

    return make_run(
        folder / "made" / "2026-05-28_001",
        agents=(f"agent {HOSTILE}",),
        cases=2,
        trials=1,
        answer=f"answer {HOSTILE}",
        change=attack,
        name=f"name {HOSTILE}",
        case_id=lambda at: f"case {at} {HOSTILE}",
    )


def test_what_an_agent_said_stays_text(running: Any, tmp_path: Path) -> None:
    """R-Q5: markup, scripts, braces, NUL and turning marks are shown, in every place, and do
    nothing."""
    file = written(hostile_run(tmp_path), tmp_path / "report.html")
    with opened(running, file) as (page, seen):
        if charts.available():
            charts_drawn(page)
        whole = page.locator("body").inner_text()
        for said in ("name", "agent", "reason"):
            assert f"{said} <script>window.pwned = 1</script></style></textarea>" in whole
        page.locator("#trial-list tbody a").first.click()
        page.locator("dialog[open] .spans").wait_for()
        trial = page.locator("dialog").inner_text()
        assert "answer <script>window.pwned = 1</script></style></textarea>" in trial
        for part in ("<!--{data}-->", "{{title}}", "${7*7}", "javascript:window", "&amp;", "]]>"):
            assert part in trial, part
        assert "␀" in trial
        assert "[U+202E]evil[U+202C]" in trial
        assert page.evaluate("window.pwned") is None
        assert page.locator("img, textarea").count() == 0
        assert page.locator("[href^='javascript:']").count() == 0
        assert seen.problems == []
        assert seen.requests == [file.as_uri()]


def test_the_policy_stops_what_is_not_ours(running: Any, page_file: Path) -> None:
    """R-Q5: a second guard: a script or a request put into the page does not work."""
    with opened(running, page_file) as (page, seen):
        page.evaluate(
            "() => { const s = document.createElement('script');"
            " s.textContent = 'window.pwned = 1'; document.head.append(s); }"
        )
        assert page.evaluate("window.pwned") is None
        answer = page.evaluate("fetch('https://example.invalid/').then(() => 'sent', () => 'no')")
        assert answer == "no"
        assert all("Content Security Policy" in said for said in seen.problems)
        assert len(seen.problems) >= 2


def test_every_control_works_by_keyboard(running: Any, page_file: Path) -> None:
    """R-Q5: skip link, theme, filters, pages, a trial, its steps, and the way back."""
    with opened(running, page_file) as (page, seen):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"

        page.locator("#theme").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.keyboard.press("Space")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"

        table = page.locator("[data-chart=histogram] [data-show=table]")
        if table.count():
            table.focus()
            page.keyboard.press("Enter")
            assert table.get_attribute("aria-pressed") == "true"
            assert page.locator("[data-chart=histogram] table").is_visible()

        page.locator(".filters select").nth(1).focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert "passed" not in page.locator("#trial-list tbody .status").all_inner_texts()

        page.locator("#trial-list tbody a").first.focus()
        page.keyboard.press("Enter")
        page.locator("dialog[open] .spans").wait_for()
        steps = page.locator("[role=treeitem]")
        steps.locator("xpath=self::*[@tabindex='0']").focus()
        page.keyboard.press("Home")
        assert steps.nth(0).get_attribute("aria-selected") == "true"
        page.keyboard.press("ArrowDown")
        assert steps.nth(1).get_attribute("aria-selected") == "true"
        page.keyboard.press("ArrowLeft")
        assert steps.nth(0).get_attribute("aria-selected") == "true"
        page.evaluate("document.querySelector('.trial-head').dataset.seen = 'before'")
        page.get_by_role("button", name="Next").nth(-1).focus()
        page.keyboard.press("Enter")
        page.wait_for_function(
            "() => !document.querySelector('.trial-head').dataset.seen"
            " && document.activeElement.closest('.moves')"
        )
        assert page.evaluate("document.activeElement.textContent") in ("Next", "Close")
        page.keyboard.press("Escape")
        assert page.locator("dialog[open]").count() == 0
        page.wait_for_function("() => !location.hash.startsWith('#trial-')")
        assert seen.problems == []


def test_a_cell_of_the_heatmap_leads_to_its_trials(running: Any, plain_file: Path) -> None:
    """R-Q3: from the summary to the trials behind it."""
    with opened(running, plain_file) as (page, _):
        case = page.locator("table.heat tbody button").first
        name = case.inner_text()
        case.focus()
        page.keyboard.press("Enter")
        listed = page.locator("#trial-list tbody th")
        assert set(listed.all_inner_texts()) == {name}
        assert listed.count() == 6  # two agents, three trials
        page.locator("table.heat tbody tr").first.locator("td").nth(1).click()
        assert listed.count() == 3


def test_a_failure_leads_to_the_trial_that_shows_it(running: Any, plain_file: Path) -> None:
    """R-Q3 R-R10: samples of ranked failures open their trial; the address can be sent on."""
    with opened(running, plain_file) as (page, _):
        link = page.locator(".samples a").first
        words, address = link.inner_text(), link.get_attribute("href")
        link.click()
        page.locator("dialog[open] .spans").wait_for()
        case, agent = re.match(r"(.+) × (.+), trial", words).groups()  # type: ignore[union-attr]
        assert page.locator("#trial-title").inner_text() == f"{case} × {agent}"
        assert "the answer lacks 'well'" in page.locator("dialog").inner_text()
        broken = page.locator("[role=treeitem][aria-selected=true]")
        assert "search (error)" in broken.inner_text()  # the step that went wrong is chosen
        assert "LookupError" in page.locator(".span-detail").inner_text()
        page.goto(f"{plain_file.as_uri()}{address}")
        page.reload()
        page.locator("dialog[open] .spans").wait_for()
        assert page.locator("#trial-title").inner_text() == f"{case} × {agent}"


def test_a_trial_opens_at_the_step_a_failed_check_names(running: Any, tmp_path: Path) -> None:
    """R-Q3 R-R10: the step is marked and chosen, in sight, and the check has a way to it."""

    def blame(trial: Trial, _rng: object) -> None:
        steps = (f"{40:016x}", f"{41:016x}")
        named = msgspec.structs.replace(check("few_calls", False, "too many"), span_ids=steps)
        trial.status, trial.checks = TrialStatus.HARD_FAIL, (named,)

    run = make_run(tmp_path / "made" / "2026-05-28_001", cases=1, steps=60, change=blame)
    with opened(running, written(run, tmp_path / "report.html", with_charts=False)) as (page, seen):
        page.locator(".samples a").first.click()
        page.locator("dialog[open] .spans").wait_for()
        chosen = page.locator("[role=treeitem][aria-selected=true]")
        assert chosen.evaluate("it => [...it.parentNode.children].indexOf(it)") == 39
        assert chosen.locator(".mark").count() == 1
        page.wait_for_function("() => document.querySelector('.spans').scrollTop > 0")
        ways = page.locator(".steps button")
        assert ways.all_inner_texts() == ["chat", "search"]
        ways.last.click()
        assert chosen.evaluate("it => [...it.parentNode.children].indexOf(it)") == 40
        assert seen.problems == []


@pytest.mark.parametrize("width", [360, 1200])
def test_long_names_keep_charts_in_their_place(running: Any, tmp_path: Path, width: int) -> None:
    """R-Q4: panels stay in sight, squares keep room, and a list of agents widens no page."""
    pytest.importorskip("vl_convert")
    agents = ("short", "an-agent-of-a-name-that-goes-on-and-on-and-on-for-ever-and-ever")
    run = make_run(
        tmp_path / "made" / "2026-05-28_001",
        agents=agents,
        case_id=lambda at: f"a-case-with-a-long-identifier-that-somebody-generated-{at:04d}",
    )
    with opened(running, written(run, tmp_path / "report.html"), width=width) as (page, seen):
        charts_drawn(page)
        for name in ("heatmap", "histogram"):
            figure = page.locator(f".figure[data-chart={name}]")
            room, drawn = figure.bounding_box(), figure.locator("canvas").bounding_box()
            assert drawn["width"] <= room["width"] + 1, name
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert seen.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast_in_both_themes(running: Any, plain_file: Path, theme: str) -> None:
    """R-Q5: at least 4.5 to 1 (WCAG AA), chips and coloured cells included."""
    with opened(running, plain_file, theme=theme) as (page, _):
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (theme == "light")
        low = {s: contrast(page, s) for s in TEXT_ON_GROUND if contrast(page, s) < 4.5}
        assert low == {}


def test_a_phone_shows_it_without_sideways_scrolling(running: Any, page_file: Path) -> None:
    """R-Q5: 360 pixels are enough; wide tables scroll in their own box."""
    with opened(running, page_file, width=360, height=740) as (page, seen):
        scroll_through(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        page.locator("#trial-list tbody a").first.click()
        page.locator("dialog[open] .spans").wait_for()
        assert page.evaluate("document.querySelector('dialog').scrollWidth") <= 360
        assert seen.problems == []


def test_without_javascript_the_verdict_still_stands(running: Any, page_file: Path) -> None:
    """R-Q3: mail viewers strip scripts; verdict, leaderboard and failures are plain HTML."""
    context = running.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert page.locator(".verdict").inner_text() == "✕ FAIL"
    assert page.locator("#leaderboard tbody tr").count() == 2
    assert page.locator(".failures > li").count() == 2
    assert page.locator("table.heat tbody tr").count() == 4
    assert "need JavaScript" in page.locator("#trials").inner_text()
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_prints_without_its_controls(running: Any, page_file: Path, theme: str) -> None:
    """R-Q5: on paper there is the report, dark on white, not the toolbar."""
    with opened(running, page_file, theme=theme) as (page, _):
        page.emulate_media(media="print", color_scheme=theme)
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
        assert page.locator("table.heat").is_visible() == (
            theme == "dark" or not charts.available()
        )
        for control in (".bar-top", ".filters", ".pager", ".tools"):
            assert not page.locator(control).first.is_visible(), control
        assert page.locator(".verdict").is_visible()
        assert page.pdf().startswith(b"%PDF")


def test_a_chart_can_be_saved(running: Any, page_file: Path) -> None:
    """R-Q4: PNG and SVG from the page itself, without a network."""
    pytest.importorskip("vl_convert", reason="the extra charts is not installed")
    with opened(running, page_file) as (page, seen):
        figure = page.locator(".figure[data-chart=heatmap]")
        figure.scroll_into_view_if_needed()
        figure.locator("canvas").wait_for()
        for form, begins in (("png", b"\x89PNG"), ("svg", b"<svg")):
            with page.expect_download() as saved:
                figure.locator(f"[data-save={form}]").click()
            assert saved.value.suggested_filename == f"heatmap.{form}"
            assert Path(saved.value.path()).read_bytes().startswith(begins)
        assert seen.problems == []


def never_judged(trial: Trial, _rng: object) -> None:
    trial.status, trial.score, trial.checks = TrialStatus.INFRA_ERROR, None, ()


def outside_the_plan(trial: Trial, _rng: object) -> None:
    trial.params, trial.axis_seed = {"temperature": trial.index % 2}, 3


ODD_RUNS: dict[str, dict[str, Any]] = {
    "no trial": {"trials": 0},
    "one of everything": {"agents": ("a",), "cases": 1, "trials": 1},
    "nothing judged": {"change": never_judged},
    "trials outside the plan": {"change": outside_the_plan},
}


@pytest.mark.parametrize("odd", ODD_RUNS)
def test_odd_runs_have_a_report_too(running: Any, tmp_path: Path, odd: str) -> None:
    """R-Q3: empty, tiny, broken or foreign: a page without an error, and no made-up figure."""
    file = written(make_run(tmp_path / "made" / "2026-05-28_001", **ODD_RUNS[odd]), tmp_path / "r")
    file = file.rename(tmp_path / "report.html")
    with opened(running, file) as (page, seen):
        if charts.available():
            charts_drawn(page)
        verdict = page.locator(".verdict").inner_text()
        rates = page.locator("#leaderboard tbody td:nth-child(3)").all_inner_texts()
        if odd in ("no trial", "nothing judged"):
            assert verdict == "? NOT JUDGED"
            assert set(rates) == {"–"}
        if odd == "one of everything":
            # One trial of one case says this much of that case, and no more.
            between = page.locator("#leaderboard tbody td:nth-child(3) small").inner_text()
            assert between == "[20.7 %, 100 %]"
        assert "NaN" not in page.locator("body").inner_text()
        assert "undefined" not in page.locator("body").inner_text()
        assert seen.problems == []
