"""Measure the cost of a trial on Ray workers, and the speed-up of a second worker.

    python benchmarks/executors.py [--trials 10000] [--busy 200] [--rounds 3]

Overhead: a trivial agent, so that all there is to see is what running a trial costs, against the
local executor and against as many bare Ray tasks that return a string, submitted at once and
waited for together. Scaling: an agent that keeps a processor busy for 20 ms, on 1 worker and on 2.
Workers are up before the clock starts; the clock stops when the derived files are written. CPU is
that of the driver and of every process of Ray. Exit code 1 when a goal is missed.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _measure import machine

import proctor
from proctor.trials._ray import connect, ray_package

GOAL_TASK = 1.5
"""A trial on Ray over a bare Ray task, wall time."""
GOAL_SCALING = 1.7
"""Goal for two workers against one, for CPU-bound work on two processors."""

WORKERS = 2

AGENTS = """
import time

async def trivial(input): return input

def busy(input):
    end = time.thread_time() + 0.02
    while time.thread_time() < end: pass
    return input
"""

SUITE = """\
version: 1
agent: bench_bots:{agent}
cases:
  - {{id: c, input: well, correctness: {{expected_in_answer: [well]}}}}
"""


@dataclass
class Cost:
    """Measured cost of a number of units."""

    name: str
    count: int
    walls: list[float]
    cpus: list[float]

    @property
    def wall(self) -> float:
        """Seconds each, the median of the rounds."""
        return sorted(self.walls)[len(self.walls) // 2] / self.count

    @property
    def cpu(self) -> float:
        """CPU seconds each, the median of the rounds."""
        return sorted(self.cpus)[len(self.cpus) // 2] / self.count


def cpu_of_all() -> float:
    """CPU seconds of this process and of every process below it."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(place.name)] = int(fields[1])
        used[int(place.name)] = sum(int(part) for part in fields[11:15]) / ticks
    ours = {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        grown = bool(more)
        ours |= more
    return sum(used.get(pid, 0.0) for pid in ours)


def measured(name: str, count: int, work: Callable[[], object], rounds: int) -> Cost:
    """Run it once to warm up, then so often."""
    cost = Cost(name, count, [], [])
    for number in range(rounds + 1):
        wall, cpu = time.perf_counter(), cpu_of_all()
        work()
        if number:
            cost.walls.append(time.perf_counter() - wall)
            cost.cpus.append(cpu_of_all() - cpu)
    return cost


def trials(folder: Path, agent: str, count: int, **options: Any) -> Callable[[], object]:
    path = folder / f"{agent}.yaml"
    path.write_text(SUITE.format(agent=agent))

    def work() -> object:
        with tempfile.TemporaryDirectory(dir=folder) as results:
            run = proctor.run(path, trials=count, results=results, **options)
            assert run.totals.passed == count, run.totals
            return run

    return work


def bare_tasks(count: int) -> Callable[[], object]:
    ray = ray_package()

    @ray.remote
    def task(text: str) -> str:
        return text

    def work() -> object:
        found = ray.get([task.remote("well") for _ in range(count)])
        assert len(found) == count
        return found

    return work


def told(costs: list[Cost], baseline: Cost, unit: float, name: str) -> None:
    print(f"\n| | trials | wall, {name} each | CPU, {name} each | wall ÷ {baseline.name} |")
    print("|---|---:|---:|---:|---:|")
    for cost in costs:
        wall, cpu = cost.wall * unit, cost.cpu * unit
        ratio = cost.wall / baseline.wall
        print(f"| {cost.name} | {cost.count:,} | {wall:.1f} | {cpu:.1f} | {ratio:.2f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--busy", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="executors-"))
    (folder / "bench_bots.py").write_text(AGENTS)
    connect(None, 2 * WORKERS, folder)
    print(machine())

    on_ray = {"executor": "ray", "workers": WORKERS}
    count = asked.trials
    costs = [
        measured("bare Ray task", count, bare_tasks(count), asked.rounds),
        measured("local executor", count, trials(folder, "trivial", count), asked.rounds),
        measured(
            f"Ray, {WORKERS} workers",
            count,
            trials(folder, "trivial", count, **on_ray),
            asked.rounds,
        ),
    ]
    capped = trials(folder, "trivial", count // 10, **on_ray, limits={"max_cost_usd": 100})
    costs.append(measured("Ray, with a cap: nothing ahead", count // 10, capped, asked.rounds))
    told(costs, costs[0], 1e6, "µs")

    scaled = [
        measured(
            f"Ray, {workers} worker{'s' * (workers > 1)}",
            asked.busy,
            trials(folder, "busy", asked.busy, executor="ray", workers=workers),
            asked.rounds,
        )
        for workers in (1, WORKERS)
    ]
    told(scaled, scaled[0], 1e3, "ms")
    overhead = costs[2].wall / costs[0].wall
    scaling = scaled[0].wall / scaled[1].wall
    print(f"\ntrial on Ray ÷ bare task: {overhead:.2f} (goal: at most {GOAL_TASK})")
    print(f"2 workers over 1, a busy agent: {scaling:.2f} (goal: at least {GOAL_SCALING})")
    return 0 if overhead <= GOAL_TASK and scaling >= GOAL_SCALING else 1


if __name__ == "__main__":
    sys.exit(main())
