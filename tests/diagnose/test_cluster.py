"""Failures of many traces, grouped; and a run diagnosed from the command line."""

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import proctor as program
from hypothesis import given
from hypothesis import strategies as st
from spans import span, trace

import proctor
from proctor.cli.diagnose import diagnose as command
from proctor.diagnose.clusters import Clusters, normalised, place_of
from proctor.diagnose.finding import Category, Diagnosis, Finding, Impact
from proctor.llm import MockLLM
from proctor.spec import Case, Suite
from proctor.trace import SpanKind, Trace


def finding(category=Category.RATE_LIMIT, location="a", said="refused", impact=Impact.LOW):
    return Finding(category, location, "quote", said, impact, 0.5, "test")


def searching() -> Trace:
    return trace(
        span("a", kind=SpanKind.TOOL, tool_name="search"),
        span("b", "a", kind=SpanKind.LLM, name="model", agent_name="helper"),
    )


def test_the_same_failure_is_one_row() -> None:
    """R-G7: seen forty times with other numbers, quotes and addresses: one row that says 40."""
    clusters = Clusters()
    for number in range(40):
        said = f"The call to 'https://x.org/{number}' gave status 429 after {number} ms."
        again = finding(location="b", said="It never used the result.", impact=Impact.HIGH)
        found = [
            finding(said=said),
            finding(said=said + " again"),
            *([again] if number < 3 else []),
        ]
        clusters.add(f"case/{number}", searching(), Diagnosis("t", "test", tuple(found)))
    first, second = clusters.all()
    assert (first.category, first.place) == (Category.RATE_LIMIT, "tool search")
    assert (first.count, first.of, first.findings) == (40, 40, 80)
    assert len(first.samples) == 3
    assert len({sample.where for sample in first.samples}) == 3
    assert (second.count, second.impact, second.place) == (3, Impact.HIGH, "llm model of helper")


def test_what_differs_stays_apart() -> None:
    """R-G7: another category, another place or another message is another row."""
    clusters = Clusters()
    found = (
        finding(),
        finding(Category.TIMEOUT),
        finding(location="b"),
        finding(said="the page does not exist any more"),
    )
    clusters.add("one", searching(), Diagnosis("t", "test", found))
    assert len(clusters.all()) == 4


@given(st.randoms(use_true_random=False))
def test_the_order_of_traces_does_not_matter(rng: random.Random) -> None:
    """R-G7: the same rows whatever came first."""
    words = ["disk full", "disk full now", "no such file", "disk is full", "file missing"]
    items = [(f"t{i}", finding(said=words[i % 5])) for i in range(10)]

    def rows(order: list) -> list:
        clusters = Clusters()
        for where, one in order:
            clusters.add(where, searching(), Diagnosis(where, "test", (one,)))
        return [row.to_dict() for row in clusters.all()]

    shuffled = list(items)
    rng.shuffle(shuffled)
    assert rows(items) == rows(shuffled)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Status 429 at 10:31", "status 503 at 9:02"),
        ("no file '/tmp/a b.txt'", 'no file "C:/x"'),
        ("see http://a.b/c?d=1", "see https://z.org"),
        ("span 3f2a91bc failed", "span 77aa01 failed"),
    ],
)
def test_messages_are_compared_without_what_varies(one: str, other: str) -> None:
    """R-G7: numbers, ids, quotes and addresses do not make two failures of one."""
    assert normalised(one) == normalised(other)


def test_a_span_that_is_gone_has_a_place() -> None:
    """R-G7: a finding about no span of the trace is still counted."""
    assert place_of(None) == "somewhere"


def flaky(_question: str) -> str:
    with proctor.capture.tool_call("search", {"q": "x"}) as call:
        call.tool_output = "Error: HTTP 429 Too Many Requests"
    with proctor.capture.llm_call("model", input="find x") as said:
        said.output = "I could not find it."
    return "nothing"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    cases = [
        {"id": "bad", "input": "find x", "correctness": {"expected_in_answer": ["42"]}},
        {"id": "good", "input": "say nothing", "correctness": {"expected_in_answer": ["nothing"]}},
    ]
    suite = Suite(cases=[Case(**case) for case in cases])
    return proctor.run(suite, agent=flaky, trials=2, results=tmp_path).path


@pytest.mark.parametrize(("flags", "seen"), [((), 4), (("--failed",), 2)])
def test_a_run_is_diagnosed_by_its_trials(run_folder: Path, flags: tuple, seen: int) -> None:
    """R-G7: every trial, or every failing one; the rows count trials, JSON holds each diagnosis."""
    done = CliRunner().invoke(command, [str(run_folder), *flags, "--format", "json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert len(told["trials"]) == seen
    assert all(row["of"] == seen and 0 < row["count"] <= seen for row in told["clusters"])
    for shape in ("console", "markdown"):
        shown = CliRunner().invoke(command, [str(run_folder), *flags, "--format", shape])
        assert shown.exit_code == 0
        assert f"{seen} traces" in shown.output


def test_a_run_is_named_as_everywhere(run_folder: Path, tmp_path: Path, monkeypatch) -> None:
    """R-G7: `latest` and the end of a run's path are runs; what is neither is no file of traces."""
    (tmp_path / "proctor.yaml").write_text("results: .\n")
    monkeypatch.chdir(tmp_path)
    for name in ("latest", str(run_folder.relative_to(tmp_path))):
        done = CliRunner().invoke(command, [name, "--failed", "--format", "json"])
        assert len(json.loads(done.output)["trials"]) == 2
    done = program("diagnose", "nowhere.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere.json: no such file" in done.stderr


def test_a_model_may_look_too(run_folder: Path, monkeypatch, tmp_path: Path) -> None:
    """R-G4: --method on --model asks the model; without a model that is one clear line."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = CliRunner().invoke(command, [str(run_folder), "--method", "on"])
    assert "none is named" in str(done.exception)
    with MockLLM([{"text": "no", "times": "forever"}]) as server:
        flags = ["--model", "openai:m", "--base-url", server.base_url, "--format", "json"]
        args = [str(run_folder), "--failed", "--method", "single_pass", *flags]
        done = CliRunner().invoke(command, args)
        assert done.exit_code == 0, done.output
        asked = len(server.requests)
    assert asked >= 2
    for trial in json.loads(done.output)["trials"]:
        assert any("gave no answer" in note for note in trial["notes"])


def test_the_package_is_the_verb() -> None:
    """R-G3: `proctor.diagnose(trace)` works, and so does importing from the package."""
    assert proctor.diagnose(Trace(trace_id="t")).findings == ()
