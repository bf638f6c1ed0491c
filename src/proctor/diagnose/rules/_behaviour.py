"""Rules on behaviour: answers without work, work without tools, repeated calls.

A rule here needs a plan or an offered tool to compare the agent with; a chat model that answers
from its own knowledge, and was offered nothing, has done nothing wrong.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from proctor.diagnose._steps import ANSWERING, offered_in, plain
from proctor.diagnose.finding import Category, Impact
from proctor.diagnose.rules._failures import RuleHit, error_value, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proctor.diagnose._steps import AgentStep, StepCall, Steps


_UNSUPPORTED = re.compile(
    r"\b(?:[Bb]ased on my|I recall|I (?:already )?know|I will assume|for (?:this )?demonstration"
    r"|[Ss]imulat\w+|from memory|well[- ]known|[Ii]t is known)\b[^\n]{0,160}"
)
# Code that does what a tool does, and the names of such tools.
_OWN_CODE = (
    (
        re.compile(
            r"\b(?:import (?:requests|urllib|bs4|httpx|selenium)|requests\.get|urlopen|"
            r"from (?:bs4|urllib|requests|googlesearch|duckduckgo_search)\b)[^\n]{0,100}"
        ),
        re.compile(r"search|visit|web|brows|page|fetch|url", re.IGNORECASE),
    ),
    (
        re.compile(
            r"\b(?:open\(|pd\.read_\w+\(|PyPDF2|pdfplumber|openpyxl|load_workbook)[^\n]{0,100}"
        ),
        re.compile(r"file|document|inspect|pdf|excel|read", re.IGNORECASE),
    ),
)
_SENTENCE = re.compile(r"[^.\n]{20,200}")

# Similarity of arguments from which two calls count as the same: page_down(1) and page_down(2)
# differ, a query with one word changed does not.
SAME = 0.8


@rule(Category.GOAL_DEVIATION, confidence=0.71, impact=Impact.HIGH)
def answer_without_work(steps: Steps) -> Iterator[RuleHit]:
    """The agent plans to look things up, then answers without doing any of it.

    Found at: the model call that answers.
    """
    for step in _unworked(steps):
        yield RuleHit(
            step.span, "The agent answers without doing any step of its own plan.", _answer(step)
        )


@rule(Category.LANGUAGE_ONLY, confidence=0.38, impact=Impact.HIGH)
def unsupported_answer(steps: Steps) -> Iterator[RuleHit]:
    """The answer rests on the model's own knowledge: nothing was looked up.

    Found at: the model call that answers.
    """
    for step in _unworked(steps):
        claims = tuple(found.group() for found in _UNSUPPORTED.finditer(step.text))
        yield RuleHit(
            step.span, "The answer rests on no observation in the trace.", (*claims, *_answer(step))
        )


@rule(Category.LANGUAGE_ONLY, confidence=0.62, impact=Impact.HIGH)
def report_overruled(steps: Steps) -> Iterator[RuleHit]:
    """A sub-agent reports that it found nothing; a definite answer follows anyway.

    Found at: the model call that answers.
    """
    for step in steps.steps:
        if step.answers and step.report and step.report.gives_up and not step.gives_up:
            yield RuleHit(
                step.span,
                "The answer is definite although the sub-agent found none.",
                _answer(step),
            )


@rule(Category.TOOL_SELECTION, confidence=0.52)
def tool_passed_over(steps: Steps) -> Iterator[RuleHit]:
    """The agent writes code that names an offered tool without calling it, or that does by its own
    means what the tool does: it prints a request, fetches pages or reads files itself.

    Code that only computes passes over no tool. Found at: the model call that writes such code.
    """
    for step in steps.steps:
        if "```" not in step.text or step.calls:
            continue
        # Tools that the system prompt lists, besides the one that answers.
        first = step.span.input_messages[:1]
        rules = "\n".join(m.content or "" for m in first if m.role == "system")
        offered = [name for name in offered_in(rules) if name not in ANSWERING]
        code = step.text[step.text.index("```") :]
        named = next((name for name in offered if re.search(rf"\b{name}\b", code)), "")
        passage = next((text for text in code.splitlines() if named and named in text), "")
        what = f"The code names the offered tool {named} without calling it."
        for does, tools in () if named else _OWN_CODE:
            found = does.search(code)
            own = next((name for name in offered if tools.search(name)), "")
            if found is not None and own:
                named, passage = own, found.group()
                what = f"The code does by its own means what the offered tool {own} does."
                break
        if named:
            yield RuleHit(step.span, what, (passage, *_SENTENCE.findall(step.text)[:1]))


@rule(Category.RESOURCE_ABUSE, confidence=0.2)
def repeated_call(steps: Steps) -> Iterator[RuleHit]:
    """A failed call is repeated almost unchanged and fails again.

    Found at: the last repetition, as the taxonomy requires: its tool span where there is one.
    """
    last: dict[tuple[str, str], tuple[AgentStep, StepCall]] = {}
    repeats: dict[tuple[str, str], tuple[AgentStep, int]] = {}
    for step in steps.steps:
        for call in step.calls:
            key = (step.agent, call.name)
            before = last.get(key)
            last[key] = (step, call)
            if before and _failed(step, call) and _failed(*before) and _same(before[1], call):
                repeats[key] = (step, repeats[key][1] + 1 if key in repeats else 1)
    for (_, name), (step, times) in repeats.items():
        where = step.tools[-1] if step.tools else step.span
        yield RuleHit(
            where,
            f"{name} is called again with like arguments after failing, {times} times.",
            (name,),
        )


def _failed(step: AgentStep, call: StepCall) -> bool:
    """Return whether this very call failed; of code without tool spans, whether the code did."""
    mine = [tool for tool in step.tools if tool.tool_name == call.name]
    if not mine:
        return bool(step.failure)
    same = [tool for tool in mine if plain(tool.tool_input) == call.arguments] or mine
    return any(tool.failed or error_value(tool.tool_output) for tool in same)


def _unworked(steps: Steps) -> Iterator[AgentStep]:
    """Return steps that answer although their agent planned to look something up and called
    nothing.

    A plan that needs only reasoning is executed by reasoning.
    """
    for step in steps.steps:
        if not step.answers or step.works:
            continue
        if step.planned_lookups and not step.worked:
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


@rule(Category.NON_COMPLIANCE, confidence=0.26, impact=Impact.LOW)
def missing_tag(steps: Steps) -> Iterator[RuleHit]:
    """The prompt asks for a closing tag; the output has none.

    A tag at which the model was stopped cannot be in its output, and is not missing. Found at: the
    first output of each agent that lacks it.
    """
    seen: set[tuple[str, str]] = set()
    for step in steps.steps:
        found = _TAG.search(step.prompt)
        tag = found.group(1) if found else ""
        if not tag or not step.text or (step.agent, tag) in seen:
            continue
        seen.add((step.agent, tag))
        if tag not in step.text and not _stops_at(step, tag):
            tail = step.text.strip().rsplit("\n", 1)[-1]
            yield RuleHit(step.span, f"The output lacks the tag {tag}.", (tail,))


def _stops_at(step: AgentStep, tag: str) -> bool:
    """Return whether the request named the tag as a stop sequence."""
    pattern = re.compile(rf"stop\w*\W{{1,12}}{re.escape(tag)}")
    values = (step.span.input, *step.span.attributes.values())
    return any(
        pattern.search(text)
        for value in values
        if "stop" in (text := value if isinstance(value, str) else repr(value))
    )


@rule(Category.NON_COMPLIANCE, confidence=0.36)
def limit_exceeded(steps: Steps) -> Iterator[RuleHit]:
    """The prompt bounds how many characters are read at a time; the agent reads more.

    Found at: the code that asks for more, and the model call that is shown more.
    """
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
        shown = step.following
        if shown is not None and not step.failure and len(step.observation) > limit + SLACK:
            yield RuleHit(
                shown.span,
                f"Was shown {len(step.observation)} characters; the limit is {limit}.",
                (step.observation.rsplit("\n", 1)[-1], step.observation),
            )
