"""A travel desk: finds trains, and books the one it found. The code under test.

`find_trains` and `book` are ordinary functions; `@tool` is all that puts them into traces.
"""

import random
import re
from dataclasses import dataclass

from proctor import capture, tool

TRAINS = {
    ("bergen", "oslo"): [("07:53", 61), ("11:59", 49), ("22:59", 39)],
    ("oslo", "bergen"): [("06:25", 59), ("12:03", 54)],
}


@tool
def find_trains(start: str, goal: str) -> list[tuple[str, int]]:
    """Departures and prices."""
    return TRAINS.get((start, goal), [])


@tool
def book(start: str, goal: str, departure: str) -> str:
    """A booking's number."""
    return f"{start[0]}{goal[0]}{departure.replace(':', '')}".upper()


@dataclass
class Desk:
    """An agent with a mood: a lazy one books without looking, one time in a few."""

    lazy: float = 0.0

    def answer(self, question: str, seed: int = 0) -> str:
        """Answer one traveller."""
        asked = re.search(r"from (\w+) to (\w+)", question.lower())
        with capture.llm_call("rules", name="understand") as step:
            step.input_tokens, step.output_tokens = len(question.split()), 4
        if asked is None:
            return "Where do you want to go, and where from?"
        start, goal = asked.groups()
        if random.Random(f"{question} {seed}").random() < self.lazy:
            return f"Booked: {book(start, goal, '12:00')}."
        trains = find_trains(start, goal)
        if not trains:
            return f"There is no train from {start.title()} to {goal.title()}."
        departure, price = min(trains, key=lambda train: train[1])
        if "book" not in question.lower():
            return f"The cheapest train leaves at {departure} and costs {price} euros."
        return f"Booked: {book(start, goal, departure)}, {price} euros."


def answer(question: str) -> str:
    """What the suite names."""
    return Desk().answer(question)
