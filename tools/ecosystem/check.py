"""Run one small agent through Proctor and print what its traces show, as JSON.

    python check.py '{"kind": "python", "target": "openai_loop:answer"}' [--show]

Runs in the environment of the agent's framework, next to the agents. The model is the mock server:
it requests the tool for the city of the question, then answers with the tool's result. Three cases
run three trials each, four at a time; the last case expects an answer that the agent cannot give.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import yaml

from proctor.llm import MockLLM
from proctor.llm.mock import ScriptRequest
from proctor.runs.run import Run
from proctor.runs.trial import Trial
from proctor.trace import Trace

HERE = Path(__file__).parent
CITIES = ("Paris", "Oslo", "Lima")
TRIALS = 3
USAGE = {"input": 40, "output": 8}
YES = "yes"
COLUMNS = (
    "model calls",
    "messages",
    "tokens",
    "price",
    "tool calls",
    "arguments",
    "results",
    "verdict",
    "apart",
)


def reply(request: ScriptRequest) -> object:
    """Play a model that calls the tool once and answers with its result."""
    text = request.text
    city = next((c for c in re.findall(r"weather in (\w+)\?", text) if c in CITIES), None)
    done = f"18 degrees in {city}" in text
    said = f"It is 18 degrees in {city}."
    if "[[ ## next_tool_name ## ]]" in text:  # DSPy asks for tools in text
        return {"text": _dspy(city, done), "usage": USAGE}
    if "[[ ## answer ## ]]" in text:
        fields = f"[[ ## reasoning ## ]]\nLooked up.\n\n[[ ## answer ## ]]\n{said}\n\n"
        return {"text": fields + "[[ ## completed ## ]]", "usage": USAGE}
    if done and "final_answer" in request.tools:  # smolagents answers with a tool
        call = {"name": "final_answer", "arguments": {"answer": said, "response": said}}
        return {"tool_calls": [call], "usage": USAGE}
    named = next((tool for tool in request.tools if tool.endswith("get_weather")), None)
    if done or city is None or named is None:
        return {"text": said if done else "ok", "usage": USAGE}
    return {"tool_calls": [{"name": named, "arguments": {"city": city}}], "usage": USAGE}


def _dspy(city: str | None, done: bool) -> str:
    name, arguments = ("finish", {}) if done else ("get_weather", {"city": city})
    fields = {
        "next_thought": "Look it up.",
        "next_tool_name": name,
        "next_tool_args": json.dumps(arguments),
    }
    marked = "".join(f"[[ ## {key} ## ]]\n{value}\n\n" for key, value in fields.items())
    return marked + "[[ ## completed ## ]]"


def main(agent: dict[str, object]) -> int:
    """Run the suite with this agent and print its cells."""
    cases = [
        {
            "id": city.lower(),
            "input": f"What is the weather in {city}?",
            "correctness": {"expected_in_answer": [expected]},
            "path": {"expected_tools": ["get_weather"], "max_tool_calls": 1},
            "cost": {"max_cost_usd": 0.01, "max_llm_calls": 3},
        }
        for city, expected in zip(CITIES, ("in Paris", "in Oslo", "snow"), strict=True)
    ]
    agents = str(HERE / "agents")
    with tempfile.TemporaryDirectory(prefix="proctor-ecosystem-") as folder, MockLLM(reply) as mock:
        suite = {"version": 1, "agent": agent, "cases": cases}
        Path(folder, "suite.yaml").write_text(yaml.safe_dump(suite))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "proctor", "run", "suite.yaml", "--quiet"),
                *("--trials", str(TRIALS), "--concurrency", "4", "--timeout", "120"),
            ],
            cwd=folder,
            env={
                **os.environ,
                **mock.environment,
                "PYTHONPATH": agents,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        found = sorted(Path(folder, "results").glob("*/*"))
        if not found:
            print(json.dumps({"problem": (done.stderr or done.stdout).strip()[-2000:]}))
            return 1
        run = Run(found[0])
        trials = [(trial, run.trace(trial)) for trial in run.trials]
    if "--show" in sys.argv and trials[0][1] is not None:
        print(trials[0][1].tree(), done.stdout, done.stderr, sep="\n")
    cells = [cells_of(trial, trace) for trial, trace in trials]
    seen = sum(len(trace.llm_calls) for _, trace in trials if trace is not None)
    if seen != len(mock.requests):
        cells[0]["model calls"] = f"{seen} of {len(mock.requests)} requests"
    cells = {name: next((c[name] for c in cells if c[name] != YES), YES) for name in cells[0]}
    print(json.dumps({"cells": cells}))
    return 0


def cells_of(trial: Trial, trace: Trace | None) -> dict[str, str]:
    """Return `yes`, or the reason, for each column of one trial."""
    city = trial.case.capitalize()
    trace = trace or Trace(trace_id="")
    calls, tools = trace.llm_calls, trace.tool_calls
    if not trial.answer and trial.error is not None:
        problem = f"{trial.error.type}: {trial.error.message}"
        return dict.fromkeys(COLUMNS, " ".join(problem.split())[:200])
    mixed = {other for other in CITIES if other != city and other in json_of(trace)}
    failed = trial.status in ("failed", "hard_fail")
    right = failed if city == CITIES[-1] else trial.status == "passed"
    messages = all(call.input_messages and call.output_messages for call in calls)
    shown = {
        "model calls": (len(calls) >= 2 and all(call.model for call in calls))
        or f"{len(calls)} calls",
        "messages": (bool(calls) and messages) or "missing",
        "tokens": all((c.input_tokens, c.output_tokens) == (40, 8) for c in calls) or "missing",
        "price": (bool(trial.cost_usd) and not trial.unpriced_calls) or "unknown",
        "tool calls": [t.name.split("__")[-1] for t in tools] == ["get_weather"]
        or str([t.name for t in tools]),
        "arguments": all(t.arguments == {"city": city} for t in tools)
        or str([t.arguments for t in tools]),
        "results": all(f"18 degrees in {city}" in str(t.result) for t in tools)
        or str([t.result for t in tools]),
        "verdict": right or f"{trial.status}: {trial.error.message if trial.error else ''}",
        "apart": not mixed or f"also has {', '.join(sorted(mixed))}",
    }
    return {name: YES if value is True else str(value)[:200] for name, value in shown.items()}


def json_of(trace: Trace) -> str:
    """Return all text of a trace."""
    return msgspec.json.encode(trace, enc_hook=str).decode()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
