"""JUnit XML, held to the rules of the schemas CI systems use."""

import re
import xml.etree.ElementTree as ET

import pytest
from report_parts import case, check, hostile, mixed, report

from proctor.report.outputs import render

REQUIRED = {
    "testsuite": {
        "name", "timestamp", "hostname", "tests", "failures", "errors", "time", "id", "package",
    },
    "testcase": {"name", "classname", "time"},
    "failure": {"type"},
    "error": {"type"},
    "property": {"name", "value"},
}  # fmt: skip
OPTIONAL = {"testsuite": {"skipped"}, "failure": {"message"}, "error": {"message"}}
CHILDREN = {
    "testsuites": r"(testsuite )*",
    "testsuite": r"properties (testcase )*system-out system-err ",
    "properties": r"(property )*",
    "testcase": r"((skipped|error|failure) )?",
}
"""The published XSD (Ant's, by Windy Road) as rules: attributes, and the order of children."""


def validated(text):
    """The root, once every rule of the schema holds."""
    root = ET.fromstring(text.encode())
    assert root.tag == "testsuites"
    for element in root.iter():
        required = REQUIRED.get(element.tag, set())
        assert required <= set(element.attrib), element.tag
        assert set(element.attrib) <= required | OPTIONAL.get(element.tag, set()), element.tag
        order = "".join(f"{child.tag} " for child in element)
        assert re.fullmatch(CHILDREN.get(element.tag, ""), order), (element.tag, order)
    for number, suite in enumerate(root):
        assert suite.get("id") == str(number)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp", ""))
        cases = suite.findall("testcase")
        assert int(suite.get("tests", "")) == len(cases)
        for kind in ("failure", "error", "skipped"):
            counted = suite.get({"skipped": "skipped"}.get(kind, f"{kind}s"), "")
            assert int(counted) == len(suite.findall(f"testcase/{kind}"))
        assert all(float(timed.get("time", "")) >= 0 for timed in (suite, *cases))
    return root


def test_statuses_are_told_in_junit_words():
    """R-Q5: failed is a failure, infrastructure an error, stopped skipped; the file is valid."""
    root = validated(render("junit", mixed()))
    cases = {each.get("name"): each for each in root.iter("testcase")}
    assert [child.tag for child in cases["good"]] == []
    assert [child.tag for child in cases["wrong"]] == ["failure"]
    assert [child.tag for child in cases["weak"]] == ["failure"]
    assert [child.tag for child in cases["crash"]] == ["error"]
    assert [child.tag for child in cases["late"]] == ["skipped"]
    failure = cases["wrong"][0]
    assert failure.get("message") == "expected_in_answer: the answer lacks 'Paris'"
    assert "suite.yaml:12" in (failure.text or "")
    assert '- actual: "Rome"' in (failure.text or "")
    out = root.find("testsuite/system-out")
    assert out is not None
    assert "good: WARN max_tool_calls: 9 calls, at most 8" in (out.text or "")


def test_one_testsuite_for_each_suite_and_agent():
    """R-Q5: the same case of two suites or agents stays apart."""
    root = validated(
        render(
            "junit",
            report(
                case(suite="a/one.yaml"),
                case(suite="b/two.yaml", agent="other"),
                case(suite="a/one.yaml", agent="other"),
                case("second", suite="a/one.yaml"),
            ),
        )
    )
    assert [(s.get("name"), s.get("package"), s.get("tests")) for s in root] == [
        ("a/one.yaml", "agents:answer", "2"),
        ("a/one.yaml", "other", "1"),
        ("b/two.yaml", "other", "1"),
    ]


@pytest.mark.parametrize("broken", ["\x00", "\x1b", "\ud800", "\ufffe", "]]>", "<!--", "&#0;"])
def test_characters_no_xml_may_hold(broken):
    """R-Q5: a file with such characters in an answer is still XML."""
    reason = f"a{broken}b"
    root = validated(render("junit", report(case("x", "hard_fail", check(reason=reason)))))
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None
    if broken in ("]]>", "<!--", "&#0;"):
        assert reason in failure.get("message", "")


def test_hostile_text_is_only_text():
    """R-Q5: no text of an agent becomes an element, an attribute or another case."""
    root = validated(render("junit", hostile()))
    assert {element.tag for element in root.iter()} == {
        *("testsuites", "testsuite", "properties", "property", "testcase", "failure", "error"),
        *("system-out", "system-err"),
    }
    assert len(list(root.iter("testcase"))) == 3
