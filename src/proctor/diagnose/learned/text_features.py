"""Texts of a span as hashed words: the same buckets on every machine, no vocabulary to ship.

Two words may share a bucket. Texts are truncated, so that a long trace costs milliseconds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

from proctor.diagnose._steps import plain
from proctor.diagnose.learned._features import (
    Scenes,
    facts_of_amounts,
    facts_of_rules,
    facts_of_step,
    facts_of_tool,
    facts_of_trace,
)
from proctor.diagnose.rules import heard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from proctor.diagnose._steps import Steps
    from proctor.diagnose.finding import Finding
    from proctor.diagnose.learned._features import Scene
    from proctor.trace import Span


# Doubling it gains nothing measurable on TRAIL; the model stays small.
BUCKETS = 1 << 13

_WORD = re.compile(r"[a-z_]{2,24}|[<>/=]{2,}")

# Fields of a span: its output, its last input, the failure of its step, the observation, the
# failure before, and the plan it follows. Each has its own buckets.
FIELDS = ("output", "input", "failed", "shown", "failed before", "plan")

# Fields whose pairs of words are left out: prompts repeat, and pairs would only count that.
_SINGLE = frozenset({"input"})

# Characters read of each field.
_MOST = {"output": 3000, "input": 1200, "failed": 500, "shown": 1200}

# Separates the first word of a pair from the second.
_STRIDE = 31


class HashedWords(NamedTuple):
    """Buckets of a text, each once, with the log of its count."""

    buckets: NDArray[np.intp]
    values: NDArray[np.float32]


NOTHING = HashedWords(np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.float32))


class Hasher:
    """Count words into buckets, caching word codes within one trace."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def __call__(self, field: str, text: str) -> HashedWords:
        """Return log counts of a text's words and word pairs, by bucket."""
        words = _WORD.findall(text[: _MOST[field]].lower())
        if not words:
            return NOTHING
        known = self._codes
        for word in set(words) - known.keys():
            # Unlike hash(), the same in every process and on every machine.
            known[word] = crc32(word.encode())
        codes = np.fromiter((known[word] for word in words), dtype=np.int64, count=len(words))
        if field not in _SINGLE:
            codes = np.concatenate([codes, codes[:-1] * _STRIDE + codes[1:]])
        counts = np.bincount(codes % BUCKETS, minlength=BUCKETS)
        buckets = np.flatnonzero(counts)
        return HashedWords(buckets, np.log1p(counts[buckets]).astype(np.float32))


# One row for each span a detector may mark: model calls and tool spans, with facts and words.


class FeatureRow(NamedTuple):
    """One span to classify: facts by name, words of each field by bucket."""

    span: Span
    scene: Scene
    facts: dict[str, float]
    words: dict[str, HashedWords]

    @property
    def cut(self) -> bool:
        """Return whether it is a model call with lost data: it is neither trained on nor
        classified.
        """
        return self.span is self.scene.step.span and self.scene.step.cut


def rows_of(steps: Steps, findings: Iterable[Finding]) -> list[FeatureRow]:
    """Return a row for every model call and every tool span, by start time of their steps.

    `findings` are those of the rules; agreement with them is among the facts.
    """
    rules: dict[str, list[str]] = {}
    for finding in heard(findings):
        name = f"{finding.detector.removeprefix('rule:')}: {finding.category.value}"
        rules.setdefault(finding.location, []).append(name)
    scenes = Scenes(steps)
    trace = facts_of_trace(scenes.all, rules)
    hasher = Hasher()
    words: dict[int, dict[str, HashedWords]] = {}
    rows: list[FeatureRow] = []
    for scene in scenes.all:
        facts = facts_of_step(scene, scenes) | trace | facts_of_rules(scene, rules)
        facts |= facts_of_amounts(scene)
        words[scene.place] = _words(scene, words, hasher)
        rows.append(_row(scene.step.span, scene, "model", facts, words[scene.place]))
        for tool in scene.step.tools:
            facts = facts_of_tool(scene, tool, scenes) | trace
            facts |= {f"rule {name}": 1.0 for name in rules.get(tool.span_id, ())}
            shown = f"{plain(tool.tool_output)[:800]} {plain(tool.tool_input)[:400]}"
            held: dict[str, HashedWords] = {"failed": hasher("failed", tool.error_message or "")}
            held["shown"] = hasher("shown", shown)
            rows.append(_row(tool, scene, "tool", facts, held))
    return rows


def _row(
    span: Span, scene: Scene, kind: str, facts: dict[str, float], words: dict[str, HashedWords]
) -> FeatureRow:
    held = {name: value for name, value in facts.items() if value}
    held["is tool" if kind == "tool" else f"is {scene.role}"] = 1.0
    return FeatureRow(span, scene, held, words)


def _words(
    scene: Scene, known: dict[int, dict[str, HashedWords]], hasher: Hasher
) -> dict[str, HashedWords]:
    """Return the words of a step; those of the previous step and of the plan are cached."""
    step, before, plan = scene.step, scene.previous, scene.plan
    asked = " ".join(f"{call.name} {call.arguments}" for call in step.calls)
    return {
        "output": hasher("output", f"{step.text[:2500]} {asked}"),
        "input": hasher("input", step.prompt[-1200:]),
        "failed": hasher("failed", step.failure),
        "shown": hasher("shown", step.observation),
        "failed before": known[before.place]["failed"] if before else NOTHING,
        "plan": known[plan.place]["output"] if plan else NOTHING,
    }
