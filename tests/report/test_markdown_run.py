"""A run as Markdown and in a terminal: the numbers of the page, no markup of an agent."""

import random
import re
from pathlib import Path

import msgspec
import pytest
from report_runs import HOSTILE, check, make_run

from proctor.formatting import money, percent
from proctor.report import console
from proctor.report._markdown import render
from proctor.report.console_results import render_groups
from proctor.report.facts import ReportFacts
from proctor.report.figures import ends, places
from proctor.report.html.page import render_page
from proctor.results import query
from proctor.runs.run import Run
from proctor.runs.trial import Trial, TrialError, TrialStatus


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run") / "made" / "2026-05-28_001"
    return Run(make_run(folder, cases=9, trials=5, pass_rates=(1.0, 0.3)))


def plain_words(text: str) -> str:
    """A text without what each form adds: escapes of Markdown, tags and entities of HTML."""
    bare = re.sub(r"<[^>]+>", " ", text).replace("\\", "")
    return re.sub(r"\s+", " ", bare.replace("|", " ").replace("&#x27;", "'"))


def test_every_form_says_the_same_numbers(run: Run) -> None:
    """R-Q5: HTML, Markdown and console agree, down to the rounding."""
    facts = ReportFacts(run)
    forms = {
        "html": plain_words(render_page(run, facts, with_charts=False).text),
        "markdown": plain_words(render(facts)),
        "console": plain_words(re.sub(r"\x1b\[\d+m", "", console.render(facts))),
    }
    for name, text in forms.items():
        assert facts.headline in text, name
        for row in facts.board.rows:
            rate = f"{places(row.best, row.worst)} {percent(row.pass_rate.value)}"
            assert f"{row.name} {rate} {ends('pass_rate', row.pass_rate)}" in text, name
            assert f"{row.passes}/{row.trials}" in text, name
        for failure in facts.failures:
            share = rf"{failure.count} of {failure.of} (judged )?trials \({percent(failure.rate)}\)"
            assert re.search(share, text), name


def test_the_leader_is_named_only_when_tests_tell(run: Run, tmp_path: Path) -> None:
    """R-Q3: ahead only where the difference is significant."""
    text = render(ReportFacts(run))
    assert "careful is significantly better than all others on 9 shared cases" in text
    few = Run(make_run(tmp_path / "few" / "2026-05-28_001", cases=2, pass_rates=(1.0, 0.7)))
    assert "No significant difference between careful and hasty on 2 shared cases" in render(
        ReportFacts(few)
    )


def test_a_baseline_shows_what_moved(run: Run, tmp_path: Path) -> None:
    """R-Q3 R-Q2: the verdict against the baseline, agent by agent, and the cases behind it."""
    worse = Run(
        make_run(tmp_path / "made" / "2026-05-29_001", cases=9, trials=5, pass_rates=(0.3, 0.3))
    )
    facts = ReportFacts(worse, baseline=run)
    text = render(facts)
    page = plain_words(render_page(worse, facts, with_charts=False).text)
    assert "### Since made/2026\\-05\\-28\\_001: REGRESSION" in text
    assert "**careful: REGRESSION.**" in text
    moved = [line for line in text.splitlines() if re.match(r"\| case\\-\d+ \| 5/5 \| \d/", line)]
    assert moved
    case, before, now, change = [part.strip() for part in moved[0].split("|")[1:5]]
    assert plain_words(f"{case} {before} {now} {change}") in page
    assert "REGRESSION" in page
    assert "REGRESSION" in console.render(facts)


def test_cases_that_moved_and_are_not_told_are_counted(tmp_path: Path) -> None:
    """R-Q3: every form says how many moved beyond those it tells."""
    before, now = (
        Run(make_run(tmp_path / "made" / f"2026-05-28_00{n}", cases=20, pass_rates=(rate,)))
        for n, rate in enumerate((1.0, 0.0))
    )
    facts = ReportFacts(now, baseline=before)
    assert "8 cases moved less." in render(facts)
    assert "8 cases moved less." in plain_words(render_page(now, facts, with_charts=False).text)


def test_an_agent_cannot_write_markdown(tmp_path: Path) -> None:
    """R-Q5: no HTML, no link, no table row, no mention comes from what an agent said."""
    said = f"{HOSTILE} [x](https://example.invalid) | a | b |\n# head @somebody ![i](x) `code`"

    def attack(trial: Trial, _rng: object) -> None:
        trial.status, trial.score = TrialStatus.HARD_FAIL, 0.0
        trial.checks = (check("lacks", False, said, blocking=True),)

    run = Run(make_run(tmp_path / "made" / "2026-05-28_001", change=attack, name=said, cases=1))
    text = render(ReportFacts(run))
    assert "<script" not in text
    assert "](http" not in text
    assert "@somebody" not in text
    assert "\n# head" not in text
    assert "\u202e" not in text
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert len(heads) == 4  # ours: title, leaderboard, what broke, cases


def test_what_could_not_be_judged_is_said_apart(tmp_path: Path) -> None:
    """R-Q1: infrastructure errors are neither passes nor failures in any form."""

    def break_down(trial: Trial, _rng: object) -> None:
        if trial.agent == "hasty":
            trial.status, trial.score, trial.checks = TrialStatus.INFRA_ERROR, None, ()
            trial.error = TrialError("ConnectError", f"no server {trial.index % 2}")

    run = Run(make_run(tmp_path / "made" / "2026-05-28_001", change=break_down, pass_rates=(1.0,)))
    facts = ReportFacts(run)
    text = render(facts)
    assert "Not judged\\: 12 infrastructure errors." in text
    row = next(line for line in text.splitlines() if line.startswith("| hasty |"))
    assert [part.strip() for part in row.split("|")[2:6]] == ["–", "–", "–", "–"]
    page = plain_words(render_page(run, facts, with_charts=False).text)
    assert "Not judged 12" in page
    # Every form gives the reasons, the most common first, with a trial of each.
    for words in (text.replace("\\", ""), page, console.render(facts)):
        assert "8 trials: ConnectError in the agent: no server 0 (" in words
        assert "4 trials: ConnectError in the agent: no server 1 (" in words


def test_colour_marks_the_verdict_and_no_case_that_is_called_like_it(run: Run) -> None:
    """R-Q5: a case named after a verdict stays plain; its verdict has the colour."""
    first = run.cells[0]
    verdict = first.verdict.value
    named = msgspec.structs.replace(first, case=verdict, agent="an agent")
    longer = msgspec.structs.replace(first, case=f"{verdict}, and a long name", agent="an agent")
    for text in console.cell_table([named, longer])[1:]:
        before, _, painted = text.partition("\x1b[")
        assert before.strip().startswith(verdict)
        assert before.rstrip().endswith("an agent")
        assert verdict in painted


def test_a_cost_that_leaves_calls_out_says_so_everywhere(tmp_path: Path) -> None:
    """R-Q5 R-A4: with calls of unknown price every cost is a lower bound, in every form."""

    def unpriced(trial: Trial, _rng: random.Random) -> None:
        trial.unpriced_calls = 1

    folder = tmp_path / "results" / "made" / "2026-05-28_001"
    run = Run(make_run(folder, cases=2, agents=("only",), change=unpriced))
    facts = ReportFacts(run)
    known = run.totals.cost_usd
    assert known is not None
    page = render_page(run, facts, with_charts=False).text
    tiles = re.search(r"<dt>Cost</dt><dd><strong>([^<]*)</strong>", page)
    assert tiles is not None
    assert tiles[1] == f"≥ {money(known)}"
    groups = query(results=tmp_path / "results").group_by("agent")
    texts = {
        "console": console.render(facts),
        "markdown": render(facts),
        "page": page[page.index('id="cost"') : page.index('id="timeline"')],
        "groups": render_groups(["agent"], groups.rows),
    }
    for name, text in texts.items():
        costs = re.findall(r"(.)\s?\\?\$\d", text)
        assert costs, name
        assert set(costs) == {"≥"}, f"{name}: {costs}"


def test_trials_that_the_checks_did_not_judge_are_counted(tmp_path: Path) -> None:
    """R-Q1, R-Q3: they are in the page's column of trials that were not judged and among those that
    the cost per trial is over, as on the leaderboard; every form says why there is no interval."""

    def unobserved(trial: Trial, _rng: object) -> None:
        if trial.agent == "hasty" and trial.index:
            trial.status, trial.category = TrialStatus.NOT_JUDGED, "unobserved"

    run = Run(make_run(tmp_path / "made" / "2026-05-28_001", change=unobserved))
    facts = ReportFacts(run)
    (row,) = [row for row in facts.board.rows if row.name == "hasty"]
    assert (row.trials, row.not_judged) == (4, 8)
    assert row.cost_usd is not None
    assert row.cost_per_trial_usd == pytest.approx(row.cost_usd / 12)
    page = plain_words(render_page(run, facts, with_charts=False).text)
    assert f"{row.passes}/4 8 " in page
    assert f"{money(row.cost_usd)} {money(row.cost_usd / 12)} " in page
    why = "8 of 12 trials were not judged, but failures among them would have been"
    for form in (page, render(facts).replace("\\", ""), console.render(facts)):
        assert why in form
