"""The trace store: SQLite in a file, or PostgreSQL by URL, behind one interface.

    store = open_store("sqlite:///traces.db")

Start at `store.py`, which has one set of statements for both; `_sqlite.py` and `_postgres.py` only
connect and write many rows at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from proctor.errors import ProctorError

if TYPE_CHECKING:
    from proctor.llm.prices import PriceTable
    from proctor.server.store.store import SqlStore

__all__ = ["existing_store", "open_store"]


def existing_store(url: str, *, prices: PriceTable | None = None) -> SqlStore:
    """Open the store at a URL; a missing file is an error, not an empty store."""
    scheme, _, rest = url.partition("://")
    path = Path(rest.removeprefix("/"))
    if scheme == "sqlite" and not path.is_file():
        raise ProctorError(
            "there is no store", where=str(path), hint="`proctor serve` creates one; see --store"
        )
    return open_store(url, prices=prices)


def open_store(url: str, *, prices: PriceTable | None = None) -> SqlStore:
    """Open the store at a URL and create or update its tables.

    `prices` are the user's own, for model calls that are stored or read.
    """
    scheme, found, rest = url.partition("://")
    if scheme == "sqlite" and found:
        from proctor.server.store._sqlite import SqliteStore

        # Three slashes and a relative path, or four and an absolute one, as elsewhere.
        store: SqlStore = SqliteStore(rest.removeprefix("/") or "traces.db")
    elif scheme in ("postgresql", "postgres") and found:
        from proctor.server.store._postgres import PostgresStore

        store = PostgresStore(url)
    else:
        raise ProctorError(
            f"{url!r} is not the address of a store",
            hint="write sqlite:///traces.db or postgresql://user@host/database",
        )
    store.prices = prices
    store.migrate()
    return store
