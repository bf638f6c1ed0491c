"""One row for each span a detector may mark: model calls and tool spans, with facts and words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from proctor.diagnose.moves import plain
from proctor.diagnose.rules import heard

from .amounts import facts_of_amounts
from .facts import facts_of_move, facts_of_rules, facts_of_tool, facts_of_trace
from .scenes import scenes_of
from .words import NOTHING, Hasher

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proctor.diagnose.model import Finding
    from proctor.diagnose.moves import Moves
    from proctor.trace import Span

    from .scenes import Scene
    from .words import Words


class Row(NamedTuple):
    """One span to judge: facts by name, words of each field by bucket."""

    span: Span
    scene: Scene
    facts: dict[str, float]
    words: dict[str, Words]

    @property
    def cut(self) -> bool:
        """Whether it is a model call of which a part is lost: it is neither learned nor judged."""
        return self.span is self.scene.move.span and self.scene.move.cut


def rows_of(moves: Moves, findings: Iterable[Finding]) -> list[Row]:
    """A row for every model call and every tool span, by start time of their moves.

    `findings` are what the rules say; agreement with them is among the facts.
    """
    rules: dict[str, list[str]] = {}
    for finding in heard(findings):
        name = f"{finding.detector.removeprefix('rule:')}: {finding.category.value}"
        rules.setdefault(finding.location, []).append(name)
    scenes = scenes_of(moves)
    trace = facts_of_trace(scenes, rules)
    hasher = Hasher()
    words: dict[int, dict[str, Words]] = {}
    rows: list[Row] = []
    for scene in scenes:
        facts = facts_of_move(scene, scenes) | trace | facts_of_rules(scene, rules)
        facts |= facts_of_amounts(scene)
        words[scene.place] = _words(scene, words, hasher)
        rows.append(_row(scene.move.span, scene, "model", facts, words[scene.place]))
        for tool in scene.move.tools:
            facts = facts_of_tool(scene, tool, scenes) | trace
            facts |= {f"rule {name}": 1.0 for name in rules.get(tool.span_id, ())}
            shown = f"{plain(tool.tool_output)[:800]} {plain(tool.tool_input)[:400]}"
            held: dict[str, Words] = {"failed": hasher("failed", tool.error_message or "")}
            held["shown"] = hasher("shown", shown)
            rows.append(_row(tool, scene, "tool", facts, held))
    return rows


def _row(
    span: Span, scene: Scene, kind: str, facts: dict[str, float], words: dict[str, Words]
) -> Row:
    held = {name: value for name, value in facts.items() if value}
    held["is tool" if kind == "tool" else f"is {scene.role}"] = 1.0
    return Row(span, scene, held, words)


def _words(scene: Scene, known: dict[int, dict[str, Words]], hasher: Hasher) -> dict[str, Words]:
    """The words of a move; those of the move before and of the plan are counted already."""
    move, before, plan = scene.move, scene.previous, scene.plan
    asked = " ".join(f"{call.name} {call.arguments}" for call in move.calls)
    return {
        "said": hasher("said", f"{move.text[:2500]} {asked}"),
        "told": hasher("told", move.told[-1200:]),
        "failed": hasher("failed", move.failure),
        "shown": hasher("shown", move.came_back),
        "failed before": known[before.place]["failed"] if before else NOTHING,
        "plan": known[plan.place]["said"] if plan else NOTHING,
    }
