"""Evaluate live traces once they are quiet: quality, checks, diagnosis; alert, push scores.

Guarantees: one thread works on a few traces at a time, so that ingest is not delayed; a trace that
grows is evaluated again. An error in one trace is stored as its evaluation and does not stop the
others. A store that cannot be reached is tried again later.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from proctor.background import run_sync
from proctor.checks.base import Check, CheckContext
from proctor.checks.evaluate import evaluate
from proctor.checks.quality import (
    Quality,
    QualityConfig,
    QualityLevel,
    score_trace,
    score_traces_with,
)
from proctor.diagnose.methods import diagnose
from proctor.errors import ProctorError
from proctor.sanitize import line
from proctor.server.store.store import SqlStore, StoredEvaluation, StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from proctor.checks.judge import Judge
    from proctor.checks.quality import Quality
    from proctor.diagnose.finding import Diagnosis
    from proctor.trace import Trace


# Seconds between searches for quiet traces.
PAUSE = 1.0

# Seconds before a store that could not be used is tried again.
AFTER_TROUBLE = 10.0

# Seconds to finish the current trace when the server stops; a judge may take minutes.
LAST_TRACE = 10.0

# Traces evaluated per query of the store.
AT_A_TIME = 20


class Alert(NamedTuple):
    """A score of a trace that needs attention."""

    trace_id: str
    name: str
    figure: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How live traces are evaluated; `judge_share` of them, chosen by id, by the judge as well."""

    quiet_seconds: float = 10.0
    quality: QualityConfig = field(default_factory=QualityConfig)
    checks: Sequence[Check] = ()
    case: Any = None
    judge: Judge | None = None
    judge_share: float = 1.0


class Watcher:
    """Evaluates quiet traces in a thread of its own."""

    def __init__(
        self,
        store: SqlStore,
        options: WatchOptions | None = None,
        *,
        alert: Callable[[Alert], None] | None = None,
        push: Callable[[Trace, Quality, Diagnosis], object] | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._store = store
        self._options = options or WatchOptions()
        self._alert = alert
        self._push = push
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="proctor-watch", daemon=True)
        self.looked = 0
        """Traces evaluated since the start."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current trace, or after `LAST_TRACE` seconds."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(LAST_TRACE)

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                found = self.look()
            except ProctorError as error:
                sys.stderr.write(f"warning: traces were not evaluated: {line(str(error), 300)}\n")
                self._stop.wait(AFTER_TROUBLE)
                continue
            if not found:
                self._stop.wait(PAUSE)

    def look(self) -> int:
        """Evaluate some quiet traces and return their number."""
        before = self._clock() - int(self._options.quiet_seconds * 1e9)
        found = self._store.quiet(before, AT_A_TIME)
        for trace_id in found:
            if self._stop.is_set():
                break
            self._one(trace_id)
        return len(found)

    def _one(self, trace_id: str) -> None:
        row = self._store.row(trace_id)
        if row is None:
            return  # pruned since the query
        put = partial(self._store.put_evaluations, trace_id, seen_ns=row.updated_ns)
        try:
            trace = self._store.trace(trace_id)
            if trace is None:
                put([], score=None, findings=None)
                return
            rows, quality, found = self._evaluated(trace)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 (one bad trace must not end the thread)
            detail = f"{type(error).__name__}: {error}"[:500]
            failed = StoredEvaluation(trace_id, "evaluation", None, "failed", detail, self._clock())
            put([failed], score=None, findings=None)
            return
        put(rows, score=quality.overall, findings=len(found.findings))
        self.looked += 1
        if self._alert is not None:
            for dimension in quality.dimensions:
                if dimension.level == QualityLevel.ALERT and dimension.score is not None:
                    why = dimension.why or "; ".join(dict.fromkeys(dimension.issues[:3]))
                    self._alert(Alert(trace_id, dimension.name, dimension.score, why[:500]))
        if self._push is not None:
            self._push(trace, quality, found)

    def _evaluated(self, trace: Trace) -> tuple[list[StoredEvaluation], Quality, Diagnosis]:
        options = self._options
        if options.judge is not None and sampled(trace.trace_id, options.judge_share):
            (quality,) = run_sync(score_traces_with(options.judge, [trace], options.quality))
        else:
            quality = score_trace(trace, options.quality)
        found = diagnose(trace)
        now = self._clock()
        counts = {
            "error_count": quality.error_count,
            "redundancy_count": quality.redundancy_count,
            "retrieval_count": quality.retrieval_count,
            "tool_latency_ms": quality.tool_latency_ms,
        }
        detail = json.dumps(counts)
        rows = [StoredEvaluation(trace.trace_id, "quality", quality.overall, None, detail, now)]
        for dimension in quality.dimensions:
            level = None if dimension.level is None else dimension.level.value
            # Truncated: it is stored with every trace.
            issues = [text[:300] for text in dimension.issues[:20]]
            advice = [text[:300] for text in dimension.recommendations[:20]]
            kept = {"why": dimension.why[:500], "issues": issues, "recommendations": advice}
            detail = json.dumps(kept)
            name = f"quality.{dimension.name}"
            rows.append(StoredEvaluation(trace.trace_id, name, dimension.score, level, detail, now))
        detail = json.dumps(found.to_dict())
        rows.append(
            StoredEvaluation(trace.trace_id, "diagnosis", found.overall, found.method, detail, now)
        )
        if options.checks:
            context = CheckContext[Any](case=options.case, trace=trace, answer=trace.response or "")
            rows += [
                StoredEvaluation(
                    trace.trace_id, f"check.{r.id}", r.score, r.status.value, r.reason[:2000], now
                )
                for r in run_sync(evaluate(options.checks, context))
            ]
        return rows, quality, found


def sampled(trace_id: str, share: float) -> bool:
    """Return whether a trace is in the sample; the same trace always gives the same answer."""
    digest = hashlib.sha256(trace_id.encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


def planned_checks(path: Path) -> tuple[Any, Sequence[Check]]:
    """Return the only case of a suite and its checks; its input is not used."""
    from proctor.spec import checks_of, load_suite

    suite = load_suite(path, need_agent=False)
    if len(suite.cases) != 1:
        raise ProctorError(
            f"the suite has {len(suite.cases)} cases; the checks of live traces need exactly one",
            where=str(path),
        )
    return suite.cases[0], checks_of(suite.cases[0])


# Seconds until the delivery of an alert or a score fails.
TIMEOUT = 10.0


def log_alert(alert: Alert) -> None:
    """Write an alert to standard error and to the log."""
    text = f"alert: {alert.name} {alert.figure:.2f} in trace {line(alert.trace_id, 64)}"
    if alert.words:
        text += f": {line(alert.words, 200)}"
    logging.getLogger("proctor.serve").info("%s", text)
    sys.stderr.write(f"{text}\n")


class Webhook:
    """Posts alerts as JSON: trace_id, name, figure, words.

    A failed delivery is reported on standard error and does not stop the evaluation.
    """

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ProctorError(f"{url!r} is not an address for alerts: use http or https")
        self._url = url

    def __call__(self, alert: Alert) -> None:
        """Post one alert."""
        try:
            reply = httpx.post(self._url, json=alert._asdict(), timeout=TIMEOUT)
            reply.raise_for_status()
        except httpx.HTTPError as error:
            log_alert(alert)
            sys.stderr.write(f"warning: the alert was not delivered: {line(str(error), 200)}\n")


SCORES = "/api/public/scores"
TRACES = "/api/public/otel/v1/traces"


class Langfuse:
    """A Langfuse server that receives scores, and with `forward` the traces as well.

    The id of a score is derived from its trace and name, so pushing again replaces it. Its comment
    is its reason and its issues; its metadata have its level, method, spans and recommendations. A
    failed push is reported and not retried.
    """

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
