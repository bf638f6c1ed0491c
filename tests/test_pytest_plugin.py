"""The pytest plugin, seen from outside: real runs of pytest on small projects."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

# Loaded here, so that the many runs inside this process find them loaded.
import proctor.pytest_plugin._suites
import proctor.pytest_plugin.fixture  # noqa: F401 (only to have it loaded)

pytest_plugins = ["pytester"]

# LangSmith's plugin would be loaded again by each of these runs.
INI = """\
[pytest]
asyncio_default_fixture_loop_scope = function
addopts = -p no:langsmith_plugin --strict-markers
"""

AGENT = """
import proctor
from proctor.agents.base import AgentError

@proctor.tool
def search(q):
    return ["Returns are possible within 30 days."]

@proctor.tool
def delete_order(id):
    return True

def answer(question):
    if "crash" in question:
        raise RuntimeError("no such order")
    if "unreachable" in question:
        raise AgentError("the model is down", category="")  # not the agent's fault
    if "delete" in question:
        delete_order(7)
    search(question)
    return "You have 30 days."

def terse(question):
    return "30"
"""

SUITE = """\
agent: agent:answer
defaults: {trials: 2}
cases:
  - id: returns
    input: Can I return it?
    tags: [smoke, needs review]
    correctness: {expected_in_answer: [30 days]}
  - id: price
    input: What does it cost?
    correctness: {expected_in_answer: [9 euros]}
    path: {expected_tools: [look_up]}
  - id: forbidden
    input: Please delete it
    path: {forbidden_tools: ["delete_*"]}
  - id: crashes
    input: crash now
  - id: warns
    input: Can I return it?
    path: {max_tool_calls: 0}
"""

UNREACHABLE = """\
  - id: unreachable
    input: unreachable
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a suite that its configuration names."""
    pytester.makeini(INI + "proctor_suites = evals/*.yaml\n")
    folder = pytester.mkdir("evals")
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    (folder / "suite.yaml").write_text(SUITE, encoding="utf-8")
    return pytester


@pytest.fixture
def outage(project: pytest.Pytester) -> pytest.Pytester:
    """The same project, with a case whose agent cannot reach its model."""
    (project.path / "evals" / "suite.yaml").write_text(SUITE + UNREACHABLE, encoding="utf-8")
    return project


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """A whole run of pytest inside this one: ten times faster than a process of its own."""
    return project.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def run_apart(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """A whole run of pytest in a process of its own, without what others have installed."""
    others = ("langsmith_plugin", "hypothesispytest", "anyio", "timeout")
    return project.runpytest_subprocess(
        "-p", "no:cacheprovider", *(f"-pno:{name}" for name in others), *arguments
    )


def text(result: pytest.RunResult) -> str:
    return result.stdout.str()


# -- suites ------------------------------------------------------------------------------------


def test_cases_are_tests(outage: pytest.Pytester) -> None:
    """R-Q6: one test per case, named after it; failures fail, what cannot be judged is an error."""
    result = run_apart(outage, "-v")
    result.assert_outcomes(passed=2, failed=3, errors=1, warnings=1)
    result.stdout.fnmatch_lines_random(
        [
            "evals/suite.yaml::returns PASSED*",
            "evals/suite.yaml::price FAILED*",
            "evals/suite.yaml::forbidden FAILED*",
            "evals/suite.yaml::crashes FAILED*",
            "evals/suite.yaml::warns PASSED*",
            "evals/suite.yaml::unreachable ERROR*",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_agents_are_found_where_the_project_stands(project: pytest.Pytester) -> None:
    """R-Q6: an agent beside the configuration is found, also when one case alone is selected."""
    (project.path / "evals" / "agent.py").rename(project.path / "agent.py")
    # -P, because `python -m pytest` adds the current folder, and the command does not.
    command = [sys.executable, "-P", "-m", "pytest", "-pno:cacheprovider", "-pno:langsmith_plugin"]
    done = subprocess.run(
        [*command, "evals/suite.yaml::returns"],
        cwd=project.path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout


def test_failure_says_why(project: pytest.Pytester) -> None:
    """R-Q6: a failure tells checks, expected, actual, place, answer and the trace as a tree."""
    result = run(project, "-k", "price")
    result.stdout.fnmatch_lines(
        [
            "expected_in_answer: the answer lacks '9 euros' (0 of 1 found)",
            "  case     price, evals/suite.yaml:8",
            "  agent    agent:answer",
            "  verdict  HARD FAIL: 1 failed hard of 1 trial, mean score 0.00, threshold 0.8",
            "  input    What does it cost?",
            '  answer   "You have 30 days."',
            "  FAIL     correctness.expected_in_answer: the answer lacks '9 euros'*",
            '           expected ["9 euros"]',
            '           actual   "You have 30 days."',
            "  WARN     path.expected_tools: *missing: look_up*",
            "  trace",
            "    * agent agent:answer *",
            "    *tool search *(q=What does it cost?)",
        ],
        consecutive=False,
    )
    assert "Traceback" not in text(result)


def test_failure_names_the_span(project: pytest.Pytester) -> None:
    """R-Q6: a check about a call shows the call itself beside its span id."""
    result = run(project, "-k", "forbidden")
    result.stdout.re_match_lines([r"\s+span     [0-9a-f]{16}  . tool delete_order .*\(id=7\)"])
    result.stdout.fnmatch_lines(["FAILED evals/suite.yaml::forbidden - *forbidden_tools*"])


def outcome_in_junit(project: pytest.Pytester) -> list[str]:
    """What the one test in out.xml is: a failure, an error or neither."""
    case = ET.parse(project.path / "out.xml").find(".//testcase")
    assert case is not None
    return [child.tag for child in case if child.tag in ("error", "failure")]


def test_crash_is_a_failure_with_its_message(project: pytest.Pytester) -> None:
    """R-Q6: an agent that crashes has failed, in the summary and in JUnit."""
    result = run(project, "-k", "crashes", "--junitxml=out.xml")
    result.assert_outcomes(failed=1, deselected=4)
    result.stdout.fnmatch_lines(
        [
            "RuntimeError: no such order (at agent.py:15)",
            "  verdict  FAIL: 1 failed of 1 trial, mean score 0.00, threshold 0.8",
        ]
    )
    assert outcome_in_junit(project) == ["failure"]


def test_outage_is_an_error_with_its_message(outage: pytest.Pytester) -> None:
    """R-Q6: trouble that is not the agent's is an error at setup, in the summary and in JUnit."""
    result = run(outage, "-k", "unreachable", "--junitxml=out.xml")
    result.assert_outcomes(errors=1, deselected=5)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at setup of unreachable*",
            "AgentError: the model is down*",
            "*1 not judged of 1*",
        ]
    )
    assert outcome_in_junit(outage) == ["error"]


def test_crash_is_an_error_if_the_suite_says_so(project: pytest.Pytester) -> None:
    """R-Q6: with `on_agent_error: infra` an agent that crashes could not be judged."""
    suite = project.path / "evals" / "suite.yaml"
    suite.write_text("on_agent_error: infra\n" + SUITE, encoding="utf-8")
    result = run(project, "-k", "crashes", "--junitxml=out.xml")
    result.assert_outcomes(errors=1, deselected=4)
    assert outcome_in_junit(project) == ["error"]


def test_place_of_the_case(project: pytest.Pytester) -> None:
    """R-Q6: reports give the file and line where a case is written, included ones too."""
    project.makeconftest(
        "def pytest_runtest_logreport(report):\n"
        "    if report.when == 'setup':\n"
        "        print('AT', report.location[0], report.location[1] + 1, report.location[2])\n"
    )
    evals = project.path / "evals"
    evals.joinpath("more.inc").write_text("", encoding="utf-8")
    evals.joinpath("more.yml").write_text("- id: more\n  input: hello\n", encoding="utf-8")
    evals.joinpath("suite.yaml").write_text(
        "agent: agent:answer\ncases:\n  - input: hello\n    id: first\n  - !include more.yml\n",
        encoding="utf-8",
    )
    result = run(project, "-s")
    result.stdout.fnmatch_lines(["*AT evals/suite.yaml 3 first", "*AT evals/more.yml 1 more"])


@pytest.mark.parametrize(
    ("selection", "outcome"),
    [
        (("-m", "smoke"), {"passed": 1, "deselected": 4}),
        (("-m", "needs_review"), {"passed": 1, "deselected": 4}),
        (("-m", "not proctor"), {"deselected": 5}),
        (("evals/suite.yaml::returns",), {"passed": 1}),
    ],
)
def test_selection(
    project: pytest.Pytester, selection: tuple[str, ...], outcome: dict[str, int]
) -> None:
    """R-Q6: tags are markers, also under --strict-markers; a case is selected by its id."""
    run(project, *selection).assert_outcomes(**outcome)


def test_trials(project: pytest.Pytester) -> None:
    """R-Q6: a case is tried once, or as often as asked, or as it says itself; every one counts."""
    folder = project.path / "evals"
    folder.joinpath("agent.py").write_text(
        "from pathlib import Path\n"
        "def answer(question):\n"
        "    with Path('calls.txt').open('a') as file:\n"
        "        file.write('x')\n"
        "    return 'no'\n",
        encoding="utf-8",
    )
    calls = project.path / "calls.txt"
    for option, count in (
        ((), 1),
        (("--proctor-trials", "5"), 5),
        (("--proctor-trials=suite",), 2),
    ):
        calls.unlink(missing_ok=True)
        result = run(project, "-k", "price", *option)
        assert len(calls.read_text()) == count
        plural = "" if count == 1 else "s"
        result.stdout.fnmatch_lines([f"*HARD FAIL: {count} failed hard of {count} trial{plural},*"])
    run(project, "--proctor-trials", "many").stderr.fnmatch_lines(["*'many' is neither a number*"])


def test_counts_in_properties(project: pytest.Pytester) -> None:
    """R-Q6: JUnit gets the verdict and the counts as properties."""
    run(project, "-k", "returns", "--proctor-trials=3", "--junitxml=out.xml")
    properties = ET.parse(project.path / "out.xml").findall(".//testcase//property")
    found = {p.get("name"): p.get("value") for p in properties}
    assert found["proctor_verdict"] == "PASS"
    assert (found["proctor_passed"], found["proctor_trials"]) == ("3", "3")


def test_soft_failures_warn(project: pytest.Pytester) -> None:
    """R-Q6: a check that does not block is a warning at the line of its case."""
    result = run(project, "-k", "warns")
    result.stdout.fnmatch_lines(
        ["*evals/suite.yaml:17: ProctorWarning: warns: max_tool_calls: 1 tool call, at most 0*"]
    )


def test_several_agents(project: pytest.Pytester) -> None:
    """R-Q6: with several agents there is a test for each case and agent."""
    (project.path / "evals" / "suite.yaml").write_text(
        "agents: {long: 'agent:answer', short: 'agent:terse'}\n"
        "cases:\n"
        "  - {id: returns, input: Hello, correctness: {expected_in_answer: [days]}}\n",
        encoding="utf-8",
    )
    result = run(project, "-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*::returns?long? PASSED*", "*::returns?short? FAILED*", "  agent    short"]
    )


def test_problems_of_a_suite_are_all_told(project: pytest.Pytester) -> None:
    """R-Q6: a suite that cannot be read is one collection error with every problem at its place."""
    (project.path / "evals" / "suite.yaml").write_text(
        "agent: agent:answer\ncases:\n  - input: a\n    trails: 3\n  - input: b\n    tgas: [x]\n",
        encoding="utf-8",
    )
    result = run(project)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "*suite.yaml:4:5: unknown key 'trails' (did you mean 'trials'*",
            "*suite.yaml:6:5: unknown key 'tgas' (did you mean 'tags'*",
        ]
    )


def test_agent_that_cannot_be_imported(project: pytest.Pytester) -> None:
    """R-Q6: a missing agent is an error with a hint, not a traceback through our code."""
    (project.path / "evals" / "suite.yaml").write_text(
        "agent: agent:anwser\ncases: [{input: a}]\n", encoding="utf-8"
    )
    result = run(project)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*agent has no 'anwser'*did you mean 'answer'?*"])
    assert "pytest_plugin" not in text(result)


def test_hostile_answers_are_shown_harmlessly(project: pytest.Pytester) -> None:
    """R-Q6: escape sequences and floods of an agent do not reach the terminal."""
    (project.path / "evals" / "agent.py").write_text(
        "def answer(question):\n    return '\\x1b[2Jhidden\\x00' + 'x' * 100_000 + '\\ud800'\n",
        encoding="utf-8",
    )
    result = run(project, "-k", "price")
    result.assert_outcomes(failed=1, deselected=4)
    shown = text(result)
    assert "\x1b[2J" not in shown
    assert "\x00" not in shown
    assert len(shown) < 10_000


def test_hanging_agent(project: pytest.Pytester) -> None:
    """R-Q6: an agent that never answers has failed after the time given to it."""
    (project.path / "evals" / "agent.py").write_text(
        "import asyncio\nasync def answer(question):\n    await asyncio.Event().wait()\n",
        encoding="utf-8",
    )
    result = run(project, "-k", "returns", "--proctor-timeout", "0.2")
    result.assert_outcomes(failed=1, deselected=4)
    result.stdout.fnmatch_lines(["TrialTimeout: the trial took longer than 0.2 s"])


def test_parallel(outage: pytest.Pytester) -> None:
    """R-Q6: under xdist outcomes and reasons are the same."""
    result = run_apart(outage, "-n", "2")
    result.assert_outcomes(passed=2, failed=3, errors=1, warnings=1)
    result.stdout.fnmatch_lines(["expected_in_answer: the answer lacks '9 euros' (0 of 1 found)"])


# -- only when asked -----------------------------------------------------------------------------


def test_no_suite_without_configuration(project: pytest.Pytester) -> None:
    """R-Q6: YAML files are left alone in a project that does not ask for them."""
    project.makeini(INI)
    run(project).assert_outcomes()
    assert run(project).ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_pattern_without_files(project: pytest.Pytester) -> None:
    """R-Q6: a pattern that matches nothing is an error, because a gate over nothing would pass."""
    project.makeini(INI + "proctor_suites = eval/*.yaml\n")
    result = run(project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*proctor_suites: no file matches 'eval/[*].yaml'*"])


def test_nothing_is_imported_unasked(pytester: pytest.Pytester) -> None:
    """R-Q6: in an unrelated project the plugin imports itself and nothing heavy."""
    pytester.makepyfile(
        "import sys\n"
        "def test_modules():\n"
        "    ours = {m for m in sys.modules if m.split('.')[0] == 'proctor'}\n"
        "    assert ours == {'proctor', 'proctor._lazy', 'proctor.pytest_plugin'}\n"
        "    assert not {'pydantic', 'msgspec', 'click', 'yaml', 'rich'} & set(sys.modules)\n"
    )
    run_apart(pytester).assert_outcomes(passed=1)


def test_loading_imports_only_pytest_and_the_standard_library(root: Path) -> None:
    """R-Q6: what the plugin module imports when it is read."""
    code = (
        "import sys, pytest; before = set(sys.modules); import proctor.pytest_plugin;"
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - set(sys.stdlib_module_names) == {"proctor"}


# -- the marker ----------------------------------------------------------------------------------


def repeated(pytester: pytest.Pytester, body: str, marker: str, *arguments: str):
    pytester.makeini(INI)
    pytester.makepyfile(
        f"import pytest\ncalls = []\n@pytest.mark.proctor({marker})\n"
        f"def test_it():\n    calls.append(1)\n    n = len(calls)\n    {body}\n"
    )
    return run(pytester, *arguments)


@pytest.mark.parametrize(
    ("body", "outcome", "counted"),
    [
        ("assert n != 2", {"passed": 1}, "4 of 5 trials passed (1 failed, 0 errored), 4 needed*"),
        ("assert n > 2", {"failed": 1}, "3 of 5 trials passed (2 failed, 0 errored), 4 needed*"),
        ("assert n > 2 or 1 / 0", {"errors": 1}, "3 of 5 trials passed (0 failed, 2 errored)*"),
        ("n == 1 and 1 / 0", {"passed": 1}, "4 of 5 trials passed (0 failed, 1 errored)*"),
        (
            "assert n > 2; n == 3 and 1 / 0",
            {"failed": 1},
            "2 of 5 trials passed (2 failed, 1 errored), 4 needed for a threshold of 0.8",
        ),
    ],
)
def test_repeated_test(
    pytester: pytest.Pytester, body: str, outcome: dict[str, int], counted: str
) -> None:
    """R-Q6: a marked test runs N times and passes on its threshold; counts are reported."""
    result = repeated(pytester, body, "trials=5, threshold=0.8", "-rP")
    result.assert_outcomes(**outcome)
    result.stdout.fnmatch_lines([counted])


def test_repeated_test_shows_its_first_failure(pytester: pytest.Pytester) -> None:
    """R-Q6: each trial in a line, and the first that did not pass in full."""
    result = repeated(pytester, "assert n > 1", "trials=3")
    result.stdout.fnmatch_lines(
        [
            "  trial 1: failed: assert 1 > 1",
            "  trial 2: passed",
            "  trial 3: passed",
            "trial 1 in full:",
            "test_repeated_test_shows_its_first_failure.py:7: in test_it",
            "E   assert 1 > 1",
        ]
    )
    assert "repeat.py" not in text(result)


@pytest.mark.parametrize("share", [(100, 0.55, 55), (10, 0.29, 3), (3, 0.0, 0), (7, 1.0, 7)])
def test_needed(share: tuple[int, float, int]) -> None:
    """R-Q6: rounding never asks for a pass more than the threshold."""
    from proctor.pytest_plugin._repeat import RepeatOptions

    trials, threshold, needed = share
    assert RepeatOptions(trials, threshold).needed == needed


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("trails=5", "*has no 'trails'; did you mean 'trials'?*"),
        ("trials=0", "*trials is 0, not 1 or more*"),
        ("trials=True", "*trials is True, not 1 or more*"),
        ("trials=2, threshold=80", "*threshold is 80, not 0 to 1*"),
        ("1, 1.0, 3", "*takes trials and threshold only*"),
    ],
)
def test_wrong_marker(pytester: pytest.Pytester, marker: str, message: str) -> None:
    """R-Q6: a marker that cannot be obeyed is an error before the test runs."""
    result = repeated(pytester, "assert False", marker)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])


def test_marker_where_it_cannot_work(pytester: pytest.Pytester) -> None:
    """R-Q6: a marker that pytest cannot repeat is refused, not ignored."""
    pytester.makeini(INI)
    pytester.makepyfile(
        "import pytest, unittest\n"
        "class TestIt(unittest.TestCase):\n"
        "    @pytest.mark.proctor(trials=3)\n"
        "    def test_it(self): pass\n"
    )
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the marker repeats test functions only*"])


def test_repeated_async_test(pytester: pytest.Pytester) -> None:
    """R-Q6: async tests are repeated as well, under pytest-asyncio and under anyio."""
    pytester.makeini(INI)
    pytester.makepyfile(
        "import pytest\n"
        "from evals import answer\n"
        "@pytest.mark.asyncio\n"
        "@pytest.mark.proctor(trials=4, threshold=0.5)\n"
        "async def test_one(proctor):\n"
        "    trial = proctor.run(answer, 'hello').trial\n"
        "    assert trial.answer == 'hello' and proctor.trial % 2\n"
        "@pytest.mark.anyio\n"
        "@pytest.mark.proctor(trials=4, threshold=0.75)\n"
        "async def test_two(proctor):\n"
        "    assert proctor.trial % 2\n",
        evals="async def answer(question):\n    return question\n",
    )
    pytester.makeconftest("import pytest\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'\n")
    result = run(pytester)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["2 of 4 trials passed (2 failed, 0 errored), 3 needed*"])


def test_skip_ends_a_repeated_test(pytester: pytest.Pytester) -> None:
    """R-Q6: skipping and expected failures inside a repeated test mean what they always mean."""
    repeated(pytester, "pytest.skip('no')", "trials=5").assert_outcomes(skipped=1)
    repeated(pytester, "pytest.xfail('no')", "trials=5").assert_outcomes(xfailed=1)


# -- the fixture ---------------------------------------------------------------------------------


def fixture_test(pytester: pytest.Pytester, body: str) -> pytest.RunResult:
    pytester.makeini(INI)
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    pytester.makepyfile(agent=AGENT)
    pytester.makepyfile(f"from agent import answer, terse\ndef test_it(proctor):\n{lines}\n")
    return run(pytester)


def test_fixture_captures_and_checks(pytester: pytest.Pytester) -> None:
    """R-Q6: capture a block, check it in Python, and read every result."""
    fixture_test(
        pytester,
        """
with proctor.capture(query="Can I return it?") as trace:
    trace.response = answer("Can I return it?")
results = proctor.check(
    trace,
    correctness={"expected_in_answer": ["30 days"], "regex_match": "[0-9]+ euros"},
    path={"expected_tools": ["search"]},
)
assert {r.id: r.status.value for r in results} == {
    "expected_in_answer": "pass", "regex_match": "fail", "expected_tools": "pass"}
assert results.score == 0.5
assert proctor.assert_passes(trace, path={"max_tool_calls": 1})[0].status == "pass"
""",
    ).assert_outcomes(passed=1)


def test_fixture_asserts_with_reasons(pytester: pytest.Pytester) -> None:
    """R-Q6: an assertion that fails tells checks, spans and trace, at the line of the test."""
    result = fixture_test(
        pytester,
        """
with proctor.capture(query="Please delete it") as trace:
    trace.response = answer("Please delete it")
proctor.assert_passes(trace, path={"forbidden_tools": ["delete_*"]})
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">       proctor.assert_passes(trace, path={*",
            "E       AssertionError: forbidden_tools: forbidden: delete_order (once)",
            "E         input    Please delete it",
            "E         FAIL     path.forbidden_tools: forbidden: delete_order (once)",
            "E                  span     * tool delete_order *",
            "E           *tool search *",
            "test_fixture_asserts_with_reasons.py:5: AssertionError",
        ]
    )


def test_fixture_runs_an_agent(pytester: pytest.Pytester) -> None:
    """R-Q6: run an agent once: a callable, an import path, a whole case; a crash is a failure."""
    fixture_test(
        pytester,
        """
import pytest
from proctor.pytest_plugin.fixture import CannotJudge
done = proctor.run(answer, "Can I?", correctness={"expected_in_answer": ["30 days"]})
assert done.trial.status == "passed" and done.trace.tool_calls[0].name == "search"
proctor.assert_passes(done)
whole = {"input": "?", "correctness": {"exact_match": "30"}}
proctor.assert_passes(proctor.run("agent:terse", whole))
with pytest.raises(AssertionError, match="lacks 'days'"):
    proctor.assert_passes(proctor.run(terse, "?", correctness={"expected_in_answer": ["days"]}))
crashed = proctor.run(answer, "crash")
assert (crashed.trial.status, crashed.trial.category) == ("failed", "agent_error")
with pytest.raises(AssertionError, match="RuntimeError: no such order"):
    proctor.assert_passes(crashed)
unreachable = proctor.run(answer, "unreachable")
assert unreachable.trial.status == "infra_error"
with pytest.raises(CannotJudge, match="AgentError: the model is down"):
    proctor.assert_passes(unreachable)
""",
    ).assert_outcomes(passed=1)


def test_what_cannot_be_judged_is_no_assertion(pytester: pytest.Pytester) -> None:
    """R-Q6: a judge that is missing, and a check that breaks, are not failures of the agent."""
    fixture_test(
        pytester,
        """
import pytest
from proctor.pytest_plugin.fixture import CannotJudge
with proctor.capture("q") as trace:
    trace.response = "a"
with pytest.raises(CannotJudge, match="llm_judge"):
    proctor.assert_passes(trace, correctness={"llm_judge": "Is kind."})
def broken(context):
    raise KeyError("x")
with pytest.raises(CannotJudge, match="KeyError"):
    proctor.assert_passes(trace, checks=[broken])
""",
    ).assert_outcomes(passed=1)


def test_misspelt_checks(pytester: pytest.Pytester) -> None:
    """R-Q6: checks in Python are held to the rules of a suite, with the same hints."""
    result = fixture_test(pytester, 'proctor.run(answer, "q", corectness={})')
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*unknown key 'corectness' (did you mean 'correctness'?)"])


def test_secrets_are_not_shown(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-Q6: what the environment keeps secret is taken out of reasons, which end in logs."""
    monkeypatch.setenv("SHOP_API_KEY", "sk-very-secret-4711-abcdef")
    result = fixture_test(
        pytester,
        """
import os
with proctor.capture("q") as trace:
    trace.response = "the key is " + os.environ["SHOP_API_KEY"]
proctor.assert_passes(trace, correctness={"expected_in_answer": ["nothing"]})
""",
    )
    result.assert_outcomes(failed=1)
    assert "sk-very-secret-4711" not in text(result)


WARNS = """
import proctor as api

def test_path_only(proctor):
    with proctor.capture(query="q") as trace:
        with api.capture.tool_call("look"):
            trace.response = "x"
    proctor.assert_passes(trace, path={"expected_tools": ["never"]})
"""


def test_a_failed_path_check_is_a_pytest_warning(pytester):
    """R-Q6: a check that only warns does not pass silently, and can be made an error."""
    pytester.makepyfile(WARNS)
    done = run_apart(pytester)
    done.assert_outcomes(passed=1, warnings=1)
    done.stdout.fnmatch_lines(["*ProctorWarning: expected_tools: *never*"])
    strict = run_apart(pytester, "-W", "error:expected_tools")
    strict.assert_outcomes(failed=1)
