"""An agent of AG2."""

from ag2 import Agent, tool
from ag2.config import OpenAIConfig
from weather import get_weather


async def answer(question: str) -> str:
    agent = Agent("weather", config=OpenAIConfig(model="gpt-4o-mini"), tools=[tool(get_weather)])
    return (await agent.ask(question)).body
