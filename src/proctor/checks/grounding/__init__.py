"""Grounding without a model: which claims of an answer the evidence supports.

Deterministic, linear in the evidence, and every unsupported claim is listed. It compares words and
numbers, not meaning: it finds invented figures, names, dates and quotations, and cannot see a
negation, a wrong relation between right words, or a figure that was correctly computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from proctor.checks.grounding._claims import (
    MIN_SENTENCE_WORDS,
    Candidate,
    ClaimKind,
    claims_of,
    content_words,
)
from proctor.checks.grounding._evidence import Evidence, EvidencePosition
from proctor.formatting import and_more
from proctor.sanitize import line

__all__ = [
    "CheckedClaim",
    "ClaimKind",
    "Grounding",
    "ground",
]


# Half of a sentence's words within one paragraph: paraphrases keep more, inventions fewer.
DEFAULT_OVERLAP = 0.5
# More claims than any answer for a person makes. Each may have to be looked up at many places, so
# an endless answer is judged by its start, and the reason says so.
MAX_CLAIMS = 1_000
# Characters around a piece of evidence: about a line.
_SNIPPET_MARGIN = 60
_SHOWN = 3
_SHOWN_CHARS = 80


class CheckedClaim(NamedTuple):
    """One claim: its text and place, whether it is supported, and by what.

    `evidence` is the piece of text that supports it, `source` the position of that text among
    those given. `detail` says what is missing when it is not supported.
    """

    kind: ClaimKind
    text: str
    start: int
    end: int
    supported: bool
    source: int | None = None
    evidence: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Grounding:
    """How much of an answer is supported: supported claims over all claims.

    `score` is None when nothing could be checked; `reason` then says why.
    """

    score: float | None
    reason: str
    claims: tuple[CheckedClaim, ...] = ()
    method: Literal["words and numbers"] = "words and numbers"

    @property
    def unsupported(self) -> tuple[CheckedClaim, ...]:
        """The claims that the evidence does not support, in the order of the answer."""
        return tuple(claim for claim in self.claims if not claim.supported)


def ground(
    answer: str,
    evidence: Sequence[str],
    *,
    question: str = "",
    min_overlap: float = DEFAULT_OVERLAP,
) -> Grounding:
    """Look up every claim of an answer in tool outputs and retrieved documents.

    A claim that the question makes, and the evidence does not, counts neither way.
    `min_overlap` is the share of a sentence's meaningful words that one passage must hold.
    """
    if not any(text.strip() for text in evidence):
        return Grounding(None, "no evidence was given: no tool output and no document has text")
    found = claims_of(answer)
    if not found:
        return Grounding(None, "the answer makes no claim that can be looked up")
    candidates = found[:MAX_CLAIMS]
    texts = Evidence(evidence, candidates)
    asked = _Question(question, candidates)
    judged = (_judge(answer, claim, texts, asked, min_overlap) for claim in candidates)
    claims = tuple(claim for claim in judged if claim is not None)
    if not claims:
        return Grounding(None, "the answer says only what the question said")
    supported = sum(claim.supported for claim in claims)
    reason = f"{supported} of {len(claims)} claims are supported by the evidence"
    if len(found) > MAX_CLAIMS:
        reason += f" (the first {MAX_CLAIMS} of {len(found)} looked up)"
    if supported < len(claims):
        wrong = [claim for claim in claims if not claim.supported]
        listed = and_more(wrong, _SHOWN, lambda c: f'{c.kind} "{line(c.text, _SHOWN_CHARS)}"')
        reason += f"; unsupported: {listed}"
    return Grounding(supported / len(claims), reason, claims)


class _Question:
    """The words of the question, and the claims it already makes."""

    def __init__(self, question: str, claims: Sequence[Candidate]) -> None:
        self.words = frozenset(content_words(question))
        self._evidence = Evidence([question], claims) if question.strip() else None

    def gives(self, claim: Candidate) -> bool:
        """Return whether a number, day, name or quotation is in the question."""
        return self._evidence is not None and _place(claim, self._evidence) is not None


def _judge(
    answer: str, claim: Candidate, texts: Evidence, asked: _Question, min_overlap: float
) -> CheckedClaim | None:
    """Return the claim with its verdict; None when it only repeats the question."""
    said = (claim.kind, answer[claim.start : claim.end], claim.start, claim.end)
    if claim.kind == "sentence":
        return _judge_sentence(said, claim, texts, asked, min_overlap)
    place = _place(claim, texts)
    if place is not None:
        return CheckedClaim(*said, True, place.source, snippet(texts.texts[place.source], place))
    if asked.gives(claim):
        return None
    return CheckedClaim(*said, False, detail=_lacking(claim, texts))


def _place(claim: Candidate, texts: Evidence) -> EvidencePosition | None:
    if claim.quantity is not None:
        return texts.number(claim.quantity, claim.slack)
    if claim.date is not None:
        return texts.date(claim.date.year, claim.date.month, claim.date.day)
    if claim.kind == "quote":
        return texts.phrase(claim.words)
    found = texts.name(claim.words)
    # "Yesterday Oslo": the word that opens a sentence may not belong to the name.
    if found is None and claim.head_optional:
        return texts.name(claim.words[1:])
    return found


def _lacking(claim: Candidate, texts: Evidence) -> str:
    if claim.quantity is not None and claim.quantity.dimension:
        other = texts.other_unit(claim.quantity)
        if other is not None:
            text = snippet(texts.texts[other.source], other, margin=0)
            return f"the evidence has this figure only as {text!r}"
    if claim.kind == "name" and len(claim.words) > 1:
        known = [word for word in claim.words if texts.phrase([word]) is not None]
        if known:
            return f"the evidence has only {', '.join(known)}"
    return "not in the evidence"


def _judge_sentence(
    said: tuple[ClaimKind, str, int, int],
    claim: Candidate,
    texts: Evidence,
    asked: _Question,
    min_overlap: float,
) -> CheckedClaim:
    # Words of the question need no evidence; the others do.
    own = [word for word in claim.words if word not in asked.words]
    # A sentence made of the question's words is looked up whole: repeating them proves nothing.
    words = own if len(own) >= MIN_SENTENCE_WORDS else list(claim.words)
    passage = texts.passage(words)
    held = passage.found if passage is not None else frozenset[str]()
    missing = [word for word in words if word not in held]
    supported = len(held) >= min_overlap * len(words)
    if passage is not None and supported:
        place = passage.place
        return CheckedClaim(*said, True, place.source, snippet(texts.texts[place.source], place))
    detail = f"no passage holds more than {len(held)} of {len(words)} words; lacking: "
    return CheckedClaim(*said, False, detail=detail + ", ".join(missing[:8]))


def snippet(text: str, place: EvidencePosition, margin: int = _SNIPPET_MARGIN) -> str:
    """Return the text around a place, on one line, with ellipses where it was cut."""
    start, end = max(0, place.start - margin), min(len(text), place.end + margin)
    inner = " ".join(text[start:end].split())
    if not margin:
        return inner
    return f"{'…' if start else ''}{inner}{'…' if end < len(text) else ''}"
