"""`diagnose`: what broke in a trace, without any model of a provider.

Promise: deterministic, offline, milliseconds a trace. Every finding names a span of the trace
and quotes text that stands in it. `Diagnosis.method` says what really looked.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from proctor.diagnose.finding import Diagnosis
from proctor.diagnose.quotes import scores_of
from proctor.diagnose.rules import RULES, apply_rules
from proctor.diagnose.steps import read_moves
from proctor.errors import ProctorError, did_you_mean

if TYPE_CHECKING:
    from proctor.diagnose.finding import Finding
    from proctor.diagnose.steps import Moves
    from proctor.trace import Trace

METHODS = {"offline": "offline", "off": "offline", "rules": "rules", "learned": "learned"}
"""Names users write, and the method each stands for: `offline` is the best that needs no LLM."""


def diagnose(trace: Trace, method: str = "offline") -> Diagnosis:
    """Find what broke in a trace.

    `rules` needs no training, `learned` is the shipped detector alone, `offline` is both.
    """
    chosen = METHODS.get(method)
    if chosen is None:
        hint = did_you_mean(method, METHODS)
        raise ProctorError(
            f"unknown method {method!r} of diagnosis",
            hint=hint or f"choose one of {', '.join(METHODS)}",
        )
    started = perf_counter()
    moves = read_moves(trace)
    findings = apply_rules(moves, RULES)
    seconds = {"rules": perf_counter() - started}
    values: list[float] | None = None
    if chosen != "rules":
        started = perf_counter()
        findings, values = _learned(moves, findings, chosen)
        seconds["learned"] = perf_counter() - started
    seen = bool(moves.moves or moves.strays or findings)
    scores = scores_of(findings, values) if seen else {}
    return Diagnosis(trace.trace_id, chosen, tuple(findings), scores, seconds)


def _learned(
    moves: Moves, rules: list[Finding], method: str
) -> tuple[list[Finding], list[float] | None]:
    """Findings in the order of spans, and scores. Numpy is not loaded before it is needed."""
    from proctor.diagnose.learned.detector import detectors, find
    from proctor.diagnose.learned.text_features import rows_of

    found = find(detectors(), rows_of(moves, rules), rules, method)
    order = moves.trace.index.position
    findings = sorted(found.findings, key=lambda f: (order[f.location], f.category))
    return findings, found.scores
