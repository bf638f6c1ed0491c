"""Both kinds of store, real ones: a SQLite file and a PostgreSQL server; and patience with both."""

import shutil
import tempfile
from functools import partial
from pathlib import Path

import httpx
import pytest
from browser import browser

from proctor.server.store import open_store

PATIENCE = 60.0
"""Seconds an answer may take: a disk that many share can make a commit wait for several."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give servers more than the five seconds that are httpx's own limit."""
    for name in ("get", "post"):
        monkeypatch.setattr(httpx, name, partial(getattr(httpx, name), timeout=PATIENCE))


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server of this test session; its folder must have a short path."""
    pgserver = pytest.importorskip("pgserver", reason="pgserver is not installed")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    server = pgserver.get_server(folder)
    # No test cuts the power; waiting for the disk would be most of their time.
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        server.psql(f"alter system set {setting} = off")
    server.psql("select pg_reload_conf()")
    yield server
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def browsing():
    """A running Chromium."""
    with browser() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path: Path):
    """An empty store."""
    if request.param == "sqlite":
        opened = open_store(f"sqlite:///{tmp_path / 'traces.db'}".replace(":///", ":////", 1))
    else:
        server = request.getfixturevalue("postgres")
        # A schema of its own is as empty as a database, and made and gone at once.
        name = f"t{abs(hash(str(tmp_path))):x}"
        server.psql(f"create schema {name}")
        opened = open_store(f"{server.get_uri()}&options=-csearch_path%3D{name}")
    yield opened
    opened.close()
