"""Sections that a chart can draw: each as a table that says the same without one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from proctor.report.chart_style import STATUS_WORDS, STATUSES
from proctor.report.charts import HEATMAP_CASES
from proctor.report.html.markup import Child, Html, bar, join, table, tag
from proctor.report.html.sections import figure, section
from proctor.report.run_facts import ReportFacts, TrialRow
from proctor.report.run_words import score
from proctor.report.text import seconds
from proctor.runs.model import TrialStatus
from proctor.runs.summary import CellSummary, percentile
from proctor.words import DASH, at_least, money, plural

MOST_CASES = 400
"""Rows of the heatmap's table, the worst first; more would make the page heavy and unread."""

BINS = 10
"""Classes of the histogram: tenths of a score."""

_JUDGED = tuple(status for status in STATUSES if TrialStatus(status).judged)


def heatmap(facts: ReportFacts) -> Html:
    """Agents × cases: passed of judged, coloured by rate."""
    cases = facts.worst_cases()
    cells = {(cell.case, cell.cell.arm): cell for cell in facts.cells}
    arms = facts.names
    body = [
        tag(
            "tr",
            tag("th", tag("button", case, type="button", data_case=case), scope="row"),
            *(_heat(cells.get((case, arm)), at) for at, arm in enumerate(arms)),
        )
        for case in cases[:MOST_CASES]
    ]
    heads = [
        tag("th", tag("button", arm, type="button", data_arm=arm), scope="col") for arm in arms
    ]
    made = tag(
        "table",
        tag("caption", "Passed of judged trials, by case and agent", class_="sr"),
        tag("thead", tag("tr", tag("th", "Case", scope="col"), *heads)),
        tag("tbody", join(body)),
        class_="heat",
    )
    left = len(cases) - len(body)
    rest = (
        tag("p", f"{plural(left, 'case')} with better rates are in summary.csv.", class_="note")
        if left > 0
        else None
    )
    note = (
        "Passed of judged trials, the worst cases first. Choose a case or an agent to see its"
        " trials."
    )
    if len(cases) > HEATMAP_CASES:
        note += f" The chart draws the worst {HEATMAP_CASES} of {len(cases)}."
    shown = tag("div", made, class_="scroll", tabindex="0", role="region", aria_label="Heatmap")
    return section("cells", "Agents × cases", figure("heatmap", join([shown, rest])), note=note)


def _heat(cell: CellSummary | None, column: int) -> Html:
    if cell is None:
        return tag("td", DASH, class_="r-none")
    if not cell.judged or cell.pass_rate is None:
        return tag("td", "not judged", class_="r-none", data_column=column)
    # Only what always passed is 10: 99 of 100 is not the same as all.
    level = 10 if cell.pass_rate == 1 else min(9, int(cell.pass_rate * 10))
    word = tag("small", " hard fail") if cell.hard_fail else None
    return tag("td", f"{cell.passed}/{cell.judged}", word, class_=f"r{level}", data_column=column)


def difficulty(facts: ReportFacts) -> Html | None:
    """Mean score against difficulty; None where no case states one."""
    title, name = "Score and difficulty", "difficulty"
    levels = facts.levels()
    if not levels:
        return None
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for cell in facts.cells:
        about = facts.cases.get(cell.case)
        if about is not None and about.difficulty and cell.score_mean is not None:
            scores[about.difficulty, cell.cell.arm].append(cell.score_mean)
    arms = facts.names
    rows = [[level, *(_mean(scores[level, arm]) for arm in arms)] for level in levels]
    made = table("Mean score by difficulty", ["Difficulty", *arms], rows)
    note = "Mean of the cases' mean scores, with the number of cases."
    return section(name, title, figure(name, made), note=note)


def _mean(values: Sequence[float]) -> Html:
    if not values:
        return join([DASH])
    mean = sum(values) / len(values)
    return join([bar(mean), f" {score(mean)} ", tag("small", plural(len(values), "case"))])


def histogram(facts: ReportFacts) -> Html:
    """How scores spread over seeds and repeats."""
    counts: Counter[tuple[int, str]] = Counter()
    for row in facts.rows:
        if row.score is not None and row.status in _JUDGED:
            counts[min(BINS - 1, int(row.score * BINS + 1e-9)), row.arm] += 1
    arms = facts.names
    most = max(counts.values(), default=1)
    rows = [
        [
            f"{at / BINS:.1f}–{(at + 1) / BINS:.1f}",
            *(join([bar(counts[at, arm] / most), f" {counts[at, arm]}"]) for arm in arms),
        ]
        for at in range(BINS)
        if any(counts[at, arm] for arm in arms)
    ]
    made = table("Trials by score", ["Score", *arms], rows)
    note = "Scores of judged trials, over all seeds and repeats. A class holds its lower end."
    return section("seeds", "Spread over seeds", figure("histogram", made), note=note)


def cost(facts: ReportFacts) -> Html | None:
    """What each agent cost, in all and for each trial that passed; None without a model call."""
    totals = facts.totals
    if totals.cost_usd is None and totals.judge_cost_usd is None and not totals.llm_calls:
        return None
    rows: list[list[Child]] = []
    for arm in facts.board.rows:
        tokens = facts.arms[arm.name].tokens
        done = arm.trials + arm.infra
        each = None if arm.cost_usd is None or not done else arm.cost_usd / done
        good = None if arm.cost_usd is None or not arm.passes else arm.cost_usd / arm.passes
        rows.append(
            [
                arm.name,
                money(arm.cost_usd, arm.unpriced_calls) or DASH,
                at_least(each, arm.unpriced_calls) or DASH,
                at_least(good, arm.unpriced_calls) or DASH,
                DASH if tokens is None else f"{tokens:,}",
            ]
        )
    head = ("Agent", "In all", "A trial", "A passed trial", "Tokens")
    made = table("Cost by agent", head, rows, numeric=(1, 2, 3, 4))
    judges = money(totals.judge_cost_usd)
    note = "What the agents' model calls cost."
    if totals.cost_usd is None:
        note = f"No cost is known: {plural(totals.llm_calls, 'model call')} without a price."
    note += f" Judging cost {judges} more." if judges else ""
    return section("cost", "Cost", figure("cost", made), note=note)


def timeline(facts: ReportFacts) -> Html:
    """When the trials ran."""
    rows: list[list[Child]] = []
    by_arm: dict[str, list[TrialRow]] = defaultdict(list)
    for row in facts.rows:
        by_arm[row.arm].append(row)
    for name in facts.names:
        own = by_arm[name]
        took = [row.duration_ms for row in own]
        begun = min((row.start_ms for row in own), default=None)
        ended = max((row.start_ms + row.duration_ms for row in own), default=None)
        rows.append(
            [
                name,
                len(own),
                seconds(begun) or DASH,
                seconds(ended) or DASH,
                seconds(percentile(took, 0.5)) or DASH,
                seconds(percentile(took, 0.95)) or DASH,
            ]
        )
    head = ("Agent", "Trials", "First start", "Last end", "p50", "p95")
    made = table("When the trials ran", head, rows, numeric=(1, 2, 3, 4, 5))
    lanes = 1 + max((row.lane for row in facts.rows), default=0)
    note = f"Up to {plural(lanes, 'trial')} at once. Durations include judging."
    return section("timeline", "Timeline", figure("timeline", made), note=note)


def trials(facts: ReportFacts, shown: int) -> Html:
    """The place of the list of trials, which the scripts fill."""
    counts = Counter(row.status for row in facts.rows)
    words = ", ".join(
        f"{counts[status]} {STATUS_WORDS[TrialStatus(status)]}"
        for status in STATUSES
        if counts[status]
    )
    left = len(facts.rows) - shown
    note = f"{plural(len(facts.rows), 'trial')}: {words}."
    if left:
        note += f" This page lists {shown:,}, failing ones first; results.parquet has all."
    blank = tag(
        "noscript",
        tag("p", "The list of trials and their traces need JavaScript; nothing is fetched."),
    )
    return section("trials", "Trials", blank, tag("div", id="trial-list"), note=note)
