"""Compare ways of doing the same work: interleaved rounds, CPU and wall time, median and spread.

Rounds are interleaved (every contestant once per round, in rotating order), so that a machine
which slows down slows all of them down. What is compared is the ratio, not the seconds.
"""

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".cache" / "bench-envs"


@dataclass(frozen=True)
class Sample:
    """Seconds that one piece of work took."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Timing:
    """All samples of one contestant, in order."""

    name: str
    samples: Sequence[Sample]

    def median(self, clock: str = "cpu") -> float:
        return statistics.median(getattr(sample, clock) for sample in self.samples)

    def spread(self, clock: str = "cpu") -> tuple[float, float]:
        """First and third quartile: where the middle half of the samples lies."""
        values = [getattr(sample, clock) for sample in self.samples]
        if len(values) < 2:
            return values[0], values[0]
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return low, high


Contestant = Callable[[], Sample]
"""Do the work once and return its timing."""


def calls(work: Callable[[], object]) -> Contestant:
    """A contestant that calls a function in this process."""

    def contestant() -> Sample:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        return Sample(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu)

    return contestant


def runs(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Contestant:
    """A contestant that runs a process to its end, start-up included."""
    argv = [str(part) for part in command]

    def contestant() -> Sample:
        cpu, wall = cpu_of_children(), time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=env)
        return Sample(wall=time.perf_counter() - wall, cpu=cpu_of_children() - cpu)

    return contestant


def cpu_of_children() -> float:
    """CPU seconds of all processes we started that have ended."""
    if sys.platform == "win32":
        return math.nan  # Windows does not add them up
    import resource  # finer than os.times(), which counts in hundredths of a second

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def reports(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Contestant:
    """A contestant in another process that times itself: work without its start-up.

    The process prints `{"wall": seconds, "cpu": seconds}` as its last line.
    """
    argv = [str(part) for part in command]

    def contestant() -> Sample:
        done = subprocess.run(argv, check=True, capture_output=True, text=True, env=env)
        timing = json.loads(done.stdout.splitlines()[-1])
        return Sample(wall=float(timing["wall"]), cpu=float(timing["cpu"]))

    return contestant


def compare(contestants: Mapping[str, Contestant], rounds: int, warm_up: int = 1) -> list[Timing]:
    """Run all contestants in interleaved rounds; the first rounds are not counted."""
    names = list(contestants)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            sample = contestants[name]()
            if number >= warm_up:
                samples[name].append(sample)
    return [Timing(name, samples[name]) for name in names]


def table(timings: Sequence[Timing], baseline: str, clock: str = "cpu") -> str:
    """A Markdown table: median, quartiles and ratio to the baseline of each contestant."""
    base = next(timing for timing in timings if timing.name == baseline).median(clock)
    lines = [
        f"| | {clock} ms, median | quartiles | × {baseline} | rounds |",
        "|---|---:|---:|---:|---:|",
    ]
    for timing in timings:
        low, high = timing.spread(clock)
        middle = timing.median(clock)
        ratio = f"{middle / base:.2f}" if base > 0 else "–"
        lines.append(
            f"| {timing.name} | {middle * 1e3:.2f} | {low * 1e3:.2f} – {high * 1e3:.2f}"
            f" | {ratio} | {len(timing.samples)} |"
        )
    return "\n".join(lines)


def verdict(good: bool) -> str:
    """Return the goal cell of a table."""
    return "met" if good else "missed"


def machine() -> str:
    """One line about where the figures come from."""
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} CPUs"
    )


def peer(name: str, requirements: Sequence[str]) -> Path:
    """Return the Python of a peer's environment; create it from the package index if missing.

    Layout: `.cache/bench-envs/<name>/` is a virtual environment; `requirements.txt` in it is
    written last and says what it holds, so an incomplete one is created again.
    """
    home = ENVIRONMENTS / name
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp, wanted = home / "requirements.txt", "\n".join(requirements) + "\n"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    if os.environ.get("BENCH_PEERS") == "installed":
        raise FileNotFoundError(f"{name} is not installed; `benchmarks/run --fetch` brings it")
    print(f"making the environment of {name}: {', '.join(requirements)}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
    subprocess.run([python, "-m", "pip", "install", "-qq", *requirements], check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return python
