"""`proctor store`: looking after live traces; keeping scenarios is told in test_build.py."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from server_parts import TRACE, write

from proctor.cli.main import cli
from proctor.server.store import open_store
from proctor.server.store.schema import MIGRATIONS
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


def test_stats_prune_and_migrate(address: str) -> None:
    """R-D7: what is there, what goes, and that the tables are up to date."""
    told = json.loads(invoke("stats", "--store", address, "--json").output)
    assert (told["traces"], told["spans"], told["errors"]) == (2, 3, 1)
    assert told["bytes"] > 0
    assert "traces     2" in invoke("stats", "--store", address).output
    told_version = invoke("migrate", "--store", address).output
    assert f"version {len(MIGRATIONS)}" in told_version
    kept = invoke("prune", "--store", address, "--older-than", "30d")
    assert "0 traces forgotten" in kept.output
    gone = invoke("prune", "--store", address, "--older-than", "0.001s")
    assert "2 traces forgotten" in gone.output
    bad = invoke("prune", "--store", address, "--older-than", "soon")
    assert bad.exit_code == 2
    assert "not a duration" in bad.output


def test_export(address: str, tmp_path: Path) -> None:
    """R-D7: traces of a filter, in any format `trace` writes, and back."""
    out = tmp_path / "out.jsonl"
    told = invoke("export", "--store", address, "--status", "error", "-o", str(out))
    assert "1 trace written" in told.output
    (trace,) = load_traces(out)
    assert (trace.trace_id, len(trace.spans)) == (TRACE, 2)


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """R-D7: looking never makes an empty store."""
    url = f"sqlite:////{tmp_path}/none.db".replace("/////", "////")
    done = invoke("stats", "--store", url)
    assert "there is no store" in str(done.exception)
    assert not (tmp_path / "none.db").exists()
