"""Estimate the cost and duration of a run from earlier runs of the same cells.

Promise: an estimate says what it covers. Cells that never ran, or whose cost was never known, count
as unknown, not as zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proctor.runs.folder import OUTPUT, RunFolder, earlier_folders
from proctor.runs.summary import CellSummary
from proctor.runs.trial import CellKey

if TYPE_CHECKING:
    from proctor.trials.prepare import RunContext


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the planned trials; None without an earlier run.

    `timed` and `priced` are the numbers of planned trials that the two figures cover, `uncalled`
    those of cells without any recorded model call, `kept` is how many of the `scenarios` to be
    built are in the cache.
    """

    trials: int
    seconds: float | None
    timed: int
    cost_usd: float | None
    priced: int
    runs: int
    scenarios: int = 0
    kept: int = 0
    uncalled: int = 0


class _Results(msgspec.Struct):
    cells: list[CellSummary]


def estimate(context: RunContext, root: Path, name: str) -> Estimate:
    """Estimate each cell from the newest earlier run under that name that has it."""
    wanted = dict(context.plan.cells)
    found: dict[CellKey, CellSummary] = {}
    runs = 0
    for cells in earlier_results(root, name, context.output):
        runs += 1
        for cell in cells:
            if cell.cell in wanted and cell.trials:
                found.setdefault(cell.cell, cell)
        if len(found) == len(wanted):
            break
    spent = [(found[key], plan.trials) for key, plan in wanted.items() if key in found]
    timed = [(c.latency_p50_ms, n) for c, n in spent if c.latency_p50_ms is not None]
    priced = [(c.cost_mean_usd, n) for c, n in spent if c.cost_mean_usd is not None]
    at_once = context.options.at_once(len(context.plan.trials))
    builds: list[bool] = []
    if (design := context.design) is not None:
        for scenario in (
            design.scenarios[case] for case in context.cases if case in design.scenarios
        ):
            for seed in design.axes.seeds or (0,):
                builds.extend(
                    scenario.template.is_cached(seed, params) for params in design.axes.params
                )
    return Estimate(
        trials=len(context.plan.trials),
        seconds=sum(ms * n for ms, n in timed) / 1000 / at_once if timed else None,
        timed=sum(n for _, n in timed),
        cost_usd=sum(usd * n for usd, n in priced) if priced else None,
        priced=sum(n for _, n in priced),
        runs=runs,
        scenarios=len(builds),
        kept=sum(builds),
        uncalled=sum(
            n for c, n in spent if c.cost_usd is None and not (c.unpriced_calls or c.tokens)
        ),
    )


def earlier_results(root: Path, name: str, output: str = OUTPUT) -> Iterator[list[CellSummary]]:
    """Yield the cells of finished runs of an experiment, newest first; skip unreadable ones."""
    if not name:
        return
    decoder = msgspec.json.Decoder(_Results)
    for path in earlier_folders(root, output, name):
        try:
            yield decoder.decode(RunFolder(path).results_path.read_bytes()).cells
        except (OSError, msgspec.MsgspecError):
            continue
