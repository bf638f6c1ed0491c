"""The shop's tools as plain functions, for a language model to call."""

from __future__ import annotations

import tempfile
from pathlib import Path

from proctor.demo.tools import Shop


def order_status(number: int) -> str:
    """Where an order is."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Shop(Path(folder)).query_database(
            f"SELECT status, carrier FROM orders WHERE number = {int(number)}"  # noqa: S608 (a number)
        )
    return str(rows[0]) if rows else f"there is no order {number}"


def policy(name: str) -> str:
    """The text of a policy: returns or shipping."""
    with tempfile.TemporaryDirectory() as folder:
        return Shop(Path(folder)).read_policy(name)
