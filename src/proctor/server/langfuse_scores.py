"""Push scores, and traces on request, to Langfuse through its public HTTP API.

The id of a score is derived from its trace and name, so pushing again replaces it. The comment of a
score is its reason and its issues; its metadata have its level, method, spans and recommendations.
The keys come from LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY. A failed push is reported and not
retried.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import httpx

from proctor.errors import ProctorError
from proctor.sanitize import line

if TYPE_CHECKING:
    from proctor.checks.quality import Quality
    from proctor.diagnose.finding import Diagnosis
    from proctor.trace import Trace

SCORES = "/api/public/scores"
TRACES = "/api/public/otel/v1/traces"
TIMEOUT = 10.0


class Langfuse:
    """A Langfuse server that receives scores, and with `forward` the traces as well."""

    def __init__(
        self, url: str, public_key: str, secret_key: str, *, forward: bool = False
    ) -> None:
        self._url = url.rstrip("/")
        self._keys = (public_key, secret_key)
        self._forward = forward

    @classmethod
    def from_environment(cls, url: str, *, forward: bool = False) -> Langfuse:
        """Return the server at a URL, with the keys from the environment."""
        names = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")
        missing = [name for name in names if not os.environ.get(name)]
        if missing:
            raise ProctorError(f"Langfuse needs {' and '.join(missing)} in the environment")
        return cls(url, *(os.environ[name] for name in names), forward=forward)

    def push(self, trace: Trace, quality: Quality, found: Diagnosis) -> int:
        """Push the scores of a trace, after the trace itself; return how many were accepted."""
        if self._forward:
            from proctor.trace.export import export_traces

            body = export_traces(trace, "otlp-json")
            self._post(TRACES, "the trace", content=body)
        return sum(
            self._post(SCORES, score["name"], json=score)
            for score in scores_of(trace.trace_id, quality, found)
        )

    def _post(self, path: str, what: str, **body: Any) -> bool:
        headers = {"content-type": "application/json"}
        try:
            reply = httpx.post(
                self._url + path, **body, headers=headers, auth=self._keys, timeout=TIMEOUT
            )
            reply.raise_for_status()
        except httpx.HTTPError as error:
            reason = line(str(error), 200)
            sys.stderr.write(f"warning: Langfuse rejected {what}: {reason}\n")
            return False
        return True


def scores_of(trace_id: str, quality: Quality, found: Diagnosis) -> Iterator[dict[str, Any]]:
    """Yield the scores: each dimension, the overall quality, the number of findings."""
    for each in quality.dimensions:
        if each.score is not None:
            about = {
                "level": each.level,
                "method": each.method,
                "weight": quality.weights.get(each.name),
                "span_ids": each.span_ids[:20],
                "recommendations": each.recommendations[:20],
            }
            comment = "; ".join((*((each.why,) if each.why else ()), *each.issues)) or "no issues"
            yield _score(trace_id, f"quality.{each.name}", each.score, comment, about)
    if quality.overall is not None:
        comment = "; ".join(quality.issues) or "no issues"
        about = {
            "level": quality.level,
            "weights": quality.weights,
            "error_count": quality.error_count,
            "redundancy_count": quality.redundancy_count,
            "retrieval_count": quality.retrieval_count,
            "tool_latency_ms": quality.tool_latency_ms,
        }
        yield _score(trace_id, "quality", quality.overall, comment, about)
    categories = ", ".join(sorted({finding.category.value for finding in found.findings}))
    comment, about = categories or "no findings", {"method": found.method}
    yield _score(trace_id, "findings", float(len(found.findings)), comment, about)


def _score(
    trace_id: str, name: str, value: float, comment: str, about: Mapping[str, Any]
) -> dict[str, Any]:
    identity = hashlib.sha256(f"{trace_id}\0{name}".encode()).hexdigest()[:32]
    return {
        "id": identity,
        "traceId": trace_id,
        "name": f"proctor.{name}",
        "value": value,
        "dataType": "NUMERIC",
        "comment": comment[:500],
        "metadata": {key: value for key, value in about.items() if value},
    }
