"""How soon the viewer's pages of a large run answer, and how soon a reader can use them.

    python benchmarks/viewer.py [--rounds N] [--spans N] [--store URL]

A run of 40 cases × 3 agents × 10 trials with five earlier runs of it, one of them the baseline, and
a trial whose trace has 5,000 spans. With `--spans` also the pages of live traces, of a store with
so many spans, ten a trace; with `--store` of one that exists. Each page is requested from a
`proctor view` of its own: cold is the first request after its start, the others follow once lists
have read every run. CPU is what the server's process used for a request: the first byte on a
machine without other work. Interactive is the time from the navigation until Chromium has run the
page's scripts.
Goals: 300 ms to the
first byte, 1 s until interactive. Exit code 1 when missed. Needs Playwright and Chromium.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx
from _measure import ROOT, machine, verdict
from _serve_spans import invented
from playwright.sync_api import Browser, sync_playwright

import proctor
from proctor.runs.annotations import tag
from proctor.runs.run import Run
from proctor.server.decoder_process import PROTOBUF, make
from proctor.server.decoder_process import SPANS as SPANS_OF_A_REQUEST
from proctor.server.pages.runs import address_name
from proctor.server.store import existing_store, open_store
from proctor.server.store.rows import Batch
from proctor.server.store.store import PageRequest
from proctor.spec import Case, Suite
from proctor.spec.suite import Correctness
from proctor.trace.model import Message, ToolCall

sys.path.insert(0, str(ROOT / "tests"))

from browser import ARGUMENTS, chromium  # pyright: ignore[reportMissingImports]
from viewer_parts import run_suite  # pyright: ignore[reportMissingImports]

MAX_FIRST_BYTE = 0.3
MAX_INTERACTIVE = 1.0
SPANS = 5_000


def agent(rate: float):
    """An agent that passes at a rate, with three model calls and two tool calls in its trace."""
    import random

    def answer(question: str, seed: int) -> str:
        chance = random.Random(seed)
        history = [Message("system", "You are a clerk."), Message("user", question)]
        for number in range(3):
            with proctor.capture.llm_call("gpt-4o-mini", input_messages=tuple(history)) as step:
                call = ToolCall("look_up", {"n": number}, id=f"c{number}")
                said = Message("assistant", "**Looking** it up. " * 20, (call,) * (number < 2))
                step.output_messages = (said,)
                step.input_tokens, step.output_tokens = 200 * number + 50, 40
            if number < 2:
                with proctor.capture.tool_call("look_up", {"n": number}) as tool:
                    tool.tool_call_id, tool.tool_output = f"c{number}", {"rows": [number] * 20}
                history += [said, Message("tool", f"rows {number}", tool_call_id=f"c{number}")]
        return "yes" if chance.random() < rate else "no"

    return answer


def long_agent(question: str) -> str:
    """An agent whose trace has `SPANS` spans."""
    for number in range(SPANS // 2 - 1):
        asked = Message("user", f"{question} {number}")
        with proctor.capture.llm_call("gpt-4o-mini", input_messages=(asked,)) as step:
            step.output_messages = (Message("assistant", f"Answer *{number}*. " * 10),)
        with proctor.capture.tool_call("look_up", {"n": number}) as tool:
            tool.tool_output = {"rows": [number] * 20}
    return "yes"


def suite(cases: int) -> Suite:
    return Suite(
        cases=[
            Case(
                id=f"case-{n:02}",
                input=f"Is {n} even?",
                correctness=Correctness(expected_in_answer=("yes",)),
            )
            for n in range(cases)
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--spans", type=int, default=0)
    parser.add_argument("--store")
    given = parser.parse_args()
    rounds = given.rounds
    print(machine())
    with tempfile.TemporaryDirectory() as place:
        results = Path(place)
        rates = (0.95, 0.9, 0.8)
        for number in range(6):
            agents = {f"agent-{rate:g}": agent(rate - 0.1 * (number > 3)) for rate in rates}
            run = run_suite(suite(40), agents, results, trials=10)
            if number == 2:
                tag(run, "baseline")
                first = run
        long = run_suite(suite(1), {"long": long_agent}, results, trials=1)
        one = address_name(next(Run(run).trials()))
        pages = {
            "runs": "/runs",
            "history": "/history/suite",
            "run, 1,200 trials": f"/runs/suite/{run.name}",
            "all trials": f"/runs/suite/{run.name}/trials",
            "trial": f"/runs/suite/{run.name}/trial/{one}",
            "trial, 5,000 spans": f"/runs/suite/{long.name}/trial/"
            f"{address_name(next(Run(long).trials()))}",
            "review": f"/runs/suite/{run.name}/review",
            "compare two runs": f"/compare?run=suite/{first.name}&run=suite/{run.name}",
        }
        store = given.store or (stored(results / "traces.db", given.spans) if given.spans else None)
        if store:
            pages |= live_pages(store)
        good = True
        print(
            "| page | cold, ms | cold, CPU ms | first byte, ms | CPU ms | interactive, ms | kB | |"
        )
        print("|---|---:|---:|---:|---:|---:|---:|---|")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=[*ARGUMENTS])
            for name, path in pages.items():
                with Viewer(results, store) as viewer:
                    cold = viewer.request(path)
                    viewer.settle()
                    warm = [viewer.request(path) for _ in range(rounds)]
                    ready = [interactive(browser, viewer.url + path) for _ in range(rounds)]
                byte = statistics.median(each.seconds for each in warm)
                cpu = statistics.median(each.cpu for each in warm)
                use = statistics.median(ready)
                met = byte <= MAX_FIRST_BYTE and use <= MAX_INTERACTIVE
                good &= met
                print(
                    f"| {name} | {1e3 * cold.seconds:.0f} | {1e3 * cold.cpu:.0f} | {1e3 * byte:.0f}"
                    f" | {1e3 * cpu:.0f} | {1e3 * use:.0f} | {cold.size / 1e3:.0f} |"
                    f" {verdict(met)} |"
                )
            browser.close()
    return 0 if good else 1


def stored(path: Path, spans: int) -> str:
    """Return the address of a new store with so many spans."""
    store = open_store(f"sqlite:///{path}")
    for number in range(0, spans, 10_000):
        batch = Batch()
        for body in invented(min(10_000, spans - number) // 100, seed=number).bodies:
            batch.extend(make(body, PROTOBUF, SPANS_OF_A_REQUEST, None))
        store.write(batch)
    store.close()
    return f"sqlite:///{path}"


def live_pages(address: str) -> dict[str, str]:
    """Return the pages of live traces: lists, and parts that lists of many traces load later."""
    store = existing_store(address)
    (row,) = store.traces(page=PageRequest(limit=1))
    traces, spans = store.count(), store.figures().spans
    store.close()
    print(f"{traces:,} live traces, {spans:,} spans\n")
    return {
        "live traces": "/traces",
        "live traces, a tool": "/traces?tool=search",
        "live traces, words": "/traces?text=harbour+river",
        "live traces, page 100": "/traces?offset=5000",
        "live traces, sessions": "/traces?view=sessions",
        "statistics (after the list)": "/traces/figures/part",
        "one live trace": f"/traces/{row.trace_id}",
    }


class Viewer:
    """A real `proctor view` in a process of its own."""

    def __init__(self, results: Path, store: str | None = None) -> None:
        command = [sys.executable, "-m", "proctor", "view", results, "--port", "0", "--no-open"]
        command += ["--store", store] if store else []
        self._process = subprocess.Popen(
            [str(part) for part in command], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"http://localhost:\d+", line):
                self.url = found.group()
                break
        self._client = httpx.Client(timeout=60)

    def __enter__(self) -> "Viewer":
        self._client.get(f"{self.url}/healthz")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def request(self, path: str) -> "Reply":
        """Request a page."""
        cpu, began = self._cpu(), time.perf_counter()
        with self._client.stream("GET", self.url + path) as reply:
            parts = reply.iter_raw()
            size = len(next(parts))
            seconds = time.perf_counter() - began
            assert reply.status_code == 200, path
            size += sum(map(len, parts))
        return Reply(seconds, self._cpu() - cpu, size)

    def settle(self) -> None:
        """Poll until lists have read every run."""
        for path in ("/state/runs", "/state/history/suite"):
            state = ""
            while state != (state := self._client.get(self.url + path).json()["state"]):
                pass

    def _cpu(self) -> float:
        """Seconds of CPU that the server has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Reply(NamedTuple):
    """The time to the first byte of a page, what it cost the server, and its size."""

    seconds: float
    cpu: float
    size: int


def interactive(browser: Browser, url: str) -> float:
    """Seconds until the page's scripts have run."""
    page = browser.new_page()
    page.goto(url)
    page.wait_for_function("performance.timing.domContentLoadedEventEnd > 0")
    ms = page.evaluate(
        "performance.timing.domContentLoadedEventEnd - performance.timing.navigationStart"
    )
    page.close()
    return ms / 1e3


if __name__ == "__main__":
    sys.exit(main())
