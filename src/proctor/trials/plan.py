"""The plan of a run: a pure function of its cases, agents, axes and options.

Promise: the same spec gives the same trials with the same keys and seeds, whatever the order of
cases and agents in the file and wherever it runs. A suite is planned in the order it is written
in; what has axes (an experiment) in the order of names, so that not even its journal differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from proctor.errors import ProctorError
from proctor.runs.early_stop import CellPlan
from proctor.runs.trial import CellKey, PlannedTrial, params_key
from proctor.spec import Case
from proctor.trials.axes import MAX_PLANNED, Axes
from proctor.trials.options import RunOptions
from proctor.trials.planned import CellTrials, PlannedTrials, Repeats, Seeds


class Plan(NamedTuple):
    """Every trial of a run, and what each cell asks for."""

    trials: Sequence[PlannedTrial]
    cells: Mapping[CellKey, CellPlan]

    def record(self) -> list[dict[str, object]]:
        """The cells as kept in the run folder."""
        return [
            {
                "case": key.case,
                "agent": key.agent,
                **({"params": key.params} if key.params else {}),
                "trials": cell.trials,
                "threshold": cell.threshold,
            }
            for key, cell in self.cells.items()
        ]


def plan_trials(
    cases: Iterable[Case], agents: Iterable[str], options: RunOptions, axes: Axes | None = None
) -> Plan:
    """Cases × agents × parameters × seeds × repeats.

    A trial's seed comes from the seed of the experiment, the case and the repeat alone, so agents
    and parameters are compared on the same draws.
    """
    axes = axes or Axes()
    names, chosen = list(agents), list(cases)
    if axes.seeds is not None:
        names.sort()
        chosen.sort(key=lambda case: case.id)
    counts = [_count(case, options) for case in chosen]
    _refuse_too_many(sum(counts) * len(names) * len(axes.params) * len(axes.seeds or (0,)))
    combinations = [(dict(params), params_key(params)) for params in axes.params]
    trials: list[CellTrials] = []
    cells: dict[CellKey, CellPlan] = {}
    for case, count in zip(chosen, counts, strict=True):
        repeats = _repeats(case.id, count, options.seed, axes.seeds)
        asked = CellPlan(count * len(repeats), case.threshold)
        for agent in names:
            for params, key in combinations:
                cells[CellKey(case.id, agent, key)] = asked
                trials.append(CellTrials(case.id, agent, params, repeats))
    return Plan(PlannedTrials(trials), cells)


def _repeats(case: str, count: int, base: int, seeds: tuple[int, ...] | None) -> list[Repeats]:
    if seeds is None:
        return [Repeats(None, Seeds(count, base, case))]
    return [Repeats(axis_seed, Seeds(count, axis_seed, case)) for axis_seed in seeds]


def _count(case: Case, options: RunOptions) -> int:
    own = case.trials if "trials" in case.model_fields_set else None
    count = options.trials or own or options.default_trials or case.trials
    return count + options.more_trials


def _refuse_too_many(planned: int) -> None:
    if planned > MAX_PLANNED:
        raise ProctorError(
            f"that would be {planned:,} trials, at most {MAX_PLANNED:,} are planned",
            hint="take fewer seeds, parameters or cases, or split the experiment",
        )
