"""`proctor store stats|prune|export` and `proctor view --store`, on a real store."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from server_parts import LLM, TOOL, TRACE, write

import proctor
from proctor.cli.serve import view
from proctor.cli.store import store as command
from proctor.errors import ProctorError
from proctor.server.store import open_store
from proctor.server.store.store import TraceFilter
from proctor.trace.load import load_traces


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with two traces, one of them failed."""
    address = f"sqlite:////{tmp_path}/t.db".replace("/////", "////")
    opened = open_store(address)
    write(opened, {"id": 1, "name": "agent"}, {"id": 2, "parent": 1, "attributes": LLM})
    write(opened, {"id": 3, "trace": "1" * 32, "status": 2, "attributes": TOOL})
    opened.close()
    return address


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert result.exception is None, result.exception
    return result


def test_stats_for_people_and_programs(url: str) -> None:
    """R-D7: what a store holds, readable, and with all digits as JSON."""
    told = dict(line.split(maxsplit=1) for line in run("stats", "--store", url).output.splitlines())
    assert (told["traces"], told["spans"], told["errors"]) == ("2", "3", "1")
    assert told["bytes"].split()[1] in {"kB", "MB"}
    document = json.loads(run("stats", "--store", url, "--json").output)
    assert (document["traces"], document["first"]) == (2, "1970-01-01T00:00:01+00:00")
    assert document["cost_usd"] > 0
    assert (document["failed"], document["error_rate"]) == (1, 0.5)
    over_time = run("stats", "--store", url, "--by", "day").output.splitlines()[-1]
    assert over_time.startswith("1970-01-01T00:00:00+00:00        2 traces    50 % failed  p50 ")
    (day,) = json.loads(run("stats", "--store", url, "--by", "day", "--json").output)["over_time"]
    assert (day["traces"], day["error_rate"], day["start"][:10]) == (2, 0.5, "1970-01-01")


def test_a_captured_trace_is_stored_from_python(tmp_path: Path) -> None:
    """R-D7, R-T6: one call; found by its request; secrets are removed; stored once."""
    address = f"sqlite:////{tmp_path}/t.db".replace("/////", "////")
    with (
        proctor.capture(query="q", request_id="req-7", session_id="s") as trace,
        proctor.capture.retrieval("q", scores=[0.2]),
    ):
        trace.response = "the key is sk-proj-" + "a1B2" * 12
    assert proctor.store_traces(trace, address) == 2
    assert proctor.store_traces([trace], address) == 2
    opened = open_store(address)
    (row,) = opened.traces(TraceFilter(request_id="req-7"))
    assert (row.spans, row.session_id) == (2, "s")
    stored = opened.trace(row.trace_id)
    assert [d.score for d in stored.of_kind("retrieval")[0].documents] == [0.2]
    assert "a1B2a1B2" not in (stored.response or "")
    opened.close()


def test_export_of_a_filter_is_read_again(url: str, tmp_path: Path) -> None:
    """R-D7: the traces of a filter leave the store whole."""
    file = tmp_path / "failed.jsonl"
    told = run("export", "--store", url, "--tool", "search", "--status", "error", "-o", str(file))
    assert told.output.startswith("1 trace written to ")
    (found,) = load_traces([file])
    assert (found.trace_id, found.tool_sequence) == ("1" * 32, ["search"])


def test_prune(url: str) -> None:
    """R-D7: old traces go, young ones stay."""
    assert run("prune", "--store", url, "--older-than", "1h").output == "0 traces deleted\n"
    opened = open_store(url)
    with opened.writing() as cursor:
        cursor.execute("UPDATE traces SET updated_ns = 1")
    assert run("prune", "--store", url, "--older-than", "1h").output == "2 traces deleted\n"
    assert (opened.count(), opened.tools(), opened.row(TRACE)) == (0, [], None)
    opened.close()


def test_no_command_makes_a_store_by_looking(tmp_path: Path) -> None:
    """R-D7: `store` and `view` report a missing store and do not create it."""
    file = tmp_path / "none.db"
    address = f"sqlite:////{file}".replace("/////", "////")
    for result in (
        CliRunner().invoke(command, ["stats", "--store", address], standalone_mode=False),
        CliRunner().invoke(
            view, [str(tmp_path), "--no-open", "--store", address], standalone_mode=False
        ),
    ):
        assert isinstance(result.exception, ProctorError), result.output
        assert result.exception.message == "there is no store"
    assert not file.exists()
