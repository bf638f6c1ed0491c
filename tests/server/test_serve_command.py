"""`proctor serve` on the command line: what it refuses, and in which words."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from proctor.cli.serve import serve
from proctor.errors import ProctorError


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
    """R-D7: an address that leads nowhere is told before anything listens."""
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
    assert refusal(*given).message == f"{given[0]} without --evaluate would have no effect"
