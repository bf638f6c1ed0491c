"""Parse a model's reply into verified findings.

Guarantees: any reply gives a result or a ValueError with the reason. Unknown categories and spans
are dropped and counted, duplicates merged; with `strict` evidence every quote occurs in its span.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, cast

from proctor.diagnose.finding import (
    MAX_QUOTE,
    Finding,
    Impact,
    Score,
    contains_quote,
    parse_category,
    span_texts,
)
from proctor.diagnose.llm._prompt import SCORES

if TYPE_CHECKING:
    from proctor.trace import Span, Trace

# A whole string, so that commas inside one are skipped, or a comma that ends a list.
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[\]}])', re.DOTALL)

Evidence = Literal["strict", "off"]

# The key that marks entries taken from a reply whose end is missing.
CUT = "(cut off)"

# Findings read from one reply; more is a flood, not a diagnosis.
MAX_FINDINGS = 200

# Characters of a reply that are read.
MAX_REPLY = 1_000_000

# Positions in a reply tried as the start of an object.
MAX_OPENINGS = 200

# Confidence of a model's finding before that model was measured: better than chance.
CONFIDENCE = {Impact.HIGH: 0.7, Impact.MEDIUM: 0.6, Impact.LOW: 0.5}

_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_ID = re.compile(r"[\w.:-]+")
_WORDS = re.compile(r"\w+")


def without_trailing_commas(text: str) -> str:
    """Return the text without commas right before a closing bracket, outside strings."""
    return _STRING_OR_COMMA.sub(lambda m: "" if m.group() == "," else m.group(), text)


@dataclass(slots=True)
class Cleaned:
    """Verified findings, and the number dropped, by reason."""

    findings: list[Finding] = field(default_factory=list[Finding])
    dropped: Counter[str] = field(default_factory=Counter[str])
    repaired: Counter[str] = field(default_factory=Counter[str])
    cut: bool = False
    """Whether the reply ended in the middle of its list."""

    def notes(self) -> list[str]:
        """Describe what was dropped, and what was repaired."""
        cut = ["the model's reply was cut off: more may be missing"] if self.cut else []
        dropped = [f"{n} of the model's findings dropped: {why}" for why, n in self.dropped.items()]
        repaired = [
            f"{n} of the model's findings repaired: {why}" for why, n in self.repaired.items()
        ]
        return cut + dropped + repaired


def json_in(text: str) -> dict[str, Any]:
    """Return the JSON object in a reply: alone, fenced or within prose; ValueError without one.

    A comma before a closing bracket is ignored, a bare list is a list of errors, and a truncated
    list gives its complete entries (`CUT` marks it).
    """
    text = text[:MAX_REPLY]
    found: dict[str, Any] | None = None
    longest = 0
    for candidate in (text, *_FENCE.findall(text)):
        if (value := _object(candidate)) is not None:
            return value
    decoder = json.JSONDecoder()
    end = 0
    for number, match in enumerate(re.finditer(r"\{", text)):
        # Each brace that opens no object costs a scan of the rest: bounded, not quadratic.
        if number >= MAX_OPENINGS:
            break
        if match.start() < end:
            continue
        try:
            value, stop = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        end = stop
        # The largest object wins, since prose may quote small ones.
        if isinstance(value, dict) and stop - match.start() > longest:
            found, longest = cast("dict[str, Any]", value), stop - match.start()
    rescued = _entries(text) if found is None or "errors" not in found else []
    if rescued:
        return {"errors": rescued, CUT: True}
    if found is None:
        raise ValueError("there is no JSON object in it")
    return found


def _object(text: str) -> dict[str, Any] | None:
    for said in (text, without_trailing_commas(text)):
        try:
            value: Any = json.loads(said)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        if isinstance(value, list) and any(isinstance(e, dict) for e in cast("list[Any]", value)):
            return {"errors": value}
        return None
    return None


def _entries(text: str) -> list[dict[str, Any]]:
    """Return the complete entries of a truncated `errors` list."""
    begun = re.search(r'"errors"\s*:\s*\[', text)
    if begun is None:
        return []
    decoder, at, entries = json.JSONDecoder(), begun.end(), list[dict[str, Any]]()
    while len(entries) < MAX_FINDINGS and (start := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        if isinstance(value, dict):
            entries.append(cast("dict[str, Any]", value))
    return entries


def read_findings(
    reply: Mapping[str, Any], trace: Trace, *, evidence: Evidence, detector: str
) -> Cleaned:
    """Return the findings of a reply that can be located in the trace."""
    listed = reply.get("errors")
    if not isinstance(listed, list):
        raise ValueError("`errors` is not a list")
    spans = {span.span_id: span for span in trace.spans}
    cleaned = Cleaned(cut=bool(reply.get(CUT)))
    merged: dict[tuple[str, str], Finding] = {}
    entries = cast("list[Any]", listed)
    if more := len(entries[MAX_FINDINGS:]):
        cleaned.dropped[f"beyond the first {MAX_FINDINGS}"] = more
    for entry in entries[:MAX_FINDINGS]:
        try:
            finding = _finding(entry, spans, evidence, detector, cleaned.repaired)
        except ValueError as error:
            cleaned.dropped[str(error)] += 1
            continue
        key = (finding.location, finding.category.value)
        if key in merged:
            cleaned.dropped["the same span and category again"] += 1
        merged.setdefault(key, finding)
    cleaned.findings = list(merged.values())
    return cleaned


def _finding(
    entry: Any, spans: Mapping[str, Span], evidence: Evidence, detector: str, repaired: Counter[str]
) -> Finding:
    """Return one entry of a reply as a finding; ValueError says why it is dropped."""
    if not isinstance(entry, dict):
        raise ValueError("not an object")
    said = cast("dict[str, Any]", entry)
    category = parse_category(str(said.get("category") or ""))
    if category is None:
        raise ValueError("an unknown category")
    passage = str(said.get("evidence") or "").strip()
    span = _located(str(said.get("location") or ""), passage, spans)
    if span is None:
        raise ValueError("a span that is not in the trace")
    shown = passage[:MAX_QUOTE] if evidence == "off" else verified(span, passage)
    if not shown and evidence == "strict":
        shown = nearest_quote(span, passage)
        if not shown:
            raise ValueError("a quote that is not in its span")
        repaired["a quote that was paraphrased"] += 1
    if span.span_id not in str(said.get("location") or ""):
        repaired["a span id that was written differently"] += 1
    stated = str(said.get("impact") or "").strip().upper()
    impact = Impact(stated) if stated in Impact.__members__ else Impact.MEDIUM
    return Finding(
        category=category,
        location=span.span_id,
        evidence=shown,
        description=_plain(said.get("description"), category.meaning),
        impact=impact,
        confidence=CONFIDENCE[impact],
        detector=detector,
    )


def _located(said: str, passage: str, spans: Mapping[str, Span]) -> Span | None:
    """Return the span a finding refers to: by its id, by a unique prefix or part of one, or by its
    quote.
    """
    text = said.strip().strip("`'\"")
    if text in spans:
        return spans[text]
    # Models write words or quotes around an id, and change its case.
    by_fold = {span_id.casefold(): span for span_id, span in spans.items()}
    for token in _ID.findall(text):
        if token in spans:
            return spans[token]
        if len(by_fold) == len(spans) and token.casefold() in by_fold:
            return by_fold[token.casefold()]
    if len(text) >= 6:  # shorter beginnings fit by chance
        close = [span for span_id, span in spans.items() if span_id.startswith(text)]
        if len(close) == 1:
            return close[0]
    named = [span for span in spans.values() if text and span.name == text]
    if len(named) == 1:
        return named[0]
    if len(passage) >= 12:
        holding = [span for span in spans.values() if contains_quote(span, passage)]
        if len(holding) == 1:
            return holding[0]
    return None


def verified(span: Span, passage: str) -> str:
    """Return the quote as it occurs in the span, white space aside; empty when it does not."""
    cut = passage[:MAX_QUOTE].strip()
    if cut and contains_quote(span, cut):
        return cut
    words = cut.split()
    if not words:
        return ""
    # Models change line breaks and indentation when they quote.
    pattern = re.compile(r"\s+".join(re.escape(word) for word in words))
    for text in span_texts(span):
        if (found := pattern.search(text)) is not None:
            return found.group()
    return ""


# Share of a quote's words that must be in the span, in order, for it to count as paraphrased.
PARAPHRASED = 0.75

# Words of a span that are searched for a paraphrased quote.
MAX_WORDS = 20_000


def nearest_quote(span: Span, passage: str) -> str:
    """Return the text of the span that a quote paraphrases lightly; empty when there is none.

    A few words may be changed, added or left out; most must be there, close together, in order.
    """
    wanted = [word.casefold() for word in _WORDS.findall(passage[:MAX_QUOTE])]
    if len(wanted) < 4:
        return ""
    for text in span_texts(span):
        found = list(islice(_WORDS.finditer(text), MAX_WORDS))
        words = [match.group().casefold() for match in found]
        rarest = set(wanted)
        starts = [n for n, word in enumerate(words) if word in rarest]
        best, place = 0.0, 0
        for start in dict.fromkeys(max(0, n - k) for n in starts[:400] for k in (0, 1)):
            window = words[start : start + len(wanted) + 2]
            # Cheap bound first: common words, whatever their order.
            if len(rarest & set(window)) < PARAPHRASED * len(rarest):
                continue
            blocks = SequenceMatcher(None, wanted, window, autojunk=False).get_matching_blocks()
            share = sum(block.size for block in blocks) / len(wanted)
            if share > best:
                best, place = share, start
        if best >= PARAPHRASED:
            last = min(len(found), place + len(wanted)) - 1
            return text[found[place].start() : found[last].end()][:MAX_QUOTE].strip()
    return ""


def read_scores(reply: Mapping[str, Any]) -> dict[str, Score]:
    """Return the scores of a reply that are numbers from 0 to 5; drop the others."""
    given = reply.get("scores")
    if isinstance(given, list):
        listed = cast("list[Any]", given)
        given = listed[0] if listed else None
    scores: dict[str, Score] = {}
    if not isinstance(given, dict):
        return scores
    entries = cast("dict[str, Any]", given)
    for name in SCORES:
        value = entries.get(name, entries.get(f"{name}_score"))
        reason: Any = entries.get(f"{name}_reasoning") or ""
        if isinstance(value, dict):
            inner = cast("dict[str, Any]", value)
            value, reason = inner.get("value"), inner.get("reason") or ""
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = float(value)
            if math.isfinite(number) and 0 <= number <= 5:
                scores[name] = Score(number, _plain(reason, "The model gave no reason."))
    return scores


def _plain(text: Any, otherwise: str) -> str:
    """Return the model's text, truncated and without lone surrogates, which no file can hold."""
    return str(text or otherwise)[:1000].encode(errors="replace").decode()


def read_choice(reply: Mapping[str, Any], of: int) -> list[int]:
    """Return the numbers of the accepted findings, from 1; ValueError when there is no list."""
    kept = reply.get("keep")
    if not isinstance(kept, list):
        raise ValueError("`keep` is not a list")
    numbers: Iterable[Any] = cast("list[Any]", kept)
    return sorted(
        {n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and 1 <= n <= of}
    )
