"""Pure functions over tool calls: how two trajectories compare, and how one behaves.

No spec, no trace, no I/O: anything with `name`, `arguments` and `span_id` is a call.
Formulas and edge cases: docs/reference/metrics.md.
"""

from proctor.checks.metrics.alignment import (
    ABSENT,
    ArgumentRules,
    PlainCall,
    calls_of,
    edit_distance,
    lcs_length,
)
from proctor.checks.metrics.matching import (
    Match,
    edit_similarity,
    loops,
    match_calls,
    redundancy,
    sequence_similarity,
    tool_precision,
    tool_recall,
)

__all__ = [
    "ABSENT",
    "ArgumentRules",
    "Match",
    "PlainCall",
    "calls_of",
    "edit_distance",
    "edit_similarity",
    "lcs_length",
    "loops",
    "match_calls",
    "redundancy",
    "sequence_similarity",
    "tool_precision",
    "tool_recall",
]
