"""Turn a trial or trace into a regression case that is known to work.

Checks are proposed from the diagnosis (the decisive step, the checks that failed) and from how a
good trace differs. Each is evaluated on both recordings; only those that fail on the failing one
and pass on the good one are kept, and without any there is no case. A trace alone makes a case of
what it does right, or of what a reviewer says that its answer lacks. Tool results are recorded as
mock tools, by arguments, so that the case can be run with a chat agent and without the real tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import yaml

from proctor.background import run_sync
from proctor.checks.base import FAILED, CheckContext, CheckResult, CheckStatus
from proctor.checks.evaluate import evaluate
from proctor.checks.grounding import quantities
from proctor.diagnose.methods import TrialEvidence, diagnose_offline
from proctor.errors import ProctorError
from proctor.files import load_yaml, read_bounded, write_atomic
from proctor.results.evidence import evidence_of, trajectories_of
from proctor.sanitize import json_value
from proctor.spec.case_checks import checks_of
from proctor.spec.suite import Case
from proctor.trace import SpanKind

if TYPE_CHECKING:
    from pathlib import Path

    from proctor.diagnose.finding import Diagnosis
    from proctor.runs.run import Run
    from proctor.runs.trial import Trial
    from proctor.trace import Span, Trace

# Checks of a trial that can be written again from their result, and the assertion that does so.
_AGAIN = {
    "expected_in_answer": "output_contains",
    "not_in_answer": "output_not_contains",
    "output_contains": "output_contains",
    "output_not_contains": "output_not_contains",
}

# Values of an answer that a check can look for: figures and identifiers, not words.
_IDENTIFIER = re.compile(r"\b(?=[\w-]*\d)[A-Z]{1,6}[-_#]?\d[\w-]{2,20}\b")

MAX_CHECKS = 5

MAX_SUITE = 16 << 20
"""Bytes of a suite that a case is added to."""


@dataclass(frozen=True, slots=True)
class RegressionCase:
    """A verified case: its YAML data, its mock tools, and which proposals were rejected."""

    case: dict[str, Any]
    tools: list[dict[str, Any]]
    diagnosis: Diagnosis
    rejected: tuple[str, ...]

    @property
    def document(self) -> dict[str, Any]:
        """The suite as YAML data."""
        return {"version": 1, "cases": [self.case]}


def regression_case(
    failing: Trace, good: Trace, *, name: str, evidence: TrialEvidence | None = None
) -> RegressionCase:
    """Return a case that fails on the failing trace and passes on the good one.

    `evidence` is what is known about the failing trial. `ProctorError` says why there is no such
    case.
    """
    found = diagnose_offline(failing, evidence=evidence)
    checks = evidence.checks if evidence is not None else ()
    base = {"id": name, **_asked(failing if failing.query is not None else good)}
    kept, rejected = _verified(base, proposals(failing, good, found, checks), failing, good)
    if not kept:
        tried = f" ({'; '.join(rejected[:3])})" if rejected else ""
        raise ProctorError(
            f"no check tells the failing trace from the good one{tried}",
            hint="name another good trace with --good",
        )
    cause = found.decisive
    about = f"step {cause.step}, {cause.agent}: {cause.what}" if cause is not None else "a failure"
    case_data = {**base, "description": about[:500], "assertions": kept}
    Case.model_validate(case_data)
    return RegressionCase(case_data, mock_tools(good, failing), found, tuple(rejected))


def case_from_trace(
    trace: Trace, *, name: str, right: bool, expected: Sequence[str] = ()
) -> RegressionCase:
    """Return a case from one recording.

    A `right` one passes every check: its tools, the figures and identifiers of its answer, and the
    texts in `expected`. A wrong one fails them: its answer lacks each of `expected`.
    """
    base = {"id": name, **_asked(trace)}
    wanted = [{"type": "output_contains", "value": text} for text in expected if text]
    if right:
        asked = _values(str(trace.query))
        wanted += [{"type": "tool_called", "tool": tool} for tool in trace.tools_used]
        values = [value for value in _values(trace.response) if value not in asked]
        wanted += [{"type": "output_contains", "value": value} for value in values]
    kept, rejected = _verified(base, wanted, None if right else trace, trace if right else None)
    if not kept:
        tried = f" ({'; '.join(rejected[:3])})" if rejected else ""
        what = "passes" if right else "fails"
        raise ProctorError(
            f"no check is known that this trace {what}{tried}",
            hint="say what a right answer contains",
        )
    found = diagnose_offline(trace)
    about = "recorded as right" if right else "recorded as wrong"
    if not right and (cause := found.decisive) is not None:
        about += f": step {cause.step}, {cause.agent}: {cause.what}"
    case = {**base, "description": about[:500], "assertions": kept}
    Case.model_validate(case)
    return RegressionCase(case, mock_tools(trace), found, tuple(rejected))


def _asked(trace: Trace) -> dict[str, Any]:
    """Return the input of a trace, or the user's messages of a conversation."""
    if len(trace.turns) > 1:
        return {"turns": [str(turn.input) for turn in trace.turns]}
    if trace.query is None:
        raise ProctorError("the trace does not record the input", hint="name another trace")
    return {"input": json_value(trace.query)}


def _verified(
    base: Mapping[str, Any],
    assertions: Iterable[dict[str, Any]],
    failing: Trace | None,
    good: Trace | None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the assertions that fail on one recording and pass on the other; why others do not."""
    kept: list[dict[str, Any]] = []
    rejected: list[str] = []
    seen: list[dict[str, Any]] = []
    for assertion in assertions:
        if assertion in seen:
            continue
        seen.append(assertion)
        case = Case.model_validate({**base, "assertions": [{**assertion, "required": True}]})
        on_failing = None if failing is None else _status(case, failing)
        on_good = None if good is None else _status(case, good)
        if (on_failing is None or on_failing in FAILED) and on_good in (None, CheckStatus.PASS):
            kept.append({**assertion, "required": True})
        else:
            both = [
                *([f"{on_failing.value} on the failing trace"] if on_failing else []),
                *([f"{on_good.value} on the good one"] if on_good else []),
            ]
            rejected.append(f"{_shown(assertion)}: {', '.join(both)}")
        if len(kept) == MAX_CHECKS:
            break
    return kept, rejected


def proposals(
    failing: Trace, good: Trace, found: Diagnosis, checks: Sequence[CheckResult]
) -> Iterator[dict[str, Any]]:
    """Yield assertions that may tell the two traces apart, the most specific first."""
    for check in checks:
        if check.status is CheckStatus.FAIL and check.expected is not None:
            expected: Any = check.expected
            listed = cast("list[str]", expected if isinstance(expected, list) else [expected])
            if check.check in _AGAIN:
                for text in listed:
                    yield {"type": _AGAIN[check.check], "value": text}
            elif check.check in ("forbidden_tools", "tool_not_called"):
                for tool in listed:
                    yield {"type": "tool_not_called", "tool": tool}
    # The decisive call first, then every other call that the good trace makes differently.
    cause = found.decisive
    calls = failing.of_kind(SpanKind.TOOL)
    for span in sorted(calls, key=lambda span: cause is None or span.span_id != cause.location):
        yield from _of_call(span, good)
    for tool in failing.tools_used:
        if tool not in good.tools_used:
            yield {"type": "tool_not_called", "tool": tool}
    for tool in good.tools_used:
        if tool not in failing.tools_used:
            yield {"type": "tool_called", "tool": tool}
    right, wrong = _values(good.response), _values(failing.response)
    asked = _values(str(failing.query))
    for value in [value for value in right if value not in wrong and value not in asked]:
        yield {"type": "output_contains", "value": value}
    for value in [value for value in wrong if value not in right and value not in asked]:
        yield {"type": "output_not_contains", "value": value}


def _of_call(span: Span, good: Trace) -> Iterator[dict[str, Any]]:
    """Yield what the good trace passes to the tool that a span calls."""
    mine = _arguments(span)
    for call in good.tool_calls:
        passed: Any = call.arguments
        if call.name != span.tool_name or not isinstance(passed, Mapping):
            continue
        for key, value in cast("Mapping[str, Any]", passed).items():
            if mine.get(key) != value:
                yield {"type": "arg_equals", "tool": call.name, "arg": key, "value": value}


def _arguments(span: Span) -> dict[str, Any]:
    value: Any = span.tool_input
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}


def _values(text: str | None) -> list[str]:
    """Return the figures and identifiers of an answer, as written."""
    text = text or ""
    figures = [text[found.start : found.end] for found in quantities(text)]
    return list(dict.fromkeys([*_IDENTIFIER.findall(text), *figures]))


def _status(case: Case, trace: Trace) -> CheckStatus:
    context = CheckContext[Any](case=case, trace=trace, answer=trace.response or "")
    (result,) = run_sync(evaluate(checks_of(case), context))
    return result.status


def _shown(assertion: Mapping[str, Any]) -> str:
    return " ".join(str(value) for value in assertion.values())


def mock_tools(*traces: Trace) -> list[dict[str, Any]]:
    """Return the recorded tools as mocks of a chat agent: each call's result by its arguments."""
    tools: dict[str, dict[str, Any]] = {}
    for trace in traces:
        for span in trace.of_kind(SpanKind.TOOL):
            name = re.sub(r"[^A-Za-z0-9_-]", "_", span.tool_name or span.name)[:64]
            tool = tools.setdefault(
                name, {"name": name, "error": "this call was not recorded", "when": []}
            )
            arguments = json_value(_arguments(span))
            if any(entry["arguments"] == arguments for entry in tool["when"]):
                continue
            if span.failed:
                reply = {"error": span.error_message or span.error_type or "error"}
            else:
                reply = {"reply": json_value(span.tool_output)}
            tool["when"].append({"arguments": arguments, **reply})
    return list(tools.values())


MARK = "# Written by `proctor case from`"
"""How a file begins to which cases may be added."""

HEADER = f"{MARK}; its checks were verified on recordings.\n"


def good_recording(run: Run, trial: Trial) -> Trace | None:
    """Return the trace of a passing trial of the same case, of the same agent if there is one."""
    same = sorted(
        (one for one in run.trials() if one.case == trial.case and one.passed),
        key=lambda one: one.agent != trial.agent,
    )
    return next((held for one in same if (held := run.trace(one)) is not None), None)


def case_from_trial(run: Run, trial: Trial, *, name: str | None = None) -> RegressionCase:
    """Return a case from a failing trial; a passing trial of its case is the good recording."""
    failing, right = run.trace(trial), good_recording(run, trial)
    if failing is None:
        raise ProctorError("the trial has no trace", where=trial.name)
    if right is None:
        raise ProctorError(
            "there is no good recording to verify the case with",
            where=trial.name,
            hint="no trial of the case passed; name a good trace: proctor case from … --good",
        )
    return regression_case(
        failing,
        right,
        name=name or f"{trial.case}-regression",
        evidence=evidence_of(trial, trajectories_of(run, {trial.case})),
    )


def as_suite(made: RegressionCase) -> str:
    """Return the case as a suite file."""
    return HEADER + yaml.safe_dump(made.document, sort_keys=False, allow_unicode=True)


def write_case(made: RegressionCase, out: Path) -> Path:
    """Write a case as a suite, and its mock tools beside it; return the path of the tools.

    A suite that was written here before gets the case in addition, or instead of the one with its
    id. Any other file is not touched: its comments would be lost.
    """
    tools = out.with_suffix(".tools.yaml")
    document, listed = made.document, list(made.tools)
    if out.exists():
        text = read_bounded(out, MAX_SUITE).decode("utf-8", "replace")
        if not text.startswith(MARK):
            raise ProctorError(
                "the file exists and was not written by `proctor case from`",
                where=str(out),
                hint="name another file",
            )
        others = [each for each in load_yaml(text)["cases"] if each["id"] != made.case["id"]]
        document = {**document, "cases": [*others, made.case]}
        if tools.exists():
            known = load_yaml(read_bounded(tools, MAX_SUITE))["tools"]
            listed += [tool for tool in known if tool not in listed]
    for path, content in ((out, document), (tools, {"tools": listed})):
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        write_atomic(path, (HEADER + text).encode())
    return tools
