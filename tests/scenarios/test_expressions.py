"""The language of `!ev`: what it gives, what it refuses, and that it always ends."""

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proctor.scenarios._expressions import MAX_LENGTH, ExpressionError
from proctor.scenarios._interpreter import (
    KNOWN,
    MAX_BITS,
    MAX_ITEMS,
    MAX_STEPS,
    MAX_TEXT,
    STEPS_PER_WORD,
    Budget,
    Scope,
    UnknownNameError,
    evaluate,
)
from proctor.scenarios._randomness import RandomSource


def value_of(
    text: str, names: Mapping[str, Any] | None = None, budget: Budget | None = None
) -> Any:
    known = dict(names or {})

    def named(name: str) -> Any:
        if name not in known:
            raise UnknownNameError(name)
        return known[name]

    scope = Scope(
        names=named,
        known=lambda: list(known),
        ref=lambda path: {"values.x": 3}[path],
        stream=lambda: RandomSource("t", 7).stream(("here",)),
        budget=budget or Budget(),
    )
    return evaluate(text, scope)


def refused(text: str, names: Mapping[str, Any] | None = None) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        value_of(text, names)
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3 ** 2", 19),
        ("-2 ** 2", -4),
        ("2 ** -1", 0.5),
        ("2 ** 3 ** 2", 512),
        ("(1 + 2) * 3", 9),
        ("7 // 2", 3),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("7 / 2", 3.5),
        ("1_000 + .5", 1000.5),
        ("1e3", 1000.0),
        ("0.1 + 0.2", 0.1 + 0.2),
        ("sum([0.1] * 10)", 1.0),
        ("sum([1, 2, 3])", 6),
        ("1 < 2 < 3", True),
        ("1 < 3 < 2", False),
        ("1 == 1.0", True),
        ("1 == true", False),
        ("'a' in ['a'] and 'b' not in 'ac'", True),
        ("'k' in {'k': 1}", True),
        ("false and 1 / 0 > 0", False),
        ("true or 1 / 0 > 0", True),
        ("not 1 > 2", True),
        ("'yes' if n > 3 else 'no'", "yes"),
        ("1 if false else 2 if false else 3", 3),
        ("[x * x for x in range(4) if x % 2 == 1]", [1, 9]),
        ("[a + b for a in range(2) for b in [10, 20]]", [10, 20, 11, 21]),
        ("[a * b for a, b in zip([1, 2], [3, 4])]", [3, 8]),
        ("{f's{i}': i for i in range(2)}", {"s0": 0, "s1": 1}),
        ("{'a': 1, 'b': [2]}['b'][0]", 2),
        ("[1, 2, 3][-1]", 3),
        ("[1, 2, 3][1:]", [2, 3]),
        ("'text'[:2]", "te"),
        ("f'{n} of {{n}}: {fixed(1 / 3, 2)}'", "5 of {n}: 0.33"),
        (r"'a\tb\n\'c\' \u00e9'", "a\tb\n'c' é"),
        ('"it\'s"', "it's"),
        ("[]", []),
        ("{}", {}),
        ("[1, 2,]", [1, 2]),
        ("true", True),
        ("None", None),
        ("ref('values.x') + 1", 4),
        ("pi", math.pi),
        ("'ab' * 2 + 'c'", "ababc"),
        ("2 * [0]", [0, 0]),
        ("[0] * -1", []),
        ("-0.0", 0.0),
        ("  1\n  + 2\n", 3),
        ("'é' + f'{n}ü'", "é5ü"),
    ],
)
def test_values(text: str, value: object) -> None:
    """R-S4: arithmetic, comparisons, conditions, lists, mappings and texts mean what they say."""
    found = value_of(text, {"n": 5})
    assert found == value
    assert type(found) is type(value)
    assert not (isinstance(found, float) and math.copysign(1, found) < 0 and found == 0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("abs(-3)", 3),
        ("ceil(1.2) + floor(1.8)", 3),
        ("round(2.675, 2)", 2.67),
        ("round(2.5)", 2),
        ("clamp(11, 0, 10)", 10),
        ("min(3, 1, 2) + max([4, 5])", 6),
        ("mean([1, 2, 4.5])", 2.5),
        ("sqrt(9)", 3.0),
        ("log(8, 2)", 3.0),
        ("log(100, 10)", 2.0),
        ("exp(0)", 1.0),
        ("round(sin(pi / 6), 12)", 0.5),
        ("round(cos(pi), 12)", -1.0),
        ("int('12') + int(3.9) + int(true)", 16),
        ("float('1.5')", 1.5),
        ("str(1.0) + str(true) + str(null)", "1.0truenull"),
        ("fixed(2, 3)", "2.000"),
        ("join(['a', 1, 2.5])", "a, 1, 2.5"),
        ("join(['a', 'b'], '-')", "a-b"),
        ("split('a b  c')", ["a", "b", "c"]),
        ("split('a,b', ',')", ["a", "b"]),
        ("replace('aXbX', 'X', '-')", "a-b-"),
        ("lower('AB') + upper('cd') + title('ef gh')", "abCDEf gh"),
        ("len('abc') + len([1]) + len({'k': 1})", 5),
        ("range(2, 9, 3)", [2, 5, 8]),
        ("range(3, 0, -1)", [3, 2, 1]),
        ("linspace(0, 1, 3)", [0.0, 0.5, 1.0]),
        ("sorted([3, 1, 2])", [1, 2, 3]),
        ("sorted(['b', 'a'])", ["a", "b"]),
        ("reversed([1, 2])", [2, 1]),
        ("unique([1, 1, 'a', true])", [1, "a", True]),
        ("keys({'a': 1})", ["a"]),
        ("values({'a': 1})", [1]),
        ("any([x > 2 for x in [1, 3]])", True),
        ("all([])", True),
    ],
)
def test_functions(text: str, value: object) -> None:
    """R-S4: every function gives what its line in the reference says."""
    found = value_of(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message", "part"),
    [
        ("().__class__.__bases__", "attribute access", ".__class__"),
        ("n.real", "attribute access", ".real"),
        ("__import__('os')", "underscore", "__import__"),
        ("_x", "underscore", "_x"),
        ("lambda: 1", "`lambda`", "lambda"),
        ("[x for x in [1] if (lambda: 1)]", "`lambda`", "lambda"),
        ("import os", "`import`", "import"),
        ("exec('1')", "`exec`", "exec"),
        ("open('/etc/passwd')", "no function 'open'", "open"),
        ("getattr(n, 'real')", "no function 'getattr'", "getattr"),
        ("(n)(3)", "only the functions", "("),
        ("[range][0](3)", "there is no value|only the functions", None),
        ("x := 3", "assignment", ":="),
        ("min(a=3)", "`=` is not", "="),
        ("1 << 100000", "bits", "<<"),
        ("1 ^ 2", "bits", "^"),
        ("~1", "bits", "~"),
        ("9 ** 9 ** 9", f"{MAX_BITS} bits", "9 ** 9 ** 9"),
        ("10 ** 100", f"{MAX_BITS} bits", "10 ** 100"),
        ("2.0 ** 5000", "too large", "2.0 ** 5000"),
        ("(10 ** 70) * (10 ** 70)", f"{MAX_BITS} bits", None),
        ("1e308 * 10", "not a finite number", "1e308 * 10"),
        ("1e999", "too large", "1e999"),
        ("9" * 200, "digits", None),
        ("(-8) ** 0.5", "root of a negative", "(-8) ** 0.5"),
        ("0 ** -1", "division by zero", "0 ** -1"),
        ("1 / 0", "division by zero", "1 / 0"),
        ("1 % 0.0", "division by zero", "1 % 0.0"),
        ("exp(1e6)", "too large", "exp(1e6)"),
        ("'a' * 1000000", "longer than", None),
        ("[0] * 1000000", "longer than", None),
        ("range(10 ** 12)", f"more than {MAX_ITEMS:,}", "range(10 ** 12)"),
        ("range(10 ** 70)", f"more than {MAX_ITEMS:,}", None),
        ("range(0, -(10 ** 70), -1)", f"more than {MAX_ITEMS:,}", None),
        ("range(1, 2, 0)", "steps of 0", None),
        ("linspace(0, 1, 10 ** 9)", "expected 0 to", None),
        ("join(['a' * 10000] * 100)", "characters", None),
        ("replace('a' * 10000, 'a', 'b' * 10000)", "characters", None),
        ("choices([1], 10 ** 9)", "expected 0 to", None),
        ("binomial(10 ** 9, 0.5)", "expected 0 to", None),
        ("poisson(1e9)", "expected 0 to 500", None),
        ("truncated_normal(0, 1, 50, 60)", "between the bounds", None),
        ("f'{n:1000000000}'", "no formats", ":"),
        ("f'{n'", "closing `}`", None),
        ("fixed(1, 10 ** 9)", "expected 0 to 15", None),
        ("unifrom(0, 1)", "no function 'unifrom'", "unifrom"),
        ("nn + 1", "no value 'nn'", "nn"),
        ("range + 1", "no value 'range'", "range"),
        ("'abc", "does not end", "'"),
        ("1 if true", "needs an `else`", None),
        ("[1, 2", "is missing", None),
        ("1 2", "should end", "2"),
        ("1, 2", "should end", ","),
        ("", "missing at the end", None),
        (r"'\q'", "not an escape", None),
        (r"'\ud800'", "not an escape", None),
        ("not 1", "expected true or false", "not 1"),
        ("1 if n else 2", "expected true or false", None),
        ("true + 1", "expected a number, got true", "true + 1"),
        ("'a' + 1", "expected a number", None),
        ("'a' < 1", "expected a number", None),
        ("[1][5]", "no item 5", "[1][5]"),
        ("{'ab': 1}['ac']", "no key 'ac'", None),
        ("min()", "takes 1 to 100 values", "min()"),
        ("uniform(1)", "takes 2 values", "uniform(1)"),
        ("uniform(2, 1)", "wrong way round", None),
        ("randint(1.5, 3)", "whole number", None),
        ("choice([])", "empty", None),
        ("choice(['a'], [0])", "weights", None),
        ("sample([1], 2)", "cannot be drawn", None),
        ("[a for a, b in [[1]]]", "2 variables", None),
        ("sin(1e300)", "too large", None),
        ("\x00", "not part", None),
        ("n # 3", "not part", "#"),
        ("  1 2", "should end", "2"),
        ("'é' + n.real", "attribute access", ".real"),
        ("'é' + 1 / 0", "division by zero", "1 / 0"),
        ("0x1F", "runs into a name", "0x"),
        ("1j", "runs into a name", "1j"),
        ("r'a'", "only `f`", "r"),
        ("b'a'", "only `f`", "b"),
        ("...", "not part", "..."),
        ("n; n", "not part", ";"),
        ("1) + (2", "should end", ")"),
        ("f'{n!r}'", "no formats", None),
        ("f'{n=}'", "no formats", None),
        ("f'{n.real}'", "not part", None),
        ("f'{(lambda: 1)}'", "not part", None),
        ("f'}'", "written `}}`", None),
        ("min(*[1])", "not part", "*[1]"),
        ("min(x for x in [1])", "not part", None),
        ("{1, 2}", "not part", "{1, 2}"),
        ("{**{'a': 1}}", "cannot stand", None),
        ("[1, 2, 3][::2]", "a start and an end", "::2"),
        ("[1, 2][0, 1]", "should end", ","),
        ("[1 for n[0] in [1]]", "names of variables", "n[0]"),
        ("[1 for a, [b, c] in [[1, [2, 3]]]]", "names of variables", "[b, c]"),
        ("[1 for true in [1]]", "names of variables", "true"),
        ("'a\nb'", "does not end", "'"),
        ("n is n", "`is`", "is"),
    ],
)
def test_refusals_name_the_part(text: str, message: str, part: str | None) -> None:
    """R-S4: hostile and mistaken expressions are refused, with the part that is meant."""
    error = refused(text, {"n": 5})
    assert re.search(message, error.message), error.message
    if part is not None:
        assert text[error.start : error.end] == part


def test_a_slip_gets_a_hint() -> None:
    """R-S4: unknown names and functions are told with their nearest neighbours."""
    assert refused("unifrom(0, 1)").hint == "did you mean 'uniform'?"
    assert refused("specis + 1", {"species": 3}).hint == "did you mean 'species'?"
    assert refused("{'abcd': 1}['abce']").hint == "did you mean 'abcd'?"


@pytest.mark.parametrize(
    "text",
    [
        "(" * 3_000,
        "-" * 3_900 + "1",
        "not " * 900 + "true",
        "[" * 500 + "]" * 500,
        "+".join(["1"] * 1_900),
        "x" + "[0]" * 1_200,
        "2" + "**2" * 1_000,
        "{'a':" * 600 + "1" + "}" * 600,
        "1 if true else " * 250 + "1",
        "f'" + "{f" * 900 + "'",
    ],
)
def test_depth_is_refused_not_survived_by_luck(text: str) -> None:
    """R-S4: deep recursion is refused by a bound, far from the end of the stack."""
    error = refused(text, {"x": [0]})
    assert "deep" in error.message or "missing" in error.message or "stand" in error.message


@pytest.mark.parametrize(
    "text",
    [
        "[[[0 for a in range(9999)] for b in range(9999)] for c in range(9999)]",
        "[0 for a in range(9999) for b in range(9999) if false]",
        "['a' * 20000 for a in range(9999)]",
        "[[0] * 9999 for a in range(9999)]",
        "[range(9999) for a in range(9999)]",
        "[join(['a'] * 9999, '') for a in range(9999)]",
        "[sorted(shuffle(range(9999))) for a in range(9999)]",
        "[binomial(9999, 0.5) for a in range(9999)]",
        "[truncated_normal(0, 1, 2.5, 9) for a in range(9999)]",
        "[[normal(0, 1) for a in range(9999)] for b in range(99)]",
        "[[1.5 ** 2.5 for a in range(9999)] for b in range(99)]",
    ],
)
def test_work_is_bounded(text: str) -> None:
    """R-S4: what would take minutes or gigabytes is refused by the budget of the build."""
    budget = Budget()
    with pytest.raises(ExpressionError, match=f"{MAX_STEPS:,} steps"):
        value_of(text, budget=budget)
    assert -STEPS_PER_WORD * MAX_ITEMS <= budget.left < 0  # it stopped within a call


def test_long_expressions_are_refused() -> None:
    """R-S4: an expression has an end."""
    assert f"{MAX_LENGTH:,} characters" in refused("1" + " " * MAX_LENGTH).message


# -- properties ----------------------------------------------------------------------------------

NUMBERS = st.integers(-50, 50)
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


@st.composite
def arithmetic(draw: st.DrawFn, depth: int = 4) -> tuple[str, Any]:
    """An expression and, beside it, what it comes to."""
    if depth == 0 or draw(st.booleans()):
        number = draw(NUMBERS)
        return (f"({number})" if number < 0 else str(number)), number
    (left, a), (right, b) = draw(arithmetic(depth - 1)), draw(arithmetic(depth - 1))
    sign = draw(st.sampled_from(sorted(_OPERATORS)))
    if sign in ("//", "%") and b == 0:
        sign = "+"
    return f"({left} {sign} {right})", _OPERATORS[sign](a, b)


@given(arithmetic())
def test_arithmetic_agrees_with_python(made: tuple[str, Any]) -> None:
    """R-S4: whole numbers are exact."""
    text, value = made
    assert value_of(text) == value


@given(st.text(max_size=80))
@example("0x1F")
@example("1__0")
@example("٣")
@example("ﬁ(1)")
def test_any_text_is_a_value_or_refused(text: str) -> None:
    """R-S4: no text escapes as anything but a plain bounded value or a located refusal."""
    _value_or_refusal(text)


WORDS = st.sampled_from(
    [
        *sorted(KNOWN),
        *"n m ( ) [ ] { } , : + - * ** / // % < <= == != and or not if else for in".split(),
        *"1|0|2.5|-1|'a'|f'{n}'|true|null|[1, 2]|range(3)|10 ** 9|.".split("|"),
    ]
)


@given(st.lists(WORDS, max_size=25))
def test_any_words_are_a_value_or_refused(words: list[str]) -> None:
    """R-S4: the same for texts made of the language's own words, which reach further in."""
    _value_or_refusal(" ".join(words))


def _value_or_refusal(text: str) -> None:
    error: ExpressionError | None = None
    found: Any = None
    try:
        found = value_of(text, {"n": 5, "m": ["a", "b"]}, Budget(20_000))
    except ExpressionError as refusal:
        error = refusal
    assert _is_plain(found) if error is None else 0 <= error.start <= error.end


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return len(value) <= MAX_ITEMS and all(
            type(k) is str and _is_plain(v) for k, v in value.items()
        )
    if isinstance(value, list):
        return len(value) <= MAX_ITEMS and all(map(_is_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    return value is None or (type(value) in (bool, int) and value.bit_length() <= MAX_BITS)
