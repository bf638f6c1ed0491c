"""Judgements kept on disk by what was asked, so that the same question is paid for once.

Failures are never kept.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from proctor.checks.judge_prompt import PROMPT_VERSION
from proctor.llm.base import ChatRequest
from proctor.llm.kept import KeptFolder, cache_folder, request_key

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
    """A folder of judgements, laid out as `KeptFolder` draws it."""

    def __init__(self, folder: Path | str) -> None:
        self._kept = KeptFolder(folder, Kept)
        self.folder = self._kept.folder

    def get(self, key: str) -> Kept | None:
        """The judgement of a question, or None when it is absent, unreadable or of old."""
        kept = self._kept.get(key)
        return kept if kept is not None and kept.format == FORMAT and kept.key == key else None

    def put(self, kept: Kept) -> None:
        """Keep a judgement."""
        self._kept.put(kept.key, kept)


def cache_key(identity: str, request: ChatRequest) -> str:
    """SHA-256 over everything a judgement depends on; the messages hold rubric and inputs."""
    return request_key(identity, request, PROMPT_VERSION)


def default_cache_folder() -> Path:
    """Where the command line keeps judgements: the user's cache folder."""
    return cache_folder("judge")
