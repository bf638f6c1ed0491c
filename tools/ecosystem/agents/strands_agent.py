"""An agent of Strands Agents, with a model of OpenAI."""

from strands import Agent, tool
from strands.models.openai import OpenAIModel
from weather import get_weather


async def answer(question: str) -> str:
    agent = Agent(
        model=OpenAIModel(model_id="gpt-4o-mini"),
        tools=[tool(get_weather)],
        callback_handler=None,
    )
    return str(await agent.invoke_async(question)).strip()
