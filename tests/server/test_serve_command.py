"""`proctor serve` on the command line: what it refuses, and in which words."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import commands
import httpx
import pytest
from click.testing import CliRunner
from server_parts import TRACE, started, wire_request, write

from proctor.cli.serve import serve
from proctor.cli.store import add
from proctor.data import example_trace
from proctor.errors import ProctorError
from proctor.server.store import open_store


def refusal(*arguments: str) -> ProctorError:
    """What `proctor serve` refuses to start with."""
    result = CliRunner().invoke(serve, arguments, standalone_mode=False)
    assert isinstance(result.exception, ProctorError), result.output
    return result.exception


def test_a_port_in_use(tmp_path: Path) -> None:
    """R-D7: one line that says which, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        store = f"sqlite:////{tmp_path}/t.db".replace("/////", "////")
        error = refusal("--port", str(port), "--store", store)
    assert f"cannot listen on 127.0.0.1:{port}" in error.message
    assert "--port" in (error.hint or "")


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ("traces.db", "not the address of a store"),
        ("sqlite:////dev/null/t.db", "cannot open the store"),
        ("postgresql://nobody@127.0.0.1:1/none", "cannot reach the store"),
    ],
)
def test_a_bad_store(store: str, words: str) -> None:
    """R-D7: an invalid store address is reported before the server listens."""
    assert words in refusal("--port", "0", "--store", store).message


def test_a_file_that_is_no_store(tmp_path: Path) -> None:
    """R-D7: another program's file is left as it is."""
    file = tmp_path / "notes.txt"
    file.write_text("not a database, but long enough to be looked at as one " * 20)
    before = file.read_bytes()
    error = refusal("--store", f"sqlite:////{file}".replace("/////", "////"))
    assert "not a database" in error.message
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "given", [("--judge", "openai:gpt-4o"), ("--alert", "https://x.test"), ("--checks", "s.yaml")]
)
def test_options_that_would_do_nothing(given: tuple[str, str]) -> None:
    """R-D7: what only an evaluation uses is refused without one."""
    assert refusal(*given).message == f"{given[0]} would have no effect without --evaluate"


OWN_SECRET = "badge 4711-0815"


@pytest.mark.parametrize("readers", ["0", "1"])
def test_patterns_of_the_settings_are_redacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readers: str
) -> None:
    """R-T9: `redaction.patterns` of proctor.yaml applies in the server and in its readers."""
    monkeypatch.chdir(tmp_path)
    Path("proctor.yaml").write_text("redaction: {patterns: {badge: 'badge [0-9-]+'}}\n")
    body = wire_request({"id": 1, "attributes": {"input.value": f"my {OWN_SECRET}"}})
    process, address = started("sqlite:///live.db", "--readers", readers)
    try:
        headers = {"content-type": "application/x-protobuf"}
        httpx.post(f"{address}/v1/traces", content=body, headers=headers).raise_for_status()
        stored = httpx.get(f"{address}/api/traces/{TRACE}").text
    finally:
        process.terminate()
        process.communicate()
    assert "my [redacted:badge]" in stored
    assert OWN_SECRET not in stored


def test_patterns_of_the_settings_are_redacted_in_added_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-T9: `proctor store add` redacts a file as `proctor serve` redacts a request."""
    monkeypatch.chdir(tmp_path)
    Path("proctor.yaml").write_text("redaction: {patterns: {badge: 'badge [0-9-]+'}}\n")
    attributes = {"input.value": f"my {OWN_SECRET}"}
    Path("trace.pb").write_bytes(wire_request({"id": 1, "attributes": attributes}))
    added = CliRunner().invoke(add, ["trace.pb"])
    assert added.exit_code == 0, added.output
    store = open_store("sqlite:///proctor-traces.db")
    trace = store.trace(TRACE)
    store.close()
    assert trace is not None
    assert trace.spans[0].input == "my [redacted:badge]"


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """End a server with the block."""
    try:
        yield
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_slow_connections_do_not_shut_out_clients_with_the_token(tmp_path: Path) -> None:
    """R-D7: 1,050 connections with unfinished headers, and a client with the token is answered."""
    process, address = started(f"sqlite:///{tmp_path}/t.db", "--token", "right")
    with (
        ended(process),
        contextlib.ExitStack() as slow,
        httpx.Client(base_url=address, headers={"authorization": "Bearer right"}) as client,
    ):
        assert client.get("/api/traces").status_code == 200
        port = int(address.rpartition(":")[2])
        for _ in range(1050):
            each = slow.enter_context(socket.create_connection(("127.0.0.1", port)))
            with contextlib.suppress(OSError):
                each.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        assert client.get("/api/traces").status_code == 200
        fresh = httpx.get(f"{address}/api/traces", headers={"authorization": "Bearer right"})
        assert fresh.status_code == 200


def test_bad_paging_and_names_are_refused(tmp_path: Path) -> None:
    """R-D7: a page that is too large or negative is a 400, a name with a zero byte a 404."""
    results = tmp_path / "results"
    results.mkdir()
    store = f"sqlite:///{tmp_path}/t.db"
    process, address = started(store, "--results", str(results))
    with ended(process):
        for query in ("limit=100000000", "limit=0", "offset=-1"):
            assert httpx.get(f"{address}/api/traces?{query}").status_code == 400, query
        for name in ("s%00", "s" * 5000, f"s/2026-01-01_001/{'t' * 5000}", "s/" * 2000):
            assert httpx.get(f"{address}/runs/{name}").status_code == 404, name[:20]


def test_a_folder_of_traces_is_viewed(tmp_path: Path) -> None:
    """R-N13: `view FOLDER` shows trace files in the browser, leaves them alone, keeps no store."""
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "one.json").write_bytes(example_trace().read_bytes())
    (tmp_path / "nothing").mkdir()
    none = commands.proctor("view", "nothing", "--no-open", cwd=tmp_path)
    assert none.returncode == 2
    assert "no run and no readable trace is here" in none.stderr
    process = subprocess.Popen(
        [sys.executable, "-m", "proctor", "view", "traces", "--no-open"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        assert said == "read 1 trace of traces\n"
        url = re.search(r"http://\S+/traces", process.stderr.readline())
        assert url is not None
        page = httpx.get(url[0]).text
        assert "Where is my order A-4711" in page
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nothing", "traces"]
    assert [path.name for path in folder.iterdir()] == ["one.json"]


def test_a_store_is_viewed_without_a_results_folder(tmp_path: Path) -> None:
    """R-N12: `view --store` alone shows the traces, creates nothing, and offers no runs."""
    store = open_store(f"sqlite:///{tmp_path}/t.db".replace(":///", ":////", 1))
    write(store, {"id": 1, "name": "first"})
    store.close()
    process = subprocess.Popen(
        [sys.executable, "-m", "proctor", "view", "--store", "sqlite:///t.db", "--no-open"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        url = re.search(
            r"showing the trace store at (http://\S+/traces)", process.stderr.readline()
        )
        assert url is not None
        page = httpx.get(url[1]).text
        assert "first" in page
        assert 'href="/runs"' not in page
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert not (tmp_path / "results").exists()
