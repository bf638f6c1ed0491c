"""Save the behaviour of an agent for each case of a suite, and compare with a saved version.

    save_baselines(suite, "v1")
    diff = diff_with(suite, "v1")       # or diff_with(suite, "v1", compare="v2")

Promise: an agent runs once per case, and only for cases whose result is needed; a case that fails
its checks is saved only if forced; cases that could not be compared are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from proctor.background import run_sync
from proctor.checks.base import CheckStatus, Layer
from proctor.errors import ProctorError
from proctor.runs.baselines import (
    Baseline,
    BaselineError,
    BaselineStore,
    LoadedBaseline,
    Precheck,
    models_of,
    now,
)
from proctor.runs.diff import CaseDiff, Diff, NotCompared, Side, compare_case
from proctor.runs.folder import spec_hash
from proctor.runs.trial import NO_CHECKS, Trial, TrialStatus
from proctor.spec import Case, Suite, load_configuration
from proctor.trace import Trace
from proctor.trials.options import RunOptions
from proctor.trials.plan import Plan, recorded
from proctor.trials.prepare import AgentLike, choose_agents, prepare, store_of
from proctor.trials.session import run_session

RECORDED = "recorded"
"""The agent of recorded traces when neither the suite nor the user names one."""

MAX_REASONS = 5
"""Failed checks recorded in a precheck; the trial itself can be run again."""


HASHED = (
    *("input", "threshold", "correctness", "path", "cost"),
    *("checks", "assertions", "weights", "required"),
)
"""The fields that define a case: its input and its checks, not its tags or trials."""


class SaveOutcome(StrEnum):
    """The outcome of saving a case."""

    SAVED = "saved"
    FAILED = "failed"
    INFRA = "infra"
    EXISTS = "exists"


class SavedCase(NamedTuple):
    """One case of one agent: saved at `path`, or refused for a reason."""

    case: str
    agent: str
    outcome: SaveOutcome
    path: Path
    precheck: Precheck | None = None
    reason: str = ""
    agent_error: bool = False
    """Whether it failed with an error of the agent, rather than on its checks."""


def agents_of(
    suite: Suite, *, agent: str | None = None, traces: Sequence[str] = ()
) -> dict[str, AgentLike]:
    """Return the agents to run, by name (see `choose_agents`), or recorded traces.

    Recorded traces replace the named agent, or the only one of the suite.
    """
    names = () if agent is None else (agent,)
    if not traces:
        return dict(choose_agents(suite, names, load_configuration(suite.folder)))
    known = list(names or suite.all_agents)
    if len(known) > 1:
        raise ProctorError(
            f"recorded traces of which agent? The suite has {', '.join(known)}",
            hint="say so with --agent",
        )
    return {(known or [RECORDED])[0]: recorded([str(Path(path).resolve()) for path in traces])}


def save_baselines(
    suite: Suite,
    version: str,
    *,
    cases: Sequence[Case] | None = None,
    agents: Mapping[str, AgentLike] | None = None,
    options: RunOptions | None = None,
    force: bool = False,
    clock: Callable[[], datetime] = now,
) -> list[SavedCase]:
    """Run each case once and save what passes; `force` saves the rest too and overwrites."""
    store = store_of(suite)
    chosen = list(suite.cases if cases is None else cases)
    asked = dict(agents or agents_of(suite))
    wanted = [(case, name) for case in chosen for name in asked]
    done: dict[tuple[str, str], SavedCase] = {}
    for case, name in wanted:
        if not force and store.exists(name, version, case.id):
            path = store.path_of(name, version, case.id)
            reason = f"already saved as {version}"
            done[case.id, name] = SavedCase(case.id, name, SaveOutcome.EXISTS, path, reason=reason)
    left = [(case, name) for case, name in wanted if (case.id, name) not in done]
    hashes = hashes_of(suite)
    if suite.baseline == version:
        # The version that the suite names is only being made: nothing can be checked against it.
        suite = suite.model_copy(update={"baseline": None})
    saved_at = clock()  # one time for all: they are one version
    for (case_id, name), (trial, trace) in _behaviour(suite, left, asked, options).items():
        precheck = precheck_of(trial, forced=force)
        path = store.path_of(name, version, case_id)
        if precheck.passed or (force and trace is not None):
            assert trace is not None
            baseline = Baseline(
                agent=name,
                version=version,
                case=case_id,
                saved=saved_at,
                spec_hash=hashes[case_id],
                precheck=precheck,
                models=models_of(trace),
                answer=_answer(trial, trace),
            )
            store.save(baseline, trace, force=force)
            outcome = SaveOutcome.SAVED
        else:
            judged = precheck.status.judged
            outcome = SaveOutcome.FAILED if judged else SaveOutcome.INFRA
        reason = "" if precheck.passed else next(iter(precheck.reasons), str(precheck.status))
        agent_error = trial.status == TrialStatus.FAILED and trial.error is not None
        done[case_id, name] = SavedCase(
            case_id, name, outcome, path, precheck, reason, agent_error=agent_error
        )
    return [done[case.id, name] for case, name in wanted if (case.id, name) in done]


def diff_with(
    suite: Suite,
    baseline: str,
    *,
    compare: str | None = None,
    cases: Sequence[Case] | None = None,
    agents: Mapping[str, AgentLike] | None = None,
    options: RunOptions | None = None,
) -> Diff:
    """Compare how the agent behaves now, or did in version `compare`, with a baseline."""
    store = store_of(suite)
    chosen = list(suite.cases if cases is None else cases)
    asked = dict(agents or agents_of(suite))
    wanted = [(case, name) for case in chosen for name in asked]
    failed: dict[tuple[str, str], str] = {}
    before = _saved(store, baseline, wanted, failed)
    found = [(case, name) for case, name in wanted if (case.id, name) in before]
    if compare is None:
        after = _tried(suite, found, asked, options, failed)
    else:
        loaded = _saved(store, compare, found, failed)
        after = {key: _side_of(each) for key, each in loaded.items()}
    hashes = hashes_of(suite)
    compared: list[CaseDiff] = []
    for case, name in found:
        key = (case.id, name)
        if key in after:
            was = before[key]
            compared.append(
                compare_case(
                    case.id,
                    name,
                    _side_of(was),
                    after[key],
                    case_changed=was.baseline.spec_hash != hashes[case.id],
                )
            )
    return Diff(
        baseline=baseline,
        compared=compare,
        cases=tuple(compared),
        not_compared=tuple(
            NotCompared(case.id, name, failed[case.id, name])
            for case, name in wanted
            if (case.id, name) in failed
        ),
        notes=tuple(_left_out(store, baseline, suite, asked)),
        suite=None if suite.path is None else str(suite.path),
    )


def precheck_of(trial: Trial, *, forced: bool = False) -> Precheck:
    """Return the verdict of a trial on its own answer.

    Where no check had anything to judge, such as before the first baseline, nothing was wrong.
    """
    unchecked = trial.category == NO_CHECKS
    reasons = [
        f"{each.id}: {each.reason}" for each in trial.checks if each.status == CheckStatus.FAIL
    ]
    if trial.error is not None and not unchecked:
        reasons.insert(0, f"{trial.error.type}: {trial.error.message}")
    if trial.status == TrialStatus.FAILED and trial.error is None:
        lost = [each for each in trial.checks if each.failed and each.weight]
        why = f": {lost[0].id}: {lost[0].reason}" if lost else ""
        reasons.append(f"the score {trial.score:.2f} is below the threshold{why}")
    return Precheck(
        status=TrialStatus.PASSED if unchecked else trial.status,
        judged=sum(
            each.score is not None and each.layer == Layer.CORRECTNESS for each in trial.checks
        ),
        score=trial.score,
        forced=forced and not trial.passed and not unchecked,
        reasons=tuple(reasons[:MAX_REASONS]),
    )


Key = tuple[str, str]
"""A case and an agent, by name."""


def _behaviour(
    suite: Suite,
    wanted: Sequence[tuple[Case, str]],
    agents: Mapping[str, AgentLike],
    options: RunOptions | None,
) -> dict[Key, tuple[Trial, Trace | None]]:
    """Run the agents on these cases, once each."""
    if not wanted:
        return {}
    keys = {(case.id, name) for case, name in wanted}
    ids, names = {case for case, _ in keys}, {name for _, name in keys}
    cases = [case for case in suite.cases if case.id in ids]
    used = {name: agent for name, agent in agents.items() if name in names}
    once = (options or RunOptions()).model_copy(update={"trials": 1})
    context = prepare(suite, once, agents=used, cases=cases)
    # Not every agent needs every case: some are saved already.
    context.plan = Plan(
        [planned for planned in context.plan.trials if (planned.case, planned.agent) in keys],
        {
            cell: plan
            for cell, plan in context.plan.cells.items()
            if (cell.case, cell.agent) in keys
        },
    )
    run = run_sync(run_session(context))
    return {(trial.case, trial.agent): (trial, run.trace(trial)) for trial in run.trials}


def _tried(
    suite: Suite,
    wanted: Sequence[tuple[Case, str]],
    agents: Mapping[str, AgentLike],
    options: RunOptions | None,
    failed: dict[Key, str],
) -> dict[Key, Side]:
    sides: dict[Key, Side] = {}
    for key, (trial, trace) in _behaviour(suite, wanted, agents, options).items():
        precheck = precheck_of(trial)
        # An error of the agent is its behaviour only if it was run at all.
        ran = trial.error is None or trial.error.place != "agent"
        if trace is None or not ran:
            reason = next(iter(precheck.reasons), str(trial.status))
            failed[key] = f"the agent could not be run: {reason}"
        elif not trial.status.judged and trial.status != TrialStatus.NOT_JUDGED:
            failed[key] = f"could not be judged: {next(iter(precheck.reasons), trial.status)}"
        else:
            sides[key] = Side(trace, _answer(trial, trace), precheck)
    return sides


def _saved(
    store: BaselineStore,
    version: str,
    wanted: Iterable[tuple[Case, str]],
    failed: dict[Key, str],
) -> dict[Key, LoadedBaseline]:
    found: dict[Key, LoadedBaseline] = {}
    versions: dict[str, list[str]] = {}
    for case, name in wanted:
        try:
            loaded = store.load(name, case.id, version)
        except BaselineError as error:
            failed[case.id, name] = str(error)
            continue
        if loaded is None:
            # Found once for each agent.
            if name not in versions:
                versions[name] = store.versions(name)
            failed[case.id, name] = store.missing(name, version, case.id, versions[name])
        else:
            found[case.id, name] = loaded
    return found


def _side_of(loaded: LoadedBaseline) -> Side:
    return Side(loaded.trace, loaded.baseline.answer or "", loaded.baseline.precheck)


def _answer(trial: Trial, trace: Trace | None) -> str:
    """Return the whole answer; a trial has only the beginning of a long one."""
    return (trace.response if trace is not None else None) or trial.answer or ""


def _left_out(
    store: BaselineStore, version: str, suite: Suite, agents: Iterable[str]
) -> Iterable[str]:
    """Yield saved cases that the suite no longer has, and files that cannot be read."""
    known = {case.id for case in suite.cases}
    for name in agents:
        listing = store.list(name)
        gone = [
            each.case
            for each in listing.baselines
            if each.version == version and each.agent == name and each.case not in known
        ]
        if gone:
            yield f"{version} also has cases that are not in the suite: {', '.join(gone)}"
        yield from (f"{problem}; skipped" for problem in listing.problems)


def hashes_of(suite: Suite) -> dict[str, str]:
    """Return the SHA-256 of each resolved case; secrets in it are still references."""
    written: list[dict[str, Any]] = suite.resolved()["cases"]
    return {
        case.id: spec_hash({key: raw[key] for key in HASHED if key in raw})
        for case, raw in zip(suite.cases, written, strict=True)
    }
