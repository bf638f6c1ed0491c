"""The course of each kind of research; only the one asked for is imported."""

from __future__ import annotations

from proctor.trials.research.rounds import Course, Setup


def course_of(setup: Setup) -> Course:
    """The course that research takes, before its first round."""
    match setup.outline.research.kind:
        case "curriculum":
            from proctor.trials.research.curriculum import curriculum

            return curriculum(setup)
        case "adaptive":
            from proctor.trials.research.adaptive import adaptive

            return adaptive(setup)
        case "ablation":
            from proctor.trials.research.ablation import ablation

            return ablation(setup)
        case "sweep":
            from proctor.trials.research.sweep import sweep

            return sweep(setup)
