"""The store in one SQLite file: write-ahead log, one writer, readers that do not wait for it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from proctor.files import FILE_MODE
from proctor.server.store._schema import SPAN_COLUMNS
from proctor.server.store.store import BadRows, SqlStore, StoreError

# Milliseconds to wait for a writer in another process: its transactions take far less, and clients
# that wait longer give up.
BUSY_MS = 3_000

# Bytes of the file that readers look at in place: figures over many traces touch many pages, and
# copying each costs as much as reading it. They belong to the system, and to all readers at once.
MAPPED = 1024 * 1024 * 1024

# Errors of rows that no column takes: numbers beyond 64 bits, text that is not valid Unicode.
_ODD = (OverflowError, ValueError, sqlite3.DataError, sqlite3.IntegrityError)

_UPDATES = ", ".join(f"{c} = excluded.{c}" for c in SPAN_COLUMNS[2:])
_PUT_SPANS = (
    f"INSERT INTO spans ({', '.join(SPAN_COLUMNS)}) VALUES ({', '.join('?' * len(SPAN_COLUMNS))}) "
    f"ON CONFLICT (trace_id, span_id) DO UPDATE SET {_UPDATES} "
    "WHERE excluded.end_ns IS NOT NULL OR spans.end_ns IS NULL"
)


class SqliteStore(SqlStore):
    """Traces in a file, with `-wal` and `-shm` beside it while it is open."""

    mark = "?"
    like = "{column} LIKE {mark} ESCAPE '!'"
    in_json = "IN (SELECT value FROM json_each({mark}))"
    join_in_order = "CROSS JOIN"
    types: ClassVar[dict[str, str]] = {
        "big": "INTEGER",
        "real": "REAL",
        "blob": "BLOB",
        "count": "INTEGER PRIMARY KEY",
        "clustered": "WITHOUT ROWID",
    }

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # SQLite gives the files beside it the same mode.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, FILE_MODE))
            self._writer = self._connect()
            self._file = _identity(self.path)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot open the store: {error}", where=str(path)) from None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: what was acknowledged survives a power cut too, not only the end of the process.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        return connection

    @contextmanager
    def writing(self) -> Generator[sqlite3.Cursor]:
        """Open a transaction, one at a time in this process."""
        with self._lock:
            self._check_file()
            cursor = self._writer.cursor()
            try:
                cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                cursor.execute("COMMIT")
            except BaseException as error:
                # A failing disk may fail here again; report the first error.
                with contextlib.suppress(sqlite3.Error):
                    if self._writer.in_transaction:
                        cursor.execute("ROLLBACK")
                if isinstance(error, _ODD):
                    raise BadRows(f"cannot be kept: {error}", where=str(self.path)) from error
                if isinstance(error, sqlite3.Error):
                    raise StoreError(f"cannot write: {error}", where=str(self.path)) from error
                raise
            finally:
                cursor.close()

    def _check_file(self) -> None:
        """Raise an error if the file is gone.

        Writes to it would be lost when the process ends, and an open connection still reads it.
        """
        if _identity(self.path) != self._file:
            raise StoreError(
                "the store was moved, removed or replaced",
                where=str(self.path),
                hint="restart the server",
            )

    @contextmanager
    def reading(self) -> Generator[sqlite3.Cursor]:
        """Open a cursor of a connection from the pool."""
        self._check_file()
        try:
            try:
                connection = self._readers.pop()
            except IndexError:  # none is free
                connection = self._connect()
                connection.execute(f"PRAGMA mmap_size = {MAPPED}")
            cursor = connection.cursor()
            try:
                yield cursor
            finally:
                cursor.close()
                self._readers.append(connection)
        except sqlite3.Error as error:
            raise StoreError(f"cannot read: {error}", where=str(self.path)) from error

    def add_rows(
        self, cursor: Any, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> None:
        """Insert rows that are not stored yet."""
        marks = ", ".join("?" * len(columns))
        cursor.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def put_spans(self, cursor: Any, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert or update by (trace, span)."""
        cursor.executemany(_PUT_SPANS, rows)

    def size(self) -> int:
        """Return the size of the file and its write-ahead log."""
        beside = self.path.with_name(self.path.name + "-wal")
        return sum(path.stat().st_size for path in (self.path, beside) if path.exists())

    def compact(self) -> None:
        """Return freed space to the disk."""
        with self._lock:
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._writer.execute("VACUUM")

    def close(self) -> None:
        """Close every connection, which merges the write-ahead log into the file."""
        for connection in (*self._readers, self._writer):
            connection.close()
        self._readers.clear()


def _identity(path: Path) -> tuple[int, int] | None:
    """Return which file is at a path (device, inode); None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
