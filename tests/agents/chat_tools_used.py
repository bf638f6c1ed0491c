"""Functions that tests give to chat agents as tools."""

from typing import Literal

import proctor


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


async def convert(amount: float, currency: Literal["EUR", "USD"]) -> dict:
    """Convert an amount."""
    return {"amount": amount * 2, "currency": currency}


def broken(q: str) -> str:
    raise RuntimeError(f"no route to {q}")


def unhintable(thing: "NotDefinedAnywhere") -> str:  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    return str(thing)


not_a_function = 7


@proctor.tool
def weather(city: str, units: str = "C") -> str:
    """The weather in a city."""
    return f"18 {units} in {city}"


class Cart:
    """Tools with a state of their own."""

    def __init__(self) -> None:
        self.items: list[str] = []

    def add(self, item: str) -> str:
        """Put an item into the cart."""
        self.items.append(item)
        return f"cart has {len(self.items)}"

    async def count(self) -> int:
        """Count the items."""
        return len(self.items)
