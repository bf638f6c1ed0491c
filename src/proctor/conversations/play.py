"""Hold one conversation: an agent and a user, turn by turn.

Guarantees: one agent instance and one session for the whole conversation; every turn is a span
whose input is the user's message and whose output is the answer, so that checks, the viewer and
diagnosis see turns; a conversation always ends. The user's own model calls and time are not the
agent's. A simulated user that cannot play its part is an infrastructure error (`SimulatorError`),
never a failure of the agent.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, cast

from proctor.agents.base import Agent, AgentReply, AgentRequest
from proctor.agents.session import AgentSession, by_rules, writes
from proctor.conversations.user import (
    ModelUser,
    ScriptedUser,
    SimulatedUser,
    UserMessage,
    extract,
    fill,
    said_yes,
)
from proctor.errors import ProctorError
from proctor.gateway.prefix import current_prefix
from proctor.llm.rate_limits import queue_waits
from proctor.trace import otel
from proctor.trace.capture import current_trace, shared_state, span
from proctor.trace.model import CONVERSATION, TURN

if TYPE_CHECKING:
    from proctor.conversations.fidelity import UserFault
    from proctor.spec import Case, Turn

STATE = "state"
"""Key in a trace's metadata: the final data of the tools."""

ATTEMPTS = 3
"""Attempts of a model at one message of the user: most faults do not happen twice."""


class SimulatorError(ProctorError):
    """Raised when a simulated user did not play its part."""


class _User(Protocol):
    async def next(self, history: list[dict[str, str]]) -> UserMessage: ...


async def converse(case: Case, agent: Agent, request: AgentRequest) -> AgentReply:
    """Run an agent in the conversation of a case; the last answer is the answer of the trial."""
    state = None if case.state is None else case.state.create(case.folder)
    before = None if state is None else state.snapshot()
    about: dict[str, Any] = {"turns": 0, "ended": ""}
    user: _User
    watched: _Watched | None = None
    if case.user is None:
        turns = cast("tuple[Turn, ...]", case.turns)
        user = _Messages(turns) if turns else _Question(case.input)
    elif case.user.script is not None:
        user = ScriptedUser(case.user)
    else:
        played = ModelUser(case.user, case.user.chat_model(), request.seed)
        user = watched = _Watched(case.user, played, about)
    approver = None
    if case.approvals is not None:
        by_user = case.approvals.otherwise == "user" and watched is not None
        approver = by_rules(case.approvals.rules, watched.approve if watched and by_user else None)
    session = AgentSession(request.trace_id or request.trial or case.id, state, approver)
    shared = shared_state.set(None if state is None else state.value)
    limit = len(case.turns) or (1 if case.user is None else case.user.max_turns)
    deadline = None if request.timeout is None else time.monotonic() + request.timeout
    reply = AgentReply("")
    try:
        while True:
            message = await _next_message(user, session.history)
            if message.text is None:
                about["ended"] = message.ended
                break
            if about["turns"] == limit:
                about["ended"] = "the last turn" if case.turns else f"{limit} turns, the limit"
                break
            about["turns"] += 1
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with span("turn", input=message.text, attributes={TURN: about["turns"]}) as step:
                reply = await agent.run(request.turn(message.text, session, left))
                step.output = reply.answer
            if watched is not None and watched.failed is not None:
                raise watched.failed
            if reply.trace is not None:
                return reply  # a recording has the whole conversation
            session.history += [
                {"role": "user", "content": message.text},
                {"role": "assistant", "content": reply.answer},
            ]
    finally:
        # Also after a failure: the trace shows how far the conversation got.
        trace = current_trace()
        if trace is not None:
            if case.turns or case.user is not None:
                trace.metadata[CONVERSATION] = about
            if state is not None:
                after = state.snapshot()
                made = writes(before, after)
                trace.metadata[STATE] = {"final": after, "writes": made, "schema": state.schema()}
        shared_state.reset(shared)
        await session.close()
    return reply


async def _next_message(user: _User, history: list[dict[str, str]]) -> UserMessage:
    """Return the user's next message."""
    prefix = current_prefix()
    if prefix is not None and isinstance(user, _Watched):
        # A fork: up to its step the user says what the record has, however it was made.
        said = prefix.user_message(len(history) // 2)
        if said is not None:
            return UserMessage(said)
    with _not_the_agent():
        return await user.next(history)


@contextmanager
def _not_the_agent() -> Generator[None]:
    """Keep the user's time and model calls out of the agent's."""
    outside = otel.here.set(None)
    try:
        with queue_waits.get() or nullcontext():
            yield
    finally:
        otel.here.reset(outside)


class _Question:
    """A single input, for cases with a state or approvals but no turns."""

    def __init__(self, question: Any) -> None:
        self._question = question

    async def next(self, history: list[dict[str, str]]) -> UserMessage:
        """Return the input, once."""
        return UserMessage(None, "answered") if history else UserMessage(self._question)


class _Messages:
    """The written turns of a case, with values saved from earlier answers."""

    def __init__(self, turns: tuple[Turn, ...]) -> None:
        self._turns = turns
        self._values: dict[str, str] = {}

    async def next(self, history: list[dict[str, str]]) -> UserMessage:
        """Return the message of the next turn."""
        number = len(history) // 2
        if number:
            answered = self._turns[number - 1]
            found = extract(answered.save, history[-1]["content"])
            if missing := sorted(answered.save.keys() - found.keys()):
                # What follows depends on it, so the conversation cannot go on.
                return UserMessage(None, f"the answer of turn {number} has no {missing[0]!r}")
            self._values |= found
        if number == len(self._turns):
            return UserMessage(None, "the last turn")
        return UserMessage(fill(self._turns[number].user, self._values))


class _Watched:
    """A model as the user, whose messages are checked before the agent sees them."""

    def __init__(self, user: SimulatedUser, played: ModelUser, about: dict[str, Any]) -> None:
        self._user, self._played, self._about = user, played, about
        self.failed: SimulatorError | None = None
        """Why the user could not answer during a turn: not the agent's failure."""
        about |= {"user_messages": 0, "rejected_messages": 0, "user_tokens": 0, "faults": []}

    async def next(self, history: list[dict[str, str]]) -> UserMessage:
        """Return a message without a fault; raise if the model does not manage one."""
        from proctor.conversations.fidelity import UserFault, user_faults

        about, remark = self._about, ""
        faults: list[UserFault] = []
        for _ in range(ATTEMPTS):
            message = await self._played.next(history, remark)
            about["user_tokens"] += message.tokens
            said = [{"role": "user", "content": message.text}] if message.text is not None else []
            earlier = len(history) // 2
            found = user_faults(self._user, [*history, *said], stopped=message.text is None)
            faults = [fault for fault in found if fault.turn > earlier]
            if message.text == "":
                faults = [UserFault("stopped_early", earlier + 1, "says nothing")]
            about["user_messages"] += message.text is not None or bool(faults)
            if not faults:
                return message
            about["rejected_messages"] += 1
            about["faults"] += [{**fault._asdict()} for fault in faults]
            remark = f"your last attempt {faults[0].reason}."
        raise SimulatorError(
            f"the simulated user failed at turn {faults[0].turn}: {faults[0].kind}:"
            f" {faults[0].reason}",
            hint="use a stronger model for the user, or give it the facts it needs in `knows`",
        )

    async def approve(self, tool: str, arguments: Any) -> tuple[bool, str]:
        """Answer a request for approval; an unclear answer fails the simulation, not the agent."""
        said = ""
        for _ in range(ATTEMPTS):
            with _not_the_agent():
                message = await self._played.approve(tool, arguments)
            self._about["user_tokens"] += message.tokens
            said = message.text or ""
            answer = said_yes(said)
            if answer is not None:
                return answer, said
        self.failed = SimulatorError(
            f"the simulated user neither approved nor denied {tool}: {said[:100]!r}",
            hint="use a stronger model for the user, or add a rule to `approvals`",
        )
        return False, "the user did not answer"


def fidelity(about: Mapping[str, Any]) -> float | None:
    """Return the share of the simulated user's messages without a fault; None without any."""
    total = about.get("user_messages")
    return (total - about["rejected_messages"]) / total if total else None
