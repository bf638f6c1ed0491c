"""Log results to an MLflow server through its REST API.

One MLflow run per run, agent and parameters: settings as params, results as metrics, also per case.
Exporting again updates the same MLflow run instead of creating another. A figure that is not
defined is not sent: MLflow has no null. (MLflow no longer reads its folder layout by default, so
only a server keeps working.)
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from proctor.errors import ProctorError
from proctor.results.leaderboard import agent_rate
from proctor.results.outcomes import AgentOutcomes
from proctor.runs.trial import params_key

if TYPE_CHECKING:
    from proctor.results.result_set import ResultSet

# Metrics per request; the server accepts 1,000 entities.
_METRICS_PER_REQUEST = 900

# Maximum characters of a param; the server rejects longer ones.
_MAX_PARAM_CHARS = 6000

# Timeout of a request in seconds: enough for a distant server, short of a hang.
_TIMEOUT = 30.0

NOT_FOUND = 404

_NAME = re.compile(r"[^\w\-. :/]")


class TrackingServer:
    """A tracking server at an address (or `MLFLOW_TRACKING_URI`)."""

    def __init__(self, address: str = "", environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self.address = (address or environ.get("MLFLOW_TRACKING_URI", "")).rstrip("/")
        if not self.address.startswith(("http://", "https://")):
            raise ProctorError(
                "no MLflow server was given",
                hint="give -o http://127.0.0.1:5000 or set MLFLOW_TRACKING_URI",
            )
        self._headers: dict[str, str] = {}
        self._auth: tuple[str, str] | None = None
        if token := environ.get("MLFLOW_TRACKING_TOKEN"):
            self._headers["Authorization"] = f"Bearer {token}"
        elif user := environ.get("MLFLOW_TRACKING_USERNAME"):
            self._auth = (user, environ.get("MLFLOW_TRACKING_PASSWORD", ""))

    def request(
        self, method: str, endpoint: str, body: Mapping[str, Any], *, missing: bool = False
    ) -> Mapping[str, Any]:
        """Send one request; with `missing`, a 404 is an empty response."""
        import httpx

        url = f"{self.address}/api/2.0/mlflow/{endpoint}"
        extra: dict[str, Any] = {"params": body} if method == "GET" else {"json": body}
        try:
            response = httpx.request(
                method, url, headers=self._headers, auth=self._auth, timeout=_TIMEOUT, **extra
            )
        except httpx.HTTPError as error:
            raise ProctorError(
                f"the MLflow server is not reachable: {error}",
                where=self.address,
                hint="start one with `mlflow server`, or name another with -o",
            ) from None
        if missing and response.status_code == NOT_FOUND:
            return {}
        if response.is_error:
            raise ProctorError(
                f"MLflow rejected {endpoint}: {response.status_code} {response.text[:300]}",
                where=self.address,
            )
        return cast("Mapping[str, Any]", response.json())


def send(of: ResultSet, server: TrackingServer) -> int:
    """Log a result set to a server; return the number of MLflow runs."""
    count = 0
    for row in of.group_by("experiment", "run").rows:
        key = row.key
        name = str(key["experiment"] or "proctor")
        known = server.request(
            "GET", "experiments/get-by-name", {"experiment_name": name}, missing=True
        )
        if known:
            experiment = str(known["experiment"]["experiment_id"])
        else:
            created = server.request("POST", "experiments/create", {"name": name})
            experiment = str(created["experiment_id"])
        part = of.where(where={"run": [key["run"]]})
        for outcomes in part.outcomes():
            _send_run(server, experiment, part, str(key["run"]), outcomes)
            count += 1
    return count


def _send_run(
    server: TrackingServer, experiment: str, part: ResultSet, run: str, outcomes: AgentOutcomes
) -> None:
    """Create or update the MLflow run of one agent in one run."""
    columns = ["run_id", "run_started", "git_commit", "model"]
    columns += ["params", "started_ns", "duration_ms"]
    every = part.where(where={"agent": [outcomes.agent]}).rows(columns)
    rows = [row for row in every if params_key(row["params"] or {}) == outcomes.params]
    row = rows[0]
    ended = max((r["started_ns"] or 0) // 1_000_000 + int(r["duration_ms"] or 0) for r in rows)
    # MLflow's filter syntax has no escape for quotes.
    cell = f"{row['run_id']} {outcomes.name}".replace("'", "")[:_MAX_PARAM_CHARS]
    search = {"experiment_ids": [experiment], "filter": f"tags.`proctor.cell` = '{cell}'"}
    result = server.request("POST", "runs/search", {**search, "max_results": 1})
    runs = cast("list[Any]", result.get("runs") or [])
    if runs:
        run_id = str(runs[0]["info"]["run_id"])
    else:
        tags = {
            "proctor.run": run,
            "proctor.run_id": row["run_id"],
            "proctor.cell": cell,
            "mlflow.source.name": "proctor",
            "mlflow.source.git.commit": row["git_commit"],
        }
        started = row["run_started"]
        body = {
            "experiment_id": experiment,
            "run_name": f"{run} {outcomes.name}",
            "start_time": 0 if started is None else int(started.timestamp() * 1000),
            "tags": _entries(tags),
        }
        run_id = str(server.request("POST", "runs/create", body)["run"]["info"]["run_id"])
        # Params of an MLflow run cannot change, so they are sent only on creation.
        params = {"agent": outcomes.agent, "model": row["model"]}
        given = cast("dict[str, Any]", row["params"] or {})
        params |= {f"params.{name}": value for name, value in given.items()}
        batch = {"run_id": run_id, "params": _entries(params)}
        server.request("POST", "runs/log-batch", batch)
    now = time.time_ns() // 1_000_000
    metrics = [
        {"key": key, "value": value, "timestamp": now, "step": 0}
        for key, value in _metrics(outcomes).items()
    ]
    for at in range(0, len(metrics), _METRICS_PER_REQUEST):
        batch = {"run_id": run_id, "metrics": metrics[at : at + _METRICS_PER_REQUEST]}
        server.request("POST", "runs/log-batch", batch)
    # A run without times (an imported one) ended at the latest now.
    update = {"run_id": run_id, "status": "FINISHED", "end_time": ended or now}
    server.request("POST", "runs/update", update)


def _entries(values: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return tags or params in MLflow's form, without empty ones."""
    return [
        {"key": k, "value": str(v)[:_MAX_PARAM_CHARS]}
        for k, v in values.items()
        if v not in (None, "")
    ]


def _metrics(outcomes: AgentOutcomes) -> dict[str, float]:
    rate = agent_rate(outcomes)
    means = [each.mean_score for each in outcomes.instances if each.mean_score is not None]
    metrics: dict[str, float | None] = {
        "pass_rate": rate.value,
        "pass_rate_low": rate.low,
        "pass_rate_high": rate.high,
        "score_mean": sum(means) / len(means) if means else None,
        "trials_judged": outcomes.trials,
        "trials_passed": outcomes.passes,
        "trials_infra_error": outcomes.infra,
        "trials_not_judged": outcomes.not_judged,
        "trials_cancelled": outcomes.cancelled,
        "cases": len(outcomes.cases),
        "cost_usd": outcomes.known_cost_usd,
    }
    for case in outcomes.cases:
        # MLflow accepts only these characters in the name of a metric.
        name = _NAME.sub("_", case.case)[:200]
        metrics[f"case/{name}/pass_rate"] = case.pass_rate
        metrics[f"case/{name}/score_mean"] = case.mean_score
    return {key: float(value) for key, value in metrics.items() if value is not None}
