"""Checks of the user's own, from Python, from a file beside the suite, and by name."""

import sys
import textwrap

import msgspec
import numpy as np
import pytest
from pydantic import Field, ValidationError
from trial_parts import judged, result, tool, trace_of

from proctor.checks import (
    Check,
    CheckContext,
    CheckResult,
    CheckStatus,
    Contains,
    CountToolCalls,
    ForbidTools,
    Matches,
    MaxCost,
    Metric,
)
from proctor.checks.custom import HasMatchingSpan, custom_check
from proctor.errors import ProctorError
from proctor.imports import load_object
from proctor.spec.case_checks import checks_of
from proctor.spec.load import load_suite

PASS, FAIL, UNSCORED = CheckStatus.PASS, CheckStatus.FAIL, CheckStatus.UNSCORED


def short(context, words=3):
    return len(context.answer.split()) <= words, f"{len(context.answer.split())} words"


class Calls:
    """A check with parameters, as a class."""

    def __init__(self, least: int) -> None:
        self.least = least

    async def __call__(self, context):
        return len(context.trace.tool_calls) >= self.least


class Evaluator:
    """A check in the words of other libraries."""

    def evaluate(self, context):
        return 0.5


@pytest.mark.parametrize(
    ("returned", "status", "score", "reason"),
    [
        (True, PASS, 1.0, "the check returned True"),
        (False, FAIL, 0.0, "the check returned False"),
        (0.8, PASS, 0.8, "the check returned 0.80, expected at least 0.8"),
        (0.5, FAIL, 0.5, "the check returned 0.50, expected at least 0.8"),
        (1, PASS, 1.0, "the check returned 1.00, expected at least 0.8"),
        ((False, "too rude"), FAIL, 0.0, "too rude"),
        ((0.9, "nearly"), PASS, 0.9, "nearly (0.90, expected at least 0.8)"),
        (CheckResult(score=0.4, passed=True, reason="fine"), PASS, 0.4, "fine"),
        (np.bool_(True), PASS, 1.0, "the check returned True"),
        (np.float32(0.25), FAIL, 0.25, "the check returned 0.25, expected at least 0.8"),
        (1.5, UNSCORED, None, "the check returned 1.5: return a bool, a number from 0 to 1"),
        (float("nan"), UNSCORED, None, "the check returned nan: "),
        (None, UNSCORED, None, "the check returned a NoneType: "),
        ("yes", UNSCORED, None, "the check returned a str: "),
    ],
)
async def test_what_a_check_may_return(returned, status, score, reason):
    """R-C9: bool, number, result, or value with a reason; anything else is unscored and said."""
    found = await result({"checks": [lambda context: returned]})
    assert (found.status, found.score) == (status, score)
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(
    ("returned", "results"),
    [
        (Metric(12), [("mine", 12, "12")]),
        (Metric(1.5, unit="s"), [("mine", 1.5, "1.5 s")]),
        (Metric(np.float64(2.5), "mean of three"), [("mine", 2.5, "2.5: mean of three")]),
        (
            {"words": Metric(3), "links": Metric(0, unit="links")},
            [("mine.words", 3, "3"), ("mine.links", 0, "0 links")],
        ),
    ],
)
async def test_metrics_are_recorded_and_judge_nothing(returned, results):
    """R-C9: a number to keep: no score, no weight, no failure, and it survives JSON."""
    outcome = await judged({"checks": [{"check": lambda ctx: returned, "id": "mine"}]})
    assert [(r.id, r.actual, r.reason) for r in outcome] == results
    assert {(r.status, r.score, r.weight, r.blocking) for r in outcome} == {
        (CheckStatus.METRIC, None, 0.0, False)
    }
    assert outcome.score is None
    written = msgspec.json.encode(tuple(outcome))
    assert msgspec.json.decode(written, type=tuple[CheckResult, ...]) == outcome


class MostWords(Check):
    """A check object of the user's own, with a field by position."""

    most: int = Field(kw_only=False)

    def evaluate(self, ctx: CheckContext[str], /) -> CheckResult:
        words = len(ctx.output.split())
        return CheckResult(passed=words <= self.most, reason=f"{words} words")


async def test_check_objects_of_the_user():
    """R-C9: a subclass of Check, by position, with an id, a weight and whether it blocks."""
    soft = MostWords(1, id="one", weight=3, required=False)
    outcome = await judged({"checks": [MostWords(2), soft]}, answer="a b")
    assert [(r.id, r.check, r.status, r.weight) for r in outcome] == [
        ("MostWords", "MostWords", PASS, 1.0),
        ("one", "MostWords", CheckStatus.WARN, 3.0),
    ]


async def test_check_objects_keep_the_rules_of_their_layer():
    """R-C5: in Python as in YAML, path and cost warn and weigh nothing, forbidden tools block."""
    checks = [MaxCost(0.01), ForbidTools("b"), CountToolCalls(max=0), Contains("x")]
    outcome = await judged({"checks": checks}, trace_of("b"), "y")
    assert [(r.id, r.status, r.weight) for r in outcome] == [
        ("expected_in_answer", FAIL, 1.0),
        ("forbidden_tools", FAIL, 1.0),
        ("tool_call_count", CheckStatus.WARN, 0.0),
        ("max_cost_usd", CheckStatus.PASS, 0.0),
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Contains(""), "an empty text is found in every answer"),
        (Contains, "Field required"),
        (lambda: MaxCost(-1), "greater than or equal to 0"),
        (lambda: Matches("("), "is not a regular expression"),
        (CountToolCalls, "has no bound"),
        (lambda: Contains("a", case_sensitve=True), "Extra inputs are not permitted"),
    ],
)
def test_wrong_arguments_are_refused_when_a_check_is_made(make, message):
    """R-C9: as strictly as in YAML."""
    with pytest.raises(ValidationError, match=message):
        make()
    with pytest.raises(TypeError, match="at most 1 positional"):
        Contains("a", "b")


async def test_what_a_context_offers():
    """R-C9: input, output, expected, the trace and its tree of spans."""
    seen = []
    case = {"checks": [seen.append], "correctness": {"exact_match": "yes"}}
    await judged(case, trace_of("a"), "yes")
    (ctx,) = seen
    assert (ctx.input, ctx.output, ctx.expected) == ("q", "yes", "yes")
    tree = ctx.span_tree
    assert [span.name for span in tree.spans] == [node.name for node in tree.roots] == ["a"]
    assert tree.any({"name_equals": "a"})
    assert tree.count(lambda node: node.name == "b") == 0
    await judged({**case, "properties": {"expected": 7}}, trace_of("a"), "[1]", value=[1])
    assert (seen[1].output, seen[1].answer, seen[1].expected) == ([1], "[1]", 7)


async def test_several_results_by_name():
    """R-C9: a mapping gives a result for each name."""
    outcome = await judged(
        {"checks": [{"check": lambda c: {"a": True, "b": (False, "no")}, "id": "mine"}]}
    )
    assert [(r.id, r.status, r.reason) for r in outcome] == [
        ("mine.a", PASS, "the check returned True"),
        ("mine.b", FAIL, "no"),
    ]


async def test_functions_and_classes_sync_and_async():
    """R-C9: one context in; params go to the constructor, or to the function beside it."""
    outcome = await judged(
        {
            "checks": [
                {"check": short, "params": {"words": 1}},
                {"check": Calls, "params": {"least": 2}},
                Evaluator,
            ],
            "threshold": 0.4,
        },
        trace_of("a", "b"),
        "two words",
    )
    assert [(r.id, r.status, r.reason) for r in outcome] == [
        ("short", FAIL, "2 words"),
        ("Calls", PASS, "the check returned True"),
        ("Evaluator", PASS, "the check returned 0.50, expected at least 0.4"),
    ]


async def test_what_a_check_is_given():
    """R-C9: case, trace, answer and baseline."""
    seen = []
    await judged({"checks": [seen.append]}, trace_of("a"), "yes", baseline=trace_of("b"))
    (context,) = seen
    assert (context.input, context.answer) == ("q", "yes")
    assert context.trace.tool_sequence == ["a"]
    assert context.baseline.tool_sequence == ["b"]


async def test_a_failed_assert_is_a_failed_check():
    """R-C9: `assert` reads as people mean it; other exceptions leave the check unscored."""

    def polite(context):
        assert "please" in context.answer, "does not say please"

        return True

    found = await result({"checks": [polite]}, answer="now!")
    assert (found.status, found.reason) == (FAIL, "does not say please")


async def test_has_matching_span():
    """R-C9: out of the box by name, with a span query or a query over the trace."""
    trace = trace_of("search", tool("book", failed=True))
    ask = {"check": "has_matching_span", "params": {"query": {"tool_name": "book"}}}
    assert (await result({"checks": [ask]}, trace)).status == PASS
    ask = {"check": "has_matching_span", "params": {"query": {"none": {"has_status": "error"}}}}
    found = await result({"checks": [ask]}, trace)
    assert (found.status, found.span_ids) == (FAIL, ("s2",))
    assert found.reason.startswith("1 of 2 spans match")
    assert (await result({"checks": [HasMatchingSpan({"kind": "tool"})]}, trace)).status == PASS
    # The word of pydantic-evals for its name in results.
    named = {"query": {"tool_name": "book"}, "evaluation_name": "booked"}
    ask = {"check": "has_matching_span", "params": named}
    assert (await result({"checks": [ask]}, trace)).id == "booked"
    assert (await result({"checks": [HasMatchingSpan(**named)]}, trace)).id == "booked"


# -- found by import path ------------------------------------------------------------------------


def write(folder, name, text):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text(textwrap.dedent(text))
    return folder


async def test_a_module_beside_the_suite(tmp_path):
    """R-C9: `checks_here:polite` is found in the suite's folder, without installing anything."""
    write(
        tmp_path,
        "polite_checks.py",
        "def polite(context):\n    return 'please' in context.answer\n",
    )
    write(
        tmp_path,
        "suite.yaml",
        """
        agent: nowhere:agent
        cases:
          - input: hello
            checks: [polite_checks:polite]
        """,
    )
    (case,) = load_suite(tmp_path / "suite.yaml").cases
    (planned,) = checks_of(case)
    assert (planned.id, planned.check, planned.blocking) == ("polite", "custom", True)


def test_two_suites_may_have_a_module_of_the_same_name(tmp_path):
    """R-C9: each suite gets its own `checks.py`, in one process, in any order."""
    one = write(tmp_path / "one", "own_checks.py", "WHO = 'one'\n")
    two = write(tmp_path / "two", "own_checks.py", "WHO = 'two'\n")
    assert [load_object("own_checks:WHO", folder) for folder in (one, two, one, two)] == [
        "one",
        "two",
        "one",
        "two",
    ]


def test_a_module_beside_the_suite_wins_over_an_installed_one(tmp_path, monkeypatch):
    """R-A2: `agents.py` is the user's own although a package of that name is installed."""
    folder = write(tmp_path / "mine", "installed_too.py", "WHO = 'mine'\n")
    installed = write(tmp_path / "site", "installed_too.py", "WHO = 'theirs'\n")
    monkeypatch.setattr("sys.path", [str(installed), *sys.path, str(folder)])
    assert load_object("installed_too:WHO", folder) == "mine"


def test_a_package_and_a_nested_name(tmp_path):
    """R-C9: dotted modules, and names inside classes."""
    write(tmp_path / "mypack_a", "__init__.py", "")
    write(tmp_path / "mypack_a", "deep.py", "class A:\n    class B:\n        x = 3\n")
    assert load_object("mypack_a.deep:A.B.x", tmp_path) == 3


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        ("broken_mod:x", "importing broken_mod failed: ZeroDivisionError", None),
        ("syntax_mod:x", "importing syntax_mod failed: SyntaxError", None),
        ("good_mod:ansver", "good_mod has no 'ansver'", "did you mean 'answer'?"),
        ("god_mod:answer", "no module 'god_mod'", "did you mean 'good_mod'"),
        ("needs_mod:x", "importing needs_mod failed: ModuleNotFoundError", None),
        ("exit_mod:x", "importing exit_mod failed: SystemExit", None),
        ("no colon", "'no colon' is not an import path", "write package.module:name"),
        ("../etc:passwd", "is not an import path", None),
    ],
)
def test_what_cannot_be_imported(tmp_path, path, message, hint):
    """R-C9: what is wrong, on which line of whose file, and the nearest name."""
    write(tmp_path, "good_mod.py", "def answer():\n    return 1\n")
    write(tmp_path, "broken_mod.py", "x = 1\ny = 1 / 0\n")
    write(tmp_path, "syntax_mod.py", "def (:\n")
    write(tmp_path, "needs_mod.py", "import not_there_at_all\n")
    write(tmp_path, "exit_mod.py", "raise SystemExit(3)\n")
    with pytest.raises(ProctorError, match=message) as caught:
        load_object(path, tmp_path)
    if hint is not None:
        assert hint in (caught.value.hint or "")
    if path.startswith("broken_mod"):
        assert caught.value.where == f"{tmp_path / 'broken_mod.py'}:2"


@pytest.mark.parametrize(
    ("target", "params", "message"),
    [
        ("has_matching_spam", {}, "no check 'has_matching_spam' is installed"),
        ("math:pi", {}, "math:pi is a float, not a function or class"),
        (short, {"word": 3}, "got an unexpected keyword argument 'word'"),
        (Calls, {}, "missing a required argument: 'least'"),
        (lambda: True, {}, "too many positional arguments"),
        (object, {}, "has neither __call__"),
        ("has_matching_span", {"query": {"kidn": "tool"}}, "unknown key 'kidn'"),
    ],
)
def test_checks_that_cannot_be_built_are_refused_before_a_run(target, params, message):
    """R-C9: a wrong name or wrong params cost no trial."""
    with pytest.raises(ProctorError, match=message):
        custom_check(target, params)


def test_entry_points(tmp_path, monkeypatch):
    """R-C9: an installed package offers checks by name under `proctor.checks`."""
    info = tmp_path / "offers-1.0.dist-info"
    write(info, "METADATA", "Metadata-Version: 2.1\nName: offers\nVersion: 1.0\n")
    write(
        info, "entry_points.txt", "[proctor.checks]\ncurt = offers_mod:curt\nbad = offers_mod:x\n"
    )
    write(tmp_path, "offers_mod.py", "def curt(context):\n    return len(context.answer) < 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert callable(custom_check("curt"))
    with pytest.raises(ProctorError, match="the check 'bad' cannot be loaded: AttributeError"):
        custom_check("bad")
    with pytest.raises(ProctorError) as caught:
        custom_check("crt")
    assert caught.value.hint == "did you mean 'curt'?"
