"""The tools of a retail support desk: each takes the trial's data as `state` and changes it.

The rules of the shop are enforced where a real shop would enforce them: an order that
has been delivered cannot be cancelled, a refund goes to a payment method of the customer.
"""

from typing import Any

Data = dict[str, Any]


def _order(state: Data, order_id: str) -> Data:
    if order_id not in state["orders"]:
        raise ValueError(f"there is no order {order_id}")
    return state["orders"][order_id]


def find_customer(state: Data, email: str) -> Data:
    """Find a customer by e-mail address."""
    for customer_id, customer in state["customers"].items():
        if customer["email"] == email.strip().lower():
            return {"id": customer_id, **customer}
    raise ValueError("no customer has this e-mail address")


def get_order(state: Data, order_id: str) -> Data:
    """Return an order with its items, status and payment."""
    return _order(state, order_id)


def get_policy(state: Data, topic: str) -> str:
    """Return the policy on a topic: cancellation, return, exchange, address."""
    if topic not in state["policies"]:
        raise ValueError(f"topics are {', '.join(state['policies'])}")
    return state["policies"][topic]


def find_product(state: Data, name: str) -> list[Data]:
    """Return the products whose name contains a text, with price and stock."""
    return [
        {"sku": sku, **product}
        for sku, product in state["products"].items()
        if name.lower() in product["name"].lower()
    ]


def cancel_order(state: Data, order_id: str, reason: str) -> str:
    """Cancel a pending order; reason: no longer needed, or ordered by mistake."""
    order = _order(state, order_id)
    if order["status"] != "pending":
        raise ValueError(
            f"order {order_id} is {order['status']}; only pending orders are cancelled"
        )
    if reason not in ("no longer needed", "ordered by mistake"):
        raise ValueError("reason is 'no longer needed' or 'ordered by mistake'")
    order["status"], order["reason"] = "cancelled", reason
    return f"order {order_id} is cancelled, {order['total']} is refunded"


def change_address(state: Data, order_id: str, address: str) -> str:
    """Change the delivery address of a pending order."""
    order = _order(state, order_id)
    if order["status"] != "pending":
        raise ValueError(f"order {order_id} is {order['status']}: the address is fixed")
    order["address"] = address
    return f"order {order_id} goes to {address}"


def return_items(state: Data, order_id: str, skus: list[str], refund_to: str) -> str:
    """Take items of a delivered order back; refund_to is a payment method of the customer."""
    order = _order(state, order_id)
    if order["status"] != "delivered":
        raise ValueError(
            f"order {order_id} is {order['status']}; only delivered items are returned"
        )
    if refund_to not in state["customers"][order["customer"]]["payments"]:
        raise ValueError(f"the customer has no payment method {refund_to}")
    if missing := [sku for sku in skus if sku not in order["items"]]:
        raise ValueError(f"order {order_id} has no {missing[0]}")
    order["returned"] = sorted({*order.get("returned", []), *skus})
    order["refund_to"] = refund_to
    return f"{len(skus)} items of {order_id} are returned"


def exchange_item(state: Data, order_id: str, old_sku: str, new_sku: str) -> str:
    """Exchange an item of a delivered order for another one that is in stock."""
    order = _order(state, order_id)
    if order["status"] != "delivered" or old_sku not in order["items"]:
        raise ValueError(f"{old_sku} of order {order_id} cannot be exchanged")
    if state["products"].get(new_sku, {}).get("stock", 0) < 1:
        raise ValueError(f"{new_sku} is not in stock")
    order["items"][order["items"].index(old_sku)] = new_sku
    state["products"][new_sku]["stock"] -= 1
    return f"{old_sku} is exchanged for {new_sku}"
