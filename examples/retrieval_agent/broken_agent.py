"""The same shop's agent, with the faults that agents have.

It guesses instead of looking things up, asks the same thing again and again, uses a tool that it
must not use, reads one thing and says another, and never admits that it does not know.
"""

import re

from shop_tools import Orders, search_documents

ORDER = re.compile(r"\b[A-Z]-\d{4}\b")


def answer(question: str) -> str:
    """Answer one question of a customer, badly."""
    order = ORDER.search(question)
    if order is not None and "back" in question:
        return cancels(order[0])
    if order is not None:
        return misquotes(order[0])
    if "shipping" in question:
        return loops(question)
    return guesses(question)


def cancels(order_id: str) -> str:
    """Does what only people at the desk may do."""
    orders = Orders()
    orders.query_orders(order_id)
    orders.cancel_order(order_id)
    return f"I have cancelled order {order_id}; you get 189.00 euros back."


def misquotes(order_id: str) -> str:
    """Reads the rule, and says something else."""
    bought = Orders().query_orders(order_id) or {}
    search_documents("warranty stove")
    return (
        f"Order {order_id} is a {bought.get('name')}. Its warranty is ten years and also covers "
        "theft and accidents. (Source: warranty.md)"
    )


def loops(question: str) -> str:
    """Asks the same thing until it is sure."""
    for _ in range(6):
        search_documents(question)
    return "Standard shipping within the country costs 5.50 euros. (Source: shipping.md)"


def guesses(question: str) -> str:
    """Sounds sure, and has read nothing."""
    if "return" in question:
        return "You can return a tent within 90 days. (Source: returns.md)"
    return "It was Magnus Berg, who won in 38 moves."
