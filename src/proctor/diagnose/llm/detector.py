"""Diagnose a trace with a model, in one pass or in three.

Guarantees: there is always a result. The model's output is cleaned and its quotes verified; when it
fails, is refused or runs out of budget, the offline findings are used and the notes say so.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from proctor.diagnose.finding import Diagnosis, Finding, Score
from proctor.diagnose.llm import _prompt, parse
from proctor.diagnose.llm._digest import DEFAULT_LIMIT, digest
from proctor.diagnose.quotes import in_words, scores_of
from proctor.errors import ProctorError, did_you_mean
from proctor.formatting import dollars
from proctor.llm.cache import DiskCache, request_key
from proctor.llm.chat_model import ChatModel, ChatReply, ChatRequest, ModelError, ModelUse
from proctor.llm.retry import RetryPolicy, complete_with_retries
from proctor.trace.conventions.values import encode_json

if TYPE_CHECKING:
    from proctor.trace import Span, Trace

# Maximum number of investigators; a longer trace gives each more spans, truncated further.
MAX_GROUPS = 8

# Spans per investigator, up to the maximum number of investigators.
GROUP_SPANS = 12

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorOptions:
    """Options of the model calls.

    `limit` is the number of characters of the trace in one prompt. The budget applies to one trace:
    calls (repairs included), dollars and seconds; no call is made once one of them is used up. A
    money cap with a model of unknown price ends after its first call.
    """

    model: ChatModel
    prompt_version: str = _prompt.DEFAULT_VERSION
    evidence: parse.Evidence = "strict"
    limit: int = DEFAULT_LIMIT
    max_reply_tokens: int = _prompt.MAX_REPLY_TOKENS
    max_calls: int = 24
    max_cost_usd: float | None = None
    max_seconds: float = 600.0
    parallel: int = 4
    cache: DiskCache[ChatReply] | None = None
    patience: RetryPolicy = field(default_factory=RetryPolicy)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if self.prompt_version not in _prompt.VERSIONS:
            hint = did_you_mean(self.prompt_version, _prompt.VERSIONS)
            raise ProctorError(
                f"unknown prompt version {self.prompt_version!r}",
                hint=hint or f"there are {', '.join(_prompt.VERSIONS)}",
            )
        if self.limit < 1000 or self.max_calls < 1 or self.parallel < 1:
            raise ProctorError("the limit must be 1000 or more, calls and parallel 1 or more")


class OutOfBudget(Exception):
    """The budget of this trace allows no further call."""


class _Desk:
    """Call one model about one trace within its budget, and record the usage."""

    def __init__(self, how: DetectorOptions) -> None:
        self.how = how
        self._until = how.clock() + how.max_seconds
        self._replies: list[ChatReply] = []
        self._begun = 0
        self._cached = 0

    async def read(
        self, request: ChatRequest, understand: Callable[[dict[str, Any]], Read]
    ) -> Read:
        """Parse the reply; request it once more when it does not parse."""
        reply = await self._reply(request)
        try:
            return understand(parse.json_in(reply.text))
        except ValueError as error:
            problem = str(error)
        reply = await self._reply(_prompt.repair(request, reply.text, problem))
        return understand(parse.json_in(reply.text))

    async def _reply(self, request: ChatRequest) -> ChatReply:
        how = self.how
        request = msgspec.structs.replace(request, max_tokens=how.max_reply_tokens)
        key = request_key(how.model.identity, request, ("diagnose", how.prompt_version))
        cached = None if how.cache is None else how.cache.get(key)
        if cached is not None:  # a cached reply costs nothing and needs no budget
            self._cached += 1
            return cached
        self._check_budget()
        self._begun += 1  # counted before the call, so that parallel calls cannot exceed the budget
        left = self._until - how.clock()
        try:
            async with asyncio.timeout(left if math.isfinite(left) else None):
                reply = await complete_with_retries(how.model, request, how.patience)
        except TimeoutError:
            raise OutOfBudget(f"the budget of {how.max_seconds:g} s is used up") from None
        self._replies.append(reply)
        if how.cache is not None:
            how.cache.put(key, reply)
        return reply

    def _check_budget(self) -> None:
        how = self.how
        if self._begun >= how.max_calls:
            raise OutOfBudget(f"the budget of {how.max_calls} calls is used up")
        if how.clock() >= self._until:
            raise OutOfBudget(f"the budget of {how.max_seconds:g} s is used up")
        if how.max_cost_usd is None:
            return
        if any(reply.cost_usd is None for reply in self._replies):
            raise OutOfBudget("the price of the model is not known, and there is a money cap")
        if sum(reply.cost_usd or 0.0 for reply in self._replies) >= how.max_cost_usd:
            raise OutOfBudget(f"the budget of {dollars(how.max_cost_usd)} is used up")

    def use(self) -> ModelUse:
        """Return the usage so far."""
        return ModelUse.of(self._replies) + ModelUse(cached=self._cached)


# Errors that end a call without a usable reply; a ValueError is a reply that does not parse.
FAILURES = (ModelError, OutOfBudget, ValueError)


# -- one pass ------------------------------------------------------------------------------------


async def single_pass(trace: Trace, how: DetectorOptions, offline: Diagnosis) -> Diagnosis:
    """Use one prompt with everything that fits; `offline` supplies leads, and the result on
    failure.
    """
    began = how.clock()
    desk = _Desk(how)
    text = digest(trace, how.limit).text
    request = _prompt.single_pass(text, offline.findings, how.prompt_version)

    def understand(reply: dict[str, Any]) -> tuple[parse.Cleaned, dict[str, Score]]:
        found = parse.read_findings(
            reply, trace, evidence=how.evidence, detector=_detector("single_pass", how)
        )
        return found, parse.read_scores(reply)

    try:
        cleaned, scores = await desk.read(request, understand)
    except FAILURES as error:
        return _fallback(offline, "single_pass", error, desk, how.clock() - began)
    return Diagnosis(
        trace.trace_id,
        "single_pass",
        tuple(cleaned.findings),
        scores=_completed(scores, offline, cleaned.findings),
        seconds={**offline.seconds, "single_pass": how.clock() - began},
        notes=(*cleaned.notes(), *_scores_note(scores, offline)),
        use=desk.use(),
    )


def _completed(
    scores: dict[str, Score], offline: Diagnosis, findings: Sequence[Finding]
) -> dict[str, Score]:
    """Return the model's scores, and offline ones where it gave none; reasons name the findings."""
    values = [score.value for score in offline.scores.values()]
    return {**(scores_of(findings, values) if values else {}), **scores}


def _scores_note(scores: dict[str, Score], offline: Diagnosis) -> list[str]:
    missing = [in_words(name) for name in offline.scores if name not in scores]
    if not missing:
        return []
    if scores:
        return [f"the model gave no usable score of {', '.join(missing)}: offline ones"]
    return ["the model gave no usable scores; these are the offline ones"]


def _fallback(
    offline: Diagnosis, method: str, error: BaseException, desk: _Desk, seconds: float
) -> Diagnosis:
    return Diagnosis(
        offline.trace_id,
        offline.method,
        offline.findings,
        scores=offline.scores,
        seconds={**offline.seconds, method: seconds},
        notes=(
            *offline.notes,
            f"{method} gave no answer ({_reason(error)}); this is {offline.method}",
        ),
        use=desk.use(),
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, ModelError):
        return f"{error.kind.value}: {error.message}"
    return str(error)


def _detector(method: str, how: DetectorOptions) -> str:
    return f"{method}:{how.model.name}"


# -- three passes --------------------------------------------------------------------------------


async def agentic(trace: Trace, how: DetectorOptions, offline: Diagnosis) -> Diagnosis:
    """Profile the trace, investigate its parts in parallel, then verify the findings."""
    began = how.clock()
    desk = _Desk(how)
    notes: list[str] = []
    known = await _profile(trace, desk, offline, notes)
    groups = group_spans(trace)
    turn = asyncio.Semaphore(how.parallel)

    async def look(number: int, spans: Sequence[Span]) -> parse.Cleaned | BaseException:
        async with turn:
            return await _investigate(trace, desk, known, offline, (number, len(groups)), spans)

    looked = await asyncio.gather(*(look(n, g) for n, g in enumerate(groups, start=1)))
    failed = [result for result in looked if isinstance(result, BaseException)]
    # A part that failed is replaced by offline findings; only when all failed is the whole offline.
    if len(failed) == len(groups):
        error = failed[0] if failed else ValueError("the trace has no spans")
        return _fallback(offline, "agentic", error, desk, how.clock() - began)
    candidates = _gathered(looked, groups, offline, notes)
    kept, scores = await _synthesise(desk, known, candidates, notes)
    return Diagnosis(
        trace.trace_id,
        "agentic",
        tuple(kept),
        scores=_completed(scores, offline, kept),
        seconds={**offline.seconds, "agentic": how.clock() - began},
        notes=(*notes, *_scores_note(scores, offline)),
        use=desk.use(),
    )


def group_spans(trace: Trace) -> list[list[Span]]:
    """Return spans in start order, in at most `MAX_GROUPS` parts of about equal size."""
    spans = list(trace.index.spans)
    if not spans:
        return []
    count = min(MAX_GROUPS, max(1, math.ceil(len(spans) / GROUP_SPANS)))
    edges = [round(i * len(spans) / count) for i in range(count + 1)]
    return [spans[a:b] for a, b in pairwise(edges)]


async def _profile(trace: Trace, desk: _Desk, offline: Diagnosis, notes: list[str]) -> str:
    """Return the model's summary of the trace; empty when it gave none."""
    overview = digest(trace, max(1000, desk.how.limit // 4)).text

    def understand(reply: dict[str, Any]) -> str:
        parts = {key: reply[key] for key in ("task", "course", "suspicions") if key in reply}
        if not parts:
            raise ValueError("it has none of task, course and suspicions")
        return encode_json(parts)[: desk.how.limit // 4]

    try:
        return await desk.read(_prompt.profile(overview, offline.findings), understand)
    except FAILURES as error:
        notes.append(f"without a profile ({_reason(error)})")
        return "(none)"


async def _investigate(
    trace: Trace,
    desk: _Desk,
    known: str,
    offline: Diagnosis,
    place: tuple[int, int],
    spans: Sequence[Span],
) -> parse.Cleaned | BaseException:
    """Return the findings in one part of the trace, or the reason there are none."""
    how = desk.how
    inside = {span.span_id for span in spans}
    leads = [finding for finding in offline.findings if finding.location in inside]
    text = digest(trace, how.limit // 2, spans).text
    request = _prompt.investigate(text, known, leads, *place, how.prompt_version)

    def understand(reply: dict[str, Any]) -> parse.Cleaned:
        detector = _detector("agentic", how)
        return parse.read_findings(reply, trace, evidence=how.evidence, detector=detector)

    try:
        return await desk.read(request, understand)
    except FAILURES as error:
        return error


def _gathered(
    looked: Sequence[parse.Cleaned | BaseException],
    groups: Sequence[Sequence[Span]],
    offline: Diagnosis,
    notes: list[str],
) -> list[Finding]:
    """Return the findings of all parts, each (span, category) once; offline ones where no model
    looked.
    """
    merged: dict[tuple[str, str], Finding] = {}
    cleaned = parse.Cleaned()
    for number, (result, spans) in enumerate(zip(looked, groups, strict=True), start=1):
        if isinstance(result, BaseException):
            notes.append(
                f"part {number} was not investigated ({_reason(result)}): offline findings"
            )
            inside = {span.span_id for span in spans}
            found = [finding for finding in offline.findings if finding.location in inside]
        else:
            found = result.findings
            cleaned.join(result)
        for finding in found:
            merged.setdefault((finding.location, finding.category.value), finding)
    notes += cleaned.notes()
    return list(merged.values())


async def _synthesise(
    desk: _Desk, known: str, candidates: list[Finding], notes: list[str]
) -> tuple[list[Finding], dict[str, Score]]:
    def understand(reply: dict[str, Any]) -> tuple[list[int], dict[str, Score]]:
        return parse.read_choice(reply, len(candidates)), parse.read_scores(reply)

    try:
        numbers, scores = await desk.read(_prompt.synthesise(known, candidates), understand)
    except FAILURES as error:
        notes.append(f"the findings were not weighed ({_reason(error)}): all are reported")
        return candidates, {}
    return [candidates[number - 1] for number in numbers], scores
