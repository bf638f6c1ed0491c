"""`proctor store`: manage the trace store."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from server_parts import TRACE, write

from proctor.cli.main import cli
from proctor.server.store import open_store
from proctor.trace.capture import capture
from proctor.trace.export import save_traces
from proctor.trace.load import load_traces


@pytest.fixture
def address(tmp_path: Path) -> str:
    url = f"sqlite:////{tmp_path}/t.db".replace("/////", "////")
    store = open_store(url)
    write(store, {"id": 1, "name": "hello"}, {"id": 2, "parent": 1, "status": 2})
    write(store, {"id": 1, "trace": "4" * 32, "name": "other"})
    store.close()
    return url


def invoke(*args: str):
    return CliRunner().invoke(cli, ["store", *args])


def test_stats_and_prune(address: str) -> None:
    """R-D7: what is there, and what goes."""
    result = json.loads(invoke("stats", "--store", address, "--json").output)
    assert (result["traces"], result["spans"], result["errors"]) == (2, 3, 1)
    assert result["bytes"] > 0
    assert "traces     2" in invoke("stats", "--store", address).output
    kept = invoke("prune", "--store", address, "--older-than", "30d")
    assert "0 traces deleted" in kept.output
    gone = invoke("prune", "--store", address, "--older-than", "0.001s")
    assert "2 traces deleted" in gone.output
    bad = invoke("prune", "--store", address, "--older-than", "soon")
    assert bad.exit_code == 2
    assert "not a duration" in bad.output


def test_export(address: str, tmp_path: Path) -> None:
    """R-D7: traces of a filter, in any format `trace` writes, and back."""
    out = tmp_path / "out.jsonl"
    result = invoke("export", "--store", address, "--status", "error", "-o", str(out))
    assert "1 trace written" in result.output
    (trace,) = load_traces(out)
    assert (trace.trace_id, len(trace.spans)) == (TRACE, 2)


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """R-D7: looking never makes an empty store."""
    url = f"sqlite:////{tmp_path}/none.db".replace("/////", "////")
    done = invoke("stats", "--store", url)
    assert "there is no store" in str(done.exception)
    assert not (tmp_path / "none.db").exists()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_traces_of_files_go_in_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-D7: files of any format are kept as live traces are, not doubled, without secrets."""
    monkeypatch.chdir(tmp_path)
    with capture(query="Weather in Paris?") as trace:
        with capture.tool_call("get_weather", {"city": "Paris", "api_key": "sk-" + "a1B2" * 12}):
            pass
        trace.response = "Rain."
    save_traces([trace], "one.otlp.json", "otlp-json", redact=False)
    chat = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hi."}]
    Path("chat.json").write_text(json.dumps({"messages": chat}), encoding="utf-8")
    for _ in range(2):
        result = invoke("add", "one.otlp.json", "chat.json")
        assert result.exit_code == 0, result.output
        assert "of 2 traces added to sqlite:///proctor-traces.db" in result.output
    assert json.loads(invoke("stats", "--json").output)["traces"] == 2
    assert invoke("export", "-o", "all.jsonl").exit_code == 0
    kept = {each.query: each for each in load_traces("all.jsonl")}
    assert (kept["Weather in Paris?"].response, kept["Hello?"].response) == ("Rain.", "Hi.")
    assert kept["Weather in Paris?"].trace_id == trace.trace_id
    assert kept["Weather in Paris?"].tools_used == ["get_weather"]
    assert "a1B2" not in Path("all.jsonl").read_text(encoding="utf-8")


def test_what_is_no_trace_makes_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-T7: exit code 2 and why; a store is made only for something to keep."""
    monkeypatch.chdir(tmp_path)
    Path("other.json").write_text('{"a": 1}', encoding="utf-8")
    result = invoke("add", "other.json", "nowhere.json")
    assert result.exit_code == 2
    assert "not a trace format" in result.output
    assert "nowhere.json: no such file" in result.output
    assert files(tmp_path) == ["other.json"]
