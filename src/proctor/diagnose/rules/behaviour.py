"""Rules on what the agent does: answers without work, work without its tools, the same again.

A rule here needs a plan or an offered tool to hold the agent to; a chat model that answers from
what it knows, and was offered nothing, has done nothing wrong.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from proctor.diagnose.finding import Impact
from proctor.diagnose.rules._base import Rule, RuleHit
from proctor.diagnose.taxonomy import Category

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proctor.diagnose.steps import AgentStep, Moves, StepCall


_OFFER = re.compile(r"^\s*[-*] (?!final_answer)[a-z_]\w*: ", re.MULTILINE)
_UNSUPPORTED = re.compile(
    r"\b(?:[Bb]ased on my|I recall|I (?:already )?know|I will assume|for (?:this )?demonstration"
    r"|[Ss]imulat\w+|from memory|well[- ]known|[Ii]t is known)\b[^\n]{0,160}"
)
_SENTENCE = re.compile(r"[^.\n]{20,200}")

SAME = 0.8
"""Likeness of arguments from which two calls count as the same: page_down(1) and page_down(2)
are not, a query with one word changed is."""


class AnswerWithoutWork(Rule):
    """A plan is made to look things up, and the answer handed in without any of it being done."""

    name = "answer_without_work"
    category = Category.GOAL_DEVIATION
    impact = Impact.HIGH
    confidence = 0.71

    def find(self, moves: Moves) -> Iterator[RuleHit]:
        """The model call that answers."""
        for move in _unworked(moves):
            yield RuleHit(
                move.span,
                "The agent answers without doing any step of its own plan.",
                _answer(move),
            )


class UnsupportedAnswer(Rule):
    """The answer rests on what the model says it knows: nothing was looked up."""

    name = "unsupported_answer"
    category = Category.LANGUAGE_ONLY
    impact = Impact.HIGH
    confidence = 0.38

    def find(self, moves: Moves) -> Iterator[RuleHit]:
        """The model call that answers."""
        for move in _unworked(moves):
            claims = tuple(found.group() for found in _UNSUPPORTED.finditer(move.text))
            yield RuleHit(
                move.span,
                "The answer rests on no observation in the trace.",
                (*claims, *_answer(move)),
            )


class ReportOverruled(Rule):
    """Whoever was asked to find something reports that it could not; an answer follows all the
    same."""

    name = "report_overruled"
    category = Category.LANGUAGE_ONLY
    impact = Impact.HIGH
    confidence = 0.62

    def find(self, moves: Moves) -> Iterator[RuleHit]:
        """The model call that answers."""
        for move in moves.moves:
            if move.answers and move.report and move.report.gives_up and not move.gives_up:
                yield RuleHit(
                    move.span,
                    "The answer is definite although the agent asked for it found none.",
                    _answer(move),
                )


class ToolPassedOver(Rule):
    """Code of its own where tools for the work are offered, and the plan needs them."""

    name = "tool_passed_over"
    category = Category.TOOL_SELECTION
    confidence = 0.52

    def find(self, moves: Moves) -> Iterator[RuleHit]:
        """The model call that writes such code."""
        for move in moves.moves:
            if "```" not in move.text or move.calls or not _offers_work(move):
                continue
            plans = [m for m in moves.before(move) if m.plans]
            if not plans or not all(plan.self_contained for plan in plans):
                yield RuleHit(
                    move.span,
                    "The code calls none of the tools the agent was offered.",
                    tuple(_SENTENCE.findall(move.text)[:1]),
                )


class RepeatedCall(Rule):
    """A call that failed is made again, all but unchanged, and fails again."""

    name = "repeated_call"
    category = Category.RESOURCE_ABUSE
    confidence = 0.2

    def find(self, moves: Moves) -> Iterator[RuleHit]:
        """The last of the repetitions, as the taxonomy asks: its tool span where there is one."""
        last: dict[tuple[str, str], tuple[AgentStep, StepCall]] = {}
        repeats: dict[tuple[str, str], tuple[AgentStep, int]] = {}
        for move in moves.moves:
            for call in move.calls:
                key = (move.agent, call.name)
                before = last.get(key)
                last[key] = (move, call)
                if before and move.failure and before[0].failure and _same(before[1], call):
                    repeats[key] = (move, repeats[key][1] + 1 if key in repeats else 1)
        for (_, name), (move, times) in repeats.items():
            where = move.tools[-1] if move.tools else move.span
            yield RuleHit(
                where,
                f"{name} is called again with like arguments after failing, {times} times.",
                (name,),
            )


def _unworked(moves: Moves) -> Iterator[AgentStep]:
    """Moves that answer although their agent planned to bring something in, and called nothing.

    A plan that needs only thought is carried out by thinking.
    """
    for move in moves.moves:
        if not move.answers or move.works:
            continue
        before = moves.before(move)
        planned = any(m.plans and not m.self_contained for m in before)
        if planned and not any(m.works for m in before):
            yield move


def _answer(move: AgentStep) -> tuple[str, ...]:
    """What a move hands in, to be quoted; else how it begins."""
    handed = [call for call in move.calls if call.answers][-1:]
    in_code = [f"{call.name}({call.arguments}" for call in handed]
    return (*in_code, *(call.arguments for call in handed), *_SENTENCE.findall(move.text)[:1])


def _offers_work(move: AgentStep) -> bool:
    """Whether the system prompt lists a tool other than the one that answers."""
    first = move.span.input_messages[:1]
    return any(m.role == "system" and _OFFER.search(m.content or "") for m in first)


def _same(one: StepCall, other: StepCall) -> bool:
    a, b = one.arguments[:200], other.arguments[:200]
    return a == b or SequenceMatcher(None, a, b).ratio() > SAME


# Rules on instructions that stand in the prompt and can be checked by reading the output.
#
# Only what a prompt states in so many words is checked: a closing tag, a limit on characters.
# The phrases are English, and a prompt that says it otherwise is not understood.


_TAG = re.compile(
    r"(?:write|append|add|include|end(?:ing)? with) the ['\"`]?(?:\\n|\n)?(</?[a-z_]+>)"
)
_LIMIT = re.compile(r"(\d{2,5}) characters at a time")
_SLICE = re.compile(r"\[[^\]\n:]*:\s*[^\]\n]*?(\d{2,6})\]")

SLACK = 300
"""Characters around a printed passage that are the framework's own words, not the content."""


class MissingTag(Rule):
    """The prompt asks for a closing tag; the output has none."""

    name = "missing_tag"
    category = Category.NON_COMPLIANCE
    impact = Impact.LOW
    confidence = 0.26

    def find(self, moves: Moves) -> Iterator[RuleHit]:
        """The first output of each agent that lacks it."""
        seen: set[tuple[str, str]] = set()
        for move in moves.moves:
            asked = _TAG.search(move.told)
            if not asked or not move.text or (move.agent, asked.group(1)) in seen:
                continue
            seen.add((move.agent, asked.group(1)))
            if asked.group(1) not in move.text:
                tail = move.text.strip().rsplit("\n", 1)[-1]
                yield RuleHit(move.span, f"The output lacks the tag {asked.group(1)}.", (tail,))


class LimitExceeded(Rule):
    """The prompt bounds how many characters are read at a time; the agent reads more."""

    name = "limit_exceeded"
    category = Category.NON_COMPLIANCE
    confidence = 0.36

    def find(self, moves: Moves) -> Iterator[RuleHit]:
        """The code that asks for more, and the model call that is shown more."""
        for move in moves.moves:
            limit = _limit(move)
            if limit is None:
                continue
            for found in _SLICE.finditer(move.text):
                if int(found.group(1)) > limit:
                    yield RuleHit(
                        move.span,
                        f"Reads {found.group(1)} characters; the limit is {limit}.",
                        (found.group(),),
                    )
                    break
            shown = moves.after(move)
            if shown is not None and not move.failure and len(move.came_back) > limit + SLACK:
                yield RuleHit(
                    shown.span,
                    f"Was shown {len(move.came_back)} characters; the limit is {limit}.",
                    (move.came_back.rsplit("\n", 1)[-1], move.came_back),
                )


def _limit(move: AgentStep) -> int | None:
    for message in move.span.input_messages[:2]:
        content = message.content or ""
        found = _LIMIT.search(content) if "characters at a time" in content else None
        if found:
            return int(found.group(1))
    return None
