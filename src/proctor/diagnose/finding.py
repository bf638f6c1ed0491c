"""Finding, RootCause and Diagnosis: what broke, where, and with what confidence.

Guarantees: a finding names a span of its trace and quotes text that occurs in that span. Scores
follow the TRAIL scale, 0 to 5; without any score the overall score is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from proctor.diagnose.taxonomy import Category

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proctor.llm.chat_model import ModelUse


class Impact(StrEnum):
    """The effect of an error: on the answer, on the process, or cosmetic."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


# Findings of less confidence are hidden by default: of those, three in four are wrong.
SHOWN_FROM = 0.25


@dataclass(frozen=True, slots=True)
class Finding:
    """One error in a trace: one act, however many kinds of error it is."""

    category: Category
    location: str
    evidence: str
    description: str
    impact: Impact
    confidence: float
    detector: str
    agent: str = ""
    """The agent that acted."""
    step: int | None = None
    """The number of the step, from 1; of a group chat, the index of the message, from 0."""
    caused_by: tuple[str, ...] = ()
    """Earlier spans from which it follows."""
    also: tuple[Category, ...] = ()
    """Other kinds of error that the same act is."""

    def to_dict(self) -> dict[str, Any]:
        """Return the finding under the keys of TRAIL's annotation files, plus our own keys."""
        return {**msgspec.to_builtins(self), "confidence": round(self.confidence, 4)}


@dataclass(frozen=True, slots=True)
class RootCause:
    """The step to look at first: who did what, why it is the probable cause, what follows."""

    agent: str
    step: int
    location: str
    what: str
    why: str
    confidence: float
    evidence: str = ""
    because: tuple[str, ...] = ()
    """What led to it, in words: `steps 1–8: the same call with the same arguments, always []`."""
    follows: tuple[str, ...] = ()
    """Spans of later findings that follow from it."""
    instead: str = ""
    """What passing trials do at this point."""

    def to_dict(self) -> dict[str, Any]:
        """Return the cause as JSON data."""
        return {**msgspec.to_builtins(self), "confidence": round(self.confidence, 4)}


@dataclass(frozen=True, slots=True)
class Score:
    """One of the 0 to 5 scores, and why."""

    value: float
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of one trace. `seconds` holds the time of each detector.

    `method` names what produced the findings, `looked` everything that looked at the trace; `notes`
    say what a reader must know to trust them, such as why a model's answer was not used. Without a
    detector that is competent for a trace, `scores` is empty: unknown, not perfect.
    """

    trace_id: str
    method: str
    findings: tuple[Finding, ...] = ()
    scores: Mapping[str, Score] = field(default_factory=dict[str, Score])
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: tuple[str, ...] = ()
    use: ModelUse | None = None
    looked: tuple[str, ...] = ()
    candidates: tuple[RootCause, ...] = ()
    """Up to three probable causes, the most probable first; one if it can be singled out."""

    @property
    def decisive(self) -> RootCause | None:
        """Return the step to look at first; None if nothing points at one."""
        return self.candidates[0] if self.candidates else None

    @property
    def shown(self) -> tuple[Finding, ...]:
        """Return the findings that are probable enough to be worth a look."""
        return tuple(f for f in self.findings if f.confidence >= SHOWN_FROM)

    @property
    def overall(self) -> float | None:
        """Return the mean of the scores; None without any."""
        values = [score.value for score in self.scores.values()]
        return sum(values) / len(values) if values else None

    def _repr_html_(self) -> str:
        """Return a table of the findings, for notebooks."""
        from proctor.tables import html_table

        head = ("category", "impact", "span", "evidence", "description", "confidence")
        rows = [
            (f.category, f.impact, f.location, f.evidence, f.description, f"{f.confidence:.2f}")
            for f in self.findings
        ]
        scores = [f"{name}: {s.value:g} of 5, {s.reason}" for name, s in self.scores.items()]
        title = f"{len(rows)} findings in trace {self.trace_id} ({self.method})"
        return html_table(title, head, rows, [*scores, *self.notes])

    def to_dict(self, least: float = 0.0) -> dict[str, Any]:
        """Return the diagnosis as the content of a TRAIL prediction file.

        Findings of less confidence than `least` are left out and counted as `hidden`.
        """
        errors = [finding for finding in self.findings if finding.confidence >= least]
        hidden = len(self.findings) - len(errors)
        scores: dict[str, Any] = {}
        for name, score in self.scores.items():
            scores[f"{name}_score"] = score.value
            scores[f"{name}_reasoning"] = score.reason
        if scores:
            scores["overall"] = self.overall
        return {
            "trace_id": self.trace_id,
            "method": self.method,
            "errors": [finding.to_dict() for finding in errors],
            **({"hidden": hidden} if hidden else {}),
            "scores": [scores] if scores else [],
            "looked": list(self.looked),
            **({"decisive": decisive.to_dict()} if (decisive := self.decisive) else {}),
            **({"candidates": [c.to_dict() for c in self.candidates]} if self.candidates else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
            **({"use": self.use.to_dict()} if self.use is not None else {}),
        }
