"""Continue a recorded run from its folder alone: resume it, add trials to it, or repeat it.

    run = await proctor.trials.resume.aresume("results/suite/2026-01-31_001")

Promise: the plan is derived again from the folder's spec and is the one the run began with;
options that would change it are refused. Besides the folder, only the code of the agents and the
environment variables the spec refers to are needed.

An extended run is the run of a larger plan: the same trials, then more with their own seeds, and
all of it can be resumed. The number of looks of a gate and the trials each adds are fixed before
the first look, so that the stated error rate holds for all of them together. A run made by other
code is never extended: it would mix two agents.

A repeated run has the plan of the first one, and the agents, templates and settings of its spec;
recorded model calls are replayed. Changes of the code around it (version, commit, packages) are
reported, because a difference then proves nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from proctor.checks.base import CheckResult
from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.results.gate import GateResult, extensions_of, judge_runs
from proctor.runs.case_rows import NAME as ROWS_FILE
from proctor.runs.case_rows import is_compact
from proctor.runs.folder import OUTPUT, RunFolder, RunFolderError
from proctor.runs.journal import JournalIndex
from proctor.runs.provenance import git_state
from proctor.runs.remote.upload import uploading_async
from proctor.runs.run import Run
from proctor.runs.trial import Trial, TrialStatus
from proctor.spec import (
    Configuration,
    Settings,
    SourceLocation,
    SpecError,
    SpecProblem,
    Suite,
    restore_suite,
)
from proctor.spec.located import tree_of
from proctor.spec.validation import validated
from proctor.stats.gate import GateRule
from proctor.trials.options import OF_WORKERS, ExecutorName, RunOptions
from proctor.trials.plan import Plan
from proctor.trials.prepare import (
    AgentLike,
    Design,
    PreparedCases,
    RunContext,
    prepare,
    spec_record,
)
from proctor.trials.session import UNFINISHED, Observer, run_session

FIXED = ("trials", "default_trials", "more_trials", "seed", "early_stop")
"""Options that determine the plan: with other values it would be another run."""


async def aresume(
    path: str | Path,
    *,
    rerun: frozenset[TrialStatus] = UNFINISHED,
    agent: AgentLike | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> Run:
    """Run the remaining trials of a run; `options` override the recorded ones."""
    context, folder = restore(path, agent=agent, **options)
    async with uploading_async(folder):
        return await run_session(context, folder, rerun=rerun, observer=observer)


def restore(
    path: str | Path, *, agent: AgentLike | None = None, **changes: Any
) -> tuple[RunContext, RunFolder]:
    """Return the context and folder of a run, to resume it.

    An agent that was made in Python and cannot be imported must be given again.
    """
    folder = RunFolder.open(path)
    spec = folder.read_spec(whole=False)
    where = str(folder.spec_path)
    if "imported" in spec:
        raise ProctorError(
            "the run was imported: its agents and cases are not here to be run again",
            where=str(folder.path),
            hint="query, report, compare and gate work on it",
        )
    suite, options, configuration, design = parts_of(spec, where, changes, folder.path)
    # An agent given in Python has its own name; it replaces the recorded one.
    given = None if agent is None else dict.fromkeys(suite.all_agents, agent)
    context = prepare(suite, options, agents=given, configuration=configuration, design=design)
    # With research the plan depends on results: it is checked when the journal is read.
    if context.unfolding is None and context.plan.record() != spec["cells"]:
        raise ProctorError("the plan in the spec is not the one its cases make", where=where)
    return context, folder


def left_of(
    context: RunContext, folder: RunFolder, rerun: frozenset[TrialStatus] = UNFINISHED
) -> RunContext:
    """Return the context with a plan of the remaining trials; early stop may skip some of them."""
    # By the last attempt: a failed trial that passed when it was retried is not retried again.
    lines = JournalIndex(folder.journal_path).lines
    done = {key for key, line in lines.items() if line.last_status not in rerun}
    left = [planned for planned in context.plan.trials if planned.key not in done]
    of = Counter(planned.cell for planned in left)
    cells = context.plan.cells.items()
    kept = {key: cell._replace(trials=of[key]) for key, cell in cells if of[key]}
    return replace(context, plan=Plan(left, kept))


def parts_of(
    spec: Mapping[str, Any],
    where: str,
    changes: Mapping[str, Any] | None = None,
    run: Path | None = None,
) -> tuple[Suite, RunOptions, Configuration, Design | None]:
    """Read the spec of a run; `changes` override its recorded options.

    `run` is its folder, where the spec is compact: the rows of its cases are there.
    """
    try:
        base, written, options = Path(spec["base_dir"]), spec["suite"], dict(spec["options"])
    except (KeyError, TypeError) as error:
        raise ProctorError(f"the spec of the run lacks {error}", where=where) from None
    rows = run if is_compact(spec) else None
    suite = restore_suite(written, folder=base, name=where, data_folder=rows)
    # References to environment variables in the recorded settings are resolved now.
    problems: list[SpecProblem] = []
    tree = tree_of(
        spec.get("settings") or {}, lambda _: SourceLocation(where), os.environ, problems
    )
    settings = validated(tree, Settings, problems)
    if problems or settings is None:
        raise SpecError(problems)
    configuration = Configuration(settings, base, (), tree)
    for name, value in (changes or {}).items():
        if name in FIXED and value != options.get(name):
            raise ProctorError(
                f"a run that is resumed keeps its `{name}`", hint="start another run to change it"
            )
    # A run that was on Ray may be resumed here, where its address and workers mean nothing.
    if changes and changes.get("executor") == ExecutorName.LOCAL:
        options = {name: value for name, value in options.items() if name not in OF_WORKERS}
    # Of an older version: it tolerated either no infrastructure error or any number.
    if options.pop("allow_infra", False):
        options.setdefault("max_not_judged", 1.0)
    run_options = RunOptions(**{**options, **(changes or {})})
    try:
        design = Design.restored(spec["experiment"]) if "experiment" in spec else None
    except (KeyError, TypeError, AttributeError) as error:
        raise ProctorError(f"the experiment in the spec lacks {error}", where=where) from None
    return suite, run_options, configuration, design


RunTrials = Callable[[RunContext, RunFolder], Run]
"""Runs the remaining trials of a run; the caller decides how to show progress."""


def extend(path: Path | str, by: int, *, looks: int = 1) -> tuple[RunContext, RunFolder]:
    """Plan `by` more trials for every cell (and seed) of a run, and restore it."""
    if by < 1:
        raise ProctorError(f"cannot add {by} trials", hint="add at least 1")
    context, folder = restore(path)
    if context.unfolding is not None:
        raise ProctorError(
            f"{context.unfolding.kind} selected the trials of this run, so none can be added",
            where=str(folder.path),
            hint="start another run with more seeds",
        )
    seeds = Counter(dict.fromkeys(context.plan.cells, 0))
    for cell in {(trial.cell, trial.axis_seed) for trial in context.plan.trials}:
        seeds[cell[0]] += 1
    keys = list(context.plan.cells)
    with folder.lock():
        spec = folder.read_spec(whole=False)
        cells: Any
        if is_compact(spec):
            cells = {**spec["cells"], "trials": spec["cells"]["trials"] + by}
        else:
            cells = [
                {**written, "trials": written["trials"] + by * seeds[key]}
                for key, written in zip(keys, spec["cells"], strict=True)
            ]
        options = dict(spec["options"])
        options["more_trials"] = int(options.get("more_trials", 0)) + by
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        extensions = [*extensions_of(spec), {"at": now, "trials": by, "looks": looks}]
        grown = {**spec, "options": options, "cells": cells, "extensions": extensions}
        folder.write_spec(grown)
    return restore(path)


def same_code(spec: Mapping[str, Any]) -> bool | None:
    """Whether a run was made by the current code; None if that is unknown."""
    made_by = _made_by(spec)
    here = git_state(Path(spec["base_dir"])) if spec.get("base_dir") else None
    if not made_by or here is None:
        return None
    if made_by.get("commit") != here["commit"]:
        return False
    return None if made_by.get("dirty") or here["dirty"] else True


def judge_extending(
    candidate: Run,
    baseline: Run,
    run_trials: RunTrials,
    *,
    rule: GateRule | None = None,
    rounds: int = 1,
    by: int | None = None,
    must_pass: Sequence[str] = (),
) -> GateResult:
    """Judge a gate; while it is inconclusive, extend it, at most as often as fixed beforehand.

    A round adds `by` trials per case, by default as many as the candidate's largest cell has.
    """
    # The number of looks fixed for an earlier judgement of these runs still applies.
    on_record = [e for run in (candidate, baseline) for e in extensions_of(run.spec)]
    looks = max((int(e["looks"]) for e in on_record), default=1 + rounds)
    done = len(extensions_of(candidate.spec))
    # The most repeats of a cell for one seed: part of the plan, whatever their results.
    by = by or 1 + max((trial.index for trial in candidate.trials()), default=0)
    facts = judge_runs(candidate, baseline, rule=rule, looks=looks, must_pass=must_pass)
    notes: list[str] = []
    if done >= looks - 1 and facts.verdict == "INCONCLUSIVE":
        notes.append(f"extended {plural(done, 'time')} already, as often as was fixed beforehand")
    for _ in range(looks - 1 - done):
        if facts.verdict != "INCONCLUSIVE" or facts.unjudgeable:
            break
        if facts.rule.estimand == "population":
            # Trials cannot be bought where cases are short: those of a population are other cases.
            notes.append("not extended: " + _more_draws(facts))
            break
        grown = list(_grow(candidate, baseline, by, looks, run_trials, notes))
        if not grown:
            break
        candidate, baseline = Run(candidate.path), Run(baseline.path)
        facts = judge_runs(
            candidate,
            baseline,
            rule=rule,
            looks=looks,
            must_pass=must_pass,
            history=facts.history,
        )
        if any(run.stopped for run in grown):
            notes.append(f"the extension was stopped: {grown[-1].stopped}")
            break
    return msgspec.structs.replace(facts, notes=tuple(dict.fromkeys((*facts.notes, *notes))))


def _more_draws(facts: GateResult) -> str:
    """Return why trials of the same cases do not settle a claim about a population."""
    advice = next((arm.gate.advice for arm in facts.arms if arm.gate.advice), None)
    text = advice.text if advice else "more cases (or seeds of a single case) would settle it."
    return (
        "more trials of the same cases say little about cases like these;"
        f" {text} --estimand suite is about exactly these, and can be extended"
    )


def _grow(
    candidate: Run, baseline: Run, by: int, looks: int, run_trials: RunTrials, notes: list[str]
) -> Iterator[Run]:
    """Extend the runs that the current code may extend; note why another is not."""
    same_folder = candidate.path.resolve() == baseline.path.resolve()
    for name, run in (("candidate", candidate), ("reference", baseline)):
        same = same_code(run.spec)
        if name == "reference" and (same is not True or same_folder):
            if not same_folder:
                notes.append(_not_extended(name, run, same))
            continue
        if same is False:
            notes.append(_not_extended(name, run, same))
            return
        if same is None:
            notes.append(f"whether the code of the {name} changed since cannot be known")
        try:
            extended = extend(run.path, by, looks=looks)
        except ProctorError as error:  # imported, or its agent no longer exists
            notes.append(f"the {name} could not be extended: {error}")
            return
        done = run_trials(*extended)
        yield done
        if done.stopped:
            return


def _not_extended(name: str, run: Run, same: bool | None) -> str:
    if same is None:
        return f"the {name} was not extended: whether it was made by this very code is unknown"
    commit = str(_made_by(run.spec).get("commit"))
    return (
        f"the {name} was not extended: it was made by commit {commit[:10]},"
        " and the code here is another"
    )


def _made_by(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the commit that made a run, and whether it had changes; empty without a repository."""
    provenance = cast("dict[str, Any]", spec.get("provenance") or {})
    return cast("dict[str, Any]", provenance.get("git") or {})


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
    root = results_folder(first) if results is None else Path(results)
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


def results_folder(run: Run) -> Path:
    """Return the results folder that a run is in."""
    # As many levels up as the output path of the run has parts.
    experiment: Mapping[str, Any] = run.spec.get("experiment") or {}
    depth = str(experiment.get("output", OUTPUT)).count("/")
    return run.path.resolve().parents[depth]


async def arerun(path: str | Path, **arguments: Any) -> Rerun:
    """Repeat a run; see `prepare_rerun` for the arguments."""
    first, context, folder = prepare_rerun(path, **arguments)
    return compared(first, await run_session(context, folder))


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
