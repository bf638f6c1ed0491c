"""Quality of a trace: what is scored, what it comes to, and from where on someone should look.

Promise: a dimension that cannot be scored is None and left out of the overall figure, whose
weights are then renormalised; a score of 0.0 is a score. Everything configurable is here.
"""

from __future__ import annotations

DIMENSIONS = (
    "tool_selection",
    "sequence",
    "redundancy",
    "efficiency",
    "latency",
    "error_recovery",
    "retrieval",
    "reasoning",
)
"""The eight dimensions, in the order they are shown."""
