"""The axes of an experiment: parameter combinations and seeds, as a pure function of the spec.

Promise: the order in which axes or their values are written changes nothing; a seeded sample is
the same on every machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

from proctor.errors import ProctorError
from proctor.runs.trial import params_key
from proctor.seeds import derive_seed
from proctor.spec.experiment import Axis, Experiment, NumberRange

MAX_PLANNED = 1_000_000
"""More trials in one run are a slip in an axis; a plan this long is a few hundred megabytes."""

_DRAWS_PER_SAMPLE = 100
"""How often a draw that was there already is drawn again, before fewer have to do."""


class Axes(NamedTuple):
    """What varies besides cases and agents. `seeds` is None where a suite is run as it is."""

    seeds: tuple[int, ...] | None = None
    params: tuple[dict[str, Any], ...] = ({},)

    def first(self) -> Axes:
        """One seed and one combination, for a smoke run."""
        return Axes(None if self.seeds is None else self.seeds[:1], self.params[:1])

    def record(self) -> dict[str, Any]:
        """What the run folder keeps of them."""
        return {
            "seeds": None if self.seeds is None else list(self.seeds),
            "params": [dict(each) for each in self.params],
        }

    @classmethod
    def restored(cls, record: Mapping[str, Any] | None) -> Axes:
        """The axes of a run folder."""
        if not record:
            return cls()
        seeds = record.get("seeds")
        params: list[dict[str, Any]] = record.get("params") or [{}]
        return cls(None if seeds is None else tuple(seeds), tuple(params))


def axes_of(experiment: Experiment, params: Mapping[str, Axis], fixed: Mapping[str, Any]) -> Axes:
    """Seeds and every combination of parameters, those with one value (`fixed`) included."""
    found = [{**fixed, **each} for each in _combinations(experiment, params)]
    found.sort(key=params_key)
    for one, other in itertools.pairwise(found):
        if params_key(one) == params_key(other):
            raise ProctorError(
                f"the parameters {params_key(one)!r} are there twice",
                where=_where(experiment, "params"),
                hint="values that read the same cannot be told apart in results",
            )
    return Axes(experiment.seeds, tuple(found))


def _combinations(experiment: Experiment, params: Mapping[str, Axis]) -> list[dict[str, Any]]:
    if not params:
        return [{}]
    axes = dict(sorted(params.items()))
    if any(isinstance(axis, NumberRange) for axis in axes.values()):
        return _drawn(experiment, axes)
    size = math.prod(len(axis) for axis in axes.values() if not isinstance(axis, NumberRange))
    if size > MAX_PLANNED:
        raise ProctorError(
            f"the grid has {size:,} combinations, at most {MAX_PLANNED:,} are planned",
            where=_where(experiment, "params"),
        )
    grid = [
        dict(zip(axes, values, strict=True))
        for values in itertools.product(
            *(axis for axis in axes.values() if not isinstance(axis, NumberRange))
        )
    ]
    if experiment.sample is None:
        return grid
    wanted = experiment.sample.n
    if wanted > len(grid):
        raise ProctorError(
            f"{wanted} combinations are asked for, the grid has {len(grid)}",
            where=_where(experiment, "sample"),
            hint="leave `sample` out to try all",
        )
    grid.sort(key=params_key)
    return Random(derive_seed(experiment.sample.seed, "grid")).sample(grid, wanted)  # noqa: S311 (repeatable chance)


def _drawn(experiment: Experiment, axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Independent draws along each axis; each axis has a stream of its own, so that adding one
    leaves the others as they were.
    """
    sample = experiment.sample
    assert sample is not None
    found: dict[str, dict[str, Any]] = {}
    for number in range(sample.n * _DRAWS_PER_SAMPLE):
        draw = {
            name: _draw(axis, Random(derive_seed(sample.seed, name, number)))  # noqa: S311 (repeatable chance)
            for name, axis in axes.items()
        }
        found.setdefault(params_key(draw), draw)
        if len(found) == sample.n:
            return list(found.values())
    raise ProctorError(
        f"only {len(found)} different combinations could be drawn, {sample.n} are asked for",
        where=_where(experiment, "sample"),
    )


def _draw(axis: NumberRange | tuple[Any, ...], random: Random) -> Any:
    if not isinstance(axis, NumberRange):
        return random.choice(sorted(axis, key=lambda value: (str(value), repr(value))))
    if axis.log:
        value = math.exp(random.uniform(math.log(axis.low), math.log(axis.high)))
    elif axis.integer:
        return random.randint(math.ceil(axis.low), math.floor(axis.high))
    else:
        value = random.uniform(axis.low, axis.high)
    value = min(max(value, axis.low), axis.high)
    return round(value) if axis.integer else value


def _where(experiment: Experiment, step: str) -> str:
    return str(experiment.place_of(step) or experiment.name)
