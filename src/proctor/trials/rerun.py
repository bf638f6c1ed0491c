"""Repeat a run from its `_spec_.yaml` alone, and say whether it came out the same.

Promise: the plan is the one of the first run, the agents, templates and settings those of its
spec; model calls that were recorded are answered from the recording. Whatever of the code around
it has changed since (version, commit, packages) is said, since then a difference proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from proctor.runs.folder import OUTPUT, RunFolder, RunFolderError
from proctor.runs.run import Run
from proctor.runs.sameness import Sameness, compare_trials
from proctor.trials.prepare import AgentLike, RunContext, spec_record
from proctor.trials.resume import restore
from proctor.trials.session import Observer, run_session


class Rerun(NamedTuple):
    """Two runs of one spec."""

    first: Run
    second: Run
    sameness: Sameness
    changed: tuple[str, ...]
    """What of the code is not as it was, in words."""


def prepare_rerun(
    path: str | Path,
    *,
    results: str | Path | None = None,
    agent: AgentLike | None = None,
    **options: Any,
) -> tuple[Run, RunContext, RunFolder]:
    """Prepare a run from its folder's spec; the new folder stands beside it, or in `results`."""
    first = Run(path)
    kept: dict[str, Any] = first.spec.get("options") or {}
    if kept.get("record_to") is not None:
        # Asking a model again would be another run; and would write over the recording.
        options = {"record_to": None, "replay_from": kept["record_to"], **options}
    # Caps of the first run's sittings would cut this one where that went on.
    caps = {name: None for name in ("max_trials", "max_seconds") if kept.get(name) is not None}
    context, _ = restore(path, agent=agent, **{**caps, **options})
    root = _results_root(first) if results is None else Path(results)
    # A spec does not hold the name of the file it came from, nor `--name`: the first run does.
    beside = context.output == OUTPUT and first.path.resolve().parent.name
    try:
        folder = RunFolder.create(root, beside or context.name, output=context.output)
    except RunFolderError as error:
        if "{seq}" in context.output:
            raise
        raise RunFolderError(
            f"the output path {context.output!r} has no {{seq}}, so the repeat would have the"
            " folder of the run itself",
            where=error.where,
            hint="keep it elsewhere: --results FOLDER",
        ) from None
    name = first.spec.get("name") or context.name
    folder.write_spec({**spec_record(context), "name": name, "rerun_of": first.run_id})
    return first, context, folder


def _results_root(run: Run) -> Path:
    """The results folder the run is in: as many levels up as its output path has parts."""
    record: Mapping[str, Any] = run.spec.get("experiment") or {}
    return run.path.resolve().parents[str(record.get("output", OUTPUT)).count("/")]


async def arerun(
    path: str | Path,
    *,
    observer: Observer | None = None,
    **arguments: Any,
) -> Rerun:
    """Repeat a run; see `prepare_rerun` for the arguments."""
    first, context, folder = prepare_rerun(path, **arguments)
    return compared(first, await run_session(context, folder, observer=observer))


def compared(first: Run, second: Run) -> Rerun:
    """Two runs of one spec, held against each other."""
    return Rerun(
        first,
        second,
        compare_trials(first.trials(), second.trials()),
        tuple(changes(first.spec, second.spec)),
    )


def changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """What of the code that two runs recorded is not the same."""
    then: Mapping[str, Any] = first.get("provenance") or {}
    now: Mapping[str, Any] = second.get("provenance") or {}
    said = [
        f"{name} was {then.get(name)}, is {now.get(name)}"
        for name in ("proctor", "python")
        if then.get(name) != now.get(name)
    ]
    said.extend(_git(then.get("git"), now.get("git")))
    before, after = then.get("packages"), now.get("packages")
    if isinstance(before, dict) and isinstance(after, dict):
        said.extend(_packages(cast("dict[str, str]", before), cast("dict[str, str]", after)))
    agents: Mapping[str, Mapping[str, Any]] = first.get("agents") or {}
    others: Mapping[str, Mapping[str, Any]] = second.get("agents") or {}
    said.extend(
        f"the agent {name} is not the code or model it was"
        for name in sorted(agents)
        if agents[name].get("version") != (others.get(name) or {}).get("version")
    )
    return said


def _git(then: Any, now: Any) -> list[str]:
    before = cast("dict[str, Any]", then) if isinstance(then, dict) else {}
    after = cast("dict[str, Any]", now) if isinstance(now, dict) else {}
    said: list[str] = []
    if before.get("commit") != after.get("commit"):
        said.append(f"the commit was {_short(before)}, is {_short(after)}")
    for when, state in (("then", before), ("now", after)):
        if state.get("dirty"):
            said.append(f"the tree had uncommitted changes {when}: the commit does not tell all")
    return said


def _short(state: Mapping[str, Any]) -> str:
    return str(state.get("commit") or "none")[:12]


def _packages(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [
        f"{name} was {then.get(name, 'absent')}, is {now.get(name, 'absent')}"
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    ]
