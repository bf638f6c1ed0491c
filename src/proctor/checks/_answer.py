"""Checks of the answer: Contains, ContainsAny, Excludes, Equals, Matches, JSONSchema, JMESPath,
ExpectedOutput.

Two texts that a reader sees as the same compare as the same (Unicode NFC, one kind of line end,
case ignored unless `case_sensitive`), and a pattern that never ends is stopped.
"""

from __future__ import annotations

import json
import operator
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast

from pydantic import Field, model_validator

from proctor.checks.base import (
    Check,
    CheckContext,
    CheckResult,
    Names,
    OneOrMoreTexts,
    Results,
    Text,
    Texts,
    checked_by,
    compile_expression,
    failed,
    passed,
    refused,
    unscored,
)
from proctor.checks.metrics.alignment import canonical
from proctor.checks.metrics.matching import shortened
from proctor.errors import ProctorError
from proctor.formatting import and_more
from proctor.sanitize import json_value
from proctor.strict import Strict
from proctor.trace.model import Observable

PATTERN_SECONDS = 1.0
"""Time for one pattern on one answer: a sound pattern reads 10 MB in a fraction of it."""

SHOWN_CHARS = 200
"""How much of a text a reason quotes; `expected` and `actual` hold it whole."""

WHOLE_CHARS = 80
"""Up to this length a reader finds the difference of two texts without being shown the place."""

_SHOWN_TEXTS = 5
"""How many texts a reason quotes; `expected` holds them all."""


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise `ProctorError` for what is not a regular expression."""
    for pattern in patterns:
        _compiled(pattern, False)


Patterns = Annotated[Texts, checked_by(check_patterns)]
if TYPE_CHECKING:  # `Matches("a+")` and `Matches(["a+", "b+"])` are both fine
    OneOrMorePatterns = Sequence[str]
else:
    OneOrMorePatterns = Patterns


_FENCE = re.compile(r"^```[\w-]*\n(.*)\n```$", re.DOTALL)

Tolerance = Annotated[float, Field(ge=0)] | Annotated[str, Field(pattern=r"^\d+(\.\d+)?\s*%$")]
"""A number, or a share of the expected value."""


class _TextsCheck(Check):
    """A check of which texts the answer contains."""

    quick: ClassVar[bool] = True
    texts: OneOrMoreTexts = Field(kw_only=False)
    case_sensitive: bool = False

    def found_in(self, answer: str) -> list[str]:
        folded = normalised(answer, self.case_sensitive)
        return [text for text in self.texts if _normalised(text, self.case_sensitive) in folded]


class Contains(_TextsCheck):
    """All of the texts are in the answer; the score is the share that is.

    Example: `Contains("Paris")`, `Contains(["Paris", "France"], case_sensitive=True)`.
    """

    name: ClassVar[str] = "expected_in_answer"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        texts, answer = self.texts, ctx.answer
        found = self.found_in(answer)
        details: dict[str, Any] = {"expected": list(texts), "actual": answer}
        if len(found) == len(texts):
            return passed(f"the answer contains {_quoted(texts)}", **details)
        missing = [text for text in texts if text not in found]
        return failed(
            f"{subject_of(answer)} lacks {_quoted(missing)} ({len(found)} of {len(texts)} found)",
            score=len(found) / len(texts),
            **details,
        )


class ContainsAny(_TextsCheck):
    """At least one of the texts is in the answer.

    Example: `ContainsAny(["30 days", "a month"])`.
    """

    name: ClassVar[str] = "any_expected_in_answer"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        found = self.found_in(ctx.answer)
        details: dict[str, Any] = {"expected": list(self.texts), "actual": ctx.answer}
        if found:
            return passed(f"the answer contains {_quoted(found)}", **details)
        return failed(f"{subject_of(ctx.answer)} has none of {_quoted(self.texts)}", **details)


class Excludes(_TextsCheck):
    """None of the texts is in the answer.

    Example: `Excludes(["I cannot", "as an AI"])`.
    """

    name: ClassVar[str] = "not_in_answer"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        found = self.found_in(ctx.answer)
        details: dict[str, Any] = {"expected": list(self.texts), "actual": ctx.answer}
        if not found:
            return passed(f"the answer does not contain {_quoted(self.texts)}", **details)
        return failed(f"the answer contains {_quoted(found)}, which it must not", **details)


class Equals(Check):
    """The answer is the text, up to surrounding white space, line ends and (by default) case.

    Example: `Equals("42")`.
    """

    name: ClassVar[str] = "exact_match"
    quick: ClassVar[bool] = True
    text: Text = Field(kw_only=False)
    case_sensitive: bool = False

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        wanted, answer = self.text.strip(), ctx.answer.strip()
        ours = normalised(answer, self.case_sensitive).strip()
        theirs = normalised(wanted, self.case_sensitive).strip()
        details: dict[str, Any] = {"expected": self.text, "actual": ctx.answer}
        if ours == theirs:
            return passed(f"the answer is {shown(self.text)}", **details)
        if not answer:
            return failed(f"the answer is empty, expected {shown(wanted)}", **details)
        if max(len(ours), len(theirs)) <= WHOLE_CHARS:
            return failed(f"the answer is {shown(answer)}, expected {shown(wanted)}", **details)
        # Long texts are shown around the first difference.
        pairs = enumerate(zip(ours, theirs, strict=False))
        place = next((n for n, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
        around = slice(max(0, place - 20), place + 40)
        there = f"{shown(ours[around])}, expected {shown(theirs[around])}"
        return failed(f"the answer differs from character {place + 1} on: {there}", **details)


class Matches(Check):
    """Every regular expression is found somewhere in the answer; the score is the share that is.

    Example: `Matches(r"\\d+ days")`.
    """

    name: ClassVar[str] = "regex_match"
    patterns: OneOrMorePatterns = Field(kw_only=False)
    case_sensitive: bool = False

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        patterns, answer = self.patterns, ctx.answer
        details: dict[str, Any] = {"expected": list(patterns), "actual": answer}
        try:
            matches = [search(p, answer, self.case_sensitive) for p in patterns]
        # The pattern is at fault, not the agent: neither passed nor failed.
        except PatternTimeout as error:
            return unscored(str(error), **details)
        found = [match for match in matches if match is not None]
        if len(found) == len(patterns):
            return passed(f"found {_quoted(found)}", **details)
        missing = [p for p, match in zip(patterns, matches, strict=True) if match is None]
        return failed(
            f"{subject_of(answer)} has no match of {_quoted(missing)} "
            f"({len(found)} of {len(patterns)} found)",
            score=len(found) / len(patterns),
            **details,
        )


# -- comparing texts -----------------------------------------------------------------------------


def normalised(text: str, case_sensitive: bool = False) -> str:
    """Return the form in which texts are compared: NFC, `\\n` line ends, case folded."""
    text = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n")
    # Folding can break NFC: `İ` becomes an `i` and a combining dot.
    return text if case_sensitive else unicodedata.normalize("NFC", text.casefold())


_normalised = lru_cache(maxsize=1024)(normalised)
"""For the texts of a case, which are the same in all its trials; answers are not cached."""


class PatternTimeout(Exception):
    """A pattern backtracked for too long to say whether it matches."""

    def __init__(self, pattern: str, text: str) -> None:
        super().__init__(
            f"the pattern {shown(pattern)} ran longer than {PATTERN_SECONDS:g} s on a text of "
            f"{len(text):,} characters: it backtracks without end; avoid nested repeats such "
            "as (a+)+"
        )


# Cached: the patterns of a suite are compiled once for all trials.
@lru_cache(maxsize=256)
def _compiled(pattern: str, case_sensitive: bool) -> Any:
    import regex  # unlike `re`, it can be stopped by a timeout

    try:
        return regex.compile(pattern, 0 if case_sensitive else regex.IGNORECASE)
    except regex.error as error:
        raise ProctorError(f"{shown(pattern)} is not a regular expression: {error}") from None
    # Deeply nested groups, or repeats of huge repeats.
    except (RecursionError, OverflowError, MemoryError):
        raise ProctorError(f"{shown(pattern)} is too large for a regular expression") from None


def search(pattern: str, text: str, case_sensitive: bool = False) -> str | None:
    """Return the first match of a pattern in a text; raise `PatternTimeout` if it never ends."""
    try:
        match = _compiled(pattern, case_sensitive).search(text, timeout=PATTERN_SECONDS)
    except TimeoutError:
        raise PatternTimeout(pattern, text) from None
    return None if match is None else str(match.group())


# -- wording of reasons --------------------------------------------------------------------------


def shown(text: str, limit: int = SHOWN_CHARS) -> str:
    """Quote a text on one line, its middle cut out when it is long."""
    if len(text) > limit:
        half = limit // 2
        cut = len(text) - 2 * half
        return f"{text[:half]!r} … ({cut:,} characters) … {text[-half:]!r}"
    return repr(text)


def _quoted(texts: Sequence[str]) -> str:
    return and_more(texts, _SHOWN_TEXTS, lambda text: shown(text, 80))


def subject_of(answer: str) -> str:
    """Return the subject of a sentence about an answer, which says so when it is empty."""
    return "the answer" if answer.strip() else "the answer is empty: it"


# -- structured values ---------------------------------------------------------------------------
# Everything is checked when it is written, not when it first runs: expressions, functions, patterns
# and schemas. References in a schema are never fetched, and a schema that refers to itself without
# end is refused. Values compare as JSON values do: 1 equals 1.0, true is not 1.

MAX_PROBLEMS = 5
"""How many schema errors a reason lists."""


class ExpectedOutput(Check):
    """The structured output has the expected fields; each field is a result of its own.

    Example: `ExpectedOutput({"total": 159.0, "items": ["a", "b"]}, tolerance=0.01,
    unordered=["items"], ignore=["id"])`. Paths are dotted; `*` is any one step.
    """

    name: ClassVar[str] = "expected_output"
    value: Any = Field(kw_only=False)
    """The expected value."""
    tolerance: Tolerance | dict[str, Tolerance] = 0
    """How far a number may be off: a number, a share such as `1%`, or one of them by path."""
    ignore: Names = ()
    """Paths of fields that are not compared."""
    unordered: Names = ()
    """Paths of lists whose order does not matter."""
    exact: bool = False
    """Whether a field that is not expected fails."""
    case_sensitive: bool = False

    def evaluate(self, ctx: CheckContext[Any], /) -> Results:
        """Compare the output with the expected value."""
        actual = ctx.value
        if actual is None:
            try:
                actual = json.loads(_FENCE.sub(r"\1", ctx.answer.strip()))
            except (ValueError, RecursionError):
                return failed(
                    f"{subject_of(ctx.answer)} is not JSON", expected=self.value, actual=ctx.answer
                )
        results: dict[str, CheckResult] = {}
        self._compare("", self.value, json_value(actual), results)
        return results

    def _compare(
        self, path: str, wanted: Any, actual: Any, results: dict[str, CheckResult]
    ) -> None:
        if path and _any_path(path, self.ignore):
            return
        if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
            fields, found = cast("Mapping[str, Any]", wanted), cast("Mapping[str, Any]", actual)
            for key, value in fields.items():
                here = f"{path}.{key}" if path else str(key)
                if key in found:
                    self._compare(here, value, found[key], results)
                elif not _any_path(here, self.ignore):
                    results[here] = failed("missing", expected=value)
            for key in found.keys() - fields.keys() if self.exact else ():
                here = f"{path}.{key}" if path else str(key)
                if not _any_path(here, self.ignore):
                    results[here] = failed("not expected", actual=found[key])
            return
        if isinstance(wanted, list) and isinstance(actual, list):
            self._compare_lists(path, cast("list[Any]", wanted), cast("list[Any]", actual), results)
            return
        same = self._same(path, wanted, actual)
        say = passed if same else failed
        reason = "as expected" if same else f"{shortened(actual)} instead of {shortened(wanted)}"
        results[path] = say(reason, expected=wanted, actual=actual)

    def _compare_lists(
        self, path: str, wanted: list[Any], actual: list[Any], results: dict[str, CheckResult]
    ) -> None:
        """Compare two lists: item by item, or each item with one that equals it in any place."""
        if not _any_path(path, self.unordered):
            for index, value in enumerate(wanted):
                here = f"{path}.{index}" if path else str(index)
                if index < len(actual):
                    self._compare(here, value, actual[index], results)
                else:
                    results[here] = failed("missing", expected=value)
            if len(actual) > len(wanted):
                extra = f"{len(actual)} items instead of {len(wanted)}"
                results[f"{path}.length" if path else "length"] = failed(extra)
            return
        left, found = list(actual), 0
        for value in wanted:
            for index, candidate in enumerate(left):
                inner: dict[str, CheckResult] = {}
                self._compare(f"{path}.*", value, candidate, inner)
                if all(each.passed for each in inner.values()):
                    del left[index]
                    found += 1
                    break
        total = max(len(wanted), len(actual))
        details: dict[str, Any] = {"expected": wanted, "actual": actual}
        if found == total:
            results[path] = passed("as expected, in any order", **details)
        else:
            reason = f"{found} of {total} items match"
            results[path] = failed(reason, score=found / total, **details)

    def _same(self, path: str, wanted: Any, actual: Any) -> bool:
        numbers = all(
            isinstance(each, int | float) and not isinstance(each, bool)
            for each in (wanted, actual)
        )
        if numbers:
            given = self.tolerance
            if isinstance(given, dict):
                given = next((t for p, t in given.items() if _any_path(path, (p,))), 0)
            share = isinstance(given, str)
            room = float(given.rstrip("% ")) / 100 * abs(wanted) if share else float(given)
            # A sum of floats is off in the last digit, which nobody means.
            return abs(wanted - actual) <= room + 1e-12 * abs(wanted)
        if isinstance(wanted, str) and isinstance(actual, str):
            case = self.case_sensitive
            return normalised(wanted, case).strip() == normalised(actual, case).strip()
        return type(wanted) is type(actual) and bool(wanted == actual)


def _any_path(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a dotted path is one of these, in which `*` is any one step."""
    steps = path.split(".")
    return any(
        len(steps) == len(other) and all(o in ("*", s) for s, o in zip(steps, other, strict=True))
        for other in (pattern.split(".") for pattern in patterns)
    )


class JSONSchema(Check):
    """The answer is JSON, and valid for the schema.

    Example: `JSONSchema({"type": "object", "required": ["price"]})`.
    """

    name: ClassVar[str] = "json_schema"
    json_schema: Schema = Field(kw_only=False)

    @cached_property
    def validator(self) -> Any:
        """The compiled schema, built once."""
        return validator_of(self.json_schema)

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        answer = ctx.answer
        details: dict[str, Any] = {"expected": self.json_schema, "actual": answer}
        try:
            value = json.loads(answer, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            reason = f"{subject_of(answer)} is not JSON: {error}; it is {shown(answer)}"
            return failed(reason, **details)
        try:
            problems = schema_problems(self.validator, value)
        except PatternTimeout as error:
            return unscored(str(error), **details)
        except RecursionError:
            return unscored(
                "the answer or the schema is nested too deeply to be compared", **details
            )
        if not problems:
            return passed("the answer is valid for the schema", **details)
        listed = "; ".join(problem[:300] for problem in problems[:MAX_PROBLEMS])
        more = len(problems) - MAX_PROBLEMS
        tail = f" (and {more} more)" if more > 0 else ""
        return failed(f"not valid for the schema: {listed}{tail}", **details)


def _refuse_constant(name: str) -> Any:
    # Python's parser accepts NaN and Infinity, which are not JSON.
    raise ValueError(f"{name} is not JSON")


# -- conditions on one value ----------------------------------------------------------------------

OPERATORS = ("eq", "ne", "gt", "gte", "lt", "lte", "contains", "regex", "exists")


class Operators(Strict):
    """Conditions on a value: at least one operator, all of which must hold."""

    path: str = Field(min_length=1)
    """A JMESPath expression over the trace's document, such as `length(tool_calls)`."""
    eq: Any = None
    """Equals, as JSON values do; `null` means null or absent."""
    ne: Any = None
    """Differs from."""
    gt: int | float | str | None = None
    """Is more than. Numbers compare with numbers, texts with texts (for example ISO dates)."""
    gte: int | float | str | None = None
    """Is at least."""
    lt: int | float | str | None = None
    """Is less than."""
    lte: int | float | str | None = None
    """Is at most."""
    contains: Any = None
    """A text contains this text, a list this item, a mapping this key."""
    regex: str | None = None
    """A regular expression is found in the value (a text, or the JSON of anything else)."""
    exists: bool | None = None
    """Whether there is a value: anything but null."""
    case_sensitive: bool = False
    """Whether `contains` and `regex` distinguish upper and lower case."""

    @model_validator(mode="after")
    def _valid_operators(self) -> Self:
        with refused():
            compile_expression(self.path)
            if self.regex is not None:
                check_patterns([self.regex])
        if not self.written:
            raise ValueError(f"{self.path!r} has no operator: add one of {', '.join(OPERATORS)}")
        return self

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The operators that were written; null counts for `eq` and `ne` only."""
        return tuple(
            name
            for name in OPERATORS
            if name in self.model_fields_set
            and (name in ("eq", "ne") or getattr(self, name) is not None)
        )

    def problems(self, value: Any) -> list[str]:
        """Return the conditions that a value does not meet; empty when it meets all."""
        return [
            _PROBLEMS[name].format(shortened(getattr(self, name)))
            for name in self.written
            if not self._holds(name, getattr(self, name), value)
        ]

    def _holds(self, name: str, wanted: Any, value: Any) -> bool:
        if name == "eq":
            return same_value(value, wanted)
        if name == "ne":
            return not same_value(value, wanted)
        if name == "exists":
            return (value is not None) == wanted
        if name == "contains":
            return contains_value(value, wanted, case_sensitive=self.case_sensitive)
        if name == "regex":
            # Also for numbers and mappings, by their JSON.
            text = value if isinstance(value, str) else as_json(value)
            found = search(wanted, text, self.case_sensitive)
            return value is not None and found is not None
        # Numbers are compared with numbers and texts with texts; anything else has no order.
        numbers = all(
            isinstance(v, int | float) and not isinstance(v, bool) for v in (value, wanted)
        )
        if not numbers and not (isinstance(value, str) and isinstance(wanted, str)):
            return False
        return _ORDERS[name](value, wanted)


_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
_PROBLEMS = {
    "eq": "does not equal {}",
    "ne": "should not equal {}",
    "gt": "is not more than {}",
    "gte": "is not at least {}",
    "lt": "is not less than {}",
    "lte": "is not at most {}",
    "contains": "does not contain {}",
    "regex": "has no match of {}",
    "exists": "exists is not {}",
}


# Work that was not observed is an empty list, or null, in the document.
_FIELD_NEEDS: dict[str, Observable] = {
    "tool_calls": "tool_calls",
    "tool_sequence": "tool_calls",
    "handoffs": "tool_calls",
    "llm_calls": "model_calls",
    "usage": "model_calls",
}


class JMESPath(Operators, Check):
    """The value of a JMESPath expression over the trial meets every operator.

    Example: `JMESPath("length(tool_calls)", gte=1)`.
    """

    name: ClassVar[str] = "jmespath"
    path: str = Field(min_length=1, kw_only=False)

    @property
    def needs(self) -> tuple[Observable, ...]:
        """What the fields of the trial in the expression need."""
        words = re.findall(r"\w+", self.path)
        return tuple(dict.fromkeys(_FIELD_NEEDS[word] for word in words if word in _FIELD_NEEDS))

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        return self.judge(ctx.document)

    def judge(self, document: Any) -> CheckResult:
        """Judge one document."""
        from jmespath.exceptions import JMESPathError

        details: dict[str, Any] = {
            "expected": {"path": self.path, **{name: getattr(self, name) for name in self.written}}
        }
        try:
            value = compile_expression(self.path).search(document)
        # A function of a missing or wrong value, such as length(null): the trial lacks what the
        # expression needs, so the check fails.
        except (JMESPathError, RecursionError, ArithmeticError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            return failed(f"{self.path} has no value here: {reason}", **details)
        details["actual"] = value
        try:
            wrong = self.problems(value)
        except PatternTimeout as error:
            return unscored(str(error), **details)
        found = shortened(value)
        if wrong:
            return failed(f"{self.path} is {found}: {' and '.join(wrong)}", **details)
        return passed(f"{self.path} is {found}", **details)


def same_value(one: Any, other: Any) -> bool:
    """Return whether two values are equal as JSON values."""
    return _key(one) == _key(other)


def _key(value: Any) -> Any:
    # Text that happens to be JSON stays text, and null is not an empty mapping.
    return ("text", value) if isinstance(value, str) or value is None else canonical(value)


def as_json(value: Any) -> str:
    """Return any value as one line of JSON; what JSON has no form for becomes its text."""
    return json.dumps(value, ensure_ascii=False, default=str)


def contains_value(value: Any, wanted: Any, *, case_sensitive: bool = False) -> bool:
    """Return whether a text has this part, a list this item, or a mapping this key."""
    if isinstance(value, str):
        text = wanted if isinstance(wanted, str) else as_json(wanted)
        return normalised(text, case_sensitive) in normalised(value, case_sensitive)
    if isinstance(value, Mapping):
        # As in Python, a mapping contains its keys.
        return wanted in value
    if isinstance(value, list | tuple):
        key = _key(wanted)
        return any(_key(item) == key for item in cast("list[Any]", value))
    return False


# -- JSON Schema without a network ---------------------------------------------------------------


def validator_of(schema: dict[str, Any]) -> Any:
    """Return a validator that stays offline; raise `ProctorError` if the schema is not usable."""
    # Both libraries are typed only in part; what matters is checked by the tests.
    validators: Any = import_module("jsonschema.validators")
    exceptions: Any = import_module("jsonschema.exceptions")
    referencing: Any = import_module("referencing")
    specification: Any = import_module("referencing.jsonschema").DRAFT202012

    dialect = schema.get("$schema")
    latest = None if dialect else validators.Draft202012Validator
    kind: Any = validators.validator_for(schema, default=latest)
    if kind is None:
        raise ProctorError(
            f"the JSON Schema dialect {dialect!r} is not known",
            hint="leave `$schema` out, or name a published draft",
        )
    try:
        problem = exceptions.best_match(kind(kind.META_SCHEMA).iter_errors(schema))
        if problem is not None:
            place = "/".join(str(step) for step in problem.absolute_path) or "the schema"
            raise ProctorError(f"not a JSON Schema: {place}: {problem.message}")
        resource = referencing.Resource.from_contents(schema, default_specification=specification)
        registry = referencing.Registry().with_resource(resource.id() or "", resource).crawl()
        _refuse_remote(resource, registry)
        # Ours search with a timeout, which the library's own patterns do not have.
        checked = {"pattern": _pattern, "patternProperties": _pattern_properties}
        validator = validators.extend(kind, checked)(schema, registry=registry)
        # Fails here, not in a run, for a schema that refers to itself without looking any deeper.
        validator.is_valid(None)
    except RecursionError:
        raise ProctorError("the JSON Schema is nested too deeply, or refers to itself") from None
    return validator


Schema = Annotated[dict[str, Any], checked_by(validator_of)]


def schema_problems(validator: Any, document: Any) -> list[str]:
    """Return where and why a document is not valid, the most relevant first."""
    from jsonschema.exceptions import relevance

    errors = sorted(validator.iter_errors(document), key=relevance, reverse=True)
    return [f"{error.json_path}: {error.message}" for error in errors]


def _refuse_remote(resource: Any, registry: Any) -> None:
    from referencing.exceptions import Unresolvable

    pending = [(resource, registry.resolver_with_root(resource))]
    while pending:
        current, resolver = pending.pop()
        contents = current.contents
        if isinstance(contents, dict):
            # Resolved here, without a network, so that no reference fails in the middle of a run.
            for key in ("$ref", "$dynamicRef", "$recursiveRef"):
                target = cast("dict[str, Any]", contents).get(key)
                if not isinstance(target, str):
                    continue
                try:
                    resolver.lookup(target)
                except Unresolvable:
                    raise ProctorError(
                        f"the JSON Schema refers to {target!r}, which is not in it",
                        hint="references are never fetched: put the definition under `$defs` "
                        "and refer to '#/$defs/…'",
                    ) from None
        pending.extend((sub, resolver.in_subresource(sub)) for sub in current.subresources())


def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and search(pattern, instance, case_sensitive=True) is None:
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, _schema: Any
) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for pattern, subschema in patterns.items():
        check_patterns([pattern])
        for key, value in cast("dict[str, Any]", instance).items():
            if search(pattern, key, case_sensitive=True) is not None:
                yield from validator.descend(value, subschema, path=key, schema_path=pattern)
