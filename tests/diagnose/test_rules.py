"""The rules that find errors without any training."""

import json
from pathlib import Path

import pytest
import spans
from hypothesis import given
from hypothesis import strategies as st

import proctor
import proctor.errors
from proctor.diagnose._steps import read_steps
from proctor.diagnose.finding import MAX_QUOTE, Category, Finding, contains_quote, quote
from proctor.diagnose.rules import RULES, apply_rules
from proctor.trace import Span, SpanKind, SpanStatus, Trace
from proctor.trace.model import Message, ToolCall
from proctor.trail.scorer import Annotation, Mark, Scorecard, read_annotations, score

SYSTEM = "You have tools:\n- search: looks things up\n- final_answer: hands in the answer\n"
PLAN = "Write your plan below. After the last step write the '\n<end_plan>' tag and stop."


def findings(trace: Trace) -> list[Finding]:
    return apply_rules(read_steps(trace), RULES)


def told(trace: Trace) -> set[tuple[str, Category]]:
    return {(finding.location, finding.category) for finding in findings(trace)}


def call(span_id: str, start: int, said: str = "", *messages: Message, tool: str = "") -> Span:
    calls = (ToolCall(tool, {"q": "boats"}),) if tool else ()
    return spans.span(
        span_id,
        "agent",
        start=start,
        kind=SpanKind.LLM,
        input_messages=messages or (Message("system", SYSTEM), Message("user", "Which boat?")),
        output_messages=(Message("assistant", said, calls),),
    )


def used(span_id: str, start: int, tool: str = "search", **fields: object) -> Span:
    return spans.span(span_id, "agent", start=start, kind=SpanKind.TOOL, tool_name=tool, **fields)


def agent(*below: Span) -> Trace:
    return spans.trace(spans.span("agent", end=1000, kind=SpanKind.AGENT), *below)


def test_a_closing_tag_that_is_asked_for() -> None:
    """R-G3: a plan without the tag its prompt asks for; with the tag there is nothing to say."""
    ask = Message("user", PLAN)
    assert told(agent(call("p", 1, "1. search", ask))) == {("p", Category.NON_COMPLIANCE)}
    assert told(agent(call("p", 1, "1. search\n<end_plan>", ask))) == set()


def test_an_answer_without_work() -> None:
    """R-G3: a plan, and then the answer at once; a plan that is carried out is fine."""
    plan = call("p", 1, "1. search\n<end_plan>", Message("user", PLAN))
    answer = call("a", 9, "I recall that it is the Vasa.", tool="final_answer")
    assert told(agent(plan, answer)) == {
        ("a", Category.GOAL_DEVIATION),
        ("a", Category.LANGUAGE_ONLY),
    }
    assert {finding.evidence for finding in findings(agent(plan, answer))} == {
        "{'q': 'boats'}",  # what is handed in
        "I recall that it is the Vasa.",
    }
    code = call("c", 9, "Thought: easy.\nCode:\n```py\nfinal_answer('the Vasa')\n```")
    quoted = {finding.evidence for finding in findings(agent(plan, code))}
    assert quoted == {"final_answer('the Vasa')"}
    worked = (call("s", 3, tool="search"), used("t", 4, tool_output="the Vasa"))
    assert told(agent(plan, *worked, answer)) == set()


def test_a_plan_that_needs_only_thought() -> None:
    """R-G3: an agent that plans only to reason may answer or compute at once."""
    think = call("p", 1, "1. Reverse the letters.\n2. Answer.\n<end_plan>", Message("user", PLAN))
    fetch = call("p", 1, "1. Read the official record.\n<end_plan>", Message("user", PLAN))
    answer = call("a", 9, "Reversed, it says: right.", tool="final_answer")
    code = call("c", 5, "Code:\n```py\nprint('thgir'[::-1])\n```")
    assert told(agent(think, code, answer)) == set()
    passed = call("c", 5, "Code:\n```py\nprint('please search for the record')\n```")
    fetched = call("c", 5, "Code:\n```py\nimport requests\nprint(requests.get(URL))\n```")
    assert told(agent(fetch, fetched, answer)) == told(agent(fetch, passed, answer))
    assert told(agent(fetch, passed, answer)) == {
        ("c", Category.TOOL_SELECTION),
        ("a", Category.GOAL_DEVIATION),
        ("a", Category.LANGUAGE_ONLY),
    }


@pytest.mark.parametrize(
    ("report", "answer", "found"),
    [
        ("I was unable to find the boat.", "It is the Vasa.", True),
        ("No reliable record of the boat was found.", "It is the Vasa.", True),
        ("The boat is the Vasa.", "It is the Vasa.", False),
        ("I was unable to find the boat.", "The boat could not be found.", False),
    ],
)
def test_an_answer_against_the_report(report: str, answer: str, *, found: bool) -> None:
    """R-G3: who was sent to look comes back with nothing, and the answer is definite all the
    same; one that passes on what was reported is fine."""

    def said(span_id: str, start: int, above: str, tool: str, text: str) -> Span:
        return spans.span(
            span_id,
            above,
            start=start,
            kind=SpanKind.LLM,
            input_messages=(Message("system", SYSTEM), Message("user", "Which boat?")),
            output_messages=(Message("assistant", "", (ToolCall(tool, {"answer": text}),)),),
        )

    below = spans.span("helper", "agent", start=2, end=8, kind=SpanKind.AGENT)
    trace = agent(
        said("ask", 1, "agent", "helper", "Which boat?"),
        below,
        said("r", 4, "helper", "final_answer", report),
        said("a", 9, "agent", "final_answer", answer),
    )
    assert told(trace) == ({("a", Category.LANGUAGE_ONLY)} if found else set())


def test_malformed_and_repeated_calls() -> None:
    """R-G3: a call that does not fit its tool, at its writer; repeating it, at the last tool."""
    wrong = {
        "status": SpanStatus.ERROR,
        "error_message": "search() got an unexpected keyword argument 'q'",
    }
    steps = [
        call("m1", 1, tool="search"),
        used("t1", 2, **wrong),
        call("m2", 3, tool="search"),
        used("t2", 4, **wrong),
    ]
    assert told(agent(*steps)) == {
        ("m1", Category.FORMATTING),
        ("m2", Category.FORMATTING),
        ("t2", Category.RESOURCE_ABUSE),
    }


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("Title: Error 403\nPage 1 of 1", Category.AUTHENTICATION),
        ("HTTP 404", Category.NOT_FOUND),
        ("status code: 503", Category.SERVICE),
        ("The request timed out", Category.TIMEOUT),
        ("Error 429: slow down", Category.RATE_LIMIT),
    ],
)
def test_refusals_in_tool_output(text: str, category: Category) -> None:
    """R-G3: what a service refuses shows at the head of a tool's output, and only there."""
    asked = call("m", 1, tool="search")
    failed = used("t", 2, tool_output=text, status=SpanStatus.ERROR, error_message=text)
    assert told(agent(asked, failed)) == {("t", category)}
    far = "A page about boats. " * 40 + text
    assert told(agent(asked, used("t", 2, tool_output=far))) == set()
    assert told(agent(call("m", 1, text))) == set()


def test_a_retry_that_works_is_no_error() -> None:
    """R-G3: a passing fault that the same tool recovers from is not reported."""
    slow = used("t1", 2, status=SpanStatus.ERROR, error_message="timed out")
    again = (call("m2", 3, tool="search"), used("t2", 4, tool_output="the Vasa"))
    assert told(agent(call("m1", 1, tool="search"), slow)) == {("t1", Category.TIMEOUT)}
    assert told(agent(call("m1", 1, tool="search"), slow, *again)) == set()


def test_a_call_beside_does_not_make_up_for_a_failure() -> None:
    """R-G3: of two calls at once one is refused: that the other worked is no retry; and a tool
    that says so in its output alone has not recovered by itself."""
    asked = call("m1", 1, tool="search")
    done = call("m2", 30, "The Vasa; of the other boat nothing is known.")
    slow = used("t2", 3, status=SpanStatus.ERROR, error_message="timed out")
    assert told(agent(asked, used("t1", 2, tool_output="the Vasa"), slow, done)) == {
        ("t2", Category.TIMEOUT)
    }
    refused = used("t3", 3, tool_output="Error 429: slow down")
    assert told(agent(asked, refused, done)) == {("t3", Category.RATE_LIMIT)}


@pytest.mark.parametrize(
    ("error", "category"),
    [
        ("RuntimeError: the tool exploded", Category.SERVICE),
        ("503 Server Error: Service Unavailable for url", Category.SERVICE),
        ("Connection refused", Category.SERVICE),
        ("Error code: 429 - slow down", Category.RATE_LIMIT),
        ("You exceeded your current quota", Category.RATE_LIMIT),
        ("401 Client Error: Unauthorized for url", Category.AUTHENTICATION),
        ("Incorrect API key provided", Category.AUTHENTICATION),
        ("Permission denied: '/var/lib'", Category.ENVIRONMENT),
        ("404 Client Error for url", Category.NOT_FOUND),
        ("Customer 17 does not exist", Category.NOT_FOUND),
        ("context deadline exceeded", Category.TIMEOUT),
        ("recursion limit of 25 reached", Category.EXHAUSTION),
        ("unknown error", Category.SERVICE),
    ],
)
def test_a_call_that_fails_for_good(error: str, category: Category) -> None:
    """R-G3: an error of a tool that nothing makes up for is told once, by what it says: raised,
    or returned as a value; after another tool has helped out it is not."""
    asked = call("m1", 1, tool="search")
    raised = {"status": SpanStatus.ERROR, "error_message": error}
    again = (call("m2", 20, tool="search"), used("t2", 21, **raised))
    assert told(agent(asked, used("t1", 2, **raised), *again)) >= {("t1", category)}
    assert not told(agent(asked, used("t1", 2, **raised), *again)) & {("t2", category)}
    assert told(agent(asked, used("t1", 2, tool_output={"error": error}))) == {("t1", category)}
    text = json.dumps({"status": "error", "message": error})
    assert told(agent(asked, used("t1", 2, tool_output=text))) == {("t1", category)}
    fine = {"error": None, "status": "ok", "isError": False, "rows": ["error"]}
    assert told(agent(asked, used("t1", 2, tool_output=fine))) == set()
    other = (call("m2", 20, tool="ask"), used("t2", 21, "ask", tool_output="the Vasa"))
    if category not in (Category.RATE_LIMIT, Category.NOT_FOUND):
        assert told(agent(asked, used("t1", 2, **raised), *other)) == set()


def test_tools_without_any_model_call() -> None:
    """R-G3: code that calls tools itself, or whose model calls were not recorded, is seen too."""
    refused = used("t1", 2, status=SpanStatus.ERROR, error_message="HTTP 429 Too Many Requests")
    broken = used("t2", 20, "store", status=SpanStatus.ERROR, error_message="database is locked")
    assert told(agent(refused, broken)) == {
        ("t1", Category.RATE_LIMIT),
        ("t2", Category.SERVICE),
    }
    again = used("t3", 40, tool_output="the Vasa")
    assert told(agent(refused, again)) == set()
    whole = proctor.diagnose(agent(refused, broken))
    assert [finding.location for finding in whole.findings] == ["t1", "t2"]
    assert whole.scores == {}, "rules alone give no scores"


def test_handoffs_and_agents_that_fail() -> None:
    """R-G3: what failed though nothing inside it did; around a failure only the innermost."""
    failed = {"status": SpanStatus.ERROR, "error_message": "two handoffs at once"}
    handoff = spans.span("h", "agent", start=5, kind=SpanKind.HANDOFF, handoff_to="x", **failed)
    assert told(agent(call("m", 1), handoff)) == {("h", Category.ORCHESTRATION)}
    limit = {"status": SpanStatus.ERROR, "error_message": "Max turns (10) exceeded"}
    top = spans.span("top", end=1000, kind=SpanKind.AGENT, **limit)
    assert told(spans.trace(top)) == {("top", Category.EXHAUSTION)}
    inner = spans.span("t", "top", start=2, kind=SpanKind.TOOL, tool_name="search", **limit)
    assert told(spans.trace(top, inner)) == {("t", Category.EXHAUSTION)}


def test_the_turns_of_an_agent_in_a_graph() -> None:
    """R-G3: a graph opens a span for each turn of an agent and runs tools in a node beside it:
    the turns are one agent's, and a tool belongs to the turn that asked for it."""
    wrong = {
        "status": SpanStatus.ERROR,
        "error_message": "search() got an unexpected keyword argument 'q'",
    }
    steps = [spans.span("graph", end=1000, kind=SpanKind.CHAIN)]
    for number, start in enumerate((1, 101, 201)):
        turn = {"name": "agent", "kind": SpanKind.AGENT}
        steps.append(spans.span(f"agent{number}", "graph", start=start, end=20, **turn))
        steps.append(replaced(call(f"m{number}", start + 1, tool="search"), f"agent{number}"))
        steps.append(spans.span(f"tools{number}", "graph", start=start + 30, kind=SpanKind.CHAIN))
        steps.append(replaced(used(f"t{number}", start + 31, **wrong), f"tools{number}"))
    assert told(spans.trace(*steps)) == {
        ("m0", Category.FORMATTING),
        ("m1", Category.FORMATTING),
        ("m2", Category.FORMATTING),
        ("t2", Category.RESOURCE_ABUSE),
    }


def replaced(span: Span, parent: str) -> Span:
    span.parent_id = parent
    return span


def test_a_limit_that_is_stated() -> None:
    """R-G3: reading more characters at a time than the prompt allows."""
    rule = Message("system", "Read a file 500 characters at a time.")
    assert told(agent(call("m", 1, "print(text[:1000])", rule))) == {("m", Category.NON_COMPLIANCE)}
    assert told(agent(call("m", 1, "print(text[:400])", rule))) == set()


def measured(shared: Path, split: str, gold: str) -> Scorecard:
    predicted: dict[str, Annotation] = {}
    for path in sorted((shared / "trail" / "data" / split).glob("*.json")):
        (trace,) = proctor.load_traces(path)
        found = findings(trace)
        for finding in found:
            node = trace.node(finding.location)
            assert node is not None
            assert contains_quote(node.span, finding.evidence)
        marks = tuple(Mark(f.location, f.category.value) for f in found)
        predicted[path.stem] = Annotation(marks)
    read = read_annotations(shared / "trail" / f"processed_annotations_{gold}")
    return score(read.by_trace, predicted)


@pytest.mark.parametrize(
    ("split", "gold", "joint", "most"),
    [("GAIA", "gaia", 0.28, 8), ("SWE Bench", "swe_bench", 0.15, 10)],
)
def test_rules_on_trail(shared: Path, split: str, gold: str, joint: float, most: float) -> None:
    """R-G3: rules alone reach their figures on TRAIL, and every quote occurs in its span."""
    card = measured(shared, split, gold)
    assert card.joint_accuracy is not None
    assert card.findings_per_trace is not None
    assert card.joint_accuracy >= joint
    assert card.findings_per_trace <= most


@given(
    said=st.text(max_size=400),
    output=st.text(max_size=400),
    wanted=st.lists(st.text(max_size=300), max_size=3),
)
def test_evidence_stands_in_its_span(said: str, output: str, wanted: list[str]) -> None:
    """R-G2: the quote occurs in the span, whatever the passages and the span are."""
    span = used("t", 0, tool_output=output, input_messages=(Message("user", said),))
    found = quote(span, *wanted)
    assert contains_quote(span, found)
    assert len(found) <= MAX_QUOTE
    for passage in wanted:
        if passage.strip() and len(passage) <= MAX_QUOTE and passage.strip() in output:
            assert found in {w.strip() for w in wanted}
            break
