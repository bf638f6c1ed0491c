"""Who is paired with whom: a largest one-to-one pairing, never a greedy one.

Promise: no pairing has more pairs (Hopcroft and Karp 1973). A first pass pairs what is easily
paired and asks only as many questions as it needs; the rest asks each question at most once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator


def largest_pairing(
    left: int, right: int, accepts: Callable[[int, int], bool]
) -> list[tuple[int, int]]:
    """The pairs (l, r) of a largest pairing of `left` items with `right` items, by `l`."""
    asked: dict[int, bool] = {}

    def ask(one: int, other: int) -> bool:
        place = one * right + other
        answer = asked.get(place)
        if answer is None:
            answer = asked[place] = accepts(one, other)
        return answer

    partner, taken = _easy_pairs(left, right, ask)
    if None in partner and len(taken) < right:
        edges = [[other for other in range(right) if ask(one, other)] for one in range(left)]
        while _augment(edges, partner, taken):
            pass
    return [(one, other) for one, other in enumerate(partner) if other is not None]


def _easy_pairs(
    left: int, right: int, ask: Callable[[int, int], bool]
) -> tuple[list[int | None], dict[int, int]]:
    """Each item takes the first free one that accepts it, its own place tried first.

    Sequences that differ little mostly agree in order, so most questions are answered yes.
    """
    partner: list[int | None] = [None] * left
    taken: dict[int, int] = {}
    for one in range(min(left, right)):
        if ask(one, one):
            partner[one] = one
            taken[one] = one
    free = [other for other in range(right) if other not in taken]
    for one in range(left):
        if partner[one] is not None:
            continue
        for place, other in enumerate(free):
            if ask(one, other):
                partner[one] = other
                taken[other] = one
                del free[place]
                break
    return partner, taken


def _augment(edges: list[list[int]], partner: list[int | None], taken: dict[int, int]) -> bool:
    """One phase: a maximal set of disjoint shortest augmenting paths. False when none is left."""
    layer = {one: 0 for one, other in enumerate(partner) if other is None}
    queue = list(layer)
    reached = False
    for one in queue:
        for other in edges[one]:
            holder = taken.get(other)
            if holder is None:
                reached = True
            elif holder not in layer:
                layer[holder] = layer[one] + 1
                queue.append(holder)
    if not reached:
        return False
    left = {one: iter(edges[one]) for one in layer}
    for root in [one for one in layer if layer[one] == 0]:
        _follow(root, left, layer, partner, taken)
    return True


def _follow(
    root: int,
    left: dict[int, Iterator[int]],
    layer: dict[int, int],
    partner: list[int | None],
    taken: dict[int, int],
) -> None:
    """Walk down the layers from a free item; at a free end, flip the whole path."""
    path: list[tuple[int, int]] = []
    one = root
    while True:
        step = next((o for o in left[one] if _leads_on(o, one, layer, taken)), None)
        if step is None:
            # A dead end: its iterator is spent, so no later path tries it again.
            if not path:
                return
            one, _ = path.pop()
            continue
        path.append((one, step))
        holder = taken.get(step)
        if holder is None:
            for item, other in path:
                partner[item] = other
                taken[other] = item
            return
        one = holder


def _leads_on(other: int, one: int, layer: dict[int, int], taken: dict[int, int]) -> bool:
    holder = taken.get(other)
    return holder is None or layer.get(holder, -1) == layer[one] + 1
