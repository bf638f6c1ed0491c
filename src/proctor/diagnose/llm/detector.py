"""Diagnose a trace with a model, in one pass or in three.

Guarantees: there is always a result. The model's output is cleaned and its quotes verified; when it
fails, is refused or runs out of budget, the offline findings are used and the notes say so.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeVar

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
Leads = Literal["none", "offline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorOptions:
    """Options of the model calls.

    `limit` is the number of characters of the trace in one prompt. `leads` is whether prompts show
    what the offline detector found: a model then no longer answers by itself. The budget applies to
    one trace: calls (repairs included), dollars and seconds; no call is made once one of them is
    used up. A money cap with a model of unknown price ends after its first call.
    """

    model: ChatModel
    prompt_version: str = _prompt.DEFAULT_VERSION
    evidence: parse.Evidence = "strict"
    leads: Leads = "none"
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
    """Diagnose one trace with one model within its budget; record usage and notes.

    `offline` supplies the scores that the model does not give, the result on failure and, on
    request, leads.
    """

    def __init__(self, trace: Trace, how: DetectorOptions, offline: Diagnosis, method: str) -> None:
        self.trace, self.how, self.offline, self.method = trace, how, offline, method
        self.notes: list[str] = []
        if how.leads == "offline":
            self.notes.append("the prompts contained leads: findings of the offline detector")
        self._began = how.clock()
        self._until = self._began + how.max_seconds
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

    def offline_in(self, spans: Sequence[Span]) -> list[Finding]:
        """Return the offline findings in some spans."""
        inside = {span.span_id for span in spans}
        return [finding for finding in self.offline.findings if finding.location in inside]

    def leads(self, spans: Sequence[Span]) -> list[Finding]:
        """Return the findings to show to the model, in some spans; none unless requested."""
        return self.offline_in(spans) if self.how.leads == "offline" else []

    def findings_in(self, reply: dict[str, Any]) -> parse.Cleaned:
        """Return the verified findings of a reply."""
        detector = f"{self.method}:{self.how.model.name}"
        return parse.read_findings(reply, self.trace, evidence=self.how.evidence, detector=detector)

    def diagnosis(self, findings: Sequence[Finding], scores: dict[str, Score]) -> Diagnosis:
        """Return the result: offline scores where the model gave none, reasons by the findings."""
        values = [score.value for score in self.offline.scores.values()]
        missing = [in_words(name) for name in self.offline.scores if name not in scores]
        if missing and scores:
            self.notes.append(
                f"the model gave no usable score of {', '.join(missing)}: offline ones"
            )
        elif missing:
            self.notes.append("the model gave no usable scores; these are the offline ones")
        scores = {**(scores_of(findings, values) if values else {}), **scores}
        found = replace(self.offline, method=self.method, findings=tuple(findings), scores=scores)
        return self._with_usage(found, self.notes)

    def fallback(self, error: BaseException) -> Diagnosis:
        """Return the offline result, with the reason."""
        offline = self.offline
        note = f"{self.method} gave no answer ({_reason(error)}); this is {offline.method}"
        return self._with_usage(offline, [*offline.notes, note])

    def _with_usage(self, found: Diagnosis, notes: Sequence[str]) -> Diagnosis:
        seconds = {**self.offline.seconds, self.method: self.how.clock() - self._began}
        use = ModelUse.of(self._replies) + ModelUse(cached=self._cached)
        return replace(found, seconds=seconds, notes=tuple(notes), use=use)


# Errors that end a call without a usable reply; a ValueError is a reply that does not parse.
FAILURES = (ModelError, OutOfBudget, ValueError)


# -- one pass ------------------------------------------------------------------------------------


async def single_pass(trace: Trace, how: DetectorOptions, offline: Diagnosis) -> Diagnosis:
    """Use one prompt with everything that fits."""
    desk = _Desk(trace, how, offline, "single_pass")
    text = digest(trace, how.limit).text
    request = _prompt.single_pass(text, desk.leads(trace.spans), how.prompt_version)

    def understand(reply: dict[str, Any]) -> tuple[parse.Cleaned, dict[str, Score]]:
        return desk.findings_in(reply), parse.read_scores(reply)

    try:
        cleaned, scores = await desk.read(request, understand)
    except FAILURES as error:
        return desk.fallback(error)
    desk.notes += cleaned.notes()
    return desk.diagnosis(cleaned.findings, scores)


def _reason(error: BaseException) -> str:
    if isinstance(error, ModelError):
        return f"{error.kind.value}: {error.message}"
    return str(error)


# -- three passes --------------------------------------------------------------------------------


async def agentic(trace: Trace, how: DetectorOptions, offline: Diagnosis) -> Diagnosis:
    """Profile the trace, investigate its parts in parallel, then verify the findings."""
    desk = _Desk(trace, how, offline, "agentic")
    known = await _profile(desk)
    groups = group_spans(trace)
    turn = asyncio.Semaphore(how.parallel)

    async def look(number: int, spans: Sequence[Span]) -> parse.Cleaned | BaseException:
        async with turn:
            text = digest(trace, how.limit // 2, spans).text
            leads, place = desk.leads(spans), (number, len(groups))
            request = _prompt.investigate(text, known, leads, *place, how.prompt_version)
            try:
                return await desk.read(request, desk.findings_in)
            except FAILURES as error:
                return error

    looked = await asyncio.gather(*(look(n, g) for n, g in enumerate(groups, start=1)))
    failed = [result for result in looked if isinstance(result, BaseException)]
    # A part that failed is replaced by offline findings; only when all failed is the whole offline.
    if len(failed) == len(groups):
        return desk.fallback(failed[0] if failed else ValueError("the trace has no spans"))
    candidates = _gathered(desk, looked, groups)
    return desk.diagnosis(*await _synthesise(desk, known, candidates))


def group_spans(trace: Trace) -> list[list[Span]]:
    """Return spans in start order, in at most `MAX_GROUPS` parts of about equal size."""
    spans = list(trace.index.spans)
    if not spans:
        return []
    count = min(MAX_GROUPS, max(1, math.ceil(len(spans) / GROUP_SPANS)))
    edges = [round(i * len(spans) / count) for i in range(count + 1)]
    return [spans[a:b] for a, b in pairwise(edges)]


async def _profile(desk: _Desk) -> str:
    """Return the model's summary of the trace; empty when it gave none."""
    limit = desk.how.limit // 4
    overview = digest(desk.trace, max(1000, limit)).text

    def understand(reply: dict[str, Any]) -> str:
        parts = {key: reply[key] for key in ("task", "course", "suspicions") if key in reply}
        if not parts:
            raise ValueError("it has none of task, course and suspicions")
        return encode_json(parts)[:limit]

    try:
        return await desk.read(_prompt.profile(overview, desk.leads(desk.trace.spans)), understand)
    except FAILURES as error:
        desk.notes.append(f"without a profile ({_reason(error)})")
        return "(none)"


def _gathered(
    desk: _Desk,
    looked: Sequence[parse.Cleaned | BaseException],
    groups: Sequence[Sequence[Span]],
) -> list[Finding]:
    """Return the findings of all parts, each (span, category) once; offline ones where no model
    looked.
    """
    merged: dict[tuple[str, str], Finding] = {}
    cleaned = parse.Cleaned()
    for number, (result, spans) in enumerate(zip(looked, groups, strict=True), start=1):
        if isinstance(result, BaseException):
            desk.notes.append(
                f"part {number} was not investigated ({_reason(result)}): offline findings"
            )
            found = desk.offline_in(spans)
        else:
            found = result.findings
            cleaned.cut = cleaned.cut or result.cut
            cleaned.dropped += result.dropped
        for finding in found:
            merged.setdefault((finding.location, finding.category.value), finding)
    desk.notes += cleaned.notes()
    return list(merged.values())


async def _synthesise(
    desk: _Desk, known: str, candidates: list[Finding]
) -> tuple[list[Finding], dict[str, Score]]:
    """Return the findings that the model accepts, and its scores."""

    def understand(reply: dict[str, Any]) -> tuple[list[int], dict[str, Score]]:
        return parse.read_choice(reply, len(candidates)), parse.read_scores(reply)

    try:
        numbers, scores = await desk.read(_prompt.synthesise(known, candidates), understand)
    except FAILURES as error:
        desk.notes.append(f"the findings were not weighed ({_reason(error)}): all are reported")
        return candidates, {}
    return [candidates[number - 1] for number in numbers], scores
