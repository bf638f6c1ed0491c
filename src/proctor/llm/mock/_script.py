"""Scripts of the mock model: replies in order, each optionally with a condition.

Guarantees: the same requests in the same order get the same replies, and an error in a script names
its place. A reply is used once unless it sets `times`.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

from proctor.errors import ProctorError, hint_among, refuse_unknown
from proctor.trace import Message, ToolCall

FOREVER = "forever"
MALFORMED = ("bad_json", "truncated", "cut", "wrong_shape")
PROTOCOLS = ("openai-chat", "openai-responses", "anthropic")

# Maximum size; scripts are written by hand, so a larger file is the wrong file.
_MAX_SCRIPT_BYTES = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRequest:
    """One request to the server, in a form common to all protocols.

    `reply` is the place in the script of its reply (`default`, or None if nothing matched); `body`
    is the request as sent.
    """

    protocol: str
    path: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()
    stream: bool = False
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    reply: int | str | None = None

    @property
    def text(self) -> str:
        """Return the text of the conversation, one line group per message."""
        return "\n".join(message.content or "" for message in self.messages)

    @property
    def last(self) -> Message | None:
        """Return the last message, the one to reply to."""
        return self.messages[-1] if self.messages else None


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """Condition of a reply; every part that is given must match.

    `contains` and `regex` match the last message that is not from the system; `anywhere` matches
    the whole conversation.
    """

    contains: str | None = None
    regex: re.Pattern[str] | None = None
    anywhere: str | None = None
    model: str | None = None
    tool_result: bool | str | None = None
    tool: str | None = None
    protocol: str | None = None

    def matches(self, request: ScriptRequest) -> bool:
        """Return whether this request matches."""
        spoken = [m for m in request.messages if m.role not in ("system", "developer")]
        last = spoken[-1] if spoken else None
        text = (last.content or "") if last else ""
        is_result = last is not None and last.role == "tool"
        if isinstance(self.tool_result, bool) and self.tool_result != is_result:
            return False
        if isinstance(self.tool_result, str) and not (is_result and self.tool_result in text):
            return False
        return (
            (self.contains is None or self.contains in text)
            and (self.regex is None or self.regex.search(text) is not None)
            and (self.anywhere is None or self.anywhere in request.text)
            and (self.model is None or fnmatch.fnmatchcase(request.model, self.model))
            and (self.tool is None or self.tool in request.tools)
            and (self.protocol is None or self.protocol == request.protocol)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An HTTP error instead of a reply."""

    status: int
    message: str = "scripted error"
    retry_after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A scripted reply, its condition and its number of uses.

    `usage` None counts tokens by `estimate_tokens`; False leaves usage out of the reply.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    when: When | None = None
    times: int | None = 1
    usage: tuple[int, int] | bool | None = None
    latency: float = 0.0
    chunk_latency: float = 0.0
    error: Failure | None = None
    malformed: str | None = None
    finish_reason: str | None = None
    model: str | None = None


ReplyLike: TypeAlias = "Reply | str | Mapping[str, Any] | Callable[[ScriptRequest], Any]"


class Script:
    """Replies in order, with use counts. Not thread-safe: the server locks."""

    def __init__(self, replies: Iterable[ReplyLike], default: ReplyLike | None = None) -> None:
        self._replies = [_entry(reply, f"replies[{i}]") for i, reply in enumerate(replies)]
        self._default = None if default is None else _entry(default, "default")
        self._used = [0] * len(self._replies)

    def answer(self, request: ScriptRequest) -> tuple[int | str | None, Reply | None]:
        """Return the place and the reply for a request; (None, None) if none is left."""
        for position, entry in enumerate(self._replies):
            shell = entry if isinstance(entry, Reply) else _CALLABLE
            spent = shell.times is not None and self._used[position] >= shell.times
            if spent or (shell.when is not None and not shell.when.matches(request)):
                continue
            self._used[position] += 1
            return position, _resolve(entry, request, f"replies[{position}]")
        if self._default is not None:
            return "default", _resolve(self._default, request, "default")
        return None, None

    @property
    def unused(self) -> list[int]:
        """Return the places of unused replies."""
        return [position for position, used in enumerate(self._used) if used == 0]

    def __len__(self) -> int:
        return len(self._replies)


# Default of a function in a script: any request, unlimited uses.
_CALLABLE = Reply(times=None)


def load_script(source: Any) -> Script:
    """Load a script from a YAML file, a list of replies, or `{replies: [...], default: ...}`."""
    if isinstance(source, Script):
        return source
    if isinstance(source, Path) or (
        isinstance(source, str) and source.endswith((".yaml", ".yml", ".json"))
    ):
        return _load_file(Path(source))
    if isinstance(source, str):
        return Script([source])
    if isinstance(source, Mapping):
        fields = cast(Mapping[str, Any], source)
        refuse_unknown(fields, ("replies", "default"), "script")
        replies = fields.get("replies", [])
        if not isinstance(replies, Sequence) or isinstance(replies, str):
            raise ProctorError("replies must be a list", where="script")
        return Script(cast(Sequence[ReplyLike], replies), fields.get("default"))
    if callable(source):
        return Script([cast(Callable[[ScriptRequest], Any], source)])
    return Script(cast(Iterable[ReplyLike], source))


def _load_file(path: Path) -> Script:
    import yaml

    try:
        if path.stat().st_size > _MAX_SCRIPT_BYTES:
            raise ProctorError(f"larger than {_MAX_SCRIPT_BYTES} bytes", where=str(path))
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProctorError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise ProctorError(
            f"not UTF-8 text at byte {error.start}", where=str(path), hint="save the file as UTF-8"
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or str(error)
        raise ProctorError(f"not valid YAML: {problem}", where=place) from error
    if not isinstance(document, list | dict):
        raise ProctorError(
            "a script is a list of replies, or a mapping with `replies`", where=str(path)
        )
    try:
        return load_script(cast(Any, document))
    except ProctorError as error:
        where = f"{path}: {error.where}" if error.where else str(path)
        raise ProctorError(error.message, where=where, hint=error.hint) from error


# -- parsing one reply ----------------------------------------------------------------------


def _entry(value: Any, where: str) -> Reply | Callable[[ScriptRequest], Any]:
    return value if callable(value) else reply_from(value, where)


def _resolve(
    entry: Reply | Callable[[ScriptRequest], Any], request: ScriptRequest, where: str
) -> Reply:
    return entry if isinstance(entry, Reply) else reply_from(entry(request), f"{where}()")


def reply_from(value: Any, where: str = "reply") -> Reply:
    """Parse a reply: its text, or a mapping."""
    if isinstance(value, Reply):
        return value
    if isinstance(value, str):
        return Reply(text=value)
    fields = _mapping(value, where)
    refuse_unknown(fields, (*Reply.__dataclass_fields__, "json"), where)
    if "text" in fields and "json" in fields:
        raise ProctorError("give `text` or `json`, not both", where=where)
    text = (
        json.dumps(fields["json"], ensure_ascii=False) if "json" in fields else fields.get("text")
    )
    malformed = fields.get("malformed")
    if malformed is not None and malformed not in MALFORMED:
        raise ProctorError(
            f"unknown kind of malformed reply {malformed!r}",
            where=f"{where}.malformed",
            hint=hint_among(str(malformed), MALFORMED),
        )
    return Reply(
        text=_text(text or "", f"{where}.text"),
        tool_calls=_tool_calls(fields.get("tool_calls") or (), f"{where}.tool_calls"),
        when=_when(fields.get("when"), f"{where}.when"),
        times=_times(fields.get("times", 1), f"{where}.times"),
        usage=_usage(fields["usage"], f"{where}.usage") if "usage" in fields else None,
        latency=_seconds(fields.get("latency", 0.0), f"{where}.latency"),
        chunk_latency=_seconds(fields.get("chunk_latency", 0.0), f"{where}.chunk_latency"),
        error=_failure(fields.get("error"), f"{where}.error"),
        malformed=malformed,
        finish_reason=fields.get("finish_reason"),
        model=fields.get("model"),
    )


def _tool_calls(value: Any, where: str) -> tuple[ToolCall, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ProctorError("tool_calls must be a list", where=where)
    calls: list[ToolCall] = []
    for index, item in enumerate(cast(Sequence[Any], value)):
        call = _mapping(item, f"{where}[{index}]")
        refuse_unknown(call, ("name", "arguments", "id"), f"{where}[{index}]")
        if not call.get("name"):
            raise ProctorError("a tool call needs a name", where=f"{where}[{index}]")
        # Arguments may be a string, to script a model that writes broken JSON.
        calls.append(
            ToolCall(
                name=_text(call["name"], f"{where}[{index}].name"),
                arguments=call.get("arguments", {}),
                id=call.get("id"),
            )
        )
    return tuple(calls)


def _when(value: Any, where: str) -> When | None:
    if value is None:
        return None
    if isinstance(value, str):
        return When(contains=value)
    fields = dict(_mapping(value, where))
    refuse_unknown(fields, tuple(When.__dataclass_fields__), where)
    if (pattern := fields.get("regex")) is not None:
        try:
            fields["regex"] = re.compile(_text(pattern, f"{where}.regex"))
        except re.error as error:
            raise ProctorError(
                f"not a regular expression: {error}", where=f"{where}.regex"
            ) from error
    protocol = fields.get("protocol")
    if protocol is not None and protocol not in PROTOCOLS:
        raise ProctorError(
            f"unknown protocol {protocol!r}",
            where=f"{where}.protocol",
            hint=hint_among(str(protocol), PROTOCOLS),
        )
    return When(**fields)


def _failure(value: Any, where: str) -> Failure | None:
    if value is None:
        return None
    fields = {"status": value} if isinstance(value, int) else _mapping(value, where)
    refuse_unknown(fields, ("status", "message", "retry_after"), where)
    status = fields.get("status")
    if isinstance(status, bool) or not isinstance(status, int) or not 400 <= status <= 599:
        raise ProctorError(f"status must be 400 to 599, not {status!r}", where=where)
    retry_after = fields.get("retry_after")
    return Failure(
        status=status,
        message=_text(fields.get("message", f"scripted error {status}"), f"{where}.message"),
        retry_after=None if retry_after is None else _seconds(retry_after, f"{where}.retry_after"),
    )


def _times(value: Any, where: str) -> int | None:
    if value in (FOREVER, None):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ProctorError(f"times must be 1 or more, or `{FOREVER}`, not {value!r}", where=where)
    return value


def _usage(value: Any, where: str) -> tuple[int, int] | bool:
    if value is None or value is False:
        return False
    fields = _mapping(value, where)
    refuse_unknown(fields, ("input", "output"), where)
    counts = (fields.get("input", 0), fields.get("output", 0))
    if any(isinstance(c, bool) or not isinstance(c, int) or c < 0 for c in counts):
        raise ProctorError("token counts are whole numbers from 0", where=where)
    return counts


def _seconds(value: Any, where: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < float("inf"):
        raise ProctorError(f"a number of seconds, not {value!r}", where=where)
    return float(value)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ProctorError(
            f"a string, not {type(value).__name__}", where=where, hint="put it in quotes"
        )
    return value


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ProctorError(f"a mapping, not {type(value).__name__}", where=where)
    return cast(Mapping[str, Any], value)
