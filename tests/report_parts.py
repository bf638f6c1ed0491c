"""Reports put together by hand, and text that tries to get out of every format."""

from typing import Any, NamedTuple

from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.report.facts import ReportFacts
from proctor.runs.run import Run
from proctor.runs.trial import Trial, TrialError, TrialStatus
from proctor.spec.located import SourceLocation

ATTACK = (
    "\x1b[31mred\x1b]0;title\x07 \x9b2J \x00\x08\x7f \ud800 \ufffe \u202eesrever "
    '<script>alert(1)</script><img src=x onerror=y> & ]]> --> "quoted" \\ '
    "\r\n::error::pwned\r\n  ::set-output name=x::y\n##[error]pwned ##vso[task.complete]\n"
    'proctor_cases{status="passed"} 99\n# TYPE x counter\n'
    "| cell | ``` ` **bold** [link](http://evil) ![i](http://evil/i.png) @somebody www.evil.com\n"
    "# heading\n- item\n> quote\n{{7*7}} ${x} %0A::warning::x"
)
"""Everything at once."""


PLACE = SourceLocation("suite.yaml", 12, 5)


def check(
    status: str = "fail", name: str = "expected_in_answer", layer: str = "correctness", **more: Any
) -> CheckResult:
    fields: dict[str, Any] = {"reason": "the answer lacks 'Paris'", "score": 0.0, **more}
    if status in ("skip", "unscored"):
        fields["score"] = None
    return CheckResult(
        id=name,
        check=name,
        layer=Layer(layer),
        status=CheckStatus(status),
        blocking=status == "fail",
        **fields,
    )


class OneCase(NamedTuple):
    """A trial, and what its suite says of its case."""

    suite: str
    trial: Trial
    threshold: float
    place: SourceLocation | None


def case(
    name: str = "capital",
    status: str = "passed",
    *results: CheckResult,
    agent: str = "agents:answer",
    suite: str = "suite.yaml",
    threshold: float = 0.8,
    place: SourceLocation | None = PLACE,
    error: str | None = None,
    duration_ms: float | None = 1234.5,
    tokens: int | None = None,
    **more: Any,
) -> OneCase:
    kind, _, message = (error or "").partition(": ")
    costs = [result.cost_usd for result in results if result.cost_usd is not None]
    fields: dict[str, Any] = {"score": 1.0 if status == "passed" else 0.0, **more}
    trial = Trial(
        case=name,
        agent=agent,
        index=0,
        seed=0,
        status=TrialStatus(status),
        checks=results,
        error=None if error is None else TrialError(kind, message),
        latency_ms=duration_ms,
        started_ns=1_700_000_000_000_000_000,
        duration_ms=2000.0,
        input_tokens=tokens,
        judge_cost_usd=sum(costs) if costs else None,
        **fields,
    )
    return OneCase(suite, trial, threshold, place)


def report(
    *cases: OneCase, planned: int | None = None, notes: tuple[str, ...] = (), **more: Any
) -> ReportFacts:
    """The report of `proctor test`: a run in memory for each suite."""
    suites = dict.fromkeys(each.suite for each in cases) or {"suite.yaml": None}
    runs: list[Run] = []
    for name in suites:
        own = [each for each in cases if each.suite == name]
        cells = [
            {"case": t.case, "agent": t.agent, "trials": 1, "threshold": threshold}
            for _, t, threshold, _ in own
        ]
        cells += [
            {"case": f"left {n}", "agent": "agents:answer", "trials": 1, "threshold": 0.8}
            for n in range((planned or 0) - len(cases))
        ]
        spec = {"run_id": name, "name": name, "options": {}, "cells": cells, "suite": {}}
        places = {each.trial.case: each.place for each in own if each.place is not None}
        run = Run(None, spec=spec, finished=[each.trial for each in own])
        run.places = places
        runs.append(run)
    return ReportFacts(*runs, labels=list(suites), remarks=notes, **more)


def mixed() -> ReportFacts:
    """One case of every status, with a warning and a judged check beside them."""
    return report(
        case(
            "good",
            "passed",
            check("pass", score=1.0),
            check("warn", "max_tool_calls", "path", reason="9 calls, at most 8", weight=0.0),
            check("pass", "llm_judge", score=0.75, method="judge gpt", cost_usd=0.01),
            cost_usd=0.41,
            tokens=900,
            llm_calls=5,
            unpriced_calls=3,
        ),
        case("wrong", "hard_fail", check(expected=["Paris"], actual="Rome", span_ids=("s1", "s2"))),
        case("weak", "failed", check("warn", "tone", reason="rude"), score=0.5),
        case(
            "crash",
            "infra_error",
            score=None,
            duration_ms=None,
            error="RuntimeError: no connection",
        ),
        case("late", "cancelled", score=None, error="Cancelled: the run was stopped"),
        planned=7,
    )


def hostile(text: str = ATTACK) -> ReportFacts:
    """A report in which every text an agent could have chosen is this one."""
    results = [
        check(
            status,
            layer=layer,
            reason=text,
            expected={text: [text]},
            actual=text,
            span_ids=(text,),
            method=text,
        )
        for status in ("pass", "warn", "fail", "skip", "unscored")
        for layer in ("correctness", "path", "cost")
    ]
    return report(
        case("failing", "hard_fail", *results, answer=text, trace_id=text),
        case("crashing", "infra_error", score=None, error=f"RuntimeError: {text}", answer=text),
        case("weak", "failed", check("warn", reason=text, actual=text), score=0.1),
        notes=(text,),
    )
