"""Cache results on disk by their inputs, so that the same model call is paid for once.

A file is complete or absent: it is written to a temporary name, fsynced and renamed. An unreadable
file is a miss, and the next result replaces it. If the folder cannot be written, calls cost money
again, but results stay correct.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from proctor.files import replacing
from proctor.llm.chat_model import ChatRequest
from proctor.user_dirs import user_folder

Thing = TypeVar("Thing")

# Prompts and answers are readable by this user only.
_PRIVATE = 0o600


class DiskCache(Generic[Thing]):
    """Cache of one type of value by the hash of its inputs.

    <folder>/
      3f/
        3f9a…64 hex digits….json
    """

    def __init__(self, folder: Path | str, kind: type[Thing]) -> None:
        self.folder = Path(folder)
        self._kind = kind

    def get(self, key: str) -> Thing | None:
        """Return the value of a key, or None if it is absent or unreadable."""
        try:
            return msgspec.json.decode(self._path(key).read_bytes(), type=self._kind)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def put(self, key: str, thing: Thing) -> None:
        """Store a value if the folder is writable."""
        path = self._path(key)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, mode=_PRIVATE) as aside:
                aside.write_bytes(msgspec.json.encode(thing))

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def request_key(identity: str, request: ChatRequest, prompt: object) -> str:
    """Return the SHA-256 of everything an answer depends on; the timeout is left out.

    `prompt` is the version of the prompt template.
    """
    # A field added here invalidates every cached answer.
    inputs: dict[str, Any] = {
        "prompt": prompt,
        "model": identity,
        "messages": request.messages,
        "schema": request.schema,
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
    }
    if request.reasoning_effort is not None:
        inputs["reasoning_effort"] = request.reasoning_effort
    return hashlib.sha256(msgspec.json.encode(inputs, order="deterministic")).hexdigest()


def cache_folder(name: str) -> Path:
    """Return the folder of one kind of values in the user's cache."""
    return user_folder("cache", name)
