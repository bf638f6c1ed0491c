"""Findings of the learned detector, alone or combined with the rules (`offline`).

Guarantees: on a trace unlike the training traces the detector reports nothing, and `offline` equals
the rules. The same holds for a trace in which nothing failed, no rule fired and no plan was made:
there is nothing to compare the agent with.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proctor.diagnose._steps import plain
from proctor.diagnose.finding import Finding, Impact
from proctor.diagnose.learned._classifier import (
    Judges,
    Scorer,
    TraceScores,
    TrainedModel,
    planned,
    shipped,
)
from proctor.diagnose.quotes import quote
from proctor.diagnose.rules import heard
from proctor.diagnose.taxonomy import Category
from proctor.sanitize import line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from proctor.diagnose.learned.text_features import FeatureRow

CATEGORIES = tuple(Category)

# Minimum mean cosine of a trace's spans to known ones. Held-out TRAIL traces lie above 0.74; one
# half of TRAIL seen from the other below 0.59; traces of other frameworks below 0.7.
FAMILIAR = 0.7

# A whole sentence; an abbreviation or a decimal point does not end it.
_SENTENCE = re.compile(r"[^\n]{20,230}?(?:[.!?](?=\s|$)|$)", re.MULTILINE)

# Categories that annotators usually mark HIGH: they affect the answer.
_HIGH = frozenset(
    {
        Category.LANGUAGE_ONLY,
        Category.TOOL_RELATED,
        Category.GOAL_DEVIATION,
        Category.MISREAD_OUTPUT,
        Category.WRONG_PROBLEM,
    }
)


class Detectors(NamedTuple):
    """The detector and the classifiers on top of it: alone, and combined with the rules."""

    detector: TrainedModel
    learned: Judges
    offline: Judges
    scorer: Scorer

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays to store."""
        return {
            **self.detector.arrays(),
            **self.learned.arrays("learned"),
            **self.offline.arrays("offline"),
            **self.scorer.arrays("score"),
        }

    @classmethod
    def read(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        """Load the detectors from stored arrays."""
        judges = (Judges.read("learned", arrays), Judges.read("offline", arrays))
        return cls(TrainedModel.read(arrays), *judges, Scorer.read("score", arrays))

    def chances(
        self,
        reading: TraceScores,
        rows: Sequence[FeatureRow],
        rules: Sequence[Finding],
        method: str,
    ) -> NDArray[np.float64]:
        """Return the probability of an error by row and category."""
        by_rules = np.zeros((len(rows), len(CATEGORIES)))
        if method == "offline":
            place = {row.span.span_id: number for number, row in enumerate(rows)}
            for finding in heard(rules):
                if finding.location in place:
                    column = CATEGORIES.index(finding.category)
                    by_rules[place[finding.location], column] = finding.confidence
        judges = self.offline if method == "offline" else self.learned
        return judges.of(rows).chances(reading.scores, by_rules)


@cache
def detectors() -> Detectors:
    """Load the shipped detectors, once."""
    return Detectors.read(shipped())


class Detection(NamedTuple):
    """Findings of one trace; scores are None where the detector is not competent."""

    findings: list[Finding]
    scores: list[float] | None


def find(
    known: Detectors, rows: Sequence[FeatureRow], rules: Sequence[Finding], method: str
) -> Detection:
    """Return the unordered findings of `learned` or `offline`; `rules` are the findings of the
    rules.
    """
    reading = known.detector.read_rows(rows)
    # Without a failure, a rule or a plan there is nothing to compare the agent with.
    held = bool(rules) or planned(rows) or any(row.scene.kind for row in rows)
    if not held or reading.familiar < FAMILIAR:
        return Detection(list(rules) if method == "offline" else [], None)
    chances = known.chances(reading, rows, rules, "offline")
    scores = known.scorer.values(rows, chances, known.detector.fact_names)
    return Detection(judged(known, reading, rows, rules, method), scores)


def judged(
    known: Detectors,
    reading: TraceScores,
    rows: Sequence[FeatureRow],
    rules: Sequence[Finding],
    method: str,
) -> list[Finding]:
    """Return every pair of span and category above the threshold, however unfamiliar the trace is.

    Rule findings on spans without a row, such as an agent that crashed, are kept unchanged.
    """
    chances = known.chances(reading, rows, rules, method)
    threshold = (known.offline if method == "offline" else known.learned).of(rows).threshold
    by_rule = {(f.location, f.category): f for f in rules} if method == "offline" else {}
    judgeable = {row.span.span_id for row in rows}
    findings = [rule for rule in by_rule.values() if rule.location not in judgeable]
    for number in np.flatnonzero(chances >= threshold):
        place, column = divmod(int(number), len(CATEGORIES))
        row, category, sure = rows[place], CATEGORIES[column], float(chances[place, column])
        rule = by_rule.get((row.span.span_id, category))
        evidence = rule.evidence if rule else _evidence(row)
        if not evidence:  # an empty span: nothing to point at
            continue
        description = f"{_act(row)}. {category.meaning}"
        findings.append(
            Finding(
                category=category,
                location=row.span.span_id,
                evidence=evidence,
                description=rule.description if rule else description,
                impact=rule.impact if rule else _impact(category),
                confidence=sure,
                detector=f"{rule.detector}+learned" if rule else "learned",
            )
        )
    return findings


def _act(row: FeatureRow) -> str:
    """Name what a span does."""
    step = row.scene.step
    if row.span is not step.span:
        arguments = line(plain(row.span.tool_input), 80)
        return f"Calls {row.span.tool_name or row.span.name}({arguments})"
    if step.failure:
        return f"Goes wrong: {line(step.failure, 100)}"
    if step.answers:
        return "Hands in the answer"
    if step.plans:
        return "Plans"
    names = list(dict.fromkeys(call.name for call in step.calls))
    if names:
        return f"Requests {', '.join(names[:3])}"
    return "Writes code" if "```" in step.text else "Replies"


def _evidence(row: FeatureRow) -> str:
    step = row.scene.step
    if row.span is not step.span:
        return quote(row.span, row.span.error_message or "")
    lines = [line for line in step.failure.splitlines() if line.strip()][:2]
    said = _SENTENCE.findall(step.text)[:1] or [call.arguments for call in step.calls]
    return quote(row.span, *lines, *said)


def _impact(category: Category) -> Impact:
    if category in _HIGH:
        return Impact.HIGH
    return Impact.LOW if category is Category.FORMATTING else Impact.MEDIUM
