"""Two clerks of a shop: one looks things up, one sometimes guesses."""

from random import Random

from proctor import tool

HANDBOOK = {
    "return": "You have 30 days.",
    "cost": "It costs 9 euros.",
    "open": "We are open until 18:00.",
    "France": "The capital of France is Paris.",
}


@tool
def search(q: str) -> str:
    """The line of the handbook that a word of the question leads to."""
    return next((line for word, line in HANDBOOK.items() if word in q), "Nothing found.")


def answer(question: str) -> str:
    """Says what the handbook says."""
    return search(question)


def hasty(input: str, seed: int) -> str:  # noqa: A002 (the word of the interface)
    """Guesses in about one case of three."""
    return "It depends." if Random(seed).random() < 0.35 else search(input)
