"""The public API as a type checker sees it: pyright in strict mode over code that uses it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = """
import asyncio
from pathlib import Path

import proctor
from proctor.agents import AgentReply, AgentRequest
from proctor.checks import CheckContext, CheckResult, Contains, ForbidTools, MaxCost


async def answer(question: str) -> str:
    with proctor.capture.llm_call("gpt-5", input_tokens=9) as step:
        step.output = question
    return question


class Answerer:
    def __init__(self, temperature: float = 0.0) -> None:
        self.temperature = temperature

    async def run(self, request: AgentRequest) -> AgentReply:
        return AgentReply(answer=str(request.input))


def cites_source(ctx: CheckContext[str]) -> CheckResult:
    found = "[source]" in ctx.output
    return CheckResult(passed=found, reason="cites a source" if found else "no [source]")


@proctor.tool
def search(query: str) -> list[str]:
    return [query]


def record() -> proctor.Trace:
    with proctor.capture(query="q") as captured:
        search("q")
        proctor.capture.planning("look it up")
    return captured


suite: proctor.Suite = proctor.load_suite("suite.yaml")
run: proctor.Run = proctor.run(
    suite,
    agent=answer,
    trials=10,
    concurrency=8,
    early_stop=True,
    limits={"max_cost_usd": 2.0},
    results=Path("out"),
    executor="local",
)
more: proctor.Run = proctor.run(cases="mutualism/*", agents=["random", answer], seeds="1..3")
same: proctor.Run = asyncio.run(proctor.arun("suite.yaml", agents={"one": Answerer}))
every: dict[str, proctor.Run] = proctor.api.run_all("experiments.py", trials=2)
tried: proctor.Run = proctor.evaluate("suite.yaml", agent=Answerer, cases="refund-*")
case = proctor.Case(
    input="What is the capital of France?",
    checks=[Contains("Paris"), ForbidTools("delete"), MaxCost(0.01), cites_source],
)
for result in proctor.check(record(), case):
    reason: str = result.reason
verdict: str = run.verdict
rates: list[float | None] = [cell.pass_rate for cell in run.cells]
for trial in run.trials:
    trace: proctor.Trace | None = run.trace(trial)
    score: float | None = trial.score

rows = proctor.results.query(agent="careful*", since="7d")
groups: proctor.results.Groups = rows.group_by("difficulty")
change: proctor.results.Comparison = proctor.compare("main", run)
figures: tuple[float | None, float | None] = (change.pass_rate.difference, change.pass_rate.p)
low: float | None = change.pass_rate.interval.low
gate: proctor.results.GateResult = proctor.gate(run, against="main")
count: int | None = gate.more_trials
diagnosis: proctor.Diagnosis = proctor.diagnose(proctor.load_traces("run.json")[0])
by_model: proctor.Diagnosis = proctor.diagnose(record(), "agentic", model="m", max_calls=3)
page: str = run._repr_html_() + diagnosis._repr_html_() + change._repr_html_()
built: proctor.scenarios.Built = proctor.scenarios.build("mutualism.hidden_dependency", seed=7)
error: type[Exception] = proctor.ProctorError
"""

BAD = {
    'proctor.run("suite.yaml", trails=3)': 'No parameter named "trails"',
    'proctor.run("suite.yaml", trials="3")': 'cannot be assigned to parameter "trials"',
    'proctor.run("suite.yaml", limits={"max_cost": 3})': 'cannot be assigned to parameter "limits"',
    'proctor.run("suite.yaml", executor="cluster")': 'cannot be assigned to parameter "executor"',
    'proctor.run("suite.yaml").verdit': 'Cannot access attribute "verdit"',
    'proctor.batch("mutualism/*")': '"batch" is not a known attribute of module',
    "proctor.results.querry()": '"querry" is not a known attribute of module',
    'proctor.results.query(agnet="x")': 'No parameter named "agnet"',
    'proctor.compare("main", "latest").pass_rate.pvalue': 'Cannot access attribute "pvalue"',
    'proctor.diagnose(proctor.Trace(trace_id="x"), "agentic")': 'to parameter "method"',
    'proctor.capture.tool_cal("search")': 'Cannot access attribute "tool_cal"',
    'proctor.evaluate("suite.yaml", trials=3)': 'No parameter named "trials"',
    'proctor.span("step", inptu=3)': 'No parameter named "inptu"',
}
"""A mistake → what pyright says of it."""


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, list[str]]:
    """What pyright reports of each file: one with good uses, one for each mistake."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "good.py").write_text(GOOD)
    for number, line in enumerate(BAD):
        (folder / f"bad{number}.py").write_text(f"import proctor\n\nfound = {line}\n")
    settings = {
        "include": ["."],
        "extraPaths": [str(root / "src")],
        "typeCheckingMode": "strict",
        "reportPrivateUsage": False,  # _repr_html_ is for notebooks, which call it by name
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found: dict[str, list[str]] = {}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        found.setdefault(Path(each["file"]).stem, []).append(each["message"])
    return found


def test_good_uses_have_no_errors(reported: dict[str, list[str]]) -> None:
    """R-Q3: the documented calls are fully typed: no error and nothing unknown in strict mode."""
    assert reported.get("good", []) == []


@pytest.mark.parametrize(("number", "line"), [*enumerate(BAD)])
def test_a_mistake_is_an_error(number: int, line: str, reported: dict[str, list[str]]) -> None:
    """R-Q3: a misspelt keyword, name or value is found before anything runs."""
    assert any(BAD[line] in message for message in reported[f"bad{number}"]), reported[
        f"bad{number}"
    ]
