"""Rules on behaviour: answers without work, work without tools, repeated calls.

A rule here needs a plan or an offered tool to compare the agent with; a chat model that answers
from its own knowledge, and was offered nothing, has done nothing wrong.
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

    from proctor.diagnose._steps import AgentStep, StepCall, Steps


_OFFER = re.compile(r"^\s*[-*] (?!final_answer)[a-z_]\w*: ", re.MULTILINE)
_UNSUPPORTED = re.compile(
    r"\b(?:[Bb]ased on my|I recall|I (?:already )?know|I will assume|for (?:this )?demonstration"
    r"|[Ss]imulat\w+|from memory|well[- ]known|[Ii]t is known)\b[^\n]{0,160}"
)
_SENTENCE = re.compile(r"[^.\n]{20,200}")

# Similarity of arguments from which two calls count as the same: page_down(1) and page_down(2)
# differ, a query with one word changed does not.
SAME = 0.8


class AnswerWithoutWork(Rule):
    """The agent plans to look things up, then answers without doing any of it."""

    name = "answer_without_work"
    category = Category.GOAL_DEVIATION
    impact = Impact.HIGH
    confidence = 0.71

    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """The model call that answers."""
        for step in _unworked(steps):
            yield RuleHit(
                step.span,
                "The agent answers without doing any step of its own plan.",
                _answer(step),
            )


class UnsupportedAnswer(Rule):
    """The answer rests on the model's own knowledge: nothing was looked up."""

    name = "unsupported_answer"
    category = Category.LANGUAGE_ONLY
    impact = Impact.HIGH
    confidence = 0.38

    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """The model call that answers."""
        for step in _unworked(steps):
            claims = tuple(found.group() for found in _UNSUPPORTED.finditer(step.text))
            yield RuleHit(
                step.span,
                "The answer rests on no observation in the trace.",
                (*claims, *_answer(step)),
            )


class ReportOverruled(Rule):
    """A sub-agent reports that it found nothing; a definite answer follows anyway."""

    name = "report_overruled"
    category = Category.LANGUAGE_ONLY
    impact = Impact.HIGH
    confidence = 0.62

    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """The model call that answers."""
        for step in steps.steps:
            if step.answers and step.report and step.report.gives_up and not step.gives_up:
                yield RuleHit(
                    step.span,
                    "The answer is definite although the sub-agent found none.",
                    _answer(step),
                )


class ToolPassedOver(Rule):
    """The agent writes its own code although suitable tools are offered and the plan needs them."""

    name = "tool_passed_over"
    category = Category.TOOL_SELECTION
    confidence = 0.52

    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """The model call that writes such code."""
        for step in steps.steps:
            if "```" not in step.text or step.calls:
                continue
            # Tools that the system prompt lists, besides the one that answers.
            first = step.span.input_messages[:1]
            if not any(m.role == "system" and _OFFER.search(m.content or "") for m in first):
                continue
            plans = [m for m in steps.before(step) if m.plans]
            if not plans or not all(plan.self_contained for plan in plans):
                yield RuleHit(
                    step.span,
                    "The code calls none of the tools the agent was offered.",
                    tuple(_SENTENCE.findall(step.text)[:1]),
                )


class RepeatedCall(Rule):
    """A failed call is repeated almost unchanged and fails again."""

    name = "repeated_call"
    category = Category.RESOURCE_ABUSE
    confidence = 0.2

    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """The last repetition, as the taxonomy requires: its tool span where there is one."""
        last: dict[tuple[str, str], tuple[AgentStep, StepCall]] = {}
        repeats: dict[tuple[str, str], tuple[AgentStep, int]] = {}
        for step in steps.steps:
            for call in step.calls:
                key = (step.agent, call.name)
                before = last.get(key)
                last[key] = (step, call)
                if before and step.failure and before[0].failure and _same(before[1], call):
                    repeats[key] = (step, repeats[key][1] + 1 if key in repeats else 1)
        for (_, name), (step, times) in repeats.items():
            where = step.tools[-1] if step.tools else step.span
            yield RuleHit(
                where,
                f"{name} is called again with like arguments after failing, {times} times.",
                (name,),
            )


def _unworked(steps: Steps) -> Iterator[AgentStep]:
    """Return steps that answer although their agent planned to look something up and called
    nothing.

    A plan that needs only reasoning is executed by reasoning.
    """
    for step in steps.steps:
        if not step.answers or step.works:
            continue
        before = steps.before(step)
        planned = any(m.plans and not m.self_contained for m in before)
        if planned and not any(m.works for m in before):
            yield step


def _answer(step: AgentStep) -> tuple[str, ...]:
    """Return the answer of a step for a quote; else its beginning."""
    handed = [call for call in step.calls if call.answers][-1:]
    in_code = [f"{call.name}({call.arguments}" for call in handed]
    return (*in_code, *(call.arguments for call in handed), *_SENTENCE.findall(step.text)[:1])


def _same(one: StepCall, other: StepCall) -> bool:
    a, b = one.arguments[:200], other.arguments[:200]
    return a == b or SequenceMatcher(None, a, b).ratio() > SAME


# Rules on instructions in the prompt that can be checked in the output. Only explicit ones are
# checked: a closing tag, a limit on characters. The phrases are English; other wordings are not
# recognised.


_TAG = re.compile(
    r"(?:write|append|add|include|end(?:ing)? with) the ['\"`]?(?:\\n|\n)?(</?[a-z_]+>)"
)
_LIMIT = re.compile(r"(\d{2,5}) characters at a time")
_SLICE = re.compile(r"\[[^\]\n:]*:\s*[^\]\n]*?(\d{2,6})\]")

# Characters of framework text around a printed passage.
SLACK = 300


class MissingTag(Rule):
    """The prompt asks for a closing tag; the output has none."""

    name = "missing_tag"
    category = Category.NON_COMPLIANCE
    impact = Impact.LOW
    confidence = 0.26

    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """The first output of each agent that lacks it."""
        seen: set[tuple[str, str]] = set()
        for step in steps.steps:
            found = _TAG.search(step.prompt)
            tag = found.group(1) if found else ""
            if not tag or not step.text or (step.agent, tag) in seen:
                continue
            seen.add((step.agent, tag))
            if tag not in step.text:
                tail = step.text.strip().rsplit("\n", 1)[-1]
                yield RuleHit(step.span, f"The output lacks the tag {tag}.", (tail,))


class LimitExceeded(Rule):
    """The prompt bounds how many characters are read at a time; the agent reads more."""

    name = "limit_exceeded"
    category = Category.NON_COMPLIANCE
    confidence = 0.36

    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """The code that asks for more, and the model call that is shown more."""
        for step in steps.steps:
            stated = [
                _LIMIT.search(message.content)
                for message in step.span.input_messages[:2]
                # A plain search first: the pattern starts with digits, and prompts are long.
                if message.content and "characters at a time" in message.content
            ]
            limit = next((int(match.group(1)) for match in stated if match), None)
            if limit is None:
                continue
            for found in _SLICE.finditer(step.text):
                if int(found.group(1)) > limit:
                    yield RuleHit(
                        step.span,
                        f"Reads {found.group(1)} characters; the limit is {limit}.",
                        (found.group(),),
                    )
                    break
            shown = steps.after(step)
            if shown is not None and not step.failure and len(step.observation) > limit + SLACK:
                yield RuleHit(
                    shown.span,
                    f"Was shown {len(step.observation)} characters; the limit is {limit}.",
                    (step.observation.rsplit("\n", 1)[-1], step.observation),
                )
