# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
"""The pages in a real Chromium: no error, no foreign request, hostile text as text, keys work."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from browser import page_at
from server_parts import LLM, TOOL, TRACE, serving, write
from spans import span, trace

import proctor
from proctor.background import run_sync
from proctor.server.app import Service
from proctor.server.pages._span_view import aligned
from proctor.server.pages.templating import short
from proctor.server.store import open_store
from proctor.server.store.store import StoredEvaluation
from proctor.server.watch import Watcher, WatchOptions
from proctor.spec import Case, Suite
from proctor.trace import SpanKind
from proctor.trials.options import RunOptions
from proctor.trials.prepare import prepare
from proctor.trials.session import new_folder, run_session

SECOND = 1_000_000_000
HOSTILE = (
    "<script>window.hacked=1</script></textarea></style>"
    "<img src=x onerror=window.hacked=1>{{7*7}}{%x%}'\"`&lt; javascript:alert(1) \u202e\0"
)


def hostile_agent(_question: str) -> str:
    with proctor.capture.tool_call(HOSTILE, {"q": HOSTILE}) as call:
        call.tool_output = HOSTILE
    return HOSTILE


def careless_agent(_question: str) -> str:
    with proctor.capture.tool_call("search", {"q": {"exact": True, "words": ["x"]}}) as call:
        call.tool_output = "found"
    with proctor.capture.tool_call("delete_account", {"id": 1}) as call:
        call.tool_output = "gone"
    return "fine"


def offline_agent(_question: str) -> str:
    raise ConnectionError("the shop is closed")


def broken_agent(_question: str) -> str:
    raise RuntimeError("the till is stuck")


def plain_agent(_question: str) -> str:
    with proctor.capture.tool_call("search", {"q": "x"}) as call:
        call.tool_output = "found"
    return "fine"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A server with two traces, one of them hostile in every field, and a run of two agents."""
    folder = tmp_path_factory.mktemp("site")
    store = open_store(f"sqlite:////{folder}/t.db".replace("/////", "////"))
    message = {
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": HOSTILE,
        "llm.output_messages.0.message.role": HOSTILE,
        "llm.output_messages.0.message.content": HOSTILE,
    }
    facts = {"session.id": HOSTILE, "user.id": HOSTILE, "input.value": HOSTILE}
    spans = [
        {"id": 1, "name": HOSTILE, "end": 9 * SECOND, "attributes": facts},
        {"id": 2, "parent": 1, "attributes": {**LLM, **message, "llm.model_name": HOSTILE}},
        {"id": 3, "parent": 1, "status": 2, "attributes": {**TOOL, "tool.name": HOSTILE}},
    ]
    write(store, *spans, service=HOSTILE)
    many = [{"id": 100, "trace": "3" * 32, "name": "long", "end": 90 * SECOND}]
    many += [
        {"id": 101 + i, "parent": 100, "trace": "3" * 32, "name": f"step {i}", "start": SECOND + i}
        for i in range(5000)
    ]
    write(store, *many)
    Watcher(store, WatchOptions(quiet_seconds=0), clock=lambda: 2**62).look()
    finding = {"category": "Rate Limiting", "location": f"{3:016x}", "description": HOSTILE}
    detail = json.dumps({"errors": [{**finding, "evidence": HOSTILE}]})
    rows = [StoredEvaluation(TRACE, "diagnosis", None, HOSTILE, detail, 1)]
    store.put_evaluations(TRACE, rows, score=0.4, findings=1)
    cases = [Case(id="first", input="x", correctness={"expected_in_answer": ["fine"]})]
    agents = {"plain": plain_agent, "hostile": hostile_agent}
    results = folder / "results"
    run = _run(Suite(cases=cases), agents, results)
    with serving(Service(store=store, results=results)) as running:
        running.run_link = f"/runs/suite/{run.name}"
        yield running


def _run(suite: Suite, agents: dict, results: Path) -> Path:
    ready = prepare(suite, RunOptions(trials=2), agents=agents)
    return done(ready, new_folder(ready, results)).path


def done(ready, folder):
    """Carry a run out in a thread of its own: the browser's driver has a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: run_sync(run_session(ready, folder))).result()


def links(page, part: str) -> list[str]:
    found = page.eval_on_selector_all("a", "all => all.map(a => a.getAttribute('href'))")
    return [link for link in found if part in link]


def test_every_page_opens_clean_and_hostile_text_stays_text(browsing, site) -> None:
    """R-D7: lists, a trace, a run, a cell, a trial, two trials: no error, no foreign request."""
    run = site.run_link
    pages = ["/", "/traces", "/traces?text=x&min_ms=1", f"/traces/{TRACE}", "/runs", run]
    with page_at(browsing, site, run) as page:
        cells = links(page, "/cell?")
    assert len(cells) == 2
    pages += cells
    trials: list[str] = []
    for cell in cells:
        with page_at(browsing, site, cell) as page:
            trials += links(page, "/trial/")
    assert len(trials) == 4
    pages += [trials[0], trials[-1]]
    names = [link.rsplit("/", 1)[1] for link in trials]
    pages.append(f"{run}/compare?a={names[0]}&b={names[-1]}")
    for path in pages:
        for theme, width in (("light", 1200), ("dark", 390)):
            with page_at(browsing, site, path, theme=theme, width=width) as page:
                assert page.evaluate("window.hacked") is None
                assert "49" not in page.title()
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width + 1, f"{path} is {wide} wide on a screen of {width}"


def test_the_tree_works_by_keyboard(browsing, site) -> None:
    """R-D7: arrows move, left closes, right opens, the address names the span, Enter shows it."""
    with page_at(browsing, site, f"/traces/{TRACE}") as page:
        page.get_by_role("tab", name="Spans").click()
        tree = page.locator("#tree")
        tree.focus()
        page.keyboard.press("Home")
        assert page.locator(".span[aria-selected=true]").get_attribute("aria-level") == "1"
        page.keyboard.press("ArrowLeft")
        assert page.locator(".span").count() == 1
        page.keyboard.press("ArrowRight")
        assert page.locator(".span").count() == 3
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("location.hash") == f"#span={3:016x}"
        page.locator("#detail dl", has_text="tool").first.wait_for()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "detail"
        assert "Rate Limiting" in page.locator("#detail").inner_text()
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.id") == "tree"
        page.locator("#find").fill("nothing like it")
        assert page.locator(".span").count() == 0
        page.locator("#find").fill("llm")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "tree"
        assert page.evaluate("location.hash") == f"#span={2:016x}"


def test_a_deep_link_opens_its_span(browsing, site) -> None:
    """R-D7: an address with a span shows that span, in a trace of 5,000 too."""
    wanted = f"{101 + 4321:016x}"
    with page_at(browsing, site, f"/traces/{'3' * 32}#span={wanted}") as page:
        page.locator("#detail h2", has_text="step 4321").wait_for()
        chosen = page.locator(".span[aria-selected=true]")
        assert "step 4321" in chosen.inner_text()
        assert page.locator(".span").count() < 100
        page.locator("#tree").focus()
        page.keyboard.press("End")
        page.locator("#detail h2", has_text="step 4999").wait_for()


def test_findings_lead_to_their_spans(browsing, site) -> None:
    """R-D7: a finding is shown at its span, and its button goes there."""
    with page_at(browsing, site, f"/traces/{TRACE}") as page:
        page.locator("#findings button").first.click()
        assert page.evaluate("location.hash") == f"#span={3:016x}"
        assert page.locator(".span[aria-selected=true] .mark").count() == 2


def test_a_trace_opens_where_it_failed(browsing, tmp_path: Path) -> None:
    """R-D7: at the span where an error began, in sight; a closed parent says what is inside."""
    spans = [{"id": 1, "name": "run", "status": 2, "end": 900 * SECOND}]
    spans += [
        {"id": at, "parent": 1, "start": at * SECOND, "end": (at + 1) * SECOND}
        for at in range(2, 400)
    ]
    spans[300] |= {"name": "outer", "status": 2}
    inner = {"id": 500, "parent": 301, "name": "inner", "status": 2, "start": 301 * SECOND}
    spans.append({**inner, "end": 302 * SECOND, "attributes": TOOL})
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    write(store, *spans)
    with (
        serving(Service(store=store)) as running,
        page_at(browsing, running, f"/traces/{TRACE}") as page,
    ):
        page.get_by_role("tab", name="Spans").click()
        page.locator("#detail h2", has_text="inner").wait_for()
        chosen = page.locator(".span[aria-selected=true]")
        place = chosen.bounding_box()
        assert place is not None
        assert 0 < place["y"] < 900 - place["height"]
        assert (
            chosen.get_attribute("aria-posinset"),
            chosen.get_attribute("aria-setsize"),
        ) == (
            "1",
            "1",
        )
        assert page.locator("#tree-count").inner_text() == "400 spans, 3 failed"
        page.locator("#tree").focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        closed = page.locator(".span[aria-selected=true]")
        assert closed.get_attribute("aria-posinset") == "300"
        assert "✗ 1 inside" in closed.inner_text()


def test_a_deep_tree_has_names_on_a_phone(browsing, tmp_path: Path) -> None:
    """R-D7: ten levels down there is room for a name on a screen of 390 pixels."""
    spans = [{"id": at, "parent": at - 1, "name": f"level_{at}"} for at in range(1, 12)]
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    write(store, *spans)
    with (
        serving(Service(store=store)) as running,
        page_at(browsing, running, f"/traces/{TRACE}", width=390) as page,
    ):
        name = page.locator(".span .free-text", has_text="level_11")
        assert name.evaluate("it => it.clientWidth >= it.scrollWidth && it.scrollWidth > 30")


def test_a_failed_check_leads_to_its_span(browsing, tmp_path: Path) -> None:
    """R-D7: from the run to the trial to the step at fault; values laid out, crumbs to the cell."""
    case = Case(id="first", input="Who?", path={"forbidden_tools": ["delete_account"]})
    run = _run(Suite(cases=[case]), {"careless": careless_agent}, tmp_path)
    with (
        serving(Service(results=tmp_path)) as running,
        page_at(browsing, running, f"/runs/suite/{run.name}") as page,
    ):
        failed = page.get_by_role("region", name="Most failed checks")
        failed.get_by_role("link", name="first/careless/0/0").click()
        page.locator("#detail h2", has_text="delete_account").wait_for()
        assert "forbidden_tools" in page.locator("#detail .finding").inner_text()
        chosen = page.locator(".span[aria-selected=true]")
        assert "delete_account" in chosen.inner_text()
        assert chosen.locator(".mark").count() == 1
        assert "Who?" in page.locator(".turn.user").text_content()
        page.locator(".span", has_text="search").click()
        page.locator("#detail pre", has_text='"exact": true').wait_for()
        page.get_by_role("link", name="show span").click()
        page.locator("#detail h2", has_text="delete_account").wait_for()
        page.locator(".crumbs a").last.click()
        assert page.locator("td .note strong").first.inner_text() == "forbidden_tools"


def test_a_run_shows_the_worst_first(browsing, tmp_path: Path) -> None:
    """R-D7: failed cases are listed first, below a summary of the failures."""
    cases = [
        Case(id=name, input="x", correctness={"expected_in_answer": [word]})
        for name, word in (("a-passes", "fine"), ("b-passes", "fine"), ("c-breaks", "other"))
    ]
    run = _run(Suite(cases=cases), {"plain": plain_agent}, tmp_path)
    with (
        serving(Service(results=tmp_path)) as running,
        page_at(browsing, running, f"/runs/suite/{run.name}") as page,
    ):
        rows = page.locator(".heat tbody th").all_inner_texts()
        assert rows == ["c-breaks", "a-passes", "b-passes"]
        heads = page.locator("h2").all_inner_texts()
        assert heads == ["Agents", "Failure clusters", "Most failed checks", "Cases"]


def test_what_could_not_be_judged_says_why(browsing, tmp_path: Path) -> None:
    """R-D7: what kept trials from a verdict is apart from errors of the agent, with links."""
    agents = {"offline": offline_agent, "broken": broken_agent}
    run = _run(Suite(cases=[Case(id="first", input="x")]), agents, tmp_path)
    with (
        serving(Service(results=tmp_path)) as running,
        page_at(browsing, running, f"/runs/suite/{run.name}") as page,
    ):
        failed = page.get_by_role("region", name="Most failed checks").locator("tbody tr")
        assert "agent_error" in failed.inner_text()
        assert "RuntimeError: the till is stuck" in failed.inner_text()
        row = page.get_by_role("region", name="Not judged").locator("tbody tr")
        assert "ConnectionError" in row.inner_text()
        assert "the shop is closed" in row.inner_text()
        row.get_by_role("link").click()
        assert "the shop is closed" in page.locator("main > .problem").inner_text()


def test_traces_show_themselves_as_they_come(browsing, tmp_path: Path) -> None:
    """R-D7: an open list gains what comes, not under a reader's hand; a trace says it grew."""
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    with serving(Service(store=store)) as running:
        with page_at(browsing, running, "/traces") as page:
            assert f"OTEL_EXPORTER_OTLP_ENDPOINT={running.url}" in page.locator("main").inner_text()
            write(store, {"id": 1, "name": "first"})
            page.get_by_role("link", name="first").wait_for()
            page.get_by_role("link", name="first").focus()
            write(store, {"id": 1, "trace": "4" * 32, "name": "second"})
            page.locator(".arrived button").wait_for()
            assert page.get_by_role("link", name="second").count() == 0
            page.locator(".arrived button").click()
            page.get_by_role("link", name="second").wait_for()
            assert page.locator(".arrived").count() == 0
        with page_at(browsing, running, f"/traces/{TRACE}") as page:
            write(store, {"id": 2, "parent": 1, "name": "late"})
            page.locator(".arrived button").click()
            page.locator(".span", has_text="late").wait_for()


def test_a_server_that_is_gone_is_said(browsing, tmp_path: Path) -> None:
    """R-D7: an open page reports that the server does not answer, and can retry."""
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    write(store, {"id": 1, "name": "first"}, {"id": 2, "parent": 1, "name": "inner"})
    with serving(Service(store=store)) as running:
        context = browsing.new_context()
        page = context.new_page()
        page.goto(f"{running.url}/traces/{TRACE}")
        page.locator("#detail h2", has_text="first").wait_for()
        context.set_offline(True)
        page.locator(".span", has_text="inner").click()
        page.get_by_role("alert").wait_for()
        assert "does not respond" in page.get_by_role("alert").inner_text()
        context.set_offline(False)
        page.get_by_role("button", name="Try again").click()
        page.locator("#detail h2", has_text="inner").wait_for()
        context.close()


def test_the_list_is_ordered_by_its_heads(browsing, site) -> None:
    """R-D7: a column header sorts, keeps the filter, and is announced to screen readers."""
    with page_at(browsing, site, "/traces?min_ms=1") as page:
        page.get_by_role("columnheader", name="duration").get_by_role("link").click()
        page.wait_for_url("**min_ms=1&sort=slowest")
        head = page.get_by_role("columnheader", name="duration")
        assert head.get_attribute("aria-sort") == "descending"
        assert "long" in page.locator("table.list tbody tr").first.inner_text()


def test_names_are_whole_and_wide_tables_stay_in_place(browsing, tmp_path: Path) -> None:
    """R-D7: a word is not broken to make room, and a wide table scrolls without its page."""
    cases = [Case(id="one", input="x", correctness={"expected_in_answer": ["word " * 60]})]
    agents = {f"agent_of_a_long_name_{n}": plain_agent for n in range(8)}
    run = _run(Suite(cases=cases), agents, tmp_path)
    with (
        serving(Service(results=tmp_path)) as running,
        page_at(browsing, running, f"/runs/suite/{run.name}", width=390) as page,
    ):
        assert page.evaluate("document.documentElement.scrollWidth") <= 391
        head = page.locator("th[scope=row]", has_text="agent_of_a_long_name_0")
        assert head.evaluate("it => it.getBoundingClientRect().height") < 60


def test_the_theme_is_remembered(browsing, site) -> None:
    """R-D7: by mouse or keyboard, and on the next page."""
    with page_at(browsing, site, "/traces") as page:
        assert page.locator("#theme").inner_text() == "Dark"
        page.locator("#theme").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.goto(site.url + "/runs")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_filters_by_form(browsing, site) -> None:
    """R-D7: what is typed is looked for; a bad value is said and nothing is lost."""
    with page_at(browsing, site, "/traces") as page:
        page.locator("input[name=text]").fill("long")
        page.keyboard.press("Enter")
        page.wait_for_url("**/traces?text=long**")
        assert page.locator("table.list tbody tr").count() == 1
    reply = httpx.get(site.url + "/traces?min_ms=fast&text=long")
    assert reply.status_code == 400
    assert "min_ms is not a number" in reply.text
    assert 'value="fast"' in reply.text


def test_what_is_not_there(site) -> None:
    """R-D7: unknown things are 404 pages, and no path leads out of the results folder."""
    for path in (
        "/traces/none",
        "/runs/none",
        "/runs/..%2f..%2fetc",
        "/runs/%2e%2e/%2e%2e/etc/passwd",
        "/static/..%2f..%2fapp.py",
        f"{site.run_link}/trial/none",
        f"{site.run_link}/cell?case=x",
        f"{site.run_link}/compare?a=1&b=2",
        "/traces/none/outline",
        f"/traces/{TRACE}/spans/none",
    ):
        reply = httpx.get(site.url + path)
        assert reply.status_code == 404, path
        assert "root:" not in reply.text


def test_an_address_that_leads_nowhere(site) -> None:
    """R-D7: people get a page with ways on, programs a line."""
    found = httpx.get(site.url + "/nothing", headers={"accept": "text/html"})
    assert found.status_code == 404
    assert '<a href="/traces">All traces</a>' in found.text
    assert httpx.get(site.url + "/nothing").text == "Not Found"
    assert httpx.post(site.url + "/v1/nothing", headers={"accept": "text/html"}).text == "Not Found"


def test_a_page_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    """R-D7: a store that is gone is said in words, with a way to try again."""
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    with serving(Service(store=store)) as running:
        store.path.unlink()
        found = httpx.get(running.url + "/traces", headers={"accept": "text/html"})
        assert found.status_code == 503
        assert "the store was moved, removed or replaced" in found.text
        assert '<a href="/traces">Try again</a>' in found.text


def test_a_run_in_progress_is_followed(browsing, tmp_path: Path) -> None:
    """R-D7: the page of an active run shows its progress, and its end without a reload."""
    suite = Suite(cases=[Case(id="one", input="x")])
    first = prepare(suite, RunOptions(trials=3, max_trials=1), agents={"plain": plain_agent})
    folder = new_folder(first, tmp_path)
    done(first, folder)
    with serving(Service(results=tmp_path)) as running:
        link = f"/runs/suite/{folder.path.name}"
        with page_at(browsing, running, link) as page:
            assert page.locator("#live").inner_text().startswith("1 of 3 trials")
            rest = prepare(suite, RunOptions(trials=3), agents={"plain": plain_agent})
            done(rest, folder)
            page.locator("#live", has_text="3 of 3 trials").wait_for()


def test_long_names_keep_their_ends() -> None:
    """R-N12: names that differ at their end only are not cut to equal labels."""
    names = [f"support.orders.{'long-' * 20}request-{number}" for number in (1, 2)]
    labels = [short(name, 60) for name in names]
    assert labels[0] != labels[1]
    assert [len(label) for label in labels] == [60, 60]
    assert short("a\n\x1b[31mb", 60) == "a b"


def test_steps_are_aligned() -> None:
    """R-D7: the same steps stand beside each other, others alone, in the order of both."""

    def tools(*names: str):
        return trace(
            *(
                span(f"{n}{i}", start=i, kind=SpanKind.TOOL, tool_name=n)
                for i, n in enumerate(names)
            )
        )

    lines = aligned(tools("a", "b", "c"), tools("a", "x", "c", "d"))
    told = [(line.left and line.left.name, line.right and line.right.name) for line in lines]
    assert told == [("a", "a"), ("b", None), (None, "x"), ("c", "c"), (None, "d")]
    assert [line.same for line in lines] == [True, False, False, True, False]


def test_steps_that_say_something_else_differ() -> None:
    """R-D7: other arguments of the same tool are marked, the same text of another model is not."""
    left, right = (
        trace(
            span("m", start=0, kind=SpanKind.LLM, model=f"model-{words}", output="I will search."),
            span("a", start=1, kind=SpanKind.TOOL, tool_name="search", tool_input={"q": "same"}),
            span("b", start=2, kind=SpanKind.TOOL, tool_name="search", tool_input={"q": words}),
        )
        for words in ("red", "blue")
    )
    assert [line.differs for line in aligned(left, right)] == [False, False, True]
