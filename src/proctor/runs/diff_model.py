"""What a comparison with a baseline says: changes, each in a tier, each with a severity.

Promise: the machine form is these fields and nothing else; every form for people is made of
them. `error` fails the gate, `warning` asks for a look, `info` is only told.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from proctor.checks.base import Layer


class Severity(StrEnum):
    """How much a change matters, from not at all to failing the gate."""

    NONE = "none"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_RANK = {severity: rank for rank, severity in enumerate(Severity)}


def gravest(severities: Iterable[Severity]) -> Severity:
    """The severity to hear of first; none when there is none."""
    return max(severities, key=_RANK.__getitem__, default=Severity.NONE)


class ChangeKind(StrEnum):
    """Everything a comparison looks at."""

    VERDICT = "verdict"
    ANSWER = "answer"
    TOOLS_ADDED = "tools_added"
    TOOLS_REMOVED = "tools_removed"
    TOOLS_REORDERED = "tools_reordered"
    ARGUMENTS = "arguments"
    SEQUENCE = "sequence"
    STEPS = "steps"
    HANDOFFS = "handoffs"
    AVAILABLE_HANDOFFS = "available_handoffs"
    GUARDRAILS = "guardrails"
    STOP_REASON = "stop_reason"
    ROUTING = "routing"
    MODEL = "model"
    ERRORS = "errors"
    TOKENS = "tokens"
    COST = "cost"
    LATENCY = "latency"


class WordChange(msgspec.Struct, frozen=True):
    """A stretch of text: `equal`, `removed` or `added`."""

    op: str
    text: str


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is not as it was; `message` says it in one line, without agent output in it
    that has not been made safe to print.
    """

    tier: Layer
    kind: ChangeKind
    severity: Severity
    message: str
    before: Any = None
    after: Any = None
    words: tuple[WordChange, ...] = ()
    span_ids: tuple[str, ...] = ()


class CaseDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in one case. `similarity` is that of the tool sequences, 0 to 1."""

    case: str
    agent: str
    changes: tuple[Change, ...]
    similarity: float
    case_changed: bool = False
    notes: tuple[str, ...] = ()

    @property
    def severity(self) -> Severity:
        """The gravest of all changes."""
        return gravest(change.severity for change in self.changes)

    def tier(self, tier: Layer) -> tuple[Change, ...]:
        """The changes of one tier, gravest first."""
        mine = [change for change in self.changes if change.tier == tier]
        return tuple(sorted(mine, key=lambda change: -_RANK[change.severity]))

    @property
    def tiers(self) -> dict[Layer, Severity]:
        """The gravest change of each tier."""
        return {tier: gravest(change.severity for change in self.tier(tier)) for tier in Layer}


class NotCompared(msgspec.Struct, frozen=True):
    """A case that could not be compared, and why."""

    case: str
    agent: str
    reason: str


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """Every case of a suite compared with a version; `compared` is None for how it behaves now."""

    baseline: str
    compared: str | None
    cases: tuple[CaseDiff, ...]
    not_compared: tuple[NotCompared, ...] = ()
    notes: tuple[str, ...] = ()
    suite: str | None = None

    @property
    def severity(self) -> Severity:
        """The gravest change of all cases."""
        return gravest(case.severity for case in self.cases)

    @property
    def exit_code(self) -> int:
        """1 with an error, else 2 when something could not be compared, else 0."""
        if self.severity == Severity.ERROR:
            return 1
        return 2 if self.not_compared or not self.cases else 0

    def count(self, severity: Severity) -> int:
        """How many cases have this as their gravest change."""
        return sum(case.severity == severity for case in self.cases)
