"""Recorded traces in place of an agent: match traces to cases.

Promise: every trace of a case is judged, a case without one is an error, and traces that belong
to no case are counted, so that a gate misses nothing silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from proctor.agents.replay import Recordings, ReplayAgentConfig
from proctor.errors import did_you_mean
from proctor.runs.trial import PlannedTrial
from proctor.seeds import derive_seed
from proctor.spec import Case, SourceLocation, SpecError, SpecProblem
from proctor.spec.located import plain
from proctor.spec.yaml_reader import read

Chosen = Mapping[str, str | list[str]]
"""Case id → its traces: trace ids or files."""


def recorded(traces: Sequence[str], chosen: Chosen | None = None) -> ReplayAgentConfig:
    """Return an agent that replays the traces of files, folders or globs."""
    return ReplayAgentConfig(traces=list(traces), map=dict(chosen or {}))


def plan_recorded(cases: Sequence[Case], agent: str, recordings: Recordings) -> list[PlannedTrial]:
    """Plan one trial for each trace of a case; one for a case without any, to report that."""
    return [
        PlannedTrial(case=case.id, agent=agent, index=index, seed=derive_seed(0, case.id, index))
        for case in cases
        for index in range(max(1, len(recordings.of(case.id, case.input))))
    ]


def strangers(cases: Sequence[Case], recordings: Recordings) -> int:
    """Return how many traces belong to none of these cases."""
    ours = {id(trace) for case in cases for trace in recordings.of(case.id, case.input)}
    return sum(id(trace) not in ours for trace in recordings.traces)


def read_map(path: Path, cases: Sequence[Case]) -> dict[str, str | list[str]]:
    """Read a YAML map (`case-id: trace-id-or-file`, or a list); raise `SpecError` at its place."""
    document = read(path)
    problems = document.problems
    tree = document.tree
    if tree is not None and not isinstance(tree.value, dict):
        problems.append(SpecProblem(tree.place, "a map is written `case-id: trace-id-or-file`"))
    members = tree.value if tree is not None and isinstance(tree.value, dict) else {}
    known = [case.id for case in cases]
    for name, member in members.items():
        if name not in known:
            at = tree.keys.get(name, member.place) if tree is not None else member.place
            problems.append(
                SpecProblem(at, f"there is no case {name!r}", did_you_mean(name, known))
            )
        value = plain(member)
        traces = cast("list[Any]", value) if isinstance(value, list) else [value]
        if not traces or not all(isinstance(trace, str) and trace for trace in traces):
            message = "write a trace id, the name of a file, or a list of them"
            problems.append(SpecProblem(member.place, message))
    if tree is None or problems:
        raise SpecError(problems or [SpecProblem(SourceLocation(str(path)), "the map is empty")])
    return plain(tree)
