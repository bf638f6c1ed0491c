"""Names of results where one check has several.

Promise: unique within the check, and the same in every trial of a case.
"""

from __future__ import annotations

from collections.abc import Sequence

from proctor.checks.registry import Outcomes
from proctor.checks.result import Outcome


def named(
    ids: Sequence[str | None], fallbacks: Sequence[str], outcomes: Sequence[Outcome]
) -> Outcomes:
    """Outcomes of one check under names of their own; a single unnamed one needs none."""
    if len(outcomes) == 1 and ids[0] is None:
        return outcomes[0]
    names = [given or fallback for given, fallback in zip(ids, fallbacks, strict=True)]
    return list(zip(unique(names), outcomes, strict=True))


def unique(names: Sequence[str]) -> list[str]:
    """The names, a repeated one made unique by `#2`, `#3`, …"""
    seen: dict[str, int] = {}
    result: list[str] = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return result
