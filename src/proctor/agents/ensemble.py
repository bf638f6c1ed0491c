"""Combine several agents into one: a majority or a judge selects the answer.

Guarantees: members are new for each trial, play whole episodes, see the ensemble's input (never
each other's answers) and have their own seeds and folders. A tie goes to the member listed first. A
member that fails or gives an invalid action abstains, which is recorded; below the quorum the trial
is an infrastructure error. A transient failure fails the whole trial, which is then retried: a vote
without a rate-limited member would be a different ensemble.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, NamedTuple, cast

import msgspec
from pydantic import BeforeValidator, Field, model_validator

from proctor.agents.actions import ActionTurn, BadAction, understand
from proctor.agents.base import (
    AGENT_ERROR,
    Agent,
    AgentConfig,
    AgentError,
    AgentReply,
    AgentRequest,
    adopt_spans,
    as_reply,
    category_of,
)
from proctor.agents.registry import resolve_agent
from proctor.llm.retry import transient
from proctor.seeds import derive_seed
from proctor.trace import SpanKind
from proctor.trace.capture import span
from proctor.trace.model import EVERYTHING, Observable

# More members are probably a mistake: each one is called at every step.
MOST_MEMBERS = 99

HOW_TO_JUDGE = "Answer with the number of the best candidate and nothing else."

_NUMBER = re.compile(r"\d+")


def _members(value: Any) -> Any:
    """A list of names, or a mapping of names to agents."""
    if not isinstance(value, list | tuple):
        return value
    names = [str(name) for name in cast("Sequence[Any]", value)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(
            f"the member {twice!r} is listed twice; write a mapping of names to agents"
        )
    return {name: name for name in names}


class EnsembleAgentConfig(AgentConfig):
    """Call several agents and answer with the majority's or a judge's choice."""

    kind: Literal["ensemble"] = "ensemble"
    members: Annotated[
        dict[str, Any], Field(min_length=2, max_length=MOST_MEMBERS), BeforeValidator(_members)
    ]
    """Agent names, or a mapping of names to agents; ties go to the first."""
    vote: Literal["majority", "judge"] = "majority"
    """Voting rule."""
    judge: Any = None
    """With `vote: judge`, an agent of any kind: it gets the question and the candidates, shuffled
    for each question and without names, and answers with a number.
    """
    quorum: int | None = Field(default=None, ge=1)
    """Minimum number of members that must answer; default: more than half."""
    base_dir: Path | None = Field(default=None, exclude=True)
    """Base folder of import paths of members: the suite's folder."""

    @model_validator(mode="after")
    def _check_options(self) -> EnsembleAgentConfig:
        if (self.vote == "judge") is (self.judge is None):
            raise ValueError("`vote: judge` and `judge` must be given together")
        if self.quorum is not None and self.quorum > len(self.members):
            raise ValueError(f"a quorum of {self.quorum} needs more than {len(self.members)}")
        return self

    @property
    def needed(self) -> int:
        """Return the minimum number of members that must answer."""
        return self.quorum or len(self.members) // 2 + 1

    @cached_property
    def configs(self) -> dict[str, AgentConfig]:
        """Return the members, resolved once."""
        return {name: self._resolve(ref) for name, ref in self.members.items()}

    @cached_property
    def judge_config(self) -> AgentConfig | None:
        """Return the judge, resolved once."""
        return None if self.judge is None else self._resolve(self.judge)

    def _resolve(self, ref: Any) -> AgentConfig:
        return resolve_agent(ref, base_dir=self.base_dir)

    @property
    def observes(self) -> tuple[Observable, ...]:
        """Return what is declared, and what is recorded of every member."""
        members = [set(config.observes) for config in self.configs.values()]
        return (*self.observed, *set(EVERYTHING).intersection(*members))

    def create(self) -> Agent:
        """Create an ensemble with new members."""
        judge = self.judge_config
        return EnsembleAgent(
            {name: config.create() for name, config in self.configs.items()},
            needed=self.needed,
            judge=None if judge is None else judge.create(),
        )

    def check(self) -> None:
        """Raise if a member or the judge cannot be used."""
        for config in (*self.configs.values(), self.judge_config):
            if config is not None:
                config.check()

    def version(self) -> dict[str, Any]:
        """Return what identifies each member, and the judge."""
        judge = self.judge_config
        members = {name: config.version() for name, config in self.configs.items()}
        return {"members": members, **({} if judge is None else {"judge": judge.version()})}


class _Vote(NamedTuple):
    """Reply of a member, and its vote: equal keys are one opinion."""

    member: str
    reply: AgentReply
    key: str


class EnsembleAgent:
    """An ensemble, used for one trial."""

    def __init__(
        self, members: Mapping[str, Agent], *, needed: int, judge: Agent | None = None
    ) -> None:
        self._members = members
        self._needed = needed
        self._judge = judge
        self.looks = any(getattr(member, "looks", False) for member in members.values())

    def set_truth(self, truth: Mapping[str, Any]) -> None:
        """Pass the truth on to members that may use it (scripts)."""
        for member in self._members.values():
            if (set_truth := getattr(member, "set_truth", None)) is not None:
                set_truth(truth)

    async def ended(self, outcome: Any) -> None:
        """End the episode of the members as well."""
        for member in self._members.values():
            if (ended := getattr(member, "ended", None)) is not None:
                await ended(outcome)

    async def run(self, request: AgentRequest) -> AgentReply:
        """Call all members concurrently, then decide."""
        calls = [self._call(name, member, request) for name, member in self._members.items()]
        results = await asyncio.gather(*calls, return_exceptions=True)
        cast_votes: list[_Vote] = []
        unusable: list[AgentReply] = []
        problems, faults = list[str](), list[str]()
        for name, each in zip(self._members, results, strict=True):
            if isinstance(each, BaseException):
                if not isinstance(each, Exception) or transient(each) is not None:
                    raise each  # a retry of the trial asks this member again
                problems.append(f"{name}: {each}")
                faults.append(category_of(each))
            elif (key := _key(each, request)) is None:
                unusable.append(each)
            else:
                cast_votes.append(_Vote(name, each, key))
        if not cast_votes and unusable:
            return _without_trace(unusable[0])  # the world reports what is wrong with it
        if len(cast_votes) + len(unusable) < self._needed:
            raise AgentError(
                f"only {len(cast_votes)} of {len(self._members)} members answered, "
                f"{self._needed} are needed: {'; '.join(problems)}",
                # A member that infrastructure kept from answering might have had the right answer.
                category=min(faults, default=AGENT_ERROR),
            )
        return await self._decide(cast_votes, request)

    async def _call(self, name: str, member: Agent, request: AgentRequest) -> AgentReply:
        with span(f"member {name}", kind=SpanKind.AGENT, input=_question(request)) as step:
            reply = await member.run(_member_request(request, name))
            step.output = reply.answer
            adopt_spans(reply.trace, step)
            return reply

    async def _decide(self, cast_votes: Sequence[_Vote], request: AgentRequest) -> AgentReply:
        by_key: dict[str, list[_Vote]] = {}
        for each in cast_votes:
            by_key.setdefault(each.key, []).append(each)
        groups = list(by_key.values())
        votes = {group[0].reply.answer: [each.member for each in group] for group in groups}
        with span("vote", input=votes) as step:
            if self._judge is None or len(groups) == 1:
                # The first of the largest: groups are in the order of their first member.
                chosen = max(groups, key=len)[0].reply
            else:
                firsts = [group[0].reply for group in groups]
                chosen = await self._judged(self._judge, firsts, request)
            step.output = chosen.answer
        reply = _without_trace(chosen)
        reply.metadata = {**chosen.metadata, "votes": votes}
        return reply

    async def _judged(
        self, judge: Agent, candidates: list[AgentReply], request: AgentRequest
    ) -> AgentReply:
        step = request.step if isinstance(request, ActionTurn) else 0
        # Model judges prefer the first candidate; shuffling per question evens that out.
        Random(f"{request.seed}/{step}/judge").shuffle(candidates)  # noqa: S311 (not secrecy)
        question = _Member(request, "judge", input={
            "question": _question(request),
            "candidates": [
                {"number": number, "answer": each.answer if each.output is None else each.output}
                for number, each in enumerate(candidates, 1)
            ],
            "how": HOW_TO_JUDGE,
        })  # fmt: skip
        with span("judge", kind=SpanKind.AGENT, input=question.input) as record:
            reply = await judge.run(question)
            record.output = reply.answer
            adopt_spans(reply.trace, record)
        numbers = [int(text) for text in _NUMBER.findall(reply.answer)[:1]]
        if not numbers or not 1 <= numbers[0] <= len(candidates):
            raise AgentError(
                f"the judge of the ensemble chose none of {len(candidates)} candidates: "
                f"{reply.answer[:200]!r}"
            )
        return candidates[numbers[0] - 1]


# -- members -------------------------------------------------------------------------------------


class _Member(AgentRequest):
    """Request for one member: its own seed, and a directory inside the trial's."""

    def __init__(self, whole: AgentRequest, name: str, input: Any) -> None:  # noqa: A002 (the word of the interface)
        own: dict[str, Any] = {
            "trial": f"{whole.trial}/{name}",
            # Two members of one kind must not be one member with two votes.
            "seed": derive_seed(whole.seed, name),
            # A copy: a member must not change the params of the others.
            "params": dict(whole.params),
        }
        super().__init__(input, **{**whole.trial_fields(), **own})
        self._whole = whole
        self._name = name
        self.workspace, self.sandbox = whole.workspace, whole.sandbox
        self.prices, self.ledger = whole.prices, whole.ledger

    @property
    def workdir(self) -> Path:
        """Return a directory inside the trial's, created on first use."""
        # Member names come from the user, and may contain a slash.
        own = self._whole.workdir / sha256(self._name.encode()).hexdigest()[:12]
        own.mkdir(exist_ok=True)
        return own


def _member_request(request: AgentRequest, name: str) -> AgentRequest:
    if not isinstance(request, ActionTurn):
        return _Member(request, name, request.input)
    turn = ActionTurn(
        _Member(request, name, request.task),
        observation=request.observation,
        actions=request.actions,
        step=request.step,
        max_steps=request.max_steps,
        last=request.last,
        history=request.history,
    )
    turn.picture = request.picture
    return turn


def _key(reply: AgentReply, request: AgentRequest) -> str | None:
    """Return the vote of a reply: its action, its value or its text; None for no vote.

    Case and white space of a text are ignored.
    """
    value = reply.answer if reply.output is None else reply.output
    if isinstance(request, ActionTurn):
        try:
            value = understand(value, request.actions)
        except BadAction:
            return None
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    return msgspec.json.encode(value, enc_hook=str, order="sorted").decode()


def _without_trace(reply: AgentReply) -> AgentReply:
    """Return a reply without its trace, which is already among the ensemble's spans."""
    return as_reply(msgspec.structs.replace(reply, trace=None))


def _question(request: AgentRequest) -> Any:
    if not isinstance(request, ActionTurn):
        return request.input
    return {"task": request.task, "observation": request.observation, "step": request.step}
