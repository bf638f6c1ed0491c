"""A ReAct program of DSPy."""

import dspy
from weather import get_weather

program = dspy.ReAct("question -> answer", tools=[get_weather])


def answer(question: str) -> str:
    with dspy.context(lm=dspy.LM("openai/gpt-4o-mini", cache=False)):
        return program(question=question).answer
