"""A trace as the conversation it was: messages in order, tool calls as cards, each message once.

Guarantees: every model call, tool call, retrieval and error of a trace is in one turn, and a turn
names its spans, so that checks and findings can link to it. Text of agents is escaped; Markdown
becomes a small set of tags of ours, without links, frames or foreign images. An image is shown only
if its bytes are in the trace. Trade-off: a repeated message is shown once for each time that one
model call was sent it, because every call repeats the conversation before it.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import msgspec
from markupsafe import Markup, escape

from proctor.formatting import tokens
from proctor.sanitize import json_value, line, visible
from proctor.server.pages._span_view import text_of
from proctor.trace import Span, SpanKind, Trace
from proctor.trace.model import Message, ToolCall

MAX_TEXT = 20_000
"""Characters shown of one message. The spans of the trace show five times as many."""

TURNS_SHOWN = 50
"""Turns of a conversation on one page: more take longer to open than to read."""

MAX_MARKDOWN = 8_000
"""Characters up to which a message is read as Markdown: hostile text takes quadratic time."""

MAX_IMAGE = 1_500_000
"""Bytes of an image that is shown."""

ROLES = {"developer": "system", "human": "user", "ai": "assistant", "model": "assistant"}
"""Names of roles in some frameworks → the usual ones."""

_IMAGE_PARTS = ("image", "blob", "inline_data", "inlinedata", "media", "file")
_DATA_URL = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/=\s]+)")
_MAGIC = {
    "image/png": (b"\x89PNG",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}


@dataclass
class CallCard:
    """A tool call or a retrieval: what it was asked, what it returned."""

    name: str
    arguments: str | None = None
    result: str | None = None
    call_id: str | None = None
    span_id: str | None = None
    ms: float | None = None
    failed: bool = False
    error: str | None = None


@dataclass
class ShownTurn:
    """One message with the calls that it requested."""

    role: str
    author: str = ""
    text: str | None = None
    calls: list[CallCard] = field(default_factory=list[CallCard])
    images: list[str] = field(default_factory=list[str])
    """Data URLs of images whose bytes are in the trace."""
    others: tuple[str, ...] = ()
    """Kinds of parts that are not text, such as `reasoning`."""
    span_id: str | None = None
    model: str | None = None
    tokens: str | None = None
    cost_usd: float | None = None
    ms: float | None = None
    failed: bool = False
    error: str | None = None
    number: int = 0

    @property
    def html(self) -> Markup:
        """The text as safe markup."""
        return rendered(self.text or "")

    @property
    def span_ids(self) -> list[str]:
        """The spans that this turn shows."""
        own = [self.span_id] if self.span_id else []
        return own + [call.span_id for call in self.calls if call.span_id]


def turns_of(trace: Trace, answer: str | None = None) -> list[ShownTurn]:
    """Return the turns of a trace, numbered from 1; `answer` is that of its trial."""
    reader = _Reader()
    if trace.query is not None and not any(
        message.role == "user" for span in trace.spans for message in span.input_messages
    ):
        reader.say("user", None, trace.query)
    for span in trace.index.spans:
        reader.read(span)
    last = answer if answer is not None else trace.response
    if last and not any(_same(turn.text, last) for turn in reader.turns[-3:]):
        reader.say("assistant", None, last)
    for number, turn in enumerate(reader.turns, 1):
        turn.number = number
    return reader.turns


def turn_links(turns: Sequence[ShownTurn], trace: Trace | None) -> dict[str, tuple[int, str]]:
    """Return the number and the address of the turn that shows each span; of a root, the last."""
    links: dict[str, tuple[int, str]] = {}
    for turn in turns:
        start = turn.number - (turn.number - 1) % TURNS_SHOWN
        page = "" if len(turns) <= TURNS_SHOWN else f"?from={start}"
        roots = trace.roots if trace is not None and turn is turns[-1] else []
        for span_id in (*turn.span_ids, *(root.span.span_id for root in roots)):
            links.setdefault(span_id, (turn.number, f"{page}#turn-{turn.number}"))
    return links


class _Reader:
    """Collects turns from spans in the order of their start."""

    def __init__(self) -> None:
        self.turns: list[ShownTurn] = []
        self._seen: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
        self._cards: dict[str, CallCard] = {}
        """Calls by their id."""
        self._open: dict[str, list[CallCard]] = {}
        """Requested calls without a span, by the name of their tool."""
        self._names: set[str] = set()
        self._results: set[str | None] = set()
        self._shown_images: set[str] = set()

    def read(self, span: Span) -> None:
        if span.kind == SpanKind.LLM:
            self._model_call(span)
        elif span.kind == SpanKind.TOOL:
            self._tool(span)
        elif span.kind == SpanKind.RETRIEVAL:
            found = "\n\n".join(
                f"{each.id or 'document'}{'' if each.score is None else f' (score {each.score:g})'}"
                f"\n{each.text or ''}"
                for each in span.documents[:50]
            )
            card = CallCard(span.name, _text(span.input), _text(found or span.output))
            self._place(card, span)
        elif span.kind == SpanKind.HANDOFF:
            self._add(
                ShownTurn("note", span.agent_name or "", f"hands off to {span.handoff_to}"), span
            )
        elif span.name == "turn" and isinstance(span.input, str):
            self.say("user", span, span.input)
        elif span.failed and span.error_message:
            # An error often propagates to the parents: it is shown where it began.
            error = _error(span)
            known = {each.error for each in self.turns[-3:]} | {
                call.error for each in self.turns[-3:] for call in each.calls
            }
            if error not in known and span.kind not in (SpanKind.AGENT, SpanKind.CHAIN):
                self._add(ShownTurn("note", span.agent_name or "", line(span.name, 100)), span)

    def say(self, role: str, span: Span | None, content: Any) -> None:
        """Add a message that is known as a value, unless a model call has shown it."""
        text = _text(content)
        key = _key(role, text)
        if text and not self._seen[key]:
            self._seen[key] += 1
            self._add(ShownTurn(role, text=text), span)

    def _model_call(self, span: Span) -> None:
        sent: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
        with_images: ShownTurn | None = None
        for message in span.input_messages:
            role = ROLES.get(message.role, message.role)
            key = _key(role, message.content, message.tool_calls)
            sent[key] += 1
            if sent[key] <= self._seen[key]:
                continue
            if role == "tool":
                self._result(message)
                continue
            if role == "assistant" and not message.content and self._known(message.tool_calls):
                continue
            turn = ShownTurn(role, message.name or "", _text(message.content), others=message.other)
            self._request(turn, message.tool_calls)
            self._add(turn)
            kinds = [each.lower().removeprefix("input_") for each in message.other]
            if any(each.startswith(_IMAGE_PARTS) for each in kinds):
                with_images = turn
        for key, count in sent.items():
            self._seen[key] = max(self._seen[key], count)
        if not span.input_messages and not self.turns:
            self.say("user", None, span.input)
        if with_images is not None:
            for url in images_in(span):
                if url not in self._shown_images:
                    self._shown_images.add(url)
                    with_images.images.append(url)
        messages = span.output_messages or (Message("assistant", _text(span.output)),)
        for at, message in enumerate(messages):
            turn = ShownTurn("assistant", span.agent_name or "", _text(message.content))
            turn.others = message.other
            self._request(turn, message.tool_calls)
            self._seen[_key("assistant", message.content, message.tool_calls)] += 1
            if at == 0:  # tokens and cost are those of the whole call
                turn.model, turn.cost_usd = span.model, span.cost_usd
                turn.tokens = tokens(span.input_tokens, span.output_tokens)
                turn.ms = None if span.duration_ns is None else span.duration_ns / 1e6
                self._add(turn, span)
            else:
                self._add(turn)

    def _known(self, calls: Sequence[ToolCall]) -> bool:
        """Whether earlier turns show these calls, as they do if a span recorded each of them."""
        return all(call.id in self._cards or call.name in self._names for call in calls)

    def _request(self, turn: ShownTurn, calls: Sequence[ToolCall]) -> None:
        for call in calls:
            card = CallCard(call.name, _text(call.arguments), _text(call.result), call.id)
            turn.calls.append(card)
            self._open.setdefault(call.name, []).append(card)
            self._remember(card)

    def _remember(self, card: CallCard) -> None:
        self._names.add(card.name)
        self._results.add(card.result)
        if card.call_id:
            self._cards[card.call_id] = card

    def _tool(self, span: Span) -> None:
        name = span.tool_name or span.name
        output = span.tool_output if span.tool_output is not None else span.output
        asked = span.tool_input if span.tool_input is not None else span.input
        waiting = self._open.get(name, [])
        card = next((each for each in waiting if each.call_id == span.tool_call_id), None)
        if card is None and waiting and span.tool_call_id is None:
            card = waiting[0]
        if card is None:
            card = CallCard(name, call_id=span.tool_call_id)
            self._place(card, span)
        else:
            waiting.remove(card)
        card.arguments = card.arguments or _text(asked)
        card.result = _text(output) or card.result
        self._results.add(card.result)
        self._finish(card, span)

    def _result(self, message: Message) -> None:
        """Attach the message of a tool to its call; one without a call is a card of its own."""
        result, wanted = _text(message.content), message.tool_call_id
        if wanted and (card := self._cards.get(wanted)) is not None:
            card.result = card.result or result
        elif wanted is not None or result not in self._results:
            self._place(CallCard(message.name or "tool", result=result, call_id=wanted), None)

    def _place(self, card: CallCard, span: Span | None) -> None:
        """Add a call that no message requested: to the turn before, if that has only calls."""
        if not self.turns or self.turns[-1].role != "tool":
            self._add(ShownTurn("tool", (span.agent_name if span else None) or ""))
        self.turns[-1].calls.append(card)
        self._remember(card)
        if span is not None:
            self._finish(card, span)

    def _finish(self, card: CallCard, span: Span) -> None:
        card.span_id, card.failed, card.error = span.span_id, span.failed, _error(span)
        card.ms = None if span.duration_ns is None else span.duration_ns / 1e6

    def _add(self, turn: ShownTurn, span: Span | None = None) -> None:
        if span is not None:
            turn.span_id, turn.failed, turn.error = span.span_id, span.failed, _error(span)
        self.turns.append(turn)


def _key(
    role: str, content: Any, calls: Sequence[ToolCall] = ()
) -> tuple[str, str, tuple[str, ...]]:
    text = content if isinstance(content, str) else _text(content) or ""
    return role, text[: MAX_TEXT // 2].strip(), tuple(call.name for call in calls)


def _same(shown: str | None, text: str) -> bool:
    # Shown text has visible characters and may be cut.
    return bool(shown) and visible(text[:MAX_TEXT])[:2000].strip() in (shown or "")


def _text(value: Any) -> str | None:
    return text_of(value, MAX_TEXT)


def _error(span: Span) -> str | None:
    if not span.failed:
        return None
    return _text(": ".join(part for part in (span.error_type, span.error_message) if part))


# -- images ----------------------------------------------------------------------------------------


def images_in(span: Span) -> list[str]:
    """Return the images of a model call's input as data URLs, from bytes in the trace only."""
    found: dict[str, None] = {}
    for value in (span.attributes, span.input):
        for url in _images(value, 0):
            found[url] = None
    return list(found)


def _images(value: Any, depth: int) -> Iterator[str]:
    if depth > 16:
        return
    if isinstance(value, str):
        if "base64" not in value and "image/" not in value:
            return
        if value[:1] in ("{", "["):
            try:
                yield from _images(msgspec.json.decode(value), depth + 1)
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
                return
        for kind, data in _DATA_URL.findall(value):
            yield from _image(kind, data)
    elif isinstance(value, Mapping):
        parts = cast("Mapping[str, Any]", value)
        kind = next(
            (parts[key] for key in ("media_type", "mime_type", "mimeType") if key in parts), None
        )
        data = next((parts[key] for key in ("data", "content") if key in parts), None)
        if isinstance(kind, str) and isinstance(data, str):
            yield from _image(kind, data)
        for each in parts.values():
            yield from _images(each, depth + 1)
    elif isinstance(value, list | tuple):
        for each in cast("Sequence[Any]", value):
            yield from _images(each, depth + 1)


def _image(kind: str, data: str) -> Iterator[str]:
    """Yield the data URL of an image if it is what it claims to be."""
    if kind not in _MAGIC or len(data) > MAX_IMAGE * 4 // 3:
        return
    try:
        content = base64.b64decode(data, validate=False)
    except (binascii.Error, ValueError):
        return
    if content.startswith(_MAGIC[kind]):
        yield f"data:{kind};base64,{base64.b64encode(content).decode()}"


# -- Markdown --------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _markdown() -> Any:
    from markdown_it import MarkdownIt

    def fixed(text: str) -> Callable[..., str]:
        def rule(*_: Any) -> str:
            return text

        return rule

    def heading(self: Any, tokens: Any, index: int, *_: Any) -> str:
        return f'<p class="head {tokens[index].tag}">'

    def cell(self: Any, tokens: Any, index: int, *_: Any) -> str:
        # The alignment comes as a style, which the content security policy of our pages forbids.
        right = "right" in (tokens[index].attrGet("style") or "")
        return f'<{tokens[index].tag} class="n">' if right else f"<{tokens[index].tag}>"

    def link_close(self: Any, tokens: Any, index: int, *_: Any) -> str:
        opened = next(each for each in reversed(tokens[:index]) if each.type == "link_open")
        # The address is shown, never followed: its text may name another one.
        return f'</span> <span class="address">({escape(opened.attrGet("href") or "")})</span>'

    def image(self: Any, tokens: Any, index: int, *_: Any) -> str:
        source, name = tokens[index].attrGet("src") or "", tokens[index].content
        if match := _DATA_URL.fullmatch(source):
            for url in _image(*match.groups()):
                return f'<img src="{url}" alt="{escape(name or "image of the message")}">'
        return f'<span class="address">[image {escape(name)} {escape(source[:300])}]</span>'

    def code(self: Any, tokens: Any, index: int, *_: Any) -> str:
        return f'<pre class="free-text" tabindex="0">{escape(tokens[index].content)}</pre>'

    made = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    for name, rule in {
        "heading_open": heading,
        "heading_close": fixed("</p>"),
        "link_open": fixed('<span class="link">'),
        "link_close": link_close,
        "image": image,
        "code_block": code,
        "fence": code,
        "table_open": fixed('<div class="scroll" tabindex="0" role="region"><table>'),
        "table_close": fixed("</table></div>"),
        "th_open": cell,
        "td_open": cell,
    }.items():
        made.add_render_rule(name, rule)
    return made


@lru_cache(maxsize=2_000)
def rendered(text: str) -> Markup:
    """Return Markdown as safe markup; JSON and very long text as they are."""
    # A link or a footnote also starts with a bracket.
    data = text[:1] in ("{", "[") and text.rstrip()[-1:] in ("}", "]")
    plain = data or len(text) > MAX_MARKDOWN
    if plain:
        return Markup('<pre class="free-text" tabindex="0">{}</pre>').format(text)
    return Markup(_markdown().render(text))  # noqa: S704 (rules above escape every text)


# -- copies ----------------------------------------------------------------------------------------


def as_curl(span: Span) -> str:
    """Return a model call as a command for any server that speaks OpenAI's chat protocol."""
    messages: list[dict[str, Any]] = []
    for message in span.input_messages:
        calls = [
            {
                "id": call.id or f"call_{at}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments
                    if isinstance(call.arguments, str)
                    else msgspec.json.encode(json_value(call.arguments)).decode(),
                },
            }
            for at, call in enumerate(message.tool_calls)
        ]
        said: dict[str, Any] = {
            "role": ROLES.get(message.role, message.role),
            "content": message.content,
            "tool_calls": calls,
            "tool_call_id": message.tool_call_id,
        }
        messages.append({key: value for key, value in said.items() if value not in (None, [])})
    body = msgspec.json.encode(json_value({"model": span.model or "MODEL", "messages": messages}))
    return (
        'curl "${OPENAI_BASE_URL:-https://api.openai.com/v1}/chat/completions" \\\n'
        '  -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" \\\n'
        f"  -d {shlex.quote(body.decode())}\n"
    )


def as_yaml(document: Mapping[str, Any]) -> str:
    """Return a suite as YAML."""
    import yaml

    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


# -- files -----------------------------------------------------------------------------------------

MAX_DIFF = 3_000
"""Lines shown of a diff."""


def diff_lines(diff: str) -> list[tuple[str, str]]:
    """Return the lines of a unified diff with their tone: `added`, `removed`, `place`, `file`."""
    lines = diff.splitlines()
    tones = {"+++": "file", "---": "file", "dif": "file", "@@ ": "place"}
    shown = [
        (
            tones.get(each[:3]) or {"+": "added", "-": "removed"}.get(each[:1], ""),
            visible(each[:MAX_TEXT]),
        )
        for each in lines[:MAX_DIFF]
    ]
    more = len(lines) - len(shown)
    return [*shown, *([("place", f"… {more:,} more lines")] if more else [])]
