"""Experiments with research on the shipped ecosystem, small enough to run in a test."""

import json
from pathlib import Path
from typing import Any

import proctor
from proctor import Experiment
from proctor.runs.run import Run

INVESTIGATOR = {"kind": "python", "target": "proctor.worlds.ecosystem_agents:Investigator"}
SOLUTION = {"kind": "scripted"}
CHANCE = {"kind": "random"}
HIDDEN = ["mutualism.hidden_dependency@*"]


def experiment(**fields: Any) -> Experiment:
    return Experiment(**{"name": "study", "cases": HIDDEN, **fields})


def researched(results: Path, **fields: Any) -> tuple[Run, dict[str, Any]]:
    """A run of an experiment with research, and what it found."""
    run = proctor.run(experiment(**fields), results=results)
    return run, record_of(run)


def record_of(run: Run) -> dict[str, Any]:
    return json.loads((run.path / "research.json").read_text())


def outcomes(run: Run) -> dict[str, Any]:
    """What must not depend on when and how often a run was interrupted."""
    return {trial.key: (trial.status, trial.score, trial.seed) for trial in run.trials()}
