"""A crew of one agent with one task."""

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from weather import get_weather


def answer(question: str) -> str:
    agent = Agent(
        role="forecaster",
        goal="Answer questions about the weather.",
        backstory="You know every city.",
        llm=LLM(model="openai/gpt-4o-mini"),
        tools=[tool("get_weather")(get_weather)],
    )
    task = Task(description=question, expected_output="The weather.", agent=agent)
    return Crew(agents=[agent], tasks=[task]).kickoff().raw
