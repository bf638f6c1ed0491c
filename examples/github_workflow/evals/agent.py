"""A clerk at a parcel desk. Like a model it is not steady: now and then it leaves a thing out."""

import random

from proctor import tool
from proctor.agents.base import AgentRequest

PARCELS = {
    "P-100": {"weight": 1.5, "to": "Oslo", "state": "on its way"},
    "P-200": {"weight": 12.0, "to": "Porto", "state": "held at customs"},
}
PRICES = [(2, 4.90), (10, 9.50), (31.5, 19.00)]
"""Weight limit in kilograms → euros."""

FORGETS = 0.05
"""How often it answers without the part that matters."""


@tool
def find_parcel(number: str) -> dict[str, object] | None:
    return PARCELS.get(number)


@tool
def price(kilograms: float) -> float:
    return next(euros for limit, euros in PRICES if kilograms <= limit)


def answer(request: AgentRequest) -> str:
    """Answer one customer; the seed of the trial decides on the bad days."""
    forgets = random.Random(request.seed).random() < FORGETS
    question = str(request.input)
    number = next((word.strip("?.") for word in question.split() if word.startswith("P-")), "")
    parcel = find_parcel(number)
    if parcel is None:
        return f"I do not know a parcel {number}."
    if "cost" in question:
        euros = price(float(str(parcel["weight"])))
        return "That depends on its weight." if forgets else f"Sending it costs {euros:.2f} euros."
    return "It is fine." if forgets else f"It is {parcel['state']}, to {parcel['to']}."
