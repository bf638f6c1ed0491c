"""The list of traces in a real Chromium: facets, times, traffic, sessions, lower bounds."""

import json
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from browser import page_at, violations
from server_parts import LLM, TOOL, serving, write
from starlette.datastructures import QueryParams

from proctor.server._json_api import BadQuery, filter_of
from proctor.server.app import Service
from proctor.server.pages.traces import INLINE_TRACES
from proctor.server.store import open_store
from proctor.server.store.store import FACETS, PageRequest, TraceFilter

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>{{7*7}}\u202e"


def some_traces(store) -> None:
    """Twelve traces in twelve hours: two services, three sessions, a model without a price."""
    for number in range(12):
        trace, start = f"{number + 1:032x}", number * HOUR
        facts = {"session.id": f"s{number % 3}", "user.id": HOSTILE if number == 5 else "ann"}
        facts |= {"input.value": f"question {number}"}
        model = "house-model" if number % 4 == 0 else "gpt-4o"
        said = {
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": f"question {number} {HOSTILE}",
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": f"**answer** {number}",
        }
        tool = {**TOOL, "tool.name": HOSTILE if number == 7 else "search"}
        write(
            store,
            {"id": 1, "start": start, "end": start + 9 * SECOND, "trace": trace, "name": "run"}
            | {"attributes": facts},
            {"id": 2, "parent": 1, "start": start, "end": start + SECOND, "trace": trace}
            | {"attributes": {**LLM, **said, "llm.model_name": model}},
            {"id": 3, "parent": 1, "start": start, "end": start + SECOND, "trace": trace}
            | {"attributes": tool, "status": 2 if number < 3 else 0},
            service="shop" if number < 9 else "bank",
        )
        if number == 7:  # two cards of one name on its page
            again = {"id": 4, "parent": 1, "start": start, "end": start + SECOND, "trace": trace}
            write(store, again | {"attributes": tool}, service="shop")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A server with these traces."""
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('facets')}/t.db")
    some_traces(store)
    with serving(Service(store=store)) as running:
        yield running


@pytest.mark.parametrize(
    "chosen",
    [
        TraceFilter(),
        TraceFilter(since_ns=2 * HOUR, until_ns=10 * HOUR),
        TraceFilter(tool="search"),
        TraceFilter(service="bank", status="ok"),
        TraceFilter(service=("bank", "shop"), model=("gpt-4o", "house-model"), text="question"),
    ],
)
def test_facets_count_the_traces_of_the_other_filters(store, chosen) -> None:
    """R-N12: each count is the length of the list that a click on it shows; sessions likewise."""
    some_traces(store)
    for name in FACETS:
        counted = store.facet(name, replace(chosen))
        assert counted
        for each in counted:
            assert each.traces == store.count(replace(chosen, **{name: each.value})), name
    rows = store.traces(chosen, PageRequest(limit=100))
    total, sessions = store.sessions(chosen, PageRequest(limit=2))
    assert total == len({row.session_id for row in rows})
    for each in sessions:
        own = [row for row in rows if row.session_id == each.session_id]
        assert (each.traces, each.failed) == (len(own), sum(row.errors > 0 for row in own))
        assert (each.first_ns, each.last_ns) == (own[-1].started_ns, own[0].started_ns)
        assert each.unpriced == sum(row.unpriced for row in own)
        assert each.tokens == sum(row.input_tokens + row.output_tokens for row in own)
        assert each.cost_usd == pytest.approx(sum(row.cost_usd or 0 for row in own))
    assert store.facet("service", TraceFilter(service="nobody"))[-1] == ("nobody", 0)
    assert store.sessions(TraceFilter(service="nobody")) == (0, [])


def test_several_values_and_unpriced_calls(store) -> None:
    """R-N12: values of one facet are alternatives; a call without a price is counted."""
    some_traces(store)
    assert store.count(TraceFilter(session_id=("s0", "s1"))) == 8
    assert store.count(TraceFilter(session_id=("s0", "s1"), service="bank")) == 2
    assert store.count(TraceFilter(model=("gpt-4o", "other"))) == 9
    figures = store.figures()
    assert figures.unpriced == 3
    assert figures.cost_usd is not None
    assert store.figures(TraceFilter(model="gpt-4o")).unpriced == 0
    hours = store.over_time(None, None, 72)
    assert [(each.traces, each.seconds) for each in hours] == [(1, 3600)] * 12
    assert {each.seconds for each in store.over_time(TraceFilter(until_ns=HOUR), None, 72)} == {60}
    assert {each.seconds for each in store.over_time(None, None, 6)} == {86_400}


def test_a_range_that_ends_now() -> None:
    """R-N12: `last` is a time before now, from a full minute; what is no range is an error."""
    now = 1000 * HOUR + 59 * SECOND

    def since(text: str) -> int | None:
        return filter_of(QueryParams(text), lambda: now).since_ns

    assert since("last=24h") == 976 * HOUR
    assert since("last=30m") == 999.5 * HOUR
    assert since("last=24h&since=1970-02-11T12:00") == 996 * HOUR
    for text in ("last=h", "last=soon", "last=9999999d", "status=fine"):
        with pytest.raises(BadQuery):
            filter_of(QueryParams(text))


def test_facets_filter_by_a_click(browsing, site) -> None:
    """R-N12: a value adds itself to the address and leaves it again; counts follow the others."""
    with page_at(browsing, site, "/traces") as page:
        service = page.get_by_role("region", name="service")
        assert service.get_by_role("link").all_inner_texts() == ["shop\n9", "bank\n3"]
        service.get_by_role("link", name="bank").click()
        page.wait_for_url("**service=bank")
        assert page.locator("table.list tbody tr").count() == 3
        page.get_by_role("region", name="service").get_by_role("link", name="shop").click()
        page.wait_for_url("**service=bank&service=shop")
        assert page.locator("table.list tbody tr").count() == 12
        page.get_by_role("region", name="status").get_by_role("link", name="error").click()
        page.wait_for_url("**status=error")
        assert page.locator("table.list tbody tr").count() == 3
        page.get_by_role("search").get_by_role("textbox", name="To").fill("1970-01-01T01:30")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**until=*")
        given = parse_qs(urlsplit(page.url).query)
        assert given["service"] == ["bank", "shop"]
        assert given["status"] == ["error"]
        assert page.locator("table.list tbody tr").count() == 2
        page.get_by_role("list", name="Filter").get_by_role("link", name="until").click()
        page.get_by_role("region", name="service").locator("[aria-current]").first.click()
        page.wait_for_url(lambda url: url.count("service=") == 1)
        page.get_by_role("link", name="Clear").click()
        page.wait_for_url("**/traces")
        users = page.get_by_role("region", name="user").inner_text()
        assert "<script>" in users
        assert page.evaluate("window.hacked") is None


def test_traffic_sessions_and_lower_bounds(browsing, site) -> None:
    """R-N12: bars of each hour with failures, a table to zoom, sessions, `≥` where unpriced."""
    with page_at(browsing, site, "/traces") as page:
        assert page.locator(".traffic rect.ok").count() == 12
        assert page.locator(".traffic rect.failed").count() == 3
        figures = page.locator("dl.figures").inner_text()
        assert "≥ $" in figures
        assert "3 calls unpriced" in figures
        page.get_by_text("Over time").click()
        page.get_by_role("link", name="1970-01-01 03:00:00", exact=True).click()
        page.wait_for_url("**since=*")
        assert page.locator("table.list tbody tr").count() == 1
        page.goto(f"{site.url}/traces?service=shop")
        page.get_by_role("link", name="Sessions", exact=True).click()
        page.wait_for_url("**view=sessions")
        rows = page.locator("table.list tbody tr").all_inner_texts()
        assert [row.split("\t")[2:4] for row in rows] == [["3", "1"]] * 3
        assert "≥ $" in rows[0]
        page.get_by_role("link", name="s1", exact=True).first.click()
        page.wait_for_url("**session_id=s1")
        assert page.locator("table.list tbody tr").count() == 3


def test_a_trace_opens_with_its_conversation(browsing, site) -> None:
    """R-N12: the turns first, spans in the second tab, keys and a copy, hostile text as text."""
    with page_at(browsing, site, f"/traces/{8:032x}") as page:
        assert page.get_by_role("tab", name="Conversation").get_attribute("aria-selected") == "true"
        assert "question 7 <script>" in page.locator(".turn.user").inner_text()
        assert page.locator(".turn.assistant strong", has_text="answer").count() == 1
        assert page.locator(".card").count() == 2
        assert not page.locator("#tree").is_visible()
        page.keyboard.press("j")
        assert page.evaluate("location.hash") == "#turn-1"
        curl = page.get_by_role("link", name="curl").first.get_attribute("href")
        assert "gpt-4o" in httpx.get(site.url + curl).text
        assert httpx.get(f"{site.url}/traces/{8:032x}/copy/curl?span=none").status_code == 404
        page.locator(".turn.assistant").get_by_role("link", name="span", exact=True).first.click()
        page.locator("#detail h2", has_text="step").wait_for()
        assert page.evaluate("window.hacked") is None
    assert "1 call unpriced" in httpx.get(f"{site.url}/traces/{1:032x}").text


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_no_violation_on_the_screens_of_traces(browsing, site, theme: str, width: int) -> None:
    """R-N12: axe-core finds nothing; nothing is wider than the screen."""
    paths = ("/traces", "/traces?view=sessions&service=shop", f"/traces/{8:032x}")
    for path in paths:
        with page_at(browsing, site, path, theme=theme, width=width) as page:
            assert violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width + 1


def test_facets_of_a_long_list_come_after_it(browsing, tmp_path) -> None:
    """R-N12: a list too long to count at once loads its facets; without a script they are a link.

    The counts are read from indexes alone.
    """
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    spans = [{"id": 1, "trace": f"{n + 1:032x}", "start": n} for n in range(INLINE_TRACES + 1)]
    write(store, *spans, service=HOSTILE)
    chosen = TraceFilter(since_ns=1)
    with store.reading() as cursor:
        for name in ("service", "status", "session_id", "user_id"):
            cursor.execute(
                f"EXPLAIN QUERY PLAN SELECT {name}, count(*) FROM traces "
                f"WHERE started_ns >= 1 AND {name} IS NOT NULL GROUP BY {name}"
            )
            assert "COVERING INDEX" in cursor.fetchall()[0][3], name
    assert store.facet("service", chosen) == [(HOSTILE, INLINE_TRACES)]
    with serving(Service(store=store)) as running:
        with page_at(browsing, running, "/traces") as page:
            status = page.get_by_role("region", name="status")
            status.wait_for()
            assert f"ok\n{INLINE_TRACES + 1:,}" in status.inner_text()
            assert page.evaluate("window.hacked") is None
        page_text = httpx.get(f"{running.url}/traces").text
        assert 'href="/traces/facets/part' in page_text
        found = json.loads(httpx.get(f"{running.url}/api/facets").text)
        assert found["status"] == [{"value": "ok", "traces": INLINE_TRACES + 1}]
