"""The store in PostgreSQL: new rows by COPY, spans sent again through a staging table."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from proctor.server.store._schema import SPAN_COLUMNS
from proctor.server.store.store import BadRows, SqlStore, StoreError

if TYPE_CHECKING:
    import psycopg

# Which of PostgreSQL's locks by number is ours; any number would do, this one spells a name.
LOCK = 0x50524F43

_COLUMNS = ", ".join(SPAN_COLUMNS)
_UPDATES = ", ".join(f"{c} = excluded.{c}" for c in SPAN_COLUMNS[2:])
_STAGE = "CREATE TEMP TABLE IF NOT EXISTS staged (LIKE spans) ON COMMIT DELETE ROWS"
# One row a span: ON CONFLICT cannot touch a row twice. Ended spans win, then later ones.
_FROM_STAGE = f"""
    INSERT INTO spans ({_COLUMNS})
    SELECT DISTINCT ON (trace_id, span_id) {_COLUMNS} FROM staged
    ORDER BY trace_id, span_id, end_ns IS NULL, ctid DESC
    ON CONFLICT (trace_id, span_id) DO UPDATE SET {_UPDATES}
    WHERE excluded.end_ns IS NOT NULL OR spans.end_ns IS NULL
"""


class PostgresStore(SqlStore):
    """Traces in a PostgreSQL database."""

    mark = "%s"
    # Ten times as fast as ILIKE, which asks the locale about every letter.
    like = """lower({column} COLLATE "C") LIKE lower({mark} COLLATE "C") ESCAPE '!'"""
    in_json = "IN (SELECT json_array_elements_text({mark}::json))"
    for_update = " FOR UPDATE"
    types: ClassVar[dict[str, str]] = {
        "big": "BIGINT",
        "real": "DOUBLE PRECISION",
        "blob": "BYTEA",
        "count": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "clustered": "",
    }

    def __init__(self, url: str) -> None:
        from proctor.imports import needs_extra

        needs_extra("psycopg", "postgres")
        self.url = url
        self._lock = threading.Lock()
        self._writer: psycopg.Connection | None = None
        self._readers: list[psycopg.Connection] = []

    def _connect(self, *, autocommit: bool) -> psycopg.Connection:
        import psycopg

        try:
            return psycopg.connect(self.url, autocommit=autocommit, connect_timeout=10)
        except psycopg.Error as error:
            raise StoreError(
                f"cannot reach the store: {' '.join(str(error).split())}",
                hint="see the address after --store, and that the server runs",
            ) from None

    @contextmanager
    def writing(self) -> Generator[Any]:
        """Open a transaction; after a lost connection the next one reconnects."""
        import psycopg

        with self._lock:
            if self._writer is None or self._writer.closed:
                self._writer = self._connect(autocommit=False)
            connection = self._writer
            try:
                with connection.transaction(), connection.cursor() as cursor:
                    # One writer at a time, other servers included: counts hold until the commit.
                    cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
                    yield cursor
            except (psycopg.DataError, psycopg.IntegrityError, ValueError, OverflowError) as error:
                raise BadRows(f"cannot be kept: {' '.join(str(error).split())}") from error
            except psycopg.Error as error:
                if connection.broken:
                    self._writer = None
                raise StoreError(f"cannot write: {' '.join(str(error).split())}") from error

    @contextmanager
    def reading(self) -> Generator[Any]:
        """Open a cursor of a connection from the pool."""
        import psycopg

        try:
            connection = self._readers.pop()
        except IndexError:  # none is free
            connection = self._connect(autocommit=True)
        try:
            with connection.cursor() as cursor:
                yield cursor
        except psycopg.Error as error:
            raise StoreError(f"cannot read: {' '.join(str(error).split())}") from error
        finally:
            if connection.broken:
                self._readers.clear()  # the server went away: the others are broken too
            else:
                self._readers.append(connection)

    def add_rows(
        self, cursor: Any, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> None:
        """Insert rows that are not stored yet."""
        with cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def put_spans(self, cursor: Any, rows: Sequence[tuple[Any, ...]]) -> None:
        """Copy into the staging table, then insert or update by (trace, span)."""
        cursor.execute(_STAGE)
        with cursor.copy(f"COPY staged ({_COLUMNS}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        cursor.execute(_FROM_STAGE)

    def size(self) -> int:
        """Return the size of the tables with their indexes."""
        tables = ("traces", "spans", "uses", "payloads", "evaluations")
        parts = " + ".join(f"pg_total_relation_size('{table}')" for table in tables)
        return int(self._all(f"SELECT {parts}")[0][0])

    def compact(self) -> None:
        """Do nothing: the server's autovacuum does it."""

    def close(self) -> None:
        """Close every connection."""
        for connection in (*self._readers, *([self._writer] if self._writer else [])):
            connection.close()
        self._readers.clear()
        self._writer = None
