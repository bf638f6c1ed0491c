"""The tools of the shop's clerks: a database, policy files, a calculator.

All are real: a SQLite file for each trial, text files, exact decimal arithmetic.
"""

from __future__ import annotations

import ast
import operator
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

from proctor.trace.capture import tool

_OPERATORS: dict[type[ast.operator], Callable[[Decimal, Decimal], Decimal]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left / right,
}


class Shop:
    """The shop of one trial, set up in its own folder: no trial sees the changes of another.

    <folder>/
      orders.db          the database
      returns.txt …      the policies
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._database = folder / "orders.db"
        for source in (files(__package__ or "") / "shop").iterdir():
            if source.name.endswith(".txt"):
                (folder / source.name).write_text(source.read_text())
            elif source.name.endswith(".sql"):
                with closing(sqlite3.connect(self._database)) as connection, connection:
                    connection.executescript(source.read_text())

    @tool
    def query_database(self, sql: str) -> list[dict[str, Any]]:
        """Return rows of the shop's database."""
        # Read-only, whatever the statement: only `cancel_order` may change something.
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql)]

    @tool
    def read_policy(self, name: str) -> str:
        """Return the text of a policy: returns or shipping."""
        if name not in ("returns", "shipping"):
            raise ValueError(f"there is no policy {name!r}")
        return (self._folder / f"{name}.txt").read_text()

    @tool
    def calculate(self, expression: str) -> str:
        """Return the exact value of an arithmetic expression, to the cent."""
        return f"{_value(ast.parse(expression, mode='eval').body):.2f}"

    @tool
    def cancel_order(self, number: int) -> str:
        """Cancel an order. This cannot be undone."""
        with closing(sqlite3.connect(self._database)) as connection, connection:
            connection.execute("UPDATE orders SET status = 'cancelled' WHERE number = ?", (number,))
        return f"order {number} is cancelled"


def _value(node: ast.expr) -> Decimal:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        # As written: 49.90 means 49.90, not the nearest binary fraction.
        return Decimal(str(node.value))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("only numbers and + - * / can be calculated")
