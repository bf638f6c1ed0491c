"""An agent of the OpenAI Agents SDK."""

from agents import Agent, function_tool
from weather import get_weather

agent = Agent("weather", model="gpt-4o-mini", tools=[function_tool(get_weather)])
