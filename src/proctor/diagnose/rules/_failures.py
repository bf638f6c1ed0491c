"""Rules on failures: malformed calls, refusing services, empty searches.

The span of a finding depends on where the error shows: a malformed tool call in the model call that
wrote it; an error of executed code in the next model call, which is the first to see it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from proctor.diagnose._steps import plain
from proctor.diagnose.finding import Impact
from proctor.diagnose.rules._base import Rule, RuleHit
from proctor.diagnose.taxonomy import Category
from proctor.trace import SpanKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proctor.diagnose._steps import AgentStep, Steps
    from proctor.trace import Span

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
        r"\b429 Client|rate.?limit|too many requests|quota|throttl",
    ),
    Category.AUTHENTICATION: (
        rf"{_STATUS}40[13]\b",
        r"\b40[13] Client|unauthori[sz]ed|unauthenticated|forbidden|access.?denied",
        r"authentication|api.?key",
    ),
    Category.TIMEOUT: (r"timed?[ -]?out|deadline.?exceeded|took too long",),
    Category.SERVICE: (
        rf"{_STATUS}5\d\d\b",
        r"\b5\d\d Server|internal server error|unavailable|bad gateway|overloaded",
        r"connection.?(?:error|refused|reset|aborted|closed)|\bECONN|name resolution|getaddrinfo",
    ),
    Category.EXHAUSTION: (
        r"out of memory|disk.{0,9} full|context.?(?:length|window)|recursion.?limit|usage.?limit",
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
        r"\b404 Client|not.?found|does(?: not|n't) exist|no such",
        r"\bunknown (?!error|reason|exception|argument|option)\w",
    ),
}

_ERRORS = {kind: re.compile("|".join(texts), re.IGNORECASE) for kind, texts in ERRORS.items()}


class MalformedCall(Rule):
    """A tool call whose arguments do not fit the tool."""

    name = "malformed_call"
    category = Category.FORMATTING
    confidence = 0.66

    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """The model call that wrote it."""
        for step in steps.steps:
            if step.tools and not _CODE.search(step.failure) and _MALFORMED.search(step.failure):
                tool = next((t for t in step.tools if t.failed), step.tools[-1])
                yield RuleHit(
                    step.span,
                    f"The call of {tool.tool_name} does not fit the tool: {_line(step.failure)}",
                    _written_call(step, tool),
                )


class BrokenCode(Rule):
    """Code the agent wrote fails to parse or run."""

    name = "broken_code"
    category = Category.FORMATTING
    confidence = 0.45

    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """The model call that first sees the error; else the one that wrote the code."""
        for step in steps.steps:
            if not _CODE.search(step.failure[:HEAD]):
                continue
            shown = steps.after(step) or step
            lines = [line for line in step.observation.splitlines() if _CODE.search(line)]
            yield RuleHit(
                shown.span, f"The code fails: {_line(step.failure)}", (*lines, step.failure)
            )


class SystemFault(Rule):
    """A service or the environment refuses: by exception, or at the head of tool output."""

    name = "system_fault"
    category = Category.SERVICE
    confidence = 0.7

    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """The first tool span that shows it, else the model call; not after a good retry."""
        seen = _FailureCounts()
        for step, outcome in _outcomes(steps):
            fault = _fault(outcome.text)
            # A transient fault after which the agent goes on is not an error of the run.
            if fault is None or (fault.transient and _recovered(steps, step, outcome.span)):
                continue
            found = fault.pattern.search(outcome.text)
            start = found.start() if found else 0
            seen.add(outcome, fault.category, _around(outcome.text, start))
        yield from seen.hits()


class FailedCall(Rule):
    """A call, a handoff or a whole agent ends in an error that no other rule covers and nothing
    recovers from.
    """

    name = "failed_call"
    category = Category.SERVICE
    confidence = 0.5
    heard = False

    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """The first span that failed this way; of nested failures, the innermost."""
        seen = _FailureCounts()
        for step, outcome in _outcomes(steps):
            if not outcome.failed or _fault(outcome.text) is not None:
                continue
            # Most rules look at model steps only; they cover these errors there.
            others = (_MALFORMED, _CODE, _EMPTY, _MISSING) if step is not None else ()
            if any(pattern.search(outcome.text) for pattern in others):
                continue
            if _recovered(steps, step, outcome.span, any_tool=True):
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
            else:
                what = f"The call of {span.tool_name}" if span.tool_name else "The model call"
            yield RuleHit(span, f"{what} fails{often}: {_line(line)}", passages, key[1])


class EmptySearch(Rule):
    """A search that finds nothing."""

    name = "empty_search"
    category = Category.POOR_RETRIEVAL
    confidence = 0.35

    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """The model call that requested it."""
        for step in steps.steps:
            if _EMPTY.search(step.failure):
                arguments = tuple(call.arguments for call in step.calls)
                yield RuleHit(
                    step.span, f"The search finds nothing: {_line(step.failure)}", arguments
                )


class MissingResource(Rule):
    """A file or package the step relies on is not there."""

    name = "missing_resource"
    category = Category.ENVIRONMENT
    impact = Impact.HIGH
    confidence = 0.2

    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """The first model call whose step fails for it."""
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
        text = f"{span.error_type or ''} {span.error_message or ''}".strip()
        return SpanOutcome(span, text or span.status.value, failed=True)
    error = _error_in(span.tool_output)
    if error:
        return SpanOutcome(span, error[:HEAD], failed=True)
    return SpanOutcome(span, plain(span.tool_output)[:HEAD], failed=False)


def _error_in(output: Any) -> str:
    """Return the error of a tool that returns it as a value, as MCP and most HTTP tools do."""
    if isinstance(output, str) and output.startswith("{") and len(output) <= MAX_ERROR:
        with contextlib.suppress(ValueError, RecursionError):
            output = json.loads(output)
    if not isinstance(output, Mapping):
        return ""
    values = cast("Mapping[str, Any]", output)
    error = values.get("error") or values.get("isError") or values.get("status") == "error"
    if not error:
        return ""
    return error if isinstance(error, str) and len(values) == 1 else repr(values)


def _fault(text: str) -> FaultPattern | None:
    return next((fault for fault in FAULTS if fault.pattern.search(text)), None)


def _recovered(
    steps: Steps, failed: AgentStep | None, span: Span, *, any_tool: bool = False
) -> bool:
    """Return whether the same agent later called this tool (or any), or the model, successfully."""
    later: list[AgentStep] = []
    if failed is not None:
        later = [m for m in steps.steps if m.agent == failed.agent and m.index > failed.index]
        if span is failed.span and not failed.tools:
            return any(not step.failure for step in later)
    # Parallel calls do not count as recovery: they did not react to the failure.
    over = span.start_ns if span.end_ns is None else span.end_ns
    beside = steps.strays if failed is None else failed.tools
    tools = [tool for tool in beside if tool.start_ns >= over]
    tools += [tool for step in later for tool in step.tools]
    names = {span.tool_name} if failed is None else {tool.tool_name for tool in failed.tools}
    for tool in tools:
        if any_tool or tool.tool_name in names:
            outcome = _outcome(tool)
            if not outcome.failed and _fault(outcome.text) is None:
                return True
    return False


def _crashed(steps: Steps) -> Iterator[Span]:
    """Return agents and handoffs that failed while nothing inside them did."""
    spans = steps.trace.index.spans
    parents = {span.span_id: span.parent_id for span in spans}
    # Spans around a failed one: their failure is only a consequence.
    around: set[str] = set()
    for span in spans:
        above = span.parent_id if span.failed else None
        while above is not None and above not in around:
            around.add(above)
            above = parents.get(above)
    for span in spans:
        crashes = span.kind in (SpanKind.AGENT, SpanKind.HANDOFF) and span.failed
        if crashes and span.span_id not in around:
            yield span


def _kind(outcome: SpanOutcome) -> Category:
    """Return the category of an error by its text; a failed handoff is an orchestration error."""
    default = Category.ORCHESTRATION if outcome.span.kind == SpanKind.HANDOFF else Category.SERVICE
    return next((c for c, pattern in _ERRORS.items() if pattern.search(outcome.text)), default)


def _line(text: str) -> str:
    return " ".join(text.split())[:160]


def _around(text: str, start: int) -> str:
    """Return the line of a text in which a match starts; the rest may be a whole page."""
    begin = text.rfind("\n", 0, start) + 1
    end = text.find("\n", start)
    return text[begin : end if end >= 0 else len(text)]
