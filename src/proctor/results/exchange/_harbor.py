"""Read the results of a Harbor job: a folder with one folder per trial.

    JOB/result.json                      the job: when, how many trials
    JOB/TRIAL/result.json                task, agent, reward, exception, usage
    JOB/TRIAL/agent/trajectory.json      the trajectory (ATIF), where the agent writes one

Guarantees: a trial with a reward is judged by it, also after an exception, as Harbor does; one
without a reward is an infrastructure error with its exception. The score is the reward named
`reward`, else the mean of all. A job whose trials are not all there is marked as incomplete.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.results.exchange._tables import parse_json, read_text, started_ns
from proctor.results.exchange.importing import Imported, Record
from proctor.results.metadata import as_mapping, as_text
from proctor.runs.trial import TrialStatus

RESULT = "result.json"


def is_job(folder: Path) -> bool:
    """Return whether a folder holds a job: a folder in it has a result."""
    return any(folder.glob(f"*/{RESULT}"))


def read_job(folder: Path, scale: float = 1.0, threshold: float = 1.0) -> Imported:
    """Read the trials of a job; `scale` is the reward that counts as 1."""
    job: Mapping[str, Any] = {}
    if (folder / RESULT).is_file():
        job = _document(folder / RESULT)
    warnings: list[str] = []
    files = sorted(folder.glob(f"*/{RESULT}"))
    records = [_record(file, scale, threshold, warnings) for file in files]
    planned = job.get("n_total_trials")
    stopped = None
    if isinstance(planned, int) and len(records) < planned:
        stopped = f"the job holds {len(records)} of {planned} trials"
    return Imported(
        name=folder.resolve().name,
        source="harbor",
        records=records,
        created=as_text(job.get("started_at")),
        stopped=stopped,
        warnings=warnings,
        about={"id": job.get("id")},
    )


def _record(file: Path, scale: float, threshold: float, warnings: list[str]) -> Record:
    result = _document(file)
    where = str(file)
    about = as_mapping(result.get("agent_info"))
    model = as_text(as_mapping(about.get("model_info")).get("name"))
    agent = str(about.get("name") or "agent")
    record = Record(
        case=str(result.get("task_name") or file.parent.name.partition("__")[0]),
        agent=f"{agent}:{model}" if model else agent,
        model=model,
        where=where,
        description=as_text(result.get("source")),
    )
    rewards = {
        str(name): float(value) / scale
        for name, value in as_mapping(
            as_mapping(result.get("verifier_result")).get("rewards")
        ).items()
        if isinstance(value, int | float)
    }
    problem = as_mapping(result.get("exception_info"))
    if problem:
        record.error_type = str(problem.get("exception_type") or "Exception")
        record.error = str(problem.get("exception_message") or record.error_type)
    if rewards:
        record.score = rewards.get("reward", sum(rewards.values()) / len(rewards))
        record.reason = record.error and f"{record.error_type}: {record.error}"
        record.checks = tuple(_check(name, value, threshold) for name, value in rewards.items())
        if 0 <= record.score <= 1:
            record.passed = record.score >= threshold
        else:
            record.status, record.reason = TrialStatus.NOT_JUDGED, f"reward {record.score:g}"
            warnings.append(
                f"{file.parent.name}: the reward {record.score * scale:g} is not within 0 to "
                f"{scale:g}: not judged; --scale X sets the reward that counts as 1"
            )
    elif record.error is None:
        record.error, record.error_type = "the trial has no reward", "NoReward"
    _add_usage(record, result)
    trajectory = file.parent / "agent" / "trajectory.json"
    record.trace_file = trajectory if trajectory.is_file() else None
    return record


def _check(name: str, value: float, threshold: float) -> CheckResult:
    return CheckResult(
        id=name,
        check="reward",
        layer=Layer.CORRECTNESS,
        status=CheckStatus.PASS if value >= threshold else CheckStatus.WARN,
        reason=f"reward {value:g}",
        score=value if 0 <= value <= 1 else None,
    )


def _add_usage(record: Record, result: Mapping[str, Any]) -> None:
    """Add times, tokens and cost; those of steps where the trial has several."""
    listed = result.get("step_results")
    steps = cast("list[Any]", listed) if isinstance(listed, list) else []
    contexts = [as_mapping(as_mapping(each).get("agent_result")) for each in (result, *steps)]
    for ours, theirs in (
        ("input_tokens", "n_input_tokens"),
        ("output_tokens", "n_output_tokens"),
        ("cost_usd", "cost_usd"),
    ):
        found = [each[theirs] for each in contexts if isinstance(each.get(theirs), int | float)]
        setattr(record, ours, sum(found) if found else None)
    if result.get("started_at"):
        record.started_ns = started_ns(result["started_at"], record.where)
    if result.get("started_at") and result.get("finished_at"):
        record.duration_ms = _milliseconds(result, record.where)
    timing = as_mapping(result.get("agent_execution"))
    if timing.get("started_at") and timing.get("finished_at"):
        record.latency_ms = _milliseconds(timing, record.where)


def _milliseconds(timing: Mapping[str, Any], where: str) -> float:
    times = [started_ns(timing[key], where) for key in ("finished_at", "started_at")]
    return max(0, times[0] - times[1]) / 1e6


def _document(file: Path) -> Mapping[str, Any]:
    return as_mapping(parse_json(read_text(file), str(file)))
