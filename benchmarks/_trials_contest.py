"""One contestant of `trials.py`, in its own process: `python _trials_contest.py NAME N MS`.

It imports everything and does a few trials first, so that what is timed is trials and not
start-up; then it runs N trials of an agent that waits MS milliseconds, 100 at a time, with one
`contains` check each, and prints what they took as one line of JSON.
"""

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

QUESTION = "What do you get if you multiply six by nine?"
ANSWER = "The answer is 42, as everybody knows."
WANTED = "42"
AT_ONCE = 100
WARM_UP = 10
"""Warm-up trials: enough to trigger late imports."""

Agent = Callable[[Any], Awaitable[str]]
Work = Callable[[int], int]
"""Run this many trials and return the number that passed."""


class Clocks:
    """Wall and CPU seconds since the start, by the name of the part that has just ended: "set-up"
    when the agent is first called, "trials" when it has answered for the last time.
    """

    def __init__(self) -> None:
        self.marks: dict[str, tuple[float, float]] = {}
        self.start(0)

    def start(self, trials: int) -> None:
        self.marks.clear()
        self.untouched, self.left = True, trials
        self.wall, self.cpu = time.perf_counter(), cpu_seconds()

    def called(self) -> None:
        if self.untouched:
            self.untouched = False
            self.mark("set-up")

    def answered(self) -> None:
        self.left -= 1
        if not self.left:
            self.mark("trials")

    def mark(self, part: str) -> None:
        self.marks[part] = (time.perf_counter() - self.wall, cpu_seconds() - self.cpu)


def agent_waiting(seconds: float, clocks: Clocks) -> Agent:
    """The agent under test; without a wait it never gives the loop a turn."""

    async def instant(question: Any) -> str:
        clocks.called()
        clocks.answered()
        return ANSWER

    async def sleeping(question: Any) -> str:
        clocks.called()
        await asyncio.sleep(seconds)
        clocks.answered()
        return ANSWER

    return sleeping if seconds else instant


def cpu_seconds() -> float:
    """CPU of this process, all its threads, and the processes it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def bare(agent: Agent, folder: Path, _clocks: Clocks, flush: bool = False) -> Work:
    """A hand-written loop: a semaphore, and one JSON line per trial."""

    async def run(n: int) -> int:
        slots = asyncio.Semaphore(AT_ONCE)
        with (folder / "bare.jsonl").open("w", encoding="utf-8") as journal:

            async def trial(index: int) -> bool:
                async with slots:
                    began = time.perf_counter()
                    answer = await agent(QUESTION)
                    passed = WANTED in answer
                    took = (time.perf_counter() - began) * 1000
                    line = {"index": index, "answer": answer, "passed": passed, "ms": took}
                    journal.write(json.dumps(line) + "\n")
                    if flush:
                        journal.flush()
                    return passed

            return sum(await asyncio.gather(*(trial(i) for i in range(n))))

    return lambda n: asyncio.run(run(n))


def bare_flushed(agent: Agent, folder: Path, clocks: Clocks) -> Work:
    """The same, each line handed to the system at once: a killed process loses none."""
    return bare(agent, folder, clocks, flush=True)


def proctor(agent: Agent, folder: Path, clocks: Clocks) -> Work:
    """`proctor.run` as a user calls it: suite read, journal and traces kept, summaries written."""
    import proctor as ours

    suite = folder / "suite.yaml"
    suite.write_text(
        f"cases:\n  - input: {QUESTION}\n    correctness: {{expected_in_answer: ['{WANTED}']}}\n",
        encoding="utf-8",
    )

    class Watch:
        """Of ours, the last trial has ended when it is judged and in the journal."""

        def planned(self, total: int, finished: int) -> None:
            self.left = total

        def started(self, trial: object) -> None:
            pass

        def skipped(self, trial: object) -> None:
            pass

        def finished(self, trial: object) -> None:
            self.left -= 1
            if not self.left:
                clocks.mark("trials")

    def work(n: int) -> int:
        run = ours.run(
            suite,
            agent=agent,
            trials=n,
            concurrency=AT_ONCE,
            results=folder / "results",
            observer=Watch(),
        )
        return sum(cell.passed for cell in run.cells)

    return work


def pydantic_evals(agent: Agent, _folder: Path, _clocks: Clocks) -> Work:
    """`Dataset.evaluate` with `repeat`; nothing is written to disk."""
    from pydantic_evals import Case, Dataset  # pyright: ignore[reportMissingImports]
    from pydantic_evals.evaluators import Contains  # pyright: ignore[reportMissingImports]

    case = Case(name="one", inputs=QUESTION)
    dataset = Dataset(name="trials", cases=[case], evaluators=[Contains(value=WANTED)])

    def work(n: int) -> int:
        report = asyncio.run(
            dataset.evaluate(agent, max_concurrency=AT_ONCE, progress=False, repeat=n)
        )
        return sum(all(a.value for a in case.assertions.values()) for case in report.cases)

    return work


def pydantic_evals_spans(agent: Agent, folder: Path, clocks: Clocks) -> Work:
    """The same with its spans recorded, as its span-based evaluators need; nothing is sent."""
    import logfire  # pyright: ignore[reportMissingImports]

    logfire.configure(send_to_logfire=False, console=False)
    return pydantic_evals(agent, folder, clocks)


def inspect_ai(agent: Agent, folder: Path, _clocks: Clocks) -> Work:
    """A task of one sample and N epochs, with its log written to a folder."""
    from inspect_ai import Epochs, Task  # pyright: ignore[reportMissingImports]
    from inspect_ai import eval as evaluate  # pyright: ignore[reportMissingImports]
    from inspect_ai.dataset import Sample  # pyright: ignore[reportMissingImports]
    from inspect_ai.scorer import includes  # pyright: ignore[reportMissingImports]
    from inspect_ai.solver import solver  # pyright: ignore[reportMissingImports]

    @solver
    def ask() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            state.output.completion = await agent(state.input_text)
            return state

        return solve

    def work(n: int) -> int:
        task = Task(
            dataset=[Sample(input=QUESTION, target=WANTED)],
            solver=ask(),
            scorer=includes(),
            epochs=Epochs(n, "mean"),
        )
        (log,) = evaluate(
            task,
            model="mockllm/model",
            log_dir=str(folder / "logs"),
            max_samples=AT_ONCE,
            display="none",
        )
        samples = log.samples or []
        return sum(sample.scores["includes"].value == "C" for sample in samples)

    return work


def deepeval(agent: Agent, folder: Path, _clocks: Clocks) -> Work:
    """The agent called by hand, then `evaluate` with a metric of one line, cache and prints off."""
    os.chdir(folder)  # it keeps a hidden folder where it runs
    os.environ.update(DEEPEVAL_TELEMETRY_OPT_OUT="YES", DEEPEVAL_DISABLE_DOTENV="1")
    from deepeval import evaluate  # pyright: ignore[reportMissingImports]
    from deepeval.evaluate.configs import (  # pyright: ignore[reportMissingImports]
        AsyncConfig,
        CacheConfig,
        DisplayConfig,
    )
    from deepeval.metrics import BaseMetric  # pyright: ignore[reportMissingImports]
    from deepeval.test_case import LLMTestCase  # pyright: ignore[reportMissingImports]

    class Contains(BaseMetric):  # pyright: ignore[reportUntypedBaseClass]
        threshold = 1.0
        async_mode = True
        include_reason = False

        def measure(self, test_case: Any, *_args: Any, **_kwargs: Any) -> float:
            self.score = float(WANTED in test_case.actual_output)
            self.success = self.score >= self.threshold
            return self.score

        async def a_measure(self, test_case: Any, *_args: Any, **_kwargs: Any) -> float:
            return self.measure(test_case)

        def is_successful(self) -> bool:
            return bool(self.success)

        @property
        def __name__(self) -> str:
            return "Contains"

    async def ask(n: int) -> list[str]:
        slots = asyncio.Semaphore(AT_ONCE)

        async def one() -> str:
            async with slots:
                return await agent(QUESTION)

        return await asyncio.gather(*(one() for _ in range(n)))

    def work(n: int) -> int:
        cases = [LLMTestCase(input=QUESTION, actual_output=a) for a in asyncio.run(ask(n))]
        outcome = evaluate(
            test_cases=cases,
            metrics=[Contains()],
            async_config=AsyncConfig(run_async=True, max_concurrent=AT_ONCE, throttle_value=0),
            display_config=DisplayConfig(show_indicator=False, print_results=False),
            cache_config=CacheConfig(write_cache=False, use_cache=False),
        )
        return sum(bool(result.success) for result in outcome.test_results)

    return work


def mlflow_genai(agent: Agent, folder: Path, _clocks: Clocks) -> Work:
    """`mlflow.genai.evaluate` over N equal rows, with traces and results in an SQLite database.

    One at a time: on a busy machine its SQLite store lost results with 10 (147 of 200 came back)
    and with 100 (77).
    """
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_GENAI_EVAL_MAX_WORKERS="1")
    import mlflow  # pyright: ignore[reportMissingImports]
    from mlflow.genai.scorers import scorer  # pyright: ignore[reportMissingImports]

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment("trials")

    @scorer
    def contains(outputs: str) -> bool:
        return WANTED in outputs

    async def predict(question: str) -> str:
        return await agent(question)

    def work(n: int) -> int:
        rows = [{"inputs": {"question": QUESTION}} for _ in range(n)]
        result = mlflow.genai.evaluate(data=rows, predict_fn=predict, scorers=[contains])
        return int(result.result_df["contains/value"].sum())

    return work


CONTESTANTS: dict[str, Callable[[Agent, Path, Clocks], Work]] = {
    "bare loop": bare,
    "bare loop, flushed": bare_flushed,
    "proctor": proctor,
    "pydantic-evals": pydantic_evals,
    "pydantic-evals, spans": pydantic_evals_spans,
    "inspect-ai": inspect_ai,
    "deepeval": deepeval,
    "mlflow": mlflow_genai,
}


def main() -> None:
    name, n, milliseconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    clocks = Clocks()
    with tempfile.TemporaryDirectory(prefix="trials-") as folder:
        work = CONTESTANTS[name](agent_waiting(milliseconds / 1000, clocks), Path(folder), clocks)
        work(WARM_UP)
        clocks.start(n)
        passed = work(n)
        clocks.mark("all")
    wall, cpu = clocks.marks.pop("all")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told = {"wall": wall, "cpu": cpu, "passed": passed, "peak_mb": peak, "marks": clocks.marks}
    print("\n" + json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
