"""Simulated users: a script of states without a model, or a model that plays a person.

    user:
      goal: get a refund for the order           # a model plays the user …
      knows: {order: W-1001, email: ada@example.org}
      model: openai:gpt-5-mini
    user:
      script:                                    # … or states and transitions
        start: {say: "I want a refund.", next: [{when: order number, to: number}]}
        number: {say: "It is {order}.", end: true}

Promise: a user sees only what a person would: its own facts and the agent's answers. A script is
the same in every trial. What a model gets wrong is found by `fidelity.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import ConfigDict, Field, field_validator, model_validator

from proctor.agents.registry import agent_config
from proctor.checks.base import Names
from proctor.errors import did_you_mean
from proctor.llm.chat_model import ChatModel, ChatReply, ChatRequest
from proctor.llm.providers import is_model_name
from proctor.strict import Strict
from proctor.trace import Message

DEFAULT_MAX_TURNS = 20
"""Turns after which a conversation ends: more than a support desk needs for one matter."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")

STOP = "###STOP###"
"""What a model writes when the user has nothing more to say."""


def check_patterns(patterns: Mapping[str, str]) -> dict[str, str]:
    """Raise ValueError for a text, by its name, that is not a regular expression."""
    for name, pattern in patterns.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{name}: not a regular expression: {error}") from None
    return dict(patterns)


def check_placeholders(texts: Iterable[str], known: Collection[str]) -> None:
    """Raise ValueError for a misspelt `{name}`, which the agent would read as it is."""
    for text in texts:
        for name in _PLACEHOLDER.findall(text):
            if name not in known and (hint := did_you_mean(name, known)):
                raise ValueError(f"no value is called {name!r} ({hint})")


class Transition(Strict):
    """Where a scripted user goes after an answer."""

    to: str = Field(min_length=1)
    when: str | None = None
    """Regular expression that the answer must contain; without it the transition always fits."""

    @field_validator("when")
    @classmethod
    def _is_pattern(cls, value: str | None) -> str | None:
        check_patterns({"when": value or ""})
        return value


class UserStep(Strict):
    """A state of a scripted user: what it says, and where it goes after the answer."""

    say: str = Field(min_length=1)
    """The message; `{name}` is replaced by a fact or a saved value."""
    next: tuple[Transition, ...] = ()
    """The first transition that fits is taken; if none does, the user leaves."""
    save: dict[str, str] = Field(default_factory=dict[str, str])
    """Name → regular expression: the first group (or the match) in the answer is saved."""
    end: bool = False
    """Whether the user leaves after the answer."""

    @field_validator("save")
    @classmethod
    def _are_patterns(cls, value: dict[str, str]) -> dict[str, str]:
        return check_patterns(value)


class SimulatedUser(Strict):
    """The person who talks to the agent."""

    model_config = ConfigDict(protected_namespaces=())

    persona: str = ""
    """Who the user is and how they talk."""
    goal: str = ""
    """What the user wants."""
    knows: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Facts the user may state when asked."""
    does_not_know: Names | dict[str, Any] = ()
    """Facts the user must not state: their names or, by name, the values."""
    opening: str | None = None
    """The first message; a model makes one from the goal by default."""
    stop: Names = ()
    """Regular expressions: once an answer contains one of them, the goal is reached."""
    max_turns: Annotated[int, Field(ge=1, le=1000)] = DEFAULT_MAX_TURNS
    """Turns after which the conversation ends."""
    script: dict[str, UserStep] | None = Field(default=None, min_length=1)
    """States by name; the first one begins."""
    model: str | None = None
    """Model that plays the user: PROVIDER:MODEL, or local:smollm2."""
    base_url: str | None = None
    """Endpoint compatible with OpenAI chat completions."""
    api_key_env: str | None = None
    """Environment variable with the key of `base_url`."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.7
    """Variety of the model's messages."""

    @model_validator(mode="after")
    def _one_kind(self) -> SimulatedUser:
        if (self.script is None) == (self.model is None):
            raise ValueError("a user has either a `script` or a `model`")
        if self.model is not None:
            if not is_model_name(self.model):
                raise ValueError(f"{self.model!r} is not a model name; write PROVIDER:MODEL")
            if not self.goal:
                raise ValueError("a user played by a model needs a `goal`")
        for name, step in (self.script or {}).items():
            for transition in step.next:
                if transition.to not in (self.script or {}):
                    raise ValueError(f"{name}: there is no state {transition.to!r}")
        steps = list((self.script or {}).values())
        known = {*self.knows, *(name for step in steps for name in step.save)}
        check_placeholders([self.opening or "", *(step.say for step in steps)], known)
        check_patterns({f"`stop` {pattern!r}": pattern for pattern in self.stop})
        return self

    def reached(self, answer: str) -> bool:
        """Return whether an answer fulfils the goal, as far as `stop` says."""
        return any(re.search(pattern, answer, re.IGNORECASE) for pattern in self.stop)

    def chat_model(self) -> ChatModel:
        """Return the model that plays the user."""
        options = {"model": self.model, "base_url": self.base_url, "api_key_env": self.api_key_env}
        given = {key: value for key, value in options.items() if value is not None}
        # The chat agent also knows local models.
        agent: Any = agent_config({"kind": "chat", **given})
        return agent.chat_model(self.model)


class UserMessage(NamedTuple):
    """What a user says next; `text` is None when the user has left."""

    text: str | None
    ended: str = ""
    """Why the user left."""
    tokens: int = 0
    """Tokens of the model that played the user."""


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Return a text with `{name}` replaced; other braces stay as they are."""
    return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), text)


def extract(patterns: Mapping[str, str], answer: str) -> dict[str, str]:
    """Return the saved values of an answer: the first group of each pattern, or its match."""
    found: dict[str, str] = {}
    for name, pattern in patterns.items():
        match = re.search(pattern, answer, re.IGNORECASE)
        if match is not None:
            # A group that took no part ("(on )?(.*)") leaves the match.
            found[name] = match[0] if not match.re.groups or match[1] is None else match[1]
    return found


class ScriptedUser:
    """Follows the states of a script."""

    def __init__(self, user: SimulatedUser) -> None:
        assert user.script is not None
        self._script = user.script
        self._user = user
        self._values = {name: str(value) for name, value in user.knows.items()}
        self._here: str | None = None

    async def next(self, history: Sequence[Mapping[str, str]]) -> UserMessage:
        """Return the message of the next state."""
        if self._here is None:
            self._here = next(iter(self._script))
        else:
            step, answer = self._script[self._here], history[-1]["content"]
            self._values |= extract(step.save, answer)
            if step.end or self._user.reached(answer):
                return UserMessage(None, "the script ended")
            fitting = (
                each.to
                for each in step.next
                if each.when is None or re.search(each.when, answer, re.IGNORECASE)
            )
            self._here = next(fitting, None)
            if self._here is None:
                return UserMessage(None, "no transition fits the answer")
        return UserMessage(fill(self._script[self._here].say, self._values))


INSTRUCTIONS = """You are a person who talks to an assistant. You are NOT the assistant.
{persona}
Your goal: {goal}

Facts you know, and may state when they are needed:
{knows}

You do not know: {unknown}. Never state them and never invent any other fact, name, number or date;
say that you do not know.

Write one short message at a time, in your own words, as this person. Give one fact at a time. Never
offer help, never describe actions of the assistant as your own, never repeat a message.
When your goal is reached, or the assistant has clearly said that it cannot be reached, write only
{stop}"""


class ModelUser:
    """A model that plays the user."""

    def __init__(self, user: SimulatedUser, model: ChatModel, seed: int) -> None:
        self._user, self._model, self._seed = user, model, seed
        self._calls = 0
        unknown = user.does_not_know
        self._system = INSTRUCTIONS.format(
            persona=user.persona,
            goal=user.goal,
            knows="\n".join(f"- {name}: {value}" for name, value in user.knows.items()) or "- none",
            unknown=", ".join(unknown) or "anything else",
            stop=STOP,
        )

    async def next(self, history: Sequence[Mapping[str, str]], remark: str = "") -> UserMessage:
        """Return the model's message; `remark` says what was wrong with its last attempt."""
        if not history and self._user.opening:
            return UserMessage(fill(self._user.opening, self._user.knows))
        if history and self._user.reached(history[-1]["content"]):
            return UserMessage(None, "the goal is reached")
        # The user's messages are the model's own: roles are exchanged.
        roles = {"user": "assistant", "assistant": "user"}
        messages = [Message("system", self._system)]
        if not history:
            messages.append(Message("user", "Hello, how can I help you?"))
        messages += [Message(roles[each["role"]], each["content"]) for each in history]
        if remark:
            messages.append(Message("system", f"Write another message: {remark}"))
        self._calls += 1
        reply = await self._model.complete(
            ChatRequest(
                messages=tuple(messages),
                temperature=self._user.temperature,
                max_tokens=300,
                seed=self._seed + self._calls,
            )
        )
        text, tokens = reply.text.strip(), _tokens(reply)
        if STOP in text:
            return UserMessage(None, "the user stopped", tokens)
        return UserMessage(text, tokens=tokens)

    async def approve(self, tool: str, arguments: Mapping[str, Any]) -> UserMessage:
        """Return what the user says to a tool call that needs approval."""
        self._calls += 1
        facts = ", ".join(f"{name} {value}" for name, value in self._user.knows.items())
        asked = APPROVE.format(
            goal=self._user.goal, facts=facts or "nothing", tool=tool, arguments=dict(arguments)
        )
        request = ChatRequest(
            messages=(Message("user", asked),),
            temperature=0.0,
            max_tokens=20,
            seed=self._seed + self._calls,
        )
        reply = await self._model.complete(request)
        return UserMessage(reply.text.strip(), tokens=_tokens(reply))


APPROVE = """The facts of a user: {facts}.
The user wants this: {goal}.
The assistant is about to do this: {tool} {arguments}.
Is it what the user wants? Answer with one word, yes or no."""


def _tokens(reply: ChatReply) -> int:
    return (reply.usage.input_tokens or 0) + (reply.usage.output_tokens or 0)


def said_yes(text: str) -> bool | None:
    """Return whether an answer begins with yes or no; None if it says neither, or both."""
    found = {word.lower() for word in re.findall(r"\b(yes|no)\b", text[:80], re.IGNORECASE)}
    return "yes" in found if len(found) == 1 else None
