"""The Claude Agent SDK, with a tool in this process."""

import asyncio
import sys

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool
from weather import get_weather


@tool("get_weather", "Return the weather in a city.", {"city": str})
async def weather_tool(args: dict) -> dict:
    return {"content": [{"type": "text", "text": get_weather(**args)}]}


async def answer(question: str) -> str:
    options = ClaudeAgentOptions(
        model="claude-sonnet-4-5",
        mcp_servers={"weather": create_sdk_mcp_server("weather", tools=[weather_tool])},
        tools=[],
        allowed_tools=["mcp__weather__get_weather"],
        env={"ENABLE_TOOL_SEARCH": "false"},
        setting_sources=[],
        max_turns=5,
    )
    said = ""
    async for message in query(prompt=question, options=options):
        if isinstance(message, ResultMessage):
            said = message.result or ""
    return said


if __name__ == "__main__":
    # The SDK starts a program that calls the model: it is observed through the model gateway.
    print(asyncio.run(answer(sys.argv[1])))
