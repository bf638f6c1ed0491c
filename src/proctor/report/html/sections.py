"""The sections of the page that stand without a script: verdict, leaderboard, failures, method.

Promise: every figure is in a real table or sentence here; charts and the look at single trials
are added on top by the scripts, never instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from proctor.report.figures import ends
from proctor.report.html.markup import Child, Html, bar, join, table, tag, whisker
from proctor.report.run_facts import ArmCells, ReportFacts, when
from proctor.report.run_words import (
    cost_line,
    error_lines,
    leading,
    not_judged,
    places,
    ranked_by,
    score,
)
from proctor.report.text import seconds
from proctor.results.leaderboard import Row
from proctor.runs.notes import Note
from proctor.runs.summary import FailureSample, RankedFailure
from proctor.words import DASH, at_least, money, percent, plural

MOST_FAILURES = 20
"""Ranked failures in the page; the rest matter less by construction and are in results.json."""

GATE_TONES = {
    "REGRESSION": "bad",
    "NO REGRESSION": "good",
    "INCONCLUSIVE": "odd",
    "NOT COMPARABLE": "odd",
}
"""How the verdict of a gate is coloured; the word says it too."""

_VERDICT_SIGNS = {"PASS": "✓", "FAIL": "✕", "NOT JUDGED": "?"}
_VERDICT_TONES = {"PASS": "good", "FAIL": "bad", "NOT JUDGED": "odd"}


def section(name: str, title: str, *content: Child, note: Child = None) -> Html:
    """A section with its heading, and a line that says how to read it."""
    told = None if note is None else tag("p", note, class_="note")
    heading = tag("h2", title, id=f"{name}-title")
    parts = (heading, told, *content)
    return tag("section", *parts, id=name, aria_labelledby=f"{name}-title")


def figure(name: str, plain: Html, *, first: str = "chart") -> Html:
    """A place for a chart, with the same as a table; `first` is what is shown at first."""
    return tag(
        "div",
        tag("div", class_="tools", role="group", aria_label=f"Show {name} as", hidden=True),
        tag("div", class_="chart", hidden=True),
        tag("div", plain, class_="plain"),
        class_="figure",
        data_chart=name,
        data_first=first,
    )


# -- the top -----------------------------------------------------------------------------------


def top(facts: ReportFacts) -> Html:
    """The verdict, in a word, in a sentence, and in five figures."""
    tone = _VERDICT_TONES[facts.verdict]
    word = join(
        [tag("span", _VERDICT_SIGNS[facts.verdict], aria_hidden="true"), " ", facts.verdict]
    )
    lines: list[Child] = [tag("p", facts.headline, class_="headline")]
    if facts.stopped:
        lines.append(tag("p", f"Stopped early: {facts.stopped}", class_="warn"))
    if facts.since is not None:
        found = facts.since
        chip = tag("span", found.verdict, class_=f"chip {GATE_TONES[found.verdict]}")
        lines.append(tag("p", "Since the baseline: ", chip, " ", found.reason, "."))
    if said := leading(facts.board):
        lines.append(tag("p", said))
    lines += [tag("p", f"Not judged: {said}", class_="warn") for said in error_lines(facts.errors)]
    tags = join((tag("span", name, class_="chip") for name in facts.tags), " ")
    banner = tag("p", word, class_=f"verdict {tone}")
    return tag(
        "header",
        tag("p", "Proctor report", class_="brand"),
        tag("h1", facts.name, " ", tags),
        tag("p", _about_line(facts), class_="note"),
        tag("div", banner, tag("div", *lines), class_="answer"),
        _tiles(facts),
        class_="top",
    )


def _about_line(facts: ReportFacts) -> str:
    parts = [
        when(facts),
        f"run {facts.run_id}",
        f"commit {facts.commit[:10]}" if facts.commit else "",
        plural(len(facts.arms), "agent"),
        plural(len({cell.case for cell in facts.cells}), "case"),
        plural(facts.totals.trials, "trial"),
    ]
    return " · ".join(part for part in parts if part)


def _tiles(facts: ReportFacts) -> Html:
    totals = facts.totals
    took = seconds(facts.duration_ms) or DASH
    missing = totals.infra_error + totals.cancelled
    tiles = (
        ("Trials passed", percent(totals.pass_rate), f"{totals.passed} of {totals.judged} judged"),
        ("Cells passed", f"{facts.passed_cells}/{len(facts.cells)}", "case × agent"),
        ("Not judged", str(missing), not_judged(totals) or f"of {plural(totals.trials, 'trial')}"),
        (
            "Cost",
            at_least(totals.cost_usd, totals.unpriced_calls) or DASH,
            cost_line(totals).removeprefix("cost "),
        ),
        ("Time", took, "from first start to last end"),
    )
    shown = [
        tag("div", tag("dt", name), tag("dd", tag("strong", value), tag("span", what)))
        for name, value, what in tiles
    ]
    return tag("dl", *shown, class_="tiles")


# -- the leaderboard ---------------------------------------------------------------------------


def leaderboard(facts: ReportFacts) -> Html:
    """Agents by pass rate, with the places the tests leave open."""
    head = (
        "Agent",
        "Place",
        "Pass rate",
        "95 % interval",
        "",
        "Score",
        "Cells",
        "Trials",
        "Not judged",
        "p50",
        "p95",
        "Cost",
    )
    rows = [_arm_row(row, facts.arms[row.name]) for row in facts.board.rows]
    made = table("Leaderboard", head, rows, numeric=(1, 2, 3, 5, 6, 7, 8, 9, 10, 11))
    notes = [tag("p", note, ".", class_="note") for note in facts.board.notes]
    return section(
        "leaderboard",
        "Leaderboard",
        figure("leaderboard", made, first="table"),
        *notes,
        note=ranked_by(facts.board),
    )


def _arm_row(row: Row, cells: ArmCells) -> tuple[Child, ...]:
    rate = row.pass_rate
    return (
        row.name,
        places(row.best, row.worst),
        percent(rate.value),
        ends("pass_rate", rate),
        whisker(rate.value, rate.low, rate.high),
        score(row.score.value),
        f"{cells.passed}/{cells.cells}",
        f"{row.passes}/{row.trials}",
        str(row.infra + row.cancelled),
        seconds(row.latency_p50_ms) or DASH,
        seconds(row.latency_p95_ms) or DASH,
        money(row.cost_usd, row.unpriced_calls) or DASH,
    )


# -- what broke --------------------------------------------------------------------------------


def failures(facts: ReportFacts, rows: dict[str, int]) -> Html:
    """Failed checks, the most harmful first, with up to three trials that show each."""
    if not facts.failures:
        return section("failures", "What broke", tag("p", "No check failed in any judged trial."))
    listed = [_failure(failure, rows) for failure in facts.failures[:MOST_FAILURES]]
    more = len(facts.failures) - len(listed)
    rest = tag("p", f"{more} more in results.json.", class_="note") if more > 0 else None
    note = (
        "Failed checks over all cells, the most harmful first: by how often they fail and how much"
        " they weigh. A check that blocks fails its trial, one that warns does not."
    )
    return section("failures", "What broke", tag("ol", *listed, class_="failures"), rest, note=note)


def _failure(failure: RankedFailure, rows: dict[str, int]) -> Html:
    kind = "blocks" if failure.blocking else "warns"
    chips = [
        tag("span", kind, class_=f"chip {'bad' if failure.blocking else 'soft'}"),
        tag("span", failure.layer, class_="chip"),
    ]
    share = f"{failure.count} of {plural(failure.of, 'judged trial')} ({percent(failure.rate)})"
    samples = [_sample(sample, rows) for sample in failure.samples]
    return tag(
        "li",
        tag("h3", tag("code", failure.check_id), " ", join(chips, " ")),
        tag("p", bar(failure.rate, "bad" if failure.blocking else "soft"), " ", share),
        tag("ul", *samples, class_="samples"),
    )


def _sample(sample: FailureSample, rows: dict[str, int]) -> Html:
    case, agent, seed, index = _named(sample.trial)
    words = f"{case} × {agent}, trial {int(index) + 1}" + (f", seed {seed}" if seed != "0" else "")
    at = rows.get(sample.trial)
    look = (
        tag("span", words, class_="who")
        if at is None
        else tag("a", words, href=f"#trial-{at}", class_="who")
    )
    return tag("li", look, tag("span", sample.reason, class_="said"))


def _named(trial: str) -> Sequence[str]:
    """Case, agent, seed and index; a case's name may hold slashes itself."""
    case, agent, seed, index = trial.rsplit("/", 3)
    return case, agent, seed, index


def research(facts: ReportFacts) -> Html | None:
    """What research decided and found; None when the run was none."""
    if not facts.research:
        return None
    kind, *told = facts.research
    rows = [tag("li", text.strip()) for text in told]
    return section("research", "Research", tag("p", kind), tag("ul", *rows) if rows else None)


def notes(facts: ReportFacts, rows: dict[str, int]) -> Html | None:
    """What people said about the run and its trials; None when nobody did."""
    if not facts.notes:
        return None
    said = [
        tag(
            "li",
            tag("p", note.text, class_="said"),
            tag("p", f"{note.who}, {note.at[:16].replace('T', ' ')} UTC ", _about(note, rows)),
            class_="annotation",
        )
        for note in facts.notes
    ]
    return section("notes", "Annotations", tag("ul", *said, class_="annotations"))


def _about(note: Note, rows: dict[str, int]) -> Child:
    if note.trial is None:
        return None
    at = rows.get(note.trial)
    return note.trial if at is None else tag("a", note.trial, href=f"#trial-{at}")


# -- the end -----------------------------------------------------------------------------------


def about(facts: ReportFacts, inside: Sequence[str], words: Sequence[str]) -> Html:
    """Where the run came from, what is in this file, and how its figures are made."""
    made = tag("dl", join(_provenance(facts)), class_="facts")
    held = tag("ul", *(tag("li", line) for line in inside))
    how = tag("ul", *(tag("li", line) for line in words))
    return section(
        "about",
        "About this report",
        tag("h3", "What is inside"),
        held,
        tag("h3", "How to read it"),
        how,
        tag("h3", "Where it came from"),
        made,
    )


def _provenance(facts: ReportFacts) -> Iterator[Html]:
    known = facts.provenance
    state = " (with changes that are not committed)" if facts.dirty else ""
    for name, value in (
        ("Run", facts.run_id),
        ("Folder", facts.path),
        ("Began", when(facts)),
        ("Commit", f"{facts.commit}{state}" if facts.commit else None),
        ("Proctor", known.get("proctor")),
        ("Python", known.get("python")),
        ("Platform", known.get("platform")),
        ("Host", known.get("host")),
        ("User", known.get("user")),
    ):
        if value:
            yield tag("dt", name)
            yield tag("dd", str(value))


METHOD = (
    "A cell is one case put to one agent.",
    "The verdict of a cell: infrastructure errors first, then a hard fail, then its mean score.",
    "Shares are over judged trials. What could not be run is not a failure: it is not judged.",
    "A score is the weighted mean of the checks of a trial, from 0 to 1.",
    "A dash means that a figure is not known or not defined; it is never a zero.",
    "A cost with ≥ is a lower bound: some model calls have no known price.",
)
"""How to read the figures, for whoever gets the file without knowing Proctor."""
