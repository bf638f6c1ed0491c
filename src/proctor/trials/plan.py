"""The plan of a run: a pure function of its cases, agents and options.

Promise: the same spec gives the same trials with the same keys and seeds, whatever the order of
cases and agents in the file and wherever it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from proctor.runs.model import CellKey, PlannedTrial, derive_seed
from proctor.runs.stopping import CellPlan
from proctor.spec import Case
from proctor.trials.options import RunOptions


class Plan(NamedTuple):
    """Every trial of a run, and what each cell asks for."""

    trials: list[PlannedTrial]
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


def plan_suite(cases: Iterable[Case], agents: Iterable[str], options: RunOptions) -> Plan:
    """Cases × agents × repeats, by case and agent."""
    names = list(agents)
    trials: list[PlannedTrial] = []
    cells: dict[CellKey, CellPlan] = {}
    for case in cases:
        own = case.trials if "trials" in case.model_fields_set else None
        count = options.trials or own or options.default_trials or case.trials
        for agent in names:
            cells[CellKey(case.id, agent)] = CellPlan(count, case.threshold)
            trials.extend(
                PlannedTrial(
                    case=case.id,
                    agent=agent,
                    index=index,
                    seed=derive_seed(options.seed, case.id, index),
                )
                for index in range(count)
            )
    return Plan(trials, cells)
