"""A comparison with a baseline as one JSON document: the machine form.

Changing a key breaks users' scripts; `format` rises when one has to change.
"""

from __future__ import annotations

import json
from typing import Any

from proctor.runs.diff import CaseDiff, Change, Diff
from proctor.sanitize import json_value

FORMAT = 1


def render(diff: Diff) -> str:
    """The whole comparison."""
    document = {
        "format": FORMAT,
        "suite": diff.suite,
        "baseline": diff.baseline,
        "compared": diff.compared,
        "severity": str(diff.severity),
        "exit_code": diff.exit_code,
        "cases": [_case(case) for case in diff.cases],
        "not_compared": [
            {"case": each.case, "agent": each.agent, "reason": each.reason}
            for each in diff.not_compared
        ],
        "notes": list(diff.notes),
    }
    return json.dumps(json_value(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _case(case: CaseDiff) -> dict[str, Any]:
    return {
        "case": case.case,
        "agent": case.agent,
        "severity": str(case.severity),
        "tiers": {str(tier): str(severity) for tier, severity in case.tiers.items()},
        "tool_similarity": case.similarity,
        "case_changed": case.case_changed,
        "changes": [_change(change) for change in case.changes],
        "notes": list(case.notes),
    }


def _change(change: Change) -> dict[str, Any]:
    told: dict[str, Any] = {
        "tier": str(change.tier),
        "kind": str(change.kind),
        "severity": str(change.severity),
        "message": change.message,
        "before": change.before,
        "after": change.after,
    }
    if change.words:
        told["words"] = [{"op": each.op, "text": each.text} for each in change.words]
    if change.span_ids:
        told["span_ids"] = list(change.span_ids)
    return told
