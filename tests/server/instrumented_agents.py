"""One small agent, built and instrumented in several ways; each is run in a process of its own.

    python instrumented_agents.py NAME

The model is at OPENAI_BASE_URL, spans go to OTEL_EXPORTER_OTLP_ENDPOINT: nothing here knows of
Proctor. The agent asks for a tool, gets its result and answers.
"""

import asyncio
import json
import sys
from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

QUESTION = "How is the weather in Oslo?"
MODEL = "gpt-4o-mini"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"4 degrees in {city}"


def by_hand(run_tool: Callable[..., str]) -> str | None:
    """An agent that is a loop around the client of OpenAI."""
    import openai

    client = openai.OpenAI()
    messages = [{"role": "user", "content": QUESTION}]
    while True:
        reply = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
        said = reply.choices[0].message
        if not said.tool_calls:
            return said.content
        messages.append(said.model_dump(exclude_none=True))
        for call in said.tool_calls:
            result = run_tool(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def pydantic_ai(provider: TracerProvider) -> None:
    """pydantic-ai, with its own instrumentation."""
    from pydantic_ai import Agent
    from pydantic_ai.models.instrumented import InstrumentationSettings

    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))
    agent = Agent(f"openai-chat:{MODEL}", tools=[get_weather], name="weatherman")
    agent.run_sync(QUESTION)


def openinference(provider: TracerProvider) -> None:
    """OpenInference: its instrumentation of the client, its decorators for agent and tool."""
    from openinference.instrumentation import OITracer, TraceConfig
    from openinference.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=provider)
    tracer = OITracer(provider.get_tracer("weatherman"), TraceConfig())
    tracer.agent(name="weatherman")(lambda: by_hand(tracer.tool(get_weather)))()


def openllmetry(provider: TracerProvider) -> None:
    """OpenLLMetry's instrumentation of the client; agent and tool as its SDK marks them."""
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=provider)
    tracer = provider.get_tracer("weatherman")

    def tool(city: str) -> str:
        with tracer.start_as_current_span("get_weather.tool") as span:
            span.set_attribute("traceloop.span.kind", "tool")
            span.set_attribute("traceloop.entity.name", "get_weather")
            span.set_attribute("traceloop.entity.input", json.dumps({"city": city}))
            result = get_weather(city)
            span.set_attribute("traceloop.entity.output", json.dumps(result))
            return result

    with tracer.start_as_current_span("weatherman.agent") as span:
        span.set_attribute("traceloop.span.kind", "agent")
        span.set_attribute("traceloop.entity.name", "weatherman")
        by_hand(tool)


def genai(provider: TracerProvider) -> None:
    """OpenTelemetry's own instrumentation of the client; agent and tool by its conventions.

    What was said goes out in log records, apart from the spans.
    """
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    logs = LoggerProvider(resource=provider.resource)
    logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    OpenAIInstrumentor().instrument(tracer_provider=provider, logger_provider=logs)
    tracer = provider.get_tracer("weatherman")

    def tool(city: str) -> str:
        with tracer.start_as_current_span("execute_tool get_weather") as span:
            span.set_attribute("gen_ai.operation.name", "execute_tool")
            span.set_attribute("gen_ai.tool.name", "get_weather")
            return get_weather(city)

    with tracer.start_as_current_span("invoke_agent weatherman") as span:
        span.set_attribute("gen_ai.operation.name", "invoke_agent")
        span.set_attribute("gen_ai.agent.name", "weatherman")
        by_hand(tool)
    logs.shutdown()


def langgraph(provider: TracerProvider) -> None:
    """A graph of LangGraph with OpenInference's instrumentation of LangChain."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition
    from openinference.instrumentation.langchain import LangChainInstrumentor

    LangChainInstrumentor().instrument(tracer_provider=provider)
    tools = [tool(get_weather)]
    model = ChatOpenAI(model=MODEL).bind_tools(tools)
    graph = StateGraph(MessagesState)
    graph.add_node("think", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    graph.compile(name="weatherman").invoke({"messages": [("user", QUESTION)]})


def openai_agents(provider: TracerProvider) -> None:
    """OpenAI's Agents SDK, by the protocol of responses, with OpenInference's instrumentation."""
    import agents
    from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

    OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)
    tools = [agents.function_tool(get_weather)]
    agent = agents.Agent(name="weatherman", model=MODEL, tools=tools)
    asyncio.run(agents.Runner.run(agent, QUESTION))


AGENTS = {
    made.__name__.replace("_", "-"): made
    for made in (pydantic_ai, openinference, openllmetry, genai, langgraph, openai_agents)
}


def main(name: str) -> None:
    """Run one agent and send its spans."""
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    AGENTS[name](provider)
    provider.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
