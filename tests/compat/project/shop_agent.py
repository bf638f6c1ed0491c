"""A shop's agent that answers at once, and is not always right."""

import os
import signal

from proctor import tool

ORDERS = {"A-17": {"status": "shipped", "arrives": "Friday"}}


@tool
def find_order(number: str) -> dict[str, str]:
    """Look up an order."""
    return ORDERS[number]


@tool
def delete_order(number: str) -> str:
    """Delete an order, which no agent may do."""
    return f"deleted {number}"


def answer(question: str, seed: int) -> str:
    """Answer one customer; SHOP_VERSION=2 is a worse agent, SHOP_DIES_AT kills the process."""
    if os.environ.get("SHOP_DIES_AT") == f"{question[0]}{seed % 100}":
        os.kill(os.getpid(), signal.SIGKILL)
    worse = os.environ.get("SHOP_VERSION") == "2"
    if "return" in question:
        if seed % 5 == 0:
            delete_order("A-17")
        return "Send it back within 30 days." if not worse else "Send it back."
    if "Sunday" in question:
        if seed % 3 == 1:
            raise ConnectionError("the calendar of the shop is offline")
        return "We open at 10."
    return f"It arrives on {find_order('A-17')['arrives']}."
