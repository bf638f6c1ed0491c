"""A streaming loop around the client of Anthropic."""

import anthropic
from weather import get_weather

TOOL = {
    "name": "get_weather",
    "description": "Return the weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


async def answer(question: str) -> str:
    client, messages = anthropic.AsyncAnthropic(), [{"role": "user", "content": question}]
    while True:
        async with client.messages.stream(
            model="claude-sonnet-4-5", max_tokens=200, messages=messages, tools=[TOOL]
        ) as stream:
            said = await stream.get_final_message()
        calls = [block for block in said.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in said.content if block.type == "text")
        messages.append({"role": "assistant", "content": [b.model_dump() for b in said.content]})
        results = [
            {"type": "tool_result", "tool_use_id": c.id, "content": get_weather(**c.input)}
            for c in calls
        ]
        messages.append({"role": "user", "content": results})
