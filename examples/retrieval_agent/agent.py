"""A small retrieval agent for an outdoor shop. Its brain is a handful of rules, its tools are real.

It looks things up before it answers, says where it read them, and says so when it read nothing.
"""

import re

from shop_tools import INDEX, Orders, calculator, search_documents, words

from proctor import capture

REFUSAL = "I cannot answer that from our documents. Please ask the shop in Harbour Street."
ORDER = re.compile(r"\b[A-Z]-\d{4}\b")


def answer(question: str) -> str:
    """Answer one question of a customer."""
    order = ORDER.search(question)
    if order is None:
        capture.planning("look it up in the documents")
        return from_documents(question)
    orders = Orders()
    if re.search(r"return|refund|back", question, re.IGNORECASE):
        capture.planning("look up the order and the rule for returns, then subtract")
        return refund(orders, order[0])
    capture.planning("look up the order, then what the documents say about such a product")
    return about_product(orders, order[0], question)


def from_documents(question: str) -> str:
    """The sentence that answers best, and its source."""
    found = search_documents(question)
    if not found:
        return REFUSAL
    best = found[0]
    return f"{best_sentence(best['text'], question)} (Source: {best['id']})"


def refund(orders: Orders, order_id: str) -> str:
    """What comes back when an order is returned."""
    bought = orders.query_orders(order_id)
    if bought is None:
        return f"There is no order {order_id}."
    rule = search_documents("refund return label")[0]
    label = re.search(r"([\d.]+) euros off", rule["text"])
    assert label is not None
    total = calculator(f"{bought['price']} * {bought['quantity']} - {label[1]}")
    return (
        f"For order {order_id} you get {total:.2f} euros back: {bought['quantity']} x "
        f"{bought['name']} at {bought['price']:.2f} euros, less {label[1]} euros for the return "
        f"label. (Source: {rule['id']})"
    )


def about_product(orders: Orders, order_id: str, question: str) -> str:
    """What the documents say about the product of an order."""
    bought = orders.query_orders(order_id)
    if bought is None:
        return f"There is no order {order_id}."
    topic = f"{ORDER.sub('', question)} {bought['kind']}"
    return f"Order {order_id} is a {bought['name']}. {from_documents(topic)}"


def best_sentence(text: str, question: str) -> str:
    """The sentence of a document that has most of the question in it."""
    body = text.split("\n", 1)[1]
    sentences = [part.strip() for part in re.split(r"(?<=\.)\s+", body) if part.strip()]
    asked = set(words(question))
    return max(sentences, key=lambda s: sum(INDEX.rarity(w) for w in asked & set(words(s))))
