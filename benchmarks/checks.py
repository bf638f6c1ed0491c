"""How long judging takes: every deterministic check over recorded traces, against agentevals.

    python benchmarks/checks.py [--rounds N] [--pairs N]

The trajectories are those of `matching.py`, as traces of 50 tool calls. Proctor judges each with
the whole plan of one case (answer, path, cost and quality checks, one of each kind that needs no
model); agentevals answers its four match modes. Loading is outside the clock for both. Growth is
shown from 50 to 400 steps.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _measure import compare, machine, peer, reports, table
from matching import MODES, PEER, agentevals_matcher, write

STEPS = (50, 100, 200, 400)


def case_of(reference: list[dict[str, Any]]) -> Any:
    """A case with one check of every deterministic kind."""
    from proctor.spec import Case

    tools = [call["function"]["name"] for turn in reference for call in turn["tool_calls"]]
    return Case(
        id="case",
        input="do it",
        correctness={
            "expected_in_answer": ["done"],
            "any_expected_in_answer": ["done", "finished"],
            "not_in_answer": ["sorry"],
            "exact_match": "it is done",
            "regex_match": "done$",
            "jmespath": [{"path": "length(tool_calls)", "gte": 1}],
        },
        path={
            "expected_tools": tools,
            "match_mode": "unordered",
            "forbidden_tools": ["delete"],
            "max_tool_calls": 1000,
            "max_loops": 50,
            "min_tool_recall": 0.9,
            "min_tool_precision": 0.5,
            "min_sequence_similarity": 0.8,
            "min_edit_similarity": 0.8,
            "max_handoff_count": 1,
            "spans": [{"any": {"kind": "tool"}}, {"none": {"name_contains": "delete"}}],
            "quality": {"redundancy": ">= 0.1"},
        },
        cost={"max_total_tokens": 10, "max_llm_calls": 10, "max_latency_ms": 60000},
    )


def trace_of(actual: list[dict[str, Any]]) -> Any:
    """The trajectory as a recorded trace."""
    from proctor.trace import Span, SpanKind, Trace

    calls = [call["function"] for turn in actual for call in turn["tool_calls"]]
    spans = [Span(span_id="root", trace_id="t", name="agent", kind=SpanKind.AGENT, end_ns=10**9)]
    for number, call in enumerate(calls):
        spans.append(
            Span(
                span_id=f"s{number}",
                trace_id="t",
                parent_id="root",
                name=call["name"],
                kind=SpanKind.TOOL,
                start_ns=number * 1000,
                end_ns=number * 1000 + 900,
                tool_name=call["name"],
                tool_input=json.loads(call["arguments"]),
                tool_output="ok",
            )
        )
    return Trace(trace_id="t", spans=spans, query="do it", response="it is done")


def judge_all(pairs: list[Any]) -> tuple[int, float]:
    """Judge every pair; how many checks each had, and the CPU seconds it took."""
    from proctor.checks.base import CheckContext
    from proctor.checks.evaluate import evaluate
    from proctor.spec import checks_of

    ready = []
    for actual, reference in pairs:
        case = case_of(reference)
        ready.append((case, checks_of(case), trace_of(actual)))

    async def all_of_them() -> int:
        checks = 0
        for case, plan, trace in ready:
            context = CheckContext(case=case, trace=trace, answer=trace.response)
            checks = len(await evaluate(plan, context))
        return checks

    began = time.process_time()
    checks = asyncio.run(all_of_them())
    return checks, time.process_time() - began


def match_all(pairs: list[Any]) -> float:
    """agentevals' four modes on every pair; CPU seconds."""
    matchers = [agentevals_matcher(mode) for mode in MODES]
    began = time.process_time()
    for actual, reference in pairs:
        for matches in matchers:
            matches(actual, reference)
    return time.process_time() - began


def work(who: str, source: Path) -> None:
    """Run one contestant in its own process and print its timing as JSON."""
    pairs = json.loads(source.read_text())
    began = time.perf_counter()
    checks, cpu = judge_all(pairs) if who == "proctor" else (len(MODES), match_all(pairs))
    print(json.dumps({"wall": time.perf_counter() - began, "cpu": cpu, "checks": checks}))


def command(python: Path | str, who: str, source: Path) -> list[str | Path]:
    return [python, Path(__file__), "--work", who, "--source", source]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--work", choices=("proctor", "agentevals"), help=argparse.SUPPRESS)
    parser.add_argument("--source", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.source)
        return 0
    print(machine())
    theirs = peer(*PEER)
    with tempfile.TemporaryDirectory() as folder:
        source = write(Path(folder), options.pairs, STEPS[0])
        contestants = {
            "proctor, all checks": reports(command(sys.executable, "proctor", source)),
            "agentevals, four modes": reports(command(theirs, "agentevals", source)),
        }
        print(f"\n{options.pairs} traces of {STEPS[0]} steps")
        print(table(compare(contestants, options.rounds, warm_up=0), "proctor, all checks"))
        grown = {
            f"{steps} steps": reports(
                command(sys.executable, "proctor", write(Path(folder), options.pairs // 5, steps))
            )
            for steps in STEPS
        }
        print(f"\ngrowth, {options.pairs // 5} traces each")
        print(table(compare(grown, options.rounds, warm_up=0), f"{STEPS[0]} steps"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
