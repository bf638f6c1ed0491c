"""Finding and Diagnosis: what broke, where, and how sure we are.

Promise: a finding names a span of its trace and quotes text that stands in that span. Scores
follow the TRAIL scale, 0 to 5; without any the overall score is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from proctor.diagnose.taxonomy import Category

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proctor.llm.chat_model import ModelUse


class Impact(StrEnum):
    """What an error touches: the answer, the process, or only looks."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


@dataclass(frozen=True, slots=True)
class Finding:
    """One error in a trace."""

    category: Category
    location: str
    evidence: str
    description: str
    impact: Impact
    confidence: float
    detector: str

    def to_dict(self) -> dict[str, Any]:
        """The finding in the keys of TRAIL's annotation files, and ours beside them."""
        return {
            "category": self.category.value,
            "location": self.location,
            "evidence": self.evidence,
            "description": self.description,
            "impact": self.impact.value,
            "confidence": round(self.confidence, 4),
            "detector": self.detector,
        }


@dataclass(frozen=True, slots=True)
class Score:
    """One of the 0 to 5 scores, and why."""

    value: float
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything found in one trace. `seconds` names each detector's time.

    `method` is what really looked; `notes` say what a reader must know to trust it, such as why
    a model's answer was not used.
    """

    trace_id: str
    method: str
    findings: tuple[Finding, ...] = ()
    scores: Mapping[str, Score] = field(default_factory=dict[str, Score])
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: tuple[str, ...] = ()
    use: ModelUse | None = None

    @property
    def overall(self) -> float | None:
        """The mean of the scores; None without any."""
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

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as a TRAIL prediction file holds it."""
        scores: dict[str, Any] = {}
        for name, score in self.scores.items():
            scores[f"{name}_score"] = score.value
            scores[f"{name}_reasoning"] = score.reason
        if scores:
            scores["overall"] = self.overall
        return {
            "trace_id": self.trace_id,
            "method": self.method,
            "errors": [finding.to_dict() for finding in self.findings],
            "scores": [scores] if scores else [],
            **({"notes": list(self.notes)} if self.notes else {}),
            **({"use": self.use.to_dict()} if self.use is not None else {}),
        }
