"""How long one trajectory match takes, against agentevals' match evaluators.

    python benchmarks/matching.py [--rounds N] [--pairs N]

The same transcripts, in the chat format, go to both; both start from messages and end with a
verdict, and the verdicts must agree. A step is an assistant message that asks for one call, then
nothing: without the tools' replies there is less for the peer to convert, which favours it.
Goals: at least 10 times faster per match in each of the four modes, and time linear in length.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _measure import Timing, compare, machine, peer, reports, table

PEER = ("agentevals", ("agentevals==0.0.9",))
MODES = ("strict", "unordered", "superset", "subset")
STEPS = (50, 100, 200, 400)
GOAL_TIMES_FASTER = 10
# Eight times the length may take this much more than eight times as long: room for noise.
GOAL_GROWTH = 1.5
TOOLS = ("search", "fetch", "calculate", "read_file", "write_file", "send_mail", "query", "plan")

Pairs = list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]


# -- the transcripts ------------------------------------------------------------------------


def transcripts(count: int, steps: int, seed: int = 7) -> Pairs:
    """Pairs (actual, reference): half the same, the others with one difference each."""
    draw = random.Random(seed)
    return [one_pair(draw, steps) for _ in range(count)]


def one_pair(draw: random.Random, steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    calls = [(draw.choice(TOOLS), arguments(draw)) for _ in range(steps)]
    changed = [(name, dict(given)) for name, given in calls]
    place = draw.randrange(steps - 1)
    kind = draw.choice(("same",) * 5 + ("argument", "swapped", "extra", "missing", "renamed"))
    if kind == "argument":
        changed[place][1]["limit"] += 1
    elif kind == "swapped":
        changed[place], changed[place + 1] = changed[place + 1], changed[place]
    elif kind == "extra":
        changed.insert(place, (draw.choice(TOOLS), arguments(draw)))
    elif kind == "missing":
        del changed[place]
    elif kind == "renamed":
        changed[place] = ("other", changed[place][1])
    return [message(draw, call) for call in changed], [message(draw, call) for call in calls]


def arguments(draw: random.Random) -> dict[str, Any]:
    words = " ".join(draw.choice(("red", "blue", "fast", "old", "new")) for _ in range(4))
    return {
        "query": words,
        "limit": draw.randrange(50),
        "options": {"lang": "en", "exact": draw.random() < 0.5, "tags": ["a", "b"]},
    }


def message(draw: random.Random, call: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    name, given = call
    # One in ten is written with other white space: equal, yet not the same text.
    text = json.dumps(given, separators=(",", ":") if draw.random() < 0.1 else None)
    function = {"name": name, "arguments": text}
    call_id = f"call_{draw.getrandbits(48):012x}"
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


# -- the contestants, each in its own process -----------------------------------------------

Matcher = Callable[[list[dict[str, Any]], list[dict[str, Any]]], bool]


def proctor_matcher(mode: str) -> Matcher:
    from proctor.checks.metrics import calls_of, match_calls

    return lambda actual, reference: (
        match_calls(
            calls_of(actual),
            calls_of(reference),
            mode=mode,  # pyright: ignore[reportArgumentType]
        ).passed
    )


def agentevals_matcher(mode: str) -> Matcher:
    from agentevals.trajectory.match import (  # pyright: ignore[reportMissingImports]
        create_trajectory_match_evaluator,
    )

    evaluate = create_trajectory_match_evaluator(trajectory_match_mode=mode)
    return lambda actual, reference: evaluate(outputs=actual, reference_outputs=reference)["score"]


def bare_matcher(mode: str) -> Matcher:
    """The least that decides `unordered`: two multisets of decoded calls, and no explanation."""
    assert mode == "unordered"

    def multiset(messages: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
        functions = (call["function"] for m in messages for call in m.get("tool_calls") or ())
        return Counter(
            (f["name"], json.dumps(json.loads(f["arguments"]), sort_keys=True)) for f in functions
        )

    return lambda actual, reference: multiset(actual) == multiset(reference)


MATCHERS = {"proctor": proctor_matcher, "agentevals": agentevals_matcher, "bare": bare_matcher}


def work(who: str, mode: str, source: Path, *, verdicts: bool) -> None:
    """Match every pair of a file once and print the time; only the matching is timed."""
    pairs: Pairs = json.loads(source.read_text(encoding="utf-8"))
    matches = MATCHERS[who](mode)
    matches(*pairs[0])
    wall, cpu = time.perf_counter(), time.process_time()
    found = [bool(matches(actual, reference)) for actual, reference in pairs]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if verdicts:
        print("".join("01"[verdict] for verdict in found))
    print(json.dumps({"wall": wall / len(pairs), "cpu": cpu / len(pairs)}))


# -- the comparison -------------------------------------------------------------------------


def command(who: str, mode: str, source: Path, *more: str) -> list[str | Path]:
    python = peer(*PEER) if who == "agentevals" else Path(sys.executable)
    return [python, Path(__file__), "--work", who, "--mode", mode, "--source", source, *more]


def verdicts(who: str, mode: str, source: Path) -> str:
    import subprocess

    argv = [str(part) for part in command(who, mode, source, "--verdicts")]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()[-2]


def contest(mode: str, source: Path, rounds: int) -> dict[str, Timing]:
    names = ["proctor", "agentevals", *(["bare"] if mode == "unordered" else [])]
    contestants = {name: reports(command(name, mode, source)) for name in names}
    timings = compare(contestants, rounds, warm_up=0)
    label = f"\n{mode}, per match\n\n"
    print(label + table(timings, "proctor"))
    return {timing.name: timing for timing in timings}


def per_mode(folder: Path, pairs: int, rounds: int) -> list[str]:
    """Time the four modes on trajectories of 50 steps; return the missed goals."""
    source = write(folder, pairs, STEPS[0])
    missed: list[str] = []
    for mode in MODES:
        ours, theirs = (verdicts(who, mode, source) for who in ("proctor", "agentevals"))
        if ours != theirs:
            raise SystemExit(f"{mode}: the verdicts differ, so the times mean nothing")
        timings = contest(mode, source, rounds)
        ratio = timings["agentevals"].median() / timings["proctor"].median()
        print(f"\n{ours.count('1')} of {pairs} match, both say; {ratio:.1f} times faster")
        if ratio < GOAL_TIMES_FASTER:
            missed.append(f"{mode}: {ratio:.1f} times faster, goal {GOAL_TIMES_FASTER}")
    return missed


def growth(folder: Path, pairs: int, rounds: int) -> list[str]:
    """Time a step of trajectories of growing length; return the missed goals."""
    missed: list[str] = []
    sources = {
        steps: write(folder, max(pairs * STEPS[0] // steps // 4, 10), steps) for steps in STEPS
    }
    print("\n| CPU µs per step | " + " | ".join(f"{steps} steps" for steps in STEPS) + " |")
    print("|---|" + "---:|" * len(STEPS))
    for mode in MODES:
        contestants = {
            f"{who} {steps}": reports(command(who, mode, source))
            for steps, source in sources.items()
            for who in ("proctor", "agentevals")
        }
        found = {timing.name: timing for timing in compare(contestants, rounds, warm_up=0)}
        for who in ("proctor", "agentevals"):
            cost = [found[f"{who} {steps}"].median() / steps * 1e6 for steps in STEPS]
            print(f"| {mode}, {who} | " + " | ".join(f"{each:.2f}" for each in cost) + " |")
            if who == "proctor" and cost[-1] > cost[0] * GOAL_GROWTH:
                missed.append(
                    f"{mode}: {cost[0]:.2f} µs a step at {STEPS[0]}, {cost[-1]:.2f} later"
                )
    return missed


def write(folder: Path, pairs: int, steps: int) -> Path:
    path = folder / f"{steps}-{pairs}.json"
    path.write_text(json.dumps(transcripts(pairs, steps)), encoding="utf-8")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--work", choices=MATCHERS, help=argparse.SUPPRESS)
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--source", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--verdicts", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.mode, options.source, verdicts=options.verdicts)
        return 0
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        missed = per_mode(Path(folder), options.pairs, options.rounds)
        missed += growth(Path(folder), options.pairs, options.rounds)
    print("\n" + ("\n".join(missed) or "every goal met"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
