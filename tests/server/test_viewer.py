"""The viewer's screens of runs in a real Chromium: what they answer, keys, text that attacks."""

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest
from browser import page_at, violations
from server_parts import serving
from viewer_parts import (
    HOSTILE,
    hostile_agent,
    offline_agent,
    run_suite,
    shop_agent,
    shop_suite,
)

from proctor.runs.run import Run
from proctor.server.app import Service, _bound
from proctor.server.pages._conversation import MAX_TEXT, rendered, turns_of
from proctor.server.pages.runs import address_name
from proctor.spec import Case, Suite
from proctor.spec.load import load_suite
from proctor.trace import Span, SpanKind, Trace
from proctor.trace.model import Message, ToolCall

AGENTS = {"careful": shop_agent(), "hasty/v2": shop_agent(False), "offline": offline_agent}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A server with a run of three agents, and one whose every text is hostile."""
    results = tmp_path_factory.mktemp("shop")
    run = run_suite(shop_suite("where", "return"), AGENTS, results)
    hostile = run_suite(shop_suite("nasty"), {"hostile": hostile_agent}, results)
    with serving(Service(results=results)) as running:
        running.results = results
        running.run, running.hostile = (f"/runs/suite/{each.name}" for each in (run, hostile))
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
        page.wait_for_url("**/trial/*")
        assert "trial 2" in page.locator("h1").inner_text()
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
    for theme, width in (("light", 1440), ("dark", 1280), ("light", 390)):
        with page_at(browsing, shop, trial, theme=theme, width=width) as page:
            assert violations(page) == [], (theme, width)
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
    assert rendered("# Title") == '<p class="head h1">Title</p>'
    assert rendered("*a* " * MAX_TEXT).startswith("<pre")


def test_the_server_answers_at_once() -> None:
    """R-D7: TCP_NODELAY can be set on connections: a response is not delayed by 40 ms."""
    import socket

    bound = _bound("127.0.0.1", 0)
    assert bound.proto == socket.IPPROTO_TCP
    bound.close()
