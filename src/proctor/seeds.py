"""Derive seeds from seeds: one for each trial, draw and member of an ensemble.

Guarantees: the same parts give the same seed on every machine, in every version and in every order
of execution, because repeating a run depends on it.
"""

from collections.abc import Iterator
from hashlib import sha256


def derive_seed(base: int, *parts: object) -> int:
    """Return the seed of what the parts identify.

    63 bits, so that it fits signed 64-bit columns and every random generator.

        derive_seed(0, "case-1", "agent", 3)
    """
    text = "\0".join(map(str, (base, *parts))).encode()
    return int.from_bytes(sha256(text).digest()[:8]) >> 1


def derive_seeds(count: int, base: int, *parts: object) -> Iterator[int]:
    """Return `derive_seed(base, *parts, number)` for each number below `count`."""
    head = "\0".join(map(str, (base, *parts, ""))).encode()
    # The same computation without joining the parts again for each of many trials.
    return (
        int.from_bytes(sha256(head + b"%d" % number).digest()[:8]) >> 1 for number in range(count)
    )
