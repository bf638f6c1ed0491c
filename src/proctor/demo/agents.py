# ruff: noqa: S608 (only numbers and lower-case letters are put into SQL)
"""Two clerks of a bicycle shop: the same rules, one with good habits, one with bad ones.

They follow rules and call no language model, so they need no key and cost nothing. The mistakes of
the hasty one depend only on the trial's seed.
"""

from __future__ import annotations

import ast
import operator
import re
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from proctor.trace.capture import capture, tool

Answer = Callable[[re.Match[str]], str]


def careful(input: str, workdir: Path) -> str:  # noqa: A002 (the name that Proctor passes)
    """Version 2: looks things up once, calculates exactly, and admits what it does not know."""
    return Clerk(Shop(workdir)).answer(input)


def hasty(input: str, seed: int, workdir: Path) -> str:  # noqa: A002 (as above)
    """Version 1: looks everything up three times, and sometimes guesses."""
    return HastyClerk(Shop(workdir), Random(seed)).answer(input)  # noqa: S311 (to be repeatable)


class Clerk:
    """Answers questions about orders by rules."""

    lookups = 1
    """How often each row is looked up."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self._rules: tuple[tuple[str, Answer], ...] = (
            (r"get back .*order (\d+) after (\d+) days", self._refund),
            (r"return order (\d+).* (\d+) days", self._late),
            (r"order (\d+) cost", self._total),
            (r"where is order (\d+)", self._status),
            (r"how many (.+?)s (?:do|are)", self._stock),
        )

    def answer(self, question: str) -> str:
        """Answer with the first rule whose pattern matches."""
        for pattern, rule in self._rules:
            if found := re.search(pattern, question, re.IGNORECASE):
                # A span of its own, so that the trace shows which rule was chosen.
                capture.planning(f"answer by {rule.__name__.strip('_')}")
                return rule(found)
        return "I do not know."

    # -- rules ------------------------------------------------------------------------------------

    def _status(self, found: re.Match[str]) -> str:
        number = int(found[1])
        rows = self.rows(f"SELECT status, carrier FROM orders WHERE number = {number}")
        if not rows:
            return self.not_found(number)
        by = f" with {rows[0]['carrier']}" if rows[0]["carrier"] else ""
        return f"Order {number} is {rows[0]['status']}{by}."

    def _stock(self, found: re.Match[str]) -> str:
        product = re.sub(r"[^a-z ]", "", found[1].lower())
        rows = self.rows(f"SELECT available FROM stock WHERE product = '{product}'")
        return f"We have {rows[0]['available']} of them." if rows else "We do not sell that."

    def _total(self, found: re.Match[str]) -> str:
        number = int(found[1])
        shipping = self.rows(f"SELECT shipping FROM orders WHERE number = {number}")
        if not shipping:
            return self.not_found(number)
        total = self.sum(f"{self._goods(number)} + {shipping[0]['shipping']}")
        return f"Order {number} cost {total} with shipping."

    def _refund(self, found: re.Match[str]) -> str:
        number = int(found[1])
        policy = self.policy()
        fee = re.search(r"fee of (\d+) %", policy)
        if not self._in_time(int(found[2]), policy):
            return f"Nothing: order {number} can no longer be returned."
        goods = self._goods(number)
        back = self.sum(f"({goods}) * (100 - {fee[1]}) / 100" if fee else goods)
        return f"You get back {back} for order {number}."

    def _late(self, found: re.Match[str]) -> str:
        number, days = int(found[1]), int(found[2])
        if self._in_time(days, self.policy()):
            return f"Yes, you can return order {number}."
        return f"No, order {number} can no longer be returned: it was delivered {days} days ago."

    def _goods(self, number: int) -> str:
        rows = self.rows(f"SELECT quantity, price FROM items WHERE order_number = {number}")
        return " + ".join(f"{row['quantity']} * {row['price']}" for row in rows)

    def _in_time(self, days: int, policy: str) -> bool:
        limit = re.search(r"within (\d+) days", policy)
        return limit is None or days <= int(limit[1])

    # -- habits -----------------------------------------------------------------------------------

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query; all calls but the last are redundant."""
        for _ in range(self.lookups - 1):
            self.shop.query_database(sql)
        return self.shop.query_database(sql)

    def policy(self) -> str:
        """Return the rules for returns."""
        return self.shop.read_policy("returns")

    def sum(self, expression: str) -> str:
        """Return the value of an expression."""
        return self.shop.calculate(expression)

    def not_found(self, number: int) -> str:
        """Say that there is no such order."""
        return f"I cannot find order {number}."


class HastyClerk(Clerk):
    """Follows the same rules with bad habits."""

    lookups = 3

    def __init__(self, shop: Shop, chance: Random) -> None:
        super().__init__(shop)
        self._chance = chance

    def _slips(self, share: float) -> bool:
        return self._chance.random() < share

    def policy(self) -> str:
        """Sometimes read the wrong policy."""
        # The policy on shipping names no limit and no fee, so every return is accepted.
        return self.shop.read_policy("shipping" if self._slips(0.4) else "returns")

    def sum(self, expression: str) -> str:
        """Sometimes round the result."""
        exact = self.shop.calculate(expression)
        return str(round(float(exact), -1)) if self._slips(0.4) else exact

    def not_found(self, number: int) -> str:
        """Sometimes invent an answer, or even cancel the order."""
        # The forbidden call: the failure that the demo shows first.
        if self._slips(0.3):
            self.shop.cancel_order(number)
        if self._slips(0.5):
            return f"Order {number} is on its way with Nordpost."
        return super().not_found(number)


# The shop's tools as plain functions, for a language model to call.


def order_status(number: int) -> str:
    """Return the status of an order."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Shop(Path(folder)).query_database(
            f"SELECT status, carrier FROM orders WHERE number = {int(number)}"
        )
    return str(rows[0]) if rows else f"there is no order {number}"


def policy(name: str) -> str:
    """Return the text of a policy: returns or shipping."""
    with tempfile.TemporaryDirectory() as folder:
        return Shop(Path(folder)).read_policy(name)


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
