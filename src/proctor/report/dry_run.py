"""The plan of a run before it starts: its trials, and their estimated time and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from proctor.formatting import and_more, money, plural, rough_duration
from proctor.sanitize import line
from proctor.tables import table

if TYPE_CHECKING:
    from proctor.trials.plan import Estimate
    from proctor.trials.prepare import RunContext


MOST_CELLS = 60
"""Cells listed: a screen or two; `--json` lists all."""


def plan_lines(ready: RunContext, estimate: Estimate) -> list[str]:
    """Return the plan as lines of text."""
    cells = list(ready.plan.cells.items())
    shown = [
        (
            line(f"{key.case} [{key.params}]" if key.params else key.case, 80),
            line(key.agent, 40),
            f"{cell.trials:,}",
        )
        for key, cell in cells[:MOST_CELLS]
    ]
    out = table(("case", "agent", "trials"), shown)
    if len(cells) > MOST_CELLS:
        out.append(f"  and {len(cells) - MOST_CELLS:,} more cells")
    out.append(f"{plural(estimate.trials, 'trial')}: {_axes(ready)}")
    total, time, cost = estimate.trials, "unknown (no earlier run)", "unknown (no earlier run)"
    if estimate.seconds is not None:
        time = f"about {rough_duration(estimate.seconds)}{_part(estimate.timed, total)}"
    if estimate.uncalled == total:
        cost = "n/a (earlier runs made no model calls)"
    elif estimate.cost_usd is not None:
        cost = f"about {money(estimate.cost_usd)}{_part(estimate.priced, total)}"
    out += [f"time: {time}", f"cost: {cost}"]
    if estimate.scenarios:
        scenarios = plural(estimate.scenarios, "scenario")
        out.append(f"cached: {estimate.kept} of {scenarios} to be built")
    # Later rounds depend on results, so only the first can be planned.
    if ready.unfolding is not None:
        out.append(f"research: this is the first round of {ready.unfolding.kind}, at least")
    code = [line(name, 40) for name, config in ready.agents.items() if config.kind == "python"]
    if code:
        names = and_more(code, 3, str)
        out.append(f"imported to check them, but not called: {names}")
    if ready.options.replay_from is not None:
        out.append(f"model calls: replayed from {line(ready.options.replay_from, 200)}")
    return out


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
    # Seeds are sorted and distinct, so the ends show whether there is a gap.
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]}..{seeds[-1]}"
    listed = ", ".join(str(seed) for seed in seeds[:8])
    return listed if len(seeds) <= 8 else f"{listed}, …"


def _part(known: int, total: int) -> str:
    if known == total:
        return ""
    return f" for {known} of {plural(total, 'trial')}, unknown for the others"


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
