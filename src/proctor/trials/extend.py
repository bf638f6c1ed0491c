"""More trials for a run that has ended, and a gate that asks for them when it cannot say.

Promise: an extended run is the run that a larger plan would have given: the same trials, then
more with seeds of their own, and all of it resumable. How many looks a gate takes and how many
trials each adds are fixed before the first look, so that the stated error rate holds for all of
them together. A run made by other code is never extended: it would hold two agents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.results.gate import GateResult, judge_runs
from proctor.runs.folder import RunFolder
from proctor.runs.provenance import git_state
from proctor.runs.run import Run
from proctor.stats.gate import GateRule
from proctor.trials.prepare import AgentLike, RunContext
from proctor.trials.resume import restore

Carry = Callable[[RunContext, RunFolder], Run]
"""Does what is left of a run; how it shows that is up to whoever asks."""


class Extending(NamedTuple):
    """What is fixed before the first look: how often to extend, and by how many trials a case."""

    rounds: int = 1
    by: int | None = None
    """As many as the candidate's largest cell was planned with, when absent."""


def extend(
    path: Path | str, by: int, *, looks: int = 1, agent: AgentLike | None = None
) -> tuple[RunContext, RunFolder]:
    """Plan `by` more trials for every cell (and seed) of a run, and make it ready to go on."""
    if by < 1:
        raise ProctorError(f"{by} more trials are none", hint="add at least 1")
    context, folder = restore(path, agent=agent)
    if context.unfolding is not None:
        raise ProctorError(
            f"the trials of this run were chosen by {context.unfolding.kind}, so none are added",
            where=str(folder.path),
            hint="start another run with more seeds",
        )
    seeds = Counter(dict.fromkeys(context.plan.cells, 0))
    for cell in {(trial.cell, trial.axis_seed) for trial in context.plan.trials}:
        seeds[cell[0]] += 1
    keys = list(context.plan.cells)
    with folder.lock():
        spec = folder.read_spec()
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
    """When a run was extended, by how many trials, under how many looks."""
    return cast("list[dict[str, Any]]", list(spec.get("extensions") or ()))


def same_code(spec: Mapping[str, Any]) -> bool | None:
    """Whether the code here is what made a run; None where that cannot be known."""
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
    """A gate that runs more trials while it is inconclusive, as often as was fixed beforehand."""
    plan = extending or Extending()
    # What was fixed for an earlier judgement of these runs stays fixed.
    on_record = [e for run in (candidate, baseline) for e in extensions_of(run.spec)]
    looks = max((int(e["looks"]) for e in on_record), default=1 + plan.rounds)
    done = len(extensions_of(candidate.spec))
    by = plan.by or _planned_trials(candidate)
    facts = judge_runs(candidate, baseline, rule=rule, looks=looks, must_pass=must_pass)
    notes: list[str] = []
    if done >= looks - 1 and facts.verdict == "INCONCLUSIVE":
        notes.append(f"extended {plural(done, 'time')} already, as often as was fixed beforehand")
    for _ in range(looks - 1 - done):
        if facts.verdict != "INCONCLUSIVE" or facts.unjudgeable:
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


def _grow(
    candidate: Run, baseline: Run, by: int, looks: int, carry: Carry, notes: list[str]
) -> Iterator[Run]:
    """Extend whichever of the two runs the code here may extend; say why for the other."""
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
        except ProctorError as error:  # imported, or its agent is not here any more
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
    """The commit that made a run, and whether it had changes; empty outside a repository."""
    provenance = cast("dict[str, Any]", spec.get("provenance") or {})
    return cast("dict[str, Any]", provenance.get("git") or {})


def _planned_trials(run: Run) -> int:
    """The most repeats a cell had for one seed: part of the plan, whatever came of them."""
    return 1 + max((trial.index for trial in run.trials()), default=0)
