"""`diagnose`: what broke in a trace.

Promise: deterministic, offline, milliseconds a trace. Every finding names a span of the trace
and quotes text that stands in it. `Diagnosis.method` says what really looked.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from proctor.errors import ProctorError, did_you_mean

from .model import Diagnosis
from .moves import read_moves
from .rules import RULES, apply_rules

if TYPE_CHECKING:
    from proctor.trace import Trace

METHODS = {"offline": "rules", "off": "rules", "rules": "rules"}
"""Names users write, and the method each stands for: `offline` is the best that needs no LLM."""


def diagnose(trace: Trace, method: str = "offline") -> Diagnosis:
    """Find what broke in a trace, without any model of a provider."""
    chosen = METHODS.get(method)
    if chosen is None:
        hint = did_you_mean(method, METHODS)
        raise ProctorError(
            f"unknown method {method!r} of diagnosis",
            hint=hint or f"choose one of {', '.join(METHODS)}",
        )
    started = perf_counter()
    findings = apply_rules(read_moves(trace), RULES)
    seconds = {chosen: perf_counter() - started}
    return Diagnosis(trace.trace_id, chosen, tuple(findings), seconds=seconds)
