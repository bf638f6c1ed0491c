"""A diagnosis against the gold annotation of its trace: the official measure, trace by trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from proctor.checks.result import Outcome, skipped, unscored
from proctor.diagnose.scorer import score
from proctor.diagnose.trail_data import Annotation, parse_annotation
from proctor.words import percent

if TYPE_CHECKING:
    from proctor.checks.registry import CheckContext


class AgainstGold:
    """The share of gold (span, category) pairs that were found: joint accuracy of one trace."""

    def __init__(self, gold: str) -> None:
        self._gold = Path(gold)

    def __call__(self, context: CheckContext) -> Outcome:
        """The score of the diagnosis in the answer; skipped where there is no gold."""
        name = str(context.case.id)
        path = self._gold / f"{name}.json"
        if not path.is_file():
            return skipped("no gold annotation of this trace")
        try:
            gold, _ = parse_annotation(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return unscored(f"the gold annotation cannot be read: {error}")
        told, _ = parse_annotation(context.answer)
        return _outcome(name, gold, told)


def _outcome(name: str, gold: Annotation, told: Annotation) -> Outcome:
    card = score({name: gold}, {name: told})
    found = len({(m.location, m.label) for m in told.marks})
    wanted = len({(m.location, m.label) for m in gold.marks})
    share = card.joint_accuracy or 0.0
    reason = f"{percent(share)} of {wanted} gold pairs found, with {found} findings"
    return Outcome(passed=share > 0 or not wanted, score=share, reason=reason)
