"""The plan of a run: a pure function of its cases, agents, axes and options.

Promise: the same spec gives the same trials with the same keys and seeds, whatever the order of
cases and agents in the file and wherever it runs. A suite is planned in the order it is written
in; what has axes (an experiment) in the order of names, so that not even its journal differs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, cast, overload

from proctor.errors import ProctorError
from proctor.runs.early_stop import CellPlan
from proctor.runs.trial import CellKey, PlannedTrial, params_key
from proctor.seeds import derive_seeds
from proctor.spec import Case
from proctor.trials.axes import MAX_PLANNED, Axes
from proctor.trials.options import RunOptions


class Plan(NamedTuple):
    """Every trial of a run, and how many trials and which threshold each cell has."""

    trials: Sequence[PlannedTrial]
    cells: Mapping[CellKey, CellPlan]

    def record(self) -> list[dict[str, object]]:
        """Return the cells as the run folder records them."""
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


class PlannedTrials(Sequence[PlannedTrial]):  # noqa: PLW1641 (like a list, it has no hash)
    """The trials of a plan, generated on each iteration: a plan of a million takes no memory."""

    def __init__(
        self, cases: Sequence[tuple[str, int]], agents: Sequence[str], axes: Axes, base_seed: int
    ) -> None:
        self._cases = cases
        """Case ids with their repeats for each seed of the experiment."""
        self._agents = agents
        self._params = [dict(params) for params in axes.params]
        # A suite has no seeds as an axis; its trials derive theirs from the seed of the run.
        self._seeds = [(None, base_seed)] if axes.seeds is None else [(s, s) for s in axes.seeds]

    def __len__(self) -> int:
        repeats = sum(count for _, count in self._cases)
        return repeats * len(self._agents) * len(self._params) * len(self._seeds)

    def __iter__(self) -> Iterator[PlannedTrial]:
        shared = len(self._agents) * len(self._params) > 1
        for case, count in self._cases:
            # Agents and parameters are compared on the same seeds, so these are derived once.
            # With one agent the first trial does not wait for the seed of the last.
            seeds = [(axis, derive_seeds(count, base, case)) for axis, base in self._seeds]
            kept = [(axis, array("q", own) if shared else own) for axis, own in seeds]
            for agent in self._agents:
                for params in self._params:
                    for axis_seed, own in kept:
                        for index, seed in enumerate(own):
                            yield PlannedTrial(
                                case=case,
                                agent=agent,
                                index=index,
                                seed=seed,
                                params=params,
                                axis_seed=axis_seed,
                            )

    @overload
    def __getitem__(self, index: int) -> PlannedTrial: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PlannedTrial]: ...
    def __getitem__(self, index: int | slice) -> PlannedTrial | Sequence[PlannedTrial]:
        places = range(len(self))[index]
        if isinstance(places, int):
            return next(islice(self, places, None))
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(cast("Sequence[object]", other))


def plan_trials(
    cases: Iterable[Case], agents: Iterable[str], options: RunOptions, axes: Axes | None = None
) -> Plan:
    """Plan cases × agents × parameters × seeds × repeats.

    A trial's seed comes from the seed of the experiment, the case and the repeat alone, so agents
    and parameters are compared on the same draws.
    """
    axes = axes or Axes()
    names, chosen = list(agents), list(cases)
    if axes.seeds is not None:
        names.sort()
        chosen.sort(key=lambda case: case.id)
    repeats: list[tuple[str, int]] = []
    for case in chosen:
        own = case.trials if "trials" in case.model_fields_set else None
        count = options.trials or own or options.default_trials or case.trials
        repeats.append((case.id, count + options.more_trials))
    trials = PlannedTrials(repeats, names, axes, options.seed)
    if len(trials) > MAX_PLANNED:
        raise ProctorError(
            f"that would be {len(trials):,} trials, at most {MAX_PLANNED:,} are planned",
            hint="take fewer seeds, parameters or cases, or split the experiment",
        )
    combinations = [params_key(params) for params in axes.params]
    cells: dict[CellKey, CellPlan] = {}
    for case, (_, count) in zip(chosen, repeats, strict=True):
        cell = CellPlan(count * len(axes.seeds or (0,)), case.threshold)
        for agent in names:
            cells.update({CellKey(case.id, agent, key): cell for key in combinations})
    return Plan(trials, cells)
