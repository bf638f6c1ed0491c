"""The LLM judge: an answer and a rubric in, a verdict with its reasons out.

Every score comes from a judge's own reply, parsed strictly. A judge that fails, for whatever
reason, gives an unscored verdict and never a number. Several votes and models cost several calls.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

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


FORMAT = 1
"""Version of cached judgements; another version is a miss."""


class CachedJudgement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One judgement on disk, with the tokens and cost of the call that made it."""

    format: int
    key: str
    scores: dict[str, int]
    rationale: str
    model: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class JudgeCache:
    """A folder of judgements by their inputs; failures are never cached."""

    def __init__(self, folder: Path | str) -> None:
        self._cache = DiskCache(folder, CachedJudgement)
        self.folder = self._cache.folder

    def get(self, key: str) -> CachedJudgement | None:
        """Return a judgement, or None if it is absent, unreadable or of another version."""
        found = self._cache.get(key)
        return found if found is not None and (found.format, found.key) == (FORMAT, key) else None

    def put(self, judgement: CachedJudgement) -> None:
        """Store a judgement."""
        self._cache.put(judgement.key, judgement)


def default_cache_folder() -> Path:
    """Return the folder in which the command line caches judgements."""
    return cache_folder("judge")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """How a judge calls its models.

    Votes differ by seed only; at temperature 0 a model that ignores seeds may repeat itself.
    A transient failure is retried `retries` times, after at most `longest_wait` seconds.
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
    """The combined verdict of all models. Unscored verdicts have a `reason` and no number.

    `score` is on 1..5 and may be a fraction, as medians and weighted means are. `transient` says
    that an unscored verdict may be scored if it is retried later.
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
        """Whether there is a score."""
        return self.score is not None

    @property
    def passed(self) -> bool | None:
        """Whether the threshold is reached; None when unscored."""
        return None if self.label is None else self.label == Label.PASS

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return msgspec.to_builtins(self)


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
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.models = [models] if isinstance(models, ChatModel) else list(models)
        if not self.models:
            raise ProctorError("a judge needs at least one model", where="judge")
        self.rubric = None if rubric is None else rubric_from(rubric)
        self.settings = settings or JudgeSettings()
        self.cache = cache
        self._retry = RetryPolicy(
            self.settings.retries,
            self.settings.longest_wait,
            sleep,
            # Only spreads retries in time; no result depends on it.
            rng or random.Random(),  # noqa: S311 (no secret)
        )

    def with_models(self, models: ChatModel | Sequence[ChatModel]) -> Judge:
        """Return the same judge with other models."""
        sleep, rng = self._retry.sleep, self._retry.random
        return Judge(models, self.rubric, self.settings, cache=self.cache, sleep=sleep, rng=rng)

    async def judge(
        self,
        judged: JudgeInput,
        rubric: Rubric | str | Mapping[str, Any] | None = None,
        *,
        votes: int | None = None,
    ) -> JudgeVerdict:
        """Return the verdict on one answer, by this rubric or else the judge's own."""
        chosen = self.rubric if rubric is None else rubric_from(rubric)
        if chosen is None:
            raise ProctorError("a judge needs a rubric", where="judge")
        missing = judged.missing(chosen.needs)
        if missing:
            reason = f"the rubric needs inputs that are missing: {', '.join(missing)}"
            return JudgeVerdict(rubric=chosen.name, threshold=chosen.threshold, reason=reason)
        prompt = build_prompt(chosen, judged, self.settings.max_chars)
        count = self.settings.votes if votes is None else votes

        async def votes_of(model: ChatModel) -> list[Vote]:
            # One after the other, to spare the rate limit of the model.
            return [await self._vote(model, chosen, prompt, number) for number in range(count)]

        # Models have rate limits of their own, so they vote at the same time.
        panels = await asyncio.gather(*(votes_of(model) for model in self.models))
        return _verdict(panels, chosen, prompt.shortened)

    async def _vote(self, model: ChatModel, rubric: Rubric, prompt: Prompt, number: int) -> Vote:
        request = ChatRequest(
            messages=prompt.messages,
            schema=prompt.schema,
            temperature=self.settings.temperature,
            max_tokens=self.settings.max_tokens,
            # Votes must differ, and be the same again when a run is repeated.
            seed=self.settings.seed + number,
            timeout=self.settings.timeout,
        )
        # The messages hold the rubric and the inputs, so a change of either is another key.
        key = request_key(model.identity, request, PROMPT_VERSION)
        vote = Vote(model=model.name, number=number)
        if self.cache is not None and (hit := self.cache.get(key)) is not None:
            return replace(
                vote, scores=hit.scores, rationale=hit.rationale, usage=ModelUse(cached=1)
            )
        # A vote may take several calls, and all of them cost money.
        replies: list[ChatReply] = []
        try:
            graded = await self._grade(model, request, rubric, replies)
        except ModelError as error:
            return replace(
                vote,
                problem=f"{error.kind.value}: {error.message}",
                transient=error.transient,
                usage=ModelUse.of(replies),
            )
        usage = ModelUse.of(replies)
        if self.cache is not None:
            self.cache.put(
                CachedJudgement(
                    format=FORMAT,
                    key=key,
                    scores=dict(graded.scores),
                    rationale=graded.rationale,
                    model=model.name,
                    input_tokens=usage.input_tokens,
                    output_tokens=usage.output_tokens,
                    cost_usd=usage.cost_usd,
                )
            )
        return replace(vote, scores=graded.scores, rationale=graded.rationale, usage=usage)

    async def _grade(
        self, model: ChatModel, request: ChatRequest, rubric: Rubric, replies: list[ChatReply]
    ) -> Graded:
        """Call the model, and once more if its reply cannot be parsed.

        Replies are appended to the caller's list, so that their cost counts when this raises.
        """
        reply = await complete_with_retries(model, request, self._retry)
        replies.append(reply)
        try:
            return read_reply(reply.text, rubric)
        except ValueError as error:
            problem = str(error)
        if reply.finish_reason in ("length", "max_tokens"):
            problem += "; cut off at the token limit"
        messages = (
            *request.messages,
            Message("assistant", valid_unicode(reply.text) or "(nothing)"),
            repair_message(rubric, problem),
        )
        repair = msgspec.structs.replace(request, messages=messages)
        reply = await complete_with_retries(model, repair, self._retry)
        replies.append(reply)
        try:
            return read_reply(reply.text, rubric)
        except ValueError as error:
            raise ModelError(
                f"no verdict in the reply, nor in its repair: {error}",
                kind=ModelErrorKind.BAD_REPLY,
                model=model.name,
            ) from error


def _verdict(
    panels: Sequence[list[Vote]], rubric: Rubric, shortened: tuple[str, ...]
) -> JudgeVerdict:
    """Combine the votes; unscored unless more than half of the models have a score."""
    votes = tuple(vote for panel in panels for vote in panel)
    unscored = JudgeVerdict(
        rubric=rubric.name,
        threshold=rubric.threshold,
        votes=votes,
        usage=sum((vote.usage for vote in votes), NOTHING),
        shortened=shortened,
    )
    opinions: list[dict[str, float]] = []
    for panel in panels:
        scored = [vote.scores for vote in panel if vote.scores is not None]
        if 2 * len(scored) > len(panel):  # a model whose votes mostly failed has no opinion
            opinions.append(_medians(scored, rubric))
    # A minority of models must not decide alone.
    if 2 * len(opinions) <= len(panels):
        problems = [f"{vote.model}: {vote.problem}" for vote in votes if vote.problem is not None]
        reasons = "; ".join(dict.fromkeys(problems))
        return replace(
            unscored,
            reason=f"{len(problems)} of {len(votes)} judgements failed; {reasons}",
            transient=any(vote.transient for vote in votes),
        )
    value = float(median(rubric.weighted(opinion) for opinion in opinions))
    # The rationale is that of the earliest vote with the nearest score.
    nearest = min(
        (vote for vote in votes if vote.scores is not None),
        key=lambda vote: abs(rubric.weighted(vote.scores or {}) - value),
    )
    return replace(
        unscored,
        score=LOWEST + value * (HIGHEST - LOWEST),
        normalised=value,
        label=label_of(value, rubric.threshold),
        rationale=nearest.rationale,
        criteria=_medians(opinions, rubric) if rubric.criteria else {},
    )


def _medians(scores: Sequence[Mapping[str, float]], rubric: Rubric) -> dict[str, float]:
    return {part.name: float(median(each[part.name] for each in scores)) for part in rubric.parts}
