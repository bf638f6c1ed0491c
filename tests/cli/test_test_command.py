"""`proctor test` from outside: real suites, real agents, real files."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import proctor as command
from prometheus_client.parser import text_string_to_metric_families

from proctor.cli.main import run
from proctor.llm import MockLLM
from proctor.trace.capture import capture
from proctor.trace.export import save_traces

AGENT = '''
"""An agent that does what its question tells it to."""
import subprocess, sys, time
from pathlib import Path
from proctor.trace.capture import capture, tool

@tool
def search(question):
    return "Paris is the capital of France."

@tool
def delete_files(pattern):
    return "gone"

def answer(question):
    print("chatter of the agent")
    subprocess.run([sys.executable, "-c", "print('chatter of its child')"])
    if "crash" in question:
        raise RuntimeError("no connection")
    if "leave" in question:
        sys.exit(0)
    if "delete" in question:
        delete_files("*")
        return "Done."
    if "hang" in question:
        Path(question.split()[-1]).touch()
        time.sleep(60)
    if "quiet" in question:
        return ""
    if "hostile" in question:
        return ATTACK
    search(question)
    return "The capital of France is Paris."

ATTACK = (
    "\\x1b[31mred\\x1b]0;t\\x07 \\x00 \\ud800 <script>alert(1)</script> ]]> \\u202e"
    "\\n::error::pwned\\n##[error]pwned\\nproctor_cases 99\\n" + "x" * 10_000_000
)

def broken(question):
    return "I do not know."

async def later(question):
    return "Paris, later."

async def leaves_later(question):
    sys.exit(0)

class Leaves:
    def __init__(self):
        sys.exit(0)
    def __call__(self, question):
        return ""
'''

GOOD = """
  - id: capital
    input: What is the capital of France?
    tags: [smoke]
    correctness: {expected_in_answer: [Paris]}
    path: {expected_tools: [search]}
"""
WARNS = """
  - id: warns
    input: And the capital of France?
    path: {expected_tools: [browse]}
"""
WRONG = """
  - id: wrong
    input: What is the capital of Italy?
    tags: [geo]
    difficulty: hard
    correctness: {expected_in_answer: [Rome]}
"""
FORBIDDEN = """
  - id: deletes
    input: Please delete everything.
    path: {forbidden_tools: [delete_*]}
"""
CRASH = """
  - id: crash
    input: Please crash.
"""


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self):
        return json.loads(self.out)

    @property
    def statuses(self):
        return {case["case"]: case["status"] for case in self.document["cases"]}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with an agent, worked in; nothing of the machine's own settings is seen."""
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def suite(place, *cases, name="suite.yaml", head="agent: agent:answer"):
    (place / name).write_text(f"{head}\ncases:{''.join(cases)}")
    return name


@pytest.fixture
def proctor(place, capfd):
    """The command line, in this process."""

    def call(*args):
        code = run(["test", *map(str, args)])
        return Said(code, *capfd.readouterr())

    return call


# -- outcomes --------------------------------------------------------------------------------------


def test_pass(place, proctor):
    """R-R11: all passed is exit code 0, with a table for people."""
    said = proctor(suite(place, GOOD))
    assert said.code == 0
    assert "1 of 1 case passed" in said.out
    assert "✓  capital  1.00   PASS         PASS  SKIP" in said.out


def test_with_several_agents_each_failure_says_whose_it_is(place, proctor):
    """R-Q5: a case that two agents fail is reported for each agent, and counted twice."""
    head = "agents: {careful: agent:answer, hasty: agent:broken}"
    said = proctor(suite(place, WRONG, head=head))
    assert "✗ wrong × careful  a blocking check failed  suite.yaml:3" in said.out
    assert "✗ wrong × hasty  a blocking check failed  suite.yaml:3" in said.out
    assert "0 of 2 cells passed; 2 failed" in said.out


def test_soft_failures_warn_and_pass(place, proctor):
    """R-C3: the path layer warns; the gate stays open."""
    said = proctor(suite(place, GOOD, WARNS))
    assert said.code == 0
    assert "WARN expected_tools" in said.out
    assert "2 of 2 cases passed; 1 warning" in said.out


def test_a_check_without_a_baseline_says_that_it_has_no_effect(place, proctor):
    """R-C4: a limit relative to a baseline is skipped without one, and the report says so."""
    limit = "    cost: {max_cost_multiplier: 2}\n"
    said = proctor(suite(place, GOOD + limit, WRONG))
    assert "skipped: max_cost_multiplier: there is no baseline" in said.out
    assert "skipped" not in proctor(suite(place, GOOD, WRONG)).out


def test_a_wrong_answer_fails_the_gate(place, proctor):
    """R-C2: correctness blocks: exit code 1, with the reason and the place of the case."""
    said = proctor(suite(place, GOOD, WRONG))
    assert said.code == 1
    assert "suite.yaml:9" in said.out
    assert "FAIL expected_in_answer: the answer lacks 'Rome'" in said.out


def test_a_forbidden_tool_fails_the_gate(place, proctor):
    """R-C3: forbidden_tools blocks although the path layer does not; the span is named."""
    said = proctor(suite(place, FORBIDDEN), "--format", "json")
    assert said.code == 1
    (case,) = said.document["cases"]
    assert case["status"] == "hard_fail"
    (check,) = case["checks"]
    assert (check["id"], check["status"], check["actual"]) == (
        "forbidden_tools",
        "fail",
        ["delete_files"],
    )
    assert len(check["span_ids"]) == 1


def test_a_crash_is_a_failure(place, proctor):
    """R-R1: an agent that crashed has failed its case, with the line it came from: exit code 1."""
    said = proctor(suite(place, GOOD, CRASH), "--format", "json")
    assert said.code == 1
    assert said.statuses == {"capital": "passed", "crash": "failed"}
    line = AGENT[: AGENT.index('raise RuntimeError("no')].count("\n") + 1
    assert said.document["cases"][1]["error"] == f"RuntimeError: no connection (at agent.py:{line})"
    assert said.document["totals"]["failed"] == 1


@pytest.mark.parametrize("limit", [(), ("--timeout", "60")])
@pytest.mark.parametrize("agent", ["answer", "leaves_later", "Leaves"])
def test_an_agent_that_exits_does_not_take_the_gate_with_it(place, proctor, agent, limit):
    """R-R1: sys.exit(0) in an agent is an error of its trial; the others are still judged."""
    leaves = "\n  - {id: leaves, input: Please leave.}\n"
    name = suite(place, leaves, GOOD, head=f"agent: agent:{agent}")
    said = proctor(name, "--format", "json", *limit)
    assert said.code == 1
    assert said.statuses["leaves"] == "failed"
    assert len(said.statuses) == 2
    assert said.document["cases"][0]["error"] == (
        "AgentError: the agent called sys.exit(0) (return an answer, or raise an error)"
    )


def test_a_check_that_exits_or_raises_is_unscored(place, proctor):
    """R-C9, R-R11: the check is broken, not the agent: exit code 2, and the line that did it."""
    (place / "mine.py").write_text("import sys\ndef leaves(c): sys.exit(1)\ndef odd(c): {}['x']\n")
    checked = "\n  - {id: a, input: Hello, checks: [mine:leaves, mine:odd]}\n"
    said = proctor(suite(place, checked))
    assert said.code == 2
    assert "UNSCORED leaves: the check itself failed: SystemExit: 1 (at mine.py:2)" in said.out
    assert "UNSCORED odd: the check itself failed: KeyError: 'x' (at mine.py:3)" in said.out


def test_a_case_without_checks_is_named(place, proctor):
    """R-C1 R-R1: an answer that nothing checks has not passed, and the report says so."""
    said = proctor(suite(place, GOOD, "\n  - {id: bare, input: Hello}\n"))
    assert said.code == 2
    assert "note: no checks in 1 of 2 cases, so they are not judged: bare" in said.out
    assert "note" not in proctor(suite(place, GOOD)).out


def test_a_failure_beside_a_crash_fails_the_gate(place, proctor):
    """R-R11: what is known to be wrong wins over what could not be judged."""
    assert proctor(suite(place, CRASH), "--on-agent-error", "infra").code == 2
    assert proctor(suite(place, CRASH, WRONG), "--on-agent-error", "infra").code == 1


def test_timeout(place, proctor):
    """R-R1, R-R8: an agent that takes too long has failed, and the others are still judged."""
    hangs = f"\n  - {{id: hangs, input: hang {place / 'mark'}}}\n"
    said = proctor(suite(place, hangs, GOOD), "--timeout", "0.3", "--format", "json")
    assert said.code == 1
    assert said.statuses == {"hangs": "failed", "capital": "passed"}
    assert "longer than 0.3 s" in said.document["cases"][0]["error"]


# -- choosing --------------------------------------------------------------------------------------


def test_tags_and_filters_choose(place, proctor):
    """R-S3: tags and filters choose cases; each case runs once."""
    name = suite(place, GOOD, WRONG, FORBIDDEN)
    assert proctor(name, "--tags", "smoke,other", "--format", "json").statuses.keys() == {"capital"}
    assert proctor(name, "--filter", "difficulty:hard", "--format", "json").statuses == {
        "wrong": "hard_fail"
    }


def test_a_filter_that_matches_nothing_is_an_error(place, proctor):
    """R-R11: a gate over no cases would pass; this one cannot be judged."""
    said = proctor(suite(place, GOOD), "--tags", "smok")
    assert (said.code, said.out) == (2, "")
    assert "none of 1 cases is selected by --tags smok" in said.err
    assert "did you mean 'smoke'?" in said.err


def test_a_filter_may_leave_out_a_whole_suite(place, proctor):
    """R-S3: over several suites a filter needs to find something somewhere."""
    names = suite(place, GOOD, name="a.yaml"), suite(place, WRONG, name="b.yaml")
    said = proctor(*names, "--tags", "geo", "--format", "json")
    assert said.statuses == {"wrong": "hard_fail"}
    assert said.document["cases"][0]["suite"] == "b.yaml"


def test_several_suites_are_one_report(place, proctor):
    """R-Q5: one document for all suites; equal ids stay apart."""
    names = suite(place, GOOD, name="a.yaml"), suite(place, GOOD, name="b.yaml")
    said = proctor(*names, "--format", "json")
    assert [case["suite"] for case in said.document["cases"]] == ["a.yaml", "b.yaml"]
    assert said.document["title"] == "2 suites"


def test_another_agent(place, proctor):
    """R-S6: --agent wins over the suite; several are reported separately."""
    name = suite(place, GOOD)
    assert proctor(name, "--agent", "agent:broken").code == 1
    said = proctor(name, "--agent", "agent:broken", "--agent", "agent:later", "--format", "json")
    found = {case["agent"]: case["status"] for case in said.document["cases"]}
    assert found == {"agent:broken": "hard_fail", "agent:later": "passed"}


def test_agents_of_the_settings(place, proctor):
    """R-A1: an agent may stand in proctor.yaml, by name or as the default."""
    (place / "proctor.yaml").write_text(
        "agents: {mine: {kind: python, target: 'agent:later'}}\nagent: mine\n"
    )
    assert proctor(suite(place, GOOD, head="agent: mine")).code == 0
    assert proctor(suite(place, GOOD, head="version: 1")).code == 0
    said = proctor(suite(place, GOOD), "--agent", "mien")
    assert said.code == 2
    assert "there is no agent 'mien'" in said.err


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("agent: agent:anwser", "agent has no 'anwser'"),
        ("agent: nowhere:answer", "no module 'nowhere'"),
        ("agnet: agent:answer", "did you mean"),
    ],
)
def test_configuration_errors(place, proctor, head, expected):
    """R-R11: what is wrong with the suite is one message and exit code 2, before anything runs."""
    said = proctor(suite(place, GOOD, head=head))
    assert (said.code, said.out) == (2, "")
    assert expected in said.err
    assert "chatter" not in said.err


def test_fail_fast(place, proctor):
    """R-R4: nothing more begins after the first that did not pass, and that is said."""
    said = proctor(
        suite(place, WRONG, GOOD), "--fail-fast", "--concurrency", "1", "--format", "json"
    )
    assert said.code == 1
    assert said.statuses == {"wrong": "hard_fail"}
    assert said.document["totals"]["not_run"] == 1


# -- formats ---------------------------------------------------------------------------------------


def test_json_is_exactly_one_document(place, proctor):
    """R-Q5: nothing an agent or its child prints comes between; it goes to standard error."""
    said = proctor(suite(place, GOOD), "--format", "json")
    assert said.document["exit_code"] == 0
    assert "chatter of the agent" in said.err


def test_children_of_agents_cannot_write_to_our_output(place):
    """R-Q5: the descriptor itself is turned, as a real process shows."""
    name = suite(place, GOOD)
    done = subprocess.run(
        [sys.executable, "-m", "proctor", "test", name, "--format", "json"],
        capture_output=True,
        check=False,
    )
    assert json.loads(done.stdout)["totals"]["passed"] == 1
    assert b"chatter of its child" in done.stderr


def test_several_formats_at_once(place, proctor):
    """R-Q5: files go to formats in order; the table moves to standard error."""
    said = proctor(
        suite(place, GOOD, WRONG),
        *("--format", "junit", "-o", "junit.xml"),
        *("--format", "prometheus", "-o", "metrics.prom"),
        *("--format", "json", "--format", "console"),
    )
    assert said.code == 1
    assert said.document["totals"]["cases"] == 2
    assert "1 of 2 cases passed" in said.err
    cases = ET.parse(place / "junit.xml").getroot().iter("testcase")
    assert [case.get("name") for case in cases] == ["capital", "wrong"]
    metrics = (place / "metrics.prom").read_text()
    names = {family.name for family in text_string_to_metric_families(metrics)}
    assert {"proctor_cases", "proctor_case_score"} <= names


def test_markdown_and_github(place, proctor):
    """R-Q5: both work anywhere."""
    name = suite(place, WRONG)
    assert proctor(name, "--format", "markdown").out.startswith("## ❌ FAIL: suite.yaml\n")
    said = proctor(name, "--format", "github")
    assert said.out.startswith("::error file=suite.yaml,line=3,col=5,title=wrong%3A expected_in_")


def test_console_in_a_file_has_no_colours(place, proctor):
    """R-Q5: `-o` without a format is the table, as plain text; missing folders are made."""
    said = proctor(suite(place, WRONG), "-o", "new/folder/report.txt")
    assert said.out == ""
    text = (place / "new/folder/report.txt").read_text()
    assert "0 of 1 case passed" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--format", "json", "--format", "junit"], "only one of json and junit can go to"),
        (["--format", "json", "-o", "a", "-o", "b"], "2 files for 1 formats"),
        (["--format", "json", "--format", "json"], "--format json is given twice"),
        (["--format", "json", "--format", "junit", "-o", "a", "-o", "./a"], "is given twice"),
        (["--format", "jsn"], "'jsn' is not one of"),
        (
            ["--timeout", "soon"],
            "error: Invalid value for '--timeout': 'soon' is not a valid float.\n",
        ),
        (["-o", "suite.yaml/x"], "suite.yaml is a file, not a folder"),
        (["-o", "."], "names a folder"),
        (["--map", "m.yaml"], "add --traces"),
        (["--traces", "t", "--agent", "agent:broken"], "give one of them"),
    ],
)
def test_usage_errors_before_anything_runs(place, proctor, args, expected):
    """R-R11: an impossible combination is exit code 2, and no agent is run."""
    said = proctor(suite(place, GOOD), *args)
    assert (said.code, said.out) == (2, "")
    assert expected in said.err
    assert "chatter" not in said.err


def test_actions_get_annotations_and_a_summary_unasked(place, proctor, monkeypatch):
    """R-Q5: in GitHub Actions annotations are automatic and the step summary is always written."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place / "summary.md"))
    name = suite(place, GOOD, WRONG)
    said = proctor(name)
    assert said.code == 1
    assert "1 of 2 cases passed" in said.out
    assert "\n::error file=suite.yaml,line=9," in said.out
    said = proctor(name, "--format", "json")
    assert said.document["exit_code"] == 1
    assert "\n::error file=suite.yaml,line=9," in said.err
    assert (place / "summary.md").read_text().count("## ❌ FAIL: suite.yaml") == 2


def test_hostile_answers_are_harmless_everywhere(place, proctor):
    """R-Q5: escapes, markup, NUL, lone surrogates and 10 MB, through the whole way."""
    hostile = """
  - id: hostile
    input: Be hostile.
    correctness: {expected_in_answer: [Paris], exact_match: Paris}
"""
    said = proctor(
        suite(place, hostile),
        *("--format", "console", "-o", "c.txt", "--format", "github", "-o", "g.txt"),
        *("--format", "junit", "-o", "j.xml", "--format", "prometheus", "-o", "p.prom"),
        *("--format", "markdown", "-o", "m.md", "--format", "json"),
    )
    assert said.code == 1
    (case,) = said.document["cases"]
    assert case["status"] == "hard_fail"
    actual = next(c["actual"] for c in case["checks"] if c["id"] == "exact_match")
    assert len(actual) < 1_100, "the trial has the answer"
    texts = {path: (place / path).read_text() for path in ("c.txt", "g.txt", "m.md", "p.prom")}
    for path, text in texts.items():
        assert len(text) < 20_000, path
        assert not any(c < " " and c != "\n" for c in text), path
        assert not any(line.strip().startswith("::error::") for line in text.split("\n")), path
        assert "##[" not in text, path
    assert "<script" not in texts["m.md"].replace("`", "").split("actual")[0]
    assert len(list(ET.parse(place / "j.xml").getroot().iter("testcase"))) == 1
    assert list(text_string_to_metric_families(texts["p.prom"]))


# -- recorded traces -------------------------------------------------------------------------------


def record(path, query, answer, *tools, **metadata):
    """A trace as an agent would have left it."""
    with capture(query, name="agent") as trace:
        for name in tools:
            with capture.tool_call(name, {}) as call:
                call.tool_output = "found"
        trace.response = answer
    trace.metadata.update(metadata)
    path.parent.mkdir(exist_ok=True)
    save_traces([trace], path, "jsonl")
    return trace.trace_id


def test_traces_by_input(place, proctor):
    """R-A2: a recorded trace is the case's whose input it was asked; nothing is run."""
    record(place / "t" / "x.jsonl", "What is the  capital of France?", "It is Paris.", "search")
    said = proctor(suite(place, GOOD), "--traces", "t", "--format", "json")
    assert said.code == 0
    assert said.statuses == {"capital": "passed"}
    assert said.document["cases"][0]["tool_calls"] == 1
    assert "chatter" not in said.err


def test_traces_of_one_case_are_told_apart(place, proctor):
    """R-A2: of several recordings of a case, each says the file it is in, also in JUnit."""
    asked = "What is the capital of France?"
    record(place / "t" / "größer als.jsonl", asked, "It is Lyon.", "search")
    record(place / "t" / "x.jsonl", asked, "It is Nice.", "search")
    name = suite(place, GOOD)
    shown = proctor(name, "--traces", "t").out
    assert "✗ capital  a blocking check failed" in shown
    for file in ("t/größer als.jsonl", "t/x.jsonl"):
        assert f"  {file}\n" in shown
    expected = proctor(name, "--traces", "t", "--format", "json").document["cases"]
    assert [each["source"] for each in expected] == ["t/größer als.jsonl", "t/x.jsonl"]
    assert "\nt/x.jsonl\n" in proctor(name, "--traces", "t", "--format", "junit").out


def test_traces_by_id(place, proctor):
    """R-A2: a trace that names the case, or whose file does, is found whatever was asked."""
    record(place / "t" / "capital.jsonl", "something else", "It is Paris.", "search")
    record(place / "u" / "x.jsonl", "something else", "It is London.", case_id="capital")
    name = suite(place, GOOD, head="version: 1")
    assert proctor(name, "--traces", "t").code == 0
    assert proctor(name, "--traces", "u/*.jsonl").code == 1


def test_traces_by_map(place, proctor):
    """R-A2: an explicit map wins, by trace id or by file."""
    good = record(place / "t" / "a.jsonl", "one", "It is Paris.", "search")
    record(place / "t" / "b.jsonl", "two", "Milano.")
    (place / "map.yaml").write_text(f"capital: {good}\nwrong: t/b.jsonl\n")
    name = suite(place, GOOD, WRONG)
    said = proctor(name, "--traces", "t", "--map", "map.yaml", "--format", "json")
    assert said.statuses == {"capital": "passed", "wrong": "hard_fail"}


def test_a_map_with_a_slip(place, proctor):
    """R-S1: an unknown case in the map is an error at its place, with the nearest one."""
    record(place / "t" / "a.jsonl", "one", "x")
    (place / "map.yaml").write_text("captial: a.jsonl\n")
    said = proctor(suite(place, GOOD), "--traces", "t", "--map", "map.yaml")
    assert said.code == 2
    assert "map.yaml:1:1: there is no case 'captial'" in said.err
    assert "did you mean 'capital'?" in said.err


def test_a_case_without_a_trace_is_infrastructure(place, proctor):
    """R-R11: a missing trace is exit code 2, the case is named, and stray traces are counted."""
    record(place / "t" / "a.jsonl", "What is the capital of France?", "Paris", "search")
    record(place / "t" / "b.jsonl", "Who are you?", "An agent.")
    said = proctor(suite(place, GOOD, WRONG), "--traces", "t", "--format", "json")
    assert said.code == 2
    assert said.statuses == {"capital": "passed", "wrong": "infra_error"}
    assert "no recorded trace for case 'wrong'" in said.document["cases"][1]["error"]
    assert said.document["notes"] == ["1 of 2 traces belong to no selected case"]


def test_every_trace_of_a_case_is_judged(place, proctor):
    """R-R11: three recordings of one case are three results; a bad one among them shows."""
    for number, answer in enumerate(("Paris", "London", "Paris!")):
        record(place / "t" / f"{number}.jsonl", "What is the capital of France?", answer, "search")
    said = proctor(suite(place, GOOD), "--traces", "t", "--format", "json")
    assert said.code == 1
    assert [c["status"] for c in said.document["cases"]] == ["passed", "hard_fail", "passed"]
    assert [c["trial"] for c in said.document["cases"]] == [0, 1, 2]


def test_broken_trace_files_are_told(place, proctor):
    """R-T7: a file that cannot be read costs only itself, and is named in the report."""
    record(place / "t" / "a.jsonl", "What is the capital of France?", "Paris", "search")
    (place / "t" / "b.json").write_text("{not json")
    said = proctor(suite(place, GOOD), "--traces", "t", "--format", "json")
    assert said.code == 0
    assert any("b.json" in note for note in said.document["notes"])
    assert proctor(suite(place, GOOD), "--traces", "nowhere").code == 2


# -- judges ----------------------------------------------------------------------------------------


def test_the_judge_of_the_suite_judges(place, proctor):
    """R-C7: a judge in the suite is asked, says who it is, and its verdicts are cached."""
    judged = """
  - id: polite
    input: What is the capital of France?
    correctness: {llm_judge: The answer is polite.}
"""
    verdict = {"json": {"rationale": "Kind words.", "score": 5}}
    with MockLLM({"replies": [verdict]}) as server:
        judge = f"judge: {{model: openai:judge, base_url: {server.base_url}}}"
        name = suite(place, judged, head=f"agent: agent:answer\n{judge}")
        said = proctor(name)
        assert said.code == 0, said
        assert "Kind words." in said.out
        assert "openai:judge" in said.out
        assert proctor(name).code == 0
        assert len(server.requests) == 1
    assert list((place / "cache").rglob("*.json"))


def test_a_judge_out_of_reach_is_infrastructure(place, proctor):
    """R-C7: a judge that fails leaves the case unscored: exit code 2, never a verdict."""
    judged = """
  - id: polite
    input: What is the capital of France?
    correctness: {llm_judge: The answer is polite.}
"""
    judge = "judge: {model: 'openai:judge', base_url: 'http://127.0.0.1:9/v1', retries: 0}"
    said = proctor(suite(place, judged, head=f"agent: agent:answer\n{judge}"), "--format", "json")
    assert said.code == 2
    assert said.document["cases"][0]["checks"][0]["status"] == "unscored"


def test_grounding_says_its_method(place, proctor):
    """R-C8: without a judge the answer is compared with the tools' output, as reported."""
    grounded = """
  - id: grounded
    input: What is the capital of France?
    correctness: {hallucination_check: true}
"""
    said = proctor(suite(place, grounded))
    assert said.code == 0
    assert "PASS hallucination_check: by grounding" in said.out


# -- stopping --------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reports_what_is_finished(place: Path, number, code):
    """R-R6: Ctrl-C ends with 130, SIGTERM with 143, and finished cases are reported."""
    mark = place / "mark"
    os.mkfifo(place / "ready")
    hangs = f"\n  - {{id: hangs, input: hang {mark}}}\n"
    last = "\n  - {id: never, input: never reached}\n"
    name = suite(place, GOOD, hangs, last)
    (place / "agent.py").write_text(
        AGENT.replace("Path(question.split()[-1]).touch()", "open('ready', 'w').write('x')")
    )
    args = [name, "--concurrency", "1", "--format", "json"]
    child = subprocess.Popen(
        [sys.executable, "-m", "proctor", "test", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=place,
    )
    with (place / "ready").open() as ready:  # waits until the agent hangs
        ready.read()
    child.send_signal(number)
    out, err = child.communicate(timeout=30)
    found = json.loads(out)
    assert child.returncode == code, err
    assert found["signal"] == int(number)
    assert {c["case"]: c["status"] for c in found["cases"]} == {
        "capital": "passed",
        "hangs": "cancelled",
    }
    assert found["totals"]["not_run"] == 1


def test_a_run_judged_again_keeps_three_outcomes(place, proctor):
    """R-A2 R-R1: of a run folder, each trial is judged once, by the attempt that counts; trials
    that could not be judged stay so instead of failing."""
    (place / "flaky.py").write_text(
        "import pathlib\n"
        "def answer(request):\n"
        "    index = request.index\n"
        "    seen = pathlib.Path(f'seen{index}')\n"
        "    if index == 3 or (index == 2 and not seen.exists()):\n"
        "        seen.touch()\n"
        "        raise ConnectionError('no route to the model')\n"
        "    if index == 4:\n"
        "        raise KeyError('agent')\n"
        "    return 'Lyon' if index == 1 else 'Paris'\n"
    )
    (place / "flaky.yaml").write_text(
        "agent: flaky:answer\n"
        "cases: [{id: capital, input: x, correctness: {expected_in_answer: [Paris]}}]\n"
    )
    name = "flaky.yaml"
    started = [sys.executable, "-m", "proctor", "run"]
    env = {**os.environ, "XDG_CONFIG_HOME": str(place / "xdg")}
    options = ["--trials", "5", "--max-retries", "0", "--quiet", "--results", "kept"]
    quietly = {"cwd": place, "env": env, "capture_output": True}
    subprocess.run([*started, name, *options], check=False, **quietly)
    (run,) = (place / "kept").glob("*/*/")
    subprocess.run([*started, "--retry-infra", str(run), "--quiet"], check=False, **quietly)
    said = proctor(name, "--traces", str(run), "--format", "json")
    assert [case["status"] for case in said.document["cases"]] == [
        "passed",
        "hard_fail",
        "passed",
        "infra_error",
        "failed",
    ]


def test_a_run_is_judged_again_by_any_of_its_names(tmp_path):
    """R-A2 R-R1: a folder, its traces, a tag and `latest` give the outcomes of the run: attempts
    that were retried, cancelled or lost are no failures, and missing trials are named."""
    (tmp_path / "flaky.py").write_text(
        "import pathlib, time\n"
        "def answer(request):\n"
        "    seen = pathlib.Path(f'seen{request.index}')\n"
        "    first = not seen.exists()\n"
        "    seen.touch()\n"
        "    if request.index == 1 or (request.index == 0 and first):\n"
        "        raise ConnectionError('no route to the model')\n"
        "    if request.index == 2 and not first:\n"
        "        pathlib.Path('waiting').touch()\n"
        "        time.sleep(600)\n"
        "    if request.index == 2:\n"
        "        raise ConnectionError('later')\n"
        "    return 'Paris'\n"
    )
    case = "{id: capital, input: x, correctness: {expected_in_answer: [Paris]}}"
    (tmp_path / "flaky.yaml").write_text(f"agent: flaky:answer\ncases: [{case}]\n")
    quiet = ("--quiet", "--concurrency", 1)
    command("run", "flaky.yaml", "--trials", 4, "--max-retries", 0, *quiet, cwd=tmp_path)
    (run,) = (tmp_path / "results" / "flaky").iterdir()
    line = [sys.executable, "-m", "proctor", "run", "--retry-infra", run, *map(str, quiet)]
    with subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        while not (tmp_path / "waiting").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    command("runs", "tag", run, "keep", cwd=tmp_path)
    own = json.loads(command("report", run, "--format", "json", cwd=tmp_path).stdout)["totals"]
    counted = ("passed", "failed", "hard_fail", "infra_error", "not_judged")
    assert [own[name] for name in counted] == [2, 0, 0, 1, 0]
    for name in ("latest", "keep", f"flaky/{run.name}", run, run / "traces"):
        said = command("test", "flaky.yaml", "--traces", name, "--format", "json", cwd=tmp_path)
        document = json.loads(said.stdout)
        assert said.returncode == 2
        assert [document["totals"][key] for key in counted] == [own[key] for key in counted]
        assert document["notes"] == [
            "capital × flaky:answer: 1 planned trial never ended in the recorded run"
        ]
    unknown = command("test", "flaky.yaml", "--traces", "lastest", cwd=tmp_path)
    assert unknown.returncode == 2
    assert "no run and no tag is called 'lastest'" in unknown.stderr


def test_an_answer_that_is_stored_cut_is_not_judged_again(tmp_path):
    """R-C6 R-R1: the end of a 50 MB answer is not in its trace, so checks on it say nothing."""
    (tmp_path / "long.py").write_text("def answer(x):\n    return 'x' * 50_000_000 + 'the end'\n")
    case = "{id: c, input: x, correctness: {expected_in_answer: [the end]}}"
    (tmp_path / "long.yaml").write_text(f"agent: long:answer\ncases: [{case}]\n")
    assert command("run", "long.yaml", "--trials", 1, "--quiet", cwd=tmp_path).returncode == 0
    said = command("test", "long.yaml", "--traces", "latest", "--format", "json", cwd=tmp_path)
    (case,) = json.loads(said.stdout)["cases"]
    assert (said.returncode, case["status"]) == (2, "not_judged")
    assert "only the start of the answer (50000007 characters)" in case["checks"][0]["reason"]


def test_a_case_with_only_a_metric_says_so(tmp_path):
    """R-C9 R-R1: a metric is recorded only; no retry would make a verdict of it."""
    (tmp_path / "bot.py").write_text(
        "from proctor.checks import Metric\n"
        "def answer(x):\n    return 'Paris'\n"
        "def words(ctx):\n    return Metric(1)\n"
    )
    case = "{id: c, input: x, checks: ['bot:words']}"
    (tmp_path / "m.yaml").write_text(f"agent: bot:answer\ncases: [{case}]\n")
    done = command("run", "m.yaml", "--trials", 2, cwd=tmp_path)
    assert done.returncode == 2
    assert "the checks only record metrics" in done.stdout
    assert "has no checks" not in done.stdout
    assert "--retry-infra" not in done.stdout
