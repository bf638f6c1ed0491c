"""The colours and type of charts, for light and dark pages; `theme.css` holds the same colours.

The palette tells apart under the common colour blindnesses (it follows Okabe and Ito, darkened or
lightened for contrast of at least 3:1 on its page); words and shapes repeat what colours say.
"""

from __future__ import annotations

from typing import Any, Literal

from proctor.runs.trial import TrialStatus

Theme = Literal["light", "dark"]

STATUS_WORDS = {
    TrialStatus.PASSED: "passed",
    TrialStatus.FAILED: "failed",
    TrialStatus.HARD_FAIL: "hard fail",
    TrialStatus.INFRA_ERROR: "not judged",
    TrialStatus.CANCELLED: "cancelled",
}
"""Statuses as people call them."""

STATUSES = tuple(status.value for status in STATUS_WORDS)
"""Statuses in the order of their colours."""

_STATUS_COLOURS: dict[Theme, tuple[str, ...]] = {
    "light": ("#0b6fb0", "#b97700", "#c2410c", "#8f4a80", "#76808c"),
    "dark": ("#56a8e0", "#e3a72f", "#f0783c", "#cf8fc0", "#8d98a5"),
}
_AGENT_COLOURS: dict[Theme, tuple[str, ...]] = {
    "light": ("#0b6fb0", "#c2410c", "#00795c", "#8f4a80", "#a06a00", "#2f7f9e", "#5f6772"),
    "dark": ("#56a8e0", "#f0783c", "#2fbf94", "#cf8fc0", "#e3a72f", "#7cc9e6", "#a3adb8"),
}
_RATES: dict[Theme, tuple[str, ...]] = {
    "light": ("#e0713a", "#ec9a62", "#f4c392", "#f8e3ca", "#d6e8f6"),
    "dark": ("#a8410f", "#8a4a1c", "#6b4d2a", "#4a4336", "#1f425f"),
}
"""From never to always passed: orange to blue, the pair that no colour blindness confuses. What
always passes is quiet, what fails stands out, and the theme's ink can be read on each."""

_INK: dict[Theme, tuple[str, str, str]] = {
    "light": ("#1b1f24", "#57606a", "#d9dee4"),
    "dark": ("#e8ecf1", "#a3adb8", "#343b44"),
}
SHARE = ".1~%"
"""A share of one, as `percent` of proctor/words.py writes it."""

_NUMBERS = {
    "decimal": ".",
    "thousands": ",",
    "grouping": [3],
    "currency": ["$", ""],
    "percent": " %",
}
"""How charts write numbers: as the text around them does."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def status_colours(theme: Theme) -> dict[str, str]:
    """The colour of each status."""
    return dict(zip(STATUSES, _STATUS_COLOURS[theme], strict=True))


def config(theme: Theme) -> dict[str, Any]:
    """The Vega-Lite config of a theme."""
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
