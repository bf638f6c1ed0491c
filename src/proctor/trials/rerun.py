"""Repeat a run from its `_spec_.yaml` alone, and compare the results.

Promise: the plan is that of the first run, the agents, templates and settings those of its spec;
recorded model calls are replayed. Changes of the code around it (version, commit, packages) are
reported, because a difference then proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
    """Changes of the code between the two, as sentences."""


def prepare_rerun(
    path: str | Path,
    *,
    results: str | Path | None = None,
    agent: AgentLike | None = None,
    **options: Any,
) -> tuple[Run, RunContext, RunFolder]:
    """Prepare a run from its folder's spec; the new folder is beside it, or in `results`."""
    first = Run(path)
    recorded: dict[str, Any] = first.spec.get("options") or {}
    if recorded.get("record_to") is not None:
        # New model calls would make it another run, and would overwrite the recording.
        options = {"record_to": None, "replay_from": recorded["record_to"], **options}
    # These limits applied to one invocation of the first run, which may have been resumed.
    limits = {n: None for n in ("max_trials", "max_seconds") if recorded.get(n) is not None}
    context, _ = restore(path, agent=agent, **{**limits, **options})
    if results is None:
        # The results folder is as many levels up as the output path of the run has parts.
        experiment: Mapping[str, Any] = first.spec.get("experiment") or {}
        depth = str(experiment.get("output", OUTPUT)).count("/")
        root = first.path.resolve().parents[depth]
    else:
        root = Path(results)
    # A spec has neither the name of its file nor `--name`; the folder of the first run has.
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
            hint="write it to another folder: --results FOLDER",
        ) from None
    name = first.spec.get("name") or context.name
    folder.write_spec({**spec_record(context), "name": name, "rerun_of": first.run_id})
    return first, context, folder


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
    """Compare two runs of one spec."""
    return Rerun(
        first,
        second,
        compare_trials(first.trials(), second.trials()),
        tuple(changes(first.spec, second.spec)),
    )


def changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the differences of the code that two runs recorded."""
    then: dict[str, Any] = first.get("provenance") or {}
    now: dict[str, Any] = second.get("provenance") or {}
    found = [
        f"{name} was {then.get(name)}, is {now.get(name)}"
        for name in ("proctor", "python")
        if then.get(name) != now.get(name)
    ]
    git_then: dict[str, Any] = then.get("git") or {}
    git_now: dict[str, Any] = now.get("git") or {}
    if git_then.get("commit") != git_now.get("commit"):
        commits = [str(git.get("commit") or "none")[:12] for git in (git_then, git_now)]
        found.append(f"the commit was {commits[0]}, is {commits[1]}")
    found.extend(
        f"the tree had uncommitted changes {when}, which the commit does not show"
        for when, git in (("then", git_then), ("now", git_now))
        if git.get("dirty")
    )
    packages: dict[str, str] = then.get("packages") or {}
    others: dict[str, str] = now.get("packages") or {}
    if packages and others:
        found.extend(
            f"{name} was {packages.get(name, 'absent')}, is {others.get(name, 'absent')}"
            for name in sorted(packages.keys() | others.keys())
            if packages.get(name) != others.get(name)
        )
    agents: Mapping[str, Mapping[str, Any]] = first.get("agents") or {}
    repeated: Mapping[str, Mapping[str, Any]] = second.get("agents") or {}
    found.extend(
        f"the code or model of the agent {name} has changed"
        for name in sorted(agents)
        if agents[name].get("version") != (repeated.get(name) or {}).get("version")
    )
    return found
