"""The learned detector: what it is trained to, what it keeps silent about, what scores say."""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from proctor.diagnose._steps import read_steps
from proctor.diagnose.finding import BEARS_ON, Category, Finding, Impact, scores_of
from proctor.diagnose.learned.detector import detectors, find, judged, shipped
from proctor.diagnose.learned.features import rows_of
from proctor.diagnose.methods import diagnose
from proctor.diagnose.rules import RULES, apply_rules
from proctor.trace import Message, Span, SpanKind, Trace
from proctor.trace.load import load_traces
from proctor.trace.model import SpanStatus
from proctor.trail.scorer import score

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The training script, imported as it runs."""
    if not TOOLS.is_dir():
        pytest.skip("the training script is not part of an installed package")
    sys.path.insert(0, str(TOOLS))
    try:
        import train_diagnosis
    finally:
        sys.path.remove(str(TOOLS))
    return train_diagnosis


@pytest.mark.slow
def test_held_out_on_trail(script: ModuleType, shared: Path) -> None:
    """R-G3: on traces held out it beats the rules, within its bound on findings, calibrated.

    One fold of the five, to be quick; docs/reference/diagnosis-measured.md has all of them.
    """
    examples, _ = script.read(shared / "trail")
    learn, test = script.folds(examples, 0)[0]
    known = script.train(learn)
    gold = {e.name: e.gold for e in test}
    rules, offline = (
        score(gold, {e.name: script.predicted(known, e, method) for e in test})
        for method in ("rules", "offline")
    )
    assert offline.joint_accuracy > rules.joint_accuracy + 0.05
    assert offline.weighted_f1 > rules.weighted_f1 + 0.05
    assert offline.findings_per_trace <= 8
    read = [known.detector.read_rows(e.rows) for e in test]
    pairs = zip(read, test, strict=True)
    chances = [known.chances(r, e.rows, e.findings, "offline").ravel() for r, e in pairs]
    told, truth = np.concatenate(chances), np.concatenate([e.truth.ravel() for e in test])
    for low, high in ((0.02, 0.1), (0.1, 0.3), (0.3, 1.0)):
        here = (told >= low) & (told < high)
        assert abs(told[here].mean() - truth[here].mean()) < 0.08


@pytest.mark.slow
def test_the_shipped_model_is_the_trained_one(script: ModuleType, shared: Path) -> None:
    """R-G3: training again gives the model in the package, so that features and weights agree."""
    examples, _ = script.read(shared / "trail")
    again = script.train(examples).arrays()
    kept = shipped()
    assert again.keys() == kept.keys()
    assert list(again["fact_names"]) == list(kept["fact_names"])
    for name, array in again.items():
        if name != "fact_names":
            np.testing.assert_allclose(array, kept[name], rtol=0.02, atol=0.002, err_msg=name)


def test_leaving_a_trace_out_in_closed_form(script: ModuleType) -> None:
    """R-G3: what a machine says of a trace held out equals training it again without the trace."""
    training = sys.modules[script.train.__module__]
    random = np.random.default_rng(7)
    rows, groups = random.normal(size=(24, 5)), np.repeat(np.arange(6), 4)
    truth = (random.random((24, 3)) < 0.3).astype(float)
    alike = rows @ rows.T
    inverse = np.linalg.inv(alike + 2.0 * np.eye(24))

    class Held:
        traces = groups

    Held.truth = truth
    told = training.held_out(inverse, inverse @ truth, Held)
    for group in range(6):
        out, rest = groups == group, groups != group
        known = alike[np.ix_(rest, rest)] + 2.0 * np.eye(int(rest.sum()))
        expected = alike[np.ix_(out, rest)] @ np.linalg.solve(known, truth[rest])
        np.testing.assert_allclose(told[out], expected, atol=1e-9)


def strange_trace() -> Trace:
    """Model calls of no framework it has seen, all of them failing."""
    agent = Span(span_id="a", trace_id="t", name="robot", kind=SpanKind.AGENT, end_ns=99)
    asked = (Message(role="user", content="Traceback (most recent call last)"),)
    said = (Message(role="assistant", content="gripper: open" * 40),)
    calls = [
        Span(
            span_id=f"m{number}",
            trace_id="t",
            name="think",
            parent_id="a",
            kind=SpanKind.LLM,
            start_ns=number + 1,
            end_ns=number + 2,
            input_messages=asked,
            output_messages=said,
            status=SpanStatus.ERROR,
            error_message="Code execution failed: TypeError in the gripper",
        )
        for number in range(4)
    ]
    return Trace(trace_id="t", spans=[agent, *calls])


def test_silent_on_strange_traces() -> None:
    """R-G3: on a trace unlike any it knows it says nothing, and `offline` is what the rules say."""
    trace = strange_trace()
    steps = read_steps(trace)
    rules = apply_rules(steps, RULES)
    rows = rows_of(steps, rules)
    reading = detectors().detector.read_rows(rows)
    assert judged(detectors(), reading, rows, rules, "learned"), "it would speak if made to"
    assert find(detectors(), rows, rules, "learned") == ([], None)
    assert rules
    told = diagnose(trace, "offline")
    assert [(f.location, f.category) for f in told.shown] == [
        (f.location, f.category) for f in rules
    ]
    assert (told.method, told.looked, told.scores) == ("rules", ("rules",), {})


def reading_trace(code: str, shown: str) -> Trace:
    """Three model calls of one agent: the second writes `code` and is answered by `shown`."""
    said = ["Let me look around.", f"Thought: read it.\nCode:\n```py\n{code}\n```", "I see."]
    told = [
        Message(role="system", content="Read 500 characters at a time."),
        Message(role="user", content="Fix the bug."),
    ]
    calls: list[Span] = []
    for number, text in enumerate(said):
        calls.append(
            Span(
                span_id=f"m{number}",
                trace_id="t",
                name="think",
                kind=SpanKind.LLM,
                start_ns=number + 1,
                end_ns=number + 2,
                input_messages=tuple(told),
                output_messages=(Message(role="assistant", content=text),),
            )
        )
        told += [
            Message(role="assistant", content=text),
            Message(role="tool", content=shown if number else "Observation: a tree"),
        ]
    return Trace(trace_id="t", spans=calls)


@pytest.mark.parametrize(
    ("code", "shown", "asks", "sees"),
    [
        ("print(text[:400])", "    return 1\n" * 4, "reads pieces", None),
        ("print(text[:1000])", "    return value\n" * 80, "reads too much", "was shown too much"),
        ("find(text[:90000])", "D\ni\nr\ne\nc\nt\no", "reads all", "was shown single letters"),
        ("print(tree)", "['D', 'i', 'r', 'e', 'c', 't']", None, "was shown single letters"),
    ],
)
def test_facts_of_how_much_is_read(
    code: str, shown: str, asks: str | None, sees: str | None
) -> None:
    """R-G3: what a step asks to read is a fact of it; what came back is one of the next step."""
    _, asking, seeing = rows_of(read_steps(reading_trace(code, shown)), ())
    about_asking = {"reads pieces", "reads too much", "reads all"}
    about_seeing = {"was shown too much", "was shown single letters"}
    assert about_asking & asking.facts.keys() == {asks} - {None}
    assert about_seeing & seeing.facts.keys() == {sees} - {None}


def test_a_call_whose_prompt_was_cut_is_not_judged(shared: Path) -> None:
    """R-G3: the detector skips a model call whose exporter dropped its input."""
    cut = 0
    for path in sorted((shared / "trail" / "data" / "SWE Bench").glob("*.json"))[1:4:2]:
        (trace,) = load_traces(path)
        rows = rows_of(read_steps(trace), ())
        lost = {row.span.span_id for row in rows if row.cut}
        cut += len(lost)
        assert not lost & {finding.location for finding in diagnose(trace, "learned").findings}
    assert cut > 10


def test_features_do_not_depend_on_the_order_of_spans(shared: Path) -> None:
    """R-G3: a trace whose spans arrive in another order gets the same findings."""
    path = sorted((shared / "trail" / "data" / "GAIA").glob("*.json"))[3]
    (trace,) = load_traces(path)
    other = Trace(trace_id=trace.trace_id, spans=list(reversed(trace.spans)))
    assert diagnose(trace).findings
    assert diagnose(other).findings == diagnose(trace).findings


def finding(category: Category, impact: Impact) -> Finding:
    """A finding of which only these two matter."""
    return Finding(category, "s", "quote", "text", impact, 0.5, "rule:x")


def test_scores_and_reasons(shared: Path) -> None:
    """R-G2: four scores of 0 to 5 whose mean is the overall one, with reasons from findings."""
    path = sorted((shared / "trail" / "data" / "GAIA").glob("*.json"))[0]
    (trace,) = load_traces(path)
    assert diagnose(trace, "rules").scores == {}, "rules alone give no scores"
    assert diagnose(trace, "rules").overall is None
    for method in ("learned", "offline"):
        told = diagnose(trace, method)
        assert list(told.scores) == list(BEARS_ON)
        assert all(0 <= score.value <= 5 for score in told.scores.values())
        values = [score.value for score in told.scores.values()]
        assert told.overall == pytest.approx(sum(values) / 4)
        found = {f.category.value for f in told.findings}
        assert any(name in told.scores["reliability"].reason for name in found)


def test_reasons_of_scores() -> None:
    """R-G2: a score's reason names the findings that bear on it, and only those."""
    found = [
        finding(Category.FORMATTING, Impact.LOW),
        finding(Category.RESOURCE_ABUSE, Impact.HIGH),
    ]
    told = scores_of(found, [7.0, 5.0, 4.75, -1.0])
    assert {name: score.value for name, score in told.items()} == {
        "reliability": 5.0,
        "security": 5.0,
        "instruction_adherence": 4.75,
        "plan_opt": 0.0,
    }
    assert told["instruction_adherence"].reason == "Formatting Errors."
    assert told["plan_opt"].reason == "Resource Abuse."
    many = [finding(category, Impact.LOW) for category in list(Category)[:5]]
    assert scores_of(many, [5.0] * 4)["reliability"].reason.endswith(" and 1 more kind.")
