"""Push scores to Langfuse through its public HTTP API.

The id of a score is derived from its trace and name, so pushing again replaces it. The keys come
from LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY. A failed push is reported and not retried.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx

from proctor.errors import ProctorError
from proctor.sanitize import line

if TYPE_CHECKING:
    from proctor.checks.quality import Quality
    from proctor.diagnose.finding import Diagnosis

PATH = "/api/public/scores"
TIMEOUT = 10.0


class Langfuse:
    """A Langfuse server that receives scores."""

    def __init__(self, url: str, public_key: str, secret_key: str) -> None:
        self._url = url.rstrip("/") + PATH
        self._keys = (public_key, secret_key)

    @classmethod
    def from_environment(cls, url: str) -> Langfuse:
        """Return the server at a URL, with the keys from the environment."""
        names = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")
        missing = [name for name in names if not os.environ.get(name)]
        if missing:
            raise ProctorError(f"Langfuse needs {' and '.join(missing)} in the environment")
        return cls(url, *(os.environ[name] for name in names))

    def push(self, trace_id: str, quality: Quality, found: Diagnosis) -> int:
        """Push the scores of a trace and return how many were accepted."""
        taken = 0
        for score in scores_of(trace_id, quality, found):
            try:
                reply = httpx.post(self._url, json=score, auth=self._keys, timeout=TIMEOUT)
                reply.raise_for_status()
            except httpx.HTTPError as error:
                reason = line(str(error), 200)
                sys.stderr.write(f"warning: Langfuse rejected {score['name']}: {reason}\n")
                continue
            taken += 1
        return taken


def scores_of(trace_id: str, quality: Quality, found: Diagnosis) -> Iterator[dict[str, Any]]:
    """Yield the scores: each dimension, the overall quality, the number of findings."""
    for dimension in quality.dimensions:
        if dimension.score is not None:
            yield _score(trace_id, f"quality.{dimension.name}", dimension.score, dimension.why)
    if quality.overall is not None:
        yield _score(trace_id, "quality", quality.overall, "")
    categories = ", ".join(sorted({finding.category.value for finding in found.findings}))
    yield _score(trace_id, "findings", float(len(found.findings)), categories)


def _score(trace_id: str, name: str, value: float, comment: str) -> dict[str, Any]:
    identity = hashlib.sha256(f"{trace_id}\0{name}".encode()).hexdigest()[:32]
    return {
        "id": identity,
        "traceId": trace_id,
        "name": f"proctor.{name}",
        "value": value,
        "dataType": "NUMERIC",
        "comment": comment[:500],
    }
