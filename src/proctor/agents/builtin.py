"""Agents that need no model: `random`, `scripted` and `human`.

They set the scale: chance, a known course, and a person. A case tells what may be answered by
listing `actions` in its input; `random` cannot do without them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Literal, TextIO, cast

import msgspec
from pydantic import Field, model_validator

from proctor.agents import threads
from proctor.agents.base import Agent, AgentConfig, AgentError, AgentReply, AgentRequest, as_reply
from proctor.trace.capture import span

ACTION_KEYS = ("actions", "valid_actions", "choices", "options")
"""Keys of an input under which its possible answers may stand; the first there is is taken."""

QUIT_WORDS = frozenset({"/quit", "/exit"})

_TERMINAL = Path("/dev/tty")
_one_at_a_time = threading.Lock()


def actions_of(value: Any) -> list[Any] | None:
    """The answers that an input allows, or None when it does not list them."""
    if not isinstance(value, Mapping):
        return None
    given = cast("Mapping[str, Any]", value)
    for key in ACTION_KEYS:
        listed = given.get(key)
        if isinstance(listed, list | tuple) and listed:
            return list(cast("Sequence[Any]", listed))
    return None


# -- random --------------------------------------------------------------------------------------


class RandomAgentConfig(AgentConfig):
    """Answers with one of the case's actions, each as likely as the others."""

    kind: Literal["random"] = "random"
    actions: list[Any] | None = Field(default=None, min_length=1)
    """What to choose from where a case lists nothing."""

    def create(self) -> Agent:
        """A die of its own, thrown by the trial's seed."""
        return RandomAgent(self.actions)


class RandomAgent:
    """Chance."""

    def __init__(self, actions: list[Any] | None) -> None:
        self._actions = actions

    async def run(self, request: AgentRequest) -> AgentReply:
        """One of the actions; the same for the same seed."""
        actions = actions_of(request.input) or self._actions
        if actions is None:
            raise AgentError(
                f"case {request.case!r} does not say what may be answered",
                hint="list `actions` in the case's input, or in the agent's options",
            )
        chosen = Random(request.seed).choice(actions)  # noqa: S311 (chance, not secrecy)
        with span("choose", input=actions, output=chosen):
            return as_reply(chosen)


# -- scripted ------------------------------------------------------------------------------------


class ScriptedAgentConfig(AgentConfig):
    """Answers what was written down: by case, or in order of the trial's number."""

    kind: Literal["scripted"] = "scripted"
    replies: list[Any] | None = Field(default=None, min_length=1)
    """The answer of the first trial of a case, of the second, …"""
    cases: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Case id → its answer, or a list of answers for its first, second, … trial."""
    repeat: bool = True
    """Begin again when the answers run out; otherwise that is an error."""

    @model_validator(mode="after")
    def _something_to_say(self) -> ScriptedAgentConfig:
        if self.replies is None and not self.cases:
            raise ValueError("a scripted agent needs `replies` or `cases`")
        empty = [case for case, said in self.cases.items() if said == []]
        if empty:
            raise ValueError(f"no answer is written for case {empty[0]!r}")
        return self

    def create(self) -> Agent:
        """A reader of the script."""
        return ScriptedAgent(self)


class ScriptedAgent:
    """A known course. Which answer a trial gets depends on its number alone, not on its turn."""

    def __init__(self, config: ScriptedAgentConfig) -> None:
        self._config = config

    async def run(self, request: AgentRequest) -> AgentReply:
        """The answer written for this case and trial."""
        config = self._config
        written = config.cases.get(request.case, config.replies)
        if written is None:
            raise AgentError(
                f"no answer is written for case {request.case!r}", hint="add it under `cases`"
            )
        answers: list[Any] = cast("list[Any]", written) if isinstance(written, list) else [written]
        if request.index >= len(answers) and not config.repeat:
            raise AgentError(
                f"only {len(answers)} answers are written for case {request.case!r}, "
                f"and this is trial {request.index + 1}"
            )
        return as_reply(answers[request.index % len(answers)])


# -- human ---------------------------------------------------------------------------------------


class HumanAgentConfig(AgentConfig):
    """Asks the person at the terminal."""

    kind: Literal["human"] = "human"

    def create(self) -> Agent:
        """The person at the terminal."""
        return HumanAgent()


class HumanAgent:
    """A person, asked one question at a time however many trials run at once."""

    async def run(self, request: AgentRequest) -> AgentReply:
        """Show the input, read the answer."""
        return as_reply(await threads.shared.run(ask_person, request))


def ask_person(request: AgentRequest) -> Any:
    """Ask on the terminal, or on standard input and error where there is none."""
    with _one_at_a_time, ExitStack() as files:
        try:
            read = files.enter_context(_TERMINAL.open(encoding="utf-8", errors="replace"))
            write = files.enter_context(_TERMINAL.open("w", encoding="utf-8"))
        except OSError:
            read, write = sys.stdin, sys.stderr
        return converse(request, read, write)


def converse(request: AgentRequest, read: TextIO, write: TextIO) -> Any:
    """The person's answer: one of the actions, by number or in words, or free text."""
    actions = actions_of(request.input)
    write.write(f"\n── case {_safe(request.case)}, trial {request.index + 1} ──\n")
    write.write(_safe(_question(request.input), keep="\n\t") + "\n")
    for number, action in enumerate(actions or (), start=1):
        write.write(f"  {number}) {_safe(_words(action))}\n")
    prompt = "number or answer" if actions else "answer"
    while True:
        write.write(f"{prompt} (/quit to stop): ")
        write.flush()
        line = read.readline()
        if not line or line.strip() in QUIT_WORDS:
            raise AgentError(
                "the person left without an answer" if line else "nobody is there to answer",
                hint=None
                if line
                else "run it at a terminal, or give the answers on standard input",
            )
        said = line.strip()
        if actions is None:
            return said
        chosen = _chosen(said, actions)
        if chosen is not None:
            return chosen[0]
        write.write(f"not one of the {len(actions)} actions\n")


def _chosen(said: str, actions: list[Any]) -> tuple[Any] | None:
    """The action meant: its own words first, since they may be numbers too, then its number."""
    for action in actions:
        if said == _words(action):
            return (action,)
    if said.isdecimal() and 1 <= int(said) <= len(actions):
        return (actions[int(said) - 1],)
    return None


def _question(value: Any) -> str:
    if isinstance(value, Mapping):
        shown: Any = {
            k: v for k, v in cast("Mapping[str, Any]", value).items() if k not in ACTION_KEYS
        }
        texts = list(shown.values())
        if len(texts) == 1 and isinstance(texts[0], str):
            return texts[0]
        return msgspec.json.format(msgspec.json.encode(shown, enc_hook=str), indent=2).decode()
    return _words(value)


def _words(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()


def _safe(text: str, keep: str = "") -> str:
    """Text from a suite, without what a terminal would obey."""
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)
