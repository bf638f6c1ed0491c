"""Rules that compare what an agent says and passes on with what the trace shows.

They need no training and no particular framework: tool results, requests and instructions are the
evidence. A value that arithmetic on the evidence could give is never reported, and an agent that
was given nothing to look at is not judged by it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, cast

from proctor.checks.grounding import NUMBER_WORDS, CheckedClaim, ground, quantities
from proctor.diagnose._steps import MAX_TEXT, gives_up, offered_in, plain
from proctor.diagnose._values import entries_of, equations, holds, reads, stem, stems
from proctor.diagnose.finding import Category, Impact
from proctor.diagnose.rules._failures import RuleHit, error_value, rule
from proctor.sanitize import line
from proctor.trace.formats.transcript import MESSAGE_INDEX

if TYPE_CHECKING:
    from proctor.diagnose._steps import Act, Steps
    from proctor.trace import Span

# Numbers of the evidence from which values are derived; pairs of more would explain any value.
MAX_NUMBERS = 40

# A figure this near to a computed result, and unequal to it, is that result altered.
ALTERED = 0.1

# Calls whose arguments are looked up: each needs all text before it.
MAX_CALLS = 60

# Whole numbers up to this one may count anything.
SMALL = 12

# An order number, an invoice, a ticket, an address: what nobody states without having seen it.
_IDENTIFIER = re.compile(
    r"\b(?=[\w-]*\d)[A-Z]{1,6}[-_#]?\d[\w-]{2,20}\b|\b[\w.+-]+@[\w-]+\.[\w.]+\b"
)
_EMPTY_TEXT = re.compile(
    r"\s*(?:(?:no|0|zero) (?:\w+ ){0,3}(?:results?|records?|rows?|match(?:es)?|entries|documents?|"
    r"items?|hits?|data)\b.{0,60}|nothing (?:was )?found.{0,40}|not found\.?|none|null|n/a"
    r"|\[\]|\{\}|)\s*",
    re.IGNORECASE | re.DOTALL,
)
_ERROR_TEXT = re.compile(
    r"\s*(?:Error\b|Exception\b|[A-Z]\w*(?:Error|Exception):|Traceback \(most recent"
    r"|HTTP(?: status| error)?:? [45]\d\d\b|[45]\d\d [A-Z])"
)
_CLAIMED = re.compile(
    r"\b(?:I(?: have|'ve)?|we(?: have|'ve)?) (?:just |already |also |now |then )?"
    r"(?:searched|looked (?:it |this |that |them )?up|checked|verified|called|queried|ran|executed"
    r"|fetched|retrieved|browsed|consulted|opened|computed|calculated|tested|confirmed)\b"
    r"(?!(?: \w+){0,3} (?:in|from|against) (?:my|your|the (?:request|question|conversation)))"
    r"[^.\n]{0,120}|\b(?:according to|based on|as shown (?:by|in)) the (?:search|query|tool"
    r"|database|lookup|api|test) (?:results?|outputs?|responses?|run)\b[^.\n]{0,120}",
    re.IGNORECASE,
)
# What an agent says it did to the world, or that it is done.
_DONE = (
    r"(?P<verb>(?:re)?sent|e?mailed|(?:re)?booked|cancell?ed|refunded|reserved|ordered"
    r"|(?:re)?scheduled|reset|submitted|transferred|issued|paid|notified|escalated|forwarded"
    r"|deleted|blocked|renewed|extended|upgraded)"
)
_CLAIMED_ACT = re.compile(
    r"\b(?:(?:I|we)(?: have|'ve)? (?:just |already |also |now |then |successfully )*"
    r"|(?P<passive>has|have) (?:now |just |successfully )*been (?:successfully )?)"
    rf"{_DONE}\b[^.\n]{{0,80}}",
    re.IGNORECASE,
)
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_PLAN_ITEM = re.compile(
    r"(?:^\s*|(?<=\s))(?:\d+[.)]|step \d+[:.])\s+(.{3,200}?)(?=\s+(?:\d+[.)]|step \d+[:.])\s|$)"
    r"|^\s*[-*]\s+(.{3,200})$",
    re.MULTILINE | re.IGNORECASE,
)
_TOOL_NAME = r"[a-z]+(?:_[a-z]+)+"
_UNIT_KEYS = ("unit", "units", "uom")
# Levels of a result in which numbers are read with the unit beside them.
DEEPEST_UNIT = 4
_WORD = re.compile(r"[^\W_]+(?:[.@-][^\W_]+)*")


@dataclass(slots=True)
class _Evidence:
    """What the trace shows before an act: requests and instructions, and results of tools."""

    given: list[str] = field(default_factory=list[str])
    results: list[tuple[Act, Span, str]] = field(default_factory=list["tuple[Act, Span, str]"])

    @property
    def texts(self) -> list[str]:
        return [text for _, _, text in self.results]

    @property
    def full(self) -> list[tuple[Act, Span, str]]:
        """The results that hold something and are no error."""
        return [
            entry
            for entry in self.results
            if not is_empty(entry[2]) and not failed_result(entry[1])
        ]


class Claims:
    """The acts of a trace with the evidence before each."""

    def __init__(self, steps: Steps) -> None:
        self.steps, self.trace = steps, steps.trace

    @cached_property
    def chat(self) -> bool:
        """Whether it is a group chat, in which agents report to each other what they saw."""
        return any(MESSAGE_INDEX in act.span.attributes for act in self.steps.acts)

    @cached_property
    def said(self) -> list[str]:
        """What the user said: the query, and the messages of the turns of a conversation."""
        turns = (turn.input for turn in self.trace.turns)
        return [as_text(each) for each in (self.trace.query, *turns)]

    @cached_property
    def given(self) -> list[str]:
        """Requests and instructions: the query, system and user messages."""
        texts = [*self.said]
        for step in self.steps.steps[:200]:
            messages = step.span.input_messages[:4] + step.span.input_messages[-2:]
            texts += [
                message.content[:MAX_TEXT]
                for message in messages
                if message.role in ("system", "developer", "user") and message.content
            ]
        roots = [span for span in self.trace.index.spans[:1] if span.input is not None]
        texts += [as_text(span.input) for span in roots]
        return list(dict.fromkeys(filter(None, texts)))

    @cached_property
    def asked(self) -> str:
        """What the user asked for, in all messages."""
        texts = [*self.said]
        # The last model call of a conversation was shown all of it.
        for step in (*self.steps.steps[:1], *self.steps.steps[-1:]):
            texts += [
                message.content[:MAX_TEXT]
                for message in step.span.input_messages
                if message.role == "user" and message.content
            ]
        return "\n".join(dict.fromkeys(filter(None, texts)))

    @cached_property
    def answer(self) -> Act | None:
        """The act that gives the answer."""
        return next((act for act in reversed(self.steps.acts) if act.answers), None)

    def before(self, act: Act) -> _Evidence:
        """Return the evidence that an act could use; its own tools do not count."""
        found = _Evidence(self.given)
        for earlier in self.steps.acts:
            if earlier is act:
                break
            # A call whose result was not recorded may have returned anything.
            found.results += [
                (earlier, tool, result_of(tool))
                for tool in earlier.tools
                if tool is not act.span
                and (tool.failed or tool.tool_output is not None or tool.documents)
            ]
        if not found.results:
            # Only the model client was instrumented: results are in the messages.
            for step in self.steps.steps:
                if step.span is act.span:
                    found.results += [
                        (act, step.span, message.content or "")
                        for message in step.span.input_messages
                        if message.role == "tool"
                    ]
        return found


def calls_of(claims: Claims) -> Iterator[tuple[Act, Span]]:
    """Yield the first calls of a trace, each with its act."""
    if claims.chat:
        return
    calls = ((act, tool) for act in claims.steps.acts for tool in act.tools)
    for count, call in enumerate(calls):
        if count >= MAX_CALLS:
            return
        yield call


def call_name(tool: Span) -> str:
    """Return the name of the tool that was called."""
    return tool.tool_name or tool.name


def result_of(span: Span) -> str:
    """Return what a call returned, as text."""
    documents = [document.text or "" for document in span.documents]
    value = span.tool_output if span.tool_output is not None else span.output
    return "\n".join([as_text(_with_units(value)), *documents]).strip()


def _with_units(value: Any, depth: int = 0) -> Any:
    """Return data in which the only number beside a `unit` carries it: 1860 lb is not 1860 kg."""
    if depth > DEEPEST_UNIT:
        return value
    if isinstance(value, list):
        return [_with_units(entry, depth + 1) for entry in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    entries = cast("dict[Any, Any]", value)
    unit = next((u for key in _UNIT_KEYS if isinstance(u := entries.get(key), str)), "")
    numbers = [key for key, entry in entries.items() if type(entry) in (int, float)]
    if unit and len(numbers) == 1:
        return {**entries, numbers[0]: f"{entries[numbers[0]]} {unit}"}
    return {key: _with_units(entry, depth + 1) for key, entry in entries.items()}


def as_text(value: Any) -> str:
    """Return a captured value as a reader would see it."""
    if value is None or isinstance(value, str):
        return (value or "")[:MAX_TEXT]
    try:
        return json.dumps(value, ensure_ascii=False, default=str)[:MAX_TEXT]
    except ValueError:
        return plain(value)


def is_empty(text: str) -> bool:
    """Return whether a result says that there is nothing."""
    if len(text) > 400:
        return False
    if _EMPTY_TEXT.fullmatch(text):
        return True
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return _holds_nothing(value)


def _holds_nothing(value: Any) -> bool:
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value)
        lists = [cast("list[Any]", entry) for entry in entries.values() if isinstance(entry, list)]
        counts = [
            entry for key, entry in entries.items() if key in ("count", "total", "total_results")
        ]
        return not entries or (bool(lists) and not any(lists) and not any(counts))
    return value in (None, [], "")


def failed_result(span: Span) -> bool:
    """Return whether a call failed: its span says so, or it returned an error."""
    return span.failed or bool(_returned_error(span))


def _returned_error(span: Span) -> str:
    """Return the error of a call that returned it: as a value, or as text that begins with it."""
    value = span.tool_output
    if isinstance(value, str) and _ERROR_TEXT.match(value):
        return line(value, 200)
    return error_value(value)


# -- the answer ----------------------------------------------------------------------------------


@rule(Category.LANGUAGE_ONLY, confidence=0.6, impact=Impact.HIGH, heard=False)
def ungrounded_values(steps: Steps) -> Iterator[RuleHit]:
    """The answer states a number, a day, an identifier or a name that no tool result contains.

    Found at: the first act that states it.
    """
    claims = Claims(steps)
    act = claims.answer
    if act is None or claims.chat or not act.text or gives_up(act.text):
        return
    evidence = claims.before(act)
    if not evidence.results:
        return
    full = evidence.full
    stated = _unsupported(act.text, evidence)
    numbers = [claim for claim in stated if claim.kind in ("number", "date")]
    names = [claim for claim in stated if claim.kind == "name"]
    identifiers = [text for text in _identifiers(act.text) if not _contained(text, evidence)]
    altered = next((pair for n in numbers[:50] if (pair := _altered(n, act, evidence))), None)
    altered = altered or _respelled(names, act, full)
    if altered is not None:
        claim, tool, result = altered
        yield RuleHit(
            act.span,
            f"states {line(claim.text, 40)}; {call_name(tool)} returned {line(result, 40)}",
            (sentence_at(act.text, claim.start), act.text),
            Category.MISREAD_OUTPUT,
            confidence=0.6 if claim.kind == "name" else 0.85,
            causes=(tool,),
        )
        return
    numbers = [
        n
        for n in numbers
        if not any(n.text in identifier for identifier in identifiers)
        and not _derivable(n, act.text, evidence)
    ]
    values = list(dict.fromkeys([*identifiers, *(claim.text for claim in numbers)]))
    if not full:
        values = list(dict.fromkeys([*values, *(claim.text for claim in names)]))
    if not values:
        return
    first = _first_statement(steps, values[0], act)
    # The last call failed or found nothing: what follows cannot come from it.
    latest = evidence.results[-1][1]
    unmet = not full or not any(tool is latest for _, tool, _ in full)
    nothing = f" ({_nothing_summary(evidence)})" if unmet else ""
    sure = 0.85 if unmet else 0.8 if identifiers else 0.55
    stated_text = ", ".join(line(value, 40) for value in values[:3])
    where = {1: "it occurs in no tool result", 2: "neither value occurs in any tool result"}.get(
        len(values), "none of these values occurs in any tool result"
    )
    yield RuleHit(
        first.span,
        f"states {stated_text}: {where}{nothing}",
        (sentence_at(first.text, max(0, first.text.find(values[0]))), first.text),
        confidence=sure,
        impact=Impact.HIGH if sure > 0.55 or len(values) > 1 else Impact.MEDIUM,
        causes=_unmet(evidence) if unmet else (),
    )


@rule(Category.LANGUAGE_ONLY, confidence=0.6, impact=Impact.HIGH, heard=False)
def answer_from_nothing(steps: Steps) -> Iterator[RuleHit]:
    """Every call failed or returned nothing; the answer is definite.

    Found at: the answer.
    """
    claims = Claims(steps)
    act = claims.answer
    if act is None or claims.chat or len(act.text) < 12 or gives_up(act.text):
        return
    evidence = claims.before(act)
    if not evidence.results or evidence.full or "?" in act.text[-2:]:
        return
    errors = [tool for _, tool, _ in evidence.results if failed_result(tool)]
    yield RuleHit(
        act.span,
        f"gives a definite answer without any result: {_nothing_summary(evidence)}",
        (sentence_at(act.text, 0), act.text),
        Category.TOOL_RELATED if errors else Category.LANGUAGE_ONLY,
        confidence=0.75,
        causes=tuple(tool for _, tool, _ in evidence.results),
    )


@rule(Category.MISREAD_OUTPUT, confidence=0.55, impact=Impact.HIGH, heard=False)
def ignored_error(steps: Steps) -> Iterator[RuleHit]:
    """A call returned an error as a value; the agent goes on as if it had succeeded.

    Found at: the act after it.
    """
    claims = Claims(steps)
    if claims.chat:
        return
    acts, answer = steps.acts, claims.answer
    if answer is None or gives_up(answer.text) or _mentions_failure(answer.text):
        return
    worked: set[str] = set()
    hits: list[RuleHit] = []
    # From the end, so that a later success of the same tool is known.
    for act, after in reversed(list(pairwise(acts))):
        for tool in after.tools:
            if not failed_result(tool):
                worked.add(call_name(tool))
        for tool in act.tools:
            error = "" if tool.failed else _returned_error(tool)
            name = call_name(tool)
            wrote = "\n".join([after.text, *(call.arguments for call in after.calls)])
            if not error or name in worked or (after is not answer and _mentions_failure(wrote)):
                continue
            if any(call.name == name for call in after.calls):
                continue  # tries again
            hits.append(
                RuleHit(
                    after.span,
                    f"goes on after {name} returned an error: {line(error, 100)}",
                    (after.text, *(call.arguments for call in after.calls)),
                    confidence=0.6,
                    causes=(tool,),
                )
            )
    yield from reversed(hits)


@rule(Category.TOOL_RELATED, confidence=0.6, impact=Impact.HIGH, heard=False)
def claimed_call(steps: Steps) -> Iterator[RuleHit]:
    """The agent says that it searched, checked or ran something; no call was made before.

    Found at: the act that says so.
    """
    claims = Claims(steps)
    if claims.chat or not steps.trace.shows("tool_calls"):
        return
    for act in steps.acts:
        if act.tools or act.calls or any(m.role == "tool" for m in act.span.input_messages):
            return
        found = _CLAIMED.search(act.text[:MAX_TEXT])
        if found is not None and not gives_up(act.text):
            yield RuleHit(
                act.span,
                f"says {line(found.group(), 100)!r}; no call was made before",
                (sentence_at(act.text, found.start()),),
                confidence=0.7,
            )
            return


@rule(Category.TOOL_RELATED, confidence=0.65, impact=Impact.HIGH, heard=False)
def claimed_act(steps: Steps) -> Iterator[RuleHit]:
    """The agent says that it sent, booked or cancelled something; it only ever looked things up.

    Found at: the act that says so.
    """
    claims = Claims(steps)
    if claims.chat or not steps.trace.shows("tool_calls"):
        return
    results: list[str] = []
    called = False
    for act in steps.acts:
        found = _CLAIMED_ACT.search(act.text[:MAX_TEXT])
        if found is not None and called and not act.calls:
            seen = stems("\n".join(results))
            verb = stem(found["verb"])
            # That it is done may be what a result says, or the question.
            wanted = not found["passive"] or (
                verb in stems(claims.asked) and "?" not in claims.asked
            )
            if wanted and verb not in seen:
                yield RuleHit(
                    act.span,
                    f"says {line(found.group(), 100)!r}; no call did that",
                    (sentence_at(act.text, found.start()),),
                )
                return
        if any(not reads(call.name) for call in act.calls):
            return
        called = called or bool(act.calls)
        results += act.results


@rule(Category.LANGUAGE_ONLY, confidence=0.8, impact=Impact.HIGH, heard=False)
def wrong_equation(steps: Steps) -> Iterator[RuleHit]:
    """The agent writes a calculation that does not hold: 17 + 3 = 21.

    Found at: the act that writes it.
    """
    if Claims(steps).chat:
        return
    for act in steps.acts:
        if act.span in act.tools:
            continue  # plain code: what a tool returned
        text = _FENCED.sub(" ", act.text[:MAX_TEXT])
        for left, right in equations(text):
            if not holds(left, right):
                yield RuleHit(
                    act.span,
                    f"writes {line(left, 60)} = {right}, which does not hold",
                    (sentence_at(act.text, max(0, act.text.find(left))), act.text),
                )
                return


@rule(Category.GOAL_DEVIATION, confidence=0.5, heard=False)
def plan_not_executed(steps: Steps) -> Iterator[RuleHit]:
    """A plan names tools that are offered; the agent answers without calling one of them.

    Found at: the answer.
    """
    claims = Claims(steps)
    answer = claims.answer
    if answer is None or claims.chat or gives_up(answer.text):
        return
    used = {call.name for act in steps.acts for call in act.calls}
    offered = offered_tools(steps)
    known = used | offered.keys()
    for act in steps.acts:
        if act is answer:
            break
        planned = ["".join(found) for found in _PLAN_ITEM.findall(act.text[:4000])]
        if len(planned) < 2:
            continue
        for text in planned:
            words = set(re.findall(r"[A-Za-z_]\w+", text))
            named = words & known
            if not offered:
                # A transcript need not list the tools; other words have no underscores.
                named |= {word for word in words if re.fullmatch(_TOOL_NAME, word)}
            if named and not named & used:
                yield RuleHit(
                    answer.span,
                    f"answers although a step of its plan was not executed: {line(text, 100)}",
                    (sentence_at(answer.text, 0), answer.text),
                    causes=(act.span,),
                )
                return


# -- calls ---------------------------------------------------------------------------------------


@rule(Category.NON_COMPLIANCE, confidence=0.85, impact=Impact.HIGH, heard=False)
def forbidden_call(steps: Steps) -> Iterator[RuleHit]:
    """The instructions forbid a tool by name; it is called.

    Found at: the call.
    """
    claims = Claims(steps)
    rules = "\n".join(claims.given)
    lowered = rules.lower()
    seen: set[str] = set()
    for act in steps.acts:
        for call in act.calls:
            if call.name in seen:
                continue
            seen.add(call.name)  # looked up once: a long trace calls the same few tools again
            if call.name.lower() not in lowered:
                continue
            pattern = _FORBID.format(name=re.escape(call.name))
            found = re.search(pattern, rules, re.IGNORECASE)
            if found is None:
                continue
            span = next((t for t in act.tools if t.tool_name == call.name), act.span)
            yield RuleHit(
                span,
                f"calls {call.name}, which the instructions forbid: {line(found[0], 120)!r}",
                (call.arguments, call.name),
            )


@rule(Category.NON_COMPLIANCE, confidence=0.6, impact=Impact.HIGH, heard=False)
def required_call_missing(steps: Steps) -> Iterator[RuleHit]:
    """The instructions require a tool by name, always or before another act; the agent acts or
    answers without calling it.

    Found at: the act that it should precede, or else the answer.
    """
    claims = Claims(steps)
    answer = claims.answer
    if answer is None or claims.chat or not steps.trace.shows("tool_calls"):
        return
    used = {call.name for act in steps.acts for call in act.calls}
    offered = offered_tools(steps)
    for text in claims.given:
        for found in _REQUIRES.finditer(text):
            name = found["name"]
            if (early := _called_before(steps, name, text, found)) is not None:
                yield RuleHit(
                    early,
                    f"calls {call_name(early)} before {name}, which the instructions "
                    f"require first: {line(found[0], 120)!r}",
                    (plain(early.tool_input), call_name(early)),
                    confidence=0.75,
                )
                return
            if name in used or (name not in offered and "_" not in name and "`" not in found[0]):
                continue
            if gives_up(answer.text):
                continue
            yield RuleHit(
                answer.span,
                f"answers without calling {name}, which the instructions require: "
                f"{line(found[0], 120)!r}",
                (sentence_at(answer.text, 0), answer.text),
            )
            return


_BEFORE = re.compile(
    r"\bbefore (?:you )?(?:any |a |an |the |every |each |call(?:ing)? |us(?:e|ing) )*"
    r"[`'\"]?(?P<act>\w{4,40})",
    re.IGNORECASE,
)


def _called_before(steps: Steps, name: str, text: str, found: re.Match[str]) -> Span | None:
    """Return the call before which the instructions require another one that was not made."""
    begin = max(text.rfind(end, 0, found.start()) for end in (".", "\n", ";")) + 1
    ends = [at for end in (".", "\n", ";") if (at := text.find(end, found.end())) >= 0]
    act = _BEFORE.search(text[begin : min(ends, default=len(text))])
    if act is None:
        return None
    stem = re.sub(r"(?:ing|e|s)$", "", act["act"].lower())
    for each in steps.acts:
        for tool in each.tools:
            called = call_name(tool).lower()
            if called == name.lower():
                return None
            if stem in called:
                return tool
    return None


@rule(Category.TOOL_RELATED, confidence=0.5, impact=Impact.MEDIUM, heard=False)
def argument_from_nowhere(steps: Steps) -> Iterator[RuleHit]:
    """A call is given an identifier, a number or a name that neither the request nor any earlier
    result contains.

    Found at: the call.
    """
    claims = Claims(steps)
    if claims.chat:
        return
    known = [_spelled(claims.given), *claims.given]
    for act in [act for act in steps.acts if act.tools][:MAX_CALLS]:
        for tool in act.tools:
            if (hit := _strange_argument(tool, known)) is not None:
                value, near = hit
                name = call_name(tool)
                where = f"; the nearest is {line(near, 40)}" if near else ""
                yield RuleHit(
                    tool,
                    f"passes {line(value, 40)} to {name}: it is neither in the request nor in an "
                    f"earlier result{where}",
                    (value, plain(tool.tool_input)),
                    confidence=0.75 if near else 0.4,
                    impact=Impact.HIGH if near else Impact.MEDIUM,
                )
                return
        known += [result_of(tool) for tool in act.tools]
        known += [call.arguments for call in act.calls]


def _strange_argument(tool: Span, known: Sequence[str]) -> tuple[str, str] | None:
    """Return a value that nothing before the call contains, and the nearest known one."""
    text = "\n".join(known)
    if not text.strip():
        return None
    folded = text.casefold()
    squeezed = re.sub(r"[\s,._'’-]", "", folded)
    numbers = None
    for _, value in entries_of(tool.tool_input):
        for token in _value_tokens(str(value)):
            bare = re.sub(r"[\s,._'’-]", "", token.casefold())
            if bare in squeezed:
                continue
            if token.replace(".", "", 1).isdigit():
                figure = float(token)
                if figure <= SMALL or 1900 <= figure <= 2100 or figure % 100 == 0:
                    continue
                if numbers is None:
                    numbers = [q.raw for q in quantities(text[:MAX_TEXT])][: MAX_NUMBERS * 2]
                # A whole number is computed exactly; a long one with a slip is not close.
                if _computed(figure, numbers, min(0.5, abs(figure) * 1e-6)):
                    continue
            return token, _nearest(token, text)
    return None


def _value_tokens(value: str) -> Iterator[str]:
    """Yield the identifiers, addresses and longer numbers of an argument."""
    if len(value) > 400:
        return
    yield from _identifiers(value)
    for found in re.finditer(r"(?<![\w.-])\d{3,12}(?:\.\d+)?(?![\w-])", value):
        yield found.group()


def _nearest(token: str, text: str) -> str:
    """Return a token of the text that differs from this one by a slip of the pen, or nothing."""
    best, ratio = "", 0.0
    for other in set(_WORD.findall(text[:MAX_TEXT])):
        if (
            abs(len(other) - len(token)) > 1
            or other == token
            or not any(c.isdigit() for c in other)
        ):
            continue
        same = SequenceMatcher(None, token.casefold(), other.casefold()).ratio()
        swapped = sorted(token) == sorted(other)
        if swapped or (same > ratio and same >= 0.75 and len(token) >= 4):
            best, ratio = other, 1.0 if swapped else same
    return best


# -- helpers -------------------------------------------------------------------------------------

_FORBID = (
    r"(?:do not|don't|never|must not|mustn't|may not|cannot|should not|avoid|forbidden to|"
    r"not allowed to|without)\s+(?:ever\s+)?(?:use|using|call|calling|invoke|invoking|run|running|"
    r"touch|execute|executing)?\s*(?:the\s+|any\s+|tool\s+|function\s+)*[`'\"]?{name}\b[^.\n]{{0,60}}"
    r"|[`'\"]?{name}[`'\"]?\s+(?:is|are)\s+(?:forbidden|prohibited|not allowed|off.limits|disabled)"
    r"[^.\n]{{0,60}}"
)
_REQUIRES = re.compile(
    r"(?:always|must|have to|required to|be sure to|make sure to)\s+(?:first\s+)?"
    r"(?:use|call|invoke|run|query|consult|check with)\s+(?:the\s+)?(?:tool\s+)?[`'\"]?"
    r"(?P<name>[A-Za-z]\w{2,40})\b[`'\"]?[^.\n]{0,60}",
    re.IGNORECASE,
)
_FAILURE_WORDS = re.compile(
    r"\b(?:error|fail(?:ed|ure|s)?|unavailable|could ?n[o'’]t|unable|cannot|can't|not (?:available|"
    r"authori[sz]ed|possible|found)|denied|timed? ?out|problem|issue|retry|try again|sorry)\b",
    re.IGNORECASE,
)


def _mentions_failure(text: str) -> bool:
    return bool(_FAILURE_WORDS.search(text[:2000]))


_OFFERED = re.compile(r'"name"\s*:\s*"(\w+)"(?:\s*,\s*"description"\s*:\s*"((?:[^"\\]|\\.)*)")?')


def offered_tools(steps: Steps) -> dict[str, str]:
    """Return the tools that the model was offered, with their descriptions if they are known."""
    names: dict[str, str] = {}
    for step in steps.steps[:20]:
        names |= dict.fromkeys(offered_in(step.rules), "")
        for key, value in step.span.attributes.items():
            # OpenInference and GenAI conventions record the tools a model was offered.
            if "tool" in key and isinstance(value, str) and '"name"' in value:
                names.update(_OFFERED.findall(value[:MAX_TEXT]))
    return names


def _unsupported(answer: str, evidence: _Evidence) -> list[CheckedClaim]:
    texts = [text for text in evidence.texts if text.strip()] or ["(nothing)"]
    question = "\n".join(evidence.given)[:MAX_TEXT]
    judged = ground(answer[:MAX_TEXT], texts, question=question)
    return [c for c in judged.unsupported if c.kind != "sentence" and not _trivial(c)]


def _trivial(claim: CheckedClaim) -> bool:
    """Return whether a number may count the parts of the answer itself."""
    if claim.kind != "number":
        return False
    found = next(quantities(claim.text), None)
    return found is None or (found.raw <= SMALL and found.raw == int(found.raw))


def _identifiers(text: str) -> list[str]:
    return list(dict.fromkeys(found.group() for found in _IDENTIFIER.finditer(text)))


def _contained(text: str, evidence: _Evidence) -> bool:
    wanted = text.casefold()
    return any(wanted in known.casefold() for known in (*evidence.given, *evidence.texts))


def _altered(
    claim: CheckedClaim, act: Act, evidence: _Evidence
) -> tuple[CheckedClaim, Span, str] | None:
    """Return the computed result that a number of the answer almost is."""
    wanted = next(quantities(claim.text), None)
    if claim.kind != "number" or wanted is None:
        return None
    for _, tool, text in reversed(evidence.results[-MAX_CALLS:]):
        figures = list(quantities(text)) if len(text) <= 60 else []
        if len(figures) != 1:
            continue
        exact = figures[0].raw
        near = abs(exact - wanted.raw) <= ALTERED * abs(exact)
        digits = sorted(str(exact)) == sorted(str(wanted.raw))
        stated = any(abs(q.raw - exact) <= max(q.step / 2, 1e-9) for q in quantities(act.text))
        if exact and (near or digits) and not stated:
            return claim, tool, text
    return None


def _respelled(
    names: Sequence[CheckedClaim], act: Act, full: Sequence[tuple[Act, Span, str]]
) -> tuple[CheckedClaim, Span, str] | None:
    """Return the name of a result that a name of the answer almost is."""
    for claim in names[:20]:
        parts = claim.text.split()
        for _, tool, text in reversed(full[-MAX_CALLS:]) if len(parts) > 1 else ():
            for found in _FULL_NAME.finditer(text[:4000]):
                known = found.group()
                pairs = list(zip(parts, known.split(), strict=False))
                if len(parts) != len(known.split()) or known in act.text:
                    continue
                if all(_alike_word(one, other) for one, other in pairs):
                    return claim, tool, known
    return None


def _alike_word(one: str, other: str) -> bool:
    same = SequenceMatcher(None, one.casefold(), other.casefold()).ratio()
    return one[:1] == other[:1] and same >= 0.6


def _derivable(claim: CheckedClaim, answer: str, evidence: _Evidence) -> bool:
    """Return whether arithmetic on the evidence could give a number of the answer."""
    wanted = next(quantities(claim.text), None)
    if claim.kind != "number" or wanted is None:
        return False
    if any(abs(total - wanted.raw) <= wanted.step for total in _totals(evidence)) or any(
        holds(left, right) and float(right.replace(",", "")) == wanted.raw
        for left, right in equations(answer)
    ):
        return True
    given = evidence.given[-3:]
    numbers = _numbers((_spelled(given), *given, *evidence.texts, answer[: claim.start]))
    if len(numbers) > MAX_NUMBERS:
        return True
    if _computed(wanted.raw, numbers, max(wanted.step, abs(wanted.raw) * 1e-3)):
        return True
    # 310.4 million of a field that counts millions: `musd: 310.4`.
    figure = re.search(r"\d[\d,]*(?:\.\d+)?", claim.text)
    bare = next(quantities(figure[0]), None) if figure is not None else None
    if bare is None or bare.raw == wanted.raw:
        return False
    return any(abs(number - bare.raw) <= bare.step / 2 for number in numbers) or _computed(
        bare.raw, numbers, max(bare.step, abs(bare.raw) * 1e-3)
    )


def _totals(evidence: _Evidence) -> Iterator[float]:
    """Yield the sum and the mean of all numbers that results have under one key."""
    columns: dict[str, list[float]] = {}
    for _, tool, _ in evidence.results:
        for key, value in entries_of(tool.tool_output):
            if type(value) in (int, float):
                columns.setdefault(key, []).append(value)
    for column in columns.values():
        yield from (sum(column), sum(column) / len(column))


def _spelled(texts: Iterable[str]) -> str:
    """Return the numbers that texts have in words, as figures."""
    words = re.findall(r"[a-z]+", "\n".join(texts)[:MAX_TEXT].lower())
    return " ".join(f"{NUMBER_WORDS[word]:g}" for word in words if word in NUMBER_WORDS)


def _numbers(texts: Iterable[str]) -> list[float]:
    found: dict[float, None] = {}
    for text in texts:
        for quantity in quantities(text[:MAX_TEXT]):
            found[quantity.raw] = None
            if len(found) > MAX_NUMBERS:
                return list(found)
    return list(found)


def _computed(wanted: float, numbers: Sequence[float], slack: float) -> bool:
    """Return whether a sum, difference, product or ratio of known numbers is the wanted one."""

    def close(value: float) -> bool:
        return abs(value - wanted) <= slack

    total = sum(numbers)
    if numbers and (close(total) or close(total / len(numbers)) or close(float(len(numbers)))):
        return True
    for a, b in combinations(numbers, 2):
        if close(a + b) or close(abs(a - b)) or close(a * b) or close(a * b / 100):
            return True
        if (b and (close(a / b) or close(100 * a / b) or close(abs(100 * (a - b) / b)))) or (
            a and (close(b / a) or close(100 * b / a) or close(abs(100 * (b - a) / a)))
        ):
            return True
        if close(a * (1 + b / 100)) or close(a * (1 - b / 100)):
            return True
        if close(b * (1 + a / 100)) or close(b * (1 - a / 100)):
            return True
    return False


def _first_statement(steps: Steps, value: str, answer: Act) -> Act:
    """Return the first act that states a value."""
    for act in steps.acts:
        if value in act.text and not any(value in result for result in act.results):
            return act
    return answer


def _unmet(evidence: _Evidence) -> tuple[Span, ...]:
    """Return the calls that failed or found nothing."""
    return tuple(
        tool for _, tool, text in evidence.results if is_empty(text) or failed_result(tool)
    )


def _nothing_summary(evidence: _Evidence) -> str:
    """Describe results that hold nothing: `8 × search_invoices → []`."""
    counts: dict[tuple[str, str], int] = {}
    for _, tool, text in evidence.results:
        if not (is_empty(text) or failed_result(tool)):
            continue
        error = tool.error_message or _returned_error(tool)
        shown = line(error, 60) if failed_result(tool) else (text or "nothing")
        key = (call_name(tool), shown)
        counts[key] = counts.get(key, 0) + 1
    parts = [
        f"{f'{n} × ' if n > 1 else ''}{name} → {line(shown, 60)}"
        for (name, shown), n in list(counts.items())[:3]
    ]
    return ", ".join(parts)


_FULL_NAME = re.compile(r"\b[A-Z][\w'’-]+(?: [A-Z][\w'’-]+)+")
_ENDS = ("\n", ". ")


def sentence_at(text: str, place: int) -> str:
    """Return the whole sentence around a place, or what a quote can hold of it."""
    begin = max(text.rfind(end, 0, place) + len(end) if end in text[:place] else 0 for end in _ENDS)
    ends = [end for end in (text.find("\n", place), text.find(". ", place)) if end >= 0]
    end = min(ends) + 1 if ends else len(text)
    return text[begin:end].strip()
