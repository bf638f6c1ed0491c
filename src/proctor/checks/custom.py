"""Functions and classes of the user as checks.

A check function takes one `CheckContext` and returns a bool, a number in 0..1, a `Metric`, a
`CheckResult`, (value, reason), or a mapping of names to these; it may be async. A failed `assert`
is a failed check, any other exception leaves the check unscored. Checks are found by import path,
in the entry points `proctor.checks`, or built in (`has_matching_span`).
"""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import Field

from proctor.background import threads
from proctor.checks.base import (
    Check,
    CheckContext,
    CheckResult,
    Metric,
    Results,
    failed,
    passed,
    unscored,
)
from proctor.checks.path import HasMatchingSpan
from proctor.errors import ProctorError, did_you_mean
from proctor.imports import load_object

ENTRY_POINTS = "proctor.checks"
"""The group under which packages offer checks by name."""

DEFAULT_THRESHOLD = 0.8
"""The number from which a check passes where the case has no threshold: the default of a case."""

GIVEN_IN_PYTHON = "given_in_python"
"""Recorded in a run folder's spec for a function that has no import path."""

BUILT_IN: dict[str, Any] = {"has_matching_span": HasMatchingSpan}


class FunctionCheck(Check):
    """A function of the user; `Case(checks=[function])` wraps it in one of these.

    Example: `FunctionCheck(function=lambda ctx: len(ctx.output) < 200, id="brief")`.
    """

    name: ClassVar[str] = "custom"
    function: Callable[..., Any]

    async def evaluate(self, ctx: CheckContext[Any], /) -> Results:
        """Judge one trial."""
        try:
            # In a thread, as any check that is not known to be quick.
            if inspect.iscoroutinefunction(self.function):
                value = self.function(ctx)
            else:
                value = await threads.finish(self.function, ctx)
            if inspect.isawaitable(value):
                value = await value
        except AssertionError as error:
            # pytest adds lines of its own to an assertion's message.
            lines = str(error).splitlines()
            return failed(lines[0] if lines else "an assertion of the check failed")
        threshold = getattr(ctx.case, "threshold", None)
        return as_results(value, DEFAULT_THRESHOLD if threshold is None else threshold)


class _CodeAssertion(Check):
    """Code of promptfoo's assertions: an expression, a body that returns, or a module.

    It sees `output` and `context` (`vars`, `prompt`, `config`, `test`) and returns a bool, a
    number, or `{pass, score, reason}`; a number passes from `threshold` on, without one above 0.
    Code that raises fails, as it does there: `JSON.parse(output)` of an answer that is no JSON.
    """

    code: str = Field(kw_only=False, min_length=1)
    function: str | None = None
    """The function of a module to call; without one, the code is its body."""
    threshold: float | None = None
    config: dict[str, Any] = Field(default_factory=dict[str, Any])
    inverse: bool = False
    """Whether it passes where the code says that it fails."""

    def _context(self, ctx: CheckContext[Any]) -> dict[str, Any]:
        properties = cast("dict[str, Any]", getattr(ctx.case, "properties", {}))
        values = properties.get("vars", {})
        context = {"vars": values, "prompt": ctx.input, "config": self.config}
        return context | {"test": {"vars": values, "metadata": properties}}

    def _judged(self, found: Any) -> CheckResult:
        reason, agreed = "", None
        if isinstance(found, dict):
            graded = cast("dict[str, Any]", found)
            agreed = graded.get("pass", graded.get("pass_"))
            reason = str(graded.get("reason") or "")
            found = graded.get("score", agreed)
        if not isinstance(found, bool | int | float):
            return unscored(f"the code returned a {type(found).__name__}, not a bool or a number")
        score = float(found)
        agreed = score > 0 if agreed is None else bool(agreed)
        agreed = agreed and (self.threshold is None or score >= self.threshold)
        shown = reason or f"the code returned {found!r}"
        score = min(1.0, max(0.0, 1.0 - score if self.inverse else score))
        if agreed != self.inverse:
            return CheckResult(passed=True, score=score, reason=shown, actual=found)
        return failed(shown, score=score, expected=self.threshold, actual=found)


class PythonAssertion(_CodeAssertion):
    """A `python` assertion of promptfoo.

    Example: `PythonAssertion("len(output) < 200")`.
    """

    name: ClassVar[str] = "python_assertion"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        code, name = self.code, self.function or "get_assert"
        if self.function is None:
            body = code if "\n" in code.strip() else f"return {code.strip()}"
            code = f"def {name}(output, context):\n{textwrap.indent(body, '    ')}"
        scope: dict[str, Any] = {"json": json, "__name__": "assertion"}
        try:
            exec(compile(code, f"<{self.id or self.name}>", "exec"), scope)  # noqa: S102 (as any check of the user, in a worker)
            return self._judged(scope[name](ctx.output, self._context(ctx)))
        except Exception as error:  # noqa: BLE001 (whatever the code raises is its verdict)
            return failed(f"the code raised {type(error).__name__}: {error}")


class JavaScriptAssertion(_CodeAssertion):
    """A `javascript` assertion of promptfoo, run by Node.js.

    Example: `JavaScriptAssertion("output.length < 200")`.
    """

    name: ClassVar[str] = "javascript_assertion"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        node = shutil.which("node")
        if node is None:
            return unscored("JavaScript needs Node.js: no program `node` was found")
        given = {"code": self.code.rstrip(), "name": self.function, "output": ctx.output}
        done = subprocess.run(  # noqa: S603 (as any check of the user, in a worker)
            [node, "-e", _RUN_JAVASCRIPT],
            input=json.dumps({**given, "context": self._context(ctx)}, default=str),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=JAVASCRIPT_SECONDS,
            check=False,
        )
        # The last line: the code may print.
        answer = done.stdout.rpartition(_ANSWER)[2] if _ANSWER in done.stdout else ""
        if not answer:
            return unscored(f"node ended with exit code {done.returncode}: {done.stderr[-300:]}")
        found: dict[str, Any] = json.loads(answer)
        if "error" in found:
            return failed(f"the code raised {found['error']}")
        return self._judged(found.get("result"))


JAVASCRIPT_SECONDS = 60
"""Time that JavaScript of an assertion may take; promptfoo has no limit."""

_ANSWER = "\x1eassertion\x1e"

_RUN_JAVASCRIPT = (
    r"""
const { code, name, output, context } = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const body = (code) => {
  const line = code.trim().replace(/;+\s*$/, '');
  const [, before, last] = /^((?:const|let|var)\s[^]*;)([^;]*)$/.exec(line) ?? [];
  return code.includes('\n') ? code : before ? `${before} return ${last}` : `return ${line}`;
};
const load = async () => {
  let found = { exports: {} };
  if (/^\s*(export|import)\s/m.test(code)) {
    found = { exports: await import('data:text/javascript,' + encodeURIComponent(code)) };
  } else {
    new Function('module', 'exports', 'require', code)(found, found.exports, require);
  }
  const main = found.exports;
  const first = typeof main === 'function' ? main : main.default;
  const given = name === 'default' ? first : main[name];
  return given ?? main.default[name];
};
(async () => {
  const call = name === null ? new Function('output', 'context', body(code)) : await load();
  return { result: await call(output, context) };
})().catch((error) => ({ error: String(error) })).then((found) => {
  process.stdout.write('"""
    + _ANSWER
    + """' + JSON.stringify(found));
});
"""
)


def custom_check(
    target: str | Callable[..., Any],
    params: Mapping[str, Any] | None = None,
    base_dir: str | Path | None = None,
) -> Check:
    """Return a user's check; raise `ProctorError` when it cannot be found or built.

    `params` go to the constructor of a class, or to a function after its context.
    """
    found = find_check(target, base_dir) if isinstance(target, str) else target
    where = target if isinstance(target, str) else str(getattr(target, "__qualname__", target))
    options = dict(params or {})
    if isinstance(found, Check):
        return found
    if not callable(found):
        raise ProctorError(f"{where} is a {type(found).__name__}, not a function or class")
    if not inspect.isclass(found):
        _check_signature(
            found, (None,), options, where, "it must take one context, then the params by name"
        )
        return FunctionCheck(function=partial(found, **options) if options else found)
    is_check = issubclass(found, Check)
    if not is_check:
        _check_signature(found, (), options, where, "the class does not take these params")
    try:
        instance: Any = found(**options)
    except ProctorError:
        raise
    except Exception as error:
        raise ProctorError(f"{where} cannot be built: {type(error).__name__}: {error}") from error
    if is_check and target not in BUILT_IN:
        return instance
    method = instance if callable(instance) else getattr(instance, "evaluate", None)
    if not callable(method):
        raise ProctorError(
            f"{where} has neither __call__(context) nor evaluate(context)", hint="add one of them"
        )
    _check_signature(method, (None,), {}, where, "it must take one context")
    return FunctionCheck(function=method)


def find_check(name: str, base_dir: str | Path | None = None) -> Any:
    """Return a check by import path, by the name of an entry point, or built in."""
    if ":" in name:
        return load_object(name, base_dir)
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name == GIVEN_IN_PYTHON:
        raise ProctorError(
            "the check was a function given in Python, which has no import path",
            hint="define it at the top level of a module to make it importable",
        )
    # Imported here: searching the installed packages is slow, and rarely needed.
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


def import_path(found: Any) -> str:
    """Return `package.module:name` of a function or class, or `GIVEN_IN_PYTHON`."""
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", "")
    if module is None or module == "__main__" or "<" in name:
        return GIVEN_IN_PYTHON
    # The path counts only if it leads back to this object: closures and redefinitions do not.
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    if value is not found:
        return GIVEN_IN_PYTHON
    # Our own classes go by their public name, which stays when a module is renamed.
    return f"{'proctor.checks' if module.startswith('proctor.checks.') else module}:{name}"


def written_check(target: str | Callable[..., Any]) -> dict[str, Any]:
    """Return a check as a suite file writes it, `{check, params}`, with JSON values only."""
    if isinstance(target, str):
        return {"check": target}
    if not isinstance(target, Check):
        return {"check": import_path(target)}
    counted = {"id", "weight", "required"}
    return {
        "check": import_path(type(target)),
        "params": target.model_dump(mode="json", exclude_unset=True, exclude=counted),
        **target.model_dump(include=counted, exclude_unset=True, exclude_none=True),
    }


def _check_signature(
    function: Callable[..., Any],
    positional: tuple[Any, ...],
    params: dict[str, Any],
    where: str,
    hint: str,
) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in callables have no signature
        return
    try:
        # Bound now, so that a wrong parameter is an error before the run, not in each trial.
        signature.bind(*positional, **params)
    except TypeError as error:
        raise ProctorError(f"{where}{signature}: {error}", hint=hint) from None


def as_results(value: Any, threshold: float = DEFAULT_THRESHOLD) -> Results:
    """Convert the value a check function returned; a number passes if it reaches the threshold."""
    if isinstance(value, Mapping):
        named = cast("Mapping[Any, Any]", value)
        return {str(name): _result(item, None, threshold) for name, item in named.items()}
    return _result(value, None, threshold)


def _result(value: Any, reason: str | None, threshold: float) -> CheckResult:
    if isinstance(value, CheckResult):
        return value
    if isinstance(value, Metric):
        return value.result()
    if isinstance(value, tuple) and reason is None:
        pair = cast("tuple[Any, ...]", value)
        # (value, reason): only once, so that a reason is never replaced.
        if len(pair) == 2 and isinstance(pair[1], str):
            return _result(pair[0], pair[1], threshold)
    number = getattr(cast("Any", value), "item", None)
    if callable(number) and not isinstance(value, bool | int | float):
        value = number()  # a scalar of numpy, torch and similar libraries
    # bool first, since it is a number in Python.
    if isinstance(value, bool):
        make = passed if value else failed
        return make(reason or f"the check returned {value}", actual=value)
    if isinstance(value, int | float) and 0 <= value <= 1:
        score = f"{value:.2f}, expected at least {threshold:g}"
        return CheckResult(
            score=float(value),
            passed=value >= threshold,
            reason=f"{reason} ({score})" if reason else f"the check returned {score}",
            expected=threshold,
            actual=value,
        )
    kind = type(cast("Any", value)).__name__
    shown = repr(value) if isinstance(value, int | float) else f"a {kind}"
    return unscored(
        f"the check returned {shown}: return a bool, a number from 0 to 1, a CheckResult, one of "
        "these with a reason, or Metric(number) to record a number that is no score"
    )
