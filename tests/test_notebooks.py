"""Objects in notebooks: small HTML in which nothing of an agent is markup."""

import html
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor.diagnose import Category, Diagnosis, Finding
from proctor.diagnose.finding import Impact, Score

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e\x1b[31m\ud800&"


class Seen(HTMLParser):
    """The elements and attributes of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(thing: proctor.Run | proctor.Trace | Diagnosis | proctor.results.Comparison) -> Seen:
    text = thing._repr_html_()
    text.encode()  # a lone surrogate would keep the notebook from being saved
    seen = Seen()
    seen.feed(text)
    assert seen.tags <= {"p", "strong", "table", "tr", "th", "td", "pre"}
    assert seen.attributes == []
    assert not {"\x1b", "\u202e"} & set(html.unescape(text))
    return seen


def suite(*inputs: str) -> proctor.Suite:
    checks: Any = {"expected_in_answer": ["yes"], "not_in_answer": [HOSTILE[:25]]}
    return proctor.Suite(
        cases=tuple(
            proctor.Case(id=f"case-{number}", input=text, correctness=checks)
            for number, text in enumerate(inputs)
        )
    )


def test_a_run(tmp_path: Path) -> None:
    """R-Q5: the verdict, each cell with its counts, and the most common failure."""

    def agent(question: str) -> str:
        return HOSTILE if question == "bad" else "yes"

    run = proctor.run(suite("good", "bad"), agent=agent, trials=2, results=tmp_path)
    assert run.verdict == "HARD FAIL"
    seen = shown(run)
    assert "HARD FAIL: 2 of 4 judged trials passed" in seen.text
    for part in ("case-0", "case-1", "2/2", "0/2", "100 %", "0 %", str(run.path)):
        assert part in seen.text
    assert "<script>" in seen.text  # the hostile answer is in the reason, as text


def test_a_run_that_passes_says_so(tmp_path: Path) -> None:
    """R-Q5: without a failed cell the verdict is PASS."""
    run = proctor.run(suite("good"), agent=lambda _question: "yes", results=tmp_path)
    assert (run.verdict, run.exit_code) == ("PASS", 0)


def test_a_trace() -> None:
    """R-Q5: the input, the output and the tree of spans."""
    with proctor.capture(query=HOSTILE) as trace:
        with proctor.capture.tool_call(HOSTILE, {"q": HOSTILE}) as step:
            step.tool_output = HOSTILE
        trace.response = HOSTILE
    seen = shown(trace)
    assert trace.trace_id in seen.text
    assert seen.text.count("alert(1)") >= 3


def test_a_diagnosis() -> None:
    """R-Q5: findings with their evidence, scores, notes."""
    finding = Finding(next(iter(Category)), HOSTILE, HOSTILE, HOSTILE, Impact.HIGH, 0.9, "rule")
    seen = shown(
        Diagnosis(HOSTILE, "offline", (finding,), {"plan": Score(2, HOSTILE)}, {}, (HOSTILE,))
    )
    assert "1 finding" in seen.text
    assert "plan: 2 of 5" in seen.text
    assert seen.text.count("alert(1)") == 6


def test_a_comparison(tmp_path: Path) -> None:
    """R-Q5: both pass rates, the difference with its interval, the p-value."""
    first = proctor.run(suite("a"), agent=lambda _q: "yes", trials=8, results=tmp_path)
    second = proctor.run(
        suite("a"), agents={HOSTILE[:40]: lambda _q: "no"}, trials=8, results=tmp_path
    )
    seen = shown(proctor.compare(first, second))
    for part in ("100 %", "0 %", "−100"):
        assert part in seen.text
    assert "alert(1)" in seen.text


def test_long_tables_are_cut(tmp_path: Path) -> None:
    """R-Q5: a notebook keeps its output: rows beyond a hundred are counted, not shown."""
    run = proctor.run(suite(*map(str, range(130))), agent=lambda _q: "yes", results=tmp_path)
    seen = shown(run)
    assert "30 more rows" in seen.text
    assert len(run._repr_html_()) < 20_000


@pytest.mark.parametrize("name", ["Run", "Trace", "Diagnosis"])
def test_public_classes_show_themselves(name: str) -> None:
    """R-Q5: what a notebook looks for is there."""
    assert callable(getattr(proctor, name)._repr_html_)
