"""Agents that need no model: `random`, `scripted` and `human`.

They set the scale: chance, a known course, and a person. A case tells what may be answered by
listing `actions` in its input, and a world at every step; `random` cannot do without them. All
three work on questions and in worlds.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from proctor.agents.actions import Actions, ActionTurn, BadAction, sample
from proctor.agents.base import Agent, AgentConfig, AgentError, AgentReply, AgentRequest, as_reply
from proctor.agents.human import SavedMoves, actions_of, ask_person, offer_to_go_on, tell_person
from proctor.background import threads
from proctor.imports import load_object
from proctor.trace.capture import current_trace, span

# -- random --------------------------------------------------------------------------------------


class RandomAgentConfig(AgentConfig):
    """Answers with one of the valid actions, each as likely as the others."""

    kind: Literal["random"] = "random"
    actions: list[Any] | dict[str, Any] | None = Field(default=None, min_length=1)
    """What to choose from where a case lists nothing."""

    def create(self) -> Agent:
        """A die of its own, thrown by the trial's seed."""
        return RandomAgent(self.actions)


class RandomAgent:
    """Chance. In a world each step has a draw of its own, from the trial's seed and the step."""

    def __init__(self, actions: Actions | None) -> None:
        self._actions = actions
        self._asked: tuple[int, int] = (-1, 0)

    async def run(self, request: AgentRequest) -> AgentReply:
        """One of the actions; the same for the same seed (and step)."""
        if isinstance(request, ActionTurn):
            return as_reply(self._drawn(request.actions, self._turn_random(request), request))
        actions = actions_of(request.input) or self._actions
        if actions is None:
            raise AgentError(
                f"case {request.case!r} does not say what may be answered",
                hint="list `actions` in the case's input, or in the agent's options",
            )
        chosen = self._drawn(actions, Random(request.seed), request)  # noqa: S311 (chance, not secrecy)
        with span("choose", input=actions, output=chosen):
            return as_reply(chosen)

    def _turn_random(self, turn: ActionTurn) -> Random:
        """A generator for this step; another when the world refused what was drawn before."""
        step, tries = self._asked
        self._asked = (turn.step, tries + 1 if turn.step == step else 0)
        # Text as seed: Python hashes it the same on every machine.
        return Random(f"{turn.seed}/{turn.step}/{self._asked[1]}")  # noqa: S311 (repeatable chance)

    def _drawn(self, actions: Actions, random: Random, request: AgentRequest) -> Any:
        try:
            return sample(actions, random)
        except (BadAction, KeyError, IndexError) as problem:
            raise AgentError(f"case {request.case!r}: actions: {problem}") from None


# -- scripted ------------------------------------------------------------------------------------


class ScriptedAgentConfig(AgentConfig):
    """Answers what was written down: by case, in order, or by a function.

    With none of it, it stands for the scenario's own solution.
    """

    kind: Literal["scripted"] = "scripted"
    replies: list[Any] | None = Field(default=None, min_length=1)
    """The answer of the first trial of a case, of the second, …"""
    cases: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Case id → its answer, or a list: answers by trial; in a world, actions by step."""
    actions: list[Any] | None = Field(default=None, min_length=1)
    """In worlds: the action of the first step, of the second, …"""
    script: str | None = Field(default=None, min_length=1)
    """`package.module:function`: a generator that yields actions and is sent each next turn, or
    a function called with each turn. It may take `truth`, and `options` by name."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further arguments of the script."""
    repeat: bool = True
    """Begin again when the answers run out; otherwise that is an error."""
    base_dir: Path | None = Field(default=None, exclude=True)
    """Where import paths start from; the suite's folder."""

    @model_validator(mode="after")
    def _makes_sense(self) -> ScriptedAgentConfig:
        empty = [case for case, said in self.cases.items() if said == []]
        if empty:
            raise ValueError(f"no answer is written for case {empty[0]!r}")
        if self.options and self.script is None:
            raise ValueError("`options` are a script's; there is no `script`")
        if self.script is not None and self.actions is not None:
            raise ValueError("`script` and `actions` both say what to do; give one of them")
        return self

    @property
    def unwritten(self) -> bool:
        """Whether it has nothing of its own to say: then a scenario's solution takes its place."""
        return not (self.replies or self.cases or self.actions or self.script)

    @cached_property
    def loaded(self) -> Any:
        """The script's function, imported once."""
        assert self.script is not None
        return load_object(self.script, self.base_dir)

    def create(self) -> Agent:
        """A reader of the script."""
        return ScriptedAgent(self)


class ScriptedAgent:
    """A known course. Which answer a trial gets depends on its number alone, not on its turn."""

    def __init__(self, config: ScriptedAgentConfig) -> None:
        self._config = config
        self._truth: Mapping[str, Any] = {}
        self._course: Generator[Any, Any, Any] | None = None

    @property
    def unwritten(self) -> bool:
        """Whether it stands for the scenario's own solution."""
        return self._config.unwritten

    def told(self, truth: Mapping[str, Any]) -> None:
        """The truth of the scenario: a reference course may know it. No other kind is told."""
        self._truth = truth

    async def run(self, request: AgentRequest) -> AgentReply:
        """The answer written for this case, trial and step."""
        config = self._config
        if request.case not in config.cases and config.script is not None:
            return as_reply(await threads.run(self._followed, request))
        if isinstance(request, ActionTurn):
            return as_reply(self._listed(_course(config, request), request.step, request, "step"))
        written = config.cases.get(request.case, config.replies)
        if written is None:
            raise _nothing_written(request)
        return as_reply(self._listed(_as_list(written), request.index, request, "trial"))

    def _listed(self, answers: list[Any], at: int, request: AgentRequest, word: str) -> Any:
        if at >= len(answers) and not self._config.repeat:
            raise AgentError(
                f"only {len(answers)} answers are written for case {request.case!r}, "
                f"and this is {word} {at + 1}"
            )
        return answers[at % len(answers)]

    def _followed(self, request: AgentRequest) -> Any:
        """What the script says next."""
        config = self._config
        if self._course is not None:
            try:
                return _sent(self._course, request)
            except StopIteration:
                raise _script_ended(config, request) from None
        function = config.loaded
        given = {"truth": self._truth} if "truth" in inspect.signature(function).parameters else {}
        value = function(request, **given, **config.options)
        if not inspect.isgenerator(value):
            return value
        self._course = cast("Generator[Any, Any, Any]", value)
        try:
            return next(self._course)
        except StopIteration:
            raise _script_ended(config, request) from None


def _sent(course: Generator[Any, Any, Any], request: AgentRequest) -> Any:
    """The course's next action; `yield from` a list takes nothing that is sent to it."""
    inner: Any = course
    while inspect.isgenerator(inner):
        inner = inner.gi_yieldfrom
    return course.send(request) if inner is None or hasattr(inner, "send") else next(course)


def _course(config: ScriptedAgentConfig, turn: ActionTurn) -> list[Any]:
    """The actions of an episode: the case's, those of all cases, or the reply of this trial."""
    written = config.cases.get(turn.case, config.actions)
    if written is None and config.replies is not None:
        written = config.replies[turn.index % len(config.replies)]
    if written is None:
        raise _nothing_written(turn)
    return _as_list(written)


def _as_list(written: Any) -> list[Any]:
    return cast("list[Any]", written) if isinstance(written, list) else [written]


def _nothing_written(request: AgentRequest) -> AgentError:
    return AgentError(
        f"no answer is written for case {request.case!r}",
        hint="add it under `cases`; without anything written, only scenarios with a `solution` "
        "of their own can be played",
    )


def _script_ended(config: ScriptedAgentConfig, request: AgentRequest) -> AgentError:
    step = f" at step {request.step}" if isinstance(request, ActionTurn) else ""
    return AgentError(f"the script {config.script} ended{step}, before the episode did")


# -- human ---------------------------------------------------------------------------------------


class HumanAgentConfig(AgentConfig):
    """Asks the person at the terminal."""

    kind: Literal["human"] = "human"
    keep_dir: Path | None = None
    """Where unfinished episodes are kept; `$XDG_STATE_HOME/proctor/human` unless given."""
    participant: str | None = Field(default=None, min_length=1, max_length=200)
    """Who that is, on record with the run and in each trace: a name or a code."""

    def create(self) -> Agent:
        """The person at the terminal."""
        return HumanAgent(self.keep_dir, self.participant)

    def version(self) -> dict[str, Any]:
        """Who answers: another person is another agent."""
        return {} if self.participant is None else {"participant": self.participant}


class HumanAgent:
    """A person, asked one question at a time however many trials run at once."""

    looks = True
    """People are shown what the world draws as text, where it draws."""

    def __init__(self, keep_dir: Path | None = None, participant: str | None = None) -> None:
        self._keep_dir = keep_dir
        self._participant = participant
        self._kept: SavedMoves | None = None

    async def run(self, request: AgentRequest) -> AgentReply:
        """Show the input, read the answer; in a world, go on where the person left."""
        if self._participant is not None and (trace := current_trace()) is not None:
            trace.metadata["participant"] = self._participant
        if not isinstance(request, ActionTurn):
            return as_reply(await threads.run(ask_person, request))
        if self._kept is None:
            self._kept = SavedMoves(self._keep_dir, request, self._participant)
            if self._kept.moves:
                await threads.run(offer_to_go_on, self._kept)
        before = self._kept.again(request) if request.error is None else None
        if before is not None:
            return as_reply(before.action)
        action = await threads.run(ask_person, request)
        self._kept.add(request, action)
        return as_reply(action)

    async def ended(self, outcome: Any) -> None:
        """The episode is over: nothing to come back to."""
        if self._kept is not None:
            self._kept.forget()
        score = "no score" if outcome.score is None else f"score {outcome.score:.3g}"
        words = f"── over after {outcome.steps} steps ({outcome.ended}): {score}"
        await threads.run(tell_person, f"{words}; {outcome.reason}".rstrip("; "))
