"""Functions that tests give to chat agents as tools."""

from typing import Literal


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
