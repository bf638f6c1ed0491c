"""A live trace becomes a case: preview, verified checks, the suite file; nobody else writes."""

from pathlib import Path

import httpx
import pytest
import yaml
from browser import page_at, violations
from server_parts import serving, write

import proctor
from proctor.server.app import Service
from proctor.server.ingest import add_traces
from proctor.server.store import open_store
from proctor.server.store.store import SqlStore
from proctor.trace import SpanStatus, Trace

SAME = {"sec-fetch-site": "same-origin", "origin": "null"}


def recorded(answer: str, tool: str | None = "find_order", *, fails: bool = False) -> Trace:
    with proctor.capture(query="Where is my order?") as trace:
        if tool is not None:
            with proctor.capture.tool_call(tool, {"customer": 7}) as call:
                call.tool_output = {"order": "A-4711"}
                if fails:
                    call.status = SpanStatus.ERROR
        trace.response = answer
    return trace


@pytest.fixture
def store(tmp_path: Path) -> SqlStore:
    return open_store(f"sqlite:///{tmp_path}/traces.db")


def test_a_live_trace_becomes_a_case_in_one_click(store, tmp_path, browsing) -> None:
    """R-G11: the page previews the YAML and writes it; each check was tried on the traces."""
    right = recorded("Order A-4711 is on its way.")
    wrong = recorded("I cannot help with that.", "close_account", fails=True)
    add_traces([right, wrong], store)
    folder = tmp_path / "suites"
    folder.mkdir()
    service = Service.receiving(store, suites=folder)
    with serving(service, "boss", "guest") as site:
        with page_at(browsing, site, f"/traces/{wrong.trace_id}?token=boss") as page:
            page.get_by_role("link", name="Make a test case").click()
            # The other trace with the same input is the right one.
            page.get_by_text("passes on the right one").wait_for()
            assert "tool_not_called" in page.locator("pre.preview").inner_text()
            assert violations(page) == []
            page.get_by_role("textbox", name="Suite file").fill("support.yaml")
            page.get_by_role("button", name="Write the case").click()
            page.get_by_text("Wrote case").wait_for()
        written = yaml.safe_load((folder / "support.yaml").read_text())
        (case,) = written["cases"]
        assert case["input"] == "Where is my order?"
        kinds = {each["type"] for each in case["assertions"]}
        assert {"tool_not_called", "output_contains"} <= kinds
        # A second one, from the right trace, is added to the same file.
        form = {"file": "support.yaml", "write": "1", "id": "seen"}
        address = f"{site.url}/traces/{right.trace_id}/promote"
        boss, guest = ({"authorization": f"Bearer {token}"} for token in ("boss", "guest"))
        assert httpx.post(address, data=form, headers={**SAME, **boss}).status_code == 200
        ids = [
            each["id"] for each in yaml.safe_load((folder / "support.yaml").read_text())["cases"]
        ]
        assert ids == [case["id"], "seen"]
        # Not by viewers, other sites or outside the folder; not by opening an address.
        foreign = {"origin": "http://evil.example", **boss}
        assert httpx.post(address, data=form, headers={**SAME, **guest}).status_code == 403
        assert httpx.post(address, data=form, headers={"cookie": "", **foreign}).status_code == 403
        outside = {**form, "file": "../x.yaml"}
        assert httpx.post(address, data=outside, headers={**SAME, **boss}).status_code == 409
        httpx.get(address, params={**form, "file": "other.yaml"}, headers=boss)
        assert sorted(path.name for path in folder.iterdir()) == [
            "support.tools.yaml",
            "support.yaml",
        ]
        assert "You may read" in httpx.get(address, headers=guest).text
        audit = [(row.action, row.detail) for row in store.audit()]
        assert ("promote", f"trace {right.trace_id}: support.yaml") in audit


def test_hostile_traces_are_previewed_as_text(store) -> None:
    """R-N14: markup in a trace stays text on the page of its case; others say what is missing."""
    attack = "<script>window.hacked=1</script>\u202e\x1b[31m"
    with proctor.capture(query=attack) as trace:
        trace.response = f"A-4711 {attack}"
    add_traces([trace], store)
    write(store, {"id": 1})
    with serving(Service.receiving(store)) as site:
        page = httpx.get(f"{site.url}/traces/{trace.trace_id}/promote?expect={attack[:8]}").text
        assert "<script>window" not in page
        assert "\u202e" not in page
        missing = httpx.get(f"{site.url}/traces/{'0' * 32}/promote")
        assert missing.status_code == 404
