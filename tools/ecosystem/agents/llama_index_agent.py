"""A function agent of LlamaIndex."""

import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI
from weather import get_weather


async def answer(question: str) -> str:
    # Without this option OpenAI reports no tokens for the streams that LlamaIndex requests.
    usage = {"stream_options": {"include_usage": True}}
    llm = OpenAI("gpt-4o-mini", api_base=os.environ["OPENAI_BASE_URL"], additional_kwargs=usage)
    agent = FunctionAgent(name="weather", tools=[get_weather], llm=llm)
    return str(await agent.run(question))
