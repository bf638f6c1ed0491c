"""Group findings of many traces, so that a failure seen forty times is one row.

Guarantees: findings share a cluster when their category, their position in the flow and their text
(without names, numbers and quotes) agree; the order of the traces does not matter. A cluster counts
traces, so a trace that fails twice in the same way counts once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from proctor.diagnose.finding import (
    WITHOUT_EVIDENCE,
    Category,
    Diagnosis,
    Finding,
    Impact,
    RootCause,
)

if TYPE_CHECKING:
    from proctor.trace import Span, Trace

# Examples stored per cluster: enough to see a pattern, few enough to read.
SAMPLES = 3

# Two messages that share this fraction of their words count as the same.
ALIKE = 0.6

_QUOTED = re.compile(r"""(?<!\w)(?P<q>['"`]).{1,300}?(?P=q)(?!\w)""", re.DOTALL)
_ADDRESS = re.compile(r"\b[a-z]+://\S+|(?:\.{0,2}/)?(?:[\w.-]+/)+[\w.-]+", re.IGNORECASE)
_NUMBER = re.compile(r"\b(?=\w*\d)\w+\b")
_WORD = re.compile(r"[^\W\d_]+")
_WORST = {Impact.HIGH: 0, Impact.MEDIUM: 1, Impact.LOW: 2}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a failure: its trial or trace, its span and its text."""

    where: str
    location: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """A failure and its frequency: `count` of the `of` traces examined."""

    category: Category
    place: str
    message: str
    impact: Impact
    count: int
    of: int
    findings: int
    samples: tuple[Occurrence, ...]

    def to_dict(self) -> dict[str, object]:
        """Return the cluster as JSON data."""
        return msgspec.to_builtins(self)


@dataclass(frozen=True, slots=True)
class SharedCause:
    """A cause and the trials that share it: the same failed checks, place and act."""

    cause: RootCause | None
    checks: tuple[str, ...]
    place: str
    where: tuple[str, ...]
    of: int

    def to_dict(self) -> dict[str, object]:
        """Return the cause as JSON data."""
        found = msgspec.to_builtins(self)
        return {**found, "count": len(self.where)}


class SharedCauses:
    """Collect diagnoses of trials and group those with the same cause."""

    def __init__(self) -> None:
        self._seen = 0
        self._groups: list[tuple[RootCause | None, tuple[str, ...], str, list[str]]] = []

    def add(
        self, where: str, trace: Trace, diagnosis: Diagnosis, failed: Iterable[str] = ()
    ) -> None:
        """Add one trace with the ids of the checks that failed; without these and without a cause
        there is nothing to share.
        """
        self._seen += 1
        cause, checks = diagnosis.decisive, tuple(sorted(set(failed)))
        if cause is not None and cause.confidence <= WITHOUT_EVIDENCE and not checks:
            # Named in case the run failed: it is no cause that runs share.
            cause = None
        if cause is None and not checks:
            return
        span = next((s for s in trace.spans if cause and s.span_id == cause.location), None)
        place = place_of(span) if cause else "the answer"
        words = _cause_words(cause)
        for other, *same, names in self._groups:
            known = _cause_words(other)
            alike = len(words & known) >= ALIKE * len(words | known)
            if same == [checks, place] and alike:
                names.append(where)
                return
        self._groups.append((cause, checks, place, [where]))

    def all(self) -> list[SharedCause]:
        """Return the shared causes, the most frequent first."""
        rows = [
            SharedCause(cause, checks, place, tuple(names), self._seen)
            for cause, checks, place, names in self._groups
        ]
        return sorted(rows, key=lambda row: (-len(row.where), row.where))


def _cause_words(cause: RootCause | None) -> frozenset[str]:
    return frozenset(_WORD.findall(normalised(cause.what))) if cause else frozenset()


class _Noted(NamedTuple):
    where: str
    finding: Finding
    words: frozenset[str]


class Clusters:
    """Collect diagnoses one by one and group their findings into clusters."""

    def __init__(self) -> None:
        self._seen = 0
        self._by_place: dict[tuple[Category, str], list[_Noted]] = defaultdict(list)

    def add(self, where: str, trace: Trace, diagnosis: Diagnosis) -> None:
        """Add the findings of one trace; `where` is the trace's display name."""
        self._seen += 1
        spans = {span.span_id: span for span in trace.spans}
        for finding in diagnosis.shown:
            place = place_of(spans.get(finding.location))
            words = frozenset(_WORD.findall(normalised(finding.description)))
            self._by_place[finding.category, place].append(_Noted(where, finding, words))

    def all(self) -> list[Cluster]:
        """Return every cluster, most frequent first, then most harmful."""
        found = [
            self._cluster(category, place, group)
            for (category, place), noted in self._by_place.items()
            for group in _alike(noted)
        ]
        return sorted(
            found, key=lambda c: (-c.count, _WORST[c.impact], c.category, c.place, c.message)
        )

    def _cluster(self, category: Category, place: str, group: list[_Noted]) -> Cluster:
        samples: dict[str, Occurrence] = {}
        for noted in group:
            finding = noted.finding
            # One sample per trace: a trace that fails twice in the same way counts once.
            samples.setdefault(
                noted.where, Occurrence(noted.where, finding.location, finding.evidence)
            )
        return Cluster(
            category=category,
            place=place,
            message=group[0].finding.description,
            impact=min((noted.finding.impact for noted in group), key=_WORST.__getitem__),
            count=len(samples),
            of=self._seen,
            findings=len(group),
            samples=tuple(samples.values())[:SAMPLES],
        )


def _alike(noted: Iterable[_Noted]) -> list[list[_Noted]]:
    """Group similar findings; each joins the first group it resembles."""
    groups: list[list[_Noted]] = []
    # Sorted, so that the result does not depend on the order of the traces.
    ordered = sorted(noted, key=lambda n: (n.finding.description, n.where, n.finding.location))
    for one in ordered:
        for group in groups:
            # Compared with the first of a group only, so that a group cannot drift.
            words = group[0].words
            if len(words & one.words) >= ALIKE * len(words | one.words):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def normalised(message: str) -> str:
    """Return the message without what varies between traces: quotes, addresses, numbers."""
    bare = _QUOTED.sub(" … ", message.casefold())
    return " ".join(_NUMBER.sub("#", _ADDRESS.sub("…", bare)).split())


def place_of(span: Span | None) -> str:
    """Return a span's position in the flow, in words that are the same for every trace."""
    if span is None:
        return "somewhere"
    what = span.tool_name or span.handoff_to or _NUMBER.sub("#", span.name)
    by = f" of {span.agent_name}" if span.agent_name and span.agent_name != what else ""
    return f"{span.kind.value} {what}{by}".strip()
