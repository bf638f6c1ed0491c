"""Cassette files: one line of JSON per request and response, readable and safe to commit.

    {"version": 1}
    {"key": "9f2c…", "trial": "case/agent/0/0", "attempt": 1,
     "request": {"method": "POST", "url": "https://…/chat/completions", "body": {…}},
     "response": {"status": 200, "content_type": "application/json", "json": {…}}}

Guarantees: no header but the content type is stored, and secrets are redacted before anything is
written or compared. Lines are appended whole, so an interrupted recording can be replayed up to
that point; a torn last line is dropped. A file name ending in `.zst` is compressed, one frame per
line.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from proctor.errors import ProctorError
from proctor.trace.redact import Redactor

VERSION = 1
ZSTD = ".zst"
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

SECRET_QUERY = frozenset({"key", "api_key", "api-key", "apikey", "token", "access_token", "sig"})
"""Query parameters that carry keys; the others (such as api-version) distinguish requests."""

EVENT_STREAM = "text/event-stream"

CHUNK = 16 * 1024
"""Chunk size for compressed files; most responses are smaller."""


class RecordedRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request as stored: no headers, no secrets. `body` is a JSON value if it was JSON."""

    method: str
    url: str
    body: Any = None
    body_sha256: str | None = None

    @property
    def key(self) -> str:
        """Return the matching key of a request."""
        content = msgspec.json.encode(self, order="sorted")
        return hashlib.sha256(content).hexdigest()[:32]

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


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
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port and host not in LOOPBACK else ""
    query = urlencode(
        [(k, v) for k, v in parse_qsl(parts.query, True) if k.lower() not in SECRET_QUERY]
    )
    return f"{parts.scheme}://{host}{port}{parts.path}" + (f"?{query}" if query else "")


def recorded_response(
    status: int, content_type: str, content: bytes, redactor: Redactor
) -> RecordedResponse:
    """Return a response in its stored form."""
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
            return RecordedResponse(status, content_type, json=redactor.value(document))
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
                content += frame.decompress(raw[at : at + CHUNK])
                at += CHUNK
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
