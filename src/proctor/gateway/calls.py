"""One user of the model gateway: the calls of a trial, or of one key of `proctor gateway`.

A session knows everything about its calls but how bytes travel (`gateway/server.py`): the spans
they become, the cassette they are recorded in or replayed from, their budget, rate limits, faults.

Guarantees: the span of a call exists from the moment of the request and is complete when the
response is, so a trial that is killed keeps its calls. A call belongs to the session whose address
or key it was sent to, and to no other. During replay nothing is sent.

Agents that run as programs put into their requests what differs from run to run: the name of a
temporary folder, session ids, dates, durations. The key of a request in a cassette is therefore
computed without numbers, ids, names of days and the trial's own folder. Two requests with the same
key are replayed in the order of the recording.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import msgspec

from proctor.gateway.budget import (
    BudgetExceeded,
    BudgetReservation,
    CallBounds,
    CallBudget,
    CallLedger,
    CallUsage,
)
from proctor.gateway.observe import SCOPE
from proctor.gateway.options import GatewayOptions
from proctor.gateway.prefix import current_prefix
from proctor.llm.cassette import RecordedRequest, RecordedResponse, active_cassette
from proctor.llm.cassette import recorded_request as stored_request
from proctor.llm.prices import PriceTable, cost_usd, price_span
from proctor.llm.protocols import Protocol, model_protocol, provider_of, read_model_call
from proctor.llm.rate_limits import (
    Limiter,
    Permit,
    limited_providers,
    limiter_in_force,
    queue_waits,
)
from proctor.llm.retry import is_transient_status
from proctor.seeds import derive_seed
from proctor.trace import otel
from proctor.trace.capture import Recorder, new_span_id, new_trace_id
from proctor.trace.model import Span, SpanKind, SpanStatus

FAULT = "proctor.fault"
"""Attribute of a call that the gateway made fail on purpose."""

RETRIES = "proctor.retries"
"""Attribute: how often the gateway sent a call again."""

# Where each protocol has the maximum of output tokens, and what to set if it has none.
_MAX_OUTPUT: dict[str, tuple[str, ...]] = {
    "openai": ("max_completion_tokens", "max_tokens"),
    "responses": ("max_output_tokens",),
    "anthropic": ("max_tokens",),
    "gemini": ("maxOutputTokens",),
}

_DAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
# UUIDs, ids of 16 and more letters and digits, hexadecimal and announced ids, days and months,
# numbers.
_VOLATILE = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|\b(?=[A-Za-z_]*[0-9])[0-9A-Za-z_]{16,}\b"
    r"|\b(?=[a-f]*[0-9])[0-9a-f]{6,}\b"
    r"|(?<=\bID: )\w+"
    rf"|\b(?:{_DAYS})[a-z]*\b"
    r"|[0-9]+"
)


# The private directory of a trial, also as programs write it into names of their own.
_FOLDER = re.compile(r"\bproctor-(?:[0-9a-f]{12}-)?[a-z0-9_-]{8}\b")


@dataclass(frozen=True)
class SpanSink:
    """Where the spans of a session go: `opened` at the request, `ended` when they are complete."""

    trace_id: str
    parent_id: str | None
    opened: Callable[[Span], object]
    ended: Callable[[Span], object] = lambda _span: None
    clock: Callable[[], int] = time.time_ns

    @classmethod
    def of_capture(cls) -> SpanSink:
        """Return the sink of the current capture; outside of one, spans are dropped."""
        place = otel.here.get()
        if place is None or not isinstance(place.sink, Recorder):
            return cls(new_trace_id(), None, lambda _span: None)
        recorder = place.sink
        return cls(place.trace_id, place.span_id, recorder.add, clock=recorder.clock)


@dataclass
class GatewaySession:
    """The calls of one trial. Made in the trial's context, whose cassette and rate limits apply."""

    sink: SpanSink
    options: GatewayOptions = field(default_factory=GatewayOptions)
    seed: int = 0
    prices: PriceTable | None = None
    folders: tuple[str, ...] = ()
    """Paths and names of the trial that its requests may contain: not part of a request's key."""
    ledger: tuple[CallLedger, str] | None = None
    """Where the run counts its calls, and the trial's key there."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    """The part of its address, or the key, by which its requests are recognised."""

    def __post_init__(self) -> None:
        self._context = copy_context()
        self._cassette = active_cassette()
        self._prefix = current_prefix()
        self._limiters = {name: limiter_in_force(name) for name in limited_providers()}
        self.waits = queue_waits.get() or nullcontext()
        limits = self.options
        self.budget = CallBudget(limits.max_cost_usd, limits.max_tokens, limits.max_calls)
        self.run_limit: Future[str] = Future()
        """Done when a call did not fit into the budget of the whole run: says why."""
        self.calls = 0
        self.failure: tuple[int, str] | None = None
        """Status and message of the last call, if it failed and not on purpose."""
        self.refused: str | None = None
        """Why a call did not fit into the budget."""
        names = {form for each in self.folders for form in (each, each.replace("_", "-"))}
        self._names = re.compile("|".join(map(re.escape, sorted(names, key=len)[::-1])) or "(?!)")

    @property
    def replays(self) -> bool:
        """Whether responses come from a cassette, so that nothing is sent."""
        return self._cassette is not None and self._cassette.mode == "replay"

    @property
    def limited(self) -> bool:
        """Whether calls must fit into a budget, of the trial or of the run."""
        return self.budget.limited or (self.ledger is not None and self.ledger[0].limited)

    def begin(self, method: str, url: str, body: bytes, provider: str, path: str) -> ModelCall:
        """Return a new call; one to a model has an open span from now on."""
        protocol = model_protocol(method, url)
        if protocol is None:
            return ModelCall(self, None, method, url, body, provider, path)
        self.calls += 1
        call = ModelCall(self, protocol, method, url, body, provider, path)
        if self._prefix is not None:
            # A trial that continues a recorded one.
            held = self._prefix.call(protocol, url, body, _without_trial)
            if isinstance(held, bytes):
                call.body = held
            else:
                call.held = held
        elif self.options.faults is not None:
            random = Random(derive_seed(self.seed, "fault", self.calls))  # noqa: S311
            drawn = random.random()
            for name, share in self.options.faults.shares():
                if drawn < share:
                    call.fault = name
                    break
                drawn -= share
        self.sink.opened(call.span)
        return call

    # -- cassettes ---------------------------------------------------------------------------

    def _recorded(self, call: ModelCall) -> tuple[RecordedRequest, str]:
        """Return a request as a cassette stores it, and its key."""
        assert self._cassette is not None
        request = stored_request(call.method, call.url, call.body, self._cassette.redactor)
        content = json.dumps(request.body, sort_keys=True) if request.body is not None else ""
        # The provider's name instead of its address, which may be another one at a replay.
        place = f"{request.method} {call.provider}/{call.path}"
        parts = (place, self._plain(content), request.body_sha256 or "")
        return request, hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    def _plain(self, text: str) -> str:
        """Return a text without what differs from run to run."""
        return _VOLATILE.sub("0", self._names.sub("", text.replace(self.token, "")))

    def replay(self, call: ModelCall) -> RecordedResponse | None:
        """Return the recorded response to a call; None if it has to be sent."""
        if self._cassette is None or self._cassette.mode != "replay":
            return None
        request, key = self._recorded(call)
        if call.protocol is None and not self._cassette.has(key):
            # Programs send telemetry and look for updates as they please; that is no miss.
            return RecordedResponse(404, "application/json", text="{}")
        return self._context.run(self._cassette.play, request, key)

    def record(self, call: ModelCall, status: int, content_type: str, content: bytes) -> None:
        """Add a complete response to the cassette, if one is recorded."""
        if self._cassette is not None and self._cassette.mode == "record":
            request, key = self._recorded(call)
            add = self._context.run(self._cassette.listener, request, key, exact=True)
            add(status, content_type, content)

    # -- limits ------------------------------------------------------------------------------

    async def permit(self, call: ModelCall) -> Permit | None:
        """Wait for the rate limit of a call's provider."""
        limiter: Limiter | None = self._limiters.get(call.provider)
        if limiter is None or call.protocol is None:
            return None
        with self.waits:
            return await limiter.acquire(len(call.body) // 4 + (call.asked_output or 500))


def _without_trial(text: str) -> str:
    """Return a text of any trial without what differs from run to run, its folder included."""
    return _VOLATILE.sub("0", _FOLDER.sub("trial", text))


class ModelCall:
    """One request through the gateway; only the span of a request to a model is used."""

    def __init__(  # noqa: PLR0917 (what a request consists of)
        self,
        session: GatewaySession,
        protocol: Protocol | None,
        method: str,
        url: str,
        body: bytes,
        provider: str,
        path: str,
    ) -> None:
        self.session = session
        self.protocol: Protocol | None = protocol
        self.method, self.url, self.body = method, url, body
        self.provider, self.path = provider, path
        self.fault: str | None = None
        self.held: RecordedResponse | None = None
        """The answer of the record that a fork continues."""
        self.retries = 0
        self.recording: Future[None] | None = None
        """Done when the run has the call on record, which the end of the response waits for."""
        self._reservation: BudgetReservation | None = None
        self._run_reservation: BudgetReservation | None = None
        self._permit: Permit | None = None
        self._open = True
        sink = session.sink
        self.span = Span(
            span_id=new_span_id(),
            trace_id=sink.trace_id,
            name="chat",
            kind=SpanKind.LLM,
            parent_id=sink.parent_id,
            start_ns=sink.clock(),
            scope=SCOPE,
        )

    @property
    def asked_output(self) -> int | None:
        """The maximum of output tokens that the request sets."""
        place = self._output_place(self._document)
        asked = [place.get(name) for name in _MAX_OUTPUT.get(self.protocol or "", ())]
        return next((each for each in asked if isinstance(each, int)), None)

    @property
    def _document(self) -> dict[str, Any]:
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    def _output_place(self, document: dict[str, Any]) -> dict[str, Any]:
        if self.protocol != "gemini":
            return document
        place = document.setdefault("generationConfig", {})
        return cast("dict[str, Any]", place) if isinstance(place, dict) else {}

    async def admit(self) -> bytes:
        """Wait for budgets and rate limit; return the body to send. Raises `BudgetExceeded`."""
        session, body = self.session, self.body
        if self.protocol is None:
            return body
        run = None if session.ledger is None or not session.ledger[0].limited else session.ledger
        if run is not None or session.budget.limited:
            model = read_model_call(self.protocol, self.url, body, b"").model or ""

            def price(tokens_in: int, tokens_out: int) -> float | None:
                # All of the input may be written to a cache, which costs more than plain input.
                return cost_usd(
                    model,
                    provider_of(self.url),
                    input_tokens=tokens_in,
                    output_tokens=tokens_out,
                    cache_write_tokens=tokens_in if self.protocol == "anthropic" else 0,
                    prices=session.prices,
                )

            bounds = CallBounds.of(body, self.asked_output, price)
            most: int | None = None
            with session.waits:
                if session.budget.limited:
                    self._reservation = await session.budget.reserve(bounds)
                    most = self._reservation.max_output
                if run is not None:
                    if most is not None:
                        bounds = msgspec.structs.replace(bounds, output_tokens=most)
                    try:
                        self._run_reservation = await run[0].reserve(run[1], bounds)
                    except BudgetExceeded as error:
                        if not session.run_limit.done():
                            session.run_limit.set_result(str(error))
                        raise
                    most = self._run_reservation.max_output or most
            if most is not None and (names := _MAX_OUTPUT.get(self.protocol)):
                document = self._document
                place = self._output_place(document)
                set_already = [name for name in names if name in place]
                place[(set_already or names)[0]] = most
                body = json.dumps(document).encode()
        if not session.replays:
            self._permit = await session.permit(self)
        return body

    def ended(
        self,
        status: int,
        content_type: str = "",
        content: bytes = b"",
        error: tuple[str, str] | None = None,
    ) -> None:
        """Fill the span, settle the limits, record the response. Only the first call counts.

        `error` is the type and message of a call whose response did not arrive whole.
        """
        if not self._open:
            return
        self._open = False
        span, session = self.span, self.session
        if error is None and not session.replays and self.fault is None:
            session.record(self, status, content_type, content)
        if self.protocol is None:
            return
        read_model_call(
            self.protocol, self.url, self.body, content, content_type, status, span=span
        )
        if self.fault is not None:
            span.attributes[FAULT] = self.fault
        if self.retries:
            span.attributes[RETRIES] = self.retries
        if error is not None:
            span.status = SpanStatus.ERROR
            span.error_type, span.error_message = error
        price_span(span, session.prices)
        span.end_ns = max(session.sink.clock(), span.start_ns)
        session.failure = None
        if self.fault is None and (error is not None or is_transient_status(status)):
            session.failure = status, span.error_message or ""
        usage = CallUsage.of(span)
        if self._reservation is not None:
            session.budget.settle(self._reservation, usage)
        if self._permit is not None and None not in (span.input_tokens, span.output_tokens):
            self._permit.settle((span.input_tokens or 0) + (span.output_tokens or 0))
        session.sink.ended(span)
        if session.ledger is not None:
            ledger, trial = session.ledger
            self.recording = ledger.ended(trial, self._run_reservation, usage, span)


def error_document(status: int, kind: str, message: str) -> bytes:
    """Return an error in a form that the clients of every provider read."""
    error: Mapping[str, Any] = {"type": kind, "code": status, "status": kind, "message": message}
    return json.dumps({"type": "error", "error": error}).encode()
