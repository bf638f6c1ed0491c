"""Damage finished runs and count what every command makes of it.

    python benchmarks/faults.py [--damages 1000] [--deletions 100] [--seed 1]

Two equal green runs are written once. Each damage changes one random byte of one of them; each
deletion removes, repeats or swaps lines, or truncates or removes a file. Then the commands of
`COMMANDS` read the run, in this process. A damage is

- silent, if a command prints or exits with something else than on the whole run and does not say
  that something cannot be read: there must be none;
- green, if `gate` exits with 0 although a file that has checksums was damaged: there must be none;
- noticed or harmless otherwise.

Exit code 1 if any damage was silent or green.
"""

import argparse
import contextlib
import io
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from proctor.cli.main import run as command

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


def main() -> int:
    """Run the campaign and print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--damages", type=int, default=1000)
    parser.add_argument("--deletions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    counts, bad = damage_runs(
        {change_byte: given.damages, delete_lines: given.deletions}, given.seed
    )
    for name, number in sorted(counts.items()):
        print(f"{number:6} {name}")
    print(f"{len(bad):6} silent or green")
    for line in bad[:20]:
        print(line[:400])
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
