"""Continue a recorded trial from a step: answer the prefix from the record, change one thing.

A prefix belongs to one attempt of one trial. It sees every model call of the agent (through clients
in this process or through the gateway) and every tool call that our own capture records.

Guarantees: a call before the step is answered only if it equals a recorded one; otherwise the
trial has diverged, which it reports with the step and the difference, and nothing it does counts.
Model calls of the prefix are not sent and cost nothing. From the step on every call is real; an
edit applies to the step, or to every request from there on.

Tools that change the data of their trial run again in the prefix, which restores that data, but the
agent gets the recorded result; a difference between the two is noted.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, cast

from proctor.errors import ProctorError
from proctor.formatting import clipped, plural
from proctor.gateway.observe import INFERRED
from proctor.gateway.options import ForkArm, ForkEdit
from proctor.llm import http_hook
from proctor.llm.cassette import RecordedResponse
from proctor.llm.http_hook import MISS_STATUS
from proctor.llm.protocols import Protocol, model_protocol, read_model_call
from proctor.sanitize import json_value
from proctor.trace import Message, Span, SpanKind, ToolCall, Trace, otel
from proctor.trace.capture import HeldTool, tool_replay

FORK = "fork"
"""Key of a trace's metadata: the parent, the step, the change, what was replayed."""

REPLAYED = "proctor.replayed"
"""Attribute of a model call that was answered from the record."""

FIRST_SERIAL = 900_000
"""Serial numbers of replayed answers, by which their spans are found again."""

REMOVED = "[removed]"
"""What replaces the text of a removed message; a tool's result must keep its place."""

SHOWN = 120


class PrefixDiverged(ProctorError):
    """Raised when a trial does not repeat the recorded one up to the step."""

    transient = False

    def __init__(self, step: int, what: str) -> None:
        super().__init__(
            f"the recorded prefix diverged at step {step}: {what}",
            hint="the agent cannot be replayed exactly up to there; fork it at an earlier step",
        )


_current: ContextVar[Prefix | None] = ContextVar("proctor_prefix", default=None)


def current_prefix() -> Prefix | None:
    """Return the prefix of the trial that is running; None if it is no fork."""
    return _current.get()


class Prefix:
    """The recorded calls of one attempt, and what has been replayed of them.

    `numbers` has the step of each model and tool span of the recorded trace, `last` is the number
    of its last step. `in_process` says whether tools are called through our own capture.
    """

    def __init__(
        self,
        source: Trace,
        numbers: Mapping[str, int],
        arm: ForkArm,
        redact: Callable[[str], str],
        seed: int,
        last: int,
        *,
        in_process: bool,
    ) -> None:
        # The parent's seed: in a world the agent acts with it up to the step.
        self.arm, self.seed, self._last = arm, seed, last
        self._response = source.response
        self._numbers, self._redact = numbers, redact
        spans = source.index.spans
        inside = {span.span_id for span in spans if span.kind is SpanKind.TOOL}
        calls = {span.span_id for span in source.llm_calls}
        models = [s for s in spans if s.span_id in calls and s.output_messages and not s.failed]
        tools = [s for s in spans if s.kind is SpanKind.TOOL and s.parent_id not in inside]
        edit = arm.edit
        before, self._next_tools = _split(tools, numbers, arm.step)
        # A tool that only messages show is not ours to intercept: the program calls it.
        self._in_process = in_process
        self._tools = [s for s in before if self._intercepted(s)]
        self._here = self._next_tools[0] if self._next_tools else None
        if self._here is not None and numbers.get(self._here.span_id) != arm.step:
            self._here = None
        step = arm.step
        if edit is not None and edit.kind == "result" and self._here is not None:
            # The model call that requested the tool is recorded: only the result changes.
            wanted = self._here.tool_call_id
            asked = [
                s
                for s in models
                if any(c.id == wanted for m in s.output_messages for c in m.tool_calls)
            ]
            step = 1 + max([step, *(numbers.get(s.span_id, step) for s in asked if wanted)])
        self._models, self._later = _split(models, numbers, step)
        self._step_model = self._later[0] if self._later else None
        if self._step_model is not None and numbers.get(self._step_model.span_id) != arm.step:
            self._step_model = None
        self._total = len(self._models), len(self._tools)
        first = min((s.start_ns for s in (*self._later, *self._next_tools)), default=None)
        self._turns = [
            str(turn.input) for turn in source.turns if first is None or turn.start_ns <= first
        ]
        self._position: int | None = None
        self._begun = False
        self._tool_done = False
        self._serial = FIRST_SERIAL
        self.diverged: PrefixDiverged | None = None
        self.notes: list[str] = []

    @property
    def plain_code(self) -> bool:
        """Whether the prefix has no model calls, so that chance is in the agent's own code."""
        return not self._total[0]

    @property
    def replaying(self) -> bool:
        """Whether recorded calls are left before the step."""
        return bool(self._models or self._tools)

    def _intercepted(self, span: Span) -> bool:
        """Return whether our own capture recorded a tool call, so that it can be answered."""
        return self._in_process and span.scope is None and INFERRED not in span.attributes

    async def run(self, work: Coroutine[Any, Any, Any], trace: Trace, about: Any) -> Any:
        """Run an attempt inside the prefix; raise `PrefixDiverged` if it left the record."""
        tokens = _current.set(self), http_hook.redirect.set(self._http), tool_replay.set(self.tool)
        try:
            reply = await work
        except Exception:
            if self.diverged is not None:
                raise self.diverged from None
            raise
        finally:
            _current.reset(tokens[0])
            http_hook.redirect.reset(tokens[1])
            tool_replay.reset(tokens[2])
            calls, tools = self._total
            trace.metadata[FORK] = {
                **about,
                "step": self.arm.step,
                "change": None if self.arm.edit is None else str(self.arm.edit),
                "replayed": {
                    "model_calls": calls - len(self._models),
                    "tool_calls": tools - len(self._tools),
                },
                **({"notes": self.notes} if self.notes else {}),
            }
        self._finish()
        # Behind the last step even the answer is the recorded one; plain code gives it by chance.
        if not self._later and not self._next_tools and self.arm.step > self._last:
            recorded = clipped(str(self._response), SHOWN)
            if self._redact(reply.answer) != self._response:
                now = clipped(reply.answer, SHOWN)
                raise self._diverge(None, f"recorded the answer {recorded!r}, now {now!r}")
        return reply

    def _finish(self) -> None:
        if self.diverged is None and self.replaying:
            left = (self._models or self._tools)[0]
            seen = self._total[0] - len(self._models) + self._total[1] - len(self._tools)
            what = "the agent ended before it made this call"
            if not seen and self._models:
                what = (
                    "none of its model calls was seen; an agent in a process of its own must be"
                    " behind the gateway"
                )
            self._diverge(left, f"{what}: {_shown_span(left)}")
        edit = self.arm.edit
        if self.diverged is None and edit is not None and not self._begun:
            self.diverged = PrefixDiverged(
                self.arm.step, f"the agent ended before the step, so nothing changed ({edit})"
            )
        if self.diverged is not None:
            raise self.diverged

    def _diverge(self, recorded: Span | None, what: str) -> PrefixDiverged:
        step = self.arm.step
        if recorded is not None:
            step = self._numbers.get(recorded.span_id, step)
        if self.diverged is None:
            self.diverged = PrefixDiverged(step, what)
        return self.diverged

    # -- model calls -----------------------------------------------------------------------------

    def _http(self, method: str, url: str, body: bytes) -> RecordedResponse | bytes | None:
        """Handle a request of a client in this process; None leaves it alone."""
        # Requests outside the capture are not the agent's: those of a simulated user, a judge.
        protocol = model_protocol(method, url) if otel.here.get() is not None else None
        return None if protocol is None else self.call(protocol, url, body)

    def call(
        self, protocol: Protocol, url: str, body: bytes, plain: Callable[[str], str] = str
    ) -> RecordedResponse | bytes:
        """Return the recorded answer to a request, or what to send instead.

        `plain` removes from a text what differs from run to run.
        """
        asked = read_model_call(protocol, url, body, b"").input_messages
        if self.diverged is not None:
            return _refusal(self.diverged)

        def comparable(messages: Sequence[Message]) -> list[str]:
            return [plain(self._redact(each)) for each in _lines(messages)]

        lines = comparable(asked)
        for span in self._models:
            if comparable(span.input_messages) == lines:
                self._models.remove(span)
                return self._rendered(protocol, url, body, span.output_messages[-1], span)
        if self._models:
            span = self._models[0]
            return _refusal(
                self._diverge(span, _difference(comparable(span.input_messages), lines))
            )
        if not self._begun and self._tools:
            what = f"it calls the model before the tool: {_shown_span(self._tools[0])}"
            return _refusal(self._diverge(self._tools[0], what))
        edit = self.arm.edit
        if not self._begun and self._later:
            known = [comparable(each.input_messages) for each in self._later]
            # The result of a tool that we answer is another one in the agent's own request.
            changed = (
                edit is not None
                and edit.kind == "result"
                and (self._here is not None and self._intercepted(self._here))
            )
            if not changed and lines not in known:
                return _refusal(self._diverge(self._later[0], _difference(known[0], lines)))
            if self._step_model is not None and lines != known[0] and not changed:
                # A call beside the step (a title, a summary) that was recorded after it.
                return body
        if not self._begun:
            self._begun = True
            if edit is not None and edit.kind in ("answer", "call"):
                return self._rendered(protocol, url, body, _edited(edit), self._step_model)
        return body if edit is None else self._rewritten(protocol, body, edit)

    def _rendered(
        self, protocol: Protocol, url: str, body: bytes, message: Message, span: Span | None
    ) -> RecordedResponse:
        # Here: the module brings an HTTP server, and only forks need it.
        from proctor.llm.mock import rendered_reply

        self._serial += 1
        model = None if span is None else span.model
        content = rendered_reply(protocol, url, body, message, self._serial, model)
        if content is None:
            # Only what the scripted server writes can be replayed; both have another way in.
            what = (
                f"answers in the protocol of {protocol} cannot be replayed; use the endpoint of the"
                " server that speaks OpenAI's (Ollama has it at /v1, Bedrock at /openai/v1)"
            )
            return _refusal(self._diverge(span, what))
        return RecordedResponse(200, content[0], text=content[1])

    def mark(self, trace: Trace) -> None:
        """Mark the model calls that were answered from the record: they cost nothing."""
        names = {f"mock{serial:06d}" for serial in range(FIRST_SERIAL + 1, self._serial + 1)}
        for span in trace.llm_calls:
            identity = str(span.attributes.get("gen_ai.response.id", ""))
            if identity.rpartition("_")[2] in names:
                span.attributes = {**span.attributes, REPLAYED: True}
                span.input_tokens = span.output_tokens = 0
                span.cost_usd = 0.0

    def _rewritten(self, protocol: Protocol, body: bytes, edit: ForkEdit) -> bytes:
        """Return the request with the change of the fork."""
        document = cast("dict[str, Any]", json.loads(body))
        match edit.kind:
            case "model":
                if protocol == "gemini":
                    raise self._diverge(None, "the model of a Gemini request is in its address")
                document["model"] = str(edit.model).rpartition(":")[2]
            case "temperature":
                place = (
                    document.setdefault("generationConfig", {})
                    if protocol == "gemini"
                    else document
                )
                place["temperature"] = edit.temperature
            case "system":
                _set_system(protocol, document, str(edit.system))
            case "hint":
                if self._position is None:
                    self._position = len(_conversation(protocol, document))
                _insert(protocol, document, self._position, str(edit.hint))
            case "remove":
                _replace_text(_conversation(protocol, document), str(edit.remove))
            case "result" if self._here is not None and not self._intercepted(self._here):
                shown = edit.result if isinstance(edit.result, str) else json.dumps(edit.result)
                _set_result(_conversation(protocol, document), self._here.tool_call_id, shown)
            case _:
                return body
        return json.dumps(document, ensure_ascii=False).encode()

    # -- tool calls ------------------------------------------------------------------------------

    def tool(self, name: str, arguments: Any) -> HeldTool | None:
        """Return what a tool call is replaced by; None leaves it alone."""
        if self.diverged is not None:
            raise self.diverged
        if _nested():
            return None
        asked = _arguments(arguments)
        for span in self._tools:
            if (span.tool_name or span.name) == name and self._same(span, asked):
                self._tools.remove(span)
                return self._held(span, span.tool_output)
        if self._tools:
            span = self._tools[0]
            now = f"{name}({clipped(json.dumps(asked, ensure_ascii=False), SHOWN)})"
            raise self._diverge(span, f"recorded {_shown_span(span)}, now {now}")
        edit = self.arm.edit
        if (
            self._tool_done
            or self._here is None
            or edit is None
            or not self._intercepted(self._here)
        ):
            self._begun = self._begun or self._step_model is None
            return None
        if edit.kind == "result":
            if name != self._here.tool_name or not self._same(self._here, asked):
                now = f"{name}({clipped(json.dumps(asked, ensure_ascii=False), SHOWN)})"
                raise self._diverge(self._here, f"recorded {_shown_span(self._here)}, now {now}")
            self._begun = self._tool_done = True
            return self._held(self._here, edit.result, edited=True)
        if edit.kind == "call" and self._step_model is None and edit.call is not None:
            if name != edit.call.tool:
                raise self._diverge(
                    self._here, f"plain code calls {name}, which cannot become {edit.call.tool}"
                )
            self._begun = self._tool_done = True
            return HeldTool(arguments=edit.call.arguments)
        self._begun = self._begun or self._step_model is None
        return None

    def action(self, understand: Callable[[Any, Any], Any], actions: Any) -> Any:
        """Return the action that an agent takes in a world at the step instead of its own."""
        edit = self.arm.edit
        if self._tools or self._tool_done or self._here is None or edit is None:
            return None
        if edit.kind != "call" or self._step_model is not None:
            return None
        self._begun = self._tool_done = True
        assert edit.call is not None
        bare = edit.call.arguments.get("action", edit.call.tool)
        for written in ({"call": edit.call.tool, "arguments": edit.call.arguments}, bare):
            # A world offers calls, or plain values.
            with contextlib.suppress(ValueError):
                return understand(written, actions)
        raise self._diverge(self._here, f"the world does not offer {edit}")

    def observed(self, held: HeldTool | None, result: Any) -> None:
        """Compare what a world shows with the record: there the agent would act on it."""
        now = json_value(result)
        if held is not None and held.settle is not None and now != held.output:
            shown = [clipped(json.dumps(each), SHOWN) for each in (json_value(held.output), now)]
            raise self._diverge(None, f"the world shows {shown[1]}, recorded {shown[0]}")

    def user_message(self, turn: int) -> str | None:
        """Return what the user said in a turn of the record that begins before the step."""
        return self._turns[turn] if turn < len(self._turns) else None

    def _same(self, span: Span, asked: Any) -> bool:
        mine, recorded = (
            json.dumps(each, sort_keys=True) for each in (asked, _arguments(span.tool_input))
        )
        return mine == recorded or self._redact(mine) == recorded

    def _held(self, span: Span, output: Any, *, edited: bool = False) -> HeldTool:
        def settle(live: Any) -> Any:
            """Return the recorded result, in the type of the real one."""
            value = json_value(live)
            if value == output:
                return live
            if not edited:
                self.notes.append(
                    f"step {self._numbers.get(span.span_id, 0)}: {_shown_span(span)} returned"
                    f" {clipped(json.dumps(value, ensure_ascii=False), SHOWN)}, the record has"
                    f" {clipped(json.dumps(json_value(output), ensure_ascii=False), SHOWN)}"
                )
            if isinstance(live, str | int | float | bool | dict | list | None):
                return str(output) if isinstance(live, str) and output is not None else output
            raise self._diverge(span, f"{_shown_span(span)} returned another object than recorded")

        return HeldTool(output=output, error=_error(span) if not edited else None, settle=settle)


def _split(
    spans: Sequence[Span], numbers: Mapping[str, int], step: int
) -> tuple[list[Span], list[Span]]:
    """Return the spans of the steps before a step, and the others."""
    before = [span for span in spans if numbers.get(span.span_id, step) < step]
    kept = {span.span_id for span in before}
    return before, [span for span in spans if span.span_id not in kept]


def _nested() -> bool:
    """Return whether the current place is inside a tool call, whose own calls are its matter."""
    place = otel.here.get()
    trace = getattr(None if place is None else place.sink, "trace", None)
    if place is None or not isinstance(trace, Trace):
        return False
    return any(s.span_id == place.span_id and s.kind is SpanKind.TOOL for s in trace.spans)


def _error(span: Span) -> str | None:
    return (span.error_message or span.error_type or "error") if span.failed else None


def _edited(edit: ForkEdit) -> Message:
    """Return the model's answer that an edit writes."""
    if edit.call is None:
        return Message("assistant", edit.answer)
    return Message(
        "assistant", None, (ToolCall(edit.call.tool, edit.call.arguments, "call_fork_0"),)
    )


def _refusal(error: PrefixDiverged) -> RecordedResponse:
    # A response, not an exception: clients would report that as a lost connection and retry.
    problem = {"type": "prefix_diverged", "code": "prefix_diverged", "message": str(error)}
    return RecordedResponse(MISS_STATUS, "application/json", json={"error": problem})


def _arguments(value: Any) -> Any:
    if isinstance(value, str) and value[:1] == "{":
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return json_value(value) or {}


def _shown_span(span: Span) -> str:
    if span.kind is SpanKind.TOOL:
        written = json.dumps(_arguments(span.tool_input), ensure_ascii=False)
        return f"{span.tool_name or span.name}({clipped(written, SHOWN)})"
    return f"model call {span.model or span.name}"


def _lines(messages: Sequence[Message]) -> list[str]:
    """Return a conversation as comparable lines: protocols and clients write it differently."""
    lines: list[str] = []
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        if text := (message.content or "").strip():
            lines.append(f"{role}: {text}")
        for call in message.tool_calls:
            written = json.dumps(_arguments(call.arguments), sort_keys=True)
            lines.append(f"{role} calls {call.name} {written}")
    return lines


def _difference(recorded: list[str], now: list[str]) -> str:
    """Return the first line in which two requests differ."""
    for number, (one, other) in enumerate(zip(recorded, now, strict=False), start=1):
        if one != other:
            at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
            start = max(0, at - SHOWN // 3)
            return (
                f"message {number} of the request: recorded {clipped(one[start:], SHOWN)!r}, now"
                f" {clipped(other[start:], SHOWN)!r}"
            )
    more = plural(abs(len(now) - len(recorded)), "message")
    if len(now) > len(recorded):
        return f"the request has {more} more than recorded: {clipped(now[len(recorded)], SHOWN)!r}"
    return f"the request lacks {more} of the recorded one: {clipped(recorded[len(now)], SHOWN)!r}"


# -- changing requests, by protocol ---------------------------------------------------------------


def _conversation(protocol: Protocol, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the list of messages inside a request."""
    name = {"responses": "input", "gemini": "contents"}.get(protocol, "messages")
    found = document.get(name)
    if isinstance(found, str):  # a shorthand of the responses API
        found = document[name] = [{"role": "user", "content": found}]
    return cast("list[dict[str, Any]]", found) if isinstance(found, list) else []


def _insert(protocol: Protocol, document: dict[str, Any], at: int, text: str) -> None:
    """Add a message of the user at a position of the conversation."""
    messages = _conversation(protocol, document)
    at = min(at, len(messages))
    if protocol == "gemini":
        messages.insert(at, {"role": "user", "parts": [{"text": text}]})
        return
    if protocol == "anthropic" and at and messages[at - 1].get("role") == "user":
        # A part of the message before it, which may hold tool results: roles must alternate.
        content = messages[at - 1]["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        messages[at - 1] = {**messages[at - 1], "content": [*parts, {"type": "text", "text": text}]}
        return
    messages.insert(at, {"role": "user", "content": text})


def _set_system(protocol: Protocol, document: dict[str, Any], text: str) -> None:
    if protocol == "anthropic":
        document["system"] = text
    elif protocol == "gemini":
        document["systemInstruction"] = {"parts": [{"text": text}]}
    elif protocol == "responses" and "instructions" in document:
        document["instructions"] = text
    else:
        messages = _conversation(protocol, document)
        if messages and messages[0].get("role") in ("system", "developer"):
            messages[0] = {**messages[0], "content": text}
        else:
            messages.insert(0, {"role": "system", "content": text})


_TEXTS = ("content", "text", "output", "result", "parts", "response", "functionResponse")


def _replace_text(value: Any, wanted: str) -> Any:
    """Replace the text of messages that contain `wanted`, in place."""
    if isinstance(value, str):
        return REMOVED if wanted in value else value
    if isinstance(value, list):
        items = cast("list[Any]", value)
        items[:] = [_replace_text(item, wanted) for item in items]
    elif isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        for name in _TEXTS:
            if name in fields:
                fields[name] = _replace_text(fields[name], wanted)
    return cast("Any", value)


def _set_result(value: Any, call_id: str | None, text: str) -> None:
    """Replace the result of a tool call, by its id, in place."""
    for item in cast("list[Any]", value) if isinstance(value, list) else ():
        if not isinstance(item, dict):
            continue
        fields = cast("dict[str, Any]", item)
        names = (fields.get(key) for key in ("tool_call_id", "call_id", "tool_use_id", "id"))
        if call_id in names and fields.get("type") != "function_call":
            for key in ("content", "output"):
                if key in fields:
                    fields[key] = text
        for key in ("content", "parts"):
            _set_result(fields.get(key), call_id, text)
