"""An agent of Microsoft Agent Framework."""

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
from weather import get_weather


async def answer(question: str) -> str:
    agent = Agent(OpenAIChatClient(model="gpt-4o-mini"), tools=[get_weather])
    return (await agent.run(question)).text
