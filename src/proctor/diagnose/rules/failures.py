"""Rules on what failed: calls that could not be made, services that refused, empty searches.

Where an error shows decides its place: a malformed tool call shows in the model call that wrote
it; an error of executed code shows first in the next model call, which is told of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from proctor.diagnose.model import Impact
from proctor.diagnose.moves import plain
from proctor.diagnose.taxonomy import Category

from .base import Hit, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proctor.diagnose.moves import Move, Moves
    from proctor.trace import Span

_MALFORMED = re.compile(
    r"unexpected keyword argument|required (?:positional |keyword-only )?argument"
    r"|multiple values for|takes \d+ positional|SyntaxError|IndentationError"
    r"|JSONDecodeError|[Ii]nvalid JSON|[Ee]rror in code parsing|Code parsing failed"
)
"""What interpreters and frameworks say of a call whose form is wrong."""

_CODE = re.compile(r"[Cc]ode (?:execution|parsing)|Traceback \(most recent|Error in code")
_EMPTY = re.compile(r"\b[Nn]o (?:search )?results (?:were )?found|\b0 results\b")

HEAD = 600
"""Characters of a tool's output in which a refusal stands; later ones belong to the page."""


class Fault(NamedTuple):
    """How one kind of system failure reads, in an exception or at the head of tool output."""

    category: Category
    pattern: re.Pattern[str]
    transient: bool


FAULTS = (
    Fault(
        Category.RATE_LIMIT,
        re.compile(
            r"RateLimitError|rate_limit|\b(?:Error|HTTP|status(?: code)?:?) 429|Too Many Req"
        ),
        transient=True,
    ),
    Fault(
        Category.AUTHENTICATION,
        re.compile(
            r"\b(?:Error|HTTP|status(?: code)?:?) 40[13]\b|401 Unauthorized|403 Forbidden"
            r"|AuthenticationError|[Ii]nvalid API key"
        ),
        transient=False,
    ),
    Fault(
        Category.NOT_FOUND,
        re.compile(r"\b(?:Error|HTTP|status(?: code)?:?) 404\b|404 Not Found"),
        transient=False,
    ),
    Fault(
        Category.SERVICE,
        re.compile(
            r"\b(?:Error|HTTP|status(?: code)?:?) 5\d\d\b|InternalServerError|ServiceUnavailable"
            r"|50[0234] (?:Internal|Bad|Service|Gateway)"
        ),
        transient=True,
    ),
    Fault(
        Category.TIMEOUT,
        re.compile(r"TimeoutError|ReadTimeout|ConnectTimeout|\btimed out\b"),
        transient=True,
    ),
    Fault(
        Category.EXHAUSTION,
        re.compile(r"MemoryError|No space left|context_length_exceeded|maximum context length"),
        transient=False,
    ),
)


class MalformedCall(Rule):
    """A tool call whose arguments do not fit the tool."""

    name = "malformed_call"
    category = Category.FORMATTING
    confidence = 0.66

    def find(self, moves: Moves) -> Iterator[Hit]:
        """The model call that wrote it."""
        for move in moves.moves:
            if move.tools and not _CODE.search(move.failure) and _MALFORMED.search(move.failure):
                wrong = move.calls[-1] if move.calls else None
                yield Hit(
                    move.span,
                    f"The call of {move.tools[-1].tool_name} does not fit the tool: "
                    f"{_line(move.failure)}",
                    (wrong.arguments, wrong.name) if wrong else (),
                )


class BrokenCode(Rule):
    """Code the agent wrote fails to parse or run."""

    name = "broken_code"
    category = Category.FORMATTING
    confidence = 0.45

    def find(self, moves: Moves) -> Iterator[Hit]:
        """The model call that is first told of the error; else the one that wrote the code."""
        for move in moves.moves:
            if not _CODE.search(move.failure[:HEAD]):
                continue
            shown = moves.after(move) or move
            lines = [line for line in move.came_back.splitlines() if _CODE.search(line)]
            yield Hit(shown.span, f"The code fails: {_line(move.failure)}", (*lines, move.failure))


class SystemFault(Rule):
    """A service or the environment refuses: by exception, or at the head of tool output."""

    name = "system_fault"
    category = Category.SERVICE
    confidence = 0.7

    def find(self, moves: Moves) -> Iterator[Hit]:
        """The tool span that shows it, else the model call. A retry that worked is no error."""
        for move in moves.moves:
            for span, text in _outcomes(move):
                fault = next((f for f in FAULTS if f.pattern.search(text)), None)
                if fault is None or (fault.transient and _recovered(moves, move)):
                    continue
                found = fault.pattern.search(text)
                passage = _around(text, found.start()) if found else text
                yield Hit(
                    span,
                    f"{fault.category.value}: {passage}",
                    (passage, found.group() if found else ""),
                    fault.category,
                )


class EmptySearch(Rule):
    """A search that finds nothing."""

    name = "empty_search"
    category = Category.POOR_RETRIEVAL
    confidence = 0.35

    def find(self, moves: Moves) -> Iterator[Hit]:
        """The model call that asked."""
        for move in moves.moves:
            if _EMPTY.search(move.failure):
                asked = tuple(call.arguments for call in move.calls)
                yield Hit(move.span, f"The search finds nothing: {_line(move.failure)}", asked)


class MissingResource(Rule):
    """A file or package the step relies on is not there."""

    name = "missing_resource"
    category = Category.ENVIRONMENT
    impact = Impact.HIGH
    confidence = 0.2

    def find(self, moves: Moves) -> Iterator[Hit]:
        """The first model call whose step fails for it."""
        for move in moves.moves:
            if re.search(r"FileNotFoundError|ModuleNotFoundError|No such file", move.failure):
                asked = tuple(call.arguments for call in move.calls)
                yield Hit(move.span, f"Not there: {_line(move.failure)}", asked)
                return


def _outcomes(move: Move) -> Iterator[tuple[Span, str]]:
    """Where a system failure can show: errors of spans, and the head of what tools returned."""
    for span in (move.span, *move.tools):
        if span.failed:
            yield span, f"{span.error_type or ''} {span.error_message or ''}".strip()
        elif span is not move.span:
            yield span, plain(span.tool_output)[:HEAD]
    shown = any(span.failed for span in (move.span, *move.tools))
    if move.failure and not shown:
        yield move.span, move.failure[:HEAD]


def _recovered(moves: Moves, failed: Move) -> bool:
    """Whether the same agent went on to call the same tool, or the model, with success."""
    names = {tool.tool_name for tool in failed.tools}
    later = [m for m in moves.moves if m.agent == failed.agent and m.index > failed.index]
    if not names:
        return any(not m.failure for m in later)
    tools = (*failed.tools, *(tool for m in later for tool in m.tools))
    return any(not tool.failed and tool.tool_name in names for tool in tools)


def _line(text: str) -> str:
    return " ".join(text.split())[:160]


def _around(text: str, start: int) -> str:
    """The line of a text in which a match starts."""
    begin = text.rfind("\n", 0, start) + 1
    end = text.find("\n", start)
    return text[begin : end if end >= 0 else len(text)]
