"""`@pytest.mark.proctor(trials=5, threshold=0.8)`: one test, several trials, an honest count.

Promise: every trial is made and counted as passed, failed (an assertion) or errored (any other
exception). An errored trial never counts for or against the agent: where its outcome would decide,
the test is an error. Fixtures are set up once for all trials; what must be fresh belongs in the
test.
"""

from __future__ import annotations

import functools
import inspect
import math
import unittest
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from proctor.checks.base import CheckResult, CheckStatus
from proctor.errors import did_you_mean
from proctor.formatting import plural
from proctor.sanitize import line, shown
from proctor.trace import Trace
from proctor.trace.render import span_line, tree_lines

_ROUNDING = 1e-9
"""0.55 × 100 is a little more than 55 in floating point, and 55 passes must be enough."""


class NotJudged(pytest.fail.Exception):
    """Told without a traceback through our code, as `pytest.fail(…, pytrace=False)` is."""

    # As pytest's own outcomes do: reports then show the bare name.
    __module__ = "builtins"

    def __init__(self, message: str) -> None:
        super().__init__(message, pytrace=False)


class Attempt(NamedTuple):
    """How one trial ended; without an error it passed."""

    error: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Whether the test said no, rather than broke."""
        return isinstance(self.error, AssertionError | pytest.fail.Exception) and not isinstance(
            self.error, NotJudged
        )

    @property
    def outcome(self) -> str:
        """passed, failed or errored."""
        return "passed" if self.error is None else "failed" if self.failed else "errored"


class RepeatOptions(NamedTuple):
    """What a marker asks for."""

    trials: int
    threshold: float

    @classmethod
    def asked(cls, item: pytest.Item, marker: pytest.Mark) -> RepeatOptions:
        """The marker's arguments, or an error that says what is wrong with them."""
        owner = getattr(item, "cls", None)
        if not isinstance(item, pytest.Function) or (
            isinstance(owner, type) and issubclass(owner, unittest.TestCase)
        ):
            raise NotJudged("the marker repeats test functions only")
        values: dict[str, Any] = {"trials": 1, "threshold": 1.0}
        if len(marker.args) > len(values):
            raise NotJudged("the marker takes trials and threshold only")
        values.update(zip(values, marker.args, strict=False))
        for name, value in marker.kwargs.items():
            if name not in values:
                hint = did_you_mean(name, values) or "it takes trials and threshold"
                raise NotJudged(f"the marker has no {name!r}; {hint}")
            values[name] = value
        trials, threshold = values["trials"], values["threshold"]
        if type(trials) is not int or trials < 1:
            raise NotJudged(f"trials is {trials!r}, not 1 or more")
        if not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
            raise NotJudged(f"threshold is {threshold!r}, not 0 to 1")
        return cls(trials, float(threshold))

    @property
    def needed(self) -> int:
        """How many trials must pass."""
        return math.ceil(self.threshold * self.trials - _ROUNDING)

    @contextmanager
    def in_place_of(self, item: pytest.Function) -> Generator[None]:
        """Have the item's function called several times, whoever calls it (asyncio plugins too)."""
        function = item.obj
        item.obj = _async(self, item, function) if _is_async(function) else _sync(self, item)
        try:
            yield
        finally:
            item.obj = function

    def conclude(self, item: pytest.Function, attempts: list[Attempt]) -> None:
        """Say what the trials come to: return, fail, or tell that it cannot be told."""
        __tracebackhide__ = True
        count = Counter({"passed": 0, "failed": 0, "errored": 0})
        count.update(attempt.outcome for attempt in attempts)
        item.user_properties += [(f"proctor_{kind}", number) for kind, number in count.items()]
        told = (
            f"{count['passed']} of {plural(self.trials, 'trial')} passed "
            f"({count['failed']} failed, {count['errored']} errored), "
            f"{self.needed} needed for a threshold of {self.threshold:g}"
        )
        text = "\n".join([told, *_told(attempts)])
        if count["passed"] >= self.needed:
            item.add_report_section("call", "proctor", text)
        elif count["passed"] + count["errored"] < self.needed:
            pytest.fail(text, pytrace=False)
        else:
            item.user_properties.append(("proctor", "errored"))
            raise NotJudged(text)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function)


def _sync(plan: RepeatOptions, item: pytest.Function) -> Callable[..., None]:
    function = item.obj

    @functools.wraps(function)
    def call(**arguments: Any) -> None:
        __tracebackhide__ = True
        attempts: list[Attempt] = []
        for number in range(plan.trials):
            _announce(arguments, number)
            with _counted(attempts):
                function(**arguments)
        plan.conclude(item, attempts)

    return call


def _async(plan: RepeatOptions, item: pytest.Function, function: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(**arguments: Any) -> None:
        __tracebackhide__ = True
        attempts: list[Attempt] = []
        for number in range(plan.trials):
            _announce(arguments, number)
            with _counted(attempts):
                await function(**arguments)
        plan.conclude(item, attempts)

    return call


@contextmanager
def _counted(attempts: list[Attempt]) -> Generator[None]:
    """A trial: what it raises is kept, unless it is about the test as a whole."""
    __tracebackhide__ = True
    try:
        yield
    except (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception):
        raise
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 (counted, told)
        attempts.append(Attempt(error))
    else:
        attempts.append(Attempt())


def _announce(arguments: dict[str, Any], number: int) -> None:
    """Tell the fixture which trial this is, so that runs it makes have seeds of their own."""
    fixture: Any = arguments.get("proctor")
    if fixture is not None:
        fixture.trial = number


def _told(attempts: list[Attempt]) -> list[str]:
    """One line a trial, then the first that did not pass in full."""
    lines = [f"  trial {n}: {_line(attempt)}" for n, attempt in enumerate(attempts, 1)]
    for number, attempt in enumerate(attempts, 1):
        if attempt.error is not None:
            return [*lines, "", f"trial {number} in full:", _traceback(attempt.error)]
    return lines


def _line(attempt: Attempt) -> str:
    if attempt.error is None:
        return "passed"
    name = "" if attempt.failed else f"{type(attempt.error).__name__}: "
    first = (str(attempt.error) or repr(attempt.error)).splitlines()[0]
    return f"{attempt.outcome}: {name}{first}"


def _traceback(error: BaseException) -> str:
    style = "value" if isinstance(error, pytest.fail.Exception) and not error.pytrace else "short"
    found = pytest.ExceptionInfo[BaseException].from_exception(error)  # pyright: ignore[reportUnknownMemberType]
    return str(found.getrepr(style=style))


# Why something did not pass, in lines for a person at a terminal or in the log of a build.
#
# Promise: every check that did not hold is told with its reason, what was expected, what was
# found and the spans it is about, then the trace as a tree; nothing an agent said is obeyed by a
# terminal, and everything is cut to what a person reads.


MOST_SPANS = 3
"""Spans shown per check: enough to see what it is about; the tree has the others."""

TREE_SPANS = 30
"""Lines of a tree in a failure: about a screen."""

_TOLD = (CheckStatus.FAIL, CheckStatus.UNSCORED, CheckStatus.WARN)
"""Worst first."""


def explain(
    headline: str,
    facts: Sequence[tuple[str, str]],
    results: Sequence[CheckResult],
    trace: Trace | None,
) -> str:
    """The whole story: the reason in one line, facts, checks, trace."""
    lines = [
        headline,
        *(f"  {label:<9}{text}" for label, text in facts if text),
        *check_lines(results, trace),
    ]
    if trace is not None and trace.spans:
        lines += ["  trace", *(f"    {each.plain()}" for each in tree_lines(trace, TREE_SPANS))]
    return "\n".join(lines)


def check_lines(results: Iterable[CheckResult], trace: Trace | None) -> Iterator[str]:
    """Every check that did not hold, the worst first."""
    told = [result for result in results if result.status in _TOLD]
    for result in sorted(told, key=lambda r: _TOLD.index(r.status)):
        by = f" (by {line(result.method)})" if result.method else ""
        where = f"{result.layer.value}.{line(result.id)}"
        yield f"  {result.status.value.upper():<8} {where}: {line(result.reason)}{by}"
        for label, value in (("expected", result.expected), ("actual", result.actual)):
            if value is not None:
                yield f"           {label:<9}{shown(value)}"
        yield from _span_lines(result.span_ids, trace)


def _span_lines(span_ids: Sequence[str], trace: Trace | None) -> Iterator[str]:
    known = {} if trace is None else {span.span_id: span for span in trace.spans}
    for span_id in span_ids[:MOST_SPANS]:
        about = f"  {span_line(known[span_id]).plain()}" if span_id in known else ""
        yield f"           {'span':<9}{line(span_id, 40)}{about}"
    if (more := len(span_ids) - MOST_SPANS) > 0:
        yield f"           {'':<9}and {more} more"


def reason_of(results: Sequence[CheckResult], score: float | None, threshold: float) -> str:
    """In one line, what decided: the first check that blocks, that cannot be judged, the score."""
    for status in (CheckStatus.FAIL, CheckStatus.UNSCORED):
        for result in results:
            if result.status == status:
                return f"{line(result.id)}: {line(result.reason)}"
    lost = next((r for r in results if r.failed and r.weight), None)
    why = f": {line(lost.id)}: {line(lost.reason)}" if lost else ""
    return f"score {score or 0.0:.2f} is below {threshold:g}{why}"


def asked(value: Any) -> str:
    """What the agent was asked, in a line."""
    return line(value) if isinstance(value, str) else shown(value)
