"""The store in one SQLite file: write-ahead log, one writer, readers that never wait for it."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from proctor.server.store._schema import SPAN_COLUMNS
from proctor.server.store.store import BadRows, SqlStore, StoreError

# How long a writer of another process is waited for.
BUSY_MS = 30_000

# Bytes of the file that readers look at in place: figures over many traces touch many pages, and
# copying each costs as much as reading it. They belong to the system, and to all readers at once.
MAPPED = 256 * 1024 * 1024

# What rows raise that no column takes: numbers beyond 64 bits, text that is no Unicode.
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
        """A transaction; one at a time in this process."""
        with self._lock:
            self._still_there()
            cursor = self._writer.cursor()
            try:
                cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                cursor.execute("COMMIT")
            except BaseException as error:
                self._roll_back(cursor)
                if isinstance(error, _ODD):
                    raise BadRows(f"cannot be kept: {error}", where=str(self.path)) from error
                if isinstance(error, sqlite3.Error):
                    raise StoreError(f"cannot write: {error}", where=str(self.path)) from error
                raise
            finally:
                cursor.close()

    def _roll_back(self, cursor: sqlite3.Cursor) -> None:
        # A disk that fails may fail here again; what made us come here is what is told.
        with contextlib.suppress(sqlite3.Error):
            if self._writer.in_transaction:
                cursor.execute("ROLLBACK")

    def _still_there(self) -> None:
        """Refuse to write into a file that was removed: it would be gone with the process."""
        if _identity(self.path) != self._file:
            raise StoreError(
                "the store was moved, removed or replaced",
                where=str(self.path),
                hint="start the server anew",
            )

    @contextmanager
    def reading(self) -> Generator[sqlite3.Cursor]:
        """A cursor of a connection that is used again."""
        try:
            connection = self._free_reader() or self._new_reader()
            cursor = connection.cursor()
        except sqlite3.Error as error:
            raise StoreError(f"cannot read: {error}", where=str(self.path)) from error
        try:
            yield cursor
        except sqlite3.Error as error:
            raise StoreError(f"cannot read: {error}", where=str(self.path)) from error
        finally:
            cursor.close()
            self._readers.append(connection)

    def _new_reader(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute(f"PRAGMA mmap_size = {MAPPED}")
        return connection

    def _free_reader(self) -> sqlite3.Connection | None:
        try:
            return self._readers.pop()
        except IndexError:
            return None

    def add_rows(
        self, cursor: Any, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> None:
        """Write rows of which none is there yet."""
        marks = ", ".join("?" * len(columns))
        cursor.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def put_spans(self, cursor: Any, rows: Sequence[tuple[Any, ...]]) -> None:
        """Upsert by (trace, span)."""
        cursor.executemany(_PUT_SPANS, rows)

    def size(self) -> int:
        """The file and its log."""
        beside = self.path.with_name(self.path.name + "-wal")
        return sum(path.stat().st_size for path in (self.path, beside) if path.exists())

    def compact(self) -> None:
        """Give freed space back to the disk."""
        with self._lock:
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._writer.execute("VACUUM")

    def close(self) -> None:
        """Close every connection; the log is taken into the file."""
        for connection in (*self._readers, self._writer):
            connection.close()
        self._readers.clear()


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file is at a path, whatever its name; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
