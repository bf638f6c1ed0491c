"""LangChain's `create_agent`, a LangGraph graph."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from weather import get_weather

agent = create_agent(ChatOpenAI(model="gpt-4o-mini"), [get_weather])
