"""Findings, their evidence and taxonomy: what broke, where, of which kind, with what confidence.

Guarantees: a finding names a span of its trace and quotes text that occurs in that span (`quote`
returns text for which `contains_quote` is true). Passages are truncated to a readable line; where
none occurs in the span, its own output is quoted, then its name. Scores follow the TRAIL scale, 0
to 5; without any score the overall score is None, never 0.

The taxonomy is TRAIL's: 21 kinds of agent error in three groups. Every label maps to one of them or
to None, never to a guess: an exact match ignoring case, spaces and punctuation, a plural, or a
trailing word such as "Error". The official scorer reads labels in its own, laxer way
(`official_label`), which is separate because its numbers depend on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from proctor.formatting import plural

if TYPE_CHECKING:
    from proctor.llm.chat_model import ModelUse
    from proctor.trace import Span


class Group(StrEnum):
    """The three groups of the taxonomy."""

    REASONING = "Reasoning"
    SYSTEM = "System Execution"
    PLANNING = "Planning"


class Category(StrEnum):
    """A leaf of the taxonomy, in the official scorer's order, on which its matches depend."""

    LANGUAGE_ONLY = "Language-only"
    TOOL_RELATED = "Tool-related"
    POOR_RETRIEVAL = "Poor Information Retrieval"
    MEMORY = "Incorrect Memory Usage"
    MISREAD_OUTPUT = "Tool Output Misinterpretation"
    WRONG_PROBLEM = "Incorrect Problem Identification"
    TOOL_SELECTION = "Tool Selection Errors"
    FORMATTING = "Formatting Errors"
    NON_COMPLIANCE = "Instruction Non-compliance"
    TOOL_DEFINITION = "Tool Definition Issues"
    ENVIRONMENT = "Environment Setup Errors"
    RATE_LIMIT = "Rate Limiting"
    AUTHENTICATION = "Authentication Errors"
    SERVICE = "Service Errors"
    NOT_FOUND = "Resource Not Found"
    EXHAUSTION = "Resource Exhaustion"
    TIMEOUT = "Timeout Issues"
    CONTEXT = "Context Handling Failures"
    RESOURCE_ABUSE = "Resource Abuse"
    GOAL_DEVIATION = "Goal Deviation"
    ORCHESTRATION = "Task Orchestration"

    @property
    def group(self) -> Group:
        """The group this leaf belongs to."""
        return LEAVES[self].group

    @property
    def meaning(self) -> str:
        """What the leaf means, in one line."""
        return LEAVES[self].meaning


class Leaf(NamedTuple):
    """Description of a leaf."""

    group: Group
    meaning: str


LEAVES: dict[Category, Leaf] = {
    Category.LANGUAGE_ONLY: Leaf(
        Group.REASONING, "A statement that nothing in the trace supports: made up from language."
    ),
    Category.TOOL_RELATED: Leaf(
        Group.REASONING, "Tool results or abilities that are made up: no such call was made."
    ),
    Category.POOR_RETRIEVAL: Leaf(
        Group.REASONING, "What was looked up does not serve the task, or was looked up badly."
    ),
    Category.MEMORY: Leaf(Group.REASONING, "Something known earlier is recalled wrongly."),
    Category.MISREAD_OUTPUT: Leaf(
        Group.REASONING, "A tool's answer is read as saying what it does not say."
    ),
    Category.WRONG_PROBLEM: Leaf(
        Group.REASONING, "The task, or the cause of a failure, is understood wrongly."
    ),
    Category.TOOL_SELECTION: Leaf(Group.REASONING, "The wrong tool for the step."),
    Category.FORMATTING: Leaf(
        Group.REASONING, "Output that does not parse or lacks the required form."
    ),
    Category.NON_COMPLIANCE: Leaf(Group.REASONING, "An explicit instruction is not followed."),
    Category.TOOL_DEFINITION: Leaf(
        Group.SYSTEM, "A tool does not do what its definition says, or is defined wrongly."
    ),
    Category.ENVIRONMENT: Leaf(
        Group.SYSTEM, "The environment lacks a permission, package or resource."
    ),
    Category.RATE_LIMIT: Leaf(Group.SYSTEM, "A service refuses because of too many requests."),
    Category.AUTHENTICATION: Leaf(Group.SYSTEM, "Access is refused: 401, 403, a bad key."),
    Category.SERVICE: Leaf(Group.SYSTEM, "A service fails on its side: 5xx."),
    Category.NOT_FOUND: Leaf(Group.SYSTEM, "The requested resource does not exist: 404."),
    Category.EXHAUSTION: Leaf(Group.SYSTEM, "Memory, disk, context or another resource runs out."),
    Category.TIMEOUT: Leaf(Group.SYSTEM, "A step takes longer than it may."),
    Category.CONTEXT: Leaf(Group.PLANNING, "Context is lost or confused over a long run."),
    Category.RESOURCE_ABUSE: Leaf(Group.PLANNING, "The same call again and again, to no end."),
    Category.GOAL_DEVIATION: Leaf(Group.PLANNING, "The agent leaves the task or its own plan."),
    Category.ORCHESTRATION: Leaf(Group.PLANNING, "Steps or sub-agents are coordinated badly."),
}

# Words annotators add or leave out; no two leaves differ in them alone.
_TAIL = re.compile(r"(errors?|issues?|failures?|problems?)$")


def _key(label: str) -> str:
    letters = "".join(ch for ch in label.casefold() if ch.isalnum())
    return _TAIL.sub("", letters).rstrip("s") or letters


_BY_KEY = {_key(category.value): category for category in Category}


def parse_category(label: str) -> Category | None:
    """Return the leaf a label names in any of its common spellings, or None."""
    return _BY_KEY.get(_key(label))


@lru_cache(maxsize=1024)
def official_label(label: str) -> str:
    """Return the label as the official scorer reads it; an unknown label is only lower-cased.

    Equality ignoring case and spaces first, then "is a part of", in the order of the taxonomy.
    """
    folded = label.lower().strip()
    bare = folded.replace(" ", "")
    if not bare:
        return ""
    names = [(category.value, category.value.lower().replace(" ", "")) for category in Category]
    for name, known in names:
        if bare == known:
            return name
    return next((name for name, known in names if bare in known), folded)


class Impact(StrEnum):
    """The effect of an error: on the answer, on the process, or cosmetic."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


# Findings of less confidence are hidden by default: of those, three in four are wrong.
SHOWN_FROM = 0.25

# Confidence of a decisive step that is named although nothing was found.
WITHOUT_EVIDENCE = 0.1


@dataclass(frozen=True, slots=True)
class Finding:
    """One error in a trace: one act, however many kinds of error it is."""

    category: Category
    location: str
    evidence: str
    description: str
    impact: Impact
    confidence: float
    detector: str
    agent: str = ""
    """The agent that acted."""
    step: int | None = None
    """The number of the step, from 1; of a group chat, the index of the message, from 0."""
    caused_by: tuple[str, ...] = ()
    """Earlier spans from which it follows."""
    also: tuple[Category, ...] = ()
    """Other kinds of error that the same act is."""
    tested: str = ""
    """What an experiment showed about its step (`proctor why`)."""

    def to_dict(self) -> dict[str, Any]:
        """Return the finding under the keys of TRAIL's annotation files, plus our own keys."""
        return _as_dict(self)


@dataclass(frozen=True, slots=True)
class RootCause:
    """The step to look at first: who did what, why it is the probable cause, what follows."""

    agent: str
    step: int
    location: str
    what: str
    why: str
    confidence: float
    evidence: str = ""
    because: tuple[str, ...] = ()
    """What led to it, in words: `steps 1–8: the same call with the same arguments, always []`."""
    follows: tuple[str, ...] = ()
    """Spans of later findings that follow from it."""
    instead: str = ""
    """What passing trials do at this point."""
    tested: str = ""
    """What an experiment showed about it (`proctor why`)."""

    def to_dict(self) -> dict[str, Any]:
        """Return the cause as JSON data."""
        return _as_dict(self)


def _as_dict(found: Finding | RootCause) -> dict[str, Any]:
    fields = {**msgspec.to_builtins(found), "confidence": round(found.confidence, 4)}
    if not found.tested:
        del fields["tested"]
    return fields


@dataclass(frozen=True, slots=True)
class Score:
    """One of the 0 to 5 scores, and why."""

    value: float
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of one trace. `seconds` holds the time of each detector.

    `method` names what produced the findings, `looked` everything that looked at the trace; `notes`
    say what a reader must know to trust them, such as why a model's answer was not used. Without a
    detector that is competent for a trace, `scores` is empty: unknown, not perfect.
    """

    trace_id: str
    method: str
    findings: tuple[Finding, ...] = ()
    scores: Mapping[str, Score] = field(default_factory=dict[str, Score])
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: tuple[str, ...] = ()
    use: ModelUse | None = None
    looked: tuple[str, ...] = ()
    candidates: tuple[RootCause, ...] = ()
    """Up to three probable causes, the most probable first; one if it can be singled out."""

    @property
    def decisive(self) -> RootCause | None:
        """Return the step to look at first; None if nothing points at one."""
        return self.candidates[0] if self.candidates else None

    @property
    def shown(self) -> tuple[Finding, ...]:
        """Return the findings that are probable enough to be worth a look."""
        return tuple(f for f in self.findings if f.confidence >= SHOWN_FROM)

    @property
    def overall(self) -> float | None:
        """Return the mean of the scores; None without any."""
        values = [score.value for score in self.scores.values()]
        return sum(values) / len(values) if values else None

    def _repr_html_(self) -> str:
        """Return a table of the findings, for notebooks."""
        from proctor.tables import html_table

        head = ("category", "impact", "span", "evidence", "description", "confidence")
        rows = [
            (f.category, f.impact, f.location, f.evidence, f.description, f"{f.confidence:.2f}")
            for f in self.findings
        ]
        scores = [f"{name}: {s.value:g} of 5, {s.reason}" for name, s in self.scores.items()]
        title = f"{len(rows)} findings in trace {self.trace_id} ({self.method})"
        return html_table(title, head, rows, [*scores, *self.notes])

    def to_dict(self, least: float = 0.0) -> dict[str, Any]:
        """Return the diagnosis as the content of a TRAIL prediction file.

        Findings of less confidence than `least` are left out and counted as `hidden`.
        """
        errors = [finding for finding in self.findings if finding.confidence >= least]
        hidden = len(self.findings) - len(errors)
        scores: dict[str, Any] = {}
        for name, score in self.scores.items():
            scores[f"{name}_score"] = score.value
            scores[f"{name}_reasoning"] = score.reason
        if scores:
            scores["overall"] = self.overall
        return {
            "trace_id": self.trace_id,
            "method": self.method,
            "errors": [finding.to_dict() for finding in errors],
            **({"hidden": hidden} if hidden else {}),
            "scores": [scores] if scores else [],
            "looked": list(self.looked),
            **({"decisive": decisive.to_dict()} if (decisive := self.decisive) else {}),
            **({"candidates": [c.to_dict() for c in self.candidates]} if self.candidates else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
            **({"use": self.use.to_dict()} if self.use is not None else {}),
        }


# Maximum characters of a quote: two lines of a terminal.
MAX_QUOTE = 240


def span_texts(span: Span) -> Iterator[str]:
    """Return every text of a span: output, input and everything it recorded."""
    for message in (*span.output_messages, *span.input_messages):
        if message.content:
            yield message.content
        for call in message.tool_calls:
            yield call.name
            yield from _strings(call.arguments)
    for value in (span.output, span.tool_output, span.tool_input, span.input):
        yield from _strings(value)
    yield from _strings([span.error_message, span.error_type, span.name])
    yield from _strings(span.attributes)
    for event in span.events:
        yield event.name
        yield from _strings(event.attributes)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        if entries:  # models quote a mapping as Python prints it
            yield repr(entries)
        for entry in entries.values():
            yield from _strings(entry)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in cast("Sequence[Any]", value):
            yield from _strings(item)


def contains_quote(span: Span, passage: str) -> bool:
    """Return whether the span contains this passage verbatim."""
    return bool(passage) and any(passage in text for text in span_texts(span))


def quote(span: Span, *wanted: str) -> str:
    """Return the first passage found in the span, truncated; else the start of its text."""
    for passage in wanted:
        cut = _whole(passage)
        if cut not in _NOTHING and contains_quote(span, cut):
            return cut
    for text in span_texts(span):
        cut = _whole(text)
        if cut not in _NOTHING:
            return cut
    return span.name


# Texts that quote nothing: how programs print the absence of a value.
_NOTHING = ("", "None", "null", "[None]", "nan")


def _whole(passage: str) -> str:
    """Return as much of a passage as a quote holds, at the end of a sentence or word if cut."""
    text = passage.strip()
    if len(text) <= MAX_QUOTE:
        return text
    cut = text[:MAX_QUOTE]
    for end in (cut.rfind(". ") + 1, cut.rfind("\n"), cut.rfind(" ")):
        if end > MAX_QUOTE // 2:
            return cut[:end].strip()
    return cut.strip()


# The four scores of a trace, 0 to 5; each reason names the related findings. Values come from the
# learned detector or a model; nothing else is competent to give them. No score looks at the
# answer: it describes how a trace reads.


BEST = 5.0

_PLANNING = frozenset(c for c in Category if c.group is Group.PLANNING)

# The scores, in TRAIL's order and under its names, with the categories that affect each.
BEARS_ON: Mapping[str, frozenset[Category]] = {
    "reliability": frozenset(Category),
    "security": frozenset({Category.AUTHENTICATION}),
    "instruction_adherence": frozenset(
        {
            Category.NON_COMPLIANCE,
            Category.FORMATTING,
            Category.GOAL_DEVIATION,
            Category.WRONG_PROBLEM,
        }
    ),
    "plan_opt": _PLANNING | {Category.TOOL_SELECTION, Category.POOR_RETRIEVAL},
}


def scores_of(findings: Sequence[Finding], values: Sequence[float]) -> dict[str, Score]:
    """Return every score with its reason; `values` are those of a detector, in order."""
    result: dict[str, Score] = {}
    for value, (name, categories) in zip(values, BEARS_ON.items(), strict=True):
        bearing = [f for f in findings if not categories.isdisjoint((f.category, *f.also))]
        result[name] = Score(round(min(max(value, 0.0), BEST), 2), _reason(bearing))
    return result


def _reason(findings: Sequence[Finding]) -> str:
    if not findings:
        return "No related findings."
    counted = Counter(finding.category.value for finding in findings)
    named = ", ".join(f"{name} ({n})" if n > 1 else name for name, n in counted.most_common(4))
    rest = len(counted) - 4
    return f"{named} and {plural(rest, 'more kind')}." if rest > 0 else f"{named}."


def in_words(name: str) -> str:
    """Return the display name of a score."""
    return "plan optimality" if name == "plan_opt" else name.replace("_", " ")
