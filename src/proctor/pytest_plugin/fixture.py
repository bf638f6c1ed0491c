"""The `proctor` fixture: capture, run, check, and assert with reasons.

    def test_refund(proctor):
        with proctor.capture(query="Can I return it?") as trace:
            trace.response = agent("Can I return it?")
        proctor.assert_passes(trace, correctness={"expected_in_answer": ["30 days"]})

Checks are written as in a suite. A failure is an AssertionError; what cannot be judged raises
`CannotJudge`, which is not an assertion.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from pydantic import ValidationError

from proctor import api
from proctor.background import run_sync
from proctor.checks.base import CheckResults, CheckStatus
from proctor.errors import ProctorError
from proctor.gateway.observe import capture
from proctor.pytest_plugin._repeat import ProctorWarning, explain, input_text, reason_of
from proctor.runs.trial import UNJUDGED, Trial, TrialStatus
from proctor.sanitize import line, shown
from proctor.spec import Case, Suite
from proctor.spec.located import SourceLocation, tree_of
from proctor.spec.suite import DEFAULT_THRESHOLD
from proctor.spec.validation import located
from proctor.trace import Trace
from proctor.trace.redact import default_redactor
from proctor.trials.options import RunOptions
from proctor.trials.prepare import AgentLike, agent_name, prepare
from proctor.trials.run_trial import status_of
from proctor.trials.session import run_session

NO_INPUT = "(not recorded)"
"""The input of a case for a trace that has no query."""


class CannotJudge(ProctorError):
    """The agent could not be run, or a check could not be judged: neither pass nor failure."""


class TrialResult(NamedTuple):
    """The result of `proctor.run`: the trial (status, score, checks, answer) and its trace."""

    trial: Trial
    trace: Trace | None


class Proctor:
    """The fixture. `trial` is the number of the trial in a repeated test, from 0."""

    def __init__(self, file: Path, name: str) -> None:
        self._file = file
        self._name = name
        self._thresholds: dict[str, float] = {}
        self.trial = 0

    def capture(self, query: Any = None, **about: Any) -> AbstractContextManager[Trace]:
        """Record a block as a trace; see `proctor.capture`."""
        return capture(query, **about)

    def check(
        self,
        trace: Trace,
        *,
        answer: str | None = None,
        baseline: Trace | None = None,
        judge: Any = None,
        **checks: Any,
    ) -> CheckResults:
        """Return every check's result. Checks are the keys of a case: correctness, path, cost, …"""
        __tracebackhide__ = True
        return self._judged(trace, answer, baseline, judge, checks)[0]

    def assert_passes(
        self,
        tried: Trace | TrialResult,
        *,
        answer: str | None = None,
        baseline: Trace | None = None,
        judge: Any = None,
        **checks: Any,
    ) -> CheckResults:
        """Check, and raise an AssertionError with every reason unless it passes.

        The result of `run` keeps its verdict, unless other checks are given here. A check that
        failed and does not block (path and cost) is a pytest warning.
        """
        __tracebackhide__ = True
        if isinstance(tried, TrialResult):
            trial = tried.trial
            # Other checks may judge what the trial's own could not.
            again = trial.status is TrialStatus.NOT_JUDGED and bool(checks)
            if trial.status in (*UNJUDGED, TrialStatus.CANCELLED) and not again:
                error = trial.error
                why = f"{line(error.type)}: {line(error.message)}" if error else "it was stopped"
                raise CannotJudge(f"the agent could not be judged: {why}")
            if trial.status is TrialStatus.FAILED and trial.category and trial.error is not None:
                why = f"{line(trial.error.type)}: {line(trial.error.message)}"
                raise AssertionError(f"the agent failed ({trial.category}): {why}")
            if not checks:
                results = CheckResults(trial.checks)
                if trial.status != TrialStatus.PASSED:
                    threshold = self._thresholds.get(trial.case, DEFAULT_THRESHOLD)
                    _fail(trial.status, results, tried.trace, trial.answer, threshold)
                _warn(results)
                return results
            assert tried.trace is not None
            trace, answer = tried.trace, answer if answer is not None else trial.answer
        else:
            trace = tried
        results, case = self._judged(trace, answer, baseline, judge, checks)
        status = status_of(results, case.threshold)
        if status != TrialStatus.PASSED:
            _fail(status, results, trace, answer, case.threshold)
        _warn(results)
        return results

    def run(
        self,
        agent: AgentLike | str,
        case: Case | str | Mapping[str, Any],
        *,
        timeout: float | None = None,
        judge: Any = None,
        **checks: Any,
    ) -> TrialResult:
        """Run one trial of an agent; return its `trial` and its `trace`.

        The agent is a callable, `package.module:name`, or options as in a suite; the case is an
        input or a whole case. Each trial of a repeated test has its own seed.
        """
        __tracebackhide__ = True
        whole = case if isinstance(case, Case) and not checks else self._case(case, checks)
        given = cast("AgentLike", {"target": agent} if isinstance(agent, str) else agent)
        self._place(whole)
        context = prepare(
            Suite(cases=(whole,), judge=judge),
            RunOptions(trials=1, timeout=timeout, seed=self.trial),
            agents={agent_name(given): given},
            cases=[whole],
        )
        # A trial does not record the threshold, which assert_passes needs for its reason.
        self._thresholds[whole.id] = whole.threshold
        # nested: an async test already has an event loop.
        run = run_sync(run_session(context), nested=True)
        (trial,) = run.trials
        return TrialResult(trial, run.trace(trial))

    def _judged(
        self,
        trace: Trace,
        answer: str | None,
        baseline: Trace | None,
        judge: Any,
        checks: Mapping[str, Any],
    ) -> tuple[CheckResults, Case]:
        __tracebackhide__ = True
        case = self._case(NO_INPUT if trace.query in (None, "", {}, []) else trace.query, checks)
        self._place(case)
        found = api.check(trace, case, answer=answer, baseline=baseline, judge=judge)
        return found, case

    def _place(self, case: Case) -> None:
        """Resolve the paths of a case from the folder of its test."""
        case.put(case.place or SourceLocation(str(self._file)), case.folder or self._file.parent)

    def _case(self, case: Any, checks: Mapping[str, Any]) -> Case:
        __tracebackhide__ = True
        raw: dict[str, Any]
        if isinstance(case, Case):
            raw = {**case.given(), **checks}
        elif isinstance(case, Mapping) and "input" in case:
            raw = {**cast("Mapping[str, Any]", case), **checks}
        else:
            raw = {"input": cast("Any", case), **checks}
        try:
            return Case.model_validate(raw)
        except ValidationError as error:
            place = SourceLocation(self._name)
            problems = located(error, tree_of(raw, lambda _: place, {}, []), Case)
            if not problems:
                raise
            hints = [f"{p.message}{f' ({p.hint})' if p.hint else ''}" for p in problems]
            raise ProctorError("; ".join(hints), where=self._name) from None


def _warn(results: CheckResults) -> None:
    """Emit a pytest warning, at the line of the test, for each failed check that only warns."""
    for each in results:
        if each.status == CheckStatus.WARN:
            text = f"{line(each.id)}: {line(each.reason)}"
            warnings.warn(ProctorWarning(text), stacklevel=3)


def _fail(
    status: TrialStatus,
    results: CheckResults,
    trace: Trace | None,
    answer: str | None,
    threshold: float,
) -> NoReturn:
    __tracebackhide__ = True
    facts = [
        ("input", "" if trace is None or trace.query is None else input_text(trace.query)),
        ("answer", shown(answer if answer is not None else trace.response if trace else None)),
    ]
    headline = reason_of(results, results.score, threshold)
    # Build logs are read by many people: secrets are redacted here, as in a run.
    text = default_redactor().text(explain(headline, facts, results, trace))
    if status in UNJUDGED:
        raise CannotJudge(text)
    raise AssertionError(text)
