"""The viewer's screens of runs in a real Chromium: what they answer, keys, text that attacks."""

import json
import os
import re
import socket
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from browser import page_at, violations
from server_parts import serving
from starlette.testclient import TestClient
from viewer_parts import (
    HOSTILE,
    finish,
    hostile_agent,
    offline_agent,
    run_suite,
    shop_agent,
    shop_suite,
)

from proctor.formatting import percent
from proctor.report.figures import ends
from proctor.results.leaderboard import entrants_of, leaderboard
from proctor.runs.annotations import tag
from proctor.runs.heartbeat import Beat, write_beat
from proctor.runs.run import Run
from proctor.server.app import Service, _bound, make_app
from proctor.server.pages._conversation import MAX_TEXT, rendered, turns_of
from proctor.server.pages.run_lists import RunLists
from proctor.server.pages.runs import address_name
from proctor.spec import Case, Suite
from proctor.spec.load import load_suite
from proctor.trace import Span, SpanKind, Trace
from proctor.trace.model import Message, ToolCall
from proctor.trials.options import RunOptions
from proctor.trials.prepare import prepare
from proctor.trials.session import new_folder

HOSTILE_NAME = "<script>window.hacked=1</script>"
AGENTS = {"careful": shop_agent(), "hasty/v2": shop_agent(False), "offline": offline_agent}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A server with a baseline, a run of three agents, and one whose every text is hostile."""
    results = tmp_path_factory.mktemp("shop")
    before = {**AGENTS, "hasty/v2": shop_agent()}
    tag(run_suite(shop_suite("where", "return"), before, results), "baseline")
    run = run_suite(shop_suite("where", "return"), AGENTS, results)
    agents = {HOSTILE_NAME: hostile_agent}
    hostile = run_suite(shop_suite("nasty"), agents, results / "other")
    with serving(Service(results=results)) as running:
        running.results = results
        running.run, running.hostile = (
            f"/runs/suite/{run.name}",
            f"/runs/other/suite/{hostile.name}",
        )
        running.read = Run(run)
        running.trials = {trial.name: trial for trial in Run(run).trials()}
        yield running


def trial_at(shop, name: str) -> str:
    return f"{shop.run}/trial/{address_name(shop.trials[name])}"


def test_a_trial_is_a_conversation(browsing, shop) -> None:
    """R-N12: messages once and in order, calls as cards, Markdown as markup, model and cost."""
    with page_at(browsing, shop, trial_at(shop, "where/careful/0/0"), width=1440) as page:
        assert page.locator(".turn h3").all_inner_texts() == [
            "system",
            "user",
            "assistant",
            "assistant",
        ]
        asked = page.locator(".turn.assistant").first
        card = asked.locator(".card")
        assert "find_order" in card.inner_text()
        assert '"order": 4711' in card.locator("pre").first.inner_text()
        assert "shipped" in card.locator("pre").last.inner_text()
        assert "gpt-4o-mini · 120 in, 18 out · $" in asked.locator(".meta").first.inner_text()
        said = page.locator(".turn.assistant").last.locator(".said")
        assert said.locator("strong").inner_text() == "4711"
        assert said.locator("td").all_inner_texts() == ["lamp", "shipped"]
        assert said.locator("pre").inner_text().strip() == 'print("<b>done</b>")'
        assert "our page (https://example.com/orders)" in said.inner_text()
        assert said.locator("a, img").count() == 0
        picture = page.locator(".turn.user img")
        assert picture.evaluate("it => it.complete && it.naturalWidth") == 1
        assert page.locator("#spans").is_hidden()
        assert page.locator("#cause").is_hidden()


def test_a_failed_trial_leads_to_the_turn(browsing, shop) -> None:
    """R-N12: a check and the decisive step link to the exact turn, which is marked."""
    with page_at(browsing, shop, trial_at(shop, "where/hasty/v2/0/0"), width=1280) as page:
        assert page.locator("h1 .chip").inner_text() == "⊗ hard fail"
        page.locator("#cause").wait_for()
        check = page.locator(".checks li", has_text="forbidden_tools")
        check.get_by_role("link", name="turn 4").click()
        turn = page.locator("#turn-4")
        assert "delete_account" in turn.inner_text()
        assert turn.evaluate("it => it === document.activeElement")
        assert "decisive" in (turn.get_attribute("class") or "")
        assert "start here" in turn.inner_text()
        assert page.locator("#cause a").get_attribute("href") == "#turn-4"
        page.locator("#findings button").first.click()
        assert page.locator("#spans").is_visible()
        assert page.evaluate("document.activeElement.id") == "tree"
        page.go_back()
        page.locator("#tab-conversation").click()
        assert page.locator("#conversation").is_visible()
        marks = page.locator(".same .sign").all_inner_texts()
        words = [each.split("\n")[-1] for each in marks]
        assert words == ["passed", "passed", *["hard fail"] * 2, *["infra error"] * 2]


def test_keys_search_and_copies_of_a_trial(browsing, shop) -> None:
    """R-N12: j and k move between turns, / finds, ? lists the keys; JSON, a case, a command."""
    link = trial_at(shop, "where/hasty/v2/0/0")
    with page_at(browsing, shop, link) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        for key, turn in (("j", "turn-1"), ("j", "turn-2"), ("k", "turn-1")):
            page.keyboard.press(key)
            assert page.evaluate("document.activeElement.id") == turn
        assert page.evaluate("location.hash") == "#turn-1"
        page.keyboard.press("v")
        assert page.locator("#spans").is_visible()
        page.keyboard.press("v")
        page.keyboard.press("/")
        page.keyboard.type("delete_account")
        assert page.locator("#turn-count").inner_text() == "1 of 5 turns"
        assert page.locator(".turn:visible").count() == 1
        page.locator("#find-turn").fill("")
        page.locator("h1").click()
        page.keyboard.press("?")
        assert page.locator("#keys").is_visible()
        assert violations(page) == []
        page.keyboard.press("Escape")
        page.locator(".copies a", has_text="JSON").click()
        page.locator("#copied", has_text="Copied JSON").wait_for()
        copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
        assert copied["trial"]["case"] == "where"
        assert any(span.get("tool_name") == "delete_account" for span in copied["trace"]["spans"])
        page.keyboard.press("n")
        page.wait_for_selector("h1:has-text('trial 2')")
        page.wait_for_load_state()
        page.keyboard.press("p")
        page.wait_for_url("**" + link)


def test_copies_can_be_used(shop, tmp_path: Path) -> None:
    """R-N12: the copied case is a suite, and the command repeats the model call."""
    link = shop.url + trial_at(shop, "where/careful/0/0")
    suite = tmp_path / "copied.yaml"
    suite.write_text(httpx.get(f"{link}/copy/case").text)
    assert [case.id for case in load_suite(suite, need_agent=False).cases] == ["where"]
    command = httpx.get(f"{link}/copy/curl").text
    # `echo` in place of curl: the shell must see one JSON document, whatever is in it.
    shown = subprocess.run(
        ["bash", "-c", 'curl() { printf "%s" "${@: -1}"; }; ' + command],
        env={**os.environ, "OPENAI_API_KEY": "k"},
        capture_output=True,
        text=True,
        check=True,
    )
    body = json.loads(shown.stdout)
    assert body["model"] == "gpt-4o-mini"
    assert [each["role"] for each in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert httpx.get(f"{link}/copy/nothing").status_code == 404
    assert httpx.get(f"{link}/copy/curl?span=none").status_code == 404


def test_hostile_text_stays_text(browsing, shop) -> None:
    """R-N12: HTML, scripts, control sequences, bidi and 10 MB of text on the new screens."""
    hostile = Run(shop.results / shop.hostile.removeprefix("/runs/"))
    trial = f"{shop.hostile}/trial/{address_name(next(hostile.trials()))}"
    for path in (trial, f"{trial}?from=9999999", f"{trial}?from=x"):
        reply = httpx.get(shop.url + path)
        assert reply.status_code == 200
        assert len(reply.text) < 400_000
        assert "\x1b" not in reply.text
        assert "\u202e" not in reply.text
        assert "onerror=window.hacked=1&gt;" in reply.text
    others = ("/runs", "/history/other/suite", shop.hostile, f"{shop.hostile}/trials")
    for path in others:  # the page of the run loads its clusters
        with page_at(browsing, shop, path, width=390) as page:
            assert page.evaluate("window.hacked") is None
            assert page.evaluate("document.documentElement.scrollWidth") <= 391
    for theme, width in (("light", 1440), ("dark", 390)):
        with page_at(browsing, shop, trial, theme=theme, width=width) as page:
            assert page.evaluate("window.hacked") is None
            assert page.locator(".turn script, .turn iframe, .turn a[href^=http]").count() == 0
            assert "more characters" in page.locator(".turn").last.inner_text()
            assert page.evaluate("document.documentElement.scrollWidth") <= width + 1
            assert violations(page) == []


def test_new_screens_are_accessible(browsing, shop) -> None:
    """R-N12: axe-core finds nothing on the new screens, light and dark, wide and narrow."""
    trial = trial_at(shop, "where/hasty/v2/0/0")
    for path in (trial, shop.run, f"{shop.run}/trials", "/runs", "/history/suite"):
        for theme, width in (("light", 1440), ("dark", 1280), ("light", 390)):
            with page_at(browsing, shop, path, theme=theme, width=width) as page:
                assert violations(page) == [], (path, theme, width)
                assert page.evaluate("document.documentElement.scrollWidth") <= width + 1


def test_workspace_changes_are_a_diff(browsing, tmp_path: Path) -> None:
    """R-N12: files changed by the agent are listed, with their diff."""

    def agent(_question: str, workspace: Path) -> str:
        (workspace / "app.py").write_text("print('<b>new</b>')\n")
        return "fixed"

    case = Case(id="fix", input="Fix it", workspace={"files": {"app.py": "print('old')\n"}})
    run = run_suite(Suite(cases=[case]), {"coder": agent}, tmp_path, trials=1)
    trial = next(Run(run).trials())
    link = f"/runs/suite/{run.name}/trial/{address_name(trial)}"
    with (
        serving(Service(results=tmp_path)) as running,
        page_at(browsing, running, link) as page,
    ):
        page.locator("#tab-files").click()
        assert page.locator(".files li").inner_text() == "changed app.py"
        assert page.locator(".diff .added").all_inner_texts() == ["+print('<b>new</b>')\n"]
        assert page.locator(".diff .removed").all_inner_texts() == ["-print('old')\n"]
        assert violations(page) == []


def test_conversations_of_any_recording() -> None:
    """R-N12: repeated history once, results by id, calls without messages, an answer at the end."""

    def at(number: int, **fields) -> Span:
        return Span(
            span_id=f"s{number}", trace_id="t", name="x", start_ns=number, end_ns=number, **fields
        )

    yes, call = Message("user", "yes"), ToolCall("f", {"a": 1}, id="1")
    first = at(
        1,
        kind=SpanKind.LLM,
        input_messages=(Message("developer", "be kind"), yes),
        output_messages=(Message("assistant", "sure?"),),
    )
    again = at(
        2,
        kind=SpanKind.LLM,
        input_messages=(Message("system", "be kind"), yes, Message("ai", "sure?"), yes),
        output_messages=(Message("assistant", None, (call,)),),
    )
    last = at(
        4,
        kind=SpanKind.LLM,
        input_messages=(
            *again.input_messages,
            Message("assistant", None, (call,)),
            Message("tool", "two", tool_call_id="1"),
        ),
        output_messages=(Message("assistant", "done"),),
    )
    stray = at(5, kind=SpanKind.TOOL, tool_name="g", tool_output="out")
    turns = turns_of(Trace(trace_id="t", spans=[last, first, again, stray]), "the end")
    assert [(turn.role, turn.text) for turn in turns] == [
        ("system", "be kind"),
        ("user", "yes"),
        ("assistant", "sure?"),
        ("user", "yes"),
        ("assistant", None),
        ("assistant", "done"),
        ("tool", None),
        ("assistant", "the end"),
    ]
    assert (turns[4].calls[0].arguments, turns[4].calls[0].result) == ('{\n  "a": 1\n}', "two")
    assert turns[6].span_ids == ["s5"]
    plain = turns_of(Trace(trace_id="t", query="why?", response="because", spans=[]))
    assert [(turn.role, turn.text) for turn in plain] == [
        ("user", "why?"),
        ("assistant", "because"),
    ]


def test_markdown_is_ours_alone() -> None:
    """R-N12: no link, no foreign image, no tag of the text; long text is plain."""
    assert "<script" not in rendered(HOSTILE)
    assert "<img" not in rendered("![x](https://example.com/a.png) ![y](data:image/png;base64,AA)")
    assert "<a" not in rendered("[x](https://example.com) <https://example.com>")
    # The content security policy forbids styles, so the alignment of a column is a class.
    table = rendered("|a|b|\n|---|---:|\n|1|2|")
    assert "style" not in table
    assert table.count('class="n"') == 2
    assert "<pre" not in rendered("[1] says **so**")
    assert "<pre" in rendered('[{"a": 1}]\n')
    assert rendered("# Title") == '<p class="head h1">Title</p>'
    assert rendered("*a* " * MAX_TEXT).startswith("<pre")


def test_the_server_answers_at_once() -> None:
    """R-D7: TCP_NODELAY can be set on connections: a response is not delayed by 40 ms."""
    import socket

    bound = _bound("127.0.0.1", 0)
    assert bound.proto == socket.IPPROTO_TCP
    bound.close()


# -- one run ---------------------------------------------------------------------------------------


def test_a_run_answers_whether_it_regressed(browsing, shop) -> None:
    """R-N12: the verdict first, then the gate's words; the leaderboard's figures; causes."""
    with page_at(browsing, shop, shop.run, width=1440) as page:
        assert page.locator(".answer .verdict").inner_text() == "✕ FAIL"
        assert "passed" in page.locator(".headline").inner_text()
        answer = page.locator(".answer").inner_text()
        assert "REGRESSION" in answer
        assert "hasty/v2: a drop of" in answer
        rows = page.get_by_role("region", name="Agents").locator("tbody tr")
        board = leaderboard(entrants_of([shop.read], by_params=True))
        for row, figures in zip(rows.all(), board.rows, strict=True):
            shown = row.inner_text()
            assert figures.name in shown
            assert percent(figures.pass_rate.value) in shown
            assert ends("pass_rate", figures.pass_rate) in shown
        moved = page.get_by_role("region", name="Change against the baseline")
        assert "2/2 → 0/2" in moved.inner_text()
        cause = page.get_by_role("region", name="Failure clusters").locator("tbody tr")
        assert "delete_account" in cause.first.inner_text()
        cause.get_by_role("link").first.click()
        page.locator("#cause", has_text="delete_account").wait_for()


def test_no_failure_looks_like_a_pass(browsing, shop) -> None:
    """R-N12: a hard failure and an infrastructure error have their own sign, word and colour."""
    with page_at(browsing, shop, shop.run) as page:
        cells = page.locator("#matrix tbody tr").first.locator("td")
        words = [cell.locator(".sr").inner_text().strip() for cell in cells.all()]
        assert words == ["PASS", "HARD FAIL", "INFRA_ERROR"]
        signs = [cell.locator(".sign").inner_text() for cell in cells.all()]
        assert signs == ["✓", "⊗", "!"]
        grounds = {
            cell.evaluate("it => getComputedStyle(it).backgroundColor") for cell in cells.all()
        }
        assert len(grounds) == 3
        page.locator("#find-case").fill("ret")
        assert page.locator("#matrix tbody tr:visible").count() == 1
        assert page.locator("#case-count").inner_text() == "1 of 2 cases"
        page.locator("#find-case").fill("")
        page.locator(".matrix-tools summary").click()
        page.locator("[data-column='2']").uncheck()
        page.locator("[data-column='3']").uncheck()
        assert page.locator("#matrix thead th:visible").count() == 2
        page.locator("#only-failures").check()
        assert page.locator("#matrix tbody tr:visible").count() == 0
        page.locator("[data-column='2']").check()
        assert page.locator("#matrix tbody tr:visible").count() == 2
        page.locator("#sort-case").select_option("name")
        assert page.locator("#matrix tbody th").first.inner_text() == "return"


def test_all_trials_with_filters(browsing, shop) -> None:
    """R-N12: by status, agent, check and text, sorted, with a link to each trial."""
    with page_at(browsing, shop, f"{shop.run}/trials") as page:
        rows = page.locator("table.list tbody tr")
        assert rows.count() == 12
        page.get_by_label("Status").select_option("hard_fail")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**status=hard_fail**")
        assert rows.count() == 4
        assert "forbidden_tools" in rows.first.inner_text()
        page.get_by_role("link", name="score").click()
        page.wait_for_url("**sort=score")
        head = page.get_by_role("columnheader", name="score")
        assert head.get_attribute("aria-sort") == "ascending"
        rows.first.get_by_role("link").click()
        assert "hasty/v2" in page.locator("h1").inner_text()
    for query, count in (
        ("check=forbidden_tools&agent=hasty/v2", 4),
        ("text=closed", 4),
        ("text=zz", 0),
    ):
        found = httpx.get(f"{shop.url}{shop.run}/trials?{query}&offset=7").text
        assert found.count("/trial/") == count
    for page_of_many in (f"{shop.run}/trials", "/runs"):
        assert httpx.get(f"{shop.url}{page_of_many}?offset={'9' * 5000}").status_code == 200


# -- many runs -------------------------------------------------------------------------------------


def test_runs_are_listed_with_intervals_and_filters(browsing, shop) -> None:
    """R-N12: rates as on the leaderboard, trend, gate and tags; search, order, selection."""
    with page_at(browsing, shop, "/runs", width=1440) as page:
        suite = page.get_by_role("region", name="Suites").locator("tbody tr", has_text="suite")
        suite.get_by_text("REGRESSION").wait_for()
        assert suite.locator("svg.spark").get_attribute("aria-label").startswith("Pass rates of")
        row = page.locator("table.runs tbody tr", has_text=shop.run.removeprefix("/runs/"))
        figures = leaderboard(entrants_of([shop.read], by_params=True)).rows[0].pass_rate
        assert f"{percent(figures.value)} {ends('pass_rate', figures)}" in " ".join(
            row.locator(".rates li").first.inner_text().split()
        )
        assert "failed" in row.inner_text()
        assert page.locator("table.runs .chip", has_text="baseline").count() == 1
        page.locator("input[name=text]").fill("baseline")
        page.keyboard.press("Enter")
        page.wait_for_url("**text=baseline**")
        assert page.locator("table.runs tbody tr").count() == 1
        page.get_by_role("link", name="Clear").click()
        page.get_by_role("link", name="pass rate").click()
        page.wait_for_url("**sort=worst")
        boxes = page.locator("table.runs input[type=checkbox]")
        boxes.nth(0).check()
        boxes.nth(1).check()
        page.get_by_role("button", name="Compare selected").click()
        page.wait_for_url("**/compare?run=*&run=*")
        assert page.locator("h1").count() == 1


def test_runs_appear_and_progress_without_reload(browsing, tmp_path: Path) -> None:
    """R-N12: a run that starts is listed with its progress, and its verdict when it ends."""
    suite = shop_suite("one")
    with serving(Service(results=tmp_path)) as running, page_at(browsing, running, "/runs") as page:
        assert "No runs yet" in page.locator("main").inner_text()
        page.evaluate("window.kept = 1")
        ready = prepare(suite, RunOptions(trials=3), agents={"careful": shop_agent()})
        folder = new_folder(ready, tmp_path)
        beat = Beat(
            run_id="x",
            state="running",
            pid=os.getpid(),
            host=socket.gethostname(),
            began=datetime.now(UTC),
            at=datetime.now(UTC) + timedelta(days=1),
            every_s=60,
            planned=3,
            done=1,
            passed=1,
        )
        write_beat(folder.path, beat)
        page.locator("table.runs .live-progress", has_text="1 of 3 trials").wait_for()
        assert page.locator("table.runs progress").get_attribute("value") == "1"
        assert page.locator("table.suites td").last.inner_text() == "running"
        first = run_suite(suite, {"careful": shop_agent()}, tmp_path / "first", trials=1)
        page.locator("table.runs tbody tr", has_text=f"first/suite/{first.name}").wait_for()
        page.get_by_role("checkbox").first.check()
        page.mouse.move(0, 0)
        page.evaluate("document.activeElement.blur()")
        finish(ready, folder)
        done = page.locator("table.runs tbody tr", has_text=folder.path.name).filter(
            has_not_text="first/"
        )
        done.locator(".rates", has_text="100 %").wait_for()
        assert page.locator("input:checked").get_attribute("value") == f"first/suite/{first.name}"
        assert page.evaluate("window.kept") == 1


def test_the_history_of_a_suite(browsing, shop) -> None:
    """R-N12: figures over runs with intervals, the change point, strips, where a case broke."""
    with page_at(browsing, shop, "/history/suite", width=1440) as page:
        page.locator(".change-point").wait_for()
        change = page.locator(".change-point").inner_text()
        assert "hasty/v2: 100 % → 0 %" in change
        assert shop.run.removeprefix("/runs/") in change
        titles = page.locator("figcaption").all_inner_texts()
        assert titles == ["Pass rate", "Score", "Cost per trial", "Mean latency"]
        assert page.locator(".plot .change").count() == 1
        assert page.locator(".plot").first.locator(".reach").count() >= 4
        row = page.locator(".strips tbody tr").first
        assert "hasty/v2" in row.inner_text()
        outcomes = row.locator(".strip .sr").all_inner_texts()
        assert outcomes[:2] == ["passed", "hard fail"]
        row.get_by_role("link", name=shop.run.removeprefix("/runs/")).last.click()
        page.wait_for_url("**" + shop.run)
    assert httpx.get(f"{shop.url}/history/none").status_code == 404
    assert httpx.get(f"{shop.url}/history/..%2f..").status_code == 404


def test_many_runs_are_read_a_few_at_a_time(shop) -> None:
    """R-N12: a page does not wait for all journals: what is not read is said, and read by polls."""
    now = [0.0]

    def clock() -> float:
        now[0] += 0.15  # each look at the clock costs: one run is read by a page
        return now[0]

    lists = RunLists(shop.results, clock=clock)
    app = make_app(Service())
    app._apps[None].router.routes += lists.routes()
    with TestClient(app, base_url="http://localhost") as client:
        first = client.get("/runs").text
        assert first.count("reading …") >= 1
        before = re.search(r'data-state="(\w+)"', first)[1]
        assert client.get("/state/runs").json()["state"] != before
        for _ in range(4):
            client.get("/state/runs")
        assert "reading …" not in client.get("/runs").text
