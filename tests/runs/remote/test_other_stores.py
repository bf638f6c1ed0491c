"""Azure's Blobs through Azurite, and Google's protocol before a server of S3's."""

import base64
import hashlib
import hmac
import http.client
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote

import pytest
from cloud_parts import BUCKET, Proxy, objects
from commands import proctor
from run_parts import rows, until, write_suite

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, which its documentation prints: no secret."""


def roundtrip(folder: Path, far: str) -> None:
    """A run at an address, brought back, checked, queried; another one gets another name."""
    suite = write_suite(folder)
    for _ in range(2):
        done = proctor("run", suite, "--trials", 1, "--results", far, cwd=folder)
        assert done.returncode == 0, done.stderr
        shutil.rmtree(folder / "results" / "suite")  # as another machine: it knows of no run
    checked = proctor("runs", "sync", far, "--verify")
    assert checked.returncode == 0, checked.stderr
    brought = proctor("runs", "sync", far, folder / "back", "--json")
    assert brought.returncode == 0, brought.stderr
    runs = json.loads(brought.stdout)["runs"]
    assert [run["name"][-4:] for run in runs] == ["_001", "_002"]
    assert all(len(rows(folder / "back" / run["name"])) == 3 for run in runs)
    again = proctor("runs", "sync", folder / "back", far, "--json")
    assert sum(run["moved"] for run in json.loads(again.stdout)["runs"]) == 0
    environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    asked = proctor("sql", "--results", far, "SELECT count(*) FROM trials", env=environ)
    assert asked.returncode == 0, asked.stderr
    assert "6" in asked.stdout


# -- Azure ---------------------------------------------------------------------------------------


def azurite() -> str:
    """The program of the emulator; installed with `npm install -g azurite`."""
    found = shutil.which("azurite-blob") or os.environ.get("AZURITE_BLOB")
    if not found or not shutil.which("node"):
        pytest.skip("no Azure emulator: npm install -g azurite")
    return found


@pytest.fixture
def azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address at an emulator of Azure's Blobs."""
    pytest.importorskip("obstore", reason="object stores need obstore")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ("--blobHost", "127.0.0.1", "--blobPort", str(port))
    how = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent")
    server = subprocess.Popen(
        [azurite(), *where, *how], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    try:
        until(lambda: _answers(port), 60)
        _make_container(port, "runs")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        yield "az://runs/kept"
    finally:
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _make_container(port: int, name: str) -> None:
    """Without the code under test: one request, signed as Azure wants it."""
    marks = f"x-ms-date:{(date := formatdate(usegmt=True))}\nx-ms-version:2021-08-06\n"
    meant = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + marks + meant
    mark = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date,
        "x-ms-version": "2021-08-06",
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(mark).decode()}",
        "Content-Length": "0",
    }
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    client.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
    assert client.getresponse().status == 201
    client.close()


def test_azure(tmp_path: Path, azure: str) -> None:
    """R-D6: runs at az://container/prefix: shipped, checked, brought back, queried."""
    roundtrip(tmp_path, azure)


# -- Google --------------------------------------------------------------------------------------


SOMEBODY = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, Signature=x"


class GoogleProxy(Proxy):
    """Google's XML protocol in S3's words: marks of objects and conditions have other names."""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        del handler.headers["Authorization"]  # Google's, with nothing in it
        handler.headers["Authorization"] = SOMEBODY
        path, mark, query = handler.path.partition("?")
        handler.path = unquote(path) + mark + query
        if handler.headers.get("x-goog-if-generation-match") == "0":
            handler.headers["If-None-Match"] = "*"
        for name, value in list(handler.headers.items()):
            if name.lower().startswith("x-goog-meta-"):
                handler.headers[f"x-amz-meta-{name[12:]}"] = value
        send = handler.send_header

        def renamed(keyword: str, value: str) -> None:
            send(keyword.lower().replace("x-amz-meta-", "x-goog-meta-"), value)

        handler.send_header = renamed  # pyright: ignore[reportAttributeAccessIssue]
        super().answer(handler)


@pytest.fixture
def google(server: int, s3: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address at something that speaks Google's protocol."""
    del s3  # it made the bucket
    proxy = GoogleProxy(server)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url.removeprefix("http://"))
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    yield f"gs://{BUCKET}/kept"
    proxy.close()


def test_google(tmp_path: Path, google: str, server: int) -> None:
    """R-D6: runs at gs://bucket/prefix, where STORAGE_EMULATOR_HOST says the server is."""
    roundtrip(tmp_path, google)
    assert any(key.endswith("_002/_manifest_.json") for key in objects(server))


@pytest.mark.parametrize(
    ("far", "variable"),
    [
        ("gs://bucket/x", "STORAGE_EMULATOR_HOST"),
        ("az://bucket/x", "AZURITE_BLOB_STORAGE_URL"),
        ("s3://bucket/x", "AWS_ENDPOINT_URL"),
    ],
)
def test_plain_http_elsewhere_is_refused(tmp_path: Path, far: str, variable: str) -> None:
    """R-D6: keys and results never go unencrypted to another machine unasked."""
    environ = {**os.environ, variable: "http://storage.example:4443"}
    refused = proctor("runs", "sync", far, tmp_path, env=environ)
    assert refused.returncode == 2
    assert "plain HTTP" in refused.stderr
    assert "--allow-http" in refused.stderr
