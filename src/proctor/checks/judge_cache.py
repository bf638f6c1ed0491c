"""Judgements kept on disk by what was asked, so that the same question is paid for once.

A file is whole or absent: it is written aside, synced and renamed. Anything unreadable in the
folder is a miss, and the next judgement replaces it. Failures are never kept.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from proctor.checks.judge_prompt import PROMPT_VERSION
from proctor.llm.base import ChatRequest

FORMAT = 1


class Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One judgement on disk. Tokens and cost are those of when it was made."""

    format: int
    key: str
    scores: dict[str, int]
    rationale: str
    model: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class JudgeCache:
    """A folder of judgements.

    <folder>/
      3f/
        3f9a…64 hex digits….json   one judgement, named by the SHA-256 of its question
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def get(self, key: str) -> Kept | None:
        """The judgement of a question, or None when it is absent or unreadable."""
        try:
            kept = msgspec.json.decode(self._path(key).read_bytes(), type=Kept)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return kept if kept.format == FORMAT and kept.key == key else None

    def put(self, kept: Kept) -> None:
        """Keep a judgement. A folder that cannot be written costs money, not correctness."""
        path = self._path(kept.key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-", suffix=".json")
        except OSError:
            return
        aside = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(kept))
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except OSError:
            aside.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def cache_key(identity: str, request: ChatRequest) -> str:
    """SHA-256 over everything a judgement depends on.

    The messages hold the rubric and the inputs; the time allowed for the call is left out.
    """
    asked = {
        "prompt": PROMPT_VERSION,
        "model": identity,
        "messages": request.messages,
        "schema": request.schema,
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
    }
    encoded = msgspec.json.encode(asked, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()


def default_cache_folder() -> Path:
    """Where the command line keeps judgements: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "proctor" / "judge"
