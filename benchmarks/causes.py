"""Plant a cause in a stochastic agent and count how often `why` ranks its step first.

    python benchmarks/causes.py [--runs 100] [--first 1]

The agent takes three steps, each in one of two variants by chance. Only the variant `b` of the
planted step matters: with it the agent fails nine times in ten, otherwise once in ten. Each run is
whole: sixteen trials, the first failing one with the planted variant, diagnosis, suspects, forks.
Exit code 1 if the planted step is first in fewer than nine of ten.
"""

import argparse
import collections
import sys
import tempfile
from pathlib import Path

import yaml

import proctor
from proctor.background import run_sync
from proctor.causes.why import WhyResult, run_why
from proctor.runs.folder import RunFolder
from proctor.runs.run import Run
from proctor.trials.prepare import RunContext
from proctor.trials.session import run_session

AGENT = """
import random
from proctor import tool

@tool
def work(step: int, variant: str) -> str:
    return variant

def agent(question, seed):
    chance = random.Random(seed)
    bad = False
    for step in (1, 2, 3):
        used = work(step, chance.choice("ab"))
        bad = bad or (step == {planted} and used == "b")
    return "no" if chance.random() < (0.9 if bad else 0.1) else "yes"
"""


def carry(context: RunContext, folder: RunFolder) -> Run:
    return run_sync(run_session(context, folder), nested=True)


def planted(folder: Path, step: int, seed: int) -> WhyResult | None:
    """Run an agent that breaks at a step, and test the causes of its first failure there."""
    name = f"planted_{step}_{seed}"
    (folder / f"{name}.py").write_text(AGENT.format(planted=step))
    case = {"id": "c", "input": "?", "correctness": {"exact_match": "yes"}}
    suite = {"agents": {"agent": f"{name}:agent"}, "cases": [case]}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(suite))
    run = proctor.run(folder / f"{name}.yaml", trials=16, seed=seed, results=folder / "results")
    for trial in run.trials():
        trace = run.trace(trial)
        assert trace is not None
        if not trial.passed and trace.tool_calls[step - 1].arguments["variant"] == "b":
            return run_why(run, trial, carry)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first", type=int, default=1, help="seed of the first run")
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(options.first, options.first + options.runs):
        with tempfile.TemporaryDirectory() as folder:
            step = 1 + seed % 3
            result = planted(Path(folder), step, seed)
        if result is None:
            counts["no failing trial"] += 1
            continue
        first = result.causes[0]
        counts["runs"] += 1
        counts["right step first"] += first.step == step
        counts["right step decisive"] += first.step == step and first.outcome == "decisive"
        counts["other step decisive"] += any(
            cause.step != step and cause.outcome == "decisive" for cause in result.causes
        )
    print("  ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    return 0 if counts["right step first"] >= 0.9 * counts["runs"] else 1


if __name__ == "__main__":
    sys.exit(main())
