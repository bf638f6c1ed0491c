"""The report of a run as one HTML file.

Promise: the file stands alone (no request leaves it, and its own policy forbids any), stays under
`MAX_BYTES` up to tens of thousands of trials, and shows what agents said as text. The price: not
every trace fits; failing ones come first, and the page says how many are left out and where.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec

from proctor.report import charts
from proctor.report.chart_style import config
from proctor.report.html import changes, details, figures, sections
from proctor.report.html.columns import columns, data_block
from proctor.report.html.markup import Html, escape, join, tag
from proctor.report.html.packing import alone, digest, packed, vega
from proctor.report.html.texts import LONGEST, Texts, cut
from proctor.report.run_facts import ReportFacts, TrialRow, trial_order
from proctor.runs.model import Trial
from proctor.runs.run import Run
from proctor.trace.redact import Redactor, default_redactor
from proctor.words import plural

MAX_BYTES = 2_900_000
"""Bytes of a page: mail and chat take 3 MB, and a browser opens it in well under two seconds."""

MOST_ROWS = 20_000
"""Trials listed; at about 45 bytes each they leave two thirds of the page to traces."""

CASE_TEXTS = 300_000
"""Characters of all cases' inputs together, before packing."""

STYLES = ("theme.css", "report.css")
SCRIPTS = ("core.js", "trials.js", "trial.js", "figures.js", "main.js")

_DIGITS = {"start_ms": 1, "duration_ms": 1, "latency_ms": 1, "cost_usd": 9}


class Page(NamedTuple):
    """The text of a page, in words what is in it, and how many secrets were taken out."""

    text: str
    inside: tuple[str, ...]
    redacted: int

    @property
    def size(self) -> int:
        """Bytes of the page."""
        return len(self.text.encode())


class _Blocks(NamedTuple):
    """What the scripts read: blocks of data, and what they hold in words."""

    markup: str
    inside: tuple[str, ...]
    listed: int
    places: Mapping[str, int]


def render_page(
    run: Run,
    facts: ReportFacts,
    *,
    redactor: Redactor | None = None,
    with_charts: bool | None = None,
) -> Page:
    """The whole page. Charts are interactive where the extra `charts` is installed."""
    texts = Texts(redactor or default_redactor())
    facts = _clean(facts, texts)
    drawn = charts.available() if with_charts is None else with_charts
    chart_blocks = _chart_blocks(facts) if drawn else ""
    fixed = _top_sections(facts) + chart_blocks + _style() + _script()
    blocks = _data_blocks(run, facts, texts, MAX_BYTES - len(fixed.encode()) - 60_000)
    inside = (*_inside(facts, drawn), *blocks.inside, _secrets(texts))
    body = join(
        [
            Html(_top_sections(facts, blocks.places)),
            figures.trials(facts, blocks.listed),
            sections.about(facts, inside, sections.METHOD),
        ]
    )
    text = _fill(
        _file("page.html"),
        {
            "policy": _policy(drawn),
            "title": escape(f"{facts.verdict}: {facts.name}"),
            "style": _style(),
            "nav": _nav(body),
            "body": body,
            "note": "" if drawn else _chart_hint(),
            "data": blocks.markup + chart_blocks,
            "script": _script(),
        },
    )
    return Page(text, inside, texts.redacted)


# -- sections ----------------------------------------------------------------------------------


def _top_sections(facts: ReportFacts, rows: Mapping[str, int] | None = None) -> str:
    return join(
        [
            sections.top(facts),
            None if facts.since is None else changes.since(facts.since),
            sections.research(facts),
            sections.leaderboard(facts),
            sections.failures(facts, dict(rows or {})),
            sections.notes(facts, dict(rows or {})),
            figures.heatmap(facts),
            tag(
                "div",
                figures.difficulty(facts),
                figures.histogram(facts),
                figures.cost(facts),
                figures.timeline(facts),
                class_="pairs",
            ),
        ]
    )


def _nav(body: str) -> Html:
    """Links to the sections that are there."""
    names = {
        "since": "Changes",
        "research": "Research",
        "leaderboard": "Leaderboard",
        "failures": "What broke",
        "notes": "Annotations",
        "cells": "Cases",
        "difficulty": "Difficulty",
        "seeds": "Spread",
        "cost": "Cost",
        "timeline": "Timeline",
        "trials": "Trials",
        "about": "About",
    }
    present = {name: word for name, word in names.items() if f'<section id="{name}"' in body}
    return join(tag("a", word, href=f"#{name}") for name, word in present.items())


def _chart_hint() -> Html:
    how = tag("code", charts.INSTALL)
    return tag("p", "Tables only. For interactive charts: ", how, class_="note hint")


def _inside(facts: ReportFacts, drawn: bool) -> tuple[str, ...]:
    cells = plural(len(facts.cells), "cell")
    shown = "interactive charts" if drawn else "tables in place of charts"
    return (f"Verdicts of {cells}, leaderboard, ranked failures, cost, {shown}.",)


def _secrets(texts: Texts) -> str:
    if not texts.redacted:
        return "Redaction was applied again and found nothing to take out."
    return f"Redaction was applied again and took out {plural(texts.redacted, 'secret')}."


# -- data --------------------------------------------------------------------------------------


def _data_blocks(run: Run, facts: ReportFacts, texts: Texts, budget: int) -> _Blocks:
    """Rows of trials, what cases ask, and as many details as the budget holds."""
    trials, rows = _listed(run, facts.rows)
    table = columns(TrialRow._fields, rows, _DIGITS)
    cases = _packed_block("cases", _cases(facts))
    spent = len(data_block("trials", table)) + len(cases)
    # Places of details are written as two more columns: at most 12 characters a row.
    told = details.pack(trials, run.trace, texts, budget - spent - 12 * len(rows))
    table["block"] = [place and place[0] for place in told.places]
    table["place"] = [place and place[1] for place in told.places]
    blocks = [_block(f"details-{at}", text) for at, text in enumerate(told.blocks)]
    return _Blocks(
        markup="\n".join([data_block("trials", table), cases, *blocks]),
        inside=_told(told, trials, facts),
        listed=len(rows),
        places=_places(trials),
    )


class _Listed(NamedTuple):
    """The trials a page lists and their rows, in the same order."""

    trials: list[Trial]
    rows: list[TrialRow]


def _listed(run: Run, rows: Sequence[TrialRow]) -> _Listed:
    """All trials, or the worst; of the others not even the answers are held."""
    worst = details.harm_first((row.status, (row.case, row.arm)) for row in rows)[:MOST_ROWS]
    kept = [rows[at] for at in sorted(worst)]
    wanted = {row.key for row in kept}
    trials = [t for t in run.trials() if (t.case, t.cell.arm, t.axis_seed, t.index) in wanted]
    return _Listed(sorted(trials, key=trial_order), charts.shown_rows(kept))


def _places(trials: Sequence[Trial]) -> dict[str, int]:
    """The row of each trial by the names that failures and annotations use for it."""
    found: dict[str, int] = {}
    for at, trial in enumerate(trials):
        found.setdefault(trial.short_name, at)
        found[trial.name] = at
    return found


def _told(packed: details.Packed, trials: Sequence[Trial], facts: ReportFacts) -> tuple[str, ...]:
    having = sum(trial.trace is not None for trial in trials)
    told, every = len(trials) - packed.without, plural(facts.totals.trials, "trial")
    where = f"; the others are in {facts.path}/traces" if packed.traces < having else ""
    lines = [
        f"{packed.traces} of {plural(having, 'trace')}, those of failing trials first{where}.",
        f"Answers and checks of {told} of {every}, texts cut at {LONGEST:,} characters.",
    ]
    if packed.unreadable:
        lines.append(f"{plural(packed.unreadable, 'trace')} could not be read back.")
    return tuple(lines)


def _cases(facts: ReportFacts) -> list[dict[str, Any]]:
    each = max(200, CASE_TEXTS // max(1, len(facts.cases)))
    return [
        {
            "case": about.case,
            "input": cut(about.input, each),
            "description": about.description,
            "difficulty": about.difficulty,
            "type": about.type,
            "tags": about.tags,
        }
        for about in facts.cases.values()
    ]


def _clean(facts: ReportFacts, texts: Texts) -> ReportFacts:
    """Facts without secrets in whatever users or agents wrote."""
    cases = {
        name: msgspec.structs.replace(
            about,
            case=texts.word(about.case),
            input=texts.said(about.input) or "",
            description=texts.said(about.description),
        )
        for name, about in facts.cases.items()
    }
    return msgspec.structs.replace(
        facts,
        name=texts.word(facts.name),
        failures=texts.clean(facts.failures),
        cases=cases,
        notes=texts.clean(facts.notes),
        research=texts.clean(facts.research),
        stopped=None if facts.stopped is None else texts.said(facts.stopped),
    )


def _packed_block(name: str, value: Any) -> str:
    return _block(name, packed(msgspec.json.encode(value)))


def _block(name: str, content: str) -> str:
    return f'<script type="text/plain" id="data-{name}">{content}</script>'


def _chart_blocks(facts: ReportFacts) -> str:
    """Specs, their tables (trials are there already), and Vega itself, packed."""
    tables = {
        name: columns(table.names, table.rows)
        for name, table in charts.datasets(facts).items()
        if name != "trials"
    }
    themes = {"light": {**config("light"), "background": "transparent"}, "dark": config("dark")}
    value = {"specs": charts.specs(facts), "tables": tables, "themes": themes}
    licence = f'<script type="text/plain" id="vega-licence">{_file("vega-licence.txt")}</script>'
    return "\n".join((data_block("charts", value), licence, _block("vega", vega().packed)))


# -- the frame ---------------------------------------------------------------------------------


def _policy(drawn: bool) -> str:
    """Only our own style and scripts run, known by their hashes; nothing is fetched or sent."""
    scripts = [digest(_script()), *([vega().digest] if drawn else [])]
    listed = " ".join(f"'{known}'" for known in scripts)
    return (
        f"default-src 'none'; script-src {listed}; style-src '{digest(_style())}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


@cache
def _style() -> str:
    return "\n".join(_file(name) for name in STYLES)


@cache
def _script() -> str:
    return alone('"use strict";\n' + "\n".join(_file(name) for name in SCRIPTS))


def _file(name: str) -> str:
    return (files("proctor.report.html") / name).read_text(encoding="utf-8")


def _fill(template: str, parts: Mapping[str, str]) -> str:
    """Put parts in their places, in one pass: a part is never searched for places itself."""
    return re.sub(r"<!--\{(\w+)\}-->|\{\{(\w+)\}\}", lambda m: parts[m[1] or m[2]], template)
