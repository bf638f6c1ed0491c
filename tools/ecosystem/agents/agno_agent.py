"""An agent of Agno."""

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from weather import get_weather


async def answer(question: str) -> str:
    agent = Agent(model=OpenAIChat(id="gpt-4o-mini"), tools=[get_weather], telemetry=False)
    return (await agent.arun(question)).content
