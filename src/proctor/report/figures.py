"""Figures and sentences that every form of a report shares.

Guarantees: a figure reads the same in HTML, Markdown and console, and never looks more exact than
it is; an undefined one is a dash, with its reason where there is room; every share has its
denominator.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from proctor import formatting
from proctor.formatting import (
    DASH,
    MINUS,
    and_more,
    at_least,
    duration_ms,
    in_points,
    level_of,
    money,
    p_text,
    percent,
    plural,
    points,
    some,
)
from proctor.runs.annotations import LABELS
from proctor.runs.run import Run, RunTotals
from proctor.runs.summary import CellSummary, RankedError, Verdict
from proctor.sanitize import json_value, line
from proctor.stats.intervals import SEQUENCE
from proctor.stats.types import SUITE_DEFAULT

if TYPE_CHECKING:
    from proctor.results.aggregate import GroupRow
    from proctor.results.leaderboard import Leaderboard, LeaderboardRow
    from proctor.results.outcomes import TrialAgreement
    from proctor.stats.gate import CaseChange, CorrectedDrop, Gate
    from proctor.stats.intervals import CorrectedRate
    from proctor.stats.types import Interval

METRIC_WORDS = {
    "pass_rate": "pass rate",
    "score": "score",
    "cost_usd": "cost per trial",
    "latency_ms": "mean latency",
}
"""Metric → its display name."""


class GateStyle(NamedTuple):
    """How each form of a report shows a verdict of a gate."""

    colour: str
    """On a terminal."""
    mark: str
    """In Markdown."""
    tone: str
    """The class of HTML."""
    level: str
    """The annotation of GitHub."""


GATE_STYLES = {
    "REGRESSION": GateStyle("red", "❌", "bad", "error"),
    "NO REGRESSION": GateStyle("green", "✅", "good", "notice"),
    "INCONCLUSIVE": GateStyle("yellow", "❔", "odd", "warning"),
    "NOT COMPARABLE": GateStyle("magenta", "⚠️", "odd", "error"),
}

FORMAT = 1
"""Version of the JSON documents; it rises when a key has to change."""


def figure(metric: str, value: float | None) -> str:
    """Return a value of a metric in its unit."""
    if value is None:
        return DASH
    if metric == "pass_rate":
        return percent(value)
    if metric == "cost_usd":
        return money(value)
    if metric == "latency_ms":
        return duration_ms(value)
    # `z` prints −0.000 without its sign.
    return f"{value:z.3f}"


def change(metric: str, value: float | None) -> str:
    """Return a difference of a metric in its unit, with its sign."""
    if value is None:
        return DASH
    if metric == "pass_rate":
        return f"{points(value)} points"
    if metric in ("cost_usd", "latency_ms"):
        size = figure(metric, abs(value))
        # A difference that is rounded to none has no sign.
        return size if size == "0 µs" else f"{MINUS if value < 0 else '+'}{size}"
    return f"{value:+z.3f}".replace("-", MINUS)


def ends(metric: str, interval: Interval, *, signed: bool = False) -> str:
    """Return the two ends of an interval; a dash where it is undefined.

    A confidence sequence says so: it is wider and valid after an early stop.
    """
    if interval.low is None or interval.high is None:
        return DASH
    show = change if signed else figure
    # The unit once is enough: "points" is in the column next to it.
    low, high = (show(metric, end).removesuffix(" points") for end in (interval.low, interval.high))
    return f"[{low}, {high}]{' CS' if interval.method.startswith(SEQUENCE) else ''}"


def with_deviation(mean: float | None, deviation: float | None) -> str:
    """Return a mean score with the standard deviation of the trials: `0.830 ± 0.120`."""
    shown = figure("score", mean)
    return shown if deviation is None else f"{shown} ± {deviation:.3f}"


def per_pass(row: GroupRow | LeaderboardRow) -> str:
    """Return the cost per passed trial with its interval, or as a lower bound."""
    found = row.cost_per_pass_usd
    shown = at_least(found.value, row.unpriced_calls) or DASH
    bounds = ends("cost_usd", found)
    return shown if bounds == DASH else f"{shown} {bounds}"


def per_pass_note(rows: Iterable[GroupRow | LeaderboardRow]) -> Iterator[str]:
    """Yield why costs per passed trial have no interval."""
    found = [row.cost_per_pass_usd for row in rows]
    for reason in sorted({each.reason for each in found if each.value is not None and each.reason}):
        yield f"per pass: no interval: {line(reason)}"


ESTIMANDS = {
    "population": "estimand population: intervals are for cases like these",
    "suite": f"{SUITE_DEFAULT}: intervals are for exactly these cases and instances;"
    " --estimand population is about cases like these",
}
"""What an interval is about, in one line."""


def estimand_note(intervals: Sequence[Interval]) -> Iterator[str]:
    """Yield what the intervals of rates are about.

    Of a case with one instance, both estimands are its own rate.
    """
    over = [each for each in intervals if each.n_eff is not None]
    for estimand in dict.fromkeys(each.estimand for each in over):
        yield ESTIMANDS[estimand]
    if any(each.estimand == "population" and each.cases == 1 for each in over):
        yield "of a single case: intervals are for instances (seeds) like these"


def weight_note(
    rates: Iterable[tuple[float | None, int, int]], estimand: str = "suite"
) -> Iterator[str]:
    """Yield why a rate differs from passed of judged trials: instances have the same weight.

    Of a population, cases have it, however many instances they have.
    """
    if any(
        rate is not None and judged and percent(rate) != percent(passed / judged)
        for rate, passed, judged in rates
    ):
        yield (
            "a rate is the mean of the rates of its cases (of each seed of a case),"
            " whatever their number of trials"
            if estimand == "suite"
            else "a rate is the mean of the rates of its cases, each the mean of its seeds,"
            " whatever their number of trials"
        )


def board_note(board: Leaderboard) -> Iterator[str]:
    """Yield why the rates of a leaderboard differ from their counts, or have no interval."""
    rates = ((row.pass_rate.value, row.passes, row.trials) for row in board.rows)
    yield from weight_note(rates, board.rows[0].pass_rate.estimand if board.rows else "suite")
    without: dict[str, list[str]] = {}
    for row in board.rows:
        if row.value.reason and row.value.reason != board.reason:
            without.setdefault(row.value.reason, []).append(row.name)
    for reason, names in without.items():
        yield f"no interval for {line(some(names), 200)}: {line(reason)}"


def sequence_note(intervals: Iterable[Interval]) -> Iterator[str]:
    """Yield what `CS` means, where one of these intervals is a confidence sequence."""
    if any(each.method.startswith(SEQUENCE) for each in intervals):
        yield f"CS: {SEQUENCE}: valid although the trials stopped early"


def named(items: Mapping[str, str], most: int = 12) -> list[str]:
    """Return names grouped by reason; long lists are cut with a count."""
    by_reason: dict[str, list[str]] = {}
    # One line per reason: hundreds of cases are often left out for the same one.
    for name, reason in items.items():
        by_reason.setdefault(reason, []).append(name)
    out: list[str] = []
    for reason, names in by_reason.items():
        shown = ", ".join(line(name, 80) for name in names[:most])
        more = f", and {len(names) - most} more" if len(names) > most else ""
        out.append(f"  {shown}{more}: {line(reason)}")
    return out


def document(kind: str, facts: Any, **more: Any) -> str:
    """Return facts as one JSON document."""
    # Twice: facts become a mapping first, then the additional values are made plain, too.
    body = {"format": FORMAT, "kind": kind, **more, **cast("dict[str, Any]", json_value(facts))}
    return json.dumps(json_value(body), indent=2, ensure_ascii=False, allow_nan=False)


# -- a reliability profile -----------------------------------------------------------------------


class ProfileRow(NamedTuple):
    """A figure of a profile as texts."""

    group: str
    name: str
    value: str
    ends: str
    n: str
    about: str


def profile_rows(record: Mapping[str, Any]) -> list[ProfileRow]:
    """Return the figures of a profile as its JSON record has them."""
    between: dict[str, Any] = {
        **record["intraclass"],
        "group": "consistency",
        "name": "intraclass correlation",
    }
    between["about"] = "share of the variance of outcomes that is between cases"
    listed: list[dict[str, Any]] = [*record["figures"], between]
    listed.sort(key=lambda each: _PROFILE_GROUPS.index(each["group"]))
    rows: list[ProfileRow] = []
    for each in listed:
        signed = each.get("signed")
        value, low, high = (
            None if each[key] is None else change("", each[key]) if signed else f"{each[key]:.3f}"
            for key in ("value", "low", "high")
        )
        counted = f"{each['n']} in {plural(each['cases'], 'case')}" if each["n"] else DASH
        about = "; ".join(part for part in (each["reason"], each["about"]) if part)
        ends = f"[{low}, {high}]" if low is not None and high is not None else DASH
        rows.append(ProfileRow(each["group"], each["name"], value or DASH, ends, counted, about))
    rows += [
        ProfileRow("not tested", name.replace("_", " "), DASH, DASH, DASH, why)
        for name, why in record["not_tested"].items()
    ]
    return rows


_PROFILE_GROUPS = ("consistency", "robustness", "calibration", "severity")


def profile_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the advice of a profile, and how right each range of stated confidence was."""
    lines = [f"how many trials are enough: {each}" for each in record["advice"]]
    for each in record["bins"]:
        passed = each["passed"]
        lines.append(
            f"stated {each['low']:.0%} to {each['high']:.0%} (mean {each['stated']:.0%}): passed "
            f"{passed['value']:.0%} [{passed['low']:.0%}, {passed['high']:.0%}], n {each['n']}"
        )
    return lines


# -- a run ---------------------------------------------------------------------------------------

INPUT_SHOWN = 2_000
"""Characters of a case's input in a report: enough to recognise the task."""


def sentence(cells: Sequence[CellSummary], totals: RunTotals) -> str:
    """Return the number of cells and trials that passed, and of those without a verdict."""
    passed = sum(cell.verdict == Verdict.PASS for cell in cells)
    return (
        f"{passed:,} of {plural(len(cells), 'cell')} passed; "
        f"{totals.passed:,} of {plural(totals.judged, 'judged trial')}"
        + (f"; {totals.unjudged:,} could not be judged" if totals.unjudged else "")
    )


def score(value: float | None) -> str:
    """Return a score from 0 to 1 with two decimals."""
    return DASH if value is None else f"{value:.2f}"


def places(best: int | None, worst: int | None) -> str:
    """Return the ranks an agent may have: `1`, or `1–3` where differences are not significant."""
    if best is None or worst is None:
        return DASH
    return str(best) if best == worst else f"{best}–{worst}"


def leading(board: Leaderboard) -> str | None:
    """Return a sentence on which agent is ahead; None with a single agent."""
    rows = [row for row in board.rows if row.best is not None]
    if len(board.rows) < 2:
        return None
    if board.reason or not rows:
        return f"No ranking: {board.reason or 'no judged trial'}."
    cases = plural(board.shared_cases, "shared case")
    how = f"on {cases} (paired tests, Holm, {level_of(board.alpha)} level)"
    first = [row.name for row in rows if row.best == 1]
    if len(rows) == 1:
        return f"No ranking: only {rows[0].name} has judged trials."
    if len(first) == 1:
        others = "all others" + ("" if len(rows) == len(board.rows) else " with judged trials")
        return f"{first[0]} is significantly better than {others} {how}."
    # Some agents are worse than these, but the tests cannot separate the best ones.
    if len(first) < len(rows):
        return f"{', '.join(first)} share rank 1 {how}."
    between = " and ".join(first) if len(first) == 2 else "the agents"
    return f"No significant difference between {between} {how}; more cases may show one."


def ranked_by(board: Leaderboard) -> str:
    """Return how the leaderboard ranks agents."""
    return (
        f"By {board.metric.replace('_', ' ')}. A rank such as 1–2 means that paired tests (Holm,"
        f" {level_of(board.alpha)} level) show no significant difference between these agents."
        f" {board.about[0].upper()}{board.about[1:]}."
        + "".join(f" {note[0].upper()}{note[1:]}." for note in board_note(board))
    )


def not_judged(totals: RunTotals) -> str | None:
    """Return the trials that could not be judged; None when all were."""
    parts: list[str] = []
    if totals.infra_error:
        parts.append(plural(totals.infra_error, "infrastructure error"))
    if totals.not_judged:
        parts.append(f"{totals.not_judged} that the checks could not judge")
    if totals.cancelled:
        parts.append(f"{totals.cancelled} cancelled")
    return ", ".join(parts) or None


def damage_note(run: Run) -> str:
    """Return what cannot be read in a run folder."""
    # A torn last line is the trace of an interruption, and its trial is left to do.
    return (
        f"{plural(len(run.problems), 'part')} of the run cannot be read, and trials on such lines"
        f" are missing from every figure: {and_more(run.problems, 2, str)}"
        " (`proctor runs verify` lists everything)"
    )


def corrected_text(found: CorrectedRate) -> str:
    """Return a corrected rate with its interval, the judge's own rate and what it rests on."""
    people = f"{plural(found.labels, 'label')} of {plural(found.trials, 'trial')}"
    agreed = f"the judge agrees on {found.table[0] + found.table[3]} of {sum(found.table)}"
    if found.rate.value is None:
        return f"not corrected by labels: {found.rate.reason}; judge {percent(found.naive)}"
    bounds = ends("pass_rate", found.rate)
    why = f" (no interval: {found.rate.reason})" if bounds == DASH else f" {bounds}"
    return f"{percent(found.rate.value)}{why}, judge {percent(found.naive)}; {people}, {agreed}"


def corrected_notes(run: Run) -> Iterator[str]:
    """Yield the pass rate of each agent as people would judge it; nothing without labels."""
    from proctor.results.outcomes import corrected_rates

    for name, found in corrected_rates(run).items():
        word = "" if found.rate.value is None else "corrected by labels "
        yield f"{name}: pass rate {word}{corrected_text(found)}"


def counting_notes(run: Run) -> Iterator[str]:
    """Yield what is missing from the figures of a run, and what they leave out on purpose."""
    if run.problems:
        yield damage_note(run)
    totals = run.totals
    if totals.retried:
        again = plural(totals.retried, "judged trial")
        yield (
            f"after retries: {totals.passed_after_retries} of {plural(totals.trials, 'trial')}"
            f" passed. {again} had been run again; every other figure counts the first judged"
            " attempt"
        )
    if run.saved and (run.path / LABELS).is_file():
        yield from corrected_notes(run)


def agreement_lines(found: TrialAgreement) -> Iterator[str]:
    """Yield how raters agree with each other and with the judge."""
    for first, second, n, agreed, kappa in found.pairs:
        shown = "kappa undefined" if kappa is None else f"kappa {kappa:.2f}"
        yield f"{first} and {second} agree on {agreed} of {plural(n, 'trial')}, {shown}"
    if found.doubly:
        value = "undefined" if found.alpha is None else f"{found.alpha:.2f}"
        trials = plural(found.doubly, "trial")
        yield f"Krippendorff's alpha of the raters: {value}, {trials} with two labels or more"


def corrected_drop_text(found: CorrectedDrop) -> str:
    """Return the drop of corrected rates with both rates."""
    arms = (("reference", found.baseline), ("candidate", found.candidate))
    rates = "; ".join(f"{name} {corrected_text(rate)}" for name, rate in arms if rate is not None)
    if found.drop is None:
        return f"corrected by labels: no drop ({found.reason}); {rates}".removesuffix("; ")
    return (
        f"corrected by labels: drop {in_points(found.drop)}, at most"
        f" {in_points(found.drop_at_most)}, p {p_text(found.p_value)}; {rates}"
    )


def cost_line(totals: RunTotals) -> str:
    """Return the cost of the trials, or why it is unknown."""
    # No calls and no price are different: only the second is unknown.
    if not totals.llm_calls and totals.cost_usd is None and not totals.unpriced_calls:
        agents = "cost: n/a (no model calls recorded)"
    else:
        agents = f"cost {money(totals.cost_usd, totals.unpriced_calls) or 'unknown'}"
    tokens = f" · {totals.tokens:,} tokens" if totals.tokens is not None else ""
    judges = money(totals.judge_cost_usd)
    return f"{agents}{tokens}{f' · judges {judges}' if judges else ''}"


def research_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the findings of research, or its progress."""
    rounds = plural(len(record["rounds"]), "round")
    findings = record["summary"] or record["rounds"][-1]["decided"]
    head = f"{record['kind']}: {rounds}{'' if record['ended'] else ', not ended'}"
    return [head, *(f"  {line(str(text), 300)}" for text in findings)]


MOST_ERRORS = 3
"""Distinct errors in a summary: a broken setup has one or two."""


def error_lines(errors: Sequence[RankedError]) -> list[str]:
    """Return why trials could not be judged, the most common error first, with a trial of each."""
    shown = [
        f"{plural(each.count, 'trial')}: {each.error.type} in the {each.error.place}: "
        f"{line(each.error.message, 300)} ({each.trial})"
        for each in errors[:MOST_ERRORS]
    ]
    # The rest is counted: a list that ends silently looks complete.
    rest = len(errors) - len(shown)
    return [*shown, f"and {plural(rest, 'other error')}"] if rest else shown


def gate_line(gate: Gate) -> str:
    """Return the result of a gate with its evidence."""
    moved = points(None if gate.drop is None else -gate.drop)
    return (
        f"{moved} points over {plural(gate.cases, 'case')} ({plural(gate.n, 'trial')}, "
        f"p {p_text(gate.p_value)}); the drop is at most {in_points(gate.drop_at_most)}"
        + (
            ""
            if gate.score is None
            else f"; score {points(0.0 - (gate.score.drop or 0.0))} points,"
            f" p {p_text(gate.score.p_value)}"
        )
        # "0 points" and "inconclusive" look like a contradiction without the reason.
        + (
            f". This neither shows nor rules out a regression: {gate.reason};"
            f" a drop of {in_points(gate.rule.margin)} or more counts as one"
            if gate.verdict == "INCONCLUSIVE"
            else ""
        )
    )


def moved_cases(gate: Gate) -> list[CaseChange]:
    """Return the cases whose rate changed up or down, the largest change first."""
    return sorted((m for m in gate.moves if m.drop), key=lambda m: (-abs(m.drop), m.case))


def case_text(value: Any) -> str:
    """Return the input of a case as text."""
    text = "" if value is None else value
    if not isinstance(text, str):
        text = json.dumps(json_value(text, most=INPUT_SHOWN), ensure_ascii=False, indent=1)
    return text[:INPUT_SHOWN]


def template_globals() -> dict[str, Any]:
    """Return what templates may call and name: everything here and in `formatting`."""
    return {**vars(formatting), **globals()}
