"""The tools of the shop's agents: documents, orders, arithmetic. All of them are real.

Every call shows in the trace: `@tool` records name, arguments and result, and a search has a
retrieval span inside it with the documents it found and their scores.
"""

import ast
import math
import operator
import re
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

from build_database import database

from proctor import capture, tool
from proctor.trace.capture import documents

DOCUMENTS = Path(__file__).resolve().parent / "documents"
BM25_K1, BM25_B = 1.5, 0.75
"""The usual values: how soon repeating a word stops helping, how much length is held against."""
STOP_WORDS = set(
    "a about an and any are at back by can did do does for from get had have how i if in is it "
    "long many me much my of on or order should so take than that the there this to was we what "
    "when where which who will with within you your".split()
)


def words(text: str) -> list[str]:
    """What a text is about: its words without the common ones, singular, in lower case."""
    found = re.findall(r"[a-z0-9]+", text.lower())
    return [word.rstrip("s") or word for word in found if word not in STOP_WORDS]


class Index:
    """The documents of a folder, scored by BM25."""

    def __init__(self, folder: Path) -> None:
        self.texts = {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.md"))}
        self.counts = {name: Counter(words(text)) for name, text in self.texts.items()}
        self.average = sum(c.total() for c in self.counts.values()) / len(self.counts)

    def rarity(self, word: str) -> float:
        """How much a word tells: one that few documents have tells more."""
        have = sum(word in counts for counts in self.counts.values())
        return math.log(1 + (len(self.texts) - have + 0.5) / (have + 0.5))

    def score(self, name: str, query: list[str]) -> float:
        """How well a document fits a query."""
        counts = self.counts[name]
        length = 1 - BM25_B + BM25_B * counts.total() / self.average
        return sum(
            self.rarity(word) * counts[word] * (BM25_K1 + 1) / (counts[word] + BM25_K1 * length)
            for word in set(query)
        )

    def covers(self, name: str, query: list[str]) -> float:
        """The share of the query, by what its words tell, that a document has at all."""
        known = sum(self.rarity(word) for word in set(query) if self.counts[name][word])
        return known / (sum(self.rarity(word) for word in set(query)) or 1.0)


INDEX = Index(DOCUMENTS)


@tool
def search_documents(query: str, limit: int = 3) -> list[dict[str, Any]]:
    """The documents that fit a query best, the best first; none when none is about it."""
    asked = words(query)
    with capture.retrieval(query, name="bm25") as step:
        ranked = sorted(INDEX.texts, key=lambda name: -INDEX.score(name, asked))[:limit]
        found = [
            {"id": name, "text": INDEX.texts[name], "score": round(INDEX.score(name, asked), 3)}
            for name in ranked
            if INDEX.covers(name, asked) >= 0.5
        ]
        step.documents = documents(found)
        step.attributes["best"] = found[0]["id"] if found else None
    return found


class Orders:
    """One customer conversation's own copy of the database: what it changes, no other sees."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:")
        self._connection.row_factory = sqlite3.Row
        stored = sqlite3.connect(database())
        stored.backup(self._connection)
        stored.close()

    @tool
    def query_orders(self, order_id: str) -> dict[str, Any] | None:
        """An order with its product, or None."""
        row = self._connection.execute(
            "SELECT order_id, name, kind, quantity, price, status "
            "FROM orders JOIN products USING (sku) WHERE order_id = ?",
            (order_id,),
        ).fetchone()
        return dict(row) if row is not None else None

    @tool
    def cancel_order(self, order_id: str) -> int:
        """Cancel an order. For people at the desk: no agent may do this."""
        changed = self._connection.execute(
            "UPDATE orders SET status = 'cancelled' WHERE order_id = ?", (order_id,)
        )
        return changed.rowcount


OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@tool
def calculator(expression: str) -> float:
    """Plain arithmetic: numbers, + - * / and parentheses."""

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"not arithmetic: {expression!r}")

    return round(value(ast.parse(expression, mode="eval").body), 2)
