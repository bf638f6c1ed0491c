"""Format statistics: metrics in their units, intervals, JSON documents.

Guarantees: an undefined figure is a dash, with its reason where there is room; a figure never looks
more exact than it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from proctor.formatting import DASH, MINUS, duration_ms, money, percent, points
from proctor.sanitize import json_value, line
from proctor.stats.types import Interval

METRIC_WORDS = {
    "pass_rate": "pass rate",
    "score": "score",
    "cost_usd": "cost per trial",
    "latency_ms": "latency",
}
"""Metric → its display name."""

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
    return f"{value:z.3f}"


def change(metric: str, value: float | None) -> str:
    """Return a difference of a metric in its unit, with its sign."""
    if value is None:
        return DASH
    if metric == "pass_rate":
        return f"{points(value)} points"
    if metric in ("cost_usd", "latency_ms"):
        return f"{MINUS if value < 0 else '+'}{figure(metric, abs(value))}"
    return f"{value:+z.3f}".replace("-", MINUS)


def ends(metric: str, interval: Interval, *, signed: bool = False) -> str:
    """Return the two ends of an interval; a dash where it is undefined."""
    if interval.low is None or interval.high is None:
        return DASH
    if signed:
        if metric == "pass_rate":
            return f"[{points(interval.low)}, {points(interval.high)}]"
        return f"[{change(metric, interval.low)}, {change(metric, interval.high)}]"
    return f"[{figure(metric, interval.low)}, {figure(metric, interval.high)}]"


def named(items: Mapping[str, str], most: int = 12) -> list[str]:
    """Return names grouped by reason; long lists are cut with a count."""
    by_reason: dict[str, list[str]] = {}
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
    body = {"format": FORMAT, "kind": kind, **more, **cast("dict[str, Any]", json_value(facts))}
    return json.dumps(json_value(body), indent=2, ensure_ascii=False, allow_nan=False)
