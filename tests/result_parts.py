"""Run folders made at once, for tests of what is read from them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.results.metadata import finalise
from proctor.runs.folder import RunFolder
from proctor.runs.journal import Sync
from proctor.runs.provenance import new_run_id
from proctor.runs.run import Run
from proctor.runs.trial import Trial, TrialError, TrialStatus

STARTED = 1_794_795_158_000_000_000  # 2026-11-16T02:12:38Z

CASES: dict[str, dict[str, Any]] = {
    "greet": {"tags": ["smoke"], "difficulty": "easy", "properties": {"length": 1, "lang": "de"}},
    "refund": {"tags": ["money"], "difficulty": "hard", "properties": {"length": 9, "lang": "en"}},
    "stock": {"difficulty": "medium", "properties": {"length": 4, "lang": "de"}},
}


def trial(
    case: str = "greet", agent: str = "a", index: int = 0, status: str = "passed", **more: Any
) -> Trial:
    """A trial with plausible facts."""
    kind = TrialStatus(status)
    given: dict[str, Any] = {
        "score": {"passed": 1.0, "failed": 0.4, "hard_fail": 0.0}.get(status),
        "started_ns": STARTED + index * 1_000_000_000,
        "latency_ms": 10.0 * (index + 1),
        "duration_ms": 11.0 * (index + 1),
        "answer": f"answer {index}",
        "checks": (
            CheckResult(
                id="exact",
                check="exact_match",
                layer=Layer.CORRECTNESS,
                status=CheckStatus.PASS if status == "passed" else CheckStatus.FAIL,
                reason="because",
                score=1.0 if status == "passed" else 0.0,
            ),
        ),
    }
    if not kind.judged:
        given.update(score=None, checks=(), latency_ms=None)
        given["error"] = TrialError("TimeoutError", "too slow") if status == "infra_error" else None
    return Trial(case=case, agent=agent, index=index, seed=index, status=kind, **{**given, **more})


def write_run(
    root: Path,
    trials: Iterable[Trial],
    *,
    name: str = "suite",
    finished: bool = True,
    cases: Mapping[str, dict[str, Any]] | None = None,
    early_stop: Sequence[str] = (),
    **spec: Any,
) -> RunFolder:
    """A run folder with these trials; unless `finished`, as its writer left it."""
    kept = list(trials)
    described = CASES if cases is None else cases
    folder = RunFolder.create(root, name)
    plan: dict[tuple[str, str, str], int] = {}
    for one in kept:
        plan[one.cell] = max(plan.get(one.cell, 0), one.index + 1)
    folder.write_spec(
        {
            "run_id": new_run_id(),
            "name": name,
            "created": "2026-11-16T02:12:37.000+00:00",
            "provenance": {"host": "here", "git": {"commit": "c0ffee", "dirty": False}},
            "base_dir": ".",
            "options": {"early_stop": list(early_stop)},
            "agents": {a: {"kind": "python", "model": f"m-{a}"} for a in {t.agent for t in kept}},
            "suite": {
                "version": 1,
                "cases": [{"id": c, "input": c, **described.get(c, {})} for c in described],
            },
            "cells": [
                {
                    "case": case,
                    "agent": agent,
                    **({"params": params} if params else {}),
                    "trials": count,
                    "threshold": 0.8,
                }
                for (case, agent, params), count in sorted(plan.items())
            ],
            "stopped": None,
            **spec,
        }
    )
    append(folder, kept)
    if finished:
        finish(folder)
    return folder


def append(folder: RunFolder, trials: Iterable[Trial]) -> None:
    """Write more lines to the journal."""
    journal = folder.journal(Sync.NEVER)
    for one in trials:
        journal.append(one)
    journal.close()


def finish(folder: RunFolder) -> Run:
    """Write what is derived from the journal."""
    return finalise(folder)
