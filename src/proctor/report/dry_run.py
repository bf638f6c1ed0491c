"""The plan of a run before it starts: its trials, and their estimated time and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from proctor.formatting import money, plural, rough_duration
from proctor.sanitize import line
from proctor.tables import table

if TYPE_CHECKING:
    from proctor.runs.trial import CellKey
    from proctor.trials.estimate import Estimate
    from proctor.trials.prepare import RunContext


MOST_CELLS = 60
"""Cells listed: a screen or two; `--json` lists all."""


def plan_lines(ready: RunContext, estimate: Estimate) -> list[str]:
    """Return the plan as lines of text."""
    cells = list(ready.plan.cells.items())
    shown = [
        (_case(key), line(key.agent, 40), f"{cell.trials:,}") for key, cell in cells[:MOST_CELLS]
    ]
    out = table(("case", "agent", "trials"), shown)
    if len(cells) > MOST_CELLS:
        out.append(f"  and {len(cells) - MOST_CELLS:,} more cells")
    out.append(f"{plural(estimate.trials, 'trial')}: {_axes(ready)}")
    out.append(f"time: {_time(estimate)}")
    out.append(f"cost: {_cost(estimate)}")
    if estimate.scenarios:
        scenarios = plural(estimate.scenarios, "scenario")
        out.append(f"cached: {estimate.kept} of {scenarios} to be built")
    if ready.unfolding is not None:
        out.append(f"research: this is the first round of {ready.unfolding.kind}, at least")
    if ready.options.replay_from is not None:
        out.append(f"model calls: replayed from {line(ready.options.replay_from, 200)}")
    return out


def _case(key: CellKey) -> str:
    return line(f"{key.case} [{key.params}]" if key.params else key.case, 80)


def _axes(ready: RunContext) -> str:
    """Return the axes of the plan and the concurrency."""
    parts = [plural(len(ready.cases), "case"), plural(len(ready.agents), "agent")]
    at_once = ready.options.at_once(len(ready.plan.trials))
    if ready.design is None:
        return f"{' × '.join(parts)}, {at_once} at a time, seed {ready.options.seed}"
    axes = ready.design.axes
    seeds = axes.seeds or ()
    if len(axes.params) > 1:
        parts.append(plural(len(axes.params), "combination"))
    listed = f" ({_seeds(seeds)})" if seeds else ""
    parts.append(f"{plural(len(seeds), 'seed')}{listed}")
    return f"{' × '.join(parts)}, {at_once} at a time"


def _seeds(seeds: tuple[int, ...]) -> str:
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]}..{seeds[-1]}"
    listed = ", ".join(str(seed) for seed in seeds[:8])
    return listed if len(seeds) <= 8 else f"{listed}, …"


def _time(estimate: Estimate) -> str:
    if estimate.seconds is None:
        return "unknown (no earlier run)"
    return f"about {rough_duration(estimate.seconds)}{_part(estimate.timed, estimate.trials)}"


def _cost(estimate: Estimate) -> str:
    if estimate.uncalled == estimate.trials:
        return "n/a (earlier runs made no model calls)"
    if estimate.cost_usd is None:
        return "unknown (no earlier run)"
    return f"about {money(estimate.cost_usd)}{_part(estimate.priced, estimate.trials)}"


def _part(known: int, total: int) -> str:
    return (
        ""
        if known == total
        else f" for {known} of {plural(total, 'trial')}, unknown for the others"
    )


def plan_document(ready: RunContext, estimate: Estimate) -> str:
    """Return the plan as one JSON document."""
    design = ready.design
    document = {
        "name": ready.name,
        "cells": ready.plan.record(),
        **({} if design is None else design.axes.record()),
        "options": ready.options.record(),
        "estimate": estimate,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
