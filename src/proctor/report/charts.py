"""Charts of a run by Vega-Lite: interactive in the HTML report, PNG or SVG for papers and slides.

Guarantees: a chart draws only facts of the report (`datasets`); specs (charts.yaml) name their
data, so that a page holds each table once; nothing is fetched from a network. vl-convert (extra
`charts`), which holds Vega-Lite, is imported when first used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Literal

import msgspec

from proctor.errors import ProctorError, hint_among
from proctor.files import write_atomic
from proctor.formatting import at_least
from proctor.report.facts import ReportFacts, TrialRow
from proctor.runs.trial import TrialStatus
from proctor.sanitize import map_texts, visible
from proctor.tables import Tabular, need
from proctor.user_dirs import with_folder

Format = Literal["png", "svg"]

TableFormat = Literal["csv", "latex"]

INSTALL = 'pip install "proctor[charts]"'

HEATMAP_CASES = 40
"""Cases drawn in the heatmap, the worst first: as many as fit a screen."""

NAME_LETTERS = 36
"""Letters of a case in a chart; a longer id is cut where it says least."""

NARROW_LETTERS = 16
"""The same on a phone."""

LEVEL_LETTERS = 48
"""Letters that fit side by side above the heatmap; longer agent names are slanted."""

PANEL = 230
"""Width of a panel in pixels; a longer name is cut, or it would push its neighbour away."""

SCALE = 2.0
"""Pixels per point of a PNG: sharp on screens and in print."""


Theme = Literal["light", "dark"]

STATUS_WORDS = {status: status.replace("_", " ") for status in TrialStatus}
"""Statuses as they are displayed."""

STATUSES = tuple(status.value for status in STATUS_WORDS)
"""Statuses in the order of their colours."""

SHARE = ".1~%"
"""A share of one, formatted like `percent` in proctor/formatting.py."""


@cache
def _chart_file() -> dict[str, Any]:
    """Return charts.yaml: the specs of the charts, and their colours and type."""
    import yaml

    return yaml.safe_load((files("proctor.report") / "charts.yaml").read_text(encoding="utf-8"))


def config(theme: Theme) -> dict[str, Any]:
    """Return the Vega-Lite config of a theme."""
    colours = _chart_file()["themes"][theme]
    return map_texts(_chart_file()["config"], lambda word: colours.get(word, word))


# -- the data ------------------------------------------------------------------------------------


class Dataset(Tabular, msgspec.Struct, frozen=True):
    """A table that charts draw from."""

    names: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as mappings, the form that Vega reads."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]


def available() -> bool:
    """Return whether the extra `charts` is installed."""
    return find_spec("vl_convert") is not None


def need_charts() -> None:
    """Raise an error with the command to install the extra, if it is missing."""
    if not available():
        raise ProctorError("charts need the extra `charts`, which is not installed", hint=INSTALL)


def datasets(facts: ReportFacts) -> dict[str, Dataset]:
    """Return the tables behind the charts: agents, cells, difficulties and trials."""
    arms = [
        (
            visible(row.name),
            row.pass_rate.value,
            row.pass_rate.low,
            row.pass_rate.high,
            cost,
            at_least(cost, row.unpriced_calls),
            # True on the frontier, false below it, None where the cost is only a lower bound.
            facts.frontier[row.name] is None if row.name in facts.frontier else None,
        )
        for row in facts.board.rows
        for cost in [row.cost_per_trial_usd]
    ]
    # The rank of a case by ascending pass rate: the heatmap draws the first ones.
    worst = {case: rank for rank, case in enumerate(facts.worst_cases())}
    # Intervals only of what is drawn: a suite may have thousands of cases.
    drawn = facts.figures_by({case: case for case, rank in worst.items() if rank < HEATMAP_CASES})
    rates = {(each.name, each.arm): each.pass_rate for each in drawn}
    cells = [
        (
            visible(cell.case),
            visible(cell.cell.arm),
            cell.passed,
            cell.judged,
            cell.pass_rate,
            None if rate is None else rate.low,
            None if rate is None else rate.high,
            cell.score_mean,
            cell.verdict.value,
            facts.cases[cell.case].difficulty if cell.case in facts.cases else None,
            worst[cell.case],
        )
        for cell in facts.cells
        for rate in [rates.get((cell.case, cell.cell.arm))]
    ]
    levels = [
        (
            visible(each.name),
            visible(each.arm),
            each.cases,
            each.score.value,
            each.score.low,
            each.score.high,
            each.pass_rate.value,
        )
        for each in facts.by_level
    ]
    return {
        "arms": Dataset(("arm", "rate", "low", "high", "cost", "price", "frontier"), arms),
        "cells": Dataset(
            (
                *("case", "arm", "passed", "judged", "rate", "low", "high"),
                *("score", "verdict", "level", "worst"),
            ),
            cells,
        ),
        "levels": Dataset(("level", "arm", "cases", "score", "low", "high", "rate"), levels),
        "trials": Dataset(TrialRow._fields, shown_rows(facts.rows)),
    }


def shown_rows(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Return rows whose texts have only visible characters."""
    return [
        row._replace(case=visible(row.case), arm=visible(row.arm), broken=visible(row.broken))
        for row in rows
    ]


def short_labels(names: Sequence[str], most: int) -> dict[str, str]:
    """Return a label of about `most` letters for each longer name; no two labels are the same.

    Names are cut in the middle. Those that would look the same lose what they begin with instead,
    up to the letters in which they differ.
    """
    long = [name for name in names if len(name) > most]
    taken = {name for name in names if len(name) <= most}
    tail = most * 2 // 3
    labels = {name: f"{name[: most - tail - 1]}…{name[-tail:]}" for name in long}
    groups: dict[str, list[str]] = {}
    for name, label in labels.items():
        groups.setdefault(label, []).append(name)
    for alike in groups.values():
        columns = takewhile(lambda letters: len(set(letters)) == 1, zip(*alike, strict=False))
        shared = sum(1 for _ in columns)
        for name in alike if len(alike) > 1 else ():
            rest = name[max(0, shared - most // 4) :]
            labels[name] = f"…{rest}" if len(rest) < most else f"…{rest[: most - 2]}…"
    distinct: dict[str, str] = {}
    for name, label in labels.items():
        # Several may still differ only further on, or look like a short name.
        tries = (label if number == 1 else f"{label} ({number})" for number in count(1))
        distinct[name] = next(each for each in tries if each not in taken)
        taken.add(distinct[name])
    return distinct


# -- the charts --------------------------------------------------------------------------------


CHARTS = (
    *("leaderboard", "heatmap", "scores", "bars"),
    *("difficulty", "histogram", "cost", "timeline"),
)

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


def specs(facts: ReportFacts) -> dict[str, dict[str, Any]]:
    """Return Vega-Lite specs by name, without their data and without empty charts."""
    need_charts()
    rates = [row.pass_rate.value for row in facts.board.rows]
    costs = [row.cost_usd for row in facts.board.rows]
    drawable = {
        # A chart without a bar would only show its axes.
        "leaderboard": any(rate is not None for rate in rates),
        "heatmap": True,
        "scores": any(cell.score_mean is not None for cell in facts.cells),
        "bars": any(cell.pass_rate is not None for cell in facts.cells),
        "difficulty": facts.levels() and any(cell.score_mean is not None for cell in facts.cells),
        "histogram": any(row.score is not None for row in facts.rows),
        "cost": any(None not in pair for pair in zip(costs, rates, strict=True)),
        "timeline": True,
    }
    values = _spec_values(facts)
    charts = map_texts(_chart_file()["charts"], lambda word: values.get(word, word))
    found: dict[str, dict[str, Any]] = {}
    for name in CHARTS:
        if drawable[name] and facts.rows:
            found[name] = {"$schema": _SCHEMA, **charts[name]}
            if name != "histogram":  # its panels have a width of their own
                # With "fit-x", axes and labels are part of the container's width.
                fitted = {"type": "fit-x", "contains": "padding"}
                found[name] |= {"width": "container", "autosize": fitted}
    return found


def _spec_values(facts: ReportFacts) -> dict[str, Any]:
    """Return what the words of charts.yaml that begin with $ stand for."""
    arms = [visible(name) for name in facts.names]
    names = json.dumps(arms)
    cases = [visible(case) for case in facts.worst_cases()[:HEATMAP_CASES]]
    label, narrow = (
        f"({json.dumps(short_labels(cases, most))})[datum.value] || datum.value"
        for most in (NAME_LETTERS, NARROW_LETTERS)
    )
    lanes = 1 + max((row.lane for row in facts.rows), default=0)
    # Slanted labels need height, so they are slanted only where they would overlap.
    level = len(arms) * max(map(len, arms), default=0) <= LEVEL_LETTERS
    slant = {"labelAngle": 0} if level else {"labelAngle": 40, "labelAlign": "right"}
    line = {"title": None, "domain": False, "ticks": False, "labelPadding": 8, "orient": "top"}
    return {
        "$arms": arms,
        "$cases": cases,
        "$levels": facts.levels(),
        "$share": SHARE,
        "$panel": PANEL,
        "$columns": 2 if len(arms) > 1 else 1,
        "$bars_height": 34 * len(arms),
        "$heatmap_height": 24 * len(cases),
        "$scenarios_height": (9 * len(arms) + 9) * len(cases),
        "$case_label": label,
        "$narrow_label": narrow,
        "$timeline_height": max(60, min(240, lanes * 18)),
        "$worst_cases": f"datum.worst < {HEATMAP_CASES}",
        "$agent_axis": {**line, "labelLimit": 180 if level else 120, **slant},
        "$place_of_agent": f"indexof({names}, datum.arm)",
        "$agent_at_place": f"{names}[datum.value]",
        "$status_colour": _status_colour(facts),
        "$judged_colour": _status_colour(facts, judged=True),
    }


def _status_colour(facts: ReportFacts, *, judged: bool = False) -> dict[str, Any]:
    """Return one colour per status in every run; the legend lists those that occur."""
    # The scale has all statuses, so that a colour means the same in every run.
    seen = {row.status for row in facts.rows if row.score is not None or not judged}
    words = {status.value: word for status, word in STATUS_WORDS.items()}
    values = [status for status in STATUSES if status in seen]
    return {
        "field": "status",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(STATUSES), "range": "ordinal"},
        "legend": {"values": values, "labelExpr": f"{words}[datum.label]"},
    }


def plot(facts: ReportFacts, name: str) -> Any:
    """Return a chart of the report as an Altair chart: one of `CHARTS`."""
    need("altair", "charts")
    import altair as alt

    found = specs(facts)
    if name not in found:
        raise ProctorError(f"the report has no chart {name!r}", hint=hint_among(name, found))
    whole = _standalone(found[name], datasets(facts))
    whole.pop("usermeta", None)
    return alt.Chart.from_dict({**whole, "config": config("light")})


def _standalone(spec: dict[str, Any], tables: Mapping[str, Dataset]) -> dict[str, Any]:
    """Return a spec with its data and a width: outside a page it has no container."""
    table = spec["data"]["name"]
    width = {"width": 560} if spec.get("width") == "container" else {}
    return {**spec, **width, "datasets": {table: tables[table].records()}}


def write_tables(facts: ReportFacts, folder: Path, form: TableFormat = "csv") -> list[Path]:
    """Write the tables behind the charts into a folder as CSV or LaTeX; return the files."""
    written: list[Path] = []
    for name, table in datasets(facts).items():
        path = folder / f"{name}.{'tex' if form == 'latex' else form}"
        text = table.to_latex() if form == "latex" else table.to_csv()
        write_atomic(with_folder(path), text.encode("utf-8", "replace"))
        written.append(path)
    return written


def write_charts(facts: ReportFacts, folder: Path, form: Format = "png") -> list[Path]:
    """Write every chart into a folder as PNG or SVG; return the files."""
    need_charts()
    import vl_convert

    tables = datasets(facts)
    theme = config("light")
    # Legends do not break lines: two long names side by side are as many as fit.
    if max(map(len, facts.names), default=0) > NARROW_LETTERS:
        theme["legend"]["columns"] = 2
    written: list[Path] = []
    for name, spec in specs(facts).items():
        whole = json.dumps(_standalone(spec, tables))
        if form == "png":
            content = vl_convert.vegalite_to_png(whole, scale=SCALE, config=theme)
        else:
            content = vl_convert.vegalite_to_svg(whole, config=theme).encode()
        path = folder / f"{name}.{form}"
        write_atomic(with_folder(path), content)
        written.append(path)
    return written
