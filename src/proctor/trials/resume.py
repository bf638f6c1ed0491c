"""Resume a run from its folder alone, and add trials to one that has ended.

    run = await proctor.trials.resume.aresume("results/suite/2026-01-31_001")

Promise: the plan is derived again from the folder's spec and is the one the run began with;
options that would change it are refused. Besides the folder, only the code of the agents and the
environment variables the spec refers to are needed.

An extended run is the run of a larger plan: the same trials, then more with their own seeds, and
all of it can be resumed. The number of looks of a gate and the trials each adds are fixed before
the first look, so that the stated error rate holds for all of them together. A run made by other
code is never extended: it would mix two agents.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.results.gate import GateResult, judge_runs
from proctor.runs.case_rows import is_compact
from proctor.runs.folder import RunFolder
from proctor.runs.journal import JournalIndex
from proctor.runs.provenance import git_state
from proctor.runs.remote.upload import uploading_async
from proctor.runs.run import Run
from proctor.runs.trial import TrialStatus
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
from proctor.trials.prepare import AgentLike, Design, RunContext, given_agents, prepare
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
    given = None if agent is None else given_agents(suite, agent, configuration)
    # An agent given in Python has its own name; it replaces the recorded one.
    if given is not None and set(given) != set(suite.all_agents):
        (only,) = given.values()
        given = dict.fromkeys(suite.all_agents, only)
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


Carry = Callable[[RunContext, RunFolder], Run]
"""Runs the remaining trials of a run; the caller decides how to show progress."""


class Extending(NamedTuple):
    """Fixed before the first look: how often to extend, and by how many trials per case."""

    rounds: int = 1
    by: int | None = None
    """By default as many as the candidate's largest cell was planned with."""


def extend(
    path: Path | str, by: int, *, looks: int = 1, agent: AgentLike | None = None
) -> tuple[RunContext, RunFolder]:
    """Plan `by` more trials for every cell (and seed) of a run, and restore it."""
    if by < 1:
        raise ProctorError(f"cannot add {by} trials", hint="add at least 1")
    context, folder = restore(path, agent=agent)
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
    return restore(path, agent=agent)


def extensions_of(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return when a run was extended, by how many trials, and for how many looks."""
    return cast("list[dict[str, Any]]", list(spec.get("extensions") or ()))


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
    carry: Carry,
    *,
    rule: GateRule | None = None,
    extending: Extending | None = None,
    must_pass: Sequence[str] = (),
) -> GateResult:
    """Judge a gate; while it is inconclusive, run more trials as often as fixed beforehand."""
    plan = extending or Extending()
    # The number of looks fixed for an earlier judgement of these runs still applies.
    on_record = [e for run in (candidate, baseline) for e in extensions_of(run.spec)]
    looks = max((int(e["looks"]) for e in on_record), default=1 + plan.rounds)
    done = len(extensions_of(candidate.spec))
    # The most repeats of a cell for one seed: part of the plan, whatever their results.
    by = plan.by or 1 + max((trial.index for trial in candidate.trials()), default=0)
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
        grown = list(_grow(candidate, baseline, by, looks, carry, notes))
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
    candidate: Run, baseline: Run, by: int, looks: int, carry: Carry, notes: list[str]
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
        done = carry(*extended)
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
