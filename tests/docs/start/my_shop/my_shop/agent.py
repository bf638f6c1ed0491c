"""An agent to put to the test."""


def answer(question: str) -> str:
    """Sells shoes."""
    return "We have red ones in every size."
