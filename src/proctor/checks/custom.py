"""Checks of the user's own: a function or class that takes one context.

Promise: bool, number in 0..1, `Outcome`, (value, reason) or a mapping of names to these; sync or
async; a failed `assert` is a failed check, any other exception leaves the check unscored.
Found by import path or in the entry points `proctor.checks`; built in: `has_matching_span`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from proctor.checks.path_parts import read_span_check, span_holds
from proctor.checks.registry import CheckContext, CheckFunction, Outcomes
from proctor.checks.result import Outcome, broken, held, unscored
from proctor.errors import ProctorError, did_you_mean
from proctor.imports import load_object

ENTRY_POINTS = "proctor.checks"
"""The group under which packages offer checks by name."""

DEFAULT_THRESHOLD = 0.8
"""From which number on a check holds, where the case has no threshold: that of a case."""


class HasMatchingSpan:
    """Some span matches a query, or a query over the whole trace holds."""

    def __init__(self, query: Mapping[str, Any]) -> None:
        self.check = read_span_check(query)

    def __call__(self, context: CheckContext) -> Outcome:
        """Whether it holds of the trace."""
        return span_holds(self.check, context)


BUILT_IN: dict[str, Any] = {"has_matching_span": HasMatchingSpan}


def custom_check(
    target: str | Callable[..., Any],
    params: Mapping[str, Any] | None = None,
    base_dir: str | Path | None = None,
) -> CheckFunction:
    """A user's check, ready to run; `ProctorError` when it cannot be found or built.

    `params` go to the constructor of a class, or to a function beside its context.
    """
    found = find_check(target, base_dir) if isinstance(target, str) else target
    where = target if isinstance(target, str) else _name(target)
    function = _callable(found, dict(params or {}), where)

    def run(_options: Any, context: CheckContext) -> Outcomes | Awaitable[Outcomes]:
        return _run(function, context)

    return run


def find_check(name: str, base_dir: str | Path | None = None) -> Any:
    """A check by import path, by the name of an entry point, or built in."""
    if ":" in name:
        return load_object(name, base_dir)
    if name in BUILT_IN:
        return BUILT_IN[name]
    from importlib.metadata import entry_points

    offered = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name not in offered:
        known = [*BUILT_IN, *offered]
        raise ProctorError(
            f"no check {name!r} is installed",
            hint=did_you_mean(name, known) or "write package.module:name to import one",
        )
    try:
        return offered[name].load()
    except Exception as error:
        raise ProctorError(
            f"the check {name!r} cannot be loaded: {type(error).__name__}: {error}",
            where=offered[name].value,
        ) from error


def _callable(found: Any, params: dict[str, Any], where: str) -> Callable[[CheckContext], Any]:
    if not callable(found):
        raise ProctorError(f"{where} is a {type(found).__name__}, not a function or class")
    if inspect.isclass(found):
        _fits(found, (), params, where, "the class does not take these params")
        try:
            instance: Any = found(**params)
        except ProctorError:
            raise
        except Exception as error:
            raise ProctorError(
                f"{where} cannot be built: {type(error).__name__}: {error}"
            ) from error
        method = instance if callable(instance) else getattr(instance, "evaluate", None)
        if not callable(method):
            raise ProctorError(
                f"{where} has neither __call__(context) nor evaluate(context)",
                hint="add one of them",
            )
        _fits(method, (None,), {}, where, "it must take one context")
        return method
    _fits(found, (None,), params, where, "it must take one context, then the params by name")
    return partial(found, **params)


def _fits(
    function: Callable[..., Any],
    positional: tuple[Any, ...],
    params: dict[str, Any],
    where: str,
    otherwise: str,
) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in callables do not tell
        return
    try:
        signature.bind(*positional, **params)
    except TypeError as error:
        raise ProctorError(f"{where}{signature}: {error}", hint=otherwise) from None


async def _run(function: Callable[[CheckContext], Any], context: CheckContext) -> Outcomes:
    try:
        value = function(context)
        if inspect.isawaitable(value):
            value = await value
    except AssertionError as error:
        # pytest adds lines of its own to an assertion's message.
        lines = str(error).splitlines()
        return broken(lines[0] if lines else "an assertion of the check failed")
    threshold = getattr(context.case, "threshold", None)
    return as_outcomes(value, DEFAULT_THRESHOLD if threshold is None else threshold)


def as_outcomes(value: Any, threshold: float = DEFAULT_THRESHOLD) -> Outcomes:
    """What a user's check returned, as outcomes; a number holds from the threshold on."""
    if isinstance(value, Mapping):
        named = cast("Mapping[Any, Any]", value)
        return [(str(name), _outcome(item, None, threshold)) for name, item in named.items()]
    return _outcome(value, None, threshold)


def _outcome(value: Any, reason: str | None, threshold: float) -> Outcome:
    if isinstance(value, Outcome):
        return value
    if isinstance(value, tuple) and reason is None:
        pair = cast("tuple[Any, ...]", value)
        if len(pair) == 2 and isinstance(pair[1], str):
            return _outcome(pair[0], pair[1], threshold)
    number = getattr(cast("Any", value), "item", None)
    if callable(number) and not isinstance(value, bool | int | float):
        value = number()  # a number of numpy, torch and their like
    if isinstance(value, bool):
        make = held if value else broken
        return make(reason or f"the check returned {value}", actual=value)
    if isinstance(value, int | float) and 0 <= value <= 1:
        told = f"{value:.2f}, asked for at least {threshold:g}"
        return Outcome(
            score=float(value),
            passed=value >= threshold,
            reason=f"{reason} ({told})" if reason else f"the check returned {told}",
            expected=threshold,
            actual=value,
        )
    return unscored(
        f"the check returned {_told(value)}: return a bool, a number from 0 to 1, an Outcome, or "
        "one of these with a reason"
    )


def _told(value: Any) -> str:
    return repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def _name(target: Any) -> str:
    return str(getattr(target, "__qualname__", type(target).__qualname__))
