"""Grounding without a model: which claims of an answer the evidence supports.

Promise: deterministic, linear in the evidence, and every unsupported piece is shown. It compares
words and numbers, not meaning: it finds invented figures, names, dates and quotations, and cannot
see a negation, a wrong relation between right words, or a figure that was rightly computed.
"""

from proctor.checks.grounding.claims import ClaimKind
from proctor.checks.grounding.score import Claim, Grounding, ground

__all__ = ["Claim", "ClaimKind", "Grounding", "ground"]
