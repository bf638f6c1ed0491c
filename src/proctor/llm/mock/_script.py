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
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import ConfigDict, Field, model_validator

from proctor.errors import ProctorError, refuse_unknown
from proctor.files import load_yaml
from proctor.strict import Strict, read_strict
from proctor.trace import Message

FOREVER = "forever"

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

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


class ScriptModel(Strict):
    """A part of a script. Strict: the text "3" is no number."""

    model_config = ConfigDict(strict=True)


class When(ScriptModel):
    """Condition of a reply; every part that is given must match.

    `contains` and `regex` match the last message that is not from the system; `anywhere` matches
    the whole conversation. A text is `contains`.
    """

    contains: str | None = None
    regex: re.Pattern[str] | None = None
    anywhere: str | None = None
    model: str | None = None
    tool_result: bool | str | None = None
    tool: str | None = None
    protocol: Literal["openai-chat", "openai-responses", "anthropic", "gemini"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"contains": value} if isinstance(value, str) else value

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


class Failure(ScriptModel):
    """An HTTP error instead of a reply: its status, or a mapping."""

    status: int = Field(ge=400, le=599)
    message: str = "scripted error"
    retry_after: Seconds | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_status(cls, value: Any) -> Any:
        if isinstance(value, int):
            return {"status": value, "message": f"scripted error {value}"}
        return value


class ScriptedCall(ScriptModel):
    """A tool call of the model."""

    name: str = Field(min_length=1)
    arguments: Any = Field(default_factory=dict[str, Any])
    """A text is sent as it is, to script a model that writes broken JSON."""
    id: str | None = None


class ScriptedUsage(ScriptModel):
    """The token counts to report."""

    input: int = Field(default=0, ge=0)
    output: int = Field(default=0, ge=0)


class Reply(ScriptModel):
    """A scripted reply, its condition and its number of uses.

    `json` is an object to send as text. `usage` None counts tokens by `estimate_tokens`; False
    leaves usage out of the reply.
    """

    text: str = ""
    tool_calls: list[ScriptedCall] = Field(default_factory=list[ScriptedCall])
    when: When | None = None
    times: int | None = Field(default=1, ge=1)
    usage: ScriptedUsage | Literal[False] | None = None
    latency: Seconds = 0.0
    chunk_latency: Seconds = 0.0
    error: Failure | None = None
    malformed: Literal["bad_json", "truncated", "cut", "wrong_shape"] | None = None
    finish_reason: str | None = None
    model: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"text": value}
        if not isinstance(value, dict):
            return value
        fields = dict(cast("dict[str, Any]", value))
        if "json" in fields:
            if "text" in fields:
                raise ValueError("give `text` or `json`, not both")
            fields["text"] = json.dumps(fields.pop("json"), ensure_ascii=False)
        if fields.get("times") == FOREVER:
            fields["times"] = None
        if "usage" in fields and fields["usage"] is None:
            fields["usage"] = False
        return fields


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
        document = load_yaml(path.read_text(encoding="utf-8"))
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
    return read_strict(Reply, value, where)
