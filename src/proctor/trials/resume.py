"""Resume a run from its folder alone.

    run = await proctor.trials.resume.aresume("results/suite/2026-01-31_001")

Promise: the plan is derived again from the folder's spec and is the one the run began with;
options that would change it are refused. Besides the folder, only the code of the agents and the
environment variables the spec refers to are needed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from proctor.errors import ProctorError
from proctor.runs.case_rows import is_compact
from proctor.runs.folder import RunFolder
from proctor.runs.journal import JournalIndex
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
