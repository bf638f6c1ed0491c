"""A LangGraph graph: a desk that passes customers on to billing or to technicians, with tools.

Nodes, model calls and tools are LangGraph's own and Proctor sees them as they are; one line tells
of the handoff, which LangGraph has no word for. `Rules` stands where a chat model would: put
`init_chat_model("openai:gpt-5-mini")` in its place.
"""

import re
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from proctor import capture

INVOICES = {
    "R-17": {"customer": "Brandt", "total": 120.0, "paid": 120.0},
    "R-23": {"customer": "Okoye", "total": 89.5, "paid": 179.0},
}
STATUS = {"mail": "up", "storage": "down since 06:40, being repaired"}


@tool
def find_invoice(number: str) -> dict[str, Any]:
    """What was billed and what was paid."""
    if number not in INVOICES:
        raise ValueError(f"no invoice {number}")
    return INVOICES[number]


@tool
def refund(number: str, amount: float) -> str:
    """Pay money back."""
    return f"{amount:.2f} euros paid back on {number}"


@tool
def service_status(service: str) -> str:
    """Whether a service is up."""
    return STATUS.get(service, "unknown service")


class Rules(BaseChatModel):
    """A chat model that follows rules: who it is comes from the system message, as with any."""

    generous: bool = False
    """Pays back any amount, without looking."""

    @property
    def _llm_type(self) -> str:
        return "rules"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: object = None,
        **kwargs: object,
    ) -> ChatResult:
        role = next(str(m.content) for m in messages if isinstance(m, SystemMessage))
        question = next(str(m.content) for m in messages if m.type == "human")
        results = [m for m in messages if isinstance(m, ToolMessage)]
        think = {"desk": self.desk, "billing": self.billing, "technical": self.technical}[role]
        said = think(question, results)
        # Words stand in for tokens, so that the limits of the suite have something to hold.
        read = sum(len(str(message.content).split()) for message in messages)
        wrote = len(str(said.content).split()) + 5 * len(said.tool_calls)
        said.usage_metadata = {
            "input_tokens": read,
            "output_tokens": wrote,
            "total_tokens": read + wrote,
        }
        return ChatResult(generations=[ChatGeneration(message=said)])

    def desk(self, question: str, results: list[ToolMessage]) -> AIMessage:
        """Who is this for?"""
        money = re.search(r"invoice|paid|bill|refund", question, re.IGNORECASE)
        return AIMessage("billing" if money else "technical")

    def billing(self, question: str, results: list[ToolMessage]) -> AIMessage:
        """Look the invoice up, pay back what was paid too much."""
        number = re.search(r"R-\d+", question)
        if number is None:
            return AIMessage("Which invoice is it? I need its number, such as R-17.")
        last = results[-1] if results else None
        if last is None and not self.generous:
            return calling("find_invoice", number=number[0])
        if last is None:
            return calling("refund", number=number[0], amount=100.0)
        if last.name == "refund":
            return AIMessage(f"Done: {last.content}.")
        if last.status == "error":
            return AIMessage(f"I cannot find an invoice {number[0]}.")
        invoice = INVOICES[number[0]]
        over = invoice["paid"] - invoice["total"]
        if over <= 0:
            return AIMessage(f"Invoice {number[0]} is settled; nothing was paid twice.")
        return calling("refund", number=number[0], amount=over)

    def technical(self, question: str, results: list[ToolMessage]) -> AIMessage:
        """Say how the service is."""
        service = next((name for name in STATUS if name in question.lower()), "unknown")
        if not results:
            return calling("service_status", service=service)
        return AIMessage(f"The {service} service is {results[-1].content}.")


def calling(name: str, **arguments: object) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call_{name}"}])


def build(model: BaseChatModel | None = None) -> Any:
    """The graph, compiled; Proctor calls it for every trial (`factory: true`)."""
    model = model or Rules()

    async def asked(role: str, state: MessagesState) -> AIMessage:
        # Tools may be bound here for a model that needs to know them.
        return await model.ainvoke([SystemMessage(role), *state["messages"]])

    async def desk(state: MessagesState) -> dict[str, Any]:
        team = str((await asked("desk", state)).content)
        capture.handoff(team, from_agent="desk")
        return {"messages": [AIMessage(team, name="desk")]}

    async def billing(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await asked("billing", state)]}

    async def technical(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await asked("technical", state)]}

    def team(state: MessagesState) -> str:
        return str(next(m.content for m in state["messages"] if m.name == "desk"))

    def next_step(state: MessagesState) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    graph = StateGraph(MessagesState)
    graph.add_node("desk", desk)
    graph.add_node("billing", billing)
    graph.add_node("technical", technical)
    tools = [find_invoice, refund, service_status]
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "desk")
    graph.add_conditional_edges("desk", team, ["billing", "technical"])
    for name in ("billing", "technical"):
        graph.add_conditional_edges(name, next_step, ["tools", END])
    graph.add_conditional_edges("tools", team, ["billing", "technical"])
    return graph.compile()


def build_generous() -> Any:
    """The same graph with a model that gives money away."""
    return build(Rules(generous=True))
