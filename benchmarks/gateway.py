"""Measure what the model gateway adds to a call: direct and through it, in turn.

    python benchmarks/gateway.py [--rounds N]

A mock server in a process of its own, a gateway in another, and one client that sends the same
request (about 20 kB, as coding agents send) directly and through the gateway, in turn: whole, and
streamed up to the first byte of the first event.

Goal: at the median at most 5 ms more for a call, and the first event at most 10 ms later. Exit code
0 when both hold, 1 otherwise.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import httpx
from _measure import machine

CALL_GOAL_MS, FIRST_GOAL_MS = 5.0, 10.0


@contextlib.contextmanager
def serving(*command: str) -> Generator[str]:
    """Start a command that prints `export OPENAI_BASE_URL=…`; yield that address."""
    program = [sys.executable, "-m", "proctor", *command]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("export OPENAI_BASE_URL="):
                yield line.strip().partition("=")[2]
                return
        raise SystemExit(f"{' '.join(command)} did not start")
    finally:
        process.terminate()
        process.communicate()


def milliseconds(client: httpx.Client, base: str, *, stream: bool) -> float:
    """Return how long a call takes, or its first event if it is streamed."""
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * 4000}]}
    headers = {"authorization": "Bearer proctor"}
    began = time.perf_counter()
    if not stream:
        client.post(f"{base}/chat/completions", json=body, headers=headers).raise_for_status()
        return (time.perf_counter() - began) * 1000
    body["stream"] = True
    with client.stream("POST", f"{base}/chat/completions", json=body, headers=headers) as answer:
        events = answer.iter_raw()
        next(events)
        took = (time.perf_counter() - began) * 1000
        for _ in events:
            pass
    return took


def main() -> int:
    """Measure, print a table, compare with the goals."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.yaml")
        script.write_text("default: {text: one two three four five, chunk_latency: 0.001}\n")
        os.chdir(folder)
        with (
            serving("mock-llm", str(script)) as direct,
            serving("gateway", "--upstream", f"openai={direct}") as through,
            httpx.Client() as client,
        ):
            print(machine())
            print("| call | direct | through the gateway | added, median | goal |")
            print("|---|---|---|---|---|")
            missed = 0
            for name, stream, goal in (
                ("whole", False, CALL_GOAL_MS),
                ("first event", True, FIRST_GOAL_MS),
            ):
                for base in (direct, through):
                    for _ in range(10):
                        milliseconds(client, base, stream=stream)
                pairs = [
                    (
                        milliseconds(client, direct, stream=stream),
                        milliseconds(client, through, stream=stream),
                    )
                    for _ in range(rounds)
                ]
                plain, proxied = (statistics.median(each) for each in zip(*pairs, strict=True))
                added = statistics.median(b - a for a, b in pairs)
                missed += added > goal
                print(
                    f"| {name} | {plain:.2f} ms | {proxied:.2f} ms | {added:+.2f} ms | {goal} ms |"
                )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
