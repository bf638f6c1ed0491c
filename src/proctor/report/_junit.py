"""The report as JUnit XML, as CI systems read it.

Guarantees: valid against the schemas in use (Ant's as published by Windy Road, and Jenkins'), which
is why optional attributes that only one of them knows are left out. A failed case is a
`failure`, one that could not be judged an `error`, a stopped one `skipped`; warnings are in the
suite's `system-out`, because the format has no element for them.
"""

from __future__ import annotations

import socket
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import PurePath

from proctor.checks.base import CheckResult, CheckStatus
from proctor.report.facts import MOST_SPANS, REPORTED, ReportFacts, TrialFacts, status_word
from proctor.runs.trial import UNJUDGED, TrialStatus
from proctor.sanitize import line, shown, xml


def render(facts: ReportFacts) -> str:
    """Return the document: a `testsuite` per suite and agent, a `testcase` per trial."""
    groups: dict[tuple[str, str], list[TrialFacts]] = defaultdict(list)
    for each in facts.trials:
        groups[each.suite or facts.title, each.trial.agent].append(each)
    root = ET.Element("testsuites")
    for number, ((suite, agent), cases) in enumerate(groups.items()):
        element = ET.SubElement(root, "testsuite", _counts(facts, suite, agent, cases))
        element.set("id", str(number))
        properties = ET.SubElement(element, "properties")
        ET.SubElement(properties, "property", name="agent", value=_text(agent))
        for case in cases:
            element.append(_case(case, suite, agent))
        ET.SubElement(element, "system-out").text = "\n".join(
            _text(f"{case.name}: WARN {result.id}: {line(result.reason)}")
            for case in cases
            for result in case.with_status(CheckStatus.WARN)
        )
        # Ant's schema requires the element, even when it is empty.
        ET.SubElement(element, "system-err").text = "\n".join(map(_text, facts.remarks))
    ET.indent(root)
    body = ET.tostring(root, encoding="unicode", short_empty_elements=True)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _counts(
    facts: ReportFacts, suite: str, agent: str, cases: Sequence[TrialFacts]
) -> dict[str, str]:
    started = datetime.fromtimestamp(facts.started_ns // 10**9, UTC)
    spent = sum(case.trial.latency_ms or 0.0 for case in cases)
    return {
        "name": _text(suite),
        "package": _text(agent),
        "hostname": _text(socket.gethostname()) or "localhost",
        # The schema has no room for a time zone; this is UTC.
        "timestamp": started.strftime("%Y-%m-%dT%H:%M:%S"),
        "tests": str(len(cases)),
        "failures": str(sum(case.is_gate_failure for case in cases)),
        "errors": str(sum(case.trial.status in UNJUDGED for case in cases)),
        "skipped": str(sum(case.trial.status == TrialStatus.CANCELLED for case in cases)),
        "time": f"{spent / 1000:.3f}",
    }


def _case(case: TrialFacts, suite: str, agent: str) -> ET.Element:
    element = ET.Element(
        "testcase",
        name=_text(case.name),
        # Jenkins groups test cases by what precedes the last dot.
        classname=_text(f"{PurePath(suite).stem}.{agent}"),
        time=f"{(case.trial.latency_ms or 0.0) / 1000:.3f}",
    )
    status = case.trial.status
    if status == TrialStatus.CANCELLED:
        ET.SubElement(element, "skipped")
    elif status != TrialStatus.PASSED:
        tag = "failure" if case.is_gate_failure else "error"
        problem = ET.SubElement(element, tag, message=_text(case.reason), type=status.value)
        problem.text = _details(case)
    return element


def _details(case: TrialFacts) -> str:
    out = [] if case.place is None else [str(case.place)]
    out += [] if case.source is None else [case.source]
    # A failed check below gives the same reason with more detail.
    if case.error is not None or not case.with_status(CheckStatus.FAIL):
        out.append(case.reason)
    for result in case.with_status(*REPORTED):
        out.extend(_check(result))
    return "\n".join(_text(each) for each in out)


def _check(result: CheckResult) -> list[str]:
    by = f" (by {result.method})" if result.method else ""
    out = [f"{status_word(result.status)} {result.id}: {line(result.reason)}{by}"]
    for label, value in (("expected", result.expected), ("actual", result.actual)):
        if value is not None:
            out.append(f"- {label}: {shown(value)}")
    if result.span_ids:
        out.append(f"- spans: {', '.join(result.span_ids[:MOST_SPANS])}")
    return out


def _text(text: str) -> str:
    return xml(line(text))
