"""Suites whose agents live in a file, as workers of other processes need them."""

from pathlib import Path
from typing import Any

import yaml

import proctor
from proctor.api import RunLimits
from proctor.runs.run import Run

AGENTS = '''
import asyncio, os, signal, time
from pathlib import Path
from proctor import capture

HERE = Path(__file__).parent

def mark(name):
    """Leave a mark that the test and later tries can see."""
    with (HERE / f"{name}.marks").open("ab", buffering=0) as file:
        file.write(f"{os.getpid()}\\n".encode())
    return len((HERE / f"{name}.marks").read_text().splitlines())

async def steady(input, seed):
    with capture.tool_call("dice", {"sides": 6}) as step:
        step.tool_output = seed % 6
    if seed % 6 == 5:
        raise ValueError(f"seed {seed % 100}")
    await asyncio.sleep(seed % 4 / 1000)
    return f"{input}: {seed % 6}"

async def says(input):
    """Does what its input says."""
    if input == "raise": raise ValueError("no")
    if input == "flaky" and mark("flaky") == 1: raise ConnectionError("come back later")
    if input == "slow": await asyncio.sleep(60)
    return input

async def slow(input, seed):
    mark("began")
    await asyncio.sleep(60 if not (HERE / "go").exists() else 0)
    return "done"

def plain(input, seed): return f"{input} {seed}"

class Counting:
    def __init__(self): self.calls = 0
    def __call__(self, input):
        self.calls += 1
        return f"{self.calls}"

async def priced(input):
    with capture.llm_call("m", input_tokens=60, output_tokens=40, cost_usd=0.1):
        await asyncio.sleep(0.01)
    return "a"

async def unpriced(input):
    with capture.llm_call("a-model-nobody-has-a-price-for", input_tokens=60, output_tokens=40):
        return "a"

async def leaky(input): return "the key is " + os.environ["SHOP_API_KEY"]

def remembers(input, checkpoint):
    state = checkpoint.load() or {"sitting": 0}
    state["sitting"] += 1
    checkpoint.save(state)
    mark("saved")
    if not (HERE / "go").exists(): time.sleep(60)
    return f"sitting {state['sitting']}"

async def deadly(input, seed):
    """Ends its whole process, always or the first time."""
    if input == "always" or (input == "once" and mark("once") == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.02)
    return input

def where(input):
    mark("pids")
    time.sleep(0.03)
    return input

def busy(input, seed):
    end = time.process_time() + 0.05
    while time.process_time() < end: pass
    return input
'''


def suite_of(folder: Path, agent: Any, *inputs: str, **fields: Any) -> Path:
    """A suite of questions that are answered right by saying them again."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bots.py").write_text(AGENTS)
    cases = [
        {"id": f"c{n}", "input": text, "correctness": {"expected_in_answer": [text]}, **fields}
        for n, text in enumerate(inputs or ("q",))
    ]
    named = f"bots:{agent}" if isinstance(agent, str) else agent
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "agent": named, "cases": cases}))
    return path


async def run_of(path: Path, where: dict[str, Any], **options: Any) -> Run:
    """A run of a suite, kept beside it."""
    name = options.pop("kept", "results")
    limits: Any = {key: options.pop(key) for key in [*options] if key in RunLimits.__annotations__}
    return await proctor.arun(path, results=path.parent / name, limits=limits, **where, **options)


def statuses(run: Run) -> dict[str, str]:
    """What the first trial of each case came to."""
    return {t.case: t.status.value for t in run.trials() if t.index == 0}


def marks(folder: Path, name: str) -> list[int]:
    """The processes that left a mark."""
    path = folder / f"{name}.marks"
    return [int(line) for line in path.read_text().split()] if path.exists() else []
