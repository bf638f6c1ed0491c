"""Build the shop's SQLite database from the CSV files in `data/`.

    python build_database.py [FILE]

The agents call `database()`, which builds it when it is missing or older than a CSV file.
"""

import csv
import sqlite3
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
DATABASE = HERE / ".cache" / "shop.db"

SCHEMA = """
CREATE TABLE products (sku TEXT PRIMARY KEY, name TEXT, kind TEXT, price REAL);
CREATE TABLE orders (
    order_id TEXT PRIMARY KEY, customer TEXT, sku TEXT REFERENCES products, quantity INTEGER,
    status TEXT
);
"""
TABLES = ("products", "orders")


def build(target: Path) -> None:
    """Write the database aside and put it in place, so that nobody reads half of one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        aside = Path(folder) / "shop.db"
        connection = sqlite3.connect(aside)
        connection.executescript(SCHEMA)
        for table in TABLES:
            with (DATA / f"{table}.csv").open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            named = ", ".join(f":{column}" for column in rows[0])
            connection.executemany(f"INSERT INTO {table} VALUES ({named})", rows)
        connection.commit()
        connection.close()
        aside.replace(target)


def database() -> Path:
    """The database, built when it is not there or not up to date."""
    newest = max((DATA / f"{table}.csv").stat().st_mtime for table in TABLES)
    if not DATABASE.exists() or DATABASE.stat().st_mtime < newest:
        build(DATABASE)
    return DATABASE


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DATABASE
    build(path)
    print(path)
