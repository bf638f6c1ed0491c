"""The figures of a long list come after the list, in a browser and without one."""

import re

import httpx
import pytest
from browser import ARGUMENTS, chromium
from server_parts import LLM, TOOL, serving, write

from proctor.server.app import Service
from proctor.server.pages.traces import INLINE_TRACES, MAX_AGE, FigureCache
from proctor.server.store import open_store
from proctor.server.store.store import TraceFilter

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A server with one trace more than figures are shown of at once."""
    folder = tmp_path_factory.mktemp("long")
    store = open_store(f"sqlite:////{folder}/t.db".replace("/////", "////"))
    spans = []
    for number in range(1, INLINE_TRACES + 2):
        trace = f"{number:032x}"
        attributes = LLM if number % 2 else {**TOOL, "tool.name": HOSTILE}
        spans.append({"id": 1, "trace": trace, "attributes": attributes, "end": 3_000_000_000})
    write(store, *spans)
    with serving(Service(store=store)) as server:
        yield server.url


def test_a_long_list_names_its_figures_and_a_short_one_has_them(site) -> None:
    """R-T6: the list is there at once; figures are on it, or one link away without a script."""
    long = httpx.get(f"{site}/traces").text
    assert "<dl" not in long
    link = re.search(r'href="(/traces/figures[^"]*)"', long)
    assert link is not None
    figures = httpx.get(site + link.group(1)).text
    assert f"<dd>{INLINE_TRACES + 1:,}</dd>" in figures
    assert "2.0 s" in figures
    short = httpx.get(f"{site}/traces", params={"tool": HOSTILE}).text
    assert f"<dd>{INLINE_TRACES // 2:,}</dd>" in short
    assert "&lt;script&gt;" in short
    assert "<script>window" not in short + figures


def test_figures_of_a_bad_filter(site) -> None:
    """R-T6: what cannot be understood is said, not guessed."""
    for path in ("/traces/figures", "/traces/figures/part"):
        reply = httpx.get(site + path, params={"min_ms": "soon"})
        assert (reply.status_code, "min_ms" in reply.text) == (400, True)


def test_the_figures_come_by_themselves(site) -> None:
    """R-T6: in a browser the figures take their place on the page; hostile names stay text."""
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        page = browser.new_page()
        page.set_default_timeout(60_000)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else 0)
        page.goto(f"{site}/traces")
        page.locator("#figures dl.figures").wait_for()
        assert f"{INLINE_TRACES + 1:,}" in page.locator("#figures dl").inner_text()
        page.locator("#figures summary").press("Enter")
        assert HOSTILE in page.locator("#figures table").inner_text()
        assert page.evaluate("window.hacked") is None
        assert problems == []
        plain = browser.new_context(java_script_enabled=False).new_page()
        plain.goto(f"{site}/traces")
        plain.locator("#figures a").click()
        assert f"{INLINE_TRACES + 1:,}" in plain.locator("dl.figures").inner_text()
        browser.close()


def test_figures_of_a_large_set_are_asked_for_once_in_a_while(site, tmp_path) -> None:
    """R-T6: many viewers of one list cost one look; what changed is seen after some seconds."""
    store = open_store(f"sqlite:////{tmp_path}/t.db".replace("/////", "////"))
    write(store, *({"id": 1, "trace": f"{n:032x}"} for n in range(1, INLINE_TRACES + 2)))
    at = 0.0
    known = FigureCache(store, clock=lambda: at)
    assert known.get(TraceFilter()).figures.traces == INLINE_TRACES + 1
    write(store, {"id": 1, "trace": "f" * 32})
    assert known.get(TraceFilter()).figures.traces == INLINE_TRACES + 1
    at = MAX_AGE + 1
    assert known.get(TraceFilter()).figures.traces == INLINE_TRACES + 2
    store.close()
