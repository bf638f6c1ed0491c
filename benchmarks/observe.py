"""What the HTTP hook adds to one model call.

    python benchmarks/observe.py [--rounds N] [--calls N]

The same requests are sent with httpx through a transport in memory, without and with the hook; the
responses must be equal byte for byte. A request has ten messages of 400 characters, the response a
tool call; streamed, it comes in 40 events. CPU time per call, median of interleaved rounds.
Goal: at most 0.3 ms per call.
"""

import argparse
import json
import statistics
import sys
import time

import httpx
from _measure import machine

from proctor.gateway.observe import observing
from proctor.trace.capture import capture

GOAL_MS = 0.3
URL = "https://api.openai.com/v1/chat/completions"
ASKED = {
    "model": "gpt-4o-mini",
    "messages": [{"role": "user", "content": "word " * 80} for _ in range(10)],
    "tools": [{"type": "function", "function": {"name": "find", "parameters": {}}}],
}
CALL = {"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}
WHOLE = json.dumps(
    {
        "id": "r",
        "model": "gpt-4o-mini",
        "choices": [{"message": {"role": "assistant", "tool_calls": [CALL]}}],
        "usage": {"prompt_tokens": 900, "completion_tokens": 20},
    }
).encode()
PIECE = {"index": 0, "delta": {"content": "word "}}
CHUNK = {"id": "r", "model": "gpt-4o-mini", "choices": [PIECE]}
EVENTS = [f"data: {json.dumps(CHUNK)}\n\n".encode() for _ in range(40)] + [b"data: [DONE]\n\n"]


def answer(request: httpx.Request) -> httpx.Response:
    if json.loads(request.content).get("stream"):
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=EVENTS)
    return httpx.Response(200, headers={"content-type": "application/json"}, content=WHOLE)


def send(client: httpx.Client, stream: bool) -> bytes:
    if not stream:
        return client.post(URL, json=ASKED).content
    with client.stream("POST", URL, json={**ASKED, "stream": True}) as response:
        return b"".join(response.iter_bytes())


def measure(calls: int, stream: bool) -> float:
    """Return CPU milliseconds per call."""
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        began = time.process_time()
        for _ in range(calls):
            send(client, stream)
        return (time.process_time() - began) * 1000 / calls


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--calls", type=int, default=500)
    given = options.parse_args()
    print(machine())
    missed = False
    for stream, name in ((False, "whole"), (True, "streamed, 40 events")):
        with httpx.Client(transport=httpx.MockTransport(answer)) as client:
            plain = send(client, stream)
            with observing(), capture(query="q") as trace:
                assert send(client, stream) == plain, "the hook changed the response"
            assert len(trace.llm_calls) == 1
        bare: list[float] = []
        hooked: list[float] = []
        for _ in range(given.rounds):
            bare.append(measure(given.calls, stream))
            with observing(), capture(query="q"):
                hooked.append(measure(given.calls, stream))
        added = statistics.median(hooked) - statistics.median(bare)
        missed |= added > GOAL_MS
        print(f"\n### One model call, {name}\n")
        print("| | cpu ms a call, median |\n|---|---:|")
        for who, value in (("httpx", statistics.median(bare)), ("added by the hook", added)):
            print(f"| {who} | {value:.3f} |")
    print(f"\ngoal: at most {GOAL_MS} ms a call: {'MISSED' if missed else 'met'}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
