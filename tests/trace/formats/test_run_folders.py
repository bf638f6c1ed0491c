"""Traces of a run folder, read as any other file of traces."""

from pathlib import Path

import proctor
from proctor.trace.capture import capture


def answer(question: str) -> str:
    with capture.tool_call("search", {"query": question}) as step:
        step.tool_output = "found"
    return f"an answer to {question}"


def test_a_run_folder_is_a_folder_of_traces(tmp_path: Path) -> None:
    """R-T7: whole or only its traces, or the folder of all runs: the traces are what they were."""
    suite = proctor.Suite(agent="x:y", cases=[proctor.Case(id="one", input="Where?")])
    run = proctor.run(suite, agent=answer, trials=2, results=tmp_path / "results")
    kept = {trial.trace_id: run.trace(trial) for trial in run.trials()}
    assert len(kept) == 2
    for place in (run.path, run.path / "traces", tmp_path / "results"):
        found = proctor.load_traces(place)
        assert found.problems == []
        assert {trace.trace_id: trace for trace in found} == kept
        assert {call.name for trace in found for call in trace.tool_calls} == {"search"}
