"""An assistant of AutoGen's AgentChat."""

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from weather import get_weather


async def answer(question: str) -> str:
    client = OpenAIChatCompletionClient(model="gpt-4o-mini")
    agent = AssistantAgent("weather", client, tools=[get_weather], reflect_on_tool_use=True)
    result = await agent.run(task=question)
    await client.close()
    return result.messages[-1].to_text()
