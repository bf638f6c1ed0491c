"""The trace store, in SQLite and in PostgreSQL alike."""

import itertools
import random
import threading
from collections import Counter
from typing import Any

import pytest
from server_parts import LLM, TOOL, TRACE, wire_request, write

from proctor.errors import ProctorError
from proctor.server.decoder_process import PROTOBUF, received
from proctor.server.pages._span_view import outline
from proctor.server.store import open_store
from proctor.server.store.rows import batch_of
from proctor.server.store.store import (
    FACETS,
    SORTS,
    PageRequest,
    StoredEvaluation,
    StoreError,
    TraceFilter,
)

SECOND = 1_000_000_000
OTHER = "1" * 32


def spans_of_a_trace() -> list[dict]:
    return [
        {"id": 1, "name": "agent", "start": SECOND, "end": 9 * SECOND},
        {"id": 2, "parent": 1, "attributes": LLM, "start": 2 * SECOND, "end": 3 * SECOND},
        {"id": 3, "parent": 1, "attributes": TOOL, "start": 4 * SECOND, "status": 2},
        {"id": 4, "parent": 1, "attributes": LLM, "start": 5 * SECOND, "end": 8 * SECOND},
    ]


def totals(store) -> tuple:
    row = store.row(TRACE)
    return (
        row.name,
        row.spans,
        row.errors,
        row.status,
        row.llm_calls,
        row.tool_calls,
        row.input_tokens,
        row.output_tokens,
        row.duration_ms,
    )


def test_totals_are_right_in_any_order_and_any_parts(store) -> None:
    """R-D7: late, out-of-order and repeated spans: the same totals after every way they come."""
    rng = random.Random(7)
    expected = ("agent", 4, 1, "error", 2, 1, 22, 14, 8000.0)
    for order in rng.sample(list(itertools.permutations(spans_of_a_trace())), 6):
        store.prune(2**62)
        for span in order:
            write(store, span)
        write(store, *order[:2])
        assert totals(store) == expected
    trace = store.trace(TRACE)
    assert len(trace.spans) == 4
    assert trace.tool_sequence == ["search"]
    assert trace.total_tokens == 36


def test_a_trace_that_grows_has_new_totals(store) -> None:
    """R-D7: every write leaves totals that are those of all spans so far."""
    first, *rest = spans_of_a_trace()
    write(store, first)
    assert totals(store)[1:4] == (1, 0, "ok")
    write(store, *rest)
    assert totals(store)[1:4] == (4, 1, "error")


def test_filters(store) -> None:
    """R-D7: by text, service, status, tool, model, time, duration and score, one and all."""
    write(store, *spans_of_a_trace())
    other = {"trace": OTHER, "id": 9, "name": "100%_sure", "start": 50 * SECOND, "end": 51 * SECOND}
    write(store, other, service="mail")
    store.put_evaluations(OTHER, [], score=0.25, findings=0)
    for chosen, found in {
        TraceFilter(text="AGENT"): [TRACE],
        TraceFilter(text="0%_"): [OTHER],
        TraceFilter(text="nt 8448eb"): [TRACE],
        TraceFilter(service="mail"): [OTHER],
        TraceFilter(status="error"): [TRACE],
        TraceFilter(tool="search"): [TRACE],
        TraceFilter(model="gpt-4o", status="ok"): [],
        TraceFilter(since_ns=10 * SECOND): [OTHER],
        TraceFilter(until_ns=10 * SECOND, min_ms=8000): [TRACE],
        TraceFilter(max_ms=1000): [OTHER],
        TraceFilter(min_score=0.2, max_score=0.3): [OTHER],
        TraceFilter(): [OTHER, TRACE],
        TraceFilter(text="' OR 1=1 --"): [],
    }.items():
        assert [row.trace_id for row in store.traces(chosen)] == found
        assert store.count(chosen) == len(found)
    assert [r.trace_id for r in store.traces(page=PageRequest(1, 1, "slowest"))] == [OTHER]
    assert store.tools() == [("search", 1, 1, 1)]
    figures = store.figures()
    assert (figures.traces, figures.spans, figures.p50_ms, figures.p95_ms) == (2, 5, 8000, 8000)
    assert store.figures(TraceFilter(service="nobody")).p50_ms is None
    with pytest.raises(ProctorError, match="no order 'slow'"):
        store.traces(page=PageRequest(sort="slow"))


def test_error_rate_and_percentiles_over_time(store) -> None:
    """R-D7: by hour or day, each with its own figures; the last periods only."""
    hour = 3600 * SECOND
    spans = []
    for number in range(12):
        start = (number // 4) * hour + number * SECOND
        spans.append(
            {"trace": f"{number + 1:032x}", "id": 1, "start": start}
            | {"end": start + (number + 1) * SECOND, "status": 2 if number in (4, 5) else 0}
        )
    write(store, *spans)
    found = store.over_time()
    assert [(p.start_ns, p.traces, p.failed) for p in found] == [
        (0, 4, 0),
        (hour, 4, 2),
        (2 * hour, 4, 0),
    ]
    assert [(p.p50_ms, p.p95_ms, p.p99_ms) for p in found][1] == (7000, 8000, 8000)
    assert found[1].error_rate == 0.5
    (day,) = store.over_time(by="day")
    assert (day.traces, day.failed, day.p99_ms) == (12, 2, 12000)
    assert [p.start_ns for p in store.over_time(limit=2)] == [hour, 2 * hour]
    assert [p.traces for p in store.over_time(TraceFilter(status="error"))] == [2]
    assert store.over_time(TraceFilter(service="nobody")) == []
    with pytest.raises(ProctorError, match="no period 'week'"):
        store.over_time(by="week")


def some_traces(store) -> None:
    """Sixty traces that begin at a few moments and use some of three tools and two models."""
    rng = random.Random(3)
    spans = []
    for number in range(1, 61):
        trace, start = f"{number:032x}", rng.randrange(1, 5) * SECOND
        end = start + rng.randrange(1, 40) * SECOND // 4
        spans.append({"trace": trace, "id": 1, "start": start, "end": end})
        for tool in rng.sample(("search", "fetch", "buy"), rng.randrange(3)):
            given = {"attributes": {**TOOL, "tool.name": tool}, "status": rng.choice((0, 2))}
            spans.append({"trace": trace, "id": len(spans) + 2, "parent": 1, **given})
        if rng.random() < 0.7:
            given = {"attributes": {**LLM, "llm.model_name": rng.choice(("gpt-4o", "other"))}}
            spans.append({"trace": trace, "id": len(spans) + 2, "parent": 1, **given})
    write(store, *spans)


@pytest.mark.parametrize(
    "chosen",
    [
        TraceFilter(),
        TraceFilter(tool="search"),
        TraceFilter(model="gpt-4o"),
        TraceFilter(tool="buy", model="other"),
        TraceFilter(tool="fetch", status="error"),
        TraceFilter(tool="nobody's"),
    ],
)
def test_counts_and_figures_of_a_filter_are_those_of_its_traces(store, chosen) -> None:
    """R-T6: what is worked out in the database is what the traces of the list come to."""
    some_traces(store)
    rows = store.traces(chosen, PageRequest(limit=1000))
    assert store.count(chosen) == len(rows) == store.found(chosen, PageRequest(limit=5)).total
    figures = store.figures(chosen)
    assert (figures.traces, figures.spans) == (len(rows), sum(row.spans for row in rows))
    assert figures.errors == sum(row.errors for row in rows)
    costs = [row.cost_usd for row in rows if row.cost_usd is not None]
    assert figures.cost_usd == (pytest.approx(sum(costs)) if costs else None)
    durations = sorted(row.duration_ms for row in rows)
    ranks = [durations[len(rows) * percent // 100] if rows else None for percent in (50, 95, 99)]
    assert [figures.p50_ms, figures.p95_ms, figures.p99_ms] == ranks
    failed = sum(row.status == "error" for row in rows)
    assert (figures.failed, figures.error_rate) == (failed, failed / len(rows) if rows else None)
    called = Counter(
        call.tool_name for row in rows for call in store.skeleton(row.trace_id).of_kind("tool")
    )
    assert {share.name: share.calls for share in store.tools(chosen)} == dict(called)


def test_words_are_searched_once_for_all_figures(store, monkeypatch) -> None:
    """R-T6: the traces found for the words of a filter give the same figures as the words.

    Their ids replace the words, so that nothing after it reads texts again.
    """
    some_traces(store)
    chosen = TraceFilter(text="3", tool=("search", "fetch"), status="error")
    narrow = store.narrow(chosen)
    assert narrow.text == ""
    for figures in (store.count, store.traces, store.figures, store.over_time, store.uses):
        assert figures(narrow) == figures(chosen), figures
    assert 0 < store.count(narrow) < store.count(TraceFilter(text="3")) == 16
    for name in FACETS:
        assert store.facet(name, narrow) == store.facet(name, chosen), name
    monkeypatch.setattr("proctor.server.store.store.MANY_FOUND", 3)
    assert store.narrow(chosen) is chosen


@pytest.mark.parametrize("sort", SORTS)
def test_pages_of_a_list_are_the_list(store, sort: str) -> None:
    """R-T6: page after page every trace comes once, in one order, though many begin at once."""
    some_traces(store)
    listed = [row.trace_id for row in store.traces(page=PageRequest(limit=100, sort=sort))]
    paged = [
        row.trace_id
        for start in range(0, 63, 7)
        for row in store.traces(page=PageRequest(7, start, sort))
    ]
    assert paged == listed
    assert len(set(listed)) == 60


def test_an_ended_span_is_not_replaced_by_its_beginning(store) -> None:
    """R-D7: a late notice that a span began changes nothing."""
    write(store, {"id": 1, "end": 3 * SECOND})
    write(store, {"id": 1, "end": 0})
    assert store.row(TRACE).duration_ms == 2000.0
    assert store.trace(TRACE).spans[0].end_ns == 3 * SECOND


def test_evaluations_and_quiet_traces(store) -> None:
    """R-D7: a trace is looked at once it is quiet, and again after it has grown."""
    write(store, *spans_of_a_trace())
    assert store.quiet(2**62) == [TRACE]
    assert store.quiet(0) == []
    rows = [StoredEvaluation(TRACE, "quality", 0.5, None, "", 1)]
    store.put_evaluations(TRACE, rows, score=0.5, findings=2)
    assert store.quiet(2**62) == []
    assert store.evaluations(TRACE) == rows
    assert (store.row(TRACE).score, store.row(TRACE).findings) == (0.5, 2)
    write(store, {"id": 9, "parent": 1})
    assert store.quiet(2**62) == [TRACE]


def test_retention_forgets_whole_traces(store) -> None:
    """R-D7: what is old goes with everything about it; what is new stays."""
    write(store, *spans_of_a_trace())
    store.put_evaluations(
        TRACE, [StoredEvaluation(TRACE, "q", 1.0, None, "", 1)], score=1, findings=0
    )
    assert store.prune(1) == 0
    assert store.prune(2**62) == 1
    assert store.row(TRACE) is None
    assert store.trace(TRACE) is None
    assert store.evaluations(TRACE) == []
    assert store.figures().spans == 0


def test_writers_side_by_side_lose_nothing(store) -> None:
    """R-D7: spans of one trace from several threads at once are all there, counted once."""

    def send(start: int) -> None:
        for number in range(start, start + 20):
            write(store, {"id": number + 1})

    threads = [threading.Thread(target=send, args=(i * 15,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.row(TRACE).spans == 65
    assert len(store.trace(TRACE).spans) == 65


def test_hostile_text_is_kept(store) -> None:
    """R-D7: NUL, lone surrogates and SQL in names are text; the payload holds what came."""
    name = "a\0b'); DROP TABLE traces; --"
    write(store, {"id": 1, "name": name, "attributes": {**TOOL, "tool.name": name}})
    assert store.trace(TRACE).spans[0].name == name
    assert store.row(TRACE).name.startswith("a\ufffdb")


def test_log_records_before_their_spans(store) -> None:
    """R-D7: what only logs know of a trace is kept, and joined when the spans come."""
    log = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"traceId":"%s","spanId":"%s",'
    log += b'"timeUnixNano":"5","eventName":"gen_ai.choice","body":{"stringValue":"hi"}}]}]}]}'
    body = log % (TRACE.encode(), f"{1:016x}".encode())
    store.write(batch_of(received(body, "application/json")[0], None))
    assert store.row(TRACE).spans == 0
    write(store, {"id": 1})
    assert store.row(TRACE).spans == 1
    assert [event.name for event in store.trace(TRACE).spans[0].events] == ["gen_ai.choice"]


def test_a_newer_store_is_refused(tmp_path) -> None:
    """R-D7: tables of a later version are left alone, with advice; a wrong address is named."""
    address = f"sqlite:////{tmp_path}/x.db".replace("/////", "////")
    store = open_store(address)
    with store.writing() as cursor:
        cursor.execute("UPDATE notes SET value = '99' WHERE key = 'version'")
    store.close()
    with pytest.raises(StoreError, match="version 99") as caught:
        open_store(address)
    assert caught.value.hint == "upgrade proctor"
    with pytest.raises(ProctorError, match="not the address of a store"):
        open_store("mysql://x")
    with pytest.raises(StoreError, match="cannot reach the store"):
        open_store("postgresql://nobody@127.0.0.1:1/none")


def test_a_failed_write_leaves_nothing(store) -> None:
    """R-D7: all of a batch or none of it."""
    batch = batch_of(received(wire_request(*spans_of_a_trace()), PROTOBUF)[0], None)
    odd: Any = ("x", object(), None, None, None, None, None)
    batch.facts.append(odd)
    with pytest.raises(Exception, match=r"(?s)."):
        store.write(batch)
    assert store.row(TRACE) is None
    write(store, *spans_of_a_trace())
    assert store.row(TRACE).spans == 4


def test_words_in_any_alphabet(store) -> None:
    """R-D7: a search finds what was written, capital or small, and its signs mean themselves."""
    asked = {"openinference.span.kind": "AGENT", "input.value": "Äpfel für 100% der ÖBB_Gäste?"}
    write(store, {"id": 1, "attributes": asked})
    for words in ("Äpfel", "FüR", "100%", "ÖBB_G", "Gäste?", "0AF7651916CD"):
        assert store.found(TraceFilter(text=words), PageRequest()).total == 1, words
    for words in ("100%x", "_pfel", "0af7651916ce"):
        assert store.found(TraceFilter(text=words), PageRequest()).total == 0, words


def test_pages_of_a_search(store) -> None:
    """R-D7: the total is that of the filter on every page, the one beyond the last too."""
    for number in range(7):
        write(store, {"id": 1, "trace": f"{number + 1:032x}", "name": "Step", "start": number})
    chosen = TraceFilter(text="STEP")
    pages = [store.found(chosen, PageRequest(3, offset)) for offset in (0, 3, 6, 9)]
    assert [page.total for page in pages] == [7] * 4
    listed = [int(row.trace_id, 16) for page in pages for row in page.rows]
    assert listed == [7, 6, 5, 4, 3, 2, 1]
    assert store.found(TraceFilter(text="nothing"), PageRequest()) == (0, [])


def test_the_outline_needs_no_payload(store) -> None:
    """R-D7: the tree a viewer draws from rows is that of the whole trace."""
    write(store, *spans_of_a_trace())
    whole, rows = outline(store.trace(TRACE)), outline(store.skeleton(TRACE))
    assert rows == whole
    assert rows["kind"] == ["other", "llm", "tool", "llm"]
    assert store.skeleton(OTHER) is None


def test_a_page_of_a_rare_tool_is_that_of_a_common_one(store, monkeypatch) -> None:
    """R-D7: traces of a tool are listed alike, whether they are collected or searched for."""
    for number in range(6):
        trace = f"{number:032x}"
        write(store, {"id": 1, "trace": trace, "attributes": TOOL if number % 2 else LLM})
    for chosen in (
        TraceFilter(tool="search"),
        TraceFilter(tool=("search", "none"), status="ok"),
        TraceFilter(model="gpt-4o"),
        TraceFilter(tool="none"),
    ):
        pages = []
        for rare in (2_000, 0):
            monkeypatch.setattr("proctor.server.store.store.RARE", rare)
            pages.append(store.traces(chosen, PageRequest(limit=2, offset=1)))
        assert pages[0] == pages[1]
        assert len(pages[0]) == (0 if chosen.tool == "none" else 2)
