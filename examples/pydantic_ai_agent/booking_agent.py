"""A pydantic-ai agent that books meeting rooms: its own tools, dependencies and output type.

Nothing here knows of Proctor. Without a key it thinks by rules (`FunctionModel` stands where a
model would); BOOKING_MODEL=openai:gpt-5-mini, say, puts a real one in its place.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

PLAN = Path(__file__).resolve().parent / "rooms.json"


class Room(BaseModel):
    """A room of the house."""

    name: str
    seats: int
    taken: list[str]
    """Hours that are booked, as "tuesday 10"."""


class Outcome(BaseModel):
    """What the agent has to answer with."""

    booked: bool
    room: str | None
    message: str


@dataclass
class House:
    """The rooms of one conversation: what is booked in it, no other sees."""

    rooms: dict[str, Room]


def fresh_house() -> House:
    """The house as the plan has it; Proctor calls it for every trial."""
    plan = json.loads(PLAN.read_text(encoding="utf-8"))
    return House({room["name"]: Room.model_validate(room) for room in plan})


def free_rooms(ctx: RunContext[House], day: str, hour: int, seats: int) -> list[Room]:
    """Rooms that are free then and large enough, the smallest first."""
    wanted = f"{day} {hour}"
    found = [r for r in ctx.deps.rooms.values() if r.seats >= seats and wanted not in r.taken]
    # Copies: what was said is not changed by what is booked later.
    return [room.model_copy(deep=True) for room in sorted(found, key=lambda room: room.seats)]


def book(ctx: RunContext[House], room: str, day: str, hour: int) -> str:
    """Book a room for one hour."""
    if room not in ctx.deps.rooms:
        raise ModelRetry(f"there is no room {room}; there are {', '.join(ctx.deps.rooms)}")
    taken = ctx.deps.rooms[room].taken
    if f"{day} {hour}" in taken:
        raise ModelRetry(f"{room} is taken {day} {hour}; look for a free one")
    taken.append(f"{day} {hour}")
    return f"booked {room} {day} {hour}"


def cancel_booking(ctx: RunContext[House], room: str, day: str, hour: int) -> str:
    """Cancel a booking of any customer."""
    ctx.deps.rooms[room].taken.remove(f"{day} {hour}")
    return f"cancelled {room} {day} {hour}"


# -- what stands in for a model ------------------------------------------------------------------


def careful_rules(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Look first, take the smallest that fits, and say so when there is none."""
    day, hour, seats = understood(messages)
    done = {part.tool_name: part.content for part in returns(messages)}
    if "free_rooms" not in done:
        return calling("free_rooms", day=day, hour=hour, seats=seats)
    if not done["free_rooms"]:
        return answering(info, None, f"No room for {seats} is free on {day} at {hour}.")
    room = done["free_rooms"][0].name
    if "book" not in done:
        return calling("book", room=room, day=day, hour=hour)
    return answering(info, room, f"{room} is yours on {day} at {hour}.")


def hasty_rules(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Take the great hall in any case, and cancel the booking that was there."""
    day, hour, _ = understood(messages)
    calls = [part.tool_name for part in parts(messages) if isinstance(part, ToolCallPart)]
    done = {part.tool_name for part in returns(messages)}
    if "book" in done:
        return answering(info, "Forum", f"Forum is yours on {day} at {hour}.")
    if "book" in calls and "cancel_booking" not in done:
        return calling("cancel_booking", room="Forum", day=day, hour=hour)
    return calling("book", room="Forum", day=day, hour=hour)


def understood(messages: list[ModelMessage]) -> tuple[str, int, int]:
    """Day, hour and seats out of the question."""
    question = str(messages[0].parts[-1].content).lower()
    day = re.search(r"(mon|tues|wednes|thurs|fri)day", question)
    hour, seats = re.search(r"at (\d+)", question), re.search(r"(\d+) people", question)
    assert day is not None
    assert hour is not None
    assert seats is not None
    return day[0], int(hour[1]), int(seats[1])


def parts(messages: list[ModelMessage]) -> list:
    return [part for message in messages for part in message.parts]


def returns(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    """What tools gave back; one that asked for another try gave nothing."""
    every = [part for part in parts(messages) if isinstance(part, ToolReturnPart)]
    return [part for part in every if part.outcome == "success"]


def calling(tool: str, **arguments: object) -> ModelResponse:
    return ModelResponse([ToolCallPart(tool, arguments)])


def answering(info: AgentInfo, room: str | None, message: str) -> ModelResponse:
    """An output type is requested through a tool of its own."""
    outcome = {"booked": room is not None, "room": room, "message": message}
    return ModelResponse([ToolCallPart(info.output_tools[0].name, outcome)])


# -- the agents ----------------------------------------------------------------------------------


def agent_that(thinks: FunctionModel) -> Agent[House, Outcome]:
    return Agent(
        os.environ.get("BOOKING_MODEL") or thinks,
        name="booking",
        instructions="Book the smallest room that fits. Never cancel a booking.",
        deps_type=House,
        output_type=Outcome,
        tools=[free_rooms, book, cancel_booking],
        retries=2,
    )


careful = agent_that(FunctionModel(careful_rules, model_name="careful-rules"))
hasty = agent_that(FunctionModel(hasty_rules, model_name="hasty-rules"))
