"""Totals of traces, costs of live traces, and that what is kept is redacted."""

import itertools
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_parts import TOOL, TRACE, wire_request, write

from proctor.llm.prices import cost_usd
from proctor.server.decoder_process import PROTOBUF, received
from proctor.server.store._schema import VERSION, SpanRow
from proctor.server.store.rows import batch_of
from proctor.trace.redact import Redactor

SECOND = 1_000_000_000

spans = st.fixed_dictionaries(
    {
        "id": st.integers(1, 6),
        "parent": st.sampled_from([0, 0, 1, 2, 3, 4]),
        "name": st.sampled_from(["agent", "b", "c"]),
        "start": st.integers(1, 5).map(lambda second: second * SECOND),
        "end": st.sampled_from([0, 6 * SECOND, 7 * SECOND]),
        "status": st.sampled_from([0, 2]),
        "attributes": st.sampled_from(
            [
                {},
                {"openinference.span.kind": "TOOL", "tool.name": "search"},
                {"openinference.span.kind": "TOOL", "tool.name": "fetch"},
                {
                    "openinference.span.kind": "LLM",
                    "llm.model_name": "gpt-4o",
                    "llm.token_count.prompt": 10,
                    "llm.token_count.completion": 3,
                },
                {"openinference.span.kind": "LLM", "llm.model_name": "claude"},
                {
                    "openinference.span.kind": "AGENT",
                    "llm.token_count.prompt": 20,
                    "llm.token_count.completion": 6,
                    "llm.cost.total": 3,
                },
            ]
        ),
    }
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(spans, min_size=1, max_size=4), min_size=1, max_size=5))
def test_totals_are_those_of_all_spans(store, batches: list[list[dict]]) -> None:
    """R-D7: totals are right after new, repeated, ended and changed spans."""
    store.prune(2**62)
    for batch in batches:
        write(store, *batch)
        with store.reading() as cursor:
            cursor.execute("SELECT * FROM uses")
            uses = {(kind, name): (int(c), int(e)) for _, kind, name, c, e in cursor.fetchall()}
        with store.reading() as cursor:
            cursor.execute(f"SELECT {', '.join(SpanRow._fields)} FROM spans")
            rows = [SpanRow(*row) for row in cursor.fetchall()]
        row, failed = store.row(TRACE), sum(row.status == "error" for row in rows)
        roots = [row.name for row in rows if not row.parent_id]
        assert row.name == min(roots or [row.name for row in rows])
        assert row.started_ns == min(row.start_ns for row in rows)
        assert row.ended_ns == max((row.end_ns for row in rows if row.end_ns), default=None)
        lasted = row.ended_ns and (row.ended_ns - row.started_ns) / 1e6
        assert row.duration_ms == lasted
        assert (row.spans, row.errors) == (len(rows), failed)
        assert row.status == ("error" if failed else "ok")
        assert row.tool_calls == sum(row.kind == "tool" for row in rows)
        trace = store.skeleton(TRACE)
        assert row.llm_calls == len(trace.llm_calls)
        tokens = (row.input_tokens, row.output_tokens)
        assert tokens == (trace.usage.input_tokens, trace.usage.output_tokens)
        assert row.cost_usd == pytest.approx(trace.usage.cost_usd)
        assert row.unpriced == trace.usage.unpriced
        expected: dict[tuple[str, str], tuple[int, int]] = {}
        for each in rows:
            for use in (("tool", each.tool_name), ("model", each.model)):
                if use[1] is not None:
                    calls, errors = expected.get(use, (0, 0))
                    expected[use] = (calls + 1, errors + (each.status == "error"))
        assert uses == expected


USAGE = {"llm.token_count.prompt": 1000, "llm.token_count.completion": 100}
CALL = {"openinference.span.kind": "LLM", "llm.model_name": "gpt-4o", **USAGE}
AGENT = {"openinference.span.kind": "AGENT"}
GATEWAY = [
    {"id": 1, "name": "agent", "attributes": AGENT},
    {"id": 2, "parent": 1, "name": "gateway", "attributes": CALL},
    {"id": 3, "parent": 2, "name": "retry"},
    {"id": 4, "parent": 3, "name": "client", "attributes": CALL},
]
"""A gateway around a client: one call of a model, seen twice."""


def test_a_call_inside_a_call_counts_once(store) -> None:
    """R-D7: a gateway around a client is one call, one cost, whatever order its spans come in."""
    expected = pytest.approx(cost_usd("gpt-4o", input_tokens=1000, output_tokens=100))
    for number, order in enumerate(itertools.permutations(GATEWAY), 1):
        trace = f"{number:032x}"
        for span in order:
            write(store, {**span, "trace": trace})
        row, usage = store.row(trace), store.trace(trace).usage
        assert (row.llm_calls, row.input_tokens, row.output_tokens) == (1, 1000, 100), order
        assert (usage.calls, usage.input_tokens, usage.output_tokens) == (1, 1000, 100), order
        assert row.cost_usd == expected == usage.cost_usd, order


def test_usage_that_only_an_agent_says(store) -> None:
    """R-D7: where no model call bears usage the agent's counts, until a model call does."""
    write(store, {"id": 1, "name": "agent", "attributes": {**AGENT, **USAGE}})
    assert (store.row(TRACE).input_tokens, store.row(TRACE).llm_calls) == (1000, 0)
    for number in (2, 3):
        call = {**CALL, "llm.token_count.prompt": 400}
        write(store, {"id": number, "parent": 1, "attributes": call})
    assert (store.row(TRACE).input_tokens, store.row(TRACE).llm_calls) == (800, 2)


FIRST_VERSION = (
    """
    CREATE TABLE traces (
        trace_id TEXT PRIMARY KEY, name TEXT, service TEXT, query TEXT, response TEXT,
        request_id TEXT, session_id TEXT, user_id TEXT,
        started_ns {big} NOT NULL, ended_ns {big}, duration_ms {real}, status TEXT NOT NULL,
        spans {big} NOT NULL, errors {big} NOT NULL, llm_calls {big} NOT NULL,
        tool_calls {big} NOT NULL, input_tokens {big}, output_tokens {big}, cost_usd {real},
        updated_ns {big} NOT NULL, evaluated_ns {big} NOT NULL DEFAULT 0,
        score {real}, findings {big}
    )
    """,
    """
    CREATE TABLE spans (
        trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT, name TEXT NOT NULL,
        kind TEXT NOT NULL, status TEXT NOT NULL, start_ns {big} NOT NULL, end_ns {big},
        tool_name TEXT, model TEXT, input_tokens {big}, output_tokens {big}, cost_usd {real},
        error_type TEXT, PRIMARY KEY (trace_id, span_id)
    ) {clustered}
    """,
    """
    CREATE TABLE payloads (
        chunk {count}, trace_id TEXT NOT NULL, body {blob} NOT NULL
    )
    """,
    """
    CREATE TABLE evaluations (
        trace_id TEXT NOT NULL, name TEXT NOT NULL, score {real}, label TEXT,
        detail TEXT NOT NULL, at_ns {big} NOT NULL, PRIMARY KEY (trace_id, name)
    )
    """,
    "CREATE INDEX payloads_of ON payloads (trace_id, chunk)",
    "CREATE INDEX traces_started ON traces (started_ns)",
    "CREATE INDEX traces_updated ON traces (updated_ns)",
    "CREATE INDEX traces_duration ON traces (duration_ms)",
    "CREATE INDEX traces_session ON traces (session_id)",
    "CREATE INDEX traces_user ON traces (user_id)",
    "CREATE INDEX traces_request ON traces (request_id)",
    "CREATE INDEX traces_score ON traces (score)",
    "CREATE INDEX spans_tool ON spans (tool_name, trace_id) WHERE tool_name IS NOT NULL",
    "CREATE INDEX spans_model ON spans (model, trace_id) WHERE model IS NOT NULL",
    "CREATE INDEX evaluations_name ON evaluations (name, score)",
)


def test_a_store_of_the_first_version(store) -> None:
    """R-D7: what was kept before is read, filtered and grows after the tables are up to date."""
    write(store, {"id": 1, "name": "agent", "attributes": {"openinference.span.kind": "AGENT"}})
    write(store, {"id": 2, "parent": 1, "attributes": {"tool.name": "search", "x": "y"}})
    other = "2" * 32
    write(store, *({**each, "trace": other} for each in GATEWAY))
    tables = ("traces", "spans", "payloads", "evaluations")
    kept = {}
    with store.writing() as cursor:
        for table in tables:
            cursor.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            kept[table] = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        for table in (*tables, "uses"):
            cursor.execute(f"DROP TABLE {table}")
        for statement in FIRST_VERSION:
            cursor.execute(statement.format(**store.types))
        for table in tables:
            for found in kept[table]:
                later = ("logs", "chunk", "unpriced")
                row = {k: v for k, v in found.items() if k not in later}
                if table == "traces" and row["trace_id"] == other:
                    row["llm_calls"] = 2  # as it was counted then
                if table == "spans" and row["span_id"].endswith("2") and row["trace_id"] == TRACE:
                    row["tool_name"] = "search"
                cursor.execute(
                    f"INSERT INTO {table} ({', '.join(row)}) "
                    f"VALUES ({', '.join([store.mark] * len(row))})",
                    list(row.values()),
                )
        cursor.execute("UPDATE notes SET value = '1' WHERE key = 'version'")
    assert store.migrate() == VERSION
    assert [(share.name, share.calls) for share in store.tools()] == [("search", 1)]
    assert store.row(other).llm_calls == 1
    write(store, {"id": 9, "parent": 1, "name": "a"})
    assert (store.row(TRACE).spans, len(store.trace(TRACE).spans)) == (3, 3)
    assert store.row(TRACE).name == "agent"


# -- costs ----------------------------------------------------------------------------------------


def test_the_store_shows_costs_of_live_traces(store) -> None:
    """R-D7: the line of a trace, its sum and its spans have costs, one as the other."""
    usage = {"llm.token_count.prompt": 1000, "llm.token_count.completion": 100}
    model = {"openinference.span.kind": "LLM", "llm.model_name": "gpt-4o"}
    write(store, {"id": 1}, {"id": 2, "parent": 1, "attributes": {**model, **usage}})
    expected = cost_usd("gpt-4o", input_tokens=1000, output_tokens=100)
    assert store.row(TRACE).cost_usd == pytest.approx(expected)
    assert store.figures().cost_usd == pytest.approx(expected)
    assert store.trace(TRACE).total_cost == pytest.approx(expected)


# -- what is kept is redacted ----------------------------------------------------------------------

VALUES = [
    "what about the key figures",
    "password=hunter2hunter2",
    "sk-" + "aB3dE" * 9,
    "tokens: 12, monkey: yes",
    "Authorization: Bearer abcdef0123456789",
    "plain words",
    "see https://example.org/a",
]
KEYS = ["input.value", "db.password", "api_key", "note", "llm.token_count.prompt", "x-api-key: 5"]


@settings(max_examples=150)
@given(
    given_spans=st.lists(
        st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES) | st.integers(0, 99999)),
        min_size=1,
        max_size=5,
    )
)
def test_what_is_kept_is_what_redaction_leaves(given_spans: list[dict]) -> None:
    """R-T9: the quick way through the server keeps exactly what the careful one would."""
    body = wire_request(*({"id": n, "attributes": a} for n, a in enumerate(given_spans, 1)))
    redactor = Redactor(environ={})
    kept = batch_of(received(body, PROTOBUF)[0], redactor)
    plain = received(body, PROTOBUF)[0]
    plain.traces = {name: redactor.trace(each) for name, each in plain.traces.items()}
    expected = batch_of(plain, None)
    assert kept.chunks == expected.chunks
    assert kept.spans == expected.spans
    assert kept.facts == expected.facts


def test_two_servers_on_one_store(store) -> None:
    """R-D7: writers of one trace in two servers at once: the totals are those of all its spans."""
    place = store.path if hasattr(store, "path") else store.url
    other = type(store)(place)

    def send(target, first: int) -> None:
        for number in range(first, first + 12):
            write(target, {"id": number, "attributes": {"tool.name": "x", **TOOL}})

    threads = [threading.Thread(target=send, args=each) for each in ((store, 100), (other, 200))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert store.row(TRACE).spans == 24
    assert [(share.name, share.calls) for share in store.tools()] == [("search", 24)]
