"""TRAIL experiments: run an error detector over annotated traces, as an ordinary run.

A trace is a case, a diagnosis method is the agent, the share of annotated pairs found is the score.
So experiments resume, run in parallel, record their cost and can be queried like all runs.

    config = ExperimentConfig(experiment_id="first", trail_data_dir="trail/data", gold_dir="trail")
    proctor.trail.run_experiment(config).metrics

    annotations = proctor.trail.read_annotations(folder).by_trace
    proctor.trail.score(annotations, predictions)
"""

from typing import TYPE_CHECKING

from proctor._lazy import imported_when_used

if TYPE_CHECKING:
    from proctor.trail.experiment import ExperimentConfig, TrailResult, run_experiment
    from proctor.trail.scorer import (
        Annotation,
        Annotations,
        Mark,
        Scorecard,
        read_annotations,
        score,
    )

__all__ = [
    "Annotation",
    "Annotations",
    "ExperimentConfig",
    "Mark",
    "Scorecard",
    "TrailResult",
    "read_annotations",
    "run_experiment",
    "score",
]

_OF_EXPERIMENTS = ("ExperimentConfig", "TrailResult", "run_experiment")
_HOME_OF = {
    **dict.fromkeys(__all__, "proctor.trail.scorer"),  # all that are not in the module below
    **dict.fromkeys(_OF_EXPERIMENTS, "proctor.trail.experiment"),
}
"""Public name → the module that defines it."""

if not TYPE_CHECKING:  # without this guard a type checker would accept any attribute name
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())
