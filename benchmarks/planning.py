"""How long a plan takes: 10,000 trials of an experiment, against a bare loop over the same axes.

    python benchmarks/planning.py [--rounds 20] [--trials 10000]

`bare loop` makes one tuple per trial, its seed derived once for all agents and parameters. `plan`
makes every planned trial and every cell. `experiment` is the whole way from the file: YAML read
and checked, scenarios selected from a catalog, agents found, parameters held against templates,
then planned. `dry run` is the whole `--dry-run`: that, the estimate from earlier runs, and what is
in the cache.
"""

import argparse
import itertools
import os
import tempfile
from hashlib import sha256
from pathlib import Path

from _measure import calls, compare, machine, table

from proctor import Case
from proctor.report.dry_run import plan_lines
from proctor.spec.load import load_experiments
from proctor.trials.options import RunOptions
from proctor.trials.plan import Axes, estimate, plan_trials
from proctor.trials.resolve_experiment import prepare_experiment

SCENARIO = """\
description: Number {number}
tags: [some]
difficulty: easy
params: {{size: {{type: int, default: 3, min: 1, max: 100}}}}
scenario: {{question: !ev "'How much is ' + str(size) + '?'", actions: [a, b]}}
correctness: {{expected_in_answer: [a]}}
"""

CASES, AGENTS, SIZES, REPEATS = 20, 5, 5, 2


def write_project(folder: Path, seeds: int) -> Path:
    """A catalog of scenarios and one experiment over all of them."""
    for number in range(CASES):
        home = folder / "catalog" / "bench" / f"s{number:02d}"
        home.mkdir(parents=True)
        (home / "spec.yaml").write_text(SCENARIO.format(number=number))
    agents = "\n".join(f"  a{n}: {{kind: random}}" for n in range(AGENTS))
    path = folder / "experiment.yaml"
    path.write_text(
        f"cases: bench.*\nagents:\n{agents}\nseeds: {seeds}\ntrials: {REPEATS}\n"
        f"params: {{size: {list(range(1, SIZES + 1))}}}\n"
    )
    (folder / "proctor.yaml").write_text("results: results\n")
    return path


def _seed(seed: int, case: str, index: int) -> int:
    return int.from_bytes(sha256(f"{seed}\0{case}\0{index}".encode()).digest()[:8]) >> 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=10_000)
    options = parser.parse_args()
    seeds = max(1, options.trials // (CASES * AGENTS * SIZES * REPEATS))
    names = [f"c{n:02d}" for n in range(CASES)]
    agents = [f"a{n}" for n in range(AGENTS)]
    cases = [Case(id=name, input="q") for name in names]
    axes = Axes(tuple(range(seeds)), tuple({"size": n} for n in range(SIZES)))

    def bare() -> int:
        made: list[tuple[object, ...]] = []
        for case in names:
            repeats = [
                (seed, index, _seed(seed, case, index))
                for seed, index in itertools.product(range(seeds), range(REPEATS))
            ]
            for agent, size in itertools.product(agents, range(SIZES)):
                made.extend((case, agent, size, *repeat) for repeat in repeats)
        return len(made)

    def plan() -> int:
        return len(list(plan_trials(cases, agents, RunOptions(trials=REPEATS), axes).trials))

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        path = write_project(folder, seeds)

        def experiment() -> int:
            (found,) = load_experiments(path)
            return len(prepare_experiment(found).plan.trials)

        def dry_run() -> int:
            (found,) = load_experiments(path)
            ready = prepare_experiment(found)
            told = plan_lines(ready, estimate(ready, ready.configuration.results, ready.name))
            return len(told)

        assert bare() == plan() == experiment()
        timings = compare(
            {
                "bare loop": calls(bare),
                "plan": calls(plan),
                "experiment": calls(experiment),
                "dry run": calls(dry_run),
            },
            rounds=options.rounds,
        )
    print(f"{bare():,} trials; {machine()}\n")
    print(table(timings, "bare loop"))


if __name__ == "__main__":
    main()
