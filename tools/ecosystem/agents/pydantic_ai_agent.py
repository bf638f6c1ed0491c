"""A pydantic-ai agent."""

from pydantic_ai import Agent
from weather import get_weather

agent = Agent("openai-chat:gpt-4o-mini", tools=[get_weather], name="weather")
