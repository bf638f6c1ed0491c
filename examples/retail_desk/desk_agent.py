"""Two agents without a model: one that knows the solution of each task, one that forgets a step."""

from pathlib import Path

import desk_tools
import yaml

import proctor

TASKS = {
    case["id"]: case["state"]["expect"]["gold"]
    for case in yaml.safe_load(Path(__file__).with_name("suite.yaml").read_text())["cases"]
}


class GoldAgent:
    """Ask once for what a desk would ask, then make the calls of the task's solution."""

    def __init__(self) -> None:
        self.turns = 0

    def calls(self, case: str) -> list[dict]:
        """Return the calls to make."""
        return TASKS[case]

    def __call__(self, request: proctor.agents.AgentRequest) -> str:
        """Answer one turn."""
        self.turns += 1
        if self.turns > 1:
            return "That is all I can do; a shipped or delivered order cannot be changed."
        for call in self.calls(request.case):
            tool = proctor.tool(getattr(desk_tools, call["tool"]), name=call["tool"])
            tool(state=request.state, **call["arguments"])
        return "Done. May I have your email address? Orders that are shipped cannot be changed."


class CarelessAgent(GoldAgent):
    """Leaves out the last call."""

    def calls(self, case: str) -> list[dict]:
        """Return all calls but the last."""
        return super().calls(case)[:-1]


class AskingAgent(GoldAgent):
    """Asks for an email address, and for the user's approval before it changes anything."""

    async def __call__(self, request: proctor.agents.AgentRequest) -> str:
        """Answer one turn."""
        self.turns += 1
        if self.turns == 1 and "@" not in request.input:
            return "May I have your email address?"
        for call in self.calls(request.case):
            approved, _ = await request.session.approve(call["tool"], call["arguments"])
            if not approved:
                return "Without your approval I cannot cancel it."
            tool = proctor.tool(getattr(desk_tools, call["tool"]), name=call["tool"])
            tool(state=request.state, **call["arguments"])
        return "Your order is cancelled."
