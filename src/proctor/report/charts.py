"""Charts of a run by Altair: interactive in the HTML report, PNG or SVG for papers and slides.

Guarantees: a chart draws only facts of the report (`datasets`); specs name their data, so that a
page holds each table once; nothing is fetched from a network. Altair and vl-convert (extra
`charts`) are imported when first used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from proctor.errors import ProctorError
from proctor.files import write_atomic
from proctor.formatting import at_least
from proctor.report.facts import ReportFacts, TrialRow
from proctor.runs.trial import TrialStatus
from proctor.sanitize import visible
from proctor.user_dirs import with_folder

if TYPE_CHECKING:
    import altair as alt

    Chart = alt.Chart | alt.LayerChart | alt.FacetChart

Format = Literal["png", "svg"]

INSTALL = 'pip install "proctor[charts]"'

HEATMAP_CASES = 40
"""Cases drawn in the heatmap, the worst first: as many as fit a screen."""

LEVEL_LETTERS = 48
"""Letters that fit side by side above the heatmap; longer agent names are slanted."""

PANEL = 230
"""Width of a panel in pixels; a longer name is cut, or it would push its neighbour away."""

SCALE = 2.0
"""Pixels per point of a PNG: sharp on screens and in print."""


# -- colours and type ----------------------------------------------------------------------------
# The palette is safe for the common colour blindnesses: it follows Okabe and Ito, darkened or
# lightened for a contrast of at least 3:1 on its page. Words and shapes repeat what colours say.
# `theme.css` holds the same colours.

Theme = Literal["light", "dark"]

STATUS_WORDS = {
    TrialStatus.PASSED: "passed",
    TrialStatus.FAILED: "failed",
    TrialStatus.HARD_FAIL: "hard fail",
    TrialStatus.INFRA_ERROR: "infra error",
    TrialStatus.NOT_JUDGED: "not judged",
    TrialStatus.CANCELLED: "cancelled",
}
"""Statuses as they are displayed."""

STATUSES = tuple(status.value for status in STATUS_WORDS)
"""Statuses in the order of their colours."""

_STATUS_COLOURS: dict[Theme, tuple[str, ...]] = {
    "light": ("#0b6fb0", "#b97700", "#c2410c", "#8f4a80", "#8f4a80", "#76808c"),
    "dark": ("#56a8e0", "#e3a72f", "#f0783c", "#cf8fc0", "#cf8fc0", "#8d98a5"),
}
_AGENT_COLOURS: dict[Theme, tuple[str, ...]] = {
    "light": ("#0b6fb0", "#c2410c", "#00795c", "#8f4a80", "#a06a00", "#2f7f9e", "#5f6772"),
    "dark": ("#56a8e0", "#f0783c", "#2fbf94", "#cf8fc0", "#e3a72f", "#7cc9e6", "#a3adb8"),
}
_RATES: dict[Theme, tuple[str, ...]] = {
    "light": ("#e0713a", "#ec9a62", "#f4c392", "#f8e3ca", "#d6e8f6"),
    "dark": ("#a8410f", "#8a4a1c", "#6b4d2a", "#4a4336", "#1f425f"),
}
"""From never to always passed: orange to blue, which no common colour blindness confuses. Full
passes are quiet, failures are prominent, and the theme's ink is readable on each."""

_INK: dict[Theme, tuple[str, str, str]] = {
    "light": ("#1b1f24", "#57606a", "#d9dee4"),
    "dark": ("#e8ecf1", "#a3adb8", "#343b44"),
}
SHARE = ".1~%"
"""A share of one, formatted like `percent` in proctor/formatting.py."""

_NUMBERS = {
    "decimal": ".",
    "thousands": ",",
    "grouping": [3],
    "currency": ["$", ""],
    "percent": " %",
}
"""Number format of charts: the same as in the text around them."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def config(theme: Theme) -> dict[str, Any]:
    """Return the Vega-Lite config of a theme."""
    ink, quiet, lines = _INK[theme]
    text = {"labelColor": quiet, "titleColor": quiet, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "font": FONT,
        "locale": {"number": _NUMBERS},
        "background": "transparent" if theme == "dark" else "#ffffff",
        "padding": 4,
        "view": {"stroke": "transparent"},
        "axis": {
            **text,
            "titleFontWeight": "normal",
            "domainColor": lines,
            "tickColor": lines,
            "gridColor": lines,
            "gridOpacity": 0.7,
        },
        "legend": {**text, "titleFontWeight": "normal", "orient": "bottom", "symbolType": "square"},
        "header": {**text, "labelColor": ink, "labelFontWeight": 600},
        "title": {"color": ink},
        "text": {"color": ink},
        "bar": {"color": _AGENT_COLOURS[theme][0]},
        "rule": {"color": _AGENT_COLOURS[theme][0]},
        "point": {"color": _AGENT_COLOURS[theme][0]},
        "range": {
            "category": list(_AGENT_COLOURS[theme]),
            "ordinal": list(_STATUS_COLOURS[theme]),
            "diverging": list(_RATES[theme]),
        },
    }


# -- the data ------------------------------------------------------------------------------------


class Dataset(NamedTuple):
    """A table that charts draw from."""

    names: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as mappings, the form that Vega reads."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]


def available() -> bool:
    """Return whether the extra `charts` is installed."""
    return find_spec("altair") is not None and find_spec("vl_convert") is not None


def need() -> None:
    """Raise an error with the command to install the extra, if it is missing."""
    if not available():
        raise ProctorError("charts need the extra `charts`, which is not installed", hint=INSTALL)


def datasets(facts: ReportFacts) -> dict[str, Dataset]:
    """Return the tables behind the charts: agents, cells and trials."""
    arms = [
        (
            visible(row.name),
            row.pass_rate.value,
            row.pass_rate.low,
            row.pass_rate.high,
            row.cost_usd,
            at_least(row.cost_usd, row.unpriced_calls),
        )
        for row in facts.board.rows
    ]
    # The rank of a case by ascending pass rate: the heatmap draws the first ones.
    worst = {case: rank for rank, case in enumerate(facts.worst_cases())}
    cells = [
        (
            visible(cell.case),
            visible(cell.cell.arm),
            cell.passed,
            cell.judged,
            cell.pass_rate,
            cell.score_mean,
            cell.verdict.value,
            facts.cases[cell.case].difficulty if cell.case in facts.cases else None,
            worst[cell.case],
        )
        for cell in facts.cells
    ]
    return {
        "arms": Dataset(("arm", "rate", "low", "high", "cost", "price"), arms),
        "cells": Dataset(
            ("case", "arm", "passed", "judged", "rate", "score", "verdict", "level", "worst"), cells
        ),
        "trials": Dataset(TrialRow._fields, shown_rows(facts.rows)),
    }


def shown_rows(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Return rows whose texts have only visible characters."""
    return [
        row._replace(case=visible(row.case), arm=visible(row.arm), broken=visible(row.broken))
        for row in rows
    ]


# -- the charts --------------------------------------------------------------------------------


def bars(facts: ReportFacts) -> Chart | None:
    """Draw the pass rate of each agent with its interval; None where nothing was judged."""
    import altair as alt

    # A chart without a bar would only show its axes.
    if all(row.pass_rate.value is None for row in facts.board.rows):
        return None
    order = _order(facts)
    base = alt.Chart(alt.NamedData(name="arms")).encode(
        y=alt.Y("arm:N", sort=order, title=None, axis=alt.Axis(labelLimit=220))
    )
    scale = alt.Scale(domain=[0, 1])
    axis = alt.Axis(format=SHARE)
    rate = alt.X("rate:Q", title="pass rate, 95 % interval", scale=scale, axis=axis)
    shown = [
        alt.Tooltip("arm:N", title="agent"),
        alt.Tooltip("rate:Q", title="pass rate", format=SHARE),
        alt.Tooltip("low:Q", title="from", format=SHARE),
        alt.Tooltip("high:Q", title="to", format=SHARE),
    ]
    filled = base.mark_bar(opacity=0.35, height=alt.RelativeBandSize(0.6)).encode(
        x=rate, tooltip=shown
    )
    # An empty title: otherwise Vega joins the titles of all layers.
    span = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=""), x2="high:Q")
    point = base.mark_point(filled=True, size=70, opacity=1).encode(x="rate:Q", tooltip=shown)
    return alt.layer(filled, span, point).properties(
        width="container",
        height=34 * len(facts.names),
        description="Pass rate of each agent with its 95 % interval.",
    )


def heatmap(facts: ReportFacts) -> Chart:
    """Draw agents × cases by pass rate, the worst cases first."""
    import altair as alt

    order = [visible(case) for case in facts.worst_cases()[:HEATMAP_CASES]]
    arms = _order(facts)
    gap = alt.Scale(paddingInner=0.06)
    # Slanted labels need height, so they are slanted only where they would overlap.
    level = len(arms) * max(map(len, arms), default=0) <= LEVEL_LETTERS
    angle = {"labelAngle": 0} if level else {"labelAngle": 40, "labelAlign": "right"}
    across = _names(orient="top", labelLimit=180 if level else 120, **angle)
    base = (
        alt.Chart(alt.NamedData(name="cells"))
        .transform_filter(f"datum.worst < {HEATMAP_CASES}")
        .transform_calculate(label="datum.judged ? datum.passed + '/' + datum.judged : '–'")
        .encode(
            x=alt.X("arm:N", sort=arms, axis=across, scale=gap),
            y=alt.Y("case:N", sort=order, axis=_names(labelLimit=260), scale=gap),
            tooltip=[
                alt.Tooltip("case:N"),
                alt.Tooltip("arm:N", title="agent"),
                alt.Tooltip("label:N", title="passed of judged"),
                alt.Tooltip("score:Q", title="mean score", format=".2f"),
                alt.Tooltip("verdict:N"),
            ],
        )
    )
    colour = alt.Color(
        "rate:Q",
        title="pass rate",
        scale=alt.Scale(domain=[0, 1], range="diverging", interpolate="rgb"),
        legend=alt.Legend(format=SHARE, gradientLength=120),
    )
    square = base.mark_rect(cornerRadius=3).encode(color=colour)
    labels = base.mark_text(fontSize=11).encode(text="label:N")
    return alt.layer(square, labels).properties(
        width="container",
        height=24 * len(order),
        description="Pass rate of each agent on each case; the worst cases first.",
    )


def difficulty(facts: ReportFacts) -> Chart | None:
    """Draw the mean score of each case by difficulty; None without difficulties or scores."""
    import altair as alt

    levels = facts.levels()
    if not levels or all(cell.score_mean is None for cell in facts.cells):
        return None
    base = (
        alt.Chart(alt.NamedData(name="cells"))
        .transform_filter("isValid(datum.level) && isValid(datum.score)")
        .encode(
            x=alt.X("level:O", sort=levels, title="difficulty", axis=alt.Axis(labelAngle=0)),
            color=_arm_colour(facts),
        )
    )
    score = alt.Y("score:Q", title="score", scale=alt.Scale(domain=[0, 1]))
    points = base.mark_circle(size=46, opacity=0.55).encode(
        y=score,
        xOffset=alt.XOffset("arm:N", sort=_order(facts)),
        tooltip=[
            alt.Tooltip("case:N"),
            alt.Tooltip("arm:N", title="agent"),
            alt.Tooltip("level:N", title="difficulty"),
            alt.Tooltip("score:Q", title="mean score", format=".2f"),
        ],
    )
    means = base.mark_line(point=alt.OverlayMarkDef(size=80), strokeWidth=2).encode(
        y=alt.Y("mean(score):Q"), shape=alt.Shape("arm:N", legend=None)
    )
    return alt.layer(points, means).properties(
        width="container",
        height=240,
        description="Mean score of each case against its difficulty; lines join the means.",
    )


def histogram(facts: ReportFacts) -> Chart | None:
    """Draw the distribution of scores over seeds and repeats by agent; None without scores."""
    import altair as alt

    if all(row.score is None for row in facts.rows):
        return None
    drawn = (
        alt.Chart(alt.NamedData(name="trials"))
        .mark_bar()
        .encode(
            x=alt.X(
                "score:Q",
                bin=alt.Bin(step=0.1, extent=[0, 1]),
                scale=alt.Scale(domain=[0, 1]),
                title="score of a trial",
                axis=alt.Axis(format=".1f", values=[0, 0.2, 0.4, 0.6, 0.8, 1]),
            ),
            y=alt.Y("count():Q", title="trials", axis=alt.Axis(tickMinStep=1)),
            color=_status_colour(facts, judged=True),
            tooltip=[
                alt.Tooltip("score:Q", bin=alt.Bin(step=0.1, extent=[0, 1]), title="score"),
                alt.Tooltip("status:N"),
                alt.Tooltip("count():Q", title="trials"),
            ],
        )
        .properties(
            width=PANEL, height=120, description="Scores of all trials, one panel for each agent."
        )
    )
    columns = 2 if len(facts.arms) > 1 else 1
    # Panels are ordered by place and named by a label: their own order is the alphabet's.
    names = json.dumps(_order(facts))
    titles = alt.Header(labelExpr=f"{names}[datum.value]", labelLimit=PANEL)
    panels = alt.Facet("place:O", title=None, header=titles)
    scored = alt.FilterTransform(filter="isValid(datum.score)")
    placed = alt.CalculateTransform(calculate=f"indexof({names}, datum.arm)", **{"as": "place"})
    return drawn.facet(facet=panels, columns=columns).properties(transform=[scored, placed])


def cost(facts: ReportFacts) -> Chart | None:
    """Draw the cost of each agent against its pass rate; None where no cost is known."""
    import altair as alt

    if all(row.cost_usd is None or row.pass_rate.value is None for row in facts.board.rows):
        return None
    return (
        alt.Chart(alt.NamedData(name="arms"))
        .transform_filter("isValid(datum.cost) && isValid(datum.rate)")
        .mark_point(filled=True, size=120, opacity=1)
        .encode(
            x=alt.X(
                "cost:Q",
                title="cost of all trials, US$",
                axis=alt.Axis(format="$,.3~r", tickCount=6),
            ),
            y=alt.Y(
                "rate:Q",
                title="pass rate",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format=SHARE),
            ),
            color=_arm_colour(facts),
            shape=alt.Shape("arm:N", legend=None),
            tooltip=[
                alt.Tooltip("arm:N", title="agent"),
                alt.Tooltip("price:N", title="cost"),
                alt.Tooltip("rate:Q", title="pass rate", format=SHARE),
            ],
        )
        .properties(
            width="container", height=220, description="Cost of each agent against its pass rate."
        )
    )


def timeline(facts: ReportFacts) -> Chart:
    """Draw when each trial ran, in parallel lanes where several ran at once."""
    import altair as alt

    # Only with Shift: a page that stops scrolling under the pointer is a nuisance.
    shifted = "wheel![event.shiftKey]"
    zoom = alt.selection_interval(bind="scales", encodings=["x"], zoom=shifted)
    lanes = 1 + max((row.lane for row in facts.rows), default=0)
    return (
        alt.Chart(alt.NamedData(name="trials"))
        .transform_calculate(
            begin="datum.start_ms / 1000", end="(datum.start_ms + datum.duration_ms) / 1000"
        )
        .mark_bar(height=alt.RelativeBandSize(0.8))
        .encode(
            x=alt.X("begin:Q", title="seconds since the start", scale=alt.Scale(nice=False)),
            x2="end:Q",
            y=alt.Y("lane:O", title="at once", axis=alt.Axis(labels=False, ticks=False)),
            color=_status_colour(facts),
            tooltip=[
                alt.Tooltip("case:N"),
                alt.Tooltip("arm:N", title="agent"),
                alt.Tooltip("status:N"),
                alt.Tooltip("duration_ms:Q", title="ms", format=",.0f"),
            ],
        )
        .properties(
            width="container",
            height=max(60, min(240, lanes * 18)),
            description="When each trial started and ended.",
        )
        .add_params(zoom)
    )


def _order(facts: ReportFacts) -> list[str]:
    return [visible(name) for name in facts.names]


def _names(**more: Any) -> alt.Axis:
    import altair as alt

    return alt.Axis(title=None, domain=False, ticks=False, labelPadding=8, **more)


def _arm_colour(facts: ReportFacts) -> alt.Color:
    import altair as alt

    return alt.Color("arm:N", title="agent", sort=_order(facts))


def _status_colour(facts: ReportFacts, *, judged: bool = False) -> alt.Color:
    """Return one colour per status in every run; the legend lists those that occur."""
    import altair as alt

    # The scale has all statuses, so that a colour means the same in every run.
    seen = {row.status for row in facts.rows if row.score is not None or not judged}
    words = {status.value: word for status, word in STATUS_WORDS.items()}
    return alt.Color(
        "status:N",
        title=None,
        scale=alt.Scale(domain=list(STATUSES), range="ordinal"),
        legend=alt.Legend(
            values=[status for status in STATUSES if status in seen],
            labelExpr=f"{words}[datum.label]",
        ),
    )


CHARTS: dict[str, Callable[[ReportFacts], Chart | None]] = {
    "leaderboard": bars,
    "heatmap": heatmap,
    "difficulty": difficulty,
    "histogram": histogram,
    "cost": cost,
    "timeline": timeline,
}
"""Chart name → its function; the name is also that of its file and of its place in the page."""


def specs(facts: ReportFacts) -> dict[str, dict[str, Any]]:
    """Return Vega-Lite specs by name, without their data and without empty charts."""
    need()
    found: dict[str, dict[str, Any]] = {}
    for name, draw in CHARTS.items():
        chart = draw(facts)
        if chart is not None and facts.rows:
            spec = chart.to_dict(validate=False)
            spec.pop("config", None)  # the page and the export bring their own
            # With "fit-x", axes and labels are part of the container's width.
            if spec.get("width") == "container":
                spec["autosize"] = {"type": "fit-x", "contains": "padding"}
            found[name] = spec
    return found


def write_charts(facts: ReportFacts, folder: Path, form: Format = "png") -> list[Path]:
    """Write every chart into a folder as PNG or SVG; return the files."""
    need()
    import vl_convert

    tables = {name: table.records() for name, table in datasets(facts).items()}
    written: list[Path] = []
    for name, spec in specs(facts).items():
        table = spec["data"]["name"]
        # An image file has neither a page around it nor a container: data and width go inside.
        width = {"width": 560} if spec.get("width") == "container" else {}
        whole = json.dumps({**spec, **width, "datasets": {table: tables[table]}})
        if form == "png":
            content = vl_convert.vegalite_to_png(whole, scale=SCALE, config=config("light"))
        else:
            content = vl_convert.vegalite_to_svg(whole, config=config("light")).encode()
        path = folder / f"{name}.{form}"
        write_atomic(with_folder(path), content)
        written.append(path)
    return written
