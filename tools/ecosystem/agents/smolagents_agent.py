"""A tool calling agent of smolagents."""

import os

from smolagents import OpenAIServerModel, ToolCallingAgent, tool
from weather import get_weather


def answer(question: str) -> str:
    model = OpenAIServerModel("gpt-4o-mini", api_base=os.environ["OPENAI_BASE_URL"])
    agent = ToolCallingAgent([tool(get_weather)], model, verbosity_level=0)
    return str(agent.run(question))
