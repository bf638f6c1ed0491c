"""Small worlds, agents and generators that the tests of worlds and built-in agents share."""

from collections.abc import Callable
from typing import Any

from proctor.agents.base import AgentReply, AgentRequest, as_reply
from proctor.agents.registry import agent_config
from proctor.worlds import EpisodeOutcome, InvalidAction, Scores, episode, make_world


class Corridor:
    """Walk from 0 to the door; only left, right and (at the door) open are valid."""

    def __init__(self, length: int = 3) -> None:
        self.length = length
        self.at = 0
        self.closed = False

    def reset(self, *, seed: int | None = None):
        self.at = 0
        self.open = False
        return {"at": 0, "door": self.length}, {}

    def actions(self) -> list[str]:
        return ["left", "right", *(["open"] if self.at == self.length else [])]

    def step(self, action: str):
        if action == "open":
            self.open = True
            return {"at": self.at, "open": True}, 1.0, True, False, {}
        if action == "left" and self.at == 0:
            raise InvalidAction("there is a wall on the left")
        self.at += {"left": -1, "right": 1}[action]
        self.at = min(self.at, self.length)
        return {"at": self.at, "door": self.length}, 0.0, False, False, {}

    def render(self) -> str:
        row = ["."] * self.length + ["D"]
        row[self.at] = "@"
        return "".join(row)

    def score(self, truth: Any) -> Scores:
        return Scores(float(self.open), {"opened": float(self.open)}, "the door")

    def close(self) -> None:
        self.closed = True


class Bare:
    """The least a world can be: text in, text out, no score."""

    def reset(self, *, seed: int | None = None):
        return f"seed {seed}", None

    def step(self, action: str):
        return action.upper(), 0.5, action == "stop", False, {}


class Broken(Corridor):
    """Falls over at the second step."""

    def step(self, action: str):
        if self.at:
            raise RuntimeError("the floor gave way")
        return super().step(action)


class Says:
    """An agent that answers with the given values in order and records its turns."""

    def __init__(self, *said: Any) -> None:
        self.said = list(said)
        self.turns: list[Any] = []

    async def run(self, request: AgentRequest) -> AgentReply:
        self.turns.append(request)
        return as_reply(self.said.pop(0))


async def played(
    use: str | Callable[..., Any], agent: Any, options: Any = None, **rules: Any
) -> EpisodeOutcome:
    """One episode of an agent, or of the agent that options describe."""
    player = agent_config(agent).create() if isinstance(agent, dict) else agent
    request = AgentRequest(
        rules.pop("task", "the task"),
        case=rules.pop("case", "c"),
        trial=rules.pop("trial", "t"),
        index=rules.pop("index", 0),
        seed=rules.get("seed", 0),
    )
    limit = rules.pop("max_steps", None)
    rules.setdefault("seed", 0)
    return await episode(lambda: make_world(use, options, limit), player, request, **rules)


def walk(turn, truth, door="open"):
    """A script: right until the truth is reached, then through the door."""
    while turn.observation["at"] < truth["door"]:
        turn = yield "right"
    yield door


def too_short(turn):
    """A script that gives up."""
    yield "right"


def from_lists(turn, truth):
    """A script that takes its moves from lists, one of them inside another generator."""

    def middle():
        yield from ("right" for _ in range(truth["door"] - 2))

    yield from ["right"]
    yield from middle()
    yield from ["right", "open"]


def by_turn(turn):
    """A script without a memory."""
    return "open" if "open" in turn.actions else "right"


class Diarist:
    """An agent with a memory and a diary."""

    def __init__(self) -> None:
        self.turns = 0

    def __call__(self, request):
        self.turns += 1
        with (request.workdir / "diary.txt").open("a") as diary:
            diary.write(f"{self.turns} ")
        return "open" if "open" in request.actions else "right"
