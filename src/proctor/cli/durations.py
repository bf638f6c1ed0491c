"""Durations on the command line: `30d`, `12h`, `90s`."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class Duration(click.ParamType[float]):
    """`30d`, `12h`, `90s`: seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Seconds from a number and a unit."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", str(value).strip())
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is not a duration such as 30d, 12h or 90s", param, ctx)
        return float(found[1]) * _UNITS[found[2]]
