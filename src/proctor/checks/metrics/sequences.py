"""Longest common subsequence, its alignment, and edit distance, for sequences of thousands.

Promise: the exact textbook values. One row of the dynamic-programming table is one integer, a
bit per column (Hyyrö 2004 for the subsequence, Myers 1999 for the distance), so a row costs a
few additions of big integers: time grows with the product of the lengths divided by the word
size. The alignment keeps every row: memory is that product in bits.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def lcs_length(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """How many items the longest common subsequence of `a` and `b` has."""
    start, end = _shared_ends(a, b)
    a, b = a[start : len(a) - end], b[start : len(b) - end]
    if not a or not b:
        return start + end
    masks = positions_of(b)
    everything = (1 << len(b)) - 1
    row = everything
    for item in a:
        hits = row & masks.get(item, 0)
        row = ((row + hits) | (row - hits)) & everything
    return start + end + len(b) - row.bit_count()


def lcs_alignment(rows: Sequence[int], columns: int) -> list[tuple[int, int]]:
    """A longest chain of pairs (row, column), both rising, each pair allowed by the masks.

    `rows[i]` has bit `j` set where row item `i` may be paired with column item `j`: any
    relation will do, equality or not.
    """
    everything = (1 << columns) - 1
    row = everything
    table: list[int] = []
    for mask in rows:
        hits = row & mask
        row = ((row + hits) | (row - hits)) & everything
        table.append(row)
    pairs: list[tuple[int, int]] = []
    i, j = len(rows) - 1, columns - 1
    while i >= 0 and j >= 0:
        # A zero bit at (i, j) means the table steps up by one at column j of row i.
        if (table[i] >> j) & 1:
            j -= 1
        elif i and not (table[i - 1] >> j) & 1:
            i -= 1
        else:
            pairs.append((i, j))
            i -= 1
            j -= 1
    pairs.reverse()
    return pairs


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and replacements that turn `a` into `b`."""
    start, end = _shared_ends(a, b)
    a, b = a[start : len(a) - end], b[start : len(b) - end]
    if not a or not b:
        return len(a) or len(b)
    masks = positions_of(b)
    everything = (1 << len(b)) - 1
    last = 1 << (len(b) - 1)
    rises, falls, distance = everything, 0, len(b)
    for item in a:
        equal = masks.get(item, 0)
        diagonal = (((equal & rises) + rises) ^ rises) | equal | falls
        up = falls | (everything & ~(diagonal | rises))
        down = rises & diagonal
        if up & last:
            distance += 1
        if down & last:
            distance -= 1
        # The first column of the table rises by one each row: hence the bit shifted in.
        up = (up << 1) | 1
        down <<= 1
        rises = (down | ~(diagonal | up)) & everything
        falls = up & diagonal & everything
    return distance


def positions_of(items: Sequence[Hashable]) -> dict[Hashable, int]:
    """Item → an integer with a bit set at each of its positions."""
    # Collected as positions first: growing one big integer bit by bit would be quadratic.
    places: dict[Hashable, list[int]] = {}
    for position, item in enumerate(items):
        places.setdefault(item, []).append(position)
    return {item: bits(found) for item, found in places.items()}


def bits(positions: Sequence[int]) -> int:
    """The integer with exactly these bits set."""
    if len(positions) < 8:
        total = 0
        for position in positions:
            total |= 1 << position
        return total
    buffer = bytearray(max(positions) // 8 + 1)
    for position in positions:
        buffer[position >> 3] |= 1 << (position & 7)
    return int.from_bytes(buffer, "little")


def _shared_ends(a: Sequence[Hashable], b: Sequence[Hashable]) -> tuple[int, int]:
    shortest = min(len(a), len(b))
    start = 0
    while start < shortest and a[start] == b[start]:
        start += 1
    end = 0
    while end < shortest - start and a[-1 - end] == b[-1 - end]:
        end += 1
    return start, end
