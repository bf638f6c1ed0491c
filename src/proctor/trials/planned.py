"""The trials of a plan, each made when it is looked at: a plan of a million takes no room.

Promise: like a list of them in every way that can be seen. The first trial does not wait for the
seed of the last; only seeds are kept, since all agents and parameters have the same.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple, cast, overload

from proctor.runs.trial import PlannedTrial
from proctor.seeds import derive_seeds


class Seeds:
    """The seeds of the repeats of a case, derived when first reached and kept in 8 bytes each."""

    def __init__(self, count: int, base: int, case: str) -> None:
        self.count = count
        self._kept = array("q")
        self._rest = derive_seeds(count, base, case)

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept) if len(self._kept) == self.count else self._reached()

    def _reached(self) -> Iterator[int]:
        kept = self._kept
        for number in range(self.count):
            if number >= len(kept):
                kept.append(next(self._rest))
            yield kept[number]

    def __getitem__(self, number: int) -> int:
        self._kept.extend(islice(self._rest, max(0, number + 1 - len(self._kept))))
        return self._kept[number]

    @property
    def derived(self) -> int:
        """How many have been reached so far."""
        return len(self._kept)


class Repeats(NamedTuple):
    """The times a case is put to an agent under one seed of the experiment."""

    axis_seed: int | None
    seeds: Seeds


class CellTrials(NamedTuple):
    """The trials of a case, an agent and parameters; as many under each seed of the experiment."""

    case: str
    agent: str
    params: dict[str, Any]
    repeats: Sequence[Repeats]

    @property
    def size(self) -> int:
        """How many they are."""
        return sum(each.seeds.count for each in self.repeats)

    def all(self) -> Iterator[PlannedTrial]:
        """Each of them, seed by seed."""
        case, agent, params = self.case, self.agent, self.params
        return (
            PlannedTrial(
                case=case, agent=agent, index=index, seed=seed, params=params, axis_seed=axis_seed
            )
            for axis_seed, seeds in self.repeats
            for index, seed in enumerate(seeds)
        )

    def at(self, place: int) -> PlannedTrial:
        """The one at this place among them."""
        which, index = divmod(place, self.repeats[0].seeds.count)
        axis_seed, seeds = self.repeats[which]
        return PlannedTrial(
            case=self.case,
            agent=self.agent,
            index=index,
            seed=seeds[index],
            params=self.params,
            axis_seed=axis_seed,
        )


class PlannedTrials(Sequence[PlannedTrial]):  # noqa: PLW1641 (like a list, it has no hash)
    """The trials of some cells, one after the other."""

    def __init__(self, cells: Sequence[CellTrials]) -> None:
        self._cells = cells
        self._ends = list(accumulate(cell.size for cell in cells))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[PlannedTrial]:
        return chain.from_iterable(cell.all() for cell in self._cells)

    @overload
    def __getitem__(self, index: int) -> PlannedTrial: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PlannedTrial]: ...
    def __getitem__(self, index: int | slice) -> PlannedTrial | Sequence[PlannedTrial]:
        places = range(len(self))[index]
        return self._at(places) if isinstance(places, int) else [self._at(i) for i in places]

    def _at(self, place: int) -> PlannedTrial:
        which = bisect_right(self._ends, place)
        cell = self._cells[which]
        return cell.at(place - self._ends[which] + cell.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(cast("Sequence[object]", other))
