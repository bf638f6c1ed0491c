"""Contrast failing with passing trials of a case: what only the failing ones do.

A trajectory is read as features: which tools are called, with which arguments, how often, and what
they return. A feature is counted in every failing and every passing trial and tested with Fisher's
exact test, corrected for the number of features (Holm). The first divergence is the earliest step
of a failing trial that no other passing trial has, the clearest one if there are several. Counts
are reported whether or not the test is significant: they are facts, the test says what they prove.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from proctor.diagnose._steps import plain, read_steps
from proctor.diagnose.finding import Category, Finding, Impact, quote
from proctor.formatting import plural
from proctor.sanitize import line
from proctor.stats.ranking import fisher_exact, holm

if TYPE_CHECKING:
    from proctor.diagnose._steps import Steps
    from proctor.diagnose.finding import RootCause
    from proctor.trace import Span, Trace

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
        proof = (
            f"p = {self.adjusted:.2g}, corrected"
            if self.adjusted < SIGNIFICANT
            else f"not significant, p = {self.adjusted:.2g}, corrected"
        )
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
