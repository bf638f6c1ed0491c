"""Many trials of a trivial agent, 100 at a time: Proctor, a bare asyncio loop, and its peers.

    python benchmarks/trials.py [--quick] [--rounds 5] [--only proctor] ...

What is timed is everything a user waits for after start-up: reading the suite, the trials with
journal and traces on disk, and the derived files. Goals stand in `goals`; exit code 1 when one is
missed. Wall time is what a user feels; CPU time is what another process cannot distort.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from _measure import ENVIRONMENTS, ROOT, Contestant, Sample, Timing, compare, machine, peer
from _trials_contest import AT_ONCE

BARE, OURS, EVALS, INSPECT = "bare loop", "proctor", "pydantic-evals", "inspect-ai"
MEASURED_AGAINST = (BARE, OURS)
EVALS_PIN = "pydantic-evals==2.62.0"
PROMPTFOO_PIN = "promptfoo@0.123.1"

SLEEP_MS = 10
AGENTS = {"returns at once": 0, f"sleeps {SLEEP_MS} ms": SLEEP_MS}
SIZES = (1_000, 10_000)
FLAT_SIZES = (1_000, 10_000, 100_000)
HEAVY_ROUNDS = 3
"""Peers that take seconds for 1,000 trials are run that often, and never with 10,000."""

GOAL_BARE, GOAL_EVALS, GOAL_INSPECT = 5.0, 3.0, 100.0
GOAL_IDEAL = 1.10
GOAL_FLAT = 1.25
"""Cost per trial at the largest size over the cheapest of the others: flat, allowing for noise."""
GOAL_PEAK_MB = 200.0


@dataclass(frozen=True)
class Peer:
    """A contestant: the command that runs it, given the trials and the wait in milliseconds."""

    name: str
    command: Callable[[int, int], Sequence[str]]
    heavy: bool = False
    env: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Trials(Sample):
    """What a contestant's process told about its trials."""

    peak_mb: float
    trials_wall: float | None = None
    """Seconds from the agent's first call to its last answer (of ours: to the last trial in the
    journal), where the contestant can tell."""
    trials_cpu: float | None = None


def contestant(who: Peer, n: int, milliseconds: int) -> Contestant:
    """Run it once in a fresh process and folder; every trial must have passed."""
    argv = [str(part) for part in who.command(n, milliseconds)]

    def once() -> Trials:
        with tempfile.TemporaryDirectory(prefix="trials-home-") as home:
            env = {**os.environ, **{k: v.format(home=home) for k, v in (who.env or {}).items()}}
            done = subprocess.run(argv, check=False, capture_output=True, text=True, env=env)
        if done.returncode:
            raise RuntimeError(f"{who.name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        told = json.loads(done.stdout.splitlines()[-1])
        if told["passed"] != n:
            raise RuntimeError(f"{who.name}: {told['passed']} of {n} trials passed")
        marks = told["marks"]
        parts = [late - early for early, late in zip(*marks.values(), strict=True)] if marks else []
        return Trials(told["wall"], told["cpu"], told["peak_mb"], *parts)

    return once


def python_peer(name: str, python: str | Path, *, heavy: bool = False) -> Peer:
    """A contestant of `_trials_contest.py`, in an environment of its own."""
    script = str(ROOT / "benchmarks" / "_trials_contest.py")
    return Peer(name, lambda n, ms: [str(python), script, name, str(n), str(ms)], heavy)


def promptfoo() -> Peer:
    """promptfoo under Node, from the npm registry, kept in the folder of our environments."""
    home = ENVIRONMENTS / "promptfoo"
    stamp = home / "requirements.txt"
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise OSError("Node.js is not installed")
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != PROMPTFOO_PIN:
        home.mkdir(parents=True, exist_ok=True)
        quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run([npm, "install", "--prefix", str(home), PROMPTFOO_PIN, *quiet], check=True)
        stamp.write_text(PROMPTFOO_PIN, encoding="utf-8")
    script = ROOT / "benchmarks" / "_trials_promptfoo.mjs"
    return Peer(
        "promptfoo",
        lambda n, ms: [node, str(script), str(home), str(n), str(ms)],
        heavy=True,
        env={
            "PROMPTFOO_CONFIG_DIR": "{home}",
            "PROMPTFOO_CACHE_ENABLED": "false",
            "PROMPTFOO_DISABLE_TELEMETRY": "1",
            "PROMPTFOO_DISABLE_UPDATE": "1",
            "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
        },
    )


MAKERS: dict[str, Callable[[], Peer]] = {
    BARE: lambda: python_peer(BARE, sys.executable),
    f"{BARE}, flushed": lambda: python_peer(f"{BARE}, flushed", sys.executable),
    OURS: lambda: python_peer(OURS, sys.executable),
    EVALS: lambda: python_peer(EVALS, peer(EVALS, [EVALS_PIN])),
    f"{EVALS}, spans": lambda: python_peer(
        f"{EVALS}, spans", peer(f"{EVALS}-spans", [EVALS_PIN, "logfire==5.2.0"]), heavy=True
    ),
    "deepeval": lambda: python_peer("deepeval", peer("deepeval", ["deepeval==4.3.1"]), heavy=True),
    "mlflow": lambda: python_peer("mlflow", peer("mlflow", ["mlflow==3.17.2"]), heavy=True),
    "promptfoo": promptfoo,
    INSPECT: lambda: python_peer(INSPECT, peer(INSPECT, ["inspect-ai==0.3.285"]), heavy=True),
}
QUICK = (BARE, f"{BARE}, flushed", OURS, EVALS)


def quick() -> Sequence[str]:
    """The light contestants, and inspect-ai, which has a goal, where its environment is made."""
    there = (ENVIRONMENTS / INSPECT / "requirements.txt").is_file()
    return (*QUICK, INSPECT) if there else QUICK


def made(names: Sequence[str]) -> Iterator[Peer]:
    """The contestants that can be had here; the others are named with the reason."""
    for name in names:
        try:
            yield MAKERS[name]()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"left out: {name} ({error})")


def contest(peers: Sequence[Peer], n: int, milliseconds: int, rounds: int) -> list[Timing]:
    """One size and agent: light contestants in all rounds, heavy ones in the first few of them."""
    light = {who.name: contestant(who, n, milliseconds) for who in peers if not who.heavy}
    if n > SIZES[0] or len(light) == len(peers):
        return compare(light, rounds)
    together = {who.name: contestant(who, n, milliseconds) for who in peers}
    first = compare(together, min(rounds, HEAVY_ROUNDS), warm_up=0)
    more = compare(light, max(0, rounds - HEAVY_ROUNDS), warm_up=0)
    extra = {timing.name: timing.samples for timing in more}
    return [Timing(t.name, [*t.samples, *extra.get(t.name, [])]) for t in first]


def ideal(n: int, milliseconds: int) -> float:
    """Seconds that sleeping agents take where nothing else takes any."""
    return n * milliseconds / 1000 / AT_ONCE


def show(timings: Sequence[Timing], title: str) -> None:
    """A table of one size and agent, for both clocks."""
    medians = {t.name: {c: t.median(c) for c in ("wall", "cpu")} for t in timings}
    against = [name for name in MEASURED_AGAINST if name in medians]
    print(f"\n### {title}\n")
    heads = [f"CPU × {name} | wall × {name}" for name in against]
    print(f"| | CPU ms | wall ms | {' | '.join(heads)} | peak MB | rounds |")
    print("|---|" + "---:|" * (4 + 2 * len(against)))
    for timing in timings:
        ratios = [
            f"{medians[timing.name][clock] / medians[name][clock]:.2f}"
            for name in against
            for clock in ("cpu", "wall")
        ]
        peak = timing.median("peak_mb")
        print(
            f"| {timing.name} | {spread(timing, 'cpu')} | {spread(timing, 'wall')}"
            f" | {' | '.join(ratios)} | {peak:.0f} | {len(timing.samples)} |"
        )
    parted = [timing for timing in timings if in_parts(timing)]
    if parted:
        print("\n| from the first trial to the last | CPU ms | wall ms |\n|---|---:|---:|")
    for timing in parted:
        print(
            f"| {timing.name} | {spread(timing, 'trials_cpu')} | {spread(timing, 'trials_wall')} |"
        )
    sys.stdout.flush()


def show_ideal(timings: Sequence[Timing], seconds: float) -> None:
    """What sleeping agents took, in parts of what they would take at best."""
    print(f"\n| wall ÷ ideal ({seconds * 1e3:,.0f} ms) | whole call | first trial to last |")
    print("|---|---:|---:|")
    for timing in timings:
        inner = f"{timing.median('trials_wall') / seconds:.3f}" if in_parts(timing) else "–"
        print(f"| {timing.name} | {timing.median('wall') / seconds:.3f} | {inner} |")
    sys.stdout.flush()


def in_parts(timing: Timing) -> bool:
    """Whether the contestant told when its first trial began and its last ended."""
    return all(getattr(sample, "trials_wall", None) is not None for sample in timing.samples)


def spread(timing: Timing, clock: str) -> str:
    low, high = timing.spread(clock)
    return f"{timing.median(clock) * 1e3:.1f} ({low * 1e3:.1f} – {high * 1e3:.1f})"


def flatness(rounds: int) -> tuple[float, float]:
    """Cost per trial of ours as their number grows: growth, and the largest peak in MB."""
    who = MAKERS[OURS]()
    work = {f"{n:,}": contestant(who, n, 0) for n in FLAT_SIZES}
    timings = compare(work, rounds, warm_up=0)
    print("\n### Proctor, cost per trial (returns at once)\n")
    print(
        "| trials | CPU µs | wall µs | CPU µs, trials only | peak MB |\n|---:|---:|---:|---:|---:|"
    )
    for n, timing in zip(FLAT_SIZES, timings, strict=True):
        figures = [timing.median(c) / n * 1e6 for c in ("cpu", "wall", "trials_cpu")]
        cells = " | ".join(f"{figure:.1f}" for figure in figures)
        print(f"| {n:,} | {cells} | {timing.median('peak_mb'):.0f} |", flush=True)
    costs = [t.median("cpu") / n for n, t in zip(FLAT_SIZES, timings, strict=True)]
    return costs[-1] / min(costs[:-1]), timings[-1].median("peak_mb")


Results = Mapping[tuple[int, int], Mapping[str, Timing]]
"""(trials, wait in ms) → contestant → its timing."""


def goals(results: Results, growth: float | None, peak: float | None) -> bool:
    """Say of every goal whether it was met, on CPU time and on wall time; all of them?"""
    met: list[bool] = []

    def judge(what: str, figure: float, goal: float, *, at_most: bool) -> None:
        met.append(figure <= goal if at_most else figure >= goal)
        word = "at most" if at_most else "at least"
        print(f"| {what} | {figure:.2f} | {word} {goal:g} | {'met' if met[-1] else 'missed'} |")

    print("\n### Goals\n\n| | measured | goal | |\n|---|---:|---:|---|")
    for (n, milliseconds), by_name in results.items():
        ours = by_name.get(OURS)
        if ours is None:
            continue
        if milliseconds:
            best = ideal(n, milliseconds)
            for what, clock in (("whole call", "wall"), ("first trial to last", "trials_wall")):
                figure = ours.median(clock) / best
                judge(f"{n:,} sleeping, {what} ÷ ideal", figure, GOAL_IDEAL, at_most=True)
                if BARE in by_name:  # what this machine, as busy as it was, allows at all
                    figure = by_name[BARE].median(clock) / best
                    print(f"| {n:,} sleeping, {what} of {BARE} ÷ ideal | {figure:.2f} | | |")
            continue
        for clock in ("cpu", "wall"):
            mine = ours.median(clock)
            if BARE in by_name:
                figure = mine / by_name[BARE].median(clock)
                judge(f"{n:,} instant, {clock} ÷ {BARE}", figure, GOAL_BARE, at_most=True)
            for name, goal in ((EVALS, GOAL_EVALS), (INSPECT, GOAL_INSPECT)):
                if name in by_name:
                    figure = by_name[name].median(clock) / mine
                    judge(f"{n:,} instant, {clock} of {name} ÷ ours", figure, goal, at_most=False)
    if growth is not None and peak is not None:
        judge("CPU per trial, 100,000 ÷ the cheapest smaller size", growth, GOAL_FLAT, at_most=True)
        judge("peak MB at 100,000", peak, GOAL_PEAK_MB, at_most=True)
    return all(met)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="light contestants (and inspect-ai where it is installed), 3 rounds",
    )
    parser.add_argument("--rounds", type=int, default=None, help="counted rounds (7, quick: 3)")
    parser.add_argument("--only", nargs="+", choices=MAKERS, help="these contestants")
    parser.add_argument("--no-flatness", action="store_true", help="leave the 100,000 trials out")
    args = parser.parse_args()
    rounds = args.rounds or (3 if args.quick else 7)
    names = args.only or (quick() if args.quick else tuple(MAKERS))
    print(f"{machine()}; medians (quartiles) of interleaved rounds, {AT_ONCE} trials at a time")
    load = ", ".join(f"{figure:.1f}" for figure in os.getloadavg())
    print(
        f"load at the start: {load} (above the number of CPUs, trust CPU before wall)", flush=True
    )
    peers = list(made(names))
    results: dict[tuple[int, int], dict[str, Timing]] = {}
    for agent, milliseconds in AGENTS.items():
        for n in SIZES:
            timings = contest(peers, n, milliseconds, rounds)
            show(timings, f"{n:,} trials, the agent {agent}")
            if milliseconds:
                show_ideal(timings, ideal(n, milliseconds))
            results[n, milliseconds] = {timing.name: timing for timing in timings}
    growth, peak = (None, None)
    if not args.no_flatness and OURS in names:
        growth, peak = flatness(rounds=1 if args.quick else 3)
    return 0 if goals(results, growth, peak) else 1


if __name__ == "__main__":
    raise SystemExit(main())
