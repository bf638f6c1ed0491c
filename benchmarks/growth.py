"""How the work grows with its size: CPU time at ten times the size, at most 13 times as much.

    python benchmarks/growth.py [--quick] [--only diagnose gate ...]
    python benchmarks/growth.py --only compare --times 100 --rounds 1    # what breaks first

Each job is prepared at both sizes first, so that start-up and the making of its input do not count.
The best of the rounds counts: other processes only ever add to the CPU time. Sizes are spans of a
trace, trials of each case, trials of a cell, cases, baselines or runs, as the job says.
"""

import argparse
import contextlib
import io
import os
import random
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from _measure import calls, compare, machine, verdict

import proctor
from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.diagnose.methods import diagnose_offline
from proctor.report import console
from proctor.report.facts import ReportFacts
from proctor.report.html.page import render_page
from proctor.results.compare import compare_runs
from proctor.results.gate import judge_runs
from proctor.results.leaderboard import entrants_of, leaderboard
from proctor.runs.early_stop import CellPlan, FinishedTrial, find_stop, rules_named
from proctor.runs.folder import RunFolder
from proctor.runs.journal import Sync
from proctor.runs.run import Run
from proctor.runs.trial import PlannedTrial, TrialStatus
from proctor.spec.load import load_suite
from proctor.trace import Message, Span, SpanKind, SpanStatus, ToolCall, Trace
from proctor.trials.baseline_runs import diff_with, save_baselines

TIMES = 10
MOST = 13.0
"""CPU time at ten times the size: linear, with room for a logarithm and for caches."""

Prepare = Callable[[Path, int], Callable[[], object]]
"""Make the input of a size in a folder; the result does the work once."""


class Job(NamedTuple):
    """A job, its small size, and what the size counts."""

    prepare: Prepare
    size: int
    quick: int
    unit: str


# -- inputs ------------------------------------------------------------------------------------


def long_trace(spans: int) -> Trace:
    """An agent that plans, calls tools, fails now and then, and repeats itself."""
    rng = random.Random(1)
    words = [f"word{n:03d}"[::-1] for n in range(600)]
    offered = Message(role="system", content="Tools:\n- search: find\n- visit: open a page\n")
    made = [Span(span_id="root", trace_id="t", name="agent", kind=SpanKind.AGENT, start_ns=0)]
    for step in range(spans // 2):
        plans, failed, tool = step % 50 == 0, rng.random() < 0.2, rng.choice(("search", "visit"))
        asked = "Write the plan below" if plans else " ".join(rng.choices(words, k=20))
        calls_made = () if plans else (ToolCall(name=tool, arguments={"q": rng.choice(words)}),)
        said = Message("assistant", " ".join(rng.choices(words, k=60)), calls_made)
        common = {"trace_id": "t", "parent_id": "root", "start_ns": step * 10}
        made.append(
            Span(
                **common,
                span_id=f"model-{step}",
                name="chat",
                kind=SpanKind.LLM,
                input_messages=(offered, Message("user", asked)),
                output_messages=(said,),
            )
        )
        made.append(
            Span(
                **{**common, "start_ns": step * 10 + 6},
                span_id=f"tool-{step}",
                name=tool,
                kind=SpanKind.TOOL,
                tool_name=tool,
                status=SpanStatus.ERROR if failed else SpanStatus.UNSET,
                error_message="the call timed out" if failed else None,
                tool_output=None if failed else f"found {rng.choice(words)}",
            )
        )
    return Trace(trace_id="t", spans=made, query="q", response="a")


def made_run(folder: Path, cases: int, trials: int, agents: int = 1, seed: int = 1) -> Run:
    """A run folder that nothing was run for."""
    run, rng = RunFolder(folder), random.Random(seed)
    folder.mkdir(parents=True)
    names = [f"case-{n}" for n in range(cases)]
    by = [f"agent-{n}" for n in range(agents)]
    cells = [{"case": c, "agent": a, "trials": trials, "threshold": 0.8} for c in names for a in by]
    run.write_spec(
        {
            "run_id": f"01a1e266-ce48-72d4-b3a3-{seed:012x}",
            "name": folder.parent.name,
            "created": "2026-05-28T10:00:00.000+00:00",
            "options": {},
            "agents": {agent: {"kind": "random"} for agent in by},
            "suite": {"version": 1, "cases": [{"id": name, "input": name} for name in names]},
            "cells": cells,
            "stopped": None,
        }
    )
    journal = run.journal(Sync.NEVER)
    for number, cell in enumerate(cells):
        made = []
        for index in range(trials):
            right = rng.random() < 0.7 + 0.1 * (number % 3) - 0.02 * seed
            planned = PlannedTrial(cell["case"], cell["agent"], index, index)
            trial = planned.trial(TrialStatus.PASSED if right else TrialStatus.HARD_FAIL)
            trial.score, trial.latency_ms = round(rng.random(), 3), 10 + rng.random()
            trial.started_ns, trial.duration_ms = 1_780_000_000_000_000_000 + number, 12.0
            status = CheckStatus.PASS if right else CheckStatus.FAIL
            trial.checks = (
                CheckResult(
                    id="answer",
                    check="answer",
                    layer=Layer.CORRECTNESS,
                    status=status,
                    reason="why",
                ),
            )
            made.append(trial)
        journal.extend(made)
    journal.close()
    return Run(folder)


def written_suite(folder: Path, cases: int) -> Path:
    """A suite with a few checks for each case."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bots.py").write_text("def steady(input):\n    return input\n", encoding="utf-8")
    case = (
        "- id: case-{n}\n  input: word{n}\n  tags: [a, b]\n"
        "  correctness: {{expected_in_answer: [word{n}], not_in_answer: [no]}}\n"
        "  path: {{max_tool_calls: 3}}\n"
    )
    text = "agent: bots:steady\ncases:\n" + "".join(case.format(n=n) for n in range(cases))
    path = folder / "suite.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# -- jobs --------------------------------------------------------------------------------------


def diagnose(_folder: Path, size: int) -> Callable[[], object]:
    trace = long_trace(size)
    return lambda: diagnose_offline(trace)


def two_runs(folder: Path, size: int) -> tuple[Path, Path]:
    """Return two runs of five cases with this many trials each."""
    first, second = (
        made_run(folder / f"{size}-{seed}" / "2026-05-28_001", 5, size, seed=seed).path
        for seed in (1, 2)
    )
    return first, second


def comparison(folder: Path, size: int) -> Callable[[], object]:
    first, second = two_runs(folder, size)
    return lambda: compare_runs(Run(first), Run(second))


def gate(folder: Path, size: int) -> Callable[[], object]:
    first, second = two_runs(folder, size)
    return lambda: judge_runs(Run(second), Run(first))


def early_stop(_folder: Path, size: int) -> Callable[[], object]:
    # A mean on the threshold: the test never stops, so it looks after every trial.
    trials = [FinishedTrial(n, TrialStatus.PASSED, (1.0, 0.6)[n % 2]) for n in range(size)]
    rules = rules_named(["sequential"])
    return lambda: find_stop(trials, CellPlan(size, 0.8), rules)


def ranking(folder: Path, size: int) -> Callable[[], object]:
    path = made_run(folder / f"{size}" / "2026-05-28_001", size, 1, agents=2).path
    return lambda: leaderboard(entrants_of([Run(path)]))


def report(folder: Path, size: int) -> Callable[[], object]:
    path = made_run(folder / f"{size}" / "2026-05-28_001", size, 2, agents=2).path

    def work() -> None:
        facts = ReportFacts(Run(path))
        console.render(facts)
        render_page(facts.runs[0], facts, with_charts=False)

    return work


def baselines(folder: Path, size: int) -> Callable[[], object]:
    suite = load_suite(written_suite(folder / f"{size}", size))

    def work() -> None:
        save_baselines(suite, "v1", force=True)
        diff_with(suite, "v1")

    return work


def loading(folder: Path, size: int) -> Callable[[], object]:
    path = written_suite(folder / f"{size}", size)
    return lambda: load_suite(path)


def running(folder: Path, size: int) -> Callable[[], object]:
    path = written_suite(folder / f"{size}", 10)
    suite = load_suite(path)

    def work() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            proctor.run(suite, trials=size // 10, results=folder / f"{size}" / "results")

    return work


def run_list(folder: Path, size: int, *, again: bool = False) -> Callable[[], object]:
    """The page that lists runs, read for the first time or loaded again."""
    from starlette.applications import Starlette
    from starlette.requests import Request

    from proctor.server.pages.run_lists import RunLists

    root = folder / f"{size}-{again}"
    for number in range(size):
        made_run(root / "made" / f"2026-05-28_{number:05d}", 2, 2, seed=number)
    scope = {"type": "http", "method": "GET", "path": "/runs", "query_string": b"", "headers": []}
    app = Starlette()
    app.state.has = {"traces": False, "runs": True}
    request = Request({**scope, "app": app})
    known = RunLists(root)
    if again:
        known.listed(request)
    return lambda: (known if again else RunLists(root)).listed(request)


def run_list_again(folder: Path, size: int) -> Callable[[], object]:
    return run_list(folder, size, again=True)


JOBS = {
    "diagnose": Job(diagnose, 1000, 300, "spans"),
    "compare": Job(comparison, 1000, 300, "trials a case"),
    "gate": Job(gate, 1000, 300, "trials a case"),
    "sequential early stop": Job(early_stop, 1000, 300, "trials"),
    "leaderboard": Job(ranking, 1000, 300, "cases"),
    "report": Job(report, 1000, 200, "cases"),
    "baseline save and diff": Job(baselines, 100, 50, "cases"),
    "load a suite": Job(loading, 1000, 500, "cases"),
    "run": Job(running, 1000, 1000, "trials"),
    "run list, first load": Job(run_list, 100, 30, "runs"),
    "run list, loaded again": Job(run_list_again, 100, 30, "runs"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, two rounds")
    parser.add_argument("--only", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=TIMES, help="the large size ÷ the small one")
    options = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    times, most = options.times, MOST * options.times / TIMES
    print(f"{machine()}\n\n### CPU time at {times} times the size\n")
    print(
        f"| | size | CPU ms | {times} times the size, CPU ms | ratio | at most | | peak MB so far |"
    )
    print("|---|---:|---:|---:|---:|---:|---|---:|")
    missed = False
    for name in options.only:
        job = JOBS[name]
        size = job.quick if options.quick else job.size
        with tempfile.TemporaryDirectory() as scratch:
            sizes = {f"{n}": calls(job.prepare(Path(scratch), n)) for n in (size, size * times)}
            # The largest sizes take minutes, so a warm-up matters little to them.
            warm_up = 1 if times <= TIMES else 0
            timings = compare(sizes, 2 if options.quick else options.rounds, warm_up)
        small, large = (min(sample.cpu for sample in timing.samples) for timing in timings)
        missed |= large / small > most
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(
            f"| {name} | {size:,} {job.unit} | {small * 1e3:.1f} | {large * 1e3:.1f}"
            f" | {large / small:.1f} | {most:g} | {verdict(large / small <= most)} | {peak:,} |",
            flush=True,
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
