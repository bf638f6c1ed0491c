"""Compare two runs of the same spec field by field.

Guarantees: only clocks and ids are left out (`CLOCKS_AND_IDS`, the span ids that checks refer to,
and measured latencies); every other field of a trial is compared, and each difference is reported
with its trial. Trials of only one run are reported separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from proctor.checks.base import CheckResult
from proctor.runs.trial import Trial

CLOCKS_AND_IDS = frozenset(
    {"started_ns", "duration_ms", "latency_ms", "trace_id", "trace", "workdir"}
)
"""Fields of a trial that differ in every run: times, and the location of its trace."""

CIRCUMSTANCES = frozenset({"attempt", "retries", "retry_errors"})
"""Effort of a trial: it depends on the network, not the agent."""

CLOCK_CHECKS = frozenset({"max_latency_ms"})
"""Checks that measure time: their status is compared, not the measured value."""

_FIELDS = tuple(
    name
    for name in Trial.__struct_fields__
    if name not in CLOCKS_AND_IDS and name not in CIRCUMSTANCES
)


class FieldDifference(msgspec.Struct, frozen=True):
    """One field of one trial that differs between two runs."""

    trial: str
    field: str
    first: Any
    second: Any


class Sameness(msgspec.Struct, frozen=True, kw_only=True):
    """Result of comparing two runs. `compared` counts the trials both have."""

    compared: int
    differing: int
    differences: tuple[FieldDifference, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """Whether both runs have the same trials with the same results."""
        return not (self.differing or self.only_first or self.only_second)


MAX_LISTED = 100
"""Maximum number of listed differences; all are counted."""


def compare_trials(first: Iterable[Trial], second: Iterable[Trial]) -> Sameness:
    """Compare every trial of two runs with its counterpart."""
    before = {trial.key: trial for trial in first}
    after = {trial.key: trial for trial in second}
    both = sorted(before.keys() & after.keys())
    differing = 0
    listed: list[FieldDifference] = []
    for key in both:
        found = list(differences(before[key], after[key]))
        differing += bool(found)
        listed.extend(found[: MAX_LISTED - len(listed)])
    return Sameness(
        compared=len(both),
        differing=differing,
        differences=tuple(listed),
        only_first=tuple(before[key].name for key in sorted(before.keys() - after.keys())),
        only_second=tuple(after[key].name for key in sorted(after.keys() - before.keys())),
    )


def differences(first: Trial, second: Trial) -> Iterator[FieldDifference]:
    """Return the fields of a trial that differ between two runs."""
    for field in _FIELDS:
        one, other = getattr(first, field), getattr(second, field)
        if field == "checks":
            yield from _check_differences(first.name, first.checks, second.checks)
        elif one != other:
            yield FieldDifference(first.name, field, one, other)


def _check_differences(
    name: str, first: tuple[CheckResult, ...], second: tuple[CheckResult, ...]
) -> Iterator[FieldDifference]:
    one = {check.id: _comparable(check) for check in first}
    other = {check.id: _comparable(check) for check in second}
    # Both sides: a check that only one run has is a difference too.
    for check in sorted(one.keys() | other.keys()):
        mine, theirs = one.get(check, {}), other.get(check, {})
        for field in sorted(mine.keys() | theirs.keys()):
            before, after = mine.get(field), theirs.get(field)
            if before != after:
                yield FieldDifference(name, f"checks.{check}.{field}", before, after)


def _comparable(check: CheckResult) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.structs.asdict(check)
    # Span ids are new in every run, and a judge costs nothing when its verdict is cached.
    del fields["span_ids"], fields["cost_usd"]
    if check.check in CLOCK_CHECKS:
        return {key: fields[key] for key in ("check", "layer", "weight", "blocking", "status")}
    return fields
