"""What runs came to, put together by hand: outcomes for facts, whole run folders for commands."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proctor.results.metadata import finalise
from proctor.results.outcomes import AgentOutcomes, CaseOutcome
from proctor.runs.folder import RunFolder
from proctor.runs.provenance import new_run_id
from proctor.runs.trial import Trial, TrialStatus

Counts = Mapping[str, tuple[int, ...]]
"""Case → passes, judged trials, errored trials."""


def arm(agent: str, counts: Counts, **more: Any) -> AgentOutcomes:
    """An agent's outcomes; scores are its passes."""
    return AgentOutcomes(
        agent=agent,
        params="",
        cases=tuple(case(name, *row, **more) for name, row in sorted(counts.items())),
    )


def case(name: str, passes: int, trials: int, errors: int = 0, **more: Any) -> CaseOutcome:
    """One case; scores are its passes."""
    scores = (1.0,) * passes + (0.0,) * (trials - passes)
    spent = more.get("costs_usd", ())
    whole = {"scores": scores, "asked": trials + errors, "spent_usd": spent, **more}
    return CaseOutcome(case=name, passes=passes, trials=trials, infra=errors, **whole)


def suite(rows: Sequence[tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Counts by case, named in their order."""
    return {f"case-{at:02}": row for at, row in enumerate(rows)}


def made_run(
    root: Path,
    arms: Mapping[str, Counts],
    *,
    name: str = "suite",
    written: Mapping[str, dict[str, Any]] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Path:
    """A finished run folder with these counts; `written` changes cases, `spec` the rest."""
    folder = RunFolder.create(root, name)
    cases = sorted({case for counts in arms.values() for case in counts})
    folder.write_spec(
        {
            "run_id": new_run_id(),
            "name": name,
            "created": "2026-01-31T00:00:00.000+00:00",
            "options": {},
            "suite": {
                "cases": [{"id": c, "input": c, **((written or {}).get(c, {}))} for c in cases]
            },
            "cells": [
                {"case": c, "agent": agent, "trials": sum(row[1:]), "threshold": 0.8}
                for agent, counts in arms.items()
                for c, row in counts.items()
            ],
            **(spec or {}),
        }
    )
    journal = folder.journal()
    for agent, counts in arms.items():
        for case_id, row in counts.items():
            for trial in _trials(agent, case_id, *row):
                journal.append(trial)
    journal.close()
    finalise(folder)
    return folder.path


def _trials(agent: str, case_id: str, passes: int, trials: int, errors: int = 0) -> list[Trial]:
    statuses = [TrialStatus.PASSED] * passes + [TrialStatus.FAILED] * (trials - passes)
    statuses += [TrialStatus.INFRA_ERROR] * errors
    return [
        Trial(
            case=case_id,
            agent=agent,
            index=index,
            seed=index,
            status=status,
            score=None if not status.judged else float(status == TrialStatus.PASSED),
            latency_ms=10.0 + index if status.judged else None,
            cost_usd=0.01 * (1 + index % 2) if status.judged else None,
        )
        for index, status in enumerate(statuses)
    ]
