"""What Proctor adds to one turn of a conversation.

    python benchmarks/conversations.py [--rounds N] [--conversations N] [--trials N] [--turns N]

10 trials × 50 conversations × 12 turns of a chat agent against `proctor mock-llm`, which is a
process of its own, against a bare loop: the same client sends the same growing list of messages,
as many at a time, and nothing is recorded or checked. Both in this process. CPU and wall time per
turn, medians of interleaved rounds; what is added is the difference of the CPU times, which other
programs on the machine change less.
Goal: at most 2 ms per turn.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from _measure import calls, compare, machine, table

import proctor
from proctor.llm.chat_model import ChatRequest
from proctor.llm.providers import get_model
from proctor.trace import Message

GOAL_MS = 2.0
AT_ONCE = 4
SCRIPT = "replies:\n  - {text: It is on its way., times: forever, usage: {input: 20, output: 5}}\n"


async def bare(base_url: str, conversations: int, turns: int) -> None:
    """Hold conversations without Proctor."""
    model = get_model("openai:gpt-4o-mini", base_url=base_url)
    left = iter(range(conversations))

    async def work() -> None:
        for number in left:
            messages: list[Message] = []
            for turn in range(turns):
                messages.append(Message("user", f"Where is part {turn} of order {number}?"))
                reply = await model.complete(ChatRequest(messages=tuple(messages)))
                messages.append(Message("assistant", reply.text))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--conversations", type=int, default=50)
    options.add_argument("--trials", type=int, default=10)
    options.add_argument("--turns", type=int, default=12)
    given = options.parse_args()
    os.environ.setdefault("OPENAI_API_KEY", "none")
    print(machine())
    cases = [
        {
            "id": f"c{number}",
            "turns": [f"Where is part {n} of order {number}?" for n in range(given.turns)],
            "correctness": {"expected_in_answer": "on its way"},
        }
        for number in range(given.conversations)
    ]
    every = given.conversations * given.trials
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "script.yaml"
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "proctor", "mock-llm", str(script), "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            lines = iter(server.stdout.readline, "")
            url = next(found[0] for line in lines if (found := re.search(r"http://\S+", line)))
            base_url = url.rstrip("/") + ("" if url.rstrip("/").endswith("/v1") else "/v1")
            agent = {"kind": "chat", "model": "openai:gpt-4o-mini", "base_url": base_url}
            suite = proctor.Suite.model_validate({"cases": cases})

            def with_proctor() -> None:
                run = proctor.run(
                    suite, agent=agent, trials=given.trials, concurrency=AT_ONCE,
                    results=Path(place) / "results",
                )  # fmt: skip
                assert run.totals.passed == every, run.failures or run.errors

            timings = compare(
                {
                    "bare": calls(lambda: asyncio.run(bare(base_url, every, given.turns))),
                    "proctor": calls(with_proctor),
                },
                given.rounds,
            )
        finally:
            server.terminate()
            server.wait()
    turns = every * given.turns
    print(table(timings, "bare"))
    print(table(timings, "bare", "wall"))
    found = {timing.name: timing.median() * 1000 / turns for timing in timings}
    added = found["proctor"] - found["bare"]
    print(f"\n{turns:,} turns; added CPU per turn: {added:.2f} ms (goal {GOAL_MS:g} ms)")
    return int(added > GOAL_MS)


if __name__ == "__main__":
    sys.exit(main())
