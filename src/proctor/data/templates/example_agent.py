"""A small agent to try Proctor on: it answers from a handbook, through one tool.

Replace it with yours: anything that takes the input and returns an answer will do. Calls of
functions marked with `@tool` show in the trace, as do spans of OpenTelemetry instrumentations.
"""

import re

from proctor import tool

HANDBOOK = [
    "We are open on weekdays from 9:00 to 18:00 and on Saturday from 10:00 to 14:00.",
    "You can return a bicycle within 30 days if it was not ridden in rain.",
    "Delivery within the city costs 4.90 euros.",
]

COMMON = set("a and are can cost costs does i is on of the to we what when who you your".split())


def words(text: str) -> set[str]:
    """The words of a text that say what it is about."""
    return set(re.findall(r"[a-z]+", text.lower())) - COMMON


@tool
def search_handbook(question: str) -> list[str]:
    """The sentences that share a word with the question."""
    return [line for line in HANDBOOK if words(line) & words(question)]


def answer(question: str) -> str:
    """What the handbook says, or that it says nothing."""
    found = search_handbook(question)
    return " ".join(found) if found else "I do not know."
