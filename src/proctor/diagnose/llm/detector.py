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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from proctor.diagnose import attribution
from proctor.diagnose._steps import read_steps
from proctor.diagnose.finding import (
    Diagnosis,
    Finding,
    Impact,
    RootCause,
    Score,
    in_words,
    quote,
    scores_of,
)
from proctor.diagnose.llm import _prompt, parse
from proctor.diagnose.llm._prompt import DEFAULT_LIMIT, digest, shorten
from proctor.errors import ProctorError, did_you_mean
from proctor.formatting import dollars
from proctor.llm.chat_model import (
    ChatModel,
    ChatReply,
    ChatRequest,
    DiskCache,
    ModelError,
    ModelUse,
    request_key,
)
from proctor.llm.retry import RetryPolicy, complete_with_retries
from proctor.sanitize import line
from proctor.trace.conventions.values import encode_json

if TYPE_CHECKING:
    from proctor.diagnose._steps import Act
    from proctor.trace import Span, Trace

# Maximum number of investigators; a longer trace gives each more spans, truncated further.
MAX_GROUPS = 8

# Spans per investigator, up to the maximum number of investigators.
GROUP_SPANS = 12

# Characters of a custom prompt.
MAX_PROMPT = 100_000

# Findings that are facts of the trial, and what looks at it besides the model.
_FACTS = ("check:", "contrast", "recording")
_TRIAL = ("checks", "contrast")

Read = TypeVar("Read")
Leads = Literal["none", "offline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorOptions:
    """Options of the model calls.

    `limit` is the number of characters of the trace in one prompt. `leads` is whether prompts show
    what the offline detector found: a model then no longer answers alone. `prompt_version` is a
    shipped version, or the path of a text file that replaces our instructions (`{taxonomy}` in it
    becomes the kinds of error). `agents` investigate at most, `chunk` spans each. The budget is for
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
    reasoning_effort: str | None = None
    agents: int = MAX_GROUPS
    chunk: int = GROUP_SPANS
    cache: DiskCache[ChatReply] | None = None
    patience: RetryPolicy = field(default_factory=RetryPolicy)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if self.prompt_version not in _prompt.VERSIONS and not self.prompt_text:
            hint = did_you_mean(self.prompt_version, _prompt.VERSIONS)
            raise ProctorError(
                f"unknown prompt version {self.prompt_version!r}",
                hint=hint or f"known: {', '.join(_prompt.VERSIONS)}, or name a text file",
            )
        if self.limit < 1000 or min(self.max_calls, self.parallel, self.agents, self.chunk) < 1:
            raise ProctorError(
                "the limit must be 1000 or more, calls, parallel, agents and chunk 1 or more"
            )

    @property
    def prompt_text(self) -> str:
        """The text of a custom prompt; empty for a shipped version."""
        path = Path(self.prompt_version)
        if self.prompt_version in _prompt.VERSIONS or not path.is_file():
            return ""
        try:
            return path.read_text(encoding="utf-8")[:MAX_PROMPT].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ProctorError(f"the prompt cannot be read: {error}", where=str(path)) from error


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
        self._cut = 0
        self.prompt = how.prompt_text

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
        request = msgspec.structs.replace(
            request, max_tokens=how.max_reply_tokens, reasoning_effort=how.reasoning_effort
        )
        version = how.prompt_version if not self.prompt else "custom"
        key = request_key(how.model.identity, request, ("diagnose", version))
        cached = None if how.cache is None else how.cache.get(key)
        if cached is not None:  # a cached reply costs nothing and needs no budget
            self._cached += 1
            self._cut += cached.finish_reason == "length"
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
        self._cut += reply.finish_reason == "length"
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
        missing = [in_words(name) for name in _prompt.SCORES if name not in scores]
        source = "offline ones" if values else "unknown"
        if missing and scores:
            self.notes.append(f"the model gave no usable score of {', '.join(missing)}: {source}")
        elif missing:
            self.notes.append(f"the model gave no usable scores: {source}")
        scores = {**(scores_of(findings, values) if values else {}), **scores}
        steps = read_steps(self.trace)
        # What the trial itself knows is a fact, whatever the model thinks of the trace.
        facts = [f for f in self.offline.findings if f.detector.startswith(_FACTS)]
        placed = attribution.placed(steps, [*findings, *facts])
        causes = attribution.root_causes(steps, placed)
        found = replace(
            self.offline,
            method=self.method,
            findings=tuple(attribution.linked(placed, causes[0] if causes else None)),
            scores=scores,
            looked=(self.method, *(name for name in self.offline.looked if name in _TRIAL)),
            candidates=causes,
        )
        return self._with_usage(found, self.notes)

    def attributed(self, act: Act, reason: str) -> Diagnosis:
        """Return the offline findings with the step that the model names as their cause."""
        cause = RootCause(
            agent=act.agent,
            step=act.number,
            location=act.span.span_id,
            what=line(act.text or ", ".join(call.name for call in act.calls), 160),
            why=line(reason, 500) or "the model gave no reason",
            confidence=parse.CONFIDENCE[Impact.HIGH],
            evidence=quote(act.span, act.text),
        )
        findings = tuple(attribution.linked(self.offline.findings, cause))
        found = replace(
            self.offline,
            method=self.method,
            findings=findings,
            looked=(*self.offline.looked, self.method),
            candidates=(cause,),
        )
        return self._with_usage(found, [*self.offline.notes, *self.notes])

    def fallback(self, error: BaseException) -> Diagnosis:
        """Return the offline result, with the reason."""
        offline = self.offline
        note = f"{self.method} gave no answer ({_reason(error)}); this is {offline.method}"
        return self._with_usage(offline, [*offline.notes, note])

    def _with_usage(self, found: Diagnosis, notes: Sequence[str]) -> Diagnosis:
        seconds = {**self.offline.seconds, self.method: self.how.clock() - self._began}
        use = ModelUse.of(self._replies) + ModelUse(cached=self._cached)
        if self._cut:
            limit = self.how.max_reply_tokens
            count = "one reply" if self._cut == 1 else f"{self._cut} replies"
            note = f"{count} of the model cut at {limit} tokens: more may be missing"
            notes = [*notes, note]
        return replace(found, seconds=seconds, notes=tuple(notes), use=use)


# Errors that end a call without a usable reply; a ValueError is a reply that does not parse.
FAILURES = (ModelError, OutOfBudget, ValueError)


# -- one pass ------------------------------------------------------------------------------------


async def single_pass(trace: Trace, how: DetectorOptions, offline: Diagnosis) -> Diagnosis:
    """Use one prompt with everything that fits."""
    desk = _Desk(trace, how, offline, "single_pass")
    text = digest(trace, how.limit).text
    leads = desk.leads(trace.spans)
    request = _prompt.single_pass(text, leads, how.prompt_version, desk.prompt)

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


# -- attribution: which step, of which agent ------------------------------------------------------


async def all_at_once(trace: Trace, how: DetectorOptions, offline: Diagnosis) -> Diagnosis:
    """Show the whole log once and ask for the decisive step."""
    desk, acts = _Desk(trace, how, offline, "all_at_once"), read_steps(trace).acts
    by_number = {act.number: act for act in acts}

    def understand(reply: dict[str, Any]) -> tuple[Act, str]:
        step = reply.get("step")
        act = by_number.get(step) if isinstance(step, int) else None
        if act is None:
            raise ValueError(f"there is no step {step!r}")
        return act, str(reply.get("reason") or "")

    try:
        request = _prompt.name_step(_log(acts, how.limit), _question(trace), desk.prompt)
        return desk.attributed(*await desk.read(request, understand))
    except FAILURES as error:
        return desk.fallback(error)


async def step_by_step(trace: Trace, how: DetectorOptions, offline: Diagnosis) -> Diagnosis:
    """Show the log one step longer each time, until the model sees the error."""
    desk, acts = _Desk(trace, how, offline, "step_by_step"), read_steps(trace).acts

    def understand(reply: dict[str, Any]) -> tuple[bool, str]:
        if not isinstance(reply.get("error"), bool):
            raise ValueError("`error` is not true or false")
        return reply["error"], str(reply.get("reason") or "")

    try:
        for end, act in enumerate(acts, start=1):
            shown = _log(acts[:end], how.limit)
            request = _prompt.judge_step(shown, _question(trace), act.number, desk.prompt)
            wrong, reason = await desk.read(request, understand)
            if wrong:
                return desk.attributed(act, reason)
    except FAILURES as error:
        return desk.fallback(error)
    return desk.fallback(ValueError("the model found no error in any step"))


async def binary_search(trace: Trace, how: DetectorOptions, offline: Diagnosis) -> Diagnosis:
    """Halve the log until one step is left."""
    desk, acts = _Desk(trace, how, offline, "binary_search"), read_steps(trace).acts

    def understand(reply: dict[str, Any]) -> tuple[bool, str]:
        half = str(reply.get("half") or "").strip().lower()
        if half not in ("first", "second"):
            raise ValueError("`half` is neither first nor second")
        return half == "first", str(reply.get("reason") or "")

    try:
        if not acts:
            raise ValueError("the trace has no steps")
        low, high, reason = 0, len(acts), ""
        while high - low > 1:
            middle = (low + high) // 2
            early = (acts[low].number, acts[middle - 1].number)
            late = (acts[middle].number, acts[high - 1].number)
            shown = _log(acts[low:high], how.limit)
            request = _prompt.choose_half(shown, _question(trace), early, late, desk.prompt)
            first, reason = await desk.read(request, understand)
            low, high = (low, middle) if first else (middle, high)
        return desk.attributed(acts[low], reason)
    except FAILURES as error:
        return desk.fallback(error)


def _question(trace: Trace) -> str:
    return trace.query if isinstance(trace.query, str) else encode_json(trace.query)


def _log(acts: Sequence[Act], limit: int) -> str:
    """Return the steps as text, each with its number and agent, equally shortened to fit."""
    room = max(200, limit // max(1, len(acts)))
    parts: list[str] = []
    for act in acts:
        calls = "".join(f"\ncalls {call.name}({call.arguments})" for call in act.calls)
        results = "".join(f"\nresult: {result}" for result in act.results)
        parts.append(shorten(f"[step {act.number}] {act.agent}: {act.text}{calls}{results}", room))
    return "\n\n".join(parts)


# -- three passes --------------------------------------------------------------------------------


async def agentic(trace: Trace, how: DetectorOptions, offline: Diagnosis) -> Diagnosis:
    """Profile the trace, investigate its parts in parallel, then verify the findings."""
    desk = _Desk(trace, how, offline, "agentic")
    known = await _profile(desk)
    groups = group_spans(trace, how.agents, how.chunk)
    turn = asyncio.Semaphore(how.parallel)

    async def look(number: int, spans: Sequence[Span]) -> parse.Cleaned | BaseException:
        async with turn:
            text = digest(trace, how.limit // 2, spans).text
            leads, place = desk.leads(spans), (number, len(groups))
            version = how.prompt_version
            request = _prompt.investigate(text, known, leads, *place, version, custom=desk.prompt)
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


def group_spans(
    trace: Trace, agents: int = MAX_GROUPS, chunk: int = GROUP_SPANS
) -> list[list[Span]]:
    """Return spans in start order, in at most `agents` parts of about equal size."""
    spans = list(trace.index.spans)
    if not spans:
        return []
    count = min(agents, max(1, math.ceil(len(spans) / chunk)))
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
    desk: _Desk, looked: Sequence[parse.Cleaned | BaseException], groups: Sequence[Sequence[Span]]
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
            cleaned.repaired += result.repaired
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
