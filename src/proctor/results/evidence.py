"""What is known about a trial beside its trace: its checks, and how trials of its case went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.diagnose.evidence import Trajectories
from proctor.diagnose.methods import TrialEvidence

if TYPE_CHECKING:
    from collections.abc import Container

    from proctor.runs.run import Run
    from proctor.runs.trial import Trial


def trajectories_of(run: Run, cases: Container[str]) -> Trajectories:
    """Return how the judged trials of some cases went, to contrast failing with passing ones."""
    found = Trajectories()
    for trial in run.trials():
        if trial.case in cases and trial.status.judged:
            trace = run.readable_trace(trial, [])
            if trace is not None:
                found.add(trial.case, trial.cell.arm, trace, passed=trial.passed)
    return found


def evidence_of(trial: Trial, trajectories: Trajectories) -> TrialEvidence:
    """Return what is known about a trial beside its trace."""
    contrast = None
    if trial.status.judged and not trial.passed:
        contrast = trajectories.contrast(trial.case, trial.cell.arm)
    return TrialEvidence(
        checks=trial.checks,
        error=f"{trial.error.type}: {trial.error.message}" if trial.error else "",
        contrast=contrast.finding if contrast is not None else None,
        instead=contrast.instead if contrast is not None else None,
        passed=trial.passed,
    )
