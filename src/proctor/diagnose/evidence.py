"""Evidence beyond the trace: what the trial knows about itself, and what passing trials do.

Failed checks, quality and missing recordings become findings. A failed check is a fact, so its
confidence is high; `attribution` decides whether it is a cause or a symptom. A check that names
spans is found there, any other at the answer.

Failing and passing trials of a case are contrasted. A trajectory is read as features: which tools
are called, with which arguments, how often, and what they return. A feature is counted in every
failing and every passing trial and tested with Fisher's exact test, corrected for the number of
features (Holm). The first divergence is the earliest step of a failing trial that no other passing
trial has, the clearest one if there are several. Counts are reported whether or not the test is
significant: they are facts, the test says what they prove.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from proctor.checks.base import FAILED, CheckResult, CheckStatus, Layer
from proctor.diagnose._steps import plain, read_steps
from proctor.diagnose.finding import Category, Finding, Impact, quote
from proctor.formatting import p_text, plural
from proctor.sanitize import line
from proctor.stats.ranking import fisher_exact, holm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proctor.diagnose._steps import Steps
    from proctor.diagnose.finding import RootCause
    from proctor.trace import Span, Trace


# The kind of error that a failed check is, by the beginning of its name; others by their layer.
CHECK_CATEGORIES = {
    "forbidden_tools": Category.NON_COMPLIANCE,
    "tool_not_called": Category.NON_COMPLIANCE,
    "expected_tools": Category.TOOL_SELECTION,
    "tool_called": Category.TOOL_SELECTION,
    "min_tool": Category.TOOL_SELECTION,
    "tool_sequence": Category.ORCHESTRATION,
    "expected_handoffs": Category.ORCHESTRATION,
    "handoff": Category.ORCHESTRATION,
    "max_": Category.RESOURCE_ABUSE,
    "arg": Category.TOOL_RELATED,
    "json": Category.FORMATTING,
    "schema": Category.FORMATTING,
    "safety": Category.NON_COMPLIANCE,
    "grounded": Category.LANGUAGE_ONLY,
    "hallucination": Category.LANGUAGE_ONLY,
}
_BY_LAYER = {
    Layer.CORRECTNESS: Category.GOAL_DEVIATION,
    Layer.PATH: Category.TOOL_SELECTION,
    Layer.COST: Category.RESOURCE_ABUSE,
}

# The kind of error that a quality dimension measures. Latency is no error of an agent.
QUALITY_CATEGORIES = {
    "tool_selection": Category.TOOL_SELECTION,
    "sequence": Category.ORCHESTRATION,
    "redundancy": Category.RESOURCE_ABUSE,
    "error_recovery": Category.ORCHESTRATION,
    "retrieval": Category.POOR_RETRIEVAL,
    "reasoning": Category.WRONG_PROBLEM,
}

# Errors of a replay: the agent asked for something that was not recorded.
_MISSES = ("CassetteMiss", "no recorded answer", "no mock", "MockMiss", "not mocked")


def check_findings(steps: Steps, checks: Iterable[CheckResult]) -> list[Finding]:
    """Return a finding for each failed check, with its reason; a judge's reason is one, too."""
    spans = {span.span_id: span for span in steps.trace.spans}
    answer = next((act for act in reversed(steps.acts) if act.answers), None)
    last = answer or (steps.acts[-1] if steps.acts else None)
    findings: list[Finding] = []
    for check in checks:
        if check.status not in FAILED:
            continue
        blocking = check.status is CheckStatus.FAIL
        known = [spans[span_id] for span_id in check.span_ids if span_id in spans]
        span = known[0] if known else last.span if last is not None else None
        if span is None:
            continue
        kind = check.check or check.id
        category = next(
            (c for name, c in CHECK_CATEGORIES.items() if kind.startswith(name)),
            _BY_LAYER[check.layer],
        )
        by = f" ({check.method})" if check.method else ""
        act = f"calls {span.tool_name}; " if known and span.tool_name else ""
        findings.append(
            Finding(
                category=category,
                location=span.span_id,
                evidence=quote(span, plain(check.actual), last.text if last else ""),
                description=f"{act}check {check.id} failed{by}: {line(check.reason, 300)}",
                impact=Impact.HIGH if blocking else Impact.LOW,
                confidence=0.95 if blocking else 0.5,
                detector=f"check:{check.id}",
            )
        )
    return findings


def quality_findings(steps: Steps) -> Iterator[Finding]:
    """Yield a finding for each quality dimension at its alert level, at its first span."""
    from proctor.checks.quality import QualityLevel, score_trace

    spans = {span.span_id: span for span in steps.trace.spans}
    for dimension in score_trace(steps.trace).dimensions:
        category = QUALITY_CATEGORIES.get(dimension.name)
        span = next((spans[i] for i in dimension.span_ids if i in spans), None)
        if category is None or span is None or dimension.level is not QualityLevel.ALERT:
            continue
        issues = "; ".join(dimension.issues[:2]) or dimension.why
        yield Finding(
            category=category,
            location=span.span_id,
            evidence=quote(span, plain(span.tool_input)),
            description=f"quality, {dimension.name} {dimension.score}: {line(issues, 200)}",
            impact=Impact.LOW,
            confidence=0.3,
            detector=f"quality:{dimension.name}",
        )


def recording_findings(steps: Steps, error: str = "") -> Iterator[Finding]:
    """Yield a finding for each request that a cassette or a mock did not know."""
    seen: set[str] = set()
    for span in steps.trace.index.spans:
        text = f"{span.error_type or ''} {span.error_message or ''}"
        if _missed(text) and not (span.parent_id and span.parent_id in seen):
            seen.add(span.span_id)
            yield _missing(span, text)
    acts = steps.acts
    if not seen and _missed(error) and acts:
        yield _missing(acts[-1].span, error)


def _missed(text: str) -> bool:
    return any(miss.casefold() in text.casefold() for miss in _MISSES)


def _missing(span: Span, text: str) -> Finding:
    return Finding(
        category=Category.NOT_FOUND,
        location=span.span_id,
        evidence=quote(span, span.error_message or ""),
        description=f"asks for what was not recorded: {line(text, 200)}",
        impact=Impact.HIGH,
        confidence=0.9,
        detector="recording",
    )


# Passing trials needed before their behaviour says what is right.
MIN_PASSING = 2

# Features tested per case, the most frequent among failing trials first: bounds the correction.
MAX_FEATURES = 200

# Trials of a cell that are compared: more do not change what they show.
MAX_TRIALS = 200

SIGNIFICANT = 0.05

# A difference this clear is reported without a significant test: few trials cannot give one.
CLEAR_DIFFERENCE = 0.75


class Feature(NamedTuple):
    """Something a trajectory does: a call, a call with one argument, or what a call returns."""

    kind: str
    tool: str
    detail: str = ""

    def __str__(self) -> str:
        match self.kind:
            case "argument":
                return f"call {self.tool} with {self.detail}"
            case "result":
                return f"get {self.detail} from {self.tool}"
            case "repeats":
                return f"call {self.tool} {self.detail} with the same arguments"
            case "missing":
                return f"do not call {self.tool}"
            case _:
                return f"call {self.tool}"


class Divergence(NamedTuple):
    """A feature with its counts among failing and passing trials, and the corrected test."""

    feature: Feature
    failing: int
    of_failing: int
    passing: int
    of_passing: int
    p: float
    adjusted: float

    @property
    def difference(self) -> float:
        """The difference of the two shares."""
        return self.failing / self.of_failing - self.passing / self.of_passing

    def __str__(self) -> str:
        proof = f"p {p_text(self.adjusted)}, corrected"
        if self.adjusted >= SIGNIFICANT:
            proof = f"not significant, {proof}"
        return (
            f"{self.failing} of {self.of_failing} failing trials {self.feature}, "
            f"{self.passing} of {plural(self.of_passing, 'passing one')} ({proof})"
        )


@dataclass
class Contrast:
    """The failing and the passing trials of one case, as features."""

    failing: Sequence[Mapping[Feature, str]]
    passing: Sequence[Mapping[Feature, str]]

    def divergences(self) -> list[Divergence]:
        """Return the features of failing trials, with counts and corrected tests."""
        n, m = len(self.failing), len(self.passing)
        if not n or m < MIN_PASSING:
            return []
        failing = Counter(feature for one in self.failing for feature in one)
        passing = Counter(feature for one in self.passing for feature in one)
        # What every passing trial calls and some failing one does not.
        for feature, count in passing.items():
            if feature.kind == "call" and count == m and failing[feature] < n:
                failing[Feature("missing", feature.tool)] = n - failing[feature]
        # Features that the same trials have are one hypothesis; those that all have are none.
        tested: dict[tuple[bool, ...], list[Feature]] = {}
        for feature, _ in failing.most_common(MAX_FEATURES):
            kind, tool, _ = feature
            missing = kind == "missing"
            sought = Feature("call", tool) if missing else feature
            pattern = tuple((sought in one) != missing for one in (*self.failing, *self.passing))
            if not all(pattern):
                tested.setdefault(pattern, []).append(feature)
        p_values = [
            fisher_exact(sum(one[:n]), n - sum(one[:n]), sum(one[n:]), m - sum(one[n:]))
            for one in tested
        ]
        return [
            Divergence(feature, sum(one[:n]), n, sum(one[n:]), m, p, adjusted)
            for (one, alike), p, adjusted in zip(
                tested.items(), p_values, holm(p_values) if p_values else (), strict=True
            )
            for feature in alike
        ]

    def finding(self, steps: Steps) -> list[Finding]:
        """Return the first divergence of a failing trial from the passing ones, if it is clear."""
        mine = features(steps)
        called = {feature.tool for feature in mine}
        found = [
            d
            for d in self.divergences()
            if (d.feature in mine or (d.feature.kind == "missing" and d.feature.tool not in called))
            and d.passing / d.of_passing <= 1 - CLEAR_DIFFERENCE
            and (d.adjusted < SIGNIFICANT or not d.passing)
        ]
        if not found:
            return []
        order = steps.trace.index.position
        last = len(order)
        # The most discriminating first, of those the earliest; an argument says more than a call.
        ranks = {"call": 1, "argument": 0, "missing": 2, "repeats": 3, "result": 4}
        best = min(
            found,
            key=lambda d: (
                d.passing > 0,
                order.get(mine.get(d.feature, ""), last),
                ranks[d.feature.kind],
                -d.failing,
            ),
        )
        answer = next((act.span for act in reversed(steps.acts) if act.answers), None)
        spans = {span.span_id: span for span in steps.trace.spans}
        span = spans.get(mine.get(best.feature, ""), answer)
        if span is None:
            return []
        category = {
            "call": Category.TOOL_SELECTION,
            "missing": Category.GOAL_DEVIATION,
            "argument": Category.POOR_RETRIEVAL,
            "repeats": Category.RESOURCE_ABUSE,
            "result": Category.MISREAD_OUTPUT,
        }[best.feature.kind]
        sure = 0.95 if best.adjusted < SIGNIFICANT else 0.6 + 0.25 * best.difference
        return [
            Finding(
                category=category,
                location=span.span_id,
                evidence=quote(span, best.feature.detail, plain(span.tool_input)),
                description=f"{_does(best.feature)}; {best}",
                impact=Impact.HIGH,
                # A result is what happened to the agent, not what it did.
                confidence=sure * (0.7 if best.feature.kind in ("result", "repeats") else 1.0),
                detector="contrast",
            )
        ]

    def instead(self, steps: Steps, cause: RootCause) -> str:
        """Return what passing trials do where the cause is, with counts; empty if unknown."""
        act = steps.act_of(cause.location)
        m = len(self.passing)
        if act is None or not act.calls or m < MIN_PASSING:
            return ""
        tool = act.calls[0].name
        mine = features(steps)
        options = Counter(
            feature
            for one in self.passing
            for feature in one
            if feature.tool == tool and feature.kind == "argument" and feature not in mine
        )
        n = len(self.failing)
        for feature, count in options.most_common(1):
            failing = sum(feature in one for one in self.failing)
            if count > m / 2:
                return f"{count} of {m} {feature}; {failing} of {n} failing do"
        without = sum(all(feature.tool != tool for feature in one) for one in self.passing)
        if without > m / 2:
            return f"{without} of {m} do not call {tool}"
        return ""


def _does(feature: Feature) -> str:
    match feature.kind:
        case "argument":
            return f"calls {feature.tool} with {line(feature.detail, 80)}"
        case "result":
            return f"gets {line(feature.detail, 60)} from {feature.tool}"
        case "repeats":
            return f"calls {feature.tool} {feature.detail} with the same arguments"
        case "missing":
            return f"never calls {feature.tool}"
        case _:
            return f"calls {feature.tool}"


def features(steps: Steps) -> dict[Feature, str]:
    """Return what a trajectory does, each with the span where it does so first."""
    found: dict[Feature, str] = {}
    calls: Counter[tuple[str, str]] = Counter()
    for act in steps.acts:
        for span in act.tools or (act.span,):
            if span not in act.tools and not act.calls:
                continue
            name = span.tool_name or span.name
            found.setdefault(Feature("call", name), span.span_id)
            for key, value in _arguments(span):
                found.setdefault(Feature("argument", name, f"{key}={value}"), span.span_id)
            calls[name, plain(span.tool_input)] += 1
            if calls[name, plain(span.tool_input)] == 2:
                found.setdefault(Feature("repeats", name, "twice or more"), span.span_id)
            found.setdefault(Feature("result", name, _outcome(span)), span.span_id)
    return found


def _arguments(span: Span) -> list[tuple[str, str]]:
    value: Any = span.tool_input
    if isinstance(value, str) and value[:1] == "{":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return [("input", line(value, 80))]
    if isinstance(value, dict):
        entries: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return [(str(key), line(plain(entry), 80)) for key, entry in entries.items()]
    return [] if value is None else [("input", line(plain(value), 80))]


def _outcome(span: Span) -> str:
    from proctor.diagnose.rules.claims import failed_result, is_empty, result_of

    if failed_result(span):
        return "an error"
    text = result_of(span)
    return "nothing" if is_empty(text) else line(text, 60) if len(text) <= 60 else "a result"


class Trajectories:
    """Collect the trials of a run; give each failing one the passing ones to compare with.

    trajectories = Trajectories()
    trajectories.add("refund", "careful", trace, passed=True)
    trajectories.contrast("refund", "careful")
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str, bool], list[dict[Feature, str]]] = {}

    def add(self, case: str, agent: str, trace: Trace, *, passed: bool) -> None:
        """Count one trial of an agent on a case."""
        cell = self._cells.setdefault((case, agent, passed), [])
        if len(cell) < MAX_TRIALS:
            cell.append(features(read_steps(trace)))

    def contrast(self, case: str, agent: str) -> Contrast:
        """Return failing and passing trials of one agent; where too few of its own passed, the
        passing trials of all agents.
        """
        failing = self._cells.get((case, agent, False), [])
        own = self._cells.get((case, agent, True), [])
        others = [
            one
            for (name, _, passed), cell in self._cells.items()
            if name == case and passed
            for one in cell
        ]
        return Contrast(failing, own if len(own) > MIN_PASSING else others)
