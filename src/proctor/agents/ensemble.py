"""Several agents as one: each is asked, and a majority or a judge decides what is said.

Promise: members are fresh for each trial, play whole episodes, see what the ensemble sees (never
each other) and have seeds and folders of their own. A tie goes to the member written first. A
member that fails, or says what is no valid action, abstains and is recorded as such; below the
quorum the trial could not be run. A failure that may pass fails the trial, which is tried again:
a vote without somebody who was merely rate-limited would be another ensemble.
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
from proctor.agents.base import Agent, AgentConfig, AgentError, AgentReply, AgentRequest, as_reply
from proctor.agents.registry import resolve_agent
from proctor.llm.retry import transient
from proctor.seeds import derive_seed
from proctor.trace import Span, SpanKind, Trace
from proctor.trace.capture import current_trace, span

MOST_MEMBERS = 99
"""More is a slip: each is asked at every step."""

HOW_TO_JUDGE = "Answer with the number of the best candidate and nothing else."

_NUMBER = re.compile(r"\d+")


def _members(value: Any) -> Any:
    """A list of names, or a mapping of names to agents."""
    if not isinstance(value, list | tuple):
        return value
    names = [str(name) for name in cast("Sequence[Any]", value)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"the member {twice!r} is there twice; write a mapping of names to agents")
    return {name: name for name in names}


class EnsembleAgentConfig(AgentConfig):
    """Asks several agents and says what most of them, or a judge, prefer."""

    kind: Literal["ensemble"] = "ensemble"
    members: Annotated[
        dict[str, Any], Field(min_length=2, max_length=MOST_MEMBERS), BeforeValidator(_members)
    ]
    """Names of agents, or a mapping of names to agents; ties go to the first."""
    vote: Literal["majority", "judge"] = "majority"
    """Who decides."""
    judge: Any = None
    """With `vote: judge`, an agent of any kind: it is given the question and the candidates, in an
    order drawn for each question and without names, and answers with a number."""
    quorum: int | None = Field(default=None, ge=1)
    """Members that must say something; more than half when absent."""
    base_dir: Path | None = Field(default=None, exclude=True)
    """Where import paths of members start from; the suite's folder."""

    @model_validator(mode="after")
    def _makes_sense(self) -> EnsembleAgentConfig:
        if (self.vote == "judge") is (self.judge is None):
            raise ValueError("`vote: judge` and `judge` go together")
        if self.quorum is not None and self.quorum > len(self.members):
            raise ValueError(f"a quorum of {self.quorum} needs more than {len(self.members)}")
        return self

    @property
    def needed(self) -> int:
        """How many members must say something."""
        return self.quorum or len(self.members) // 2 + 1

    @cached_property
    def configs(self) -> dict[str, AgentConfig]:
        """The members, found once."""
        return {name: self._found(ref) for name, ref in self.members.items()}

    @cached_property
    def judge_config(self) -> AgentConfig | None:
        """The judge, found once."""
        return None if self.judge is None else self._found(self.judge)

    def _found(self, ref: Any) -> AgentConfig:
        return resolve_agent(ref, base_dir=self.base_dir)

    def create(self) -> Agent:
        """Fresh members."""
        judge = self.judge_config
        return EnsembleAgent(
            {name: config.create() for name, config in self.configs.items()},
            needed=self.needed,
            judge=None if judge is None else judge.create(),
        )

    def version(self) -> dict[str, Any]:
        """What identifies each member, and the judge."""
        judge = self.judge_config
        members = {name: config.version() for name, config in self.configs.items()}
        return {"members": members, **({} if judge is None else {"judge": judge.version()})}


class _Vote(NamedTuple):
    """What a member said, and what it counts as: equal keys are one opinion."""

    member: str
    reply: AgentReply
    key: str


class EnsembleAgent:
    """One instance, for one trial."""

    def __init__(
        self, members: Mapping[str, Agent], *, needed: int, judge: Agent | None = None
    ) -> None:
        self._members = members
        self._needed = needed
        self._judge = judge
        self.looks = any(getattr(member, "looks", False) for member in members.values())

    def told(self, truth: Mapping[str, Any]) -> None:
        """Members that may know the truth (scripts) are told."""
        for member in self._members.values():
            if (told := getattr(member, "told", None)) is not None:
                told(truth)

    async def ended(self, outcome: Any) -> None:
        """The episode is over for the members as well."""
        for member in self._members.values():
            if (ended := getattr(member, "ended", None)) is not None:
                await ended(outcome)

    async def run(self, request: AgentRequest) -> AgentReply:
        """Ask all, at once, then decide."""
        asked = [self._ask(name, member, request) for name, member in self._members.items()]
        found = await asyncio.gather(*asked, return_exceptions=True)
        said: list[_Vote] = []
        unusable: list[AgentReply] = []
        problems: list[str] = []
        for name, each in zip(self._members, found, strict=True):
            if isinstance(each, BaseException):
                if not isinstance(each, Exception) or transient(each) is not None:
                    raise each
                problems.append(f"{name}: {each}")
            elif (key := _key(each, request)) is None:
                unusable.append(each)
            else:
                said.append(_Vote(name, each, key))
        if not said and unusable:
            return _plain(unusable[0])  # the world says what is wrong with it
        if len(said) + len(unusable) < self._needed:
            raise AgentError(
                f"only {len(said)} of {len(self._members)} members said anything, "
                f"{self._needed} are needed: {'; '.join(problems)}"
            )
        return await self._decided(said, request)

    async def _ask(self, name: str, member: Agent, request: AgentRequest) -> AgentReply:
        with span(f"member {name}", kind=SpanKind.AGENT, input=_shown(request)) as step:
            reply = await member.run(_own(request, name))
            step.output = reply.answer
            if reply.trace is not None:
                _file(reply.trace, step)
            return reply

    async def _decided(self, said: Sequence[_Vote], request: AgentRequest) -> AgentReply:
        by_key: dict[str, list[_Vote]] = {}
        for each in said:
            by_key.setdefault(each.key, []).append(each)
        groups = list(by_key.values())
        votes = {group[0].reply.answer: [each.member for each in group] for group in groups}
        with span("vote", input=votes) as step:
            if self._judge is None or len(groups) == 1:
                # The first of the largest: groups stand in the order of their first member.
                chosen = max(groups, key=len)[0].reply
            else:
                firsts = [group[0].reply for group in groups]
                chosen = await self._preferred(self._judge, firsts, request)
            step.output = chosen.answer
        reply = _plain(chosen)
        reply.metadata = {**chosen.metadata, "votes": votes}
        return reply

    async def _preferred(
        self, judge: Agent, candidates: list[AgentReply], request: AgentRequest
    ) -> AgentReply:
        step = request.step if isinstance(request, ActionTurn) else 0
        # Judges prefer what stands first; a draw of its own for each question evens that out.
        Random(f"{request.seed}/{step}/judge").shuffle(candidates)  # noqa: S311 (not secrecy)
        question = _Member(request, "judge", input={
            "question": _shown(request),
            "candidates": [
                {"number": number, "answer": each.answer if each.output is None else each.output}
                for number, each in enumerate(candidates, 1)
            ],
            "how": HOW_TO_JUDGE,
        })  # fmt: skip
        with span("judge", kind=SpanKind.AGENT, input=question.input) as record:
            reply = await judge.run(question)
            record.output = reply.answer
            if reply.trace is not None:
                _file(reply.trace, record)
        numbers = [int(text) for text in _NUMBER.findall(reply.answer)[:1]]
        if not numbers or not 1 <= numbers[0] <= len(candidates):
            raise AgentError(
                f"the judge of the ensemble chose none of {len(candidates)} candidates: "
                f"{reply.answer[:200]!r}"
            )
        return candidates[numbers[0] - 1]


# -- members -------------------------------------------------------------------------------------


class _Member(AgentRequest):
    """The request as one member gets it: a seed and a directory of its own inside the trial's."""

    __slots__ = ("_name", "_whole")

    def __init__(self, whole: AgentRequest, name: str, input: Any) -> None:  # noqa: A002 (the word of the interface)
        super().__init__(
            input,
            case=whole.case,
            trial=f"{whole.trial}/{name}",
            index=whole.index,
            # Two members of one kind must not be one member with two votes.
            seed=derive_seed(whole.seed, name),
            params=dict(whole.params),
            trace_id=whole.trace_id,
            timeout=whole.timeout,
        )
        self._whole = whole
        self._name = name

    @property
    def workdir(self) -> Path:
        """A directory inside the trial's, made on first use."""
        # Names are the user's, not an agent's; yet one may hold a slash.
        own = self._whole.workdir / sha256(self._name.encode()).hexdigest()[:12]
        own.mkdir(exist_ok=True)
        return own


def _own(request: AgentRequest, name: str) -> AgentRequest:
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
    """What a reply counts as: the action it means, the value it is, else its words; None: nothing.

    Case and white space of words do not make another opinion.
    """
    said = reply.answer if reply.output is None else reply.output
    if isinstance(request, ActionTurn):
        try:
            said = understand(said, request.actions)
        except BadAction:
            return None
    if isinstance(said, str):
        return " ".join(said.casefold().split())
    return msgspec.json.encode(said, enc_hook=str, order="sorted").decode()


def _plain(reply: AgentReply) -> AgentReply:
    """A reply without its trace: that stands among the ensemble's spans."""
    return as_reply(msgspec.structs.replace(reply, trace=None))


def _shown(request: AgentRequest) -> Any:
    if not isinstance(request, ActionTurn):
        return request.input
    return {"task": request.task, "observation": request.observation, "step": request.step}


def _file(trace: Trace, under: Span) -> None:
    """File the spans that a member brought under its own, so that they are counted and seen."""
    here = current_trace()
    if here is None:
        return
    for each in trace.spans:
        each.trace_id = here.trace_id
        each.parent_id = each.parent_id or under.span_id
        here.spans.append(each)
