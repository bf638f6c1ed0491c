"""A million trials on a hundred machines: `python tools/simulate_scale.py`.

Measures the costs of a trial (`_scale_costs`), then simulates the run: one driver with a queue,
slots on machines that take the next trial when they are free, machine failures, a provider with a
rate limit. The same seed and costs give the same figures.

    python tools/simulate_scale.py --costs costs.json     measure once, reuse the costs
"""

# ruff: noqa: T201 - a script that reports to its terminal

import argparse
import heapq
import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _scale_costs import Costs, Line, measure


class World(NamedTuple):
    """Assumptions that cannot be measured on one machine."""

    trials: int = 1_000_000
    machines: int = 100
    slots: int = 16
    """Concurrent trials per machine: agents wait for models most of the time."""
    seconds: float = 20.0
    """Median duration of a trial; long ones are common, so the mean is a third higher."""
    spread: float = 0.8
    """Standard deviation of the logarithm of the duration."""
    requests: int = 7
    """Model calls per trial."""
    limit: float | None = None
    """Requests per minute that the provider allows; None for no limit."""
    mtbf_hours: float = 500.0
    """Mean hours between failures of one machine; a pessimistic value."""
    repair_s: float = 300.0
    trace_bytes: float = 20_000.0
    """A compressed trace with the prompts and documents of a real model."""


class Played(NamedTuple):
    """Result of a simulation."""

    seconds: float
    done: int
    repeated: int
    """Trials started over because their machine failed."""
    deaths: int
    driver: float
    """Share of the time the driver was busy."""
    waiting: float
    """Share of the slots' time spent waiting for the driver."""
    permits: float
    """Share of the slots' time spent waiting for permits."""
    longest: float
    """Longest time in seconds that a finished trial waited for the driver."""

    @property
    def rate(self) -> float:
        """Trials per second."""
        return self.done / self.seconds


FREE, ENDED, DIES, BACK = range(4)
"""Events: a slot is free, its trial ended, a machine fails, a machine is back."""


class Play:
    """Event-driven simulation of one run."""

    def __init__(self, world: World, driver_s: float, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)  # noqa: S311 (a simulation, no secret)
        self.driver_s = driver_s
        self.left = world.trials
        self.busy_until = self.worked = self.waited = self.held = self.longest = 0.0
        self.permits_free = 0.0
        self.done = self.repeated = self.deaths = 0
        slots = world.machines * world.slots
        self.lives = [0] * world.machines
        self.running = [False] * slots
        self.idle: list[tuple[int, int]] = []
        self.events: list[tuple[float, int, int, int]] = [
            (0.0, FREE, slot, 0) for slot in range(slots)
        ]
        for machine in range(world.machines):
            self.events.append((self._death(), DIES, machine, 0))
        heapq.heapify(self.events)

    def to_end(self) -> Played:
        """Simulate until every trial is done."""
        slots, now = len(self.running), 0.0
        while self.done < self.world.trials:
            now, kind, which, life = heapq.heappop(self.events)
            if kind == DIES:
                self._die(now, which)
            elif kind == BACK:
                self._come_back(now, which)
            elif life == self.lives[which // self.world.slots]:
                (self._take if kind == FREE else self._end)(now, which, life)
        whole = max(now, self.busy_until)
        time = whole * slots
        return Played(
            whole, self.done, self.repeated, self.deaths,
            self.worked / whole, self.waited / time, self.held / time, self.longest,
        )  # fmt: skip

    def _served(self, now: float) -> float:
        """Return when the driver, which does one thing at a time, has handled an event."""
        self.busy_until = max(now, self.busy_until) + self.driver_s / 2
        self.worked += self.driver_s / 2
        return self.busy_until

    def _take(self, now: float, slot: int, life: int) -> None:
        if not self.left:
            self.idle.append((slot, life))
            return
        self.left -= 1
        self.running[slot] = True
        begins = self._served(now)
        self.waited += begins - now
        allowed = self._permitted(begins)
        self.held += allowed - begins
        lasts = self.random.lognormvariate(math.log(self.world.seconds), self.world.spread)
        heapq.heappush(self.events, (allowed + lasts, ENDED, slot, life))

    def _permitted(self, now: float) -> float:
        """Return when the provider, whose limit all trials share, allows a trial's requests."""
        if self.world.limit is None:
            return now
        each = self.world.requests * 60.0 / self.world.limit
        self.permits_free = max(self.permits_free + each, now)
        return self.permits_free

    def _end(self, now: float, slot: int, life: int) -> None:
        taken = self._served(now)
        self.longest = max(self.longest, taken - now)
        self.waited += taken - now
        self.running[slot] = False
        self.done += 1
        heapq.heappush(self.events, (taken, FREE, slot, life))

    def _die(self, now: float, machine: int) -> None:
        self.deaths += 1
        self.lives[machine] += 1
        for slot in self._slots(machine):
            if self.running[slot]:
                self.running[slot] = False
                self.repeated += 1
                self.left += 1
        # Idle slots take the trials that the machine lost.
        for slot, life in self.idle:
            heapq.heappush(self.events, (now, FREE, slot, life))
        self.idle.clear()
        heapq.heappush(self.events, (now + self.world.repair_s, BACK, machine, 0))

    def _come_back(self, now: float, machine: int) -> None:
        for slot in self._slots(machine):
            heapq.heappush(self.events, (now, FREE, slot, self.lives[machine]))
        heapq.heappush(self.events, (now + self._death(), DIES, machine, 0))

    def _slots(self, machine: int) -> range:
        return range(machine * self.world.slots, (machine + 1) * self.world.slots)

    def _death(self) -> float:
        return self.random.expovariate(1 / (self.world.mtbf_hours * 3600))


def driver_seconds(costs: Costs, world: World) -> float:
    """Return the driver's time for one trial on another machine, permits included."""
    trial = costs.ray_s if costs.ray_s is not None else costs.bare_s
    # A permit is one message, like dispatching a trial, but without the journal write.
    asked = trial - costs.write_s + costs.permit_s
    return trial + (world.requests * asked if world.limit is not None else 0.0)


# -- output ----------------------------------------------------------------------------------


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def unit_costs(costs: Costs) -> str:
    """Return the table of measured costs."""
    upload = costs.upload_small_s, costs.upload_byte_s
    rows = [
        ("driver, trial on a Ray worker", _time(costs.ray_s)),
        ("driver, trial in its own process, 12 spans and 3 checks", _time(costs.trial_s)),
        ("driver, agent that answers immediately", _time(costs.bare_s)),
        ("of which writing the journal line", _time(costs.write_s)),
        (
            "rate limit permit",
            f"{_time(costs.permit_s)} ({1 / costs.permit_s:,.0f} per second)",
        ),
        ("planned trial", f"{_time(costs.plan_s)}, {costs.plan_bytes:.0f} bytes of memory"),
        ("journal", f"{costs.journal_bytes:,.0f} bytes"),
        ("trace, compressed", f"{costs.trace_bytes:,.0f} bytes"),
        ("columns", f"{costs.parquet_bytes:,.0f} bytes"),
        ("reading the journal", _line(costs.resume)),
        ("memory of a finished trial after resume", f"{costs.resume_bytes:,.0f} bytes"),
        (
            "finalizing a run",
            f"{_line(costs.finalise)}, {costs.finalise_bytes:,.0f} bytes of memory",
        ),
        ("query (pass rates by agent and case)", _line(costs.query)),
    ]
    if upload[0] is not None and upload[1] is not None:
        rows.append(
            (
                "upload to moto on loopback",
                f"{_time(upload[0])} and {1e-6 / upload[1]:.0f} MB/s",
            )
        )
    return table(("item", "cost"), rows)


def whole_run(costs: Costs, world: World, played: Played) -> str:
    """Return the table of totals."""
    count = world.trials
    size = count * (costs.journal_bytes + costs.trace_bytes)
    memory_to_end = _size(count * costs.finalise_bytes)
    memory_to_resume = f"{_size(count * costs.resume_bytes)} of memory"
    rows = [
        ("time", f"{played.seconds / 3600:.1f} h, {played.rate:.0f} trials per second"),
        ("failed machines", f"{played.deaths}; {played.repeated} trials started over"),
        ("driver busy", f"{played.driver:.1%} of the time".replace("%", " %")),
        ("slots waiting for the driver", f"{played.waiting:.3%}".replace("%", " %")),
        ("slots waiting for permits", f"{played.permits:.1%}".replace("%", " %")),
        ("longest wait for the driver to accept a result", _time(played.longest)),
        ("plan in memory", _size(count * costs.plan_bytes)),
        ("journal", _size(count * costs.journal_bytes)),
        ("traces", _size(count * costs.trace_bytes)),
        ("columns", _size(count * costs.parquet_bytes)),
                ("uploaded every five seconds", _size(5 * size / played.seconds)),
        ("finalizing the run", f"{costs.finalise.at(count):.0f} s, {memory_to_end} of memory"),
        (
            "reading the journal to resume after a driver failure",
            f"{costs.resume.at(count):.0f} s, {memory_to_resume}",
        ),
        ("query", f"{costs.query.at(count):.1f} s"),
    ]  # fmt: skip
    if costs.upload_byte_s is not None:
        rows.append(
            (
                "full upload with `proctor runs sync`",
                f"{size * costs.upload_byte_s:.0f} s at the rate of moto here",
            )
        )
        large = count * (costs.journal_bytes + world.trace_bytes)
        each, whole = _size(5 * large / played.seconds), large * costs.upload_byte_s / 60
        total = f"{_size(large)}, {each} every five seconds, {whole:.0f} min for a full upload"
        rows.append((f"with traces of {_size(world.trace_bytes)} instead", total))
    return table(("item", "total"), rows)


def where_it_breaks(costs: Costs, seed: int) -> str:
    """Return a table over machines and trial durations, up to where the driver is the limit."""
    rows: list[tuple[str, ...]] = []
    for seconds in (20.0, 2.0, 0.2):
        for machines in (10, 100, 1000):
            for limit in (None, 1e9):
                world = World(
                    trials=max(100_000, machines * 400),
                    machines=machines,
                    seconds=seconds,
                    limit=limit,
                    mtbf_hours=1e9,
                )
                played = Play(world, driver_seconds(costs, world), seed).to_end()
                rows.append(
                    (
                        f"{seconds:g} s",
                        str(machines),
                        "yes" if limit else "none",
                        f"{played.rate:,.0f}",
                        f"{played.driver:.0%}".replace("%", " %"),
                        f"{played.waiting:.1%}".replace("%", " %"),
                    )
                )
    head = ("trial", "machines", "permits", "trials per second", "driver busy", "slots waiting")
    return table(head, rows)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds * 1e6:.1f} µs"


def _line(line: Line) -> str:
    fixed = f"{_time(line.fixed)} and " if line.fixed else ""
    return f"{fixed}{_time(line.each)} per trial (maximum deviation {line.off:.0%})".replace(
        "%", " %"
    )


def _size(count: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} bytes"


# -- the script ----------------------------------------------------------------------------------


def kept_costs(path: Path | None, sizes: tuple[int, ...], *, ray: bool) -> Costs:
    """Return the costs stored in a file, or measure them and store them there."""
    if path is not None and path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        lines = {key: Line(*value) for key, value in found.items() if isinstance(value, list)}
        return Costs(**{**found, **lines})
    costs = measure(sizes, lambda text: print(f"measuring {text}", file=sys.stderr), ray=ray)
    if path is not None:
        path.write_text(json.dumps(costs._asdict(), indent=1) + "\n")
    return costs


def report(costs: Costs, world: World, seed: int) -> Iterator[str]:
    """Yield the tables of the page."""
    yield "## Measurements\n"
    yield unit_costs(costs)
    played = Play(world, driver_seconds(costs, world), seed).to_end()
    yield f"\n## {world.trials:,} trials on {world.machines} machines\n"
    yield whole_run(costs, world, played)
    yield "\n## Where it breaks\n"
    yield where_it_breaks(costs, seed)


def main() -> None:
    """Measure, simulate and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    for name in ("trials", "machines", "slots"):
        parser.add_argument(f"--{name}", type=int, default=World._field_defaults[name])
    parser.add_argument("--seconds", type=float, default=World().seconds)
    parser.add_argument("--limit", type=float, help="requests per minute of the provider")
    parser.add_argument("--sizes", default="10000,30000,100000", help="sizes of the measured runs")
    parser.add_argument(
        "--costs", type=Path, help="file to read the costs from, or to store them in"
    )
    parser.add_argument("--no-ray", action="store_true", help="measure without Ray")
    given = parser.parse_args()
    sizes = tuple(int(size) for size in given.sizes.split(","))
    world = World(given.trials, given.machines, given.slots, given.seconds, limit=given.limit)
    costs = kept_costs(given.costs, sizes, ray=not given.no_ray)
    for part in report(costs, world, given.seed):
        print(part)


if __name__ == "__main__":
    main()
