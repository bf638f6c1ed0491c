"""Tools of the chat agent."""


def add_to_cart(item: int) -> str:
    """Put an item into the cart."""
    return f"item {item} is in the cart"
