"""Repeat a run from its `_spec_.yaml` alone, and compare the results.

Promise: the plan is that of the first run, the agents, templates and settings those of its spec;
recorded model calls are replayed. Changes of the code around it (version, commit, packages) are
reported, because a difference then proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from proctor.checks.base import CheckResult
from proctor.runs.case_rows import NAME as ROWS_FILE
from proctor.runs.folder import OUTPUT, RunFolder, RunFolderError
from proctor.runs.run import Run
from proctor.runs.trial import Trial
from proctor.trials.prepare import AgentLike, PreparedCases, RunContext, spec_record
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
    if isinstance(context.cases, PreparedCases):
        context.cases.cases.data.rows.write_to(folder.path / ROWS_FILE)
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


# -- comparing the two runs, field by field ------------------------------------------------------

CLOCKS_AND_IDS = frozenset(
    {
        *("started_ns", "duration_ms", "latency_ms", "queue_ms", "startup_ms", "check_ms"),
        *("trace_id", "trace", "workdir"),
    }
)
"""Fields of a trial that differ in every run: times, and the location of its trace."""

CIRCUMSTANCES = frozenset({"attempt", "retries", "retry_errors"})
"""Effort of a trial: it depends on the network, not the agent."""

CLOCK_CHECKS = frozenset({"max_latency_ms"})
"""Checks that measure time: their status is compared, not the measured value."""

_FIELDS = tuple(
    name
    for name in Trial.__struct_fields__
    if name not in CLOCKS_AND_IDS and name not in CIRCUMSTANCES
)


class FieldDifference(msgspec.Struct, frozen=True):
    """One field of one trial that differs between two runs."""

    trial: str
    field: str
    first: Any
    second: Any


class Sameness(msgspec.Struct, frozen=True, kw_only=True):
    """Result of comparing two runs. `compared` counts the trials both have."""

    compared: int
    differing: int
    differences: tuple[FieldDifference, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """Whether both runs have the same trials with the same results."""
        return not (self.differing or self.only_first or self.only_second)


MAX_LISTED = 100
"""Maximum number of listed differences; all are counted."""


def compare_trials(first: Iterable[Trial], second: Iterable[Trial]) -> Sameness:
    """Compare every trial of two runs with its counterpart."""
    before = {trial.key: trial for trial in first}
    after = {trial.key: trial for trial in second}
    both = sorted(before.keys() & after.keys())
    differing = 0
    listed: list[FieldDifference] = []
    for key in both:
        found = list(differences(before[key], after[key]))
        differing += bool(found)
        listed.extend(found[: MAX_LISTED - len(listed)])
    return Sameness(
        compared=len(both),
        differing=differing,
        differences=tuple(listed),
        only_first=tuple(before[key].name for key in sorted(before.keys() - after.keys())),
        only_second=tuple(after[key].name for key in sorted(after.keys() - before.keys())),
    )


def differences(first: Trial, second: Trial) -> Iterator[FieldDifference]:
    """Return the fields of a trial that differ between two runs."""
    for field in _FIELDS:
        one, other = getattr(first, field), getattr(second, field)
        if field == "checks":
            yield from _check_differences(first.name, first.checks, second.checks)
        elif one != other:
            yield FieldDifference(first.name, field, one, other)


def _check_differences(
    name: str, first: tuple[CheckResult, ...], second: tuple[CheckResult, ...]
) -> Iterator[FieldDifference]:
    one = {check.id: _comparable(check) for check in first}
    other = {check.id: _comparable(check) for check in second}
    # Both sides: a check that only one run has is a difference too.
    for check in sorted(one.keys() | other.keys()):
        mine, theirs = one.get(check, {}), other.get(check, {})
        for field in sorted(mine.keys() | theirs.keys()):
            before, after = mine.get(field), theirs.get(field)
            if before != after:
                yield FieldDifference(name, f"checks.{check}.{field}", before, after)


def _comparable(check: CheckResult) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.structs.asdict(check)
    # Span ids are new in every run, and a judge costs nothing when its verdict is cached.
    del fields["span_ids"], fields["cost_usd"]
    if check.check in CLOCK_CHECKS:
        return {key: fields[key] for key in ("check", "layer", "weight", "blocking", "status")}
    return fields
