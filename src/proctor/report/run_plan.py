"""The plan of a run before it begins: how many trials of what, and what that may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from proctor.report.run_progress import duration
from proctor.report.text import line, money, plural

if TYPE_CHECKING:
    from proctor.trials.api import Prepared
    from proctor.trials.estimate import Estimate


def plan_lines(ready: Prepared, estimate: Estimate) -> list[str]:
    """For people."""
    cells = ready.plan.cells
    width = max(len(line(key.case, 60)) for key in cells)
    out = [
        f"  {line(key.case, 60):<{width}}  {line(key.agent, 40)}  {plural(cell.trials, 'trial')}"
        for key, cell in cells.items()
    ]
    at_once = ready.options.at_once(len(ready.plan.trials))
    cases, agents = len(ready.bench.cases), len(ready.agents)
    out.append(
        f"{plural(estimate.trials, 'trial')}: {plural(cases, 'case')} × {plural(agents, 'agent')}, "
        f"{at_once} at a time, seed {ready.options.seed}"
    )
    out.append(f"time: {_time(estimate)}")
    out.append(f"cost: {_cost(estimate)}")
    return out


def _time(estimate: Estimate) -> str:
    if estimate.seconds is None:
        return "unknown, no earlier run tells"
    return f"about {duration(estimate.seconds)}{_part(estimate.timed, estimate.trials)}"


def _cost(estimate: Estimate) -> str:
    if estimate.cost_usd is None:
        return "unknown, no earlier run tells"
    return f"about {money(estimate.cost_usd)}{_part(estimate.priced, estimate.trials)}"


def _part(known: int, total: int) -> str:
    return "" if known == total else f" for {known} of {total} trials, unknown for the others"


def plan_document(ready: Prepared, estimate: Estimate) -> str:
    """For programs: one JSON document."""
    document = {
        "cells": ready.plan.record(),
        "options": ready.options.record(),
        "estimate": estimate,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
