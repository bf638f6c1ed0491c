"""What an agent retrieved, and how good it was against labelled sources.

Each retrieval is a ranked list of documents. A trace that does not record documents, or documents
without ids, are not judged: nothing found and nothing recorded are different things.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from proctor.checks.base import (
    Bound,
    Check,
    CheckContext,
    CheckResult,
    Layer,
    Name,
    Names,
    Positive,
    PositiveNumber,
    Results,
    failed,
    not_judged,
    parse_bound,
    passed,
    short_name,
)
from proctor.formatting import and_more, plural
from proctor.strict import Strict
from proctor.trace import Document, Span, SpanKind, Trace
from proctor.trace.conventions import documents_from

METRICS = ("precision", "recall", "mrr", "ndcg")

# Where producers name the file or page a document is from.
_SOURCE_KEYS = ("source", "url", "uri", "file", "file_name", "path", "title", "name", "document_id")


class Retrieved(NamedTuple):
    """One retrieval; `recorded` is False if the trace does not say what it found."""

    span: Span
    documents: tuple[Document, ...]
    recorded: bool


def is_retrieval(span: Span) -> bool:
    """Return whether a step retrieves: by its kind, its documents, or the name of its tool."""
    if span.kind == SpanKind.TOOL:
        return bool(span.documents) or "retriev" in (span.tool_name or span.name).casefold()
    return span.kind == SpanKind.RETRIEVAL or bool(span.documents)


def retrievals(trace: Trace) -> list[Retrieved]:
    """Return the retrievals of a trace, by start; one inside another is the same one."""
    tree = trace.index
    found: list[Retrieved] = []
    for span in tree.outermost([is_retrieval(span) for span in tree.spans]):
        documents = span.documents or documents_from(span.tool_output)
        node = None if documents else tree.node(span.span_id)
        if node is not None:  # the documents may be on a span inside, of another instrumentation
            documents = tuple(d for inner in node.descendants for d in inner.span.documents)
        result = span.tool_output if span.kind == SpanKind.TOOL else span.output
        # A text is no list of documents: it may hold any number of them.
        recorded = bool(documents) or (result is not None and not isinstance(result, str))
        found.append(Retrieved(span, documents, recorded))
    return found


# -- figures of one ranked list ------------------------------------------------------------------
# `grades` are those of the documents by rank, 0 where a document is not among the labelled ones.


def precision_at(grades: Sequence[float], k: int | None = None) -> float | None:
    """Return the share of the first k documents that is relevant; None without documents.

    Divided by k, as TREC does, also if fewer were retrieved; without k, by their number.
    """
    places = k or len(grades)
    return sum(grade > 0 for grade in grades[:k]) / places if places else None


def reciprocal_rank(grades: Sequence[float], k: int | None = None) -> float:
    """Return 1 / the rank of the first relevant document; 0 if none is among the first k."""
    return next((1 / rank for rank, grade in enumerate(grades[:k], 1) if grade > 0), 0.0)


def ndcg_at(grades: Sequence[float], ideal: Iterable[float], k: int | None = None) -> float | None:
    """Return DCG / ideal DCG with the grades as gains; None when nothing is relevant."""
    best = _dcg(sorted(ideal, reverse=True)[:k])
    return _dcg(grades[:k]) / best if best else None


def _dcg(grades: Iterable[float]) -> float:
    return sum(grade / math.log2(rank + 1) for rank, grade in enumerate(grades, 1))


# -- the check -----------------------------------------------------------------------------------


class RetrievalOptions(Strict):
    """What must be retrieved."""

    sources: Annotated[
        Names | dict[Name, PositiveNumber], Field(union_mode="left_to_right", kw_only=False)
    ] = ()
    """The sources that answer the question, by name, or with a grade each."""
    k: Positive | None = None
    """How many documents of each retrieval count; all when absent."""
    precision: Bound | None = None
    """A bound on the share of the first k documents that is from these sources."""
    recall: Bound | None = None
    """A bound on the share of these sources among the first k documents."""
    mrr: Bound | None = None
    """A bound on 1 / the rank of the first of these sources."""
    ndcg: Bound | None = None
    """A bound on the discounted gain of the ranking, as a share of the best possible one."""
    empty: bool = True
    """Whether a retrieval may find nothing."""

    @model_validator(mode="after")
    def _something_to_judge(self) -> Self:
        bounds = [name for name in METRICS if getattr(self, name) is not None]
        if not self.sources and (bounds or self.k is not None):
            raise ValueError(f"{(*bounds, 'k')[0]} needs sources: the labelled ones")
        if not self.sources and self.empty:
            raise ValueError("has nothing to judge: add sources, or empty: false")
        return self


class ExpectRetrieval(RetrievalOptions, Check):
    """The labelled sources were retrieved, well enough where bounds are given.

    A source is the id of a document or its source, file, URL or title (`*` matches any
    characters); a mapping gives each a grade. Without bounds, all must be among the first `k`.
    Several retrievals: recall and precision are of all their documents together, mrr and ndcg
    the mean.

    Example: `ExpectRetrieval(["refunds.md"], k=5, mrr=">= 0.5")`, `ExpectRetrieval(empty=False)`.
    """

    name: ClassVar[str] = "retrieval"
    layer: ClassVar[Layer] = Layer.PATH
    quick: ClassVar[bool] = True

    def evaluate(self, ctx: CheckContext[Any], /) -> Results:
        """Judge one trial."""
        found = retrievals(ctx.trace)
        results: dict[str, CheckResult] = {}
        if not self.empty:
            results["empty"] = _judge_empty(found)
        if not self.sources:
            return results
        names = [[_names_of(document) for document in each.documents[: self.k]] for each in found]
        if not any(name for ranking in names for name in ranking):
            recorded = any(each.recorded for each in found)
            if recorded and not any(each.documents for each in found):
                return {**results, "sources": failed("nothing was retrieved", actual=[])}
            why = "no retrieved document has an id or source" if recorded else _UNRECORDED
            return {**results, "sources": not_judged("unobserved", why)}
        figures = self._figures(names)
        seen = list(dict.fromkeys(next(iter(n)) for ranking in names for n in ranking if n))
        missing = [s for s in self.sources if not _matches_any(s, names)]
        bounds = {name: bound for name in METRICS if (bound := getattr(self, name)) is not None}
        detail = f"; not retrieved: {and_more(missing, 5, short_name)}" if missing else ""
        if not bounds:
            right = not missing
            reason = f"{len(self.sources) - len(missing)} of {plural(len(self.sources), 'source')}"
            make = passed if right else failed
            score = {} if right else {"score": figures["recall"] or 0.0}
            results["sources"] = make(
                f"{reason} retrieved{detail}",
                expected=list(self.sources),
                actual=seen,
                span_ids=() if right else tuple(each.span.span_id for each in found),
                **score,
            )
        for name, text in bounds.items():
            bound, value = parse_bound(text), figures[name] or 0.0
            label = name if self.k is None else f"{name}@{self.k}"
            make, score = (passed, {}) if bound.holds(value) else (failed, {"score": value})
            results[name] = make(
                f"{label} is {value:.2f}, expected {bound}{detail if make is failed else ''}",
                expected=str(bound),
                actual=value,
                **score,
            )
        return results

    def _figures(self, rankings: Sequence[Sequence[Sequence[str]]]) -> dict[str, float | None]:
        """Return the four figures of the rankings of a trace."""
        grades = (
            self.sources if isinstance(self.sources, Mapping) else dict.fromkeys(self.sources, 1.0)
        )
        ranked: list[list[float]] = []
        gains: list[list[float]] = []
        for ranking in rankings:
            counted: set[str] = set()
            ranked.append([])
            gains.append([])
            for names in ranking:
                source = next((s for s in grades if any(_is(name, s) for name in names)), None)
                ranked[-1].append(0.0 if source is None else grades[source])
                # A second part of the same document is relevant, and no further gain.
                gains[-1].append(0.0 if source is None or source in counted else grades[source])
                counted |= {source} if source is not None else set()
        hits = sum(_matches_any(source, rankings) for source in grades)
        every = [grade for each in ranked for grade in each]
        places = None if self.k is None else self.k * len(ranked)
        gained = [ndcg_at(each, grades.values(), self.k) or 0.0 for each in gains]
        return {
            "precision": precision_at(every, places),
            "recall": hits / len(grades),
            "mrr": sum(reciprocal_rank(each) for each in ranked) / len(ranked),
            "ndcg": sum(gained) / len(gained),
        }


_UNRECORDED = (
    "the trace records no retrieved documents; use proctor.capture.retrieval, "
    "or an instrumentation that keeps documents"
)


def _judge_empty(found: Sequence[Retrieved]) -> CheckResult:
    recorded = [each for each in found if each.recorded]
    nothing = [each.span for each in recorded if not each.documents]
    if nothing:
        which = f"{len(nothing)} of {plural(len(found), 'retrieval')} found nothing"
        return failed(which, span_ids=tuple(span.span_id for span in nothing))
    if not recorded:
        return not_judged("unobserved", _UNRECORDED)
    return passed(f"{plural(len(recorded), 'retrieval')}, none empty")


def _names_of(document: Document) -> list[str]:
    facts = (document.metadata.get(key) for key in _SOURCE_KEYS)
    return [str(name) for name in (document.id, *facts) if name]


def _is(name: str, source: str) -> bool:
    return name == source or ("*" in source and fnmatchcase(name, source))


def _matches_any(source: str, rankings: Iterable[Iterable[Iterable[str]]]) -> bool:
    return any(_is(n, source) for ranking in rankings for names in ranking for n in names)
