"""Agents of real frameworks, built against the server named by MOCK_URL."""

import os
from typing import Annotated, Any, NotRequired, TypedDict

import agents as sdk
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from proctor.trace.capture import span


def url() -> str:
    return os.environ["MOCK_URL"]


# -- pydantic-ai ---------------------------------------------------------------------------------


class City(BaseModel):
    name: str
    people: int


def pydantic_agent() -> Agent[Any, Any]:
    provider = OpenAIProvider(base_url=url(), api_key="k")
    agent: Agent[Any, Any] = Agent(
        OpenAIChatModel("gpt-4o-mini", provider=provider),
        instructions="Be brief.",
        name="weatherman",
    )

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather in a city."""
        with span("look out of the window"):
            return f"sunny in {city}"

    @agent.tool
    def whoami(context: RunContext[Any]) -> str:
        """Who asks."""
        return f"you are {context.deps}"

    return agent


def user() -> str:
    return "Ada"


def structured_agent() -> Agent[Any, Any]:
    provider = OpenAIProvider(base_url=url(), api_key="k")
    return Agent(OpenAIChatModel("gpt-4o-mini", provider=provider), output_type=City)


# -- LangGraph -----------------------------------------------------------------------------------


class State(TypedDict):
    messages: Annotated[list, add_messages]
    verdict: NotRequired[str]


def weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise ValueError("no such city")
    return f"sunny in {city}"


def graph_of(*replies: AIMessage) -> Any:
    model = GenericFakeChatModel(messages=iter(replies))

    async def think(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])], "verdict": "thought"}

    def next_step(state: State) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    graph = StateGraph(State)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([weather], handle_tool_errors=True))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", next_step)
    graph.add_edge("tools", "think")
    return graph.compile()


def asking(city: str) -> AIMessage:
    return AIMessage(
        "",
        tool_calls=[{"name": "weather", "args": {"city": city}, "id": f"call_{city}"}],
        usage_metadata={"input_tokens": 20, "output_tokens": 5, "total_tokens": 25},
        response_metadata={"model_name": "gpt-4o-mini"},
    )


def weather_graph() -> Any:
    return graph_of(asking("Paris"), AIMessage("It is sunny in Paris."))


def failing_tool_graph() -> Any:
    return graph_of(asking("Atlantis"), AIMessage("I do not know that city."))


def failing_model_graph() -> Any:
    return graph_of()


uncompiled = StateGraph(State)


# -- OpenAI Agents -------------------------------------------------------------------------------


def _model(name: str = "gpt-4o-mini") -> sdk.OpenAIChatCompletionsModel:
    client = AsyncOpenAI(base_url=url(), api_key="k", max_retries=0)
    return sdk.OpenAIChatCompletionsModel(model=name, openai_client=client)


@sdk.function_tool
def forecast(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise ValueError("no such city")
    return f"rain in {city}"


def sdk_agent() -> Any:
    return sdk.Agent(name="weatherman", instructions="Be brief.", model=_model(), tools=[forecast])


def sdk_responses_agent() -> Any:
    client = AsyncOpenAI(base_url=url(), api_key="k", max_retries=0)
    model = sdk.OpenAIResponsesModel(model="gpt-4o-mini", openai_client=client)
    return sdk.Agent(name="weatherman", model=model, tools=[forecast])


def sdk_team() -> Any:
    expert = sdk.Agent(name="expert", model=_model("gpt-4o"))
    return sdk.Agent(name="desk", model=_model(), handoffs=[expert])


not_an_agent = {"hello": "world"}
made = Agent("test")
