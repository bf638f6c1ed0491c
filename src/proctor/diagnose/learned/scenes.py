"""A move seen in its place: its role, how it failed, what it repeats, what its plan promised.

Promise: everything here reads `Moves`, so it holds for any framework's traces; each text is cut
and read once, so that a trace costs milliseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from proctor.diagnose.moves import ANSWERING, asks_for_plan, offered_in

if TYPE_CHECKING:
    from proctor.diagnose.moves import Move, Moves

_FACTS = re.compile(r"list of facts|facts survey|Facts given|Facts to look up")
_AGAIN = re.compile(r"\bnew (?:plan|list of facts)\b|\bupdated? (?:plan|list of facts)\b")
_ERROR = re.compile(r"\b(\w+(?:Error|Exception))\b")
_WORD = re.compile(r"[A-Za-z_]{3,24}|\d+(?:\.\d+)?")

KINDS = (
    ("parse", re.compile(r"SyntaxError|IndentationError|code parsing|Code parsing|regex pattern")),
    ("arguments", re.compile(r"unexpected keyword|required positional|multiple values|TypeError")),
    ("import", re.compile(r"Import (?:of|from)|not allowed|ModuleNotFound|forbidden")),
    ("missing", re.compile(r"FileNotFound|No such file|not found|KeyError|IndexError")),
    ("empty", re.compile(r"[Nn]o (?:search )?results|less (?:restrictive|specific) query")),
    ("limit", re.compile(r"RateLimit|rate_limit|[Tt]imed? ?out|maximum number|context_length")),
    ("code", re.compile(r"[Cc]ode execution|InterpreterError|Traceback")),
)
"""How failures read, the most telling first."""

OUTCOMES = {
    "not found": re.compile(r"was not found|[Nn]o results|[Nn]ot found|Could not find|couldn't"),
    "refused": re.compile(r"Error 4\d\d|403 Forbidden|Enable JavaScript"),
    "empty": re.compile(r"Execution logs:\s*Last output|None\s*\Z"),
    "gives up": re.compile(r"\b[Uu]nable to|could not be|no (?:direct|definitive|explicit)"),
    "letters": re.compile(r"\n\w\n\w\n\w\n\w\n"),
}
"""What an observation can say of how a step went."""

OBSERVED = 3000
"""Characters of an observation that say how a step went; the rest is content."""

WORDS = 1500
"""Characters compared for likeness: enough to tell a repeated step from a new one."""


@dataclass(slots=True)
class Scene:
    """One move with what surrounds it."""

    move: Move
    place: int
    role: str
    kind: str
    """How it failed: one of KINDS, "other", or empty when it did not."""
    words: frozenset[str]
    previous: Scene | None = None
    following: Scene | None = None
    plan: Scene | None = None
    """The latest plan its agent made before it."""
    streak: int = 0
    """Failures in a row up to and with this one."""
    failures: int = 0
    """Failed moves of its agent before it."""
    successes: int = 0
    """Working moves of its agent before it that did not fail."""
    likeness: float = 0.0
    """To the most similar earlier move of its agent and role, 0 to 1."""
    alike: int = 0
    """Earlier moves of its agent with the same first call."""
    run: int = 0
    """Moves in a row with the same first call, up to and with this one; planning between counts
    as a pause, not as an end."""
    same_failures: int = 0
    """Earlier failures of its agent in the same call and of the same kind."""
    call_likeness: float = 0.0
    """To the arguments of the latest earlier call of the same tool, 0 to 1."""
    outcomes: tuple[str, ...] = ()
    """What the observation that came back says of it: some of OUTCOMES."""
    acted: Scene | None = None
    """The latest earlier move of its agent that was not planning."""
    segment: int = 0
    """Moves in a row with the same first call, up to and with this one; planning ends the row."""
    sources: int = 0
    """Of a plan: how often it speaks of places to look something up."""
    self_contained: bool = False
    """Of a plan: whether it needs only thought."""
    offered: frozenset[str] = field(default_factory=frozenset[str])
    """Tools its prompt offers, besides the one that answers."""

    @property
    def call(self) -> str:
        """The name of its first call; empty without any."""
        return self.move.calls[0].name if self.move.calls else ""

    @property
    def named(self) -> frozenset[str]:
        """Offered tools that its text names."""
        return frozenset(name for name in self.offered if name in self.move.text)

    @property
    def planning(self) -> bool:
        """Whether it plans or surveys facts, and does no work."""
        return self.role.endswith(("plan", "facts"))

    @property
    def errors(self) -> list[str]:
        """Names of exceptions in its failure."""
        return _ERROR.findall(self.move.failure[:1000])[:3]


def role_of(move: Move) -> str:
    """What a move is for."""
    end = move.told[-1500:]
    again = "re" if _AGAIN.search(end) else ""
    if asks_for_plan(end):
        return f"{again}plan"
    if _FACTS.search(end) or (not move.index and _FACTS.search(move.told)):
        return f"{again}facts"
    if not move.agent:
        return "aside"
    if move.answers:
        return "work and answer" if move.works else "answer"
    if move.works:
        return "act"
    return "code" if "```" in move.text else "say"


def kind_of(failure: str) -> str:
    """How a failure reads."""
    if not failure:
        return ""
    head = failure[:1500]
    return next((name for name, pattern in KINDS if pattern.search(head)), "other")


def scenes_of(moves: Moves) -> list[Scene]:
    """Every move in its place, by start time."""
    scenes: list[Scene] = []
    by_agent: dict[str, list[Scene]] = {}
    offers = _offers(moves)
    for place, move in enumerate(moves.moves):
        said = move.text[:WORDS] + " ".join(f" {c.name} {c.arguments[:200]}" for c in move.calls)
        words = frozenset(word.lower() for word in _WORD.findall(said))
        scene = Scene(move, place, role_of(move), kind_of(move.failure), words)
        scene.offered = offers[move.agent]
        if scene.role.endswith("plan"):
            scene.sources, scene.self_contained = move.sources, move.self_contained
        head = move.came_back[:OBSERVED]
        scene.outcomes = tuple(name for name, p in OUTCOMES.items() if p.search(head))
        _place(scene, by_agent.setdefault(move.agent, []))
        scenes.append(scene)
    return scenes


def _offers(moves: Moves) -> dict[str, frozenset[str]]:
    """The tools each agent is offered, in any of its prompts, besides the one that answers."""
    prompts: dict[str, set[str]] = {}
    for move in moves.moves:
        read = prompts.setdefault(move.agent, set())
        read.add(move.rules)
        if move.plans:
            read.add(move.told)
    return {
        agent: frozenset(name for text in read for name in offered_in(text)) - ANSWERING
        for agent, read in prompts.items()
    }


def _place(scene: Scene, earlier: list[Scene]) -> None:
    """Link a scene with the earlier ones of its agent, then add it to them."""
    failed = bool(scene.move.failure)
    if earlier:
        last = earlier[-1]
        scene.previous, last.following = last, scene
        scene.acted = last.acted if last.planning else last
        scene.plan = last if last.role.endswith("plan") else last.plan
        scene.failures = last.failures + bool(last.move.failure)
        scene.successes = last.successes + (last.move.works and not last.move.failure)
        scene.streak = last.streak + 1 if failed else 0
    else:
        scene.streak = int(failed)
    for other in earlier:
        if other.role == scene.role:
            scene.likeness = max(scene.likeness, likeness(scene.words, other.words))
        if scene.call and other.call == scene.call:
            scene.alike += 1
            scene.call_likeness = likeness(scene.words, other.words)
            scene.same_failures += bool(scene.kind) and other.kind == scene.kind
    acted = next((other for other in reversed(earlier) if other.call), None)
    same = bool(scene.call) and acted is not None and acted.call == scene.call
    scene.run = (acted.run + 1 if same and acted else 1) if scene.call else 0
    before = scene.previous
    goes_on = before is not None and before.call == scene.call
    scene.segment = (before.segment + 1 if before and goes_on else 1) if scene.call else 0
    earlier.append(scene)


def likeness(one: frozenset[str], other: frozenset[str]) -> float:
    """How many of the words of either are words of both."""
    union = len(one | other)
    return len(one & other) / union if union else 1.0
