"""How things are said to people: numbers with their nouns, lists that stay short.

Promise: the same thing reads the same in every report, message and error. English only, and
plurals by an `s`: the few nouns we count have no other.
"""

from collections.abc import Sequence

SHOWN_NAMES = 3
"""Enough to know what is meant, few enough for a line that says more than the names."""


def plural(number: int, noun: str) -> str:
    """`1 case`, `2 cases`, `1,000 cases`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some(names: Sequence[str]) -> str:
    """`a, b, c, …`: the first few of them, by name."""
    return ", ".join([*names[:SHOWN_NAMES], *(["…"] if len(names) > SHOWN_NAMES else [])])
