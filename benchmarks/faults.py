"""Do to Proctor what power cuts, agents, files and clients do, and count what goes wrong.

    python benchmarks/faults.py [--only kills damage ...] [--seconds 600] [--seed 1]
    python benchmarks/faults.py --quick

Each fault is tried as often as `NUMBERS` says, or with `--seconds` in turn until the time is over;
`--quick` tries a few of each. A line counts what was tried, and one tells each failed try.

- damage: two equal green runs are written once. A try changes one random byte of one of them, or
  removes, repeats or swaps lines, or truncates or removes a file; then `COMMANDS` read the run. It
  fails if a command prints or exits with something else than on the whole run and does not say that
  something cannot be read, or if `gate` is green although a file that has checksums was damaged.
- kills: a random process of a run (driver, keeper, worker, process of a trial) gets SIGKILL at a
  random moment, with trials in a worker and in processes of their own. A killed run is resumed. It
  fails if a finished trial is lost, changed or doubled.
- disk: the disk is full after a random number of bytes; the run is resumed with room. The same.
- clocks: the wall clock jumps by up to a year at every reading. It fails if a trial is lost or has
  a duration that the jumps changed.
- agents: a random attack of `tests/trials/test_hostile_agents.py`, with its promises.
- files: a run folder with a bomb or random bytes in a random file. It fails if a command crashes,
  or needs more than 4 GB.
- clients: connections that never finish their headers, more than the server accepts. It fails if a
  client with the token gets no answer.

Exit code 1 if any try failed.
"""

import argparse
import contextlib
import io
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import NamedTuple

from proctor.cli.main import run as command
from proctor.processes import descendants

AGENT = "async def answer(question):\n    return 'Paris and Rome'\n"
SUITE = """\
version: 1
agent: agent:answer
cases:
  - {id: france, input: The capital of France?, correctness: {expected_in_answer: [Paris]}}
  - {id: italy, input: The capital of Italy?, correctness: {expected_in_answer: [Rome]}}
"""

COMMANDS = {
    "gate": "gate {run} --against {other} --json",
    "report": "report {run} --format json",
    "compare": "compare {other} {run} --json",
    "results": "results {run} --json",
    "sql": "sql 'SELECT agent, status, score, answer FROM trials ORDER BY ALL' --results {run}",
    "leaderboard": "leaderboard {run} --json",
}
"""Commands that read a run, with a run and one to compare it with."""

WORDS = (
    *("cannot read", "cannot be read", "damaged", "missing", "skipped", "dropped a line"),
    *("not a run folder", "cannot tell which run"),
)
"""What a command that noticed a damage says."""

UNCHECKED = ("heartbeat.json", "notes.jsonl", ".lock")
"""Files that no verdict depends on: progress for people, notes and tags, and the lock."""


class Output(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    text: str
    said: str

    @property
    def noticed(self) -> bool:
        """Whether it says that something cannot be read."""
        return any(word in self.said or word in self.text for word in WORDS)


def output(line: str, **names: Path) -> Output:
    """Run a command in this process."""
    import shlex

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command(shlex.split(line.format(**names)))
    return Output(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def two_runs() -> Iterator[tuple[Path, Path]]:
    """Write two equal runs to a temporary folder, which becomes the working folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="proctor-faults-") as place:
        os.chdir(place)
        sys.path.insert(0, place)
        try:
            Path("agent.py").write_text(AGENT)
            Path("suite.yaml").write_text(SUITE)
            for _ in range(2):
                done = output("run suite.yaml --trials 20 --quiet")
                assert done.code == 0, done
            first, second = sorted(Path("results/suite").iterdir())
            assert output("runs tag {run} main", run=first).code == 0
            yield second.resolve(), first.resolve()
        finally:
            sys.path.remove(place)
            os.chdir(before)


def change_byte(path: Path, chance: random.Random) -> str | None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    if not content:
        return None
    at = chance.randrange(len(content))
    content[at] ^= chance.randrange(1, 256)
    path.write_bytes(content)
    return f"{path.name}: byte {at}"


def delete_lines(path: Path, chance: random.Random) -> str | None:
    """Delete, repeat or swap lines of a file, truncate it, or remove it."""
    lines = path.read_bytes().splitlines(keepends=True)
    at = chance.randrange(max(1, len(lines)))
    kind = chance.choice(("line", "line", "line", "repeat", "swap", "truncate", "file"))
    if kind == "file":
        path.unlink()
    elif kind == "truncate":
        os.truncate(path, chance.randrange(path.stat().st_size + 1) if lines else 0)
    elif len(lines) < 2:
        return None
    elif kind == "line":
        del lines[at]
    elif kind == "repeat":
        lines.insert(at, lines[at])
    else:
        lines[at - 1], lines[at] = lines[at], lines[at - 1]
    if kind in ("line", "repeat", "swap"):
        path.write_bytes(b"".join(lines))
    return f"{path.name}: {kind} {at}"


Fault = Callable[[Path, random.Random], str | None]


def damage_runs(faults: dict[Fault, int], seed: int) -> tuple[Counter[str], list[str]]:
    """Apply each fault so many times; return the counts, and a line for each bad one."""
    counts: Counter[str] = Counter()
    bad: list[str] = []
    chance = random.Random(seed)
    with two_runs() as (run, other):
        spare = run.parents[2] / "spare"
        shutil.copytree(run, spare)
        clean = {name: output(line, run=run, other=other) for name, line in COMMANDS.items()}
        for name, done in clean.items():
            assert done.code == 0, (name, done)
            assert not done.said or name == "leaderboard", (name, done.said)
        files = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file())
        for fault, number in faults.items():
            done = 0
            while done < number:
                name = chance.choice(files)
                shutil.rmtree(run)
                shutil.copytree(
                    spare, run
                )  # with the times, as a run is on the disk it was made on
                what = fault(run / name, chance)
                same = what is None or (
                    (run / name).is_file()
                    and (run / name).read_bytes() == (spare / name).read_bytes()
                )
                if same:
                    continue
                done += 1
                counts[f"{fault.__name__}: tried"] += 1
                noticed = 0
                for title, line in COMMANDS.items():
                    found = output(line, run=run, other=other)
                    noticed += found.noticed
                    if not found.noticed and found[:2] != clean[title][:2]:
                        bad.append(f"silent: {what}: {title}: {found}")
                    if title == "gate" and found.code == 0 and name.name not in UNCHECKED:
                        bad.append(f"green: {what}: {found}")
                counts[f"{fault.__name__}: noticed by {noticed} of {len(COMMANDS)} commands"] += 1
    return counts, bad


# -- other faults ----------------------------------------------------------------------------------

TESTS = Path(__file__).parents[1] / "tests"

TRIALS = 40
SLOW_AGENT = """\
import asyncio

async def answer(question):
    await asyncio.sleep(0.02)
    return "Paris and Rome"
"""
JUMPS = """\
import random, time
real, real_ns = time.time, time.time_ns
def jump(): return random.Random(real_ns()).uniform(-3e7, 3e7)
time.time = lambda: real() + jump()
time.time_ns = lambda: real_ns() + int(jump() * 1e9)
"""


def started(folder: Path, *args: object, limit: Callable[[], None] | None = None) -> Popen[str]:
    """Start the command in a folder; `limit` is called in its process."""
    line = [sys.executable, "-m", "proctor", *map(str, args)]
    environment = {**os.environ, "PYTHONPATH": str(folder / "path"), "NO_COLOR": "1"}
    return Popen(
        line,
        cwd=folder,
        env=environment,
        text=True,
        stdout=PIPE,
        stderr=STDOUT,
        preexec_fn=limit,  # noqa: PLW1509
    )


def write_project(folder: Path, *, isolated: bool = False) -> None:
    """Write a suite of 80 short trials."""
    (folder / "agent.py").write_text(SLOW_AGENT)
    (folder / "path").mkdir()
    alone = "{kind: python, target: agent:answer, isolation: process}"
    agent = alone if isolated else "agent:answer"
    (folder / "suite.yaml").write_text(SUITE.replace("agent: agent:answer", f"agent: {agent}"))


def lines_of(folder: Path) -> dict[tuple[str, int], list[str]]:
    """Return the whole lines of the journal, by trial."""
    found: dict[tuple[str, int], list[str]] = {}
    for path in folder.glob("results/*/*/trials.jsonl"):
        for line in path.read_text(errors="replace").split("\n")[:-1]:
            trial = json.loads(line)
            found.setdefault((trial["case"], trial["index"]), []).append(line)
    return found


def resumed(folder: Path, before: dict[tuple[str, int], list[str]], trials: int) -> str | None:
    """Resume the run; return what it lost, changed or doubled, or None."""
    for run in folder.glob("results/*/*/_spec_.yaml"):
        process = started(folder, "run", "--resume", run.parent, "--quiet")
        said = process.communicate(timeout=300)[0]
        if process.returncode not in (0, 1):
            return f"resume exits with {process.returncode}: {said}"
        verified = started(folder, "runs", "verify", run.parent)
        if verified.communicate(timeout=60) and verified.returncode:
            return f"verify exits with {verified.returncode}"
    after = lines_of(folder)
    if after and len(after) != 2 * trials:
        return f"{len(after)} of {2 * trials} trials"
    # A trial that the end of the run cancelled is run again; any other line is the only one.
    kept = {
        key: [line for line in lines if '"cancelled"' not in line] for key, lines in after.items()
    }
    doubled = [key for key, lines in kept.items() if len(lines) != 1]
    lost = [
        key
        for key, lines in before.items()
        if any('"cancelled"' not in line and line not in after[key] for line in lines)
    ]
    return f"doubled {doubled}, lost {lost}" if doubled or lost else None


def kill_process(folder: Path, chance: random.Random) -> tuple[str, str | None]:
    """Kill a random process of a run, in a worker or with a process for each trial."""
    isolated = chance.random() < 0.5
    write_project(folder, isolated=isolated)
    trials = 4 if isolated else TRIALS
    driver = started(folder, "run", "suite.yaml", "--trials", trials, "--quiet")
    wanted = chance.randrange(2 * trials)
    while driver.poll() is None and len(lines_of(folder)) < wanted:
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 0.05))
    tree = [driver.pid, *descendants(driver.pid)]
    victim = chance.randrange(len(tree))
    with contextlib.suppress(ProcessLookupError):
        os.kill(tree[victim], signal.SIGKILL)
    name = ("driver", "keeper", "worker")[victim] if victim < 3 else "process of a trial"
    driver.communicate(timeout=300)
    what = f"kills, {'process per trial' if isolated else 'worker'}: {name}"
    return what, resumed(folder, lines_of(folder), trials)


def fill_disk(folder: Path, chance: random.Random) -> tuple[str, str | None]:
    """Let no file grow beyond a random size, then resume."""
    write_project(folder)
    size = chance.randrange(1, 40_000)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    full = started(folder, "run", "suite.yaml", "--trials", TRIALS, "--quiet", limit=limit)
    said = full.communicate(timeout=300)[0]
    if "Traceback" in said or "unexpected" in said or full.returncode not in (0, 2):
        return "disk", f"{size} bytes: exit {full.returncode}: {said}"
    return "disk", resumed(folder, lines_of(folder), TRIALS)


def jump_clock(folder: Path, chance: random.Random) -> tuple[str, str | None]:
    """Set the wall clock at each reading, in the driver and its workers."""
    del chance
    write_project(folder)
    (folder / "path/sitecustomize.py").write_text(JUMPS)
    process = started(folder, "run", "suite.yaml", "--trials", TRIALS, "--quiet")
    said = process.communicate(timeout=300)[0]
    found = [json.loads(lines[0]) for lines in lines_of(folder).values()]
    if process.returncode or len(found) != 2 * TRIALS:
        return "clocks", f"exit {process.returncode}, {len(found)} trials: {said}"
    (folder / "path/sitecustomize.py").unlink()
    odd = [t for t in found if not 20 <= t["latency_ms"] <= t["duration_ms"] < 300_000]
    return "clocks", f"durations {odd[:2]}" if odd else resumed(folder, lines_of(folder), TRIALS)


def attack(folder: Path, chance: random.Random) -> tuple[str, str | None]:
    """Run a hostile agent among others."""
    sys.path[:0] = [str(TESTS), str(TESTS / "trials")]
    try:
        import test_hostile_agents as hostile
    finally:
        del sys.path[:2]
    name = chance.choice(sorted(hostile.ATTACKS))
    body, category = hostile.ATTACKS[name]
    hostile.suite(folder, body, plain=name.startswith("plain"))
    try:
        found = hostile.results(folder)["attack"]
    except (AssertionError, subprocess.TimeoutExpired) as error:
        return "agents", f"{name}: {error}"
    ok = (found["status"], found["category"]) == ("failed", category)
    return "agents", None if ok else f"{name}: {found}"


def plant_bomb(folder: Path, chance: random.Random) -> tuple[str, str | None]:
    """Put a hostile file into a run folder, and read it with 4 GB."""
    write_project(folder)
    assert started(folder, "run", "suite.yaml", "--trials", 2, "--quiet").wait(300) == 0
    (run,) = folder.glob("results/*/*/")
    aliases = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
    deep = 200_000
    bombs = (
        b"a0: &a0 [x]\n" + aliases.encode(),
        b"[" * deep + b"]" * deep,
        b'{"a":' * deep + b"1" + b"}" * deep,
        b"\x28\xb5\x2f\xfd\xe0" + (100 << 30).to_bytes(8, "little") + b"\x01\0\0",
        (run / "trials.jsonl").read_bytes().replace(b'"trace":[1,', b'"trace":[1,1099511627776,'),
        chance.randbytes(100_000),
        b"\0" * 100_000,
    )
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    place, bomb = chance.choice(files), chance.randrange(len(bombs))
    place.write_bytes(bombs[bomb])

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    for line in (("report", run), ("runs", "verify", run), ("results",), ("runs", "list")):
        process = started(folder, *line, limit=limit)
        said = process.communicate(timeout=120)[0]
        if process.returncode not in (0, 1, 2) or "unexpected" in said or "Traceback" in said:
            return "files", f"bomb {bomb} in {place.name}: {line[0]}: {process.returncode} {said}"
    return "files", None


def crowd_out(folder: Path, chance: random.Random) -> tuple[str, str | None]:
    """Open more connections than the server accepts, none with whole headers."""
    (folder / "path").mkdir()
    store = f"sqlite:///{folder / 'store.db'}"
    server = started(folder, "serve", "--port", 0, "--token", "t0ken", "--store", store)
    assert server.stdout is not None
    slow: list[socket.socket] = []
    try:
        port = 0
        while not port:
            line = server.stdout.readline()
            assert line, "the server ended"
            match = re.search(r"http://[^:/ ]+:([0-9]+)", line)
            port = int(match.group(1)) if match else 0
        for _ in range(chance.randrange(1050, 1300)):
            with contextlib.suppress(OSError):
                slow.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                slow[-1].sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        url = f"http://127.0.0.1:{port}/runs"
        request = urllib.request.Request(url, headers={"Authorization": "Bearer t0ken"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                ok = reply.status < 500
        except urllib.error.HTTPError as error:
            ok = error.code < 500
        except OSError as error:
            return "clients", f"{len(slow)} connections: {error}"
        return "clients", None if ok else "a server error"
    finally:
        for each in slow:
            each.close()
        server.terminate()
        server.communicate(timeout=60)


Try = Callable[[Path, random.Random], tuple[str, str | None]]

FAULTS: dict[str, tuple[Try, int, int]] = {
    "kills": (kill_process, 100, 4),
    "disk": (fill_disk, 30, 1),
    "clocks": (jump_clock, 10, 1),
    "agents": (attack, 100, 2),
    "files": (plant_bomb, 60, 2),
    "clients": (crowd_out, 3, 1),
}
"""Each fault with its number of tries, and those of `--quick`."""


def try_faults(numbers: dict[str, int], seed: int, until: float) -> tuple[Counter[str], list[str]]:
    """Try each fault so many times, in turn, until then; return counts and failed tries."""
    counts: Counter[str] = Counter()
    bad: list[str] = []
    left = dict(numbers)
    while any(left.values()) and time.monotonic() < until:
        for name in [name for name, number in left.items() if number]:
            left[name] -= 1
            number = numbers[name] - left[name]
            with tempfile.TemporaryDirectory(prefix="proctor-faults-") as place:
                what, failed = FAULTS[name][0](
                    Path(place), random.Random(f"{seed} {name} {number}")
                )
            counts[what] += 1
            if failed is not None:
                bad.append(f"{what}, try {number} of seed {seed}: {failed}")
    return counts, bad


def main() -> int:
    """Run the campaign and print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=["damage", *FAULTS])
    parser.add_argument("--seconds", type=float, help="repeat until then, whatever the numbers")
    parser.add_argument("--quick", action="store_true", help="a few tries of each")
    parser.add_argument("--damages", type=int)
    parser.add_argument("--deletions", type=int)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chosen = given.only or ["damage", *FAULTS]
    began, counts, bad = time.monotonic(), Counter[str](), list[str]()
    if "damage" in chosen:
        damages = given.damages if given.damages is not None else 20 if given.quick else 1000
        deletions = given.deletions if given.deletions is not None else 10 if given.quick else 100
        counts, bad = damage_runs({change_byte: damages, delete_lines: deletions}, given.seed)
    numbers = {name: FAULTS[name][2 if given.quick else 1] for name in FAULTS if name in chosen}
    if given.seconds is not None:
        numbers = dict.fromkeys(numbers, sys.maxsize)
    until = math.inf if given.seconds is None else began + given.seconds
    more, failed = try_faults(numbers, given.seed, until)
    counts.update(more)
    bad += failed
    for name, number in sorted(counts.items()):
        print(f"{number:6} {name}")
    print(f"{len(bad):6} failed")
    for line in bad[:20]:
        print(line[:400])
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
