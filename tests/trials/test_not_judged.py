"""What was not observed is not judged: every way of running an agent, through the command line."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from commands import proctor

import proctor as library
from proctor.llm import MockLLM
from proctor.trace.capture import capture
from proctor.trace.export import save_traces

PLAIN = '''
import json, sys

def search(question):
    return "Paris is the capital of France."

def answer(question):
    """Call a tool that nobody records."""
    return search(question)

if __name__ == "__main__":
    json.load(sys.stdin)
    print(json.dumps({"answer": answer("")}))
'''

RECORDED = """
import proctor
from proctor.trace import Message

@proctor.tool
def search(question):
    return "Paris is the capital of France."

def answer(question):
    return search(question)

def idle(question):
    return "Paris"

def asks_a_model(question):
    with proctor.capture.llm_call("some-model") as step:
        step.output_messages = (Message(role="assistant", content="Paris"),)
    return "Paris"
"""

TOOLS = {
    "forbidden_tools": ["delete*"],
    "expected_tools": ["search"],
    "max_tool_calls": 3,
    "max_loops": 0,
    "max_handoff_count": 0,
    "spans": [{"any": {"tool_name": "search"}}],
}
MODELS = {"max_llm_calls": 3, "max_total_tokens": 100, "max_cost_usd": 1.0}


def write(
    folder: Path, agent: dict[str, Any] | str, checks: dict[str, Any] | None = None, **more: Any
) -> Path:
    """A suite with one case."""
    (folder / "plain.py").write_text(PLAIN)
    (folder / "recorded.py").write_text(RECORDED)
    case = {"id": "capital", "input": "Capital of France?", **(checks or {})}
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({"agents": {"a": agent}, "cases": [case], **more}))
    return path


ANSWERS = {"correctness": {"expected_in_answer": ["Paris"]}}


def judged(path: Path, *options: Any) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]]]:
    """The exit code of `proctor test`, its only case, and the results of its checks by id."""
    done = proctor("test", path, *options, "--format", "json", cwd=path.parent)
    assert done.stdout, done.stderr
    [case] = json.loads(done.stdout)["cases"]
    return done.returncode, case, {each["id"]: each for each in case["checks"]}


def run_trial(path: Path) -> dict[str, Any]:
    """The first trial of `proctor run`."""
    proctor("run", path, "--trials", "1", "--quiet", cwd=path.parent)
    [journal] = path.parent.glob("results/*/*/trials.jsonl")
    return json.loads(journal.read_text().splitlines()[0])


# -- what was not observed -------------------------------------------------------------------------


class _Service(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = b'{"answer": "Paris"}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def service():
    with HTTPServer(("127.0.0.1", 0), _Service) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("tools", "status"), [([], "not_judged"), ([{}], "passed")])
def test_a_model_without_tools_says_nothing_of_the_agents_own(
    tmp_path: Path, tools: list[Any], status: str
) -> None:
    """R-C6, R-N1: an agent that calls a model, and a function of its own that nobody records: the
    reply shows the calls a model requests, and none if the request offers no tools."""
    with MockLLM({"replies": [{"text": "Paris", "times": "forever"}]}) as server:
        (tmp_path / "workflow.py").write_text(
            "import httpx\n"
            "def delete_all():\n    return 'gone'\n"
            "def answer(question):\n"
            f"    body = {{'model': 'm', 'messages': [], 'tools': {tools!r}}}\n"
            f"    httpx.post({server.base_url + '/chat/completions'!r}, json=body)\n"
            "    delete_all()\n"
            "    return 'Paris'\n"
        )
        rules = {**ANSWERS, "path": {"forbidden_tools": ["delete*"]}, "cost": {"max_llm_calls": 1}}
        suite = write(tmp_path, "workflow:answer", rules)
        code, case, checks = judged(suite)
    assert checks["max_llm_calls"]["status"] == "pass"
    assert (case["status"], code) == (status, 0 if tools else 2)
    assert checks["forbidden_tools"]["status"] == ("pass" if tools else "not_judged")


@pytest.mark.parametrize("kind", ["python", "process", "command", "http", "ensemble"])
def test_what_was_not_observed_is_not_judged(tmp_path: Path, service: str, kind: str) -> None:
    """R-C6, R-R1, R-N1: without spans, no check of tools or models passes or fails."""
    python = {"kind": "python", "target": "plain:answer"}
    agents: dict[str, dict[str, Any]] = {
        "python": python,
        "process": {**python, "isolation": "process"},
        "command": {"kind": "command", "command": [sys.executable, "plain.py"]},
        "http": {"kind": "http", "url": service},
        "ensemble": {"kind": "ensemble", "members": {"x": python, "y": python}},
    }
    suite = write(tmp_path, agents[kind], {**ANSWERS, "path": TOOLS, "cost": MODELS})
    code, case, checks = judged(suite)
    assert (code, case["status"]) == (2, "not_judged")
    statuses = {name: each["status"] for name, each in checks.items()}
    assert statuses.pop("expected_in_answer") == "pass"
    assert set(statuses.values()) == {"not_judged"}
    assert "@proctor.tool" in checks["forbidden_tools"]["reason"]
    assert "model calls were not observed" in checks["max_llm_calls"]["reason"]


def test_soft_checks_leave_the_status_alone(tmp_path: Path) -> None:
    """R-R1: a soft check that is not judged does not change a verdict; a blocking one does."""
    soft = {name: value for name, value in TOOLS.items() if name != "forbidden_tools"}
    suite = write(tmp_path, "plain:answer", {**ANSWERS, "path": soft, "cost": MODELS})
    code, case, checks = judged(suite)
    assert (code, case["status"], case["score"]) == (0, "passed", 1.0)
    assert checks["expected_tools"]["status"] == "not_judged"
    write(tmp_path, "plain:answer", {**ANSWERS, "path": {**soft, "blocking": True}})
    assert judged(suite)[:1] == (2,)
    # Another blocking check that failed decides.
    wrong = {"correctness": {"expected_in_answer": ["Rome"]}}
    write(tmp_path, "plain:answer", {**wrong, "path": {**soft, "blocking": True}})
    assert judged(suite)[1]["status"] == "hard_fail"


def test_the_category_is_stored(tmp_path: Path) -> None:
    """R-R1: the journal says why a trial was not judged."""
    suite = write(tmp_path, "plain:answer", {**ANSWERS, "path": {"forbidden_tools": ["rm"]}})
    trial = run_trial(suite)
    assert (trial["status"], trial["category"]) == ("not_judged", "unobserved")
    assert trial["error"]["message"].startswith("forbidden_tools: tool calls were not observed")


# -- what was observed -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "verdict"),
    [
        ("recorded:answer", {"forbidden_tools": "pass", "expected_tools": "pass"}),
        # It defines recorded tools and calls none.
        ("recorded:idle", {"forbidden_tools": "pass", "expected_tools": "warn"}),
        ("recorded:asks_a_model", {"forbidden_tools": "pass", "max_llm_calls": "pass"}),
        (
            {"kind": "python", "target": "recorded:idle", "isolation": "process"},
            {"forbidden_tools": "pass", "expected_tools": "warn"},
        ),
        (
            {"kind": "python", "target": "plain:answer", "observed": ["tool_calls"]},
            {"forbidden_tools": "pass", "expected_tools": "warn", "max_llm_calls": "not_judged"},
        ),
        (
            {"kind": "scripted", "replies": ["Paris"]},
            {"forbidden_tools": "pass", "max_llm_calls": "pass", "max_cost_usd": "pass"},
        ),
    ],
)
def test_what_was_observed_is_judged(
    tmp_path: Path, agent: dict[str, Any] | str, verdict: dict[str, str]
) -> None:
    """R-C6: recorded tools, spans, a declaration or an agent of ours make checks count again."""
    suite = write(tmp_path, agent, {**ANSWERS, "path": TOOLS, "cost": MODELS})
    _, case, checks = judged(suite)
    assert case["status"] == "passed"
    assert {name: checks[name]["status"] for name in verdict} == verdict


def test_a_command_that_reports_its_calls_is_observed(tmp_path: Path) -> None:
    """R-C6: an empty list of tool calls says that there were none; no list says nothing."""
    program = tmp_path / "reports.py"
    program.write_text('print(\'{"answer": "Paris", "tool_calls": []}\')')
    agent = {"kind": "command", "command": [sys.executable, "reports.py"]}
    suite = write(tmp_path, agent, {**ANSWERS, "path": {"forbidden_tools": ["rm"]}})
    assert judged(suite)[0] == 0


def test_recorded_traces_are_judged_by_what_they_contain(tmp_path: Path) -> None:
    """R-C6: a recorded trace shows what its spans show, and what was declared when it was made."""
    suite = write(tmp_path, "plain:answer", {**ANSWERS, "path": {"forbidden_tools": ["delete"]}})
    with capture("Capital of France?") as bare:
        bare.response = "Paris"
    with capture("Capital of France?") as full:
        full.response = "Paris"
        full.observe("tool_calls")
    statuses = {}
    for name, trace in {"bare": bare, "full": full}.items():
        for form in ("jsonl", "otlp-json"):
            file = tmp_path / f"{name}.{form}"
            save_traces(trace, file, format=form)
            statuses[name, form] = judged(suite, "--traces", file)[1]["status"]
    assert statuses == {
        ("bare", "jsonl"): "not_judged",
        ("bare", "otlp-json"): "not_judged",
        ("full", "jsonl"): "passed",
        ("full", "otlp-json"): "passed",
    }


def test_the_python_function_says_the_same(tmp_path: Path) -> None:
    """R-C6 R-R1: `proctor.check` over a bare trace neither passes nor fails a tool check."""
    checks: Any = {"forbidden_tools": ["rm"], "max_tool_calls": 1}
    case = library.Case(input="?", path=checks)
    with capture("?") as trace:
        trace.response = "Paris"
    found = library.check(trace, case)
    assert {each.status for each in found} == {"not_judged"}
    with capture("?") as trace, capture.tool_call("rm", {"path": "/"}):
        trace.response = "done"
    assert [each.status for each in library.check(trace, case)] == ["fail", "pass"]


# -- arguments, prices, no checks ------------------------------------------------------------------


def test_arguments_that_were_not_recorded(tmp_path: Path) -> None:
    """R-C6: a tool span without its input shows the call and not its arguments."""
    path = {"expected_tools": [{"tool": "search", "arguments": {"q": "x"}}], "blocking": True}
    suite = write(tmp_path, "plain:answer", {**ANSWERS, "path": path})
    with capture("Capital of France?") as trace:
        trace.response = "Paris"
        with capture.tool_call("search"):
            pass
    save_traces(trace, tmp_path / "t.jsonl", format="jsonl")
    _, case, checks = judged(suite, "--traces", tmp_path / "t.jsonl")
    assert case["status"] == "not_judged"
    assert checks["expected_tools"]["reason"].startswith("arguments of tool calls were not")


def test_a_cost_limit_with_an_unknown_price_is_not_judged(tmp_path: Path) -> None:
    """R-R1: a blocking cost limit does not pass because nobody knows the price."""
    cost = {"max_cost_usd": 0.01, "blocking": True}
    suite = write(tmp_path, "recorded:asks_a_model", {**ANSWERS, "cost": cost})
    trial = run_trial(suite)
    assert (trial["status"], trial["category"]) == ("not_judged", "unpriced")
    code, _, checks = judged(suite)
    assert code == 2
    assert "none of 1 model calls has a known price" in checks["max_cost_usd"]["reason"]


def test_a_case_without_checks_is_not_judged(tmp_path: Path) -> None:
    """R-R1: an answer that nothing checked has not passed."""
    suite = write(tmp_path, "plain:answer")
    code, case, _ = judged(suite)
    assert (code, case["status"]) == (2, "not_judged")
    trial = run_trial(suite)
    assert (trial["status"], trial["category"]) == ("not_judged", "no_checks")


# -- score, threshold, size ------------------------------------------------------------------------


def test_a_judge_that_passes_does_not_fail_the_case(tmp_path: Path) -> None:
    """R-C6: 4 of 5 passes a judge's default threshold, and so the case with its default."""
    verdict = {"json": {"rationale": "good", "score": 4}}
    with MockLLM({"replies": [verdict]}) as server:
        judge = {"model": "openai:judge", "base_url": server.base_url}
        rules: dict[str, Any] = {"correctness": {"llm_judge": [{"rule": "is polite"}]}}
        suite = write(tmp_path, "plain:answer", rules, judge=judge)
        code, case, checks = judged(suite)
        assert checks["llm_judge"]["status"] == "pass"
        assert (code, case["status"], case["score"]) == (0, "passed", 0.75)


def test_a_long_answer_is_stored_once(tmp_path: Path) -> None:
    """R-C6 R-D1: checks hold the start of a long answer; the journal holds it once."""
    (tmp_path / "long.py").write_text('def answer(question):\n    return "x" * 50_000\n')
    correctness = {
        "expected_in_answer": ["x"],
        "not_in_answer": ["y"],
        "regex_match": ["x+"],
        "any_expected_in_answer": ["x"],
    }
    suite = write(tmp_path, "long:answer", {"correctness": correctness})
    trial = run_trial(suite)
    assert trial["answer"] == "x" * 50_000
    assert all(len(each["actual"]) < 1100 for each in trial["checks"])
    assert len(json.dumps(trial)) < 60_000
