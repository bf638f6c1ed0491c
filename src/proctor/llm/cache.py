"""A folder of things kept by what they depend on, so that the same question is paid for once.

A file is whole or absent: it is written aside, synced and renamed. Anything unreadable in the
folder is a miss, and the next answer replaces it. A folder that cannot be written costs money,
not correctness.
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

PRIVATE = 0o600
"""What was asked and answered is for the eyes of the user who asked."""


class DiskCache(Generic[Thing]):
    """Things of one type by the hash of what was asked.

    <folder>/
      3f/
        3f9a…64 hex digits….json
    """

    def __init__(self, folder: Path | str, kind: type[Thing]) -> None:
        self.folder = Path(folder)
        self._kind = kind

    def get(self, key: str) -> Thing | None:
        """What is kept under a key, or None when it is absent or unreadable."""
        try:
            return msgspec.json.decode(self._path(key).read_bytes(), type=self._kind)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def put(self, key: str, thing: Thing) -> None:
        """Keep a thing, if the folder can be written."""
        path = self._path(key)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, mode=PRIVATE) as aside:
                aside.write_bytes(msgspec.json.encode(thing))

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def request_key(identity: str, request: ChatRequest, prompt: object) -> str:
    """SHA-256 over everything an answer depends on; the time allowed for the call is left out.

    `prompt` is the version of the words around the question.
    """
    asked: dict[str, Any] = {
        "prompt": prompt,
        "model": identity,
        "messages": request.messages,
        "schema": request.schema,
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
    }
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()


def cache_folder(name: str) -> Path:
    """A folder of the user's cache for things of one kind."""
    return user_folder("cache", name)
