"""Seeds made from seeds: for each trial, draw and member of an ensemble one of its own.

Promise: the same on every machine, in every version and in every order of running. Runs are
repeated by it, so what it makes of the same parts never changes.
"""

from collections.abc import Iterator
from hashlib import sha256


def derive_seed(base: int, *parts: object) -> int:
    """A seed of its own for whatever the parts name.

    63 bits, so that it fits signed 64-bit columns and every random generator.
    """
    text = "\0".join(map(str, (base, *parts))).encode()
    return int.from_bytes(sha256(text).digest()[:8]) >> 1


def derive_seeds(count: int, base: int, *parts: object) -> Iterator[int]:
    """`derive_seed(base, *parts, number)` for the numbers below `count`."""
    head = "\0".join(map(str, (base, *parts, ""))).encode()
    # As above, without a call for each of many.
    return (
        int.from_bytes(sha256(head + b"%d" % number).digest()[:8]) >> 1 for number in range(count)
    )
