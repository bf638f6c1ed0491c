"""Prompts of the LLM detectors: the trace as text that fits, instructions, schemas of the replies.

Guarantees: the text is never longer than its limit, deterministic, and starts with an index of the
spans. Failed spans are kept whole before ordinary ones get more than a few lines; messages that an
earlier model call was shown are not repeated. Text from a trace is placed between fences that
contain its own hash, so that no text inside can close them; the prompt says that nothing between
them is an instruction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

from proctor.diagnose.finding import Category
from proctor.llm.chat_model import ChatRequest
from proctor.trace import Message, SpanKind
from proctor.trace.conventions.values import encode_json

if TYPE_CHECKING:
    from proctor.diagnose.finding import Finding
    from proctor.trace import Span, Trace


# Characters, about 30,000 tokens: fits the context of every current hosted model with room for the
# instructions and the reply.
DEFAULT_LIMIT = 120_000

# Maximum fraction of the text for the index: a huge trace still shows bodies.
INDEX_SHARE = 0.4

# A shorter body is useless; its room goes to others.
MIN_BODY = 80

# Fraction of the room that the beginning of a truncated text gets; the rest shows its end.
_HEAD = 0.7

# Shares of the room by kind: spans of models and tools show errors, a failed span most of all.
_WEIGHT = {SpanKind.LLM: 3.0, SpanKind.TOOL: 3.0, SpanKind.RETRIEVAL: 2.0, SpanKind.ERROR: 6.0}
_FAILED_WEIGHT = 12.0


@dataclass(frozen=True, slots=True)
class Digest:
    """The text, and the number of spans it shows whole."""

    text: str
    whole: int


def digest(trace: Trace, limit: int = DEFAULT_LIMIT, spans: Sequence[Span] | None = None) -> Digest:
    """Render the trace, or some of its spans, in at most `limit` characters."""
    chosen = list(trace.index.spans if spans is None else spans)
    header = _header(trace, max(0, limit // 10))
    index = _index(chosen, int((limit - len(header)) * INDEX_SHARE))
    fixed = f"{header}## Spans (id kind name status)\n{index}\n## What they hold\n"
    shown: set[str] = set()
    bodies = [_body(span, shown) for span in chosen]
    room = limit - len(fixed)
    weights = [_FAILED_WEIGHT if s.failed else _WEIGHT.get(s.kind, 1.0) for s in chosen]
    given = _share_out([len(b) for b in bodies], weights, room)
    parts: list[str] = []
    whole = 0
    for body, size in zip(bodies, given, strict=True):
        if not body:
            continue
        if size >= len(body):
            whole += 1
            parts.append(body)
        elif size >= MIN_BODY:
            parts.append(shorten(body, size))
    return Digest((fixed + "".join(parts))[:limit], whole)


def shorten(text: str, size: int) -> str:
    """Return at most `size` characters: the beginning and the end, and how much is missing in
    between.
    """
    if len(text) <= size:
        return text
    mark = f"\n[… {len(text)} characters, cut …]\n"
    room = size - len(mark)
    if room <= 0:
        return text[: max(0, size)]
    head = int(room * _HEAD)
    tail = room - head
    return text[:head] + mark + (text[-tail:] if tail else "")


# -- parts ---------------------------------------------------------------------------------------


def _header(trace: Trace, size: int) -> str:
    task = shorten(_text(trace.query), size // 2) or "(not recorded)"
    answer = shorten(_text(trace.response), size // 2) or "(not recorded)"
    return f"## Task\n{task}\n## Final answer\n{answer}\n"


def _index(spans: Sequence[Span], size: int) -> str:
    """Return one line per span, in trace order; failed ones are dropped last when there are too
    many.
    """
    lines: dict[str, str] = {}
    for span in spans:
        failed = f" {span.status.value}" if span.failed else ""
        lines[span.span_id] = f"{span.span_id} {span.kind.value} {span.name[:60]}{failed}\n"
    kept: set[str] = set()
    used = 0
    # Failed spans first, so that they are the last to be dropped.
    for span in sorted(spans, key=lambda s: not s.failed):
        line = lines[span.span_id]
        if used + len(line) > size - 60:  # room for the line that says what is missing
            continue
        used += len(line)
        kept.add(span.span_id)
    text = "".join(lines[span.span_id] for span in spans if span.span_id in kept)
    missing = len(spans) - len(kept)
    return text + f"({missing} more spans not listed)\n" if missing else text


def _share_out(needs: Sequence[int], weights: Sequence[float], room: int) -> list[int]:
    """Distribute room by weight; what one part does not need goes to the others."""
    given = [0] * len(needs)
    open_ones = {i for i, need in enumerate(needs) if need}
    left = max(0, room)
    while open_ones:
        unit = left / sum(weights[i] for i in open_ones)
        # Parts that need less than their share get all they need; the rest is shared again.
        settled = {i for i in open_ones if needs[i] <= weights[i] * unit}
        if not settled:
            for i in open_ones:
                given[i] = int(weights[i] * unit)
            break
        for i in settled:
            given[i] = needs[i]
            left -= needs[i]
        open_ones -= settled
    return given


def _body(span: Span, shown: set[str]) -> str:
    """Return the text of a span: errors first, then output, then new input."""
    parts = [f"\n### {span.span_id} {span.kind.value} {span.name}\n"]
    if span.error_message or span.error_type:
        parts.append(f"error: {span.error_type or ''} {span.error_message or ''}\n")
    parts += [f"{event.name}: {_text(event.attributes)}\n" for event in span.events]
    if span.kind == SpanKind.LLM or span.output_messages:
        parts += [f"said: {_message(m)}\n" for m in span.output_messages]
        parts += [f"input ({m.role}): {_message(m)}\n" for m in _new(span.input_messages, shown)]
    else:
        parts += _new_lines("output", _text(span.tool_output or span.output), shown)
        parts += _new_lines("input", _text(span.tool_input or span.input), shown)
    return "".join(parts) if len(parts) > 1 else ""


def _new_lines(label: str, text: str, shown: set[str]) -> list[str]:
    if not text or text in shown:
        return []
    shown.add(text)
    return [f"{label}: {text}\n"]


def _new(messages: Sequence[Message], shown: set[str]) -> list[Message]:
    """Return messages that no earlier span was shown: a conversation appears once, not once per
    turn.
    """
    fresh: list[Message] = []
    for message in messages:
        text = _message(message)
        if text and text not in shown:
            shown.add(text)
            fresh.append(message)
    return fresh


def _message(message: Message) -> str:
    calls = "".join(f" [calls {c.name}({_text(c.arguments)})]" for c in message.tool_calls)
    return f"{message.content or ''}{calls}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else encode_json(value)


# v1 names each kind of error and says what it means; v2 adds how it shows, and two examples.
VERSIONS = ("v1", "v2")

DEFAULT_VERSION = "v2"

# Room for about forty findings with their quotes.
MAX_REPLY_TOKENS = 8192

SCORES = ("reliability", "security", "instruction_adherence", "plan_opt")


def _object(**properties: Any) -> dict[str, Any]:
    # Strict mode of providers demands that every property is required and no other allowed.
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_ERROR = _object(
    category={"type": "string", "enum": [category.value for category in Category]},
    location={"type": "string"},
    evidence={"type": "string"},
    description={"type": "string"},
    impact={"type": "string", "enum": ["HIGH", "MEDIUM", "LOW"]},
)
_SCORE = _object(value={"type": "number"}, reason={"type": "string"})
_SCORES_SHAPE = _object(**dict.fromkeys(SCORES, _SCORE))
ERRORS_SHAPE = _object(errors={"type": "array", "items": _ERROR})
WHOLE_SHAPE = _object(errors={"type": "array", "items": _ERROR}, scores=_SCORES_SHAPE)
PROFILE_SHAPE = _object(
    task={"type": "string"},
    course={"type": "string"},
    suspicions={
        "type": "array",
        "items": _object(location={"type": "string"}, why={"type": "string"}),
    },
)
CHOICE_SHAPE = _object(keep={"type": "array", "items": {"type": "integer"}}, scores=_SCORES_SHAPE)


@cache
def prompt_texts() -> Mapping[str, Any]:
    """Return the fixed texts of prompts.yaml; `hints` are by the name of a category."""
    import yaml

    text = (files("proctor.diagnose.llm") / "prompts.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def single_pass(
    trace_text: str, hints: Sequence[Finding], version: str, custom: str = ""
) -> ChatRequest:
    """Build the single-pass prompt; custom text replaces our instructions, not the data."""
    shipped = [
        _taxonomy(version),
        f"Where:\n{prompt_texts()['location_rules']}",
        f"Scores:\n{prompt_texts()['score_guide']}",
        *([prompt_texts()["examples"]] if version != "v1" else []),
    ]
    parts = [
        *([_filled(custom)] if custom else shipped),
        _leads(hints),
        _fenced("TRACE", trace_text),
        prompt_texts()["ask_whole"],
    ]
    return _request(parts, WHOLE_SHAPE)


def profile(overview: str, hints: Sequence[Finding]) -> ChatRequest:
    """Build the first prompt of three: the task, what the agent did, where to look."""
    parts = [_leads(hints), _fenced("TRACE", overview), prompt_texts()["ask_profile"]]
    return _request(parts, PROFILE_SHAPE)


def investigate(
    part: str,
    known: str,
    hints: Sequence[Finding],
    number: int,
    of: int,
    version: str,
    *,
    custom: str = "",
) -> ChatRequest:
    """Build the second prompt: one part of the trace in detail."""
    shipped = [_taxonomy(version), f"Where:\n{prompt_texts()['location_rules']}"]
    parts = [
        *([_filled(custom)] if custom else shipped),
        _leads(hints),
        _fenced("PROFILE", known),
        _fenced(f"PART {number} OF {of}", part),
        prompt_texts()["ask_part"],
    ]
    return _request(parts, ERRORS_SHAPE)


def synthesise(known: str, candidates: Sequence[Finding]) -> ChatRequest:
    """Build the third prompt: which findings are right, and the scores."""
    listed = "\n".join(
        json.dumps({"number": number, **_brief(finding)}, ensure_ascii=False)
        for number, finding in enumerate(candidates, start=1)
    )
    parts = [
        f"Scores:\n{prompt_texts()['score_guide']}",
        _fenced("PROFILE", known),
        _fenced("FINDINGS", listed or "(none)"),
        prompt_texts()["ask_choice"],
    ]
    return _request(parts, CHOICE_SHAPE)


STEP_SHAPE = _object(agent={"type": "string"}, step={"type": "integer"}, reason={"type": "string"})
VERDICT_SHAPE = _object(error={"type": "boolean"}, reason={"type": "string"})
HALF_SHAPE = _object(
    half={"type": "string", "enum": ["first", "second"]}, reason={"type": "string"}
)

_FAILED_RUN = (
    "The agents below failed their task. The decisive error is the earliest step that, done right, "
    "would have let them succeed."
)


def name_step(log: str, question: str, custom: str = "") -> ChatRequest:
    """Build the prompt that names the decisive step of a whole log."""
    ask = "Reply with the agent, the number of the step, and the reason."
    return _request([custom or _FAILED_RUN, *_log(question, log), ask], STEP_SHAPE)


def judge_step(log: str, question: str, step: int, custom: str = "") -> ChatRequest:
    """Build the prompt that says whether the last step of a log is the decisive error."""
    ask = (
        f"Is step {step}, the last one shown, an error that could lead to the wrong outcome? Reply "
        "with error and reason."
    )
    return _request([custom or _FAILED_RUN, *_log(question, log), ask], VERDICT_SHAPE)


def choose_half(
    log: str, question: str, first: tuple[int, int], second: tuple[int, int], custom: str = ""
) -> ChatRequest:
    """Build the prompt that says in which half of a range the decisive error is."""
    ask = (
        f"Is the decisive error in the first half (steps {first[0]} to {first[1]}) or in the "
        f"second half (steps {second[0]} to {second[1]})? Reply with half and reason."
    )
    return _request([custom or _FAILED_RUN, *_log(question, log), ask], HALF_SHAPE)


def _log(question: str, log: str) -> list[str]:
    return [_fenced("TASK", question or "(not recorded)"), _fenced("STEPS", log)]


def _filled(custom: str) -> str:
    """Return a custom text; `{taxonomy}` in it becomes the list of kinds of error."""
    return custom.replace("{taxonomy}", _taxonomy("v2"))


def repair(request: ChatRequest, reply: str, problem: str) -> ChatRequest:
    """Build the prompt that repeats a request after a reply that did not parse."""
    again = (
        *request.messages,
        Message("assistant", reply[:4000] or "(nothing)"),
        Message("user", f"That could not be read: {problem}. Reply with the JSON object only."),
    )
    return msgspec.structs.replace(request, messages=again)


def _request(parts: Iterable[str], schema: dict[str, Any]) -> ChatRequest:
    return ChatRequest.of(
        "\n\n".join(part for part in parts if part),
        system=prompt_texts()["system"],
        schema=schema,
        # As repeatable as the provider allows.
        temperature=0.0,
        seed=0,
        timeout=300.0,
    )


def _taxonomy(version: str) -> str:
    lines = ["Kinds of error:"]
    for category in Category:
        hint = f" {prompt_texts()['hints'][category.value]}" if version != "v1" else ""
        lines.append(f"- {category.value} ({category.group.value}): {category.meaning}{hint}")
    return "\n".join(lines)


def _leads(hints: Sequence[Finding]) -> str:
    """Format the findings of the detectors without a model: leads to verify."""
    if not hints:
        return ""
    lines = [json.dumps(_brief(finding), ensure_ascii=False) for finding in hints]
    leads = _fenced("LEADS", "\n".join(lines))
    return f"A program that reads only structure has these leads; check each, look beyond.\n{leads}"


def _brief(finding: Finding) -> dict[str, Any]:
    return {
        "category": finding.category.value,
        "location": finding.location,
        "evidence": finding.evidence,
        "description": finding.description,
    }


def _fenced(name: str, text: str) -> str:
    # No text can contain its own hash, so none can close its fence.
    mark = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
    return f"<<<{name} {mark}\n{text}\n{name} {mark}>>>"
