"""What was retrieved against labelled sources: figures, the check, and capturing it."""

import itertools
import math

import pytest
from commands import proctor as command
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from trial_parts import judged, result, span, tool, trace_of

import proctor
from proctor.checks import CheckStatus, ExpectRetrieval
from proctor.checks.retrieval import ndcg_at, precision_at, reciprocal_rank, retrievals
from proctor.trace import Document, Span

PASS, FAIL, WARN = CheckStatus.PASS, CheckStatus.FAIL, CheckStatus.WARN


def retrieval(*sources: str, **fields) -> Span:
    return span("retrieval", "retrieve", documents=tuple(Document(id=s) for s in sources), **fields)


def written(**options) -> dict:
    return {"path": {"retrieval": options}}


# -- figures -------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 3), max_size=3),
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(1, 7),
)
def test_figures_equal_their_definitions(grades, others, k):
    """R-C8: precision@k, reciprocal rank and nDCG@k against the plain formulas."""
    top = grades[:k]
    assert precision_at(grades, k) == sum(1 for g in top if g) / k
    first = [n + 1 for n, grade in enumerate(top) if grade]
    assert reciprocal_rank(grades, k) == (1 / first[0] if first else 0)
    labelled = [g for g in grades if g] + others
    found = ndcg_at(grades, labelled, k)

    def dcg(order):
        return sum(g / math.log2(n + 2) for n, g in enumerate(order[:k]))

    # The best order, by trying every one of them.
    best = max(dcg(list(order)) for order in itertools.permutations(labelled))
    assert found == (pytest.approx(dcg(grades) / best) if best else None)


async def test_bounds_at_k():
    """R-C8: each bound is a result with its figure, judged on the first k documents."""
    trace = trace_of(retrieval("x", "refunds", "y", "terms"))
    options = {"sources": ["refunds", "terms"], "precision": 0.5, "recall": 1, "mrr": 0.5}
    at_4 = await judged(written(**options, ndcg=0.6, k=4), trace)
    assert {r.id: (r.status, r.actual) for r in at_4} == {
        "retrieval.precision": (PASS, 0.5),
        "retrieval.recall": (PASS, 1.0),
        "retrieval.mrr": (PASS, 0.5),
        "retrieval.ndcg": (
            PASS,
            pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3))),
        ),
    }
    at_2 = {r.id: r for r in await judged(written(**options, k=2), trace)}
    assert at_2["retrieval.recall"].status == WARN
    assert at_2["retrieval.recall"].reason == (
        "recall@2 is 0.50, expected >= 1; not retrieved: terms"
    )


async def test_grades_parts_of_a_document_and_several_retrievals():
    """R-C8: a repeated source gains once; recall is of all retrievals, mrr and ndcg their mean."""
    graded = {"sources": {"best": 3, "good": 1}, "ndcg": 0.9, "recall": 1, "mrr": 0.7}
    trace = trace_of(retrieval("best", "best", "x"), retrieval("x", "good"))
    found = {r.id: r.actual for r in await judged(written(**graded), trace)}
    ideal = 3 + 1 / math.log2(3)
    assert found["retrieval.ndcg"] == pytest.approx((3 / ideal + (1 / math.log2(3)) / ideal) / 2)
    assert (found["retrieval.recall"], found["retrieval.mrr"]) == (1.0, 0.75)


async def test_expected_sources_by_any_name():
    """R-C3: id, source, file, URL or title; `*` matches; a missing one is named."""
    document = Document(text="…", metadata={"source": "docs/refunds.md", "title": "Refunds"})
    trace = trace_of(span("retrieval", "r", documents=(document,)))
    for name in ("docs/refunds.md", "Refunds", "*refunds.md"):
        assert (await result(written(sources=name), trace)).status == PASS
    found = await result(written(sources=["Refunds", "terms"]), trace)
    assert (found.status, found.score) == (WARN, 0.5)
    assert found.reason == "1 of 2 sources retrieved; not retrieved: terms"
    blocking = {"path": {"retrieval": {"sources": "terms"}, "blocking": True}}
    assert (await result(blocking, trace)).status == FAIL


async def test_empty_retrievals():
    """R-C3: `empty: false` fails a retrieval that found nothing; unrecorded is not judged."""
    nothing = trace_of(retrieval("a"), retrieval(output=[]))
    found = await result(written(empty=False), nothing)
    assert (found.status, found.reason) == (WARN, "1 of 2 retrievals found nothing")
    assert found.span_ids == ("s2",)
    assert (await result(written(empty=False), trace_of(retrieval("a")))).status == PASS
    for trace in (trace_of("a"), trace_of(retrieval())):
        unseen = await result(written(empty=False), trace)
        assert (unseen.status, unseen.category) == (CheckStatus.NOT_JUDGED, "unobserved")
    lost = await result(written(sources="a"), trace_of(retrieval(output=[])))
    assert (lost.status, lost.reason) == (WARN, "nothing was retrieved")
    unnamed = trace_of(span("retrieval", "r", documents=(Document(text="x"),)))
    assert (await result(written(sources="a"), unnamed)).status == CheckStatus.NOT_JUDGED


def test_a_retrieval_around_another_is_one():
    """R-C8: of nested spans the outer one counts, with the inner one's documents if it has none."""
    outer, inner = retrieval(), retrieval("a")
    trace = trace_of(outer, inner, tool("retrieve_docs", {}, '[{"id": "b"}]'))
    inner.parent_id, inner.start_ns = "s1", 0
    outer.end_ns = inner.end_ns
    trace.forget()
    assert [[d.id for d in each.documents] for each in retrievals(trace)] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to judge"),
        ({"recall": 1}, "recall needs sources"),
        ({"k": 3}, "k needs sources"),
        ({"sources": ["a"], "recal": 1}, "recal"),
        ({"sources": ["a"], "recall": 1.5}, "1.5"),
    ],
)
def test_what_cannot_be_judged_is_refused(options, message):
    """R-S1: an option without effect is an error."""
    with pytest.raises(ValidationError, match=message):
        ExpectRetrieval(**options)


# -- capture -------------------------------------------------------------------------------------


def test_capture_takes_documents_scores_and_a_request_id():
    """R-T6: scores with or without documents; a block that sets none found nothing."""
    with proctor.capture(query="q", request_id="req-7") as trace:
        with proctor.capture.retrieval("q", documents=["a", {"id": "b"}], scores=[0.2, 0.3]):
            pass
        with proctor.capture.retrieval("q", scores=[0.9]):
            pass
        with proctor.capture.retrieval("q"):
            pass
    assert trace.request_id == "req-7"
    first, second, third = retrievals(trace)
    assert [(d.id, d.text, d.score) for d in first.documents] == [
        (None, "a", 0.2),
        ("b", None, 0.3),
    ]
    assert [d.score for d in second.documents] == [0.9]
    assert (third.documents, third.recorded) == ((), True)
    with (
        pytest.raises(ValueError, match="1 scores for 2 documents"),
        proctor.capture.retrieval(documents=["a", "b"], scores=[0.1]),
    ):
        pass


def test_retrieval_in_a_suite(tmp_path):
    """R-C8: relevance and labelled sources of a captured agent, through the command line."""
    (tmp_path / "agent.py").write_text(
        "import proctor\n"
        "def agent(question):\n"
        "    found = [{'id': 'refunds.md', 'text': '30 days'}, {'id': 'other.md'}]\n"
        "    with proctor.capture.retrieval(question, documents=found, scores=[0.2, 0.3]):\n"
        "        return '30 days'\n"
    )
    (tmp_path / "suite.yaml").write_text(
        "agent: agent:agent\n"
        "cases:\n"
        "  - input: How long?\n"
        "    checks:\n"
        "      - check: has_matching_span\n"
        "        params: {query: {kind: retrieval}, evaluation_name: retrieved}\n"
        "    path:\n"
        "      retrieval: {sources: [refunds.md, terms.md], k: 2, recall: 0.9}\n"
        "      quality: {relevance: '>= 0.7'}\n"
        "      blocking: true\n"
    )
    assert command("validate", "suite.yaml", cwd=tmp_path).returncode == 0
    done = command("test", "suite.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert "recall@2 is 0.50, expected >= 0.9; not retrieved: terms.md" in done.stdout
    assert "relevance is 0.25, expected >= 0.7: retrieve: low relevance" in done.stdout
    assert "no checks in" not in done.stdout + done.stderr
