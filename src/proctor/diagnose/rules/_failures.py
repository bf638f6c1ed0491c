"""The record of a rule, and rules on failures: malformed calls, refusing services, empty searches.

A rule is a small detector of one kind of error that quotes its evidence. It reads steps, never a
wire format. Its confidence is its measured precision on TRAIL's GAIA traces (or 0.5 where those
show too few cases), so that findings can be ranked.

The span of a finding depends on where the error shows: a malformed tool call in the model call that
wrote it; an error of executed code in the next model call, which is the first to see it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from proctor.diagnose._steps import http_status, plain
from proctor.diagnose.finding import Category, Impact
from proctor.trace import SpanKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proctor.diagnose._steps import AgentStep, Steps
    from proctor.trace import Span


class RuleHit(NamedTuple):
    """One match of a rule; `passages` are candidate quotes for the evidence."""

    span: Span
    description: str
    passages: tuple[str, ...] = ()
    category: Category | None = None
    """Category of this match, if the rule distinguishes several; otherwise the rule's own."""
    confidence: float | None = None
    impact: Impact | None = None
    causes: tuple[Span, ...] = ()
    """Earlier spans that led to it."""


class Rule(NamedTuple):
    """A detector that needs no training."""

    name: str
    category: Category
    impact: Impact
    confidence: float
    heard: bool
    """Whether the learned detector uses it; false where TRAIL has too few cases to learn from."""
    find: Callable[[Steps], Iterator[RuleHit]]
    """Returns every match of the rule, in order of time."""


def rule(
    category: Category, *, confidence: float, impact: Impact = Impact.MEDIUM, heard: bool = True
) -> Callable[[Callable[[Steps], Iterator[RuleHit]]], Rule]:
    """Make a rule of a function that finds its matches; its name is the rule's."""
    return lambda find: Rule(find.__name__, category, impact, confidence, heard, find)


# Messages of interpreters and frameworks about a malformed call.
_MALFORMED = re.compile(
    r"unexpected keyword argument|required (?:positional |keyword-only )?argument"
    r"|multiple values for|takes \d+ positional|SyntaxError|IndentationError"
    r"|JSONDecodeError|[Ii]nvalid JSON|[Ee]rror in code parsing|Code parsing failed"
)

_CODE = re.compile(r"[Cc]ode (?:execution|parsing)|Traceback \(most recent|Error in code")
_EMPTY = re.compile(r"\b[Nn]o (?:search )?results (?:were )?found|\b0 results\b")

_MISSING = re.compile(r"FileNotFoundError|ModuleNotFoundError|No such file")

# Maximum characters of JSON that can be an error with its traceback; longer ones are content.
MAX_ERROR = 5000

# Characters of a tool's output searched for a refusal; later ones belong to the page.
HEAD = 600


# HTTP statuses that are a failure although the span does not say so; a 404 may be an answer.
SERVER_ERROR = 500

# Calls with the same arguments from which on they are no longer a retry.
IDENTICAL_CALLS = 5


class FaultPattern(NamedTuple):
    """Pattern of one kind of system failure, in an exception or at the start of tool output."""

    category: Category
    pattern: re.Pattern[str]
    transient: bool


class SpanOutcome(NamedTuple):
    """Outcome of a span; `failed` when the span says so, otherwise the text may be any content."""

    span: Span
    text: str
    failed: bool


# Strict patterns: text that is not marked as an error may be a page that talks about errors.
FAULTS = (
    FaultPattern(
        Category.RATE_LIMIT,
        re.compile(
            r"RateLimitError|rate_limit|\b(?:Error|HTTP|status(?: code)?:?) 429|Too Many Req"
        ),
        transient=True,
    ),
    FaultPattern(
        Category.AUTHENTICATION,
        re.compile(
            r"\b(?:Error|HTTP|status(?: code)?:?) 40[13]\b|401 Unauthorized|403 Forbidden"
            r"|AuthenticationError|[Ii]nvalid API key"
        ),
        transient=False,
    ),
    FaultPattern(
        Category.NOT_FOUND,
        re.compile(r"\b(?:Error|HTTP|status(?: code)?:?) 404\b|404 Not Found"),
        transient=False,
    ),
    FaultPattern(
        Category.SERVICE,
        re.compile(
            r"\b(?:Error|HTTP|status(?: code)?:?) 5\d\d\b|InternalServerError|ServiceUnavailable"
            r"|50[0234] (?:Internal|Bad|Service|Gateway)"
        ),
        transient=True,
    ),
    FaultPattern(
        Category.TIMEOUT,
        re.compile(r"TimeoutError|ReadTimeout|ConnectTimeout|\btimed out\b"),
        transient=True,
    ),
    FaultPattern(
        Category.EXHAUSTION,
        re.compile(r"MemoryError|No space left|context_length_exceeded|maximum context length"),
        transient=False,
    ),
)


_STATUS = r"(?:error|http|status|code)\W{0,4}(?:code)?\W{0,4}"

# The same patterns for text that the span itself reports as an error, where a looser match is
# safe.
ERRORS: dict[Category, tuple[str, ...]] = {
    Category.RATE_LIMIT: (
        rf"{_STATUS}429\b",
        r"\b429\b|rate.?limit|too many requests|quota|throttl",
    ),
    Category.AUTHENTICATION: (
        rf"{_STATUS}40[13]\b",
        r"\b40[13]\b|unauthori[sz]ed|unauthenticated|forbidden|access.?denied",
        r"authentication|api.?key",
    ),
    Category.TIMEOUT: (r"timed?[ -]?out|deadline.?exceeded|took too long",),
    Category.SERVICE: (
        rf"{_STATUS}5\d\d\b",
        r"\b5\d\d Server|\b50[0-4]\b|internal server error|unavailable|bad gateway|overloaded",
        r"connection.?(?:error|refused|reset|aborted|closed)|\bECONN|name resolution|getaddrinfo",
    ),
    Category.EXHAUSTION: (
        r"out of memory|MemoryError|disk.{0,9} full|context.?(?:length|window)",
        r"recursion.?limit|usage.?limit",
        r"max(?:imum)?[ _]?(?:number of )?(?:turns|steps|iterations|tokens)|too many tokens",
        r"(?:prompt|input|message)[^.\n]{0,20}too long",
    ),
    Category.ENVIRONMENT: (
        r"(?:File|Module)NotFound|no such file|permission ?(?:denied|error)|command not found",
        r"not installed|environment variable|ImportError|no module named",
    ),
    Category.FORMATTING: (
        r"\binvalid.?(?:action|argument|choice|input|parameter|value)|\bis not one of\b",
        r"\bvalidation.?error",
    ),
    Category.NOT_FOUND: (
        rf"{_STATUS}404\b",
        r"\b404\b|not.?found|does(?: not|n't) exist|no such",
        r"\bunknown (?!error|reason|exception|argument|option)\w",
    ),
}

_ERRORS = {kind: re.compile("|".join(texts), re.IGNORECASE) for kind, texts in ERRORS.items()}

# Failures in log lines, which may as well count or quote things: a status needs a word for it.
_LOGGED = re.compile(
    rf"{_STATUS}(?:40[134]|429|5\d\d)\b|^\W*(?:40[134]|429|50[0-4])\W*$"
    r"|\b(?:40[134]|429|50[0-4])\W{1,3}(?:rate.?limit|too many|unauthori[sz]ed|forbidden"
    r"|(?:\w+ )?not.?found|internal|bad gateway|service|gateway|server|error)"
    r"|rate.?limit(?:ed|.?error| exceeded| reached)|too many requests"
    r"|^\W*\w*timeout\b|deadline exceeded|connection (?:refused|reset|aborted)",
    re.IGNORECASE,
)


@rule(Category.FORMATTING, confidence=0.66)
def malformed_call(steps: Steps) -> Iterator[RuleHit]:
    """A tool call whose arguments do not fit the tool.

    Found at: the model call that wrote it.
    """
    for step in steps.steps:
        if step.tools and not _CODE.search(step.failure) and _MALFORMED.search(step.failure):
            tool = next((t for t in step.tools if t.failed), step.tools[-1])
            yield RuleHit(
                step.span,
                f"The call of {tool.tool_name} does not fit the tool: {_line(step.failure)}",
                _written_call(step, tool),
            )


@rule(Category.FORMATTING, confidence=0.45)
def broken_code(steps: Steps) -> Iterator[RuleHit]:
    """Code the agent wrote fails to parse or run.

    Found at: the model call that first sees the error; else the one that wrote the code.
    """
    for step in steps.steps:
        if not _CODE.search(step.failure[:HEAD]):
            continue
        shown = step.following or step
        lines = [line for line in step.observation.splitlines() if _CODE.search(line)]
        yield RuleHit(shown.span, f"The code fails: {_line(step.failure)}", (*lines, step.failure))


@rule(Category.SERVICE, confidence=0.7)
def system_fault(steps: Steps) -> Iterator[RuleHit]:
    """A service or the environment refuses: by exception, or at the head of tool output.

    Found at: the first tool span that shows it, else the model call; not after a good retry.
    """
    seen, successes = _FailureCounts(), _Successes(steps)
    for step, outcome in _outcomes(steps):
        fault = _fault(outcome.text)
        # A transient fault after which the agent goes on is not an error of the run.
        if fault is None or (fault.transient and successes.recovered(step, outcome.span)):
            continue
        found = fault.pattern.search(outcome.text)
        start = found.start() if found else 0
        seen.add(outcome, fault.category, _around(outcome.text, start))
    yield from seen.hits()


@rule(Category.SERVICE, confidence=0.5, heard=False)
def failed_call(steps: Steps) -> Iterator[RuleHit]:
    """A call, a handoff, an agent or any other span ends in an error that no other rule covers and
    nothing recovers from.

    Found at: the first span that failed this way; of nested failures, the innermost.
    """
    seen, successes = _FailureCounts(), _Successes(steps)
    for step, outcome in _outcomes(steps):
        if not outcome.failed or _fault(outcome.text) is not None:
            continue
        # Most rules look at model steps only; they cover these errors there.
        others = (_MALFORMED, _CODE, _EMPTY, _MISSING) if step is not None else ()
        if any(pattern.search(outcome.text) for pattern in others):
            continue
        if successes.recovered(step, outcome.span, any_tool=True):
            continue
        seen.add(outcome, _kind(outcome), outcome.text)
    for span in _crashed(steps):
        outcome = _outcome(span)
        seen.add(outcome, _kind(outcome), outcome.text)
    yield from seen.hits()


class _FailureCounts:
    """Failures by tool and kind: the first occurrence and the count."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, Category], tuple[SpanOutcome, str]] = {}
        self._times: Counter[tuple[str, Category]] = Counter()

    def add(self, outcome: SpanOutcome, kind: Category, line: str) -> None:
        key = (outcome.span.tool_name or outcome.span.name, kind)
        # A failure that repeats is one finding, at its first occurrence, with a count.
        self._first.setdefault(key, (outcome, line))
        self._times[key] += 1

    def hits(self) -> Iterator[RuleHit]:
        for key, (outcome, line) in self._first.items():
            often = f", {self._times[key]} times" if self._times[key] > 1 else ""
            passages = (line, outcome.span.error_message or "", outcome.text)
            span = outcome.span
            if span.kind == SpanKind.HANDOFF:
                what = f"The handoff to {span.handoff_to or span.name}"
            elif span.kind == SpanKind.AGENT:
                what = f"The agent {span.agent_name or span.name}"
            elif span.kind == SpanKind.LLM:
                what = "The model call"
            else:
                what = f"The call of {span.tool_name}" if span.tool_name else f"{span.name!r}"
            yield RuleHit(span, f"{what} fails{often}: {_line(line)}", passages, key[1])


@rule(Category.POOR_RETRIEVAL, confidence=0.35)
def empty_search(steps: Steps) -> Iterator[RuleHit]:
    """A search that finds nothing, and after which the agent neither searches differently nor says
    so. A search that finds nothing is information, not yet an error.

    Found at: the model call that requested it.
    """
    for step in steps.steps:
        if not _EMPTY.search(step.failure) or step.following is None:
            continue
        wanted = {(call.name, call.arguments) for call in step.calls}
        later = step.following
        again = [call for call in later.calls if not call.answers]
        if again and not all((call.name, call.arguments) in wanted for call in again):
            continue
        if not later.gives_up:
            arguments = tuple(call.arguments for call in step.calls)
            yield RuleHit(step.span, f"The search finds nothing: {_line(step.failure)}", arguments)


@rule(Category.ENVIRONMENT, confidence=0.2, impact=Impact.HIGH)
def missing_resource(steps: Steps) -> Iterator[RuleHit]:
    """A file or package the step relies on is not there.

    Found at: the first model call whose step fails for it.
    """
    for step in steps.steps:
        if _MISSING.search(step.failure):
            arguments = tuple(call.arguments for call in step.calls)
            yield RuleHit(step.span, f"Not there: {_line(step.failure)}", arguments)
            return


def _written_call(step: AgentStep, tool: Span) -> tuple[str, ...]:
    """Return passages of the call as the model wrote it."""
    name = tool.tool_name or ""
    # Of several calls of one tool, only the tool's input shows which one failed.
    one = sum(other.tool_name == tool.tool_name for other in step.tools) == 1
    wrote = [call.arguments for call in step.calls if call.name == name] if one else []
    return (*wrote, plain(tool.tool_input) if tool.tool_input else "", name)


def _outcomes(steps: Steps) -> Iterator[tuple[AgentStep | None, SpanOutcome]]:
    """Return where a system failure can show: span errors, and the start of tool output."""
    for step in steps.steps:
        for span in (step.span, *step.tools):
            if span.failed or span is not step.span:
                yield step, _outcome(span)
        # Once per failure: a failed span shows the failure of its step already.
        shown = any(span.failed for span in (step.span, *step.tools))
        if step.failure and not shown:
            yield step, SpanOutcome(step.span, step.failure[:HEAD], failed=False)
    for span in steps.strays:
        yield None, _outcome(span)


def _outcome(span: Span) -> SpanOutcome:
    if span.failed:
        parts = dict.fromkeys(part for part in (span.error_type, span.error_message) if part)
        text = ": ".join(parts)
        return SpanOutcome(span, text or _status_text(span) or span.status.value, failed=True)
    if http_status(span) >= SERVER_ERROR:
        return SpanOutcome(span, _status_text(span), failed=True)
    error = error_value(span.tool_output)
    if error:
        return SpanOutcome(span, error[:HEAD], failed=True)
    return SpanOutcome(span, plain(span.tool_output)[:HEAD], failed=False)


def _status_text(span: Span) -> str:
    status = http_status(span)
    return f"HTTP {status}" if status >= SERVER_ERROR else ""


_STATUS_KEYS = ("status", "status_code", "statusCode", "http_status", "code")


def error_value(output: Any) -> str:
    """Return the error of a tool that returns it as a value, as MCP and most HTTP tools do."""
    if isinstance(output, str) and output.startswith("{") and len(output) <= MAX_ERROR:
        with contextlib.suppress(ValueError, RecursionError):
            output = json.loads(output)
    if not isinstance(output, Mapping):
        return ""
    values = cast("Mapping[str, Any]", output)
    error = values.get("error") or values.get("isError") or values.get("status") == "error"
    refused = values.get("ok") is False or values.get("success") is False
    status = any(_is_error_status(values.get(key)) for key in _STATUS_KEYS)
    if not error and not refused and not status:
        return ""
    return error if isinstance(error, str) and len(values) == 1 else repr(values)


def _is_error_status(value: Any) -> bool:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    return isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599


def _fault(text: str) -> FaultPattern | None:
    return next((fault for fault in FAULTS if fault.pattern.search(text)), None)


class _Successes:
    """The latest success of a model call and of each tool, found in one pass over the trace."""

    def __init__(self, steps: Steps) -> None:
        self._latest: dict[tuple[str | None, ...], int] = {}
        """The index of a step of an agent, or a start time within a step or among strays."""
        self._names: dict[str, set[str | None]] = {}
        """Tools that a step calls."""
        for step in steps.steps:
            if not step.failure:
                self._add(step.index, "step", step.agent)
            self._names[step.span_id] = {tool.tool_name for tool in step.tools}
            for tool in filter(_succeeded, step.tools):
                self._add(step.index, "tool", step.agent, tool.tool_name)
                self._add(step.index, "any tool", step.agent)
                self._add(tool.start_ns, "within", step.span_id)
        for tool in filter(_succeeded, steps.strays):
            self._add(tool.start_ns, "stray", tool.tool_name)
            self._add(tool.start_ns, "any stray")

    def _add(self, when: int, *key: str | None) -> None:
        self._latest[key] = max(when, self._latest.get(key, when))

    def recovered(self, failed: AgentStep | None, span: Span, *, any_tool: bool = False) -> bool:
        """Return whether the agent later called this tool (or any), or the model, successfully."""
        # Parallel calls do not count as recovery: they did not react to the failure.
        over = span.start_ns if span.end_ns is None else span.end_ns
        if failed is None:
            key = ("any stray",) if any_tool else ("stray", span.tool_name)
            return self._latest.get(key, -1) >= over
        if span is failed.span and not failed.tools:
            return self._latest.get(("step", failed.agent), -1) > failed.index
        if self._latest.get(("within", failed.span_id), -1) >= over:
            return True
        names = self._names[failed.span_id]
        keys = (
            [("any tool", failed.agent)] if any_tool else [("tool", failed.agent, n) for n in names]
        )
        return any(self._latest.get(key, -1) > failed.index for key in keys)


def _succeeded(tool: Span) -> bool:
    outcome = _outcome(tool)
    return not outcome.failed and _fault(outcome.text) is None


_CALLS = (SpanKind.LLM, SpanKind.TOOL)


def _crashed(steps: Steps) -> Iterator[Span]:
    """Return failed spans that are no model or tool call, and whose failure nothing inside shows.

    The failure of a chain around a model call is the failure of that step, if a rule knows it.
    """
    failures = _spans_around(steps, lambda span: span.failed or http_status(span) >= SERVER_ERROR)
    others = (_MALFORMED, _CODE, _EMPTY, _MISSING)
    covered = {
        step.span.parent_id
        for step in steps.steps
        if _fault(step.failure) or any(pattern.search(step.failure) for pattern in others)
    }
    for span in steps.trace.index.spans:
        if span.kind in _CALLS or span.span_id in failures or span.span_id in covered:
            continue
        if span.failed or http_status(span) >= SERVER_ERROR:
            yield span


def _spans_around(steps: Steps, inside: Callable[[Span], bool]) -> set[str]:
    """Return the ids of all spans around one of these."""
    spans = steps.trace.index.spans
    parents = {span.span_id: span.parent_id for span in spans}
    around: set[str] = set()
    for span in spans:
        above = span.parent_id if inside(span) else None
        while above is not None and above not in around:
            around.add(above)
            above = parents.get(above)
    return around


@rule(Category.SERVICE, confidence=0.5, heard=False)
def logged_fault(steps: Steps) -> Iterator[RuleHit]:
    """A span that is no model or tool call reports a failure in its message or logs only.

    Found at: the first span that reports it.
    """
    seen = _FailureCounts()
    for span in steps.trace.index.spans:
        if span.failed or span.kind in _CALLS:
            continue
        bodies = [event.attributes.get("body") for event in span.events]
        for text in (span.error_message, *bodies):
            # A longer text is content that an agent works with, not a message about a failure.
            if not isinstance(text, str) or len(text) > HEAD:
                continue
            fault, outcome = _fault(text), SpanOutcome(span, text, failed=False)
            if fault is not None or _LOGGED.search(text):
                seen.add(outcome, fault.category if fault else _kind(outcome), text)
                break
    yield from seen.hits()


@rule(Category.RESOURCE_ABUSE, confidence=0.5, heard=False)
def identical_calls(steps: Steps) -> Iterator[RuleHit]:
    """The same call with the same arguments, again and again.

    Found at: the last one, as the taxonomy requires.
    """
    spans = steps.trace.index.spans
    inner = {span.parent_id for span in spans}
    kinds_named = any(span.kind in _CALLS for span in spans)
    same: dict[tuple[str, str, str], list[Span]] = {}
    for span in spans:
        if span.kind is SpanKind.TOOL:
            key = (span.parent_id or "", span.tool_name or span.name, plain(span.tool_input))
        elif not kinds_named and span.kind is SpanKind.OTHER and span.span_id not in inner:
            # A producer that names no calls: what the span holds tells them apart.
            about = (span.attributes, [event.attributes for event in span.events])
            key = (span.parent_id or "", span.name, repr(about))
        else:
            continue
        same.setdefault(key, []).append(span)
    for (_, name, _), found in same.items():
        if len(found) >= IDENTICAL_CALLS:
            yield RuleHit(
                found[-1], f"{name} is called {len(found)} times with the same arguments.", (name,)
            )


# Exceptions of the program itself: no service raises them. Before the looser patterns, since a
# KeyError may name anything.
_OWN_EXCEPTION = re.compile(
    r"^\W*(?:[\w.]+\.)?(?:KeyError|ZeroDivisionError|AssertionError|TypeError|AttributeError"
    r"|IndexError|NameError|UnboundLocalError|RecursionError|NotImplementedError|ValueError"
    r"|OverflowError|StopIteration|LookupError|ArithmeticError)\b"
)


def failed_spans(steps: Steps) -> Iterator[tuple[Span, Category, str]]:
    """Yield every failed span, the innermost of nested ones, with the kind of its error."""
    around = _spans_around(steps, lambda span: span.failed)
    for span in steps.trace.index.spans:
        if span.failed and span.span_id not in around:
            outcome = _outcome(span)
            fault = _fault(outcome.text)
            kind = fault.category if fault is not None else _kind(outcome)
            yield span, kind, f"{span.name!r} fails, and later steps go on: {_line(outcome.text)}"


def _kind(outcome: SpanOutcome) -> Category:
    """Return the category of an error by its text; a failed handoff is an orchestration error."""
    default = Category.ORCHESTRATION if outcome.span.kind == SpanKind.HANDOFF else Category.SERVICE
    text = outcome.text
    # A ValueError is often how a tool refuses its arguments: its message says more.
    if _OWN_EXCEPTION.search(text):
        named = next((c for c, pattern in _ERRORS.items() if pattern.search(text)), None)
        specific = text.lstrip().startswith(("ValueError", "LookupError"))
        return named if named is not None and specific else Category.TOOL_DEFINITION
    return next((c for c, pattern in _ERRORS.items() if pattern.search(text)), default)


def _line(text: str) -> str:
    return " ".join(text.split())[:160]


def _around(text: str, start: int) -> str:
    """Return the line of a text in which a match starts; the rest may be a whole page."""
    begin = text.rfind("\n", 0, start) + 1
    end = text.find("\n", start)
    return text[begin : end if end >= 0 else len(text)]
