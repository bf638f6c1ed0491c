"""Where live traces are kept: SQLite in a file, or PostgreSQL by URL, behind one interface.

    store = open_store("sqlite:///traces.db")

Start at `sql.py`: one set of statements for both; `sqlite.py` and `postgres.py` know only how to
connect and how to write many rows at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.errors import ProctorError

if TYPE_CHECKING:
    from proctor.server.store.sql import SqlStore

__all__ = ["open_store"]


def open_store(url: str) -> SqlStore:
    """The store at a URL, its tables made or brought up to date."""
    scheme, found, rest = url.partition("://")
    if scheme == "sqlite" and found:
        from proctor.server.store.sqlite import SqliteStore

        # Three slashes and a relative path, or four and an absolute one, as elsewhere.
        store: SqlStore = SqliteStore(rest.removeprefix("/") or "traces.db")
    elif scheme in ("postgresql", "postgres") and found:
        from proctor.server.store.postgres import PostgresStore

        store = PostgresStore(url)
    else:
        raise ProctorError(
            f"{url!r} is not the address of a store",
            hint="write sqlite:///traces.db or postgresql://user@host/database",
        )
    store.migrate()
    return store
