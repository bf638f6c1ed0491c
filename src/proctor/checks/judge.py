"""The LLM judge: an answer and a rubric in, a verdict with its reasons out.

Promise: a score is always some judge's own, read strictly; a judge that fails, for whatever
reason, gives an unscored verdict and never a number. Several votes and models cost several calls.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from proctor.checks._judge_prompt import (
    MAX_BLOCK_CHARS,
    PROMPT_VERSION,
    Graded,
    JudgeInput,
    Prompt,
    build_prompt,
    read_reply,
    repair_message,
)
from proctor.checks.rubrics import HIGHEST, LOWEST, Label, Rubric, label_of, rubric_from
from proctor.errors import ProctorError
from proctor.llm.cache import DiskCache, cache_folder, request_key
from proctor.llm.chat_model import (
    NOTHING,
    ChatModel,
    ChatReply,
    ChatRequest,
    ModelError,
    ModelErrorKind,
    ModelUse,
)
from proctor.llm.retry import RetryPolicy, complete_with_retries
from proctor.sanitize import valid_unicode
from proctor.trace import Message

__all__ = [
    "Judge",
    "JudgeInput",
    "JudgeSettings",
    "JudgeVerdict",
    "Label",
    "Rubric",
    "Vote",
]


# Judgements kept on disk by what was asked, so that the same question is paid for once.
#
# Failures are never kept.


FORMAT = 1


class CachedJudgement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One judgement on disk. Tokens and cost are those of when it was made."""

    format: int
    key: str
    scores: dict[str, int]
    rationale: str
    model: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class JudgeCache:
    """A folder of judgements, laid out as `DiskCache` draws it."""

    def __init__(self, folder: Path | str) -> None:
        self._kept = DiskCache(folder, CachedJudgement)
        self.folder = self._kept.folder

    def get(self, key: str) -> CachedJudgement | None:
        """The judgement of a question, or None when it is absent, unreadable or of old."""
        kept = self._kept.get(key)
        return kept if kept is not None and kept.format == FORMAT and kept.key == key else None

    def put(self, kept: CachedJudgement) -> None:
        """Keep a judgement."""
        self._kept.put(kept.key, kept)


def cache_key(identity: str, request: ChatRequest) -> str:
    """SHA-256 over everything a judgement depends on; the messages hold rubric and inputs."""
    return request_key(identity, request, PROMPT_VERSION)


def default_cache_folder() -> Path:
    """Where the command line keeps judgements: the user's cache folder."""
    return cache_folder("judge")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """How judges are asked.

    Votes differ by seed only; at temperature 0 a model that ignores seeds may repeat itself.
    A transient failure is asked again `retries` times, after at most `longest_wait` seconds.
    """

    votes: int = 1
    temperature: float = 0.0
    seed: int = 0
    max_tokens: int = 2048
    timeout: float = 120.0
    retries: int = 3
    longest_wait: float = 30.0
    max_chars: int = MAX_BLOCK_CHARS

    def __post_init__(self) -> None:
        if self.votes < 1:
            raise ProctorError(f"votes must be 1 or more, not {self.votes}", where="judge")
        if self.retries < 0 or self.longest_wait < 0:
            raise ProctorError("retries and waits cannot be negative", where="judge")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One judgement of one model: scores, or the reason why there are none."""

    model: str
    number: int
    scores: Mapping[str, int] | None = None
    rationale: str = ""
    problem: str | None = None
    transient: bool = False
    usage: ModelUse = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeVerdict:
    """What the judges say together. Unscored verdicts have a `reason` and no number.

    `score` is on 1..5 and may be broken when medians or weights make it so. `transient` says of
    an unscored verdict that asking again later may help.
    """

    rubric: str
    threshold: float
    score: float | None = None
    normalised: float | None = None
    label: Label | None = None
    rationale: str = ""
    reason: str | None = None
    transient: bool = False
    criteria: Mapping[str, float] = field(default_factory=dict[str, float])
    votes: tuple[Vote, ...] = ()
    usage: ModelUse = NOTHING
    shortened: tuple[str, ...] = ()

    @property
    def scored(self) -> bool:
        """Whether there is a score at all."""
        return self.score is not None

    @property
    def passed(self) -> bool | None:
        """Whether the threshold is reached; None when unscored."""
        return None if self.label is None else self.label == Label.PASS

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain values for JSON."""
        return msgspec.to_builtins(self)


class _Question(NamedTuple):
    """One answer as it is put to every model."""

    rubric: Rubric
    prompt: Prompt
    votes: int


class Judge:
    """Grades answers by a rubric, with one model or several.

    A model's score is the median of its votes, for each criterion; the verdict's is the median
    over models. When more than half of the models agree on a label, that is the verdict's label:
    labels are intervals of the scale, so the median lies where the majority is.
    """

    def __init__(
        self,
        models: ChatModel | Sequence[ChatModel],
        rubric: Rubric | str | Mapping[str, Any] | None = None,
        settings: JudgeSettings | None = None,
        *,
        cache: JudgeCache | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.models = [models] if isinstance(models, ChatModel) else list(models)
        if not self.models:
            raise ProctorError("a judge needs at least one model", where="judge")
        self.rubric = None if rubric is None else rubric_from(rubric)
        self.settings = settings or JudgeSettings()
        self.cache = cache
        self._sleep = sleep
        # Only spreads retries in time; no result depends on it.
        self._rng = rng or random.Random()  # noqa: S311 (no secret)

    def with_models(self, models: ChatModel | Sequence[ChatModel]) -> Judge:
        """The same judge with other models."""
        return Judge(
            models, self.rubric, self.settings, cache=self.cache, sleep=self._sleep, rng=self._rng
        )

    async def judge(
        self,
        judged: JudgeInput,
        rubric: Rubric | str | Mapping[str, Any] | None = None,
        *,
        votes: int | None = None,
    ) -> JudgeVerdict:
        """The verdict on one answer, by this rubric or else the judge's own."""
        chosen = self.rubric if rubric is None else rubric_from(rubric)
        if chosen is None:
            raise ProctorError("a judge needs a rubric to judge by", where="judge")
        missing = judged.missing(chosen.needs)
        if missing:
            reason = f"the rubric needs what was not given: {', '.join(missing)}"
            return JudgeVerdict(rubric=chosen.name, threshold=chosen.threshold, reason=reason)
        prompt = build_prompt(chosen, judged, self.settings.max_chars)
        question = _Question(chosen, prompt, self.settings.votes if votes is None else votes)
        panels = await asyncio.gather(*(self._panel(model, question) for model in self.models))
        return _together(panels, question)

    # -- asking ---------------------------------------------------------------------------

    async def _panel(self, model: ChatModel, question: _Question) -> list[Vote]:
        """One model's votes, one after the other, to go easy on its rate limit."""
        return [await self._vote(model, question, n) for n in range(question.votes)]

    async def _vote(self, model: ChatModel, question: _Question, number: int) -> Vote:
        request = ChatRequest(
            messages=question.prompt.messages,
            schema=question.prompt.schema,
            temperature=self.settings.temperature,
            max_tokens=self.settings.max_tokens,
            seed=self.settings.seed + number,
            timeout=self.settings.timeout,
        )
        key = cache_key(model.identity, request)
        if self.cache is not None and (kept := self.cache.get(key)) is not None:
            return Vote(
                model=model.name,
                number=number,
                scores=kept.scores,
                rationale=kept.rationale,
                usage=ModelUse(cached=1),
            )
        replies: list[ChatReply] = []
        try:
            graded = await self._graded(model, request, question.rubric, replies)
        except ModelError as error:
            return Vote(
                model=model.name,
                number=number,
                problem=f"{error.kind.value}: {error.message}",
                transient=error.transient,
                usage=ModelUse.of(replies),
            )
        if self.cache is not None:
            self.cache.put(_kept(key, graded, model.name, ModelUse.of(replies)))
        return Vote(
            model=model.name,
            number=number,
            scores=graded.scores,
            rationale=graded.rationale,
            usage=ModelUse.of(replies),
        )

    async def _graded(
        self, model: ChatModel, request: ChatRequest, rubric: Rubric, replies: list[ChatReply]
    ) -> Graded:
        """Ask, and once more when the reply cannot be read. Every reply is noted, for its cost."""
        reply = await self._asked(model, request)
        replies.append(reply)
        try:
            return read_reply(reply.text, rubric)
        except ValueError as error:
            problem = f"{error}; cut off at the token limit" if _cut(reply) else str(error)
        messages = (
            *request.messages,
            Message("assistant", valid_unicode(reply.text) or "(nothing)"),
            repair_message(rubric, problem),
        )
        reply = await self._asked(model, msgspec.structs.replace(request, messages=messages))
        replies.append(reply)
        try:
            return read_reply(reply.text, rubric)
        except ValueError as error:
            raise ModelError(
                f"no verdict in the reply, nor in its repair: {error}",
                kind=ModelErrorKind.BAD_REPLY,
                model=model.name,
            ) from error

    async def _asked(self, model: ChatModel, request: ChatRequest) -> ChatReply:
        settings = self.settings
        patience = RetryPolicy(settings.retries, settings.longest_wait, self._sleep, self._rng)
        return await complete_with_retries(model, request, patience)


# -- deciding -------------------------------------------------------------------------------


def _together(panels: Sequence[list[Vote]], question: _Question) -> JudgeVerdict:
    """What all the votes make together; unscored unless more than half of the models have one."""
    rubric, shortened = question.rubric, question.prompt.shortened
    votes = tuple(vote for panel in panels for vote in panel)
    opinions = [found for panel in panels if (found := _opinion(panel, rubric)) is not None]
    usage = sum((vote.usage for vote in votes), NOTHING)
    if 2 * len(opinions) <= len(panels):
        return JudgeVerdict(
            rubric=rubric.name,
            threshold=rubric.threshold,
            reason=_why(votes),
            transient=any(vote.transient for vote in votes),
            votes=votes,
            usage=usage,
            shortened=shortened,
        )
    criteria = {
        part.name: float(median(opinion[part.name] for opinion in opinions))
        for part in rubric.parts
    }
    value = float(median(rubric.weighted(opinion) for opinion in opinions))
    # The vote that speaks for the verdict is the earliest with the nearest score.
    nearest = min(
        (vote for vote in votes if vote.scores is not None),
        key=lambda vote: abs(rubric.weighted(vote.scores or {}) - value),
    )
    return JudgeVerdict(
        rubric=rubric.name,
        threshold=rubric.threshold,
        score=LOWEST + value * (HIGHEST - LOWEST),
        normalised=value,
        label=label_of(value, rubric.threshold),
        rationale=nearest.rationale,
        criteria=criteria if rubric.criteria else {},
        votes=votes,
        usage=usage,
        shortened=shortened,
    )


def _opinion(panel: list[Vote], rubric: Rubric) -> dict[str, float] | None:
    """One model's median for each criterion; None when half its votes or more failed."""
    scored = [vote.scores for vote in panel if vote.scores is not None]
    if 2 * len(scored) <= len(panel):
        return None
    return {
        part.name: float(median(scores[part.name] for scores in scored)) for part in rubric.parts
    }


def _why(votes: Sequence[Vote]) -> str:
    problems = dict.fromkeys(f"{v.model}: {v.problem}" for v in votes if v.problem is not None)
    failed = sum(vote.problem is not None for vote in votes)
    return f"{failed} of {len(votes)} judgements failed; {'; '.join(problems)}"


def _cut(reply: ChatReply) -> bool:
    return reply.finish_reason in ("length", "max_tokens")


def _kept(key: str, graded: Graded, model: str, usage: ModelUse) -> CachedJudgement:
    return CachedJudgement(
        format=FORMAT,
        key=key,
        scores=dict(graded.scores),
        rationale=graded.rationale,
        model=model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=usage.cost_usd,
    )
