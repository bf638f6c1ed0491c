"""From a failing trial or trace to a verified regression case."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from spans import span, trace

import proctor
from proctor.agents._chat_tools import ToolConfig
from proctor.cli.case import case as command
from proctor.diagnose.methods import diagnose_offline
from proctor.errors import ProctorError
from proctor.results.evidence import evidence_of, trajectories_of
from proctor.spec import load_suite
from proctor.trace import SpanKind, Trace
from proctor.trace.export import save_traces
from proctor.trials.regression_case import case_from_trace, regression_case

SUITE = Path(proctor.__file__).parent / "demo" / "suite.yaml"


def answered(policy: str, response: str, *extra: str) -> Trace:
    tools = [
        span(f"t{n}", "root", start=n + 5, end=1, kind=SpanKind.TOOL, tool_name=name,
             tool_input={"number": 7}, tool_output="done")
        for n, name in enumerate(extra)
    ]  # fmt: skip
    return trace(
        span("root", end=99, kind=SpanKind.AGENT, name="clerk"),
        span("p", "root", start=1, end=1, kind=SpanKind.TOOL, tool_name="read_policy",
             tool_input={"name": policy}, tool_output=f"about {policy}"),
        *tools,
        query="What do I get back for order 7?",
        response=response,
    )  # fmt: skip


def test_only_checks_that_tell_them_apart_are_kept() -> None:
    """R-G11: every check of the case fails on the failing trace and passes on the good one; its
    tools are mocks by arguments; equal traces give no case."""
    bad = answered("shipping", "You get 488.80.", "cancel_order")
    good = answered("returns", "You get 439.92.")
    made = regression_case(bad, good, name="refund")
    kinds = [(a["type"], a.get("tool", a.get("value"))) for a in made.case["assertions"]]
    assert ("arg_equals", "read_policy") in kinds
    assert ("tool_not_called", "cancel_order") in kinds
    assert ("output_contains", "439.92") in kinds
    assert len(kinds) == len(set(kinds))
    policy = next(tool for tool in made.tools if tool["name"] == "read_policy")
    assert {"arguments": {"name": "returns"}, "reply": "about returns"} in policy["when"]
    for tool in made.tools:
        ToolConfig.model_validate(tool)
    with pytest.raises(ProctorError, match="no check tells"):
        regression_case(good, good, name="same")


@pytest.mark.slow
def test_from_a_trial_and_from_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-G11: the command takes a trial, with a passing one of its case as the good one, or traces;
    the case fails again on the failing recording; without a good recording nothing is written."""
    monkeypatch.chdir(tmp_path)
    run = proctor.run(SUITE, agents=["hasty"], results=tmp_path / "results")
    failing = [trial for trial in run.trials() if not trial.passed]
    assert failing
    for number, trial in enumerate(failing[:3]):
        out = tmp_path / f"case{number}.yaml"
        done = CliRunner().invoke(command, ["from", f"{run.path}:{trial.name}", "--out", str(out)])
        assert done.exit_code == 0, done.output
        suite = load_suite(out, need_agent=False)
        (written,) = suite.cases
        assert written.id == f"{trial.case}-regression"
        # The diagnosis compares with passing trials, as that of the run does.
        evidence = evidence_of(trial, trajectories_of(run, {trial.case}))
        cause = diagnose_offline(run.trace(trial) or trace(), evidence=evidence).decisive
        assert cause is not None
        assert str(written.description).startswith(f"step {cause.step}, hasty: {cause.what[:60]}")
        tools = yaml.safe_load(out.with_suffix(".tools.yaml").read_text())["tools"]
        assert {tool["name"] for tool in tools} >= {"query_database"} & set(
            (run.trace(trial) or trace()).tools_used
        )
        held = run.trace(trial)
        assert held is not None
        held.metadata["case"] = written.id
        save_traces([held], tmp_path / "failing.jsonl", "jsonl")
        again = proctor.run(
            suite, agent={"kind": "replay", "traces": ["failing.jsonl"]}, trials=1,
            results=tmp_path / "again"
        )  # fmt: skip
        assert [one.passed for one in again.trials()] == [False]
    save_traces([answered("shipping", "You get 488.80.")], tmp_path / "bad.jsonl", "jsonl")
    save_traces([answered("returns", "You get 439.92.")], tmp_path / "good.jsonl", "jsonl")
    done = CliRunner().invoke(command, ["from", "bad.jsonl", "--good", "good.jsonl"])
    assert done.exit_code == 0, done.output
    assert "439.92" in json.dumps(yaml.safe_load(Path("regression.yaml").read_text()))
    Path("regression.yaml").unlink()
    same = CliRunner().invoke(command, ["from", "bad.jsonl", "--good", "bad.jsonl"])
    assert same.exit_code == 1
    passing = next(trial for trial in run.trials() if trial.passed)
    none = CliRunner().invoke(command, ["from", f"{run.path}:{passing.name}"])
    assert "the trial passed" in str(none.exception)
    alone = CliRunner().invoke(command, ["from", "bad.jsonl"])
    assert "--good" in str(getattr(alone.exception, "hint", alone.output))
    assert not Path("regression.yaml").exists()


def recorded(answer: str, tool: str | None = "find_order") -> Trace:
    with proctor.capture(query="Where is my order?") as trace:
        if tool is not None:
            with proctor.capture.tool_call(tool, {"customer": 7}) as call:
                call.tool_output = {"order": "A-4711"}
        trace.response = answer
    return trace


def test_a_trace_alone_makes_a_case_of_what_it_shows() -> None:
    """R-G11: a right trace passes its case, a wrong one fails it; or there is no case."""
    right = recorded("Order A-4711 is on its way.")
    made = case_from_trace(right, name="seen", right=True)
    assert made.case["assertions"][:2] == [
        {"type": "tool_called", "tool": "find_order", "required": True},
        {"type": "output_contains", "value": "A-4711", "required": True},
    ]
    wrong = case_from_trace(recorded("No idea."), name="x", right=False, expected=["A-4711"])
    assert wrong.case["assertions"] == [
        {"type": "output_contains", "value": "A-4711", "required": True}
    ]
    # The check must fail on a wrong trace and pass on a right one.
    for seen, is_right, text in ((right, False, "A-4711"), (recorded("x", None), True, "A-4711")):
        with pytest.raises(ProctorError, match="no check is known"):
            case_from_trace(seen, name="x", right=is_right, expected=[text])
    with pytest.raises(ProctorError, match="say what a right answer contains"):
        case_from_trace(recorded("No idea."), name="x", right=False)
