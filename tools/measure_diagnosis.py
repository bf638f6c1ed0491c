"""Measure diagnosis without training: `python tools/measure_diagnosis.py ../shared/trail`.

Prints one line a split with the official metrics and ours, and the time a trace takes. With
`--made-up` instead of a folder: the decisive message in made-up logs of teams, by the shipped
weights, by position, and by weights fitted to the logs of all other designs.
"""

# ruff: noqa: T201 - a script that reports to its terminal

import math
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from proctor.diagnose import group_chat
from proctor.diagnose._steps import plain, read_steps
from proctor.diagnose.methods import diagnose
from proctor.trace.load import load_traces
from proctor.trail.scorer import Annotation, Mark, read_annotations, score

SPLITS = {"GAIA": "gaia", "SWE Bench": "swe_bench"}


def measure(folder: Path, split: str) -> None:
    """Diagnose every trace of a split, score the findings, print the figures."""
    gold = read_annotations(folder / f"processed_annotations_{SPLITS[split]}")
    for problem in gold.problems:
        print(f"note: {problem}")
    predicted: dict[str, Annotation] = {}
    seconds: list[float] = []
    for path in sorted((folder / "data" / split).glob("*.json")):
        (trace,) = load_traces(path)
        found = diagnose(trace, "rules")
        seconds.extend(found.seconds.values())
        marks = tuple(Mark(f.location, f.category.value) for f in found.findings)
        predicted[path.stem] = Annotation(marks)
    card = score(gold.by_trace, predicted)
    figures = {
        "joint": card.joint_accuracy,
        "location": card.location_accuracy,
        "weighted F1": card.weighted_f1,
        "pair precision": card.pair_precision,
        "pair recall": card.pair_recall,
        "pair F1": card.pair_f1,
        "findings/trace": card.findings_per_trace,
        "median ms": statistics.median(seconds) * 1000,
    }
    told = ", ".join(f"{name} {value:.3f}" for name, value in figures.items() if value is not None)
    print(f"{split} ({card.traces} traces): {told}")


class TeamLog(NamedTuple):
    """Signals of the messages of one log, one row each, and who is to blame."""

    design: str
    rows: Any
    agents: list[str]
    cause: int
    agent: str
    first: int
    """The row of a worker's first turn."""


def team_logs(each: int) -> list[TeamLog]:
    """Return made-up logs of every design as signals."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    import planted_teams  # pyright: ignore[reportMissingImports]

    names = list(group_chat.ODDS)
    logs: list[TeamLog] = []
    for design, one in planted_teams.failed_teams(each, seed=31):
        steps = read_steps(one.trace)
        turns = group_chat.read_turns(steps)
        shown = group_chat.read_signals(turns, plain(steps.trace.query))
        able = [n for n, turn in enumerate(turns) if turn.role in ("worker", "orchestrator")]
        rows = np.zeros((len(able), len(names)))
        for row, n in enumerate(able):
            for name, odds in shown[n]:
                rows[row, names.index(name)] = odds / (group_chat.ODDS[name] or 1.0)
        cause = next(row for row, n in enumerate(able) if turns[n].act.number == one.step)
        first = next(row for row, n in enumerate(able) if turns[n].role == "worker")
        agents = [turns[n].agent for n in able]
        logs.append(TeamLog(design, rows, agents, cause, one.agent, first))
    return logs


def fitted(logs: list[TeamLog], shipped: Any, strength: float = 10.0) -> Any:
    """Return the weights that make the causes most probable, drawn towards the shipped ones."""

    def loss(weights: Any) -> tuple[float, Any]:
        away = weights - shipped
        value, slope = 0.5 * strength * float(away @ away), strength * away
        for log in logs:
            odds = log.rows @ weights
            shares = np.exp(odds - odds.max())
            shares /= shares.sum()
            value -= math.log(shares[log.cause])
            slope = slope - log.rows[log.cause] + shares @ log.rows
        return value, slope

    return minimize(loss, shipped, jac=True, method="L-BFGS-B").x


def measure_teams(each: int = 8) -> None:
    """Print agent and step accuracy of every design, held out from the fit."""
    logs = team_logs(each)
    shipped = np.array(list(group_chat.ODDS.values()))
    for design in dict.fromkeys(log.design for log in logs):
        tested = [log for log in logs if log.design == design]
        weights = fitted([log for log in logs if log.design != design], shipped)
        chosen = {
            "position": [log.first for log in tested],
            "shipped": [group_chat.most_suspect(log.rows @ shipped, log.agents) for log in tested],
            "fitted to the others": [
                group_chat.most_suspect(log.rows @ weights, log.agents) for log in tested
            ],
        }
        figures: list[str] = []
        for method, rows in chosen.items():
            pairs = list(zip(tested, rows, strict=True))
            agent = statistics.mean(log.agents[row] == log.agent for log, row in pairs)
            step = statistics.mean(row == log.cause for log, row in pairs)
            figures.append(f"{method} agent {agent:.2f} step {step:.2f}")
        print(f"{design} ({len(tested)} logs): {'; '.join(figures)}")


if __name__ == "__main__":
    if sys.argv[1] == "--made-up":
        measure_teams()
    else:
        for each in SPLITS:
            measure(Path(sys.argv[1]), each)
