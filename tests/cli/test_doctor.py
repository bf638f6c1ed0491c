"""`proctor doctor`: what it finds, what it says to do; it keeps keys and asks nobody."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from commands import proctor

from proctor.cli.doctor import EXTRAS

# The network is taken away before the command begins.
OFFLINE = """
import socket, sys
def refuse(*args, **kwargs):
    print("ASKED", args, file=sys.stderr)
    raise OSError("no network in this test")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from proctor.cli.main import main
main(sys.argv[1:])
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path


def doctor(
    home: Path, *args: str, program: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PROCTOR_", "XDG_", "OTEL_")) and not k.endswith("_KEY")
    }
    given = {**kept, "HOME": str(home), **env}
    if program is None:
        return proctor("doctor", *args, cwd=home / "work", env=given)
    return subprocess.run(
        [sys.executable, "-c", program, "doctor", *args],
        cwd=home / "work",
        env=given,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def found(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], dict[str, Any]]:
    document = json.loads(done.stdout)
    assert document["ok"] is (done.returncode == 0)
    return {(row["area"], row["name"]): row for row in document["findings"]}


def test_all_is_well(home: Path) -> None:
    """R-S6: a sound place gives 0; nothing is left behind, nobody is asked, no key is shown."""
    secret = "sk-test-4242424242424242"
    done = doctor(home, "--json", program=OFFLINE, OPENAI_API_KEY=secret)
    assert (done.returncode, done.stderr) == (0, "")
    rows = found(done)
    assert rows["keys", "OPENAI_API_KEY"]["what"] == "set"
    assert secret not in done.stdout
    assert "ANTHROPIC_API_KEY" in rows["keys", "not set"]["what"]
    python = ".".join(map(str, sys.version_info[:3]))
    assert rows["versions", "Python"]["what"].startswith(python)
    assert rows["folders", "locks"]["state"] == "ok"
    assert not any(path.is_file() for path in home.rglob("*"))


def test_every_extra_is_known(home: Path, root: Path) -> None:
    """R-S6: the extras it speaks of are those there are, with the line that installs each."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"dev"}
    shown = doctor(home).stdout
    for extra in EXTRAS:
        absent = re.search(rf"^  · {extra} +.*not installed: .*\n +→ (.*)$", shown, re.MULTILINE)
        assert absent is None or absent[1] == f'pip install "proctor[{extra}]"'
        assert absent or re.search(rf"^  ✓ {extra} ", shown, re.MULTILINE)


# Some packages are not there, and one is too old.
WITHOUT = """
import sys
from importlib import metadata
real = metadata.version
def version(name):
    if name in ("optuna", "jmespath"):
        raise metadata.PackageNotFoundError(name)
    return "0.9" if name == "msgspec" else real(name)
metadata.version = version
from proctor.cli.main import main
main(sys.argv[1:])
"""


def test_what_is_missing_or_old(home: Path) -> None:
    """R-S6: a missing extra is a note; a missing or old package Proctor needs is a problem."""
    done = doctor(home, "--json", program=WITHOUT)
    assert done.returncode == 1
    rows = found(done)
    assert rows["extras", "sweep"]["state"] == "note"
    assert rows["extras", "sweep"]["todo"] == 'pip install "proctor[sweep]"'
    assert rows["versions", "jmespath"]["what"] == "not installed"
    assert rows["versions", "jmespath"]["todo"].startswith('pip install "jmespath>=')
    assert re.fullmatch(
        r"0\.9, but [\d.]+ or newer is required", rows["versions", "msgspec"]["what"]
    )


def test_settings_that_are_wrong(home: Path) -> None:
    """R-S6: every mistake in the settings is told at its place, with what to do."""
    (home / "work" / "proctor.yaml").write_text("reslts: x\nlimits: {trials: 0}\n")
    done = doctor(home, "--json")
    assert done.returncode == 1
    rows = [row for row in json.loads(done.stdout)["findings"] if row["state"] == "problem"]
    assert [re.sub(r"^.*proctor.yaml:", "", row["what"])[:3] for row in rows] == ["1:1", "2:1"]
    assert "'results'" in rows[0]["todo"]


def test_agents_that_cannot_be(home: Path) -> None:
    """R-A1: an agent of the settings that nobody could make is named."""
    (home / "work" / "proctor.yaml").write_text(
        "agents:\n  good: {kind: scripted, answers: [x]}\n  bad: {kind: chatt, model: x}\n"
    )
    done = doctor(home)
    assert done.returncode == 1
    assert "agent bad" in done.stdout
    assert "chat" in done.stdout.split("agent bad")[1]


def test_a_folder_that_cannot_be_written(home: Path) -> None:
    """R-R10: results that could not be kept are told before a run, with how to choose others."""
    (home / "file").write_text("")
    done = doctor(home, "--json", PROCTOR_RESULTS=str(home / "file" / "results"))
    assert done.returncode == 1
    row = found(done)["folders", "results"]
    assert row["state"] == "problem"
    assert "PROCTOR_RESULTS" in row["todo"]


class Provider(BaseHTTPRequestHandler):
    asked: ClassVar[list[dict[str, str]]] = []
    date = None

    def do_GET(self) -> None:
        self.asked.append(dict(self.headers))
        self.send_response_only(404)
        if self.date:
            self.send_header("Date", self.date)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[str]:
    Provider.asked, Provider.date = [], None
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_online_asks_whose_key_is_set(home: Path, provider: str) -> None:
    """R-S6: with --online a provider that answers is reachable; the key is not sent to it."""
    secret = "sk-test-4242424242424242"
    asked = {"OPENAI_API_KEY": secret, "OPENAI_BASE_URL": provider}
    done = doctor(home, "--online", "--json", **asked, NO_PROXY="127.0.0.1")
    assert done.returncode == 0, done.stdout
    assert f"{provider}: status 404" in found(done)["online", "openai"]["what"]
    assert len(Provider.asked) == 1
    assert secret not in str(Provider.asked)
    Provider.date = "Mon, 02 Jan 2023 00:00:00 GMT"
    done = doctor(home, "--online", "--json", **asked, NO_PROXY="127.0.0.1")
    assert done.returncode == 1
    assert "ahead of" in found(done)["online", "clock"]["what"]


def test_online_tells_who_does_not_answer(home: Path, provider: str) -> None:
    """R-S6: one that cannot be reached is a problem, and says what to look at."""
    asked = {"OPENAI_API_KEY": "sk-test-4242424242424242", "OPENAI_BASE_URL": "http://127.0.0.1:9"}
    done = doctor(home, "--online", "--json", **asked, NO_PROXY="127.0.0.1")
    assert done.returncode == 1
    row = found(done)["online", "openai"]
    assert row["state"] == "problem"
    assert "HTTPS_PROXY" in row["todo"]
