"""Layer 1: every check passing, failing, and failing with words a person can act on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from trial_parts import judged, llm, result, span, tool, trace_of

from proctor.checks._answer import normalised
from proctor.checks.base import CheckStatus
from proctor.checks.layers import Correctness

PASS, FAIL, SKIP, UNSCORED = (
    CheckStatus.PASS,
    CheckStatus.FAIL,
    CheckStatus.SKIP,
    CheckStatus.UNSCORED,
)


async def of(answer: str, trace=None, **options):
    return await result({"correctness": options}, trace, answer)


def test_the_order_of_the_layer():
    """R-C2: the checks are judged in the documented order."""
    whole = Correctness.model_validate(
        {
            "expected_in_answer": "a",
            "any_expected_in_answer": "a",
            "not_in_answer": "a",
            "exact_match": "a",
            "regex_match": "a",
            "json_schema": {},
            "expected_output": {"value": 1},
            "jmespath": {"path": "a", "eq": 1},
            "llm_judge": "a",
            "safety_check": True,
            "hallucination_check": True,
        }
    )
    names = [check.check for check in whole.checks()]
    assert names == [
        "expected_in_answer",
        "any_expected_in_answer",
        "not_in_answer",
        "exact_match",
        "regex_match",
        "json_schema",
        "expected_output",
        "jmespath",
        "llm_judge",
        "safety_check",
        "hallucination_check",
    ]
    assert list(Correctness.model_fields)[:11] == names


# -- texts ---------------------------------------------------------------------------------------


async def test_expected_in_answer():
    """R-C2: all texts stand in the answer; case is ignored; the score is the share found."""
    assert (
        await of("It is PARIS, in France", expected_in_answer=["paris", "france"])
    ).status == PASS
    failed = await of("It is Lyon, in France.", expected_in_answer=["Paris", "France"])
    assert (failed.status, failed.score, failed.blocking) == (FAIL, 0.5, True)
    assert failed.reason == "the answer lacks 'Paris' (1 of 2 found)"
    assert failed.expected == ["Paris", "France"]
    assert failed.actual == "It is Lyon, in France."


async def test_an_empty_answer_is_said_to_be_empty():
    """R-C2: the reason says why nothing was found."""
    failed = await of("  \n", expected_in_answer="Paris")
    assert failed.reason == "the answer is empty: it lacks 'Paris' (0 of 1 found)"


async def test_any_expected_in_answer():
    """R-C2: one of the texts is enough."""
    assert (await of("a cat", any_expected_in_answer=["dog", "Cat"])).status == PASS
    failed = await of("a bird", any_expected_in_answer=["dog", "cat"])
    assert failed.status == FAIL
    assert failed.reason == "the answer has none of 'dog', 'cat'"


async def test_not_in_answer():
    """R-C2: none of the texts is in the answer."""
    assert (await of("Paris", not_in_answer=["London"])).status == PASS
    failed = await of("paris or london", not_in_answer=["London", "Rome"])
    assert failed.status == FAIL
    assert failed.reason == "the answer contains 'London', which it must not"


async def test_exact_match():
    """R-C2: the whole answer, up to white space around it, line ends and case."""
    assert (await of(" Yes.\r\nNo. \n", exact_match="yes.\nno.")).status == PASS
    failed = await of("Yes!", exact_match="Yes.")
    assert failed.status == FAIL
    assert failed.reason == "the answer is 'Yes!', expected 'Yes.'"


async def test_a_long_answer_that_differs_is_shown_where_it_differs():
    """R-C2: the reason points at the place, not at two screens of text."""
    failed = await of("x" * 500 + "cat" + "y" * 500, exact_match="x" * 500 + "dog" + "y" * 500)
    assert "differs from character 501 on" in failed.reason
    assert "cat" in failed.reason
    assert len(failed.reason) < 250


async def test_case_is_told_apart_when_asked():
    """R-C2: string matching ignores case unless asked otherwise, in every text check."""
    for check, text in {
        "expected_in_answer": "paris",
        "any_expected_in_answer": "paris",
        "exact_match": "paris",
        "regex_match": "^paris$",
    }.items():
        assert (await of("PARIS", **{check: text})).status == PASS
        assert (await of("PARIS", **{check: text}, case_sensitive=True)).status == FAIL
    assert (await of("PARIS", not_in_answer="paris", case_sensitive=True)).status == PASS


async def test_one_letter_in_two_encodings_is_the_same_letter():
    """R-C2: é composed and é of two characters compare as a reader sees them."""
    composed, parts = "caf\u00e9", "cafe\u0301"
    assert (await of(parts, exact_match=composed)).status == PASS
    assert (await of(f"a {composed}!", expected_in_answer=parts)).status == PASS


@given(st.text())
def test_normalising_twice_changes_nothing(text):
    """R-C2: the compared form is stable, whatever the text."""
    once = normalised(text)
    assert normalised(once) == once


# -- patterns ------------------------------------------------------------------------------------


async def test_regex_match():
    """R-C2: every pattern is found somewhere; the score is the share found."""
    assert (await of("Order AB-123", regex_match=r"\b[a-z]{2}-\d+\b")).status == PASS
    failed = await of("Order AB-123", regex_match=[r"\d+", r"^\d"])
    assert (failed.status, failed.score) == (FAIL, 0.5)
    assert failed.reason == "the answer has no match of '^\\\\d' (1 of 2 found)"


async def test_a_catastrophic_pattern_is_stopped_and_unscored():
    """R-C2: a pattern that would take years ends in about a second, and is no verdict."""
    stopped = await of("a" * 5000 + "!", regex_match=r"(a|a)+$")
    assert stopped.status == UNSCORED
    assert "backtracks without end" in stopped.reason


# -- JSON ----------------------------------------------------------------------------------------

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}


async def test_json_schema():
    """R-C2: the answer is JSON and valid; what is wrong is named with its place."""
    assert (await of('{"name": "Ada", "age": 36}', json_schema=PERSON)).status == PASS
    failed = await of('{"name": "Ada", "age": -1}', json_schema=PERSON)
    assert failed.status == FAIL
    assert failed.reason == ("not valid for the schema: $.age: -1 is less than the minimum of 0")
    prose = await of("Her name is Ada.", json_schema=PERSON)
    assert prose.reason.startswith("the answer is not JSON: ")
    assert "'Her name is Ada.'" in prose.reason


async def test_json_is_not_nan():
    """R-C2: NaN is not JSON, whatever Python thinks."""
    assert "NaN is not JSON" in (await of("NaN", json_schema={})).reason


async def test_local_references_work():
    """R-C2: `$ref` within the schema, and recursion that looks deeper, are fine."""
    tree = {
        "$ref": "#/$defs/node",
        "$defs": {"node": {"items": {"$ref": "#/$defs/node"}, "type": "array"}},
    }
    assert (await of("[[], [[]]]", json_schema=tree)).status == PASS
    assert (await of("[[1]]", json_schema=tree)).status == FAIL


async def test_a_catastrophic_pattern_inside_a_schema_is_stopped():
    """R-C2: patterns in schemas are bounded like any other."""
    stopped = await of(json.dumps("a" * 5000 + "!"), json_schema={"pattern": "(a|a)+$"})
    assert stopped.status == UNSCORED
    assert "backtracks without end" in stopped.reason


async def test_a_document_nested_too_deeply_is_not_a_crash():
    """R-C2: 100,000 brackets from an agent give a reason."""
    nested = await of("[" * 100_000, json_schema=PERSON)
    assert nested.status == FAIL
    assert "is not JSON" in nested.reason


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "https://example.com/s.json"}, "references are never fetched"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "'other.json', which is not in it"),
        ({"$ref": "file:///etc/passwd"}, "references are never fetched"),
        ({"$ref": "#"}, "refers to itself"),
        ({"allOf": [{"$ref": "#"}]}, "refers to itself"),
        ({"type": "objekt"}, "not a JSON Schema: type: 'objekt'"),
        (
            {"$schema": "https://example.com/mine"},
            "dialect 'https://example.com/mine' is not known",
        ),
    ],
)
def test_schemas_that_cannot_be_used_are_refused_when_written(schema, message):
    """R-C2: remote and endless schemas never reach a run, and nothing is fetched."""
    with pytest.raises(ValidationError, match=message.replace("$", r"\$")):
        Correctness(json_schema=schema)


# -- expressions ---------------------------------------------------------------------------------

BOOKED = trace_of(
    tool("search", {"city": "Oslo"}, '{"hits": 3}'),
    tool("book", '{"id": 7}', failed=True),
    llm("gpt", tokens=120, usd=0.01),
    span("handoff", "to billing", handoff_to="billing", agent_name="triage"),
)


@pytest.mark.parametrize(
    ("entry", "passes"),
    [
        ({"path": "length(tool_calls)", "eq": 2}, True),
        ({"path": "length(tool_calls)", "eq": 2.0, "gt": 1, "gte": 2, "lt": 3, "lte": 2}, True),
        ({"path": "length(tool_calls)", "gte": 2, "lt": 2}, False),
        ({"path": "tool_calls[0].arguments.city", "ne": "oslo"}, True),
        ({"path": "tool_calls[0].arguments.city", "ne": "Oslo"}, False),
        ({"path": "tool_calls[0].result.hits", "eq": 3}, True),
        ({"path": "tool_calls[1].arguments.id", "gt": 7}, False),
        ({"path": "tool_calls[?status=='error'].name", "contains": "book"}, True),
        ({"path": "tool_sequence", "eq": ["search", "book"]}, True),
        ({"path": "response", "contains": "OSLO"}, True),
        ({"path": "response", "contains": "OSLO", "case_sensitive": True}, False),
        ({"path": "response", "regex": "o.lo"}, True),
        ({"path": "response", "regex": "^lo"}, False),
        ({"path": "response_json", "exists": False}, True),
        ({"path": "response_json", "eq": None}, True),
        ({"path": "metadata.region", "exists": True}, False),
        ({"path": "usage.total_tokens", "lte": 120}, True),
        ({"path": "usage.cost_usd", "lt": 0.01}, False),
        ({"path": "length(llm_calls)", "eq": 1}, True),
        ({"path": "handoffs[0].to", "eq": "billing"}, True),
        ({"path": "duration_ms", "eq": 40}, True),
        ({"path": "input", "eq": "q"}, True),
        ({"path": "`true`", "eq": 1}, False),
        ({"path": '`"1"`', "eq": 1}, False),
        ({"path": "response", "gt": 3}, False),
    ],
)
async def test_jmespath(entry, passes):
    """R-C2: eq ne gt gte lt lte contains regex exists, AND-ed, over the document of a trial."""
    found = await of("Booked in Oslo", BOOKED, jmespath=[entry])
    assert found.status == (PASS if passes else FAIL), found.reason


async def test_what_an_expression_found_is_in_the_reason():
    """R-C2: a failed expression tells its value and what was wrong with it."""
    failed = await of("x", BOOKED, jmespath={"path": "length(tool_calls)", "lte": 1, "ne": 2})
    assert failed.reason == "length(tool_calls) is 2: should not equal 2 and is not at most 1"
    assert failed.actual == 2
    assert failed.expected == {"path": "length(tool_calls)", "ne": 2, "lte": 1}


async def test_an_expression_that_does_not_fit_the_document_fails():
    """R-C2: length of null is the agent's shape, not a broken check."""
    failed = await of("not json", jmespath={"path": "length(response_json.items)", "gt": 0})
    assert failed.status == FAIL
    assert failed.reason.startswith("length(response_json.items) has no value here: ")


async def test_several_expressions_are_several_results():
    """R-C2: each has an id of its own, stable and unique."""
    entries = [
        {"path": "response", "exists": True},
        {"path": "response", "exists": True},
        {"path": "input", "exists": True, "id": "asked"},
    ]
    outcome = await judged({"correctness": {"jmespath": entries}}, answer="x")
    assert [r.id for r in outcome] == [
        "jmespath.response",
        "jmespath.response#2",
        "jmespath.asked",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex_match": "("}, "'\\(' is not a regular expression: missing \\)"),
        ({"jmespath": {"path": "a[", "eq": 1}}, "is not a JMESPath expression"),
        ({"jmespath": {"path": "lenght(a)", "eq": 1}}, "did you mean 'length'"),
        ({"jmespath": {"path": "a"}}, "'a' has no operator: add one of eq, ne"),
        ({"jmespath": {"path": "a", "regex": "["}}, "is not a regular expression"),
        ({"jmespath": []}, "at least one entry"),
        ({"expected_in_answer": []}, "at least one entry"),
        ({"expected_in_answer": [""]}, "an empty text is found in every answer"),
        ({"expected_in_answer": [True]}, "not true or false; put it in quotes"),
        ({"exact_match": 1.5}, "not a float; put it in quotes"),
        ({"llm_judge": {"rule": "x", "threshold": 1.5}}, "less than or equal to 1"),
        ({"llm_judge": {"rule": "x", "threshold": -1}}, "greater than or equal to 0"),
        ({"llm_judge": {"threshold": 0.5}}, "needs a `rule`, `criteria` or a `rubric`"),
        ({"llm_judge": {"rubric": "helpfullness"}}, "did you mean 'helpfulness'"),
        ({"llm_judge": {"rule": "x", "model": "a:b", "judge": "c"}}, "not both"),
        ({"llm_judge": {"criteria": [{"rule": "x", "weight": 0}]}}, "a weight above 0"),
        ({"llm_judge": {"rule": "x", "anchors": {6: "super"}}}, "less than or equal to 5"),
        ({"hallucination_check": {"method": "magic"}}, "'auto', 'judge' or 'grounding'"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_written(options, message):
    """R-C2: patterns, expressions, thresholds and judges are checked before anything runs."""
    with pytest.raises(ValidationError, match=message):
        Correctness.model_validate(options)


async def test_numbers_yaml_made_of_texts_are_texts():
    """R-C2: `expected_in_answer: [1912]` means the digits."""
    assert (await of("It sank in 1912.", expected_in_answer=[1912])).status == PASS


@given(st.text(max_size=200))
async def test_any_answer_is_judged(answer):
    """R-C2: whatever an agent writes (controls, surrogates, scripts), every check has a result."""
    outcome = await judged(
        {
            "correctness": {
                "expected_in_answer": "a",
                "any_expected_in_answer": ["b"],
                "not_in_answer": "c",
                "exact_match": "d",
                "regex_match": "e",
                "json_schema": {"type": "object"},
                "jmespath": {"path": "response", "contains": "f"},
            }
        },
        answer=answer,
    )
    assert [r.status in (PASS, FAIL) for r in outcome] == [True] * 7
