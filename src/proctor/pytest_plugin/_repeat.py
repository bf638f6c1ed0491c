"""`@pytest.mark.proctor(trials=5, threshold=0.8)`: one test, several trials.

Every trial runs and counts as passed, failed (an assertion) or errored (any other exception). An
errored trial never counts for or against the agent: where its outcome would decide, the test is an
error. Fixtures are set up once for all trials; what must be fresh belongs in the test.
"""

from __future__ import annotations

import functools
import inspect
import math
import unittest
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
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


class ProctorWarning(pytest.PytestWarning):
    """A check that failed and does not block."""


class NotJudged(pytest.fail.Exception):
    """An outcome that is shown without a traceback, as `pytest.fail(…, pytrace=False)` is."""

    # As pytest's own outcomes do: reports then show the bare name.
    __module__ = "builtins"

    def __init__(self, message: str) -> None:
        super().__init__(message, pytrace=False)


class Attempt(NamedTuple):
    """How one trial ended; without an error it passed."""

    error: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Whether an assertion failed, in contrast to an error."""
        return isinstance(self.error, AssertionError | pytest.fail.Exception) and not isinstance(
            self.error, NotJudged
        )

    @property
    def outcome(self) -> str:
        """passed, failed or errored."""
        return "passed" if self.error is None else "failed" if self.failed else "errored"


class RepeatOptions(NamedTuple):
    """The arguments of a marker."""

    trials: int
    threshold: float

    @classmethod
    def from_marker(cls, item: pytest.Item, marker: pytest.Mark) -> RepeatOptions:
        """Return the marker's arguments; raise `NotJudged` if they are invalid."""
        owner = getattr(item, "cls", None)
        if not isinstance(item, pytest.Function) or (
            isinstance(owner, type) and issubclass(owner, unittest.TestCase)
        ):
            raise NotJudged("the marker repeats test functions only")
        values: dict[str, Any] = {"trials": 1, "threshold": 1.0}
        if len(marker.args) > len(values):
            raise NotJudged("the marker takes trials and threshold only")
        # By position, then by name, as in a function call.
        values.update(zip(values, marker.args, strict=False))
        for name, value in marker.kwargs.items():
            if name not in values:
                hint = did_you_mean(name, values) or "it takes trials and threshold"
                raise NotJudged(f"the marker has no {name!r}; {hint}")
            values[name] = value
        trials, threshold = values["trials"], values["threshold"]
        # Not isinstance: True is an int.
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
    def repeating(self, item: pytest.Function) -> Generator[None]:
        """Replace the item's function by one that calls it several times.

        Replaced in the item, so that plugins which call the function (asyncio) repeat it too.
        """
        function = item.obj

        def trials(arguments: dict[str, Any]) -> Iterator[AbstractContextManager[None]]:
            __tracebackhide__ = True
            attempts: list[Attempt] = []
            for number in range(self.trials):
                yield _trial(number, arguments, attempts)
            self.conclude(item, attempts)

        async def call_async(**arguments: Any) -> None:
            __tracebackhide__ = True
            for trial in trials(arguments):
                with trial:
                    await function(**arguments)

        def call(**arguments: Any) -> None:
            __tracebackhide__ = True
            for trial in trials(arguments):
                with trial:
                    function(**arguments)

        repeated = call_async if inspect.iscoroutinefunction(function) else call
        item.obj = functools.wraps(function)(repeated)
        try:
            yield
        finally:
            item.obj = function

    def conclude(self, item: pytest.Function, attempts: list[Attempt]) -> None:
        """Return if enough trials passed; fail the test if not, or raise `NotJudged`."""
        __tracebackhide__ = True
        # With zeros, so that every report has the same properties.
        count = Counter({"passed": 0, "failed": 0, "errored": 0})
        count.update(attempt.outcome for attempt in attempts)
        item.user_properties += [(f"proctor_{kind}", number) for kind, number in count.items()]
        summary = (
            f"{count['passed']} of {plural(self.trials, 'trial')} passed "
            f"({count['failed']} failed, {count['errored']} errored), "
            f"{self.needed} needed for a threshold of {self.threshold:g}"
        )
        text = "\n".join([summary, *_attempt_lines(attempts)])
        if count["passed"] >= self.needed:
            item.add_report_section("call", "proctor", text)
        elif count["passed"] + count["errored"] < self.needed:
            # It would have failed even if every errored trial had passed.
            pytest.fail(text, pytrace=False)
        else:
            item.user_properties.append(("proctor", "errored"))
            raise NotJudged(text)


@contextmanager
def _trial(number: int, arguments: dict[str, Any], attempts: list[Attempt]) -> Generator[None]:
    """Run one trial: record its exception, unless it is about the test as a whole."""
    __tracebackhide__ = True
    fixture: Any = arguments.get("proctor")
    if fixture is not None:
        fixture.trial = number  # so that each trial runs agents with its own seed
    try:
        yield
    except (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception):
        raise
    # pytest.fail is no Exception: outcomes of pytest derive from BaseException.
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 (counted and reported)
        attempts.append(Attempt(error))
    else:
        attempts.append(Attempt())


def _attempt_lines(attempts: list[Attempt]) -> list[str]:
    """Return one line for each trial, then the first that did not pass in full."""
    lines = [f"  trial {n}: {_line(attempt)}" for n, attempt in enumerate(attempts, 1)]
    for number, attempt in enumerate(attempts, 1):
        error = attempt.error
        if error is not None:
            # A failure that was raised with pytrace=False wants no traceback.
            plain = isinstance(error, pytest.fail.Exception) and not error.pytrace
            found = pytest.ExceptionInfo[BaseException].from_exception(error)  # pyright: ignore[reportUnknownMemberType]
            full = str(found.getrepr(style="value" if plain else "short"))
            return [*lines, "", f"trial {number} in full:", full]
    return lines


def _line(attempt: Attempt) -> str:
    if attempt.error is None:
        return "passed"
    name = "" if attempt.failed else f"{type(attempt.error).__name__}: "
    first = (str(attempt.error) or repr(attempt.error)).splitlines()[0]
    return f"{attempt.outcome}: {name}{first}"


# -- reasons -------------------------------------------------------------------------------------
# Every check that failed is listed with its reason, expected and actual values and spans, then the
# trace as a tree. Text of an agent is sanitised for terminals, and everything is shortened.

MOST_SPANS = 3
"""Spans shown per check; the tree has the others."""

TREE_SPANS = 30
"""Lines of a tree in a failure: about a screen."""

_DECIDING = (CheckStatus.FAIL, CheckStatus.UNSCORED, CheckStatus.NOT_JUDGED)
_REPORTED = (*_DECIDING, CheckStatus.WARN)
"""Statuses of checks that are listed, worst first."""


def explain(
    headline: str,
    facts: Sequence[tuple[str, str]],
    results: Sequence[CheckResult],
    trace: Trace | None,
) -> str:
    """Return the full text of a failure: the reason in one line, facts, checks, trace."""
    lines = [
        headline,
        *(f"  {label:<9}{text}" for label, text in facts if text),
        *check_lines(results, trace),
    ]
    if trace is not None and trace.spans:
        lines += ["  trace", *(f"    {each.plain()}" for each in tree_lines(trace, TREE_SPANS))]
    return "\n".join(lines)


def check_lines(results: Iterable[CheckResult], trace: Trace | None) -> Iterator[str]:
    """Yield the lines of every check that did not pass, the worst first."""
    spans = {} if trace is None else {span.span_id: span for span in trace.spans}
    reported = [result for result in results if result.status in _REPORTED]
    for result in sorted(reported, key=lambda r: _REPORTED.index(r.status)):
        by = f" (by {line(result.method)})" if result.method else ""
        where = f"{result.layer.value}.{line(result.id)}"
        status = result.status.value.replace("_", " ").upper()
        yield f"  {status:<8} {where}: {line(result.reason)}{by}"
        for label, value in (("expected", result.expected), ("actual", result.actual)):
            if value is not None:
                yield f"           {label:<9}{shown(value)}"
        for span_id in result.span_ids[:MOST_SPANS]:
            about = f"  {span_line(spans[span_id]).plain()}" if span_id in spans else ""
            yield f"           {'span':<9}{line(span_id, 40)}{about}"
        if (more := len(result.span_ids) - MOST_SPANS) > 0:
            yield f"           {'':<9}and {more} more"


def reason_of(results: Sequence[CheckResult], score: float | None, threshold: float) -> str:
    """Return in one line what decided: a check that blocks or cannot be judged, or the score."""
    # A check that only warns decides nothing by not being judged, unless it is the only one.
    ranked = sorted(results, key=lambda result: not result.blocking)
    lost = next((r for r in results if r.failed and r.weight), None)
    for status in _DECIDING:
        for result in ranked:
            soft = status is CheckStatus.NOT_JUDGED and not result.blocking
            if result.status == status and not (soft and lost):
                return f"{line(result.id)}: {line(result.reason)}"
    if score is None:
        return "no check had anything to judge"
    why = f": {line(lost.id)}: {line(lost.reason)}" if lost else ""
    return f"score {score or 0.0:.2f} is below {threshold:g}{why}"


def input_text(value: Any) -> str:
    """Return the input of an agent in one line."""
    return line(value) if isinstance(value, str) else shown(value)
