"""Figures of the statistics as people read them: metrics in their units, intervals, documents.

Promise: what is not defined is a dash, with its reason wherever there is room; a figure never
looks more exact than it is.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from proctor.report.text import line, plain, seconds
from proctor.stats.types import Interval
from proctor.words import DASH, MINUS, money, percent, points

METRIC_WORDS = {
    "pass_rate": "pass rate",
    "score": "score",
    "cost_usd": "cost per trial",
    "latency_ms": "latency",
}
"""How people call the figures that runs are compared and ranked by."""

SHORT_MS = 10.0
"""Below this a duration needs decimals to be told from another."""

FORMAT = 1
"""Version of the JSON documents; it rises when a key has to change."""


def figure(metric: str, value: float | None) -> str:
    """A value of a metric in its own unit."""
    if value is None:
        return DASH
    if metric == "pass_rate":
        return percent(value)
    if metric == "cost_usd":
        return money(value)
    if metric == "latency_ms":
        return f"{value:.2f} ms" if value < SHORT_MS else seconds(value)
    return f"{value:z.3f}"


def change(metric: str, value: float | None) -> str:
    """A difference of a metric in its own unit, with its sign."""
    if value is None:
        return DASH
    if metric == "pass_rate":
        return f"{points(value)} points"
    if metric in ("cost_usd", "latency_ms"):
        return f"{MINUS if value < 0 else '+'}{figure(metric, abs(value))}"
    return f"{value:+z.3f}".replace("-", MINUS)


def ends(metric: str, interval: Interval, *, signed: bool = False) -> str:
    """The two ends of an interval; a dash where there are none."""
    if interval.low is None or interval.high is None:
        return DASH
    if signed:
        if metric == "pass_rate":
            return f"[{points(interval.low)}, {points(interval.high)}]"
        return f"[{change(metric, interval.low)}, {change(metric, interval.high)}]"
    return f"[{figure(metric, interval.low)}, {figure(metric, interval.high)}]"


def named(items: Mapping[str, str], most: int = 12) -> list[str]:
    """Names with why, gathered by why; long lists are cut and say so."""
    by_reason: dict[str, list[str]] = {}
    for name, why in items.items():
        by_reason.setdefault(why, []).append(name)
    out: list[str] = []
    for why, names in by_reason.items():
        shown = ", ".join(line(name, 80) for name in names[:most])
        more = f", and {len(names) - most} more" if len(names) > most else ""
        out.append(f"  {shown}{more}: {line(why)}")
    return out


def document(kind: str, facts: Any, **more: Any) -> str:
    """Facts as one JSON document, every field by its name."""
    body = {"format": FORMAT, "kind": kind, **more, **cast("dict[str, Any]", as_json(facts))}
    return json.dumps(plain(body), indent=2, ensure_ascii=False, allow_nan=False)


def as_json(value: Any) -> Any:
    """Structs, dataclasses and named tuples as mappings, whatever they are nested in."""
    if isinstance(value, msgspec.Struct):
        return {name: as_json(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if (fields := getattr(cast("Any", value), "_asdict", None)) is not None:  # a named tuple
        return {key: as_json(part) for key, part in cast("dict[str, Any]", fields()).items()}
    if isinstance(value, Mapping):
        return {str(k): as_json(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
