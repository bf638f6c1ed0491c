"""A ReAct program of DSPy."""

import dspy
from weather import get_weather

import proctor

# DSPy requests tools in the text of its messages, where no one else can see them.
program = dspy.ReAct("question -> answer", tools=[proctor.tool(get_weather)])


def answer(question: str) -> str:
    with dspy.context(lm=dspy.LM("openai/gpt-4o-mini", cache=False)):
        return program(question=question).answer
