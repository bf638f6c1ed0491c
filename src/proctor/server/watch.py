"""Look at live traces once they are quiet: quality, checks, diagnosis, alerts.

Promise: never in the way of what comes in: one thread, a little at a time, and a trace that grows
again is looked at again. What one trace breaks does not stop the others; it is kept as an
evaluation that says so. A store that cannot be reached is asked again later.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
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
    from proctor.diagnose.finding import Diagnosis
    from proctor.trace import Trace


# Seconds between looks at which traces are quiet.
PAUSE = 1.0

# Seconds before a store that could not be used is tried again.
AFTER_TROUBLE = 10.0

# Seconds the trace at hand gets when the server ends; a model that judges may take minutes.
LAST_TRACE = 10.0

# Traces looked at before the writer gets its turn again.
AT_A_TIME = 20


class Alert(NamedTuple):
    """Something about a trace that somebody should know."""

    trace_id: str
    name: str
    figure: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How live traces are looked at.

    `judge_share` of the traces, chosen by their id, are shown to the judge as well.
    """

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
        push: Callable[[str, Quality, Diagnosis], object] | None = None,
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
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End after the trace at hand; one that takes long is left for the next start."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(LAST_TRACE)

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                found = self.look()
            except ProctorError as error:
                sys.stderr.write(f"warning: traces wait to be looked at: {line(str(error), 300)}\n")
                self._stop.wait(AFTER_TROUBLE)
                continue
            if not found:
                self._stop.wait(PAUSE)

    def look(self) -> int:
        """Evaluate some traces that are quiet; how many there were."""
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
            return  # forgotten meanwhile
        put = partial(self._store.put_evaluations, trace_id, seen_ns=row.updated_ns)
        try:
            trace = self._store.trace(trace_id)
            if trace is None:
                put([], score=None, findings=None)
                return
            rows, quality, found = self._evaluated(trace)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 (one odd trace must not end the watch)
            words = f"{type(error).__name__}: {error}"[:500]
            failed = StoredEvaluation(trace_id, "evaluation", None, "failed", words, self._clock())
            put([failed], score=None, findings=None)
            return
        put(rows, score=quality.overall, findings=len(found.findings))
        self.looked += 1
        self._tell(trace_id, quality, found)

    def _evaluated(self, trace: Trace) -> tuple[list[StoredEvaluation], Quality, Diagnosis]:
        options = self._options
        if options.judge is not None and sampled(trace.trace_id, options.judge_share):
            (quality,) = run_sync(score_traces_with(options.judge, [trace], options.quality))
        else:
            quality = score_trace(trace, options.quality)
        found = diagnose(trace)
        now = self._clock()
        rows = [*_quality_rows(trace.trace_id, quality, now), _found_row(found, now)]
        if options.checks:
            rows += run_sync(self._checked(trace, now))
        return rows, quality, found

    async def _checked(self, trace: Trace, now: int) -> list[StoredEvaluation]:
        options = self._options
        context = CheckContext[Any](case=options.case, trace=trace, answer=trace.response or "")
        results = await evaluate(options.checks, context)
        return [
            StoredEvaluation(
                trace.trace_id, f"check.{r.id}", r.score, r.status.value, r.reason[:2000], now
            )
            for r in results
        ]

    def _tell(self, trace_id: str, quality: Quality, found: Diagnosis) -> None:
        if self._alert is not None:
            for dimension in quality.dimensions:
                if dimension.level == QualityLevel.ALERT and dimension.score is not None:
                    words = dimension.why or "; ".join(dict.fromkeys(dimension.issues[:3]))
                    self._alert(Alert(trace_id, dimension.name, dimension.score, words[:500]))
        if self._push is not None:
            self._push(trace_id, quality, found)


def sampled(trace_id: str, share: float) -> bool:
    """Whether a trace is in the sample: the same answer every time it is asked."""
    digest = hashlib.sha256(trace_id.encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


def _quality_rows(trace_id: str, quality: Quality, now: int) -> list[StoredEvaluation]:
    rows = [
        StoredEvaluation(
            trace_id,
            f"quality.{dimension.name}",
            dimension.score,
            dimension.level.value if dimension.level is not None else None,
            _words(dimension.why, dimension.issues),
            now,
        )
        for dimension in quality.dimensions
    ]
    return [StoredEvaluation(trace_id, "quality", quality.overall, None, "", now), *rows]


def _words(why: str, issues: Sequence[str]) -> str:
    """Why a dimension has its score, short enough to keep with every trace."""
    return json.dumps({"why": why[:500], "issues": [text[:300] for text in issues[:20]]})


def _found_row(found: Diagnosis, now: int) -> StoredEvaluation:
    detail = json.dumps(found.to_dict())
    return StoredEvaluation(found.trace_id, "diagnosis", found.overall, found.method, detail, now)


def planned_checks(path: Path) -> tuple[Any, Sequence[Check]]:
    """The checks of a suite with one case: its input is not asked, its checks are run on traces."""
    from proctor.spec import checks_of, load_suite

    suite = load_suite(path, need_agent=False)
    if len(suite.cases) != 1:
        raise ProctorError(
            f"the suite has {len(suite.cases)} cases; live traces are checked by those of one",
            where=str(path),
        )
    return suite.cases[0], checks_of(suite.cases[0])


# Alerts about live traces: a line on standard error, or a JSON document to an address.
#
# An alert that cannot be delivered is said on standard error and never stops the watch.


# Seconds a receiver of alerts may take.
TIMEOUT = 10.0


def log_alert(alert: Alert) -> None:
    """Say it on standard error."""
    words = f"alert: {alert.name} {alert.figure:.2f} in trace {line(alert.trace_id, 64)}"
    if alert.words:
        words += f": {line(alert.words, 200)}"
    logging.getLogger("proctor.serve").info("%s", words)
    sys.stderr.write(f"{words}\n")


class Webhook:
    """Posts alerts as JSON: trace_id, name, figure, words."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ProctorError(f"{url!r} is not an address alerts can be posted to")
        self._url = url

    def __call__(self, alert: Alert) -> None:
        """Post one alert."""
        try:
            reply = httpx.post(self._url, json=alert._asdict(), timeout=TIMEOUT)
            reply.raise_for_status()
        except httpx.HTTPError as error:
            log_alert(alert)
            sys.stderr.write(f"warning: the alert was not delivered: {line(str(error), 200)}\n")
