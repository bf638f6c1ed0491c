"""Run folders made without running anything: as large, as broken and as hostile as a test wants."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.runs.folder import RunFolder
from proctor.runs.journal import Sync
from proctor.runs.segments import SegmentWriter
from proctor.runs.trial import PlannedTrial, Trial, TrialError, TrialStatus
from proctor.sanitize import json_bytes
from proctor.seeds import derive_seed
from proctor.trace import Message, Span, SpanKind, SpanStatus, ToolCall, Trace

START = 1_780_000_000_000_000_000
LEVELS = ("easy", "medium", "hard")

HOSTILE = (
    "<script>window.pwned = 1</script></style></textarea></script><img src=x onerror='pwned=1'>"
    "<!--{data}--> {{title}} ${7*7} javascript:window.pwned=1 \x00 \u202eevil\u202c \u200b &amp; "
    "]]> -->"
)
"""What an agent may say to get out of its box."""

Change = Callable[[Trial, random.Random], None]


def make_run(
    folder: Path,
    *,
    agents: Sequence[str] = ("careful", "hasty"),
    cases: int = 4,
    trials: int = 3,
    pass_rates: Sequence[float] = (0.95, 0.6),
    answer: str = "All is well.",
    change: Change | None = None,
    name: str = "made",
    steps: int = 3,
    costs: bool = True,
    case_id: Callable[[int], str] = lambda at: f"case-{at:03d}",
    workspace: dict[str, Any] | None = None,
) -> Path:
    """A finished run. `change` may alter each trial before it is kept."""
    run = RunFolder(folder)
    folder.mkdir(parents=True)
    rng = random.Random(7)
    names = [case_id(at) for at in range(cases)]
    run.write_spec(_spec(name, names, agents, trials))
    journal, segments = run.journal(Sync.NEVER), SegmentWriter(run.traces_path)
    clock = START
    for at, case in enumerate(names):
        for agent, rate in zip(agents, _spread(pass_rates, len(agents)), strict=True):
            for index in range(trials):
                seed = derive_seed(0, case, agent, index)
                trial = _trial(PlannedTrial(case, agent, index, seed), rng, rate - at % 3 * 0.1)
                trial.started_ns, clock = clock, clock + 40_000_000
                trial.answer = answer
                if not costs:
                    trial.cost_usd = None
                if change is not None:
                    change(trial, rng)
                trace = _trace(trial, steps, rng)
                if workspace is not None:
                    trace.metadata["workspace"] = workspace
                trial.trace_id = trace.trace_id
                trial.trace = segments.append(json_bytes(trace))
                journal.append(trial)
    segments.close()
    journal.close()
    return folder


def _spread(rates: Sequence[float], count: int) -> list[float]:
    return [rates[at % len(rates)] for at in range(count)]


def _spec(name: str, cases: Sequence[str], agents: Sequence[str], trials: int) -> dict[str, Any]:
    return {
        "run_id": "01a1e266-ce48-72d4-b3a3-843de4b4b37a",
        "name": name,
        "created": "2026-05-28T10:00:00.000+00:00",
        "provenance": {
            "proctor": "0.1.0",
            "python": "3.11.7",
            "platform": "Linux",
            "host": "the-host-name",
            "user": "the-user-name",
            "git": {"commit": "0123456789abcdef", "dirty": False},
        },
        "base_dir": "/home/the-user-name/suites",
        "options": {},
        "agents": {agent: {"kind": "python", "target": f"bots:{agent}"} for agent in agents},
        "suite": {
            "version": 1,
            "cases": [
                {
                    "id": case,
                    "input": f"Question {at}: what is the answer of {case}?",
                    "difficulty": LEVELS[at % 3],
                    "tags": ["made"],
                }
                for at, case in enumerate(cases)
            ],
        },
        "cells": [
            {"case": case, "agent": agent, "trials": trials, "threshold": 0.8}
            for case in cases
            for agent in agents
        ],
        "stopped": None,
    }


def _trial(planned: PlannedTrial, rng: random.Random, rate: float) -> Trial:
    right = rng.random() < rate
    brief = rng.random() < 0.8
    status = TrialStatus.PASSED if right else TrialStatus.HARD_FAIL
    trial = planned.trial(status)
    trial.score = (right + brief) / 2
    trial.checks = (
        check("expected_in_answer", right, "the answer lacks 'well'", blocking=True),
        check("max_tool_calls", brief, "5 tool calls, at most 3 allowed", layer=Layer.PATH),
    )
    if rng.random() < 0.01:
        trial.status, trial.score, trial.checks = TrialStatus.INFRA_ERROR, None, ()
        trial.error = TrialError("TimeoutError", "no answer in 30 s")
    trial.duration_ms = 20 + rng.random() * 200
    trial.latency_ms = trial.duration_ms - 5
    trial.input_tokens, trial.output_tokens = rng.randrange(200, 900), rng.randrange(20, 300)
    trial.cost_usd = rng.random() / 100
    trial.llm_calls, trial.tool_calls = 2, 3
    return trial


def check(
    name: str, holds: bool, reason: str, *, blocking: bool = False, layer: Layer = Layer.CORRECTNESS
) -> CheckResult:
    """One result of a check."""
    bad = CheckStatus.FAIL if blocking else CheckStatus.WARN
    return CheckResult(
        id=name,
        check=name,
        layer=layer,
        status=CheckStatus.PASS if holds else bad,
        reason="as asked" if holds else reason,
        score=1.0 if holds else 0.0,
        blocking=blocking,
        expected=None if holds else ["well"],
        actual=None if holds else "something else",
    )


def _trace(trial: Trial, steps: int, rng: random.Random) -> Trace:
    trace_id = f"{rng.getrandbits(128):032x}"
    start = trial.started_ns
    root = Span(
        span_id="0" * 15 + "1",
        trace_id=trace_id,
        name=trial.agent,
        kind=SpanKind.AGENT,
        start_ns=start,
        end_ns=start + int(trial.duration_ms * 1e6),
        input=f"Question of {trial.case}",
        output=trial.answer,
    )
    asked = Message(role="user", content=f"Question of {trial.case}: {rng.getrandbits(64):x}")
    call = ToolCall(name="search", arguments={"query": trial.case, "page": 1})
    said = Message(role="assistant", content=trial.answer, tool_calls=(call,))
    spans = [root]
    for at in range(steps):
        begun = start + at * 5_000_000
        spans.append(
            Span(
                span_id=f"{at + 2:016x}",
                trace_id=trace_id,
                parent_id=root.span_id,
                name="chat" if at % 2 == 0 else "search",
                kind=SpanKind.LLM if at % 2 == 0 else SpanKind.TOOL,
                status=SpanStatus.ERROR if at == 1 and not trial.passed else SpanStatus.UNSET,
                start_ns=begun,
                end_ns=begun + 4_000_000,
                model="mock-1" if at % 2 == 0 else None,
                input_tokens=100 if at % 2 == 0 else None,
                tool_name="search" if at % 2 else None,
                tool_input={"query": trial.case, "at": rng.getrandbits(40)} if at % 2 else None,
                tool_output=f"found {rng.getrandbits(200):x} in {trial.answer}" if at % 2 else None,
                input_messages=(asked,) if at % 2 == 0 else (),
                output_messages=(said,) if at % 2 == 0 else (),
                error_type="LookupError" if at == 1 and not trial.passed else None,
            )
        )
    return Trace(trace_id=trace_id, spans=spans, query=asked.content, response=trial.answer)
