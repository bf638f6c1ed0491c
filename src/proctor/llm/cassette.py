"""Record model responses and replay them, so that a suite runs without a key or a network.

    with Cassette("tests/shop.cassette.jsonl", mode="replay"):
        ...

Guarantees: during replay no request of an HTTP client in this process (httpx, requests, aiohttp,
botocore) reaches the network or needs a key; a request that was not recorded is a `CassetteMiss`
that names it. Each trial gets the responses recorded for it, in order, also when trials run in
parallel. All client libraries that use those are covered (openai, anthropic, pydantic-ai, litellm,
boto3, …), including the user's own.

The file has one line of JSON per request and response, readable and safe to commit:

    {"version": 1}
    {"key": "9f2c…", "trial": "case/agent/0/0", "attempt": 1,
     "request": {"method": "POST", "url": "https://…/chat/completions", "body": {…}},
     "response": {"status": 200, "content_type": "application/json", "json": {…}}}

No header but the content type is stored, and secrets are redacted before anything is written or
compared. Lines are appended whole, so an interrupted recording can be replayed up to that point; a
torn last line is dropped. A file name ending in `.zst` is compressed, one frame per line.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from proctor.errors import ProctorError, did_you_mean
from proctor.formatting import plural
from proctor.llm.http_hook import MISS_STATUS, install, uninstall
from proctor.llm.retry import is_transient_status
from proctor.trace.redact import Redactor, default_redactor

if TYPE_CHECKING:
    from types import TracebackType

VERSION = 1
ZSTD = ".zst"
# A local server gets another port on every start, so its port is not part of a request.
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

# Query parameters that carry keys; the others (such as api-version) distinguish requests.
_SECRET_QUERY = frozenset({"key", "api_key", "api-key", "apikey", "token", "access_token", "sig"})

EVENT_STREAM = "text/event-stream"

# Chunk size for compressed files; most responses are smaller.
_CHUNK = 16 * 1024


class RecordedRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request as stored: no headers, no secrets. `body` is a JSON value if it was JSON."""

    method: str
    url: str
    body: Any = None
    body_sha256: str | None = None

    @property
    def key(self) -> str:
        """Return the matching key of a request."""
        # Sorted: clients write the fields of an object in any order.
        content = msgspec.json.encode(self, order="sorted")
        return hashlib.sha256(content).hexdigest()[:32]

    @property
    def meaning(self) -> str:
        """Return a key without what client libraries add in their own ways, such as defaults."""
        content = msgspec.json.encode(
            (self.method, self.url, _without_defaults(self.body), self.body_sha256), order="sorted"
        )
        return hashlib.sha256(content).hexdigest()[:32]

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "store": (True, False),
    "strict": (True, False),
    "tool_choice": ("auto",),
    "additionalProperties": (False,),
    "parallel_tool_calls": (True,),
}
"""Field of a request → values that a client may as well leave out."""


def _without_defaults(value: Any) -> Any:
    if isinstance(value, dict):
        fields = dict(cast("dict[str, Any]", value))
        if isinstance(fields.get("arguments"), str):
            # JSON in a text, with or without spaces.
            with suppress(msgspec.DecodeError):
                fields["arguments"] = msgspec.json.decode(fields["arguments"])
        return {
            key: _without_defaults(item)
            for key, item in fields.items()
            if not (
                key in _DEFAULTS and any(item is each or item == each for each in _DEFAULTS[key])
            )
        }
    if isinstance(value, list):
        return [_without_defaults(item) for item in cast("list[Any]", value)]
    return value


class RecordedResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A response as stored: as JSON, as text (event streams too), or as base64."""

    status: int
    content_type: str = ""
    json: Any = msgspec.UNSET
    text: str | None = None
    base64: str | None = None

    @property
    def content(self) -> bytes:
        """Return the body to replay."""
        if self.json is not msgspec.UNSET:
            return msgspec.json.encode(self.json)
        if self.text is not None:
            return self.text.encode()
        return base64.b64decode(self.base64 or "")


class RecordedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: trial, request and response."""

    key: str
    request: RecordedRequest
    response: RecordedResponse
    trial: str | None = None
    attempt: int = 1


# -- from requests and responses ---------------------------------------------------------------


def recorded_request(method: str, url: str, body: bytes, redactor: Redactor) -> RecordedRequest:
    """Return a request in its stored form."""
    where = redactor.text(_plain_url(url))
    if not body:
        return RecordedRequest(method.upper(), where)
    try:
        document = json.loads(body)
    except ValueError:
        return RecordedRequest(method.upper(), where, body_sha256=hashlib.sha256(body).hexdigest())
    return RecordedRequest(method.upper(), where, redactor.value(document))


def _plain_url(url: str) -> str:
    """Return a URL without user, keys and, for loopback, the port, which changes each time."""
    parts = urlsplit(url)
    # `hostname` and not `netloc`, which may contain a user and a password.
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port and host not in LOOPBACK else ""
    query = urlencode(
        [(k, v) for k, v in parse_qsl(parts.query, True) if k.lower() not in _SECRET_QUERY]
    )
    return f"{parts.scheme}://{host}{port}{parts.path}" + (f"?{query}" if query else "")


def recorded_response(
    status: int, content_type: str, content: bytes, redactor: Redactor, *, exact: bool = False
) -> RecordedResponse:
    """Return a response in its stored form.

    JSON is stored as JSON, for people to read. With `exact`, only if that gives the same bytes.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return RecordedResponse(status, content_type, base64=base64.b64encode(content).decode())
    if kind == EVENT_STREAM:
        lines = (_redacted_line(line, redactor) for line in text.splitlines(keepends=True))
        return RecordedResponse(status, content_type, text="".join(lines))
    if kind.endswith("json"):
        try:
            document = json.loads(text)
        except ValueError:
            pass  # stored as text
        else:
            stored = RecordedResponse(status, content_type, json=redactor.value(document))
            if not exact or stored.content == content:
                return stored
    return RecordedResponse(status, content_type, text=redactor.text(text))


def _redacted_line(line: str, redactor: Redactor) -> str:
    """Return one line of an event stream, with its JSON redacted."""
    if not line.startswith("data:"):
        return redactor.text(line)
    data = line[5:].strip()
    try:
        document = json.loads(data)
    except ValueError:
        return redactor.text(line)
    clean = redactor.value(document)
    if clean is document or clean == document:
        return line  # byte for byte, since JSON may be formatted in many ways
    return f"data: {json.dumps(clean, ensure_ascii=False)}" + line[len(line.rstrip("\r\n")) :]


# -- reading and writing -----------------------------------------------------------------------


def read_entries(path: Path) -> list[RecordedCall]:
    """Return every complete line of a cassette. Other versions are rejected."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ProctorError(
            "no such cassette", where=str(path), hint="record it first, with --record"
        ) from None
    except OSError as error:
        raise ProctorError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if path.suffix == ZSTD:
        raw, _ = _whole_frames(raw)
    # An unterminated last line was torn by a crash.
    lines = [
        line for line in raw.splitlines(keepends=True) if line.endswith(b"\n") and line.strip()
    ]
    if not lines or _version(lines[0]) != VERSION:
        raise ProctorError(
            f"not a cassette of version {VERSION}", where=str(path), hint="record it again"
        )
    entries: list[RecordedCall] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            entries.append(msgspec.json.decode(line, type=RecordedCall))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProctorError(
                f"not a recorded response: {error}", where=f"{path}:{number}"
            ) from None
    return entries


def _version(line: bytes) -> Any:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return cast("dict[str, Any]", document).get("version") if isinstance(document, dict) else None


def _whole_frames(raw: bytes) -> tuple[bytes, int]:
    """Return the content and end offset of the complete frames; a torn one is left out."""
    import zstandard

    out = bytearray()
    end = 0
    while end < len(raw):
        frame = zstandard.ZstdDecompressor().decompressobj()
        content, at = bytearray(), end
        try:
            while at < len(raw) and not frame.eof:
                content += frame.decompress(raw[at : at + _CHUNK])
                at += _CHUNK
        except zstandard.ZstdError:
            break
        if not frame.eof:
            break
        out += content
        end = min(at, len(raw)) - len(frame.unused_data)
    return bytes(out), end


class Writer:
    """Appends lines to a cassette; each is one write, so that processes can share a file."""

    def __init__(self, path: Path, *, append: bool) -> None:
        self._compress = path.suffix == ZSTD
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if append else os.O_TRUNC)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if append and path.exists():
                # Cut off a torn last line, so that the next one starts on its own line.
                raw = path.read_bytes()
                end = _whole_frames(raw)[1] if self._compress else raw.rfind(b"\n") + 1
                if end != len(raw):
                    os.truncate(path, end)
            self._file = os.open(path, flags, 0o644)
        except OSError as error:
            raise ProctorError(f"cannot be written: {error.strerror}", where=str(path)) from None
        if os.fstat(self._file).st_size == 0:
            self._line(msgspec.json.encode({"version": VERSION}))

    def add(self, entry: RecordedCall) -> None:
        """Append one response."""
        self._line(msgspec.json.encode(entry))

    def _line(self, line: bytes) -> None:
        data = line + b"\n"
        if self._compress:
            import zstandard

            # One frame per line, so that a torn write loses only the last line.
            data = zstandard.ZstdCompressor().compress(data)
        # `os.write` may write less than all of it.
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def close(self) -> None:
        """Fsync and close the file."""
        # Once at the end: a recording can be repeated, so a sync per line is not worth its time.
        os.fsync(self._file)
        os.close(self._file)


# Placeholder keys for replayed calls: clients require a key even if nothing is sent. Existing keys
# are left alone, and placeholders are removed when the replay ends. Their text says that they are
# placeholders, because a program started during the replay may send one to a provider.


STAND_IN = "replayed-without-a-key"

# Key variables that client libraries read; one of several synonyms (`A|B`) is enough.
_KEYS = (
    "OPENAI_API_KEY ANTHROPIC_API_KEY GOOGLE_API_KEY|GEMINI_API_KEY AZURE_OPENAI_API_KEY "
    "CEREBRAS_API_KEY CO_API_KEY DEEPSEEK_API_KEY FIREWORKS_API_KEY GROQ_API_KEY HF_TOKEN "
    "MISTRAL_API_KEY OPENROUTER_API_KEY TOGETHER_API_KEY XAI_API_KEY"
).split()


def _add_placeholder_keys() -> list[str]:
    """Set every unset key to a placeholder; return the names of those variables."""
    added: list[str] = []
    for names in (synonyms.split("|") for synonyms in _KEYS):
        if not any(os.environ.get(name) for name in names):
            os.environ[names[0]] = STAND_IN
            added.append(names[0])
    return added


# Status that client libraries retry like the transient ones.
_CONFLICT = 409

Mode = Literal["record", "replay"]


class CassetteMiss(ProctorError):
    """Raised for a request that was not recorded: an infrastructure error that is not retried."""

    transient = False

    def __init__(self, request: RecordedRequest, reason: str, path: Path) -> None:
        model = request.body.get("model") if isinstance(request.body, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        super().__init__(
            f"no recorded answer for {request}"
            + (f" (model {model})" if isinstance(model, str) else "")
            + f": {reason}; key {request.key}",
            where=str(path),
            hint="the request changed since the recording: record it again, with --record",
        )


@dataclass(slots=True, eq=False)
class _Scope:
    """One attempt of a trial: the responses it has used, and its misses."""

    trial: str | None
    attempt: int
    used: Counter[str] = field(default_factory=Counter[str])
    misses: list[CassetteMiss] = field(default_factory=list[CassetteMiss])


_scope: ContextVar[_Scope | None] = ContextVar("proctor_cassette_trial", default=None)
_active: Cassette | None = None
_switch = threading.Lock()


class Cassette:
    """A recording of model calls, as a context manager.

    `record` truncates the file unless `append` is set (for a resumed run); for a trial recorded
    more than once, the last attempt counts.
    """

    def __init__(
        self,
        path: str | Path,
        mode: Mode = "replay",
        *,
        append: bool = False,
    ) -> None:
        if mode not in ("record", "replay"):
            raise ProctorError(
                f"unknown mode {mode!r}", hint=did_you_mean(mode, ("record", "replay"))
            )
        self.path = Path(path)
        self.mode: Mode = mode
        self._append = append
        self.redactor = default_redactor()
        self._lock = threading.Lock()
        self._writer: Writer | None = None
        self._placeholders: list[str] = []
        self._shelf = _Shelf([])
        self._same: dict[str, str] = {}
        self._outside = _Scope(None, 1)
        self._attempts: dict[str, int] | None = None

    def __enter__(self) -> Cassette:
        global _active  # noqa: PLW0603 (clients are patched for the whole process)
        with _switch:
            if _active is not None:
                raise ProctorError("another cassette is in use", where=str(_active.path))
            if self.mode == "replay":
                entries = list(read_entries(self.path))
                self._shelf = _Shelf(entries)
                # An older version, or another client, may have recorded the same request.
                self._same = {each.request.meaning: each.key for each in entries}
                self._placeholders = _add_placeholder_keys()
            else:
                self._writer = Writer(self.path, append=self._append)
            self._outside = _Scope(None, 1)
            _active = self
            install(self._intercept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _active  # noqa: PLW0603 (clients are patched for the whole process)
        with _switch:
            _active = None
            uninstall(self._intercept)
            for name in self._placeholders:
                if os.environ.get(name) == STAND_IN:  # one changed since then is left alone
                    del os.environ[name]
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        # Requests outside of any trial have no scope that would report their misses.
        if self._outside.misses and (error is None or isinstance(error, Exception)):
            raise self._outside.misses[0] from None

    # -- trials -----------------------------------------------------------------------------

    def trial(self, key: str) -> AbstractContextManager[None]:
        """Assign the requests inside the block to this trial; entering again is another attempt."""
        return self.attempt(key, self._next_attempt(key))

    def _next_attempt(self, key: str) -> int:
        """Return a number above every earlier attempt of a trial, including those in the file."""
        with self._lock:
            if self._attempts is None:
                self._attempts = {}
                recorded = self.mode == "record" and self._append
                # Read on first use, and only when a resumed run appends to the file.
                for entry in read_entries(self.path) if recorded else ():
                    if entry.trial is not None:
                        earlier = self._attempts.get(entry.trial, 0)
                        self._attempts[entry.trial] = max(earlier, entry.attempt)
            self._attempts[key] = self._attempts.get(key, 0) + 1
            return self._attempts[key]

    @contextmanager
    def attempt(self, key: str, number: int) -> Generator[None]:
        """Enter `trial` with a known attempt number."""
        scope = _Scope(key, number)
        token = _scope.set(scope)
        try:
            yield
        except Exception:
            if scope.misses:
                raise scope.misses[0] from None
            raise
        finally:
            _scope.reset(token)
        # An agent that ignored the error must not be judged by its result.
        if scope.misses:
            raise scope.misses[0]

    # -- requests ---------------------------------------------------------------------------

    def _intercept(self, method: str, url: str) -> Callable[[bytes], _CassetteExchange]:
        return lambda body: _CassetteExchange(
            self, recorded_request(method, url, body, self.redactor)
        )

    def has(self, key: str) -> bool:
        """Return whether any trial recorded a response under this key."""
        return self._shelf.has(key)

    def play(self, request: RecordedRequest, key: str = "") -> RecordedResponse:
        """Return the recorded response; on a miss, note it and return one that makes the client
        fail. A `key` replaces that of the request.
        """
        scope = _scope.get() or self._outside
        wanted = key or request.key
        if not key and not self._shelf.has(wanted):
            wanted = self._same.get(request.meaning, wanted)
        with self._lock:
            response = self._shelf.take(wanted, scope)
            if isinstance(response, RecordedResponse):
                return response
            miss = CassetteMiss(request, response, self.path)
            # Remembered, because clients turn the error into one of their own, or swallow it.
            scope.misses.append(miss)
        # A response, not an exception: clients would report that as a connection error and retry
        # it.
        error = {"type": "cassette_miss", "code": "cassette_miss", "message": str(miss)}
        return RecordedResponse(MISS_STATUS, "application/json", json={"error": error})

    def listener(
        self, request: RecordedRequest, key: str = "", *, exact: bool = False
    ) -> Callable[[int, str, bytes], None]:
        """Return a callback that records the status, content type and content of a response.

        A `key` replaces that of the request; `exact` is that of `recorded_response`.
        """
        scope = _scope.get() or self._outside

        def record(status: int, content_type: str, content: bytes) -> None:
            # Not recorded: the client retries these, and a replay would repeat the failure.
            if is_transient_status(status) or status == _CONFLICT:
                return
            stored = recorded_response(status, content_type, content, self.redactor, exact=exact)
            entry = RecordedCall(key or request.key, request, stored, scope.trial, scope.attempt)
            with self._lock:
                if self._writer is not None:
                    self._writer.add(entry)

        return record

    def added_since(self, offset: int) -> bytes:
        """Return what was recorded since an offset of the file, in whole lines."""
        with self._lock, self.path.open("rb") as file:  # a long line takes several writes
            file.seek(offset)
            return file.read()


class _CassetteExchange:
    """One request: replayed, or recorded when its response is complete."""

    def __init__(self, cassette: Cassette, request: RecordedRequest) -> None:
        self._cassette = cassette
        self._request = request
        # Now, since a stream may end in another context.
        self._record = None if cassette.mode == "replay" else cassette.listener(request)

    def replay(self) -> RecordedResponse | None:
        return self._cassette.play(self._request) if self._record is None else None

    def ended(self, status: int, content_type: str, content: bytes) -> None:
        if self._record is not None:
            self._record(status, content_type, content)

    def failed(self, error: BaseException) -> None:
        """Record nothing: a stream that broke has no response."""


def replaying() -> bool:
    """Return whether requests are replayed from a cassette."""
    return _active is not None and _active.mode == "replay"


def active_cassette() -> Cassette | None:
    """Return the cassette in use in this process."""
    return _active


def cassette_trial(key: str, part: str = "") -> AbstractContextManager[None]:
    """Assign the requests inside the block to a trial, or to a part of it such as `#judge`.

    Free when no cassette is active.
    """
    if _active is None:
        return _NO_CASSETTE
    # People read the file.
    return _active.trial(key.replace("\0", "/") + part)


_NO_CASSETTE = nullcontext()


class HandedOver(msgspec.Struct, frozen=True):
    """State that a child process needs to continue with the active cassette."""

    path: str
    mode: Mode
    trial: str | None
    attempt: int


def hand_over() -> HandedOver | None:
    """Return the active cassette and trial for a child process; None without one."""
    if _active is None:
        return None
    scope = _scope.get()
    trial, attempt = (None, 1) if scope is None else (scope.trial, scope.attempt)
    return HandedOver(str(_active.path.resolve()), _active.mode, trial, attempt)


@contextmanager
def taken_over(handed: HandedOver | None) -> Generator[None]:
    """Use the parent's cassette in a child process."""
    if handed is None:
        yield
        return
    # Appended: the parent writes to the same file, and truncating it would lose its responses.
    cassette = Cassette(handed.path, handed.mode, append=True)
    scope = cassette.attempt(handed.trial, handed.attempt) if handed.trial else nullcontext()
    with cassette, scope:
        yield


class _Shelf:
    """Recorded responses by trial and request: the trial's own, or unused ones for other trials."""

    def __init__(self, entries: list[RecordedCall]) -> None:
        last: dict[str | None, int] = {}
        for entry in entries:
            last[entry.trial] = max(last.get(entry.trial, 0), entry.attempt)
        self._by_trial: dict[tuple[str | None, str], list[RecordedResponse]] = defaultdict(list)
        self._by_content: dict[str, list[RecordedResponse]] = defaultdict(list)
        self._trials = frozenset(trial for trial in last if trial is not None)
        self._cells = frozenset(cell for trial in self._trials if (cell := _cell_of(trial)))
        self._next: Counter[str] = Counter()
        for entry in entries:
            # Only the last attempt: earlier ones were abandoned half-way.
            if entry.trial is not None and entry.attempt != last[entry.trial]:
                continue
            self._by_trial[entry.trial, entry.key].append(entry.response)
            self._by_content[entry.key].append(entry.response)

    def has(self, key: str) -> bool:
        return key in self._by_content

    def take(self, key: str, scope: _Scope) -> RecordedResponse | str:
        """Return the next response to a request, or the reason why there is none."""
        known = scope.trial in self._trials
        # An additional trial does not get the responses of another: those would count twice.
        if known or (scope.trial is not None and _cell_of(scope.trial) in self._cells):
            own = self._by_trial.get((scope.trial, key)) or self._by_trial.get((None, key), [])
            used = scope.used[key]
            scope.used[key] += 1
        else:
            own = self._by_content.get(key, [])
            used = self._next[key]
            self._next[key] += 1
        if used < len(own):
            return own[used]
        if own:
            return f"it was recorded {plural(len(own), 'time')} and requested once more"
        if known:
            return f"it was not made in trial {scope.trial!r} during the recording"
        if scope.trial is not None and _cell_of(scope.trial) in self._cells:
            return f"trial {scope.trial!r} was not recorded, although other trials of the case were"
        return "it was not made during the recording"


def _cell_of(trial: str) -> str:
    """Return what trials of one case share, without their number; empty for other names."""
    cell, _, number = trial.partition("#")[0].rpartition("/")
    return cell if number.isdecimal() else ""
