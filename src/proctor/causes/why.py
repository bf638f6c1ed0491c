"""Test what a failing trial broke on: change a step and see whether it passes more often.

For each suspicious step the agent continues from it many times: unchanged (the step as recorded)
and with each intervention (see `interventions`). The effect is P(pass | changed) − P(pass |
unchanged), both with everything before the step from the record.

Promise: the error rate holds for all suspects, interventions and looks of an experiment together.
It is shared by the suspects, and within a suspect each look has its share (`ab.look_shares`) and
interventions are corrected by Holm's method. The interval of a look has the level of its share, so
it covers at whichever look the experiment stops. Trials that leave the recorded prefix do not
count.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from proctor.causes.ab import look_shares
from proctor.causes.fork import DIVERGED, prepare_fork, recorded_trace
from proctor.diagnose.finding import Diagnosis
from proctor.diagnose.methods import act_at, acts_of, diagnose_offline
from proctor.errors import ProctorError
from proctor.formatting import clipped
from proctor.gateway.options import ForkArm, ForkCall, ForkEdit
from proctor.results.evidence import evidence_of, trajectories_of
from proctor.runs.annotations import Tested, add_tested
from proctor.runs.folder import RunFolder
from proctor.runs.run import Run
from proctor.runs.trial import Spending, Trial
from proctor.sanitize import json_value
from proctor.stats.intervals import newcombe
from proctor.stats.ranking import fisher_exact, holm
from proctor.trace import SpanKind, Trace
from proctor.trials.prepare import RunContext
from proctor.trials.resume import RunTrials, extend

Outcome = Literal["decisive", "contributing", "no effect shown", "not testable"]
ORDER: tuple[Outcome, ...] = ("decisive", "contributing", "no effect shown", "not testable")

UNCHANGED, RESAMPLE = "unchanged", "resample"

DEFAULT_SUSPECTS, DEFAULT_TRIALS, DEFAULT_LOOKS, DEFAULT_MAX_TRIALS = 3, 48, 3, 400

FEWEST = 4
"""Trials of an arm below which no difference could be shown."""

MAX_PASSING = 50
"""Passing trials that are read to see what they do."""

DECISIVE_SHARE = 0.5
"""Share of the failures that a change must remove for its step to be decisive."""


class Counterfactual(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a step, and what it does to the pass rate."""

    name: str
    change: str
    passed: int = 0
    judged: int = 0
    difference: float | None = None
    """P(pass | changed) − P(pass | unchanged)."""
    low: float | None = None
    high: float | None = None
    p: float | None = None
    """Corrected for the interventions of its suspect; of a `WhyResult` for its other suspects and
    looks as well, so that significant ones are at most its error rate."""
    significant: bool = False
    decisive: bool = False


class TestedCause(msgspec.Struct, frozen=True, kw_only=True):
    """A suspicious step, and whether it is a cause."""

    __test__ = False  # not a class of tests

    step: int
    agent: str
    location: str
    what: str
    outcome: Outcome
    reason: str = ""
    passed: int = 0
    """Of the trials in which the step is as recorded."""
    judged: int = 0
    diverged: int = 0
    """Trials that left the recorded prefix, in all arms."""
    level: float | None = None
    """Of the intervals."""
    counterfactuals: tuple[Counterfactual, ...] = ()
    run: str = ""

    @property
    def best(self) -> Counterfactual | None:
        """The change with the largest effect."""
        known = [one for one in self.counterfactuals if one.difference is not None]
        return max(known, key=lambda one: (one.significant, one.difference), default=None)


class WhyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The suspects of a trial, causes first."""

    run: str
    trial: str
    alpha: float
    looks: int
    trials: int
    cost_usd: float | None
    causes: tuple[TestedCause, ...]
    stopped: str = ""
    """Why not every suspect was tested in full."""


class Suspect(NamedTuple):
    """A step that may be the cause, and what is suspicious about it."""

    step: int
    agent: str
    location: str
    what: str


# -- suspects and interventions -------------------------------------------------------------------


def diagnosis_of(run: Run, trial: Trial, trace: Trace) -> tuple[Diagnosis, list[Trace]]:
    """Return the diagnosis of a trial beside its passing trials, and the traces of those."""
    others = [one for one in run.trials() if one.case == trial.case and one.passed]
    others.sort(key=lambda one: one.agent != trial.agent)
    held = (run.readable_trace(one, []) for one in others)
    passing = list(islice((each for each in held if each is not None), MAX_PASSING))
    evidence = evidence_of(trial, trajectories_of(run, {trial.case}))
    return diagnose_offline(trace, evidence=evidence), passing


def suspects_of(
    trace: Trace, found: Diagnosis, passing: Sequence[Trace], most: int
) -> list[Suspect]:
    """Return the most suspicious steps: decisive ones, findings, what no passing trial does."""
    acts = {act.number: act for act in acts_of(trace)}
    chosen: dict[int, Suspect] = {}

    def add(step: int | None, agent: str, location: str, what: str) -> None:
        if step is not None and step in acts:
            chosen.setdefault(step, Suspect(step, agent, location, what))

    for cause in found.candidates:
        add(cause.step, cause.agent, cause.location, cause.what)
    contrast_first = sorted(
        found.findings, key=lambda one: (one.detector != "contrast", -one.confidence)
    )
    for finding in contrast_first:
        if finding.impact != "LOW":
            add(finding.step, finding.agent, finding.location, finding.description)
    usual = Counter(
        text
        for one in passing
        for text in {_call_text(call) for act in acts_of(one) for call in _calls(act)}
    )
    calls = [(usual[_call_text(call)], act, call) for act in acts.values() for call in _calls(act)]
    for count, act, call in sorted(calls, key=lambda one: one[0]):
        what = f"{_shown(call)}, which {count} of {len(passing)} passing trials call"
        add(act.number, act.agent, act.span.span_id, what)
    return list(chosen.values())[:most]


def interventions(
    trace: Trace, step: int, passing: Sequence[Trace], hint: str | None = None
) -> dict[str, ForkArm]:
    """Return what can be changed at a step, by name; the first is the step as it was.

    Resample it; make the call that passing trials make; return what the tool returned to them;
    remove the last message the model saw; give it a hint.
    """
    act = act_at(trace, step)
    model = act.span.kind is SpanKind.LLM
    arms = {UNCHANGED: ForkArm(step=step + 1), RESAMPLE: ForkArm(step=step)}
    call = _passing_call(act, step, passing)
    if call is not None and (model or call.tool in [name for name, _ in _calls(act)]):
        arms["passing call"] = ForkArm(step=step, edit=ForkEdit(call=call))
    if act.tools and (result := _passing_result(act.tools[0], passing)) is not None:
        arms["correct result"] = ForkArm(step=step, edit=ForkEdit(result=result))
    if model:
        last = act.span.input_messages[-1] if act.span.input_messages else None
        first_question = len(act.span.input_messages) <= 2 and step == 1
        if last is not None and last.content and not first_question:
            arms["remove message"] = ForkArm(step=step, edit=ForkEdit(remove=last.content))
        text = hint
        if text is None and call is not None:
            text = f"Hint: the right step here is {_shown((call.tool, call.arguments))}."
        if text is not None:
            arms["hint"] = ForkArm(step=step, edit=ForkEdit(hint=text))
    return arms


def _calls(act: Any) -> list[tuple[str, Any]]:
    """Return the tool calls of a step: what its model requested, or what plain code called."""
    if act.span.kind is SpanKind.LLM:
        return [
            (call.name, json_value(call.arguments) or {})
            for message in act.span.output_messages
            for call in message.tool_calls
        ]
    return [(tool.tool_name or tool.name, json_value(tool.tool_input) or {}) for tool in act.tools]


def _call_text(call: tuple[str, Any]) -> str:
    return f"{call[0]} {json.dumps(call[1], sort_keys=True)}"


def _shown(call: tuple[str, Any]) -> str:
    return f"{call[0]}({clipped(json.dumps(call[1], ensure_ascii=False), 120)})"


def _passing_call(act: Any, step: int, passing: Sequence[Trace]) -> ForkCall | None:
    """Return the call that most passing trials make at this point, if it is another one."""
    mine = {_call_text(call) for call in _calls(act)}
    names = {name for name, _ in _calls(act)}
    here: Counter[str] = Counter()
    same_tool: Counter[str] = Counter()
    found: dict[str, tuple[str, Any]] = {}
    for trace in passing:
        seen: set[str] = set()
        for other in acts_of(trace):
            for call in _calls(other):
                text = _call_text(call)
                if text in mine or not isinstance(call[1], dict):
                    continue
                found[text] = call
                if other.number == step:
                    here[text] += 1
                if call[0] in names and text not in seen:
                    same_tool[text] += 1
                seen.add(text)
    for counted in (here, same_tool):
        for text, count in counted.most_common(1):
            if count * 2 >= len(passing):
                return ForkCall(tool=found[text][0], arguments=found[text][1])
    return None


def _passing_result(tool: Any, passing: Sequence[Trace]) -> Any:
    """Return what the same call returned in most passing trials, if it is something else."""
    mine = _call_text((tool.tool_name or tool.name, json_value(tool.tool_input) or {}))
    results: Counter[str] = Counter()
    for trace in passing:
        for span in trace.of_kind(SpanKind.TOOL):
            text = _call_text((span.tool_name or span.name, json_value(span.tool_input) or {}))
            if text == mine and not span.failed and span.tool_output is not None:
                results[json.dumps(json_value(span.tool_output), sort_keys=True)] += 1
    for text, _ in results.most_common(1):
        if text != json.dumps(json_value(tool.tool_output), sort_keys=True):
            return json.loads(text)
    return None


# -- the experiment -------------------------------------------------------------------------------


class ArmCount(NamedTuple):
    """Passed and judged trials of an arm."""

    passed: int
    judged: int


def figures_of(
    counts: Mapping[str, ArmCount], changes: Mapping[str, str], share: float
) -> list[Counterfactual]:
    """Return the effect of every change at a look with its share of the error rate."""
    base = counts[UNCHANGED]
    arms = {name: each for name, each in counts.items() if name != UNCHANGED}
    usable = [name for name, each in arms.items() if min(each.judged, base.judged) >= FEWEST]
    p_values = [
        fisher_exact(
            arms[name].passed,
            arms[name].judged - arms[name].passed,
            base.passed,
            base.judged - base.passed,
        )
        for name in usable
    ]
    corrected = dict(zip(usable, holm(p_values) if p_values else (), strict=True))
    found: list[Counterfactual] = []
    for name, each in arms.items():
        known = Counterfactual(
            name=name, change=changes.get(name, ""), passed=each.passed, judged=each.judged
        )
        if name not in corrected:
            found.append(known)
            continue
        gap = each.passed / each.judged - base.passed / base.judged
        low, high = newcombe(base.passed, base.judged, each.passed, each.judged, 1 - share)
        significant = corrected[name] <= share and gap > 0
        left = 1 - base.passed / base.judged
        found.append(
            msgspec.structs.replace(
                known,
                difference=gap,
                low=low,
                high=high,
                p=corrected[name],
                significant=significant,
                decisive=significant and gap >= DECISIVE_SHARE * left,
            )
        )
    return found


def sequential(
    observe: Callable[[], Mapping[str, ArmCount]],
    changes: Mapping[str, str],
    shares: Iterable[float],
) -> tuple[list[Counterfactual], float]:
    """Look at the counts until a change is decisive or the looks are used up.

    `observe` runs the next trials and returns all counts so far. Returns the figures of the last
    look, and its share of the error rate.
    """
    figures: list[Counterfactual] = []
    used = 0.0
    for used in shares:
        figures = figures_of(observe(), changes, used)
        if any(one.decisive for one in figures):
            break
    return figures, used


def outcome_of(figures: Sequence[Counterfactual]) -> Outcome:
    """Return what the changes of a step show together."""
    if any(one.decisive for one in figures):
        return "decisive"
    if any(one.significant for one in figures):
        return "contributing"
    return "no effect shown" if any(one.p is not None for one in figures) else "not testable"


def run_why(  # noqa: PLR0913 (the options of the command)
    run: Run,
    trial: Trial,
    run_trials: RunTrials,
    *,
    suspects: int = DEFAULT_SUSPECTS,
    trials: int = DEFAULT_TRIALS,
    looks: int = DEFAULT_LOOKS,
    alpha: float = 0.05,
    max_trials: int = DEFAULT_MAX_TRIALS,
    max_cost_usd: float | None = None,
    hint: str | None = None,
    at: int | None = None,
    results: str | Path | None = None,
    concurrency: int | None = None,
) -> WhyResult:
    """Test the suspicious steps of a failing trial, the most suspicious first.

    `at` names the only step to test. `trials` is per arm; `max_trials` and `max_cost_usd` limit the
    whole experiment.
    """
    if trial.passed:
        raise ProctorError(f"{trial.name} passed, so nothing broke", where=str(run.path))
    trace = recorded_trace(run, trial)
    found, passing = diagnosis_of(run, trial, trace)
    listed = suspects_of(trace, found, passing, len(trace.spans) if at is not None else suspects)
    if at is not None:
        act = act_at(trace, at)
        own = Suspect(at, act.agent, act.span.span_id, clipped(act.text, 120) or "the named step")
        listed = [next((one for one in listed if one.step == at), own)]
    if not listed:
        raise ProctorError(
            "diagnosis found no suspicious step", where=trial.name, hint="name one with --at STEP"
        )
    used = Spending()
    started, stopped = 0, ""
    causes: list[TestedCause] = []
    for place, suspect in enumerate(listed):
        arms = interventions(trace, suspect.step, passing, hint)
        # What is left is for this suspect and those behind it; where that is too little for all,
        # the most suspicious ones are tested.
        left = max_trials - started
        share = left // (len(listed) - place) // len(arms)
        per_arm = min(trials, max(share, min(FEWEST, left // len(arms))))
        shares = look_shares(alpha / len(listed), min(looks, per_arm // FEWEST))
        money = None if max_cost_usd is None else max_cost_usd - (used.cost_usd or 0.0)
        if not shares or (money is not None and money <= 0):
            stopped = "the budget is used up"
            causes.append(_untested(suspect, stopped))
            continue
        try:
            cause, done, why = _tested(
                run, trial, suspect, arms, run_trials,
                alpha=alpha, shares=shares, per_look=per_arm // len(shares),
                results=results, concurrency=concurrency, max_cost_usd=money,
            )  # fmt: skip
        except ProctorError as error:
            causes.append(_untested(suspect, str(error)))
            continue
        stopped = stopped or why
        started += len(done)
        for one in done:
            used.add(one)
        causes.append(cause)
        if why:
            causes += [_untested(one, why) for one in listed[place + 1 :]]
            break
    causes.sort(key=_rank)
    for cause in causes:
        _remember(run, trial, cause)
    return WhyResult(
        run=str(run.path),
        trial=trial.name,
        alpha=alpha,
        looks=looks,
        trials=started,
        # Replayed calls cost nothing; with a call of unknown price the sum is unknown, not zero.
        cost_usd=None if used.unpriced_calls else used.cost_usd,
        causes=tuple(causes),
        stopped=stopped,
    )


def _rank(cause: TestedCause) -> tuple[int, float, float]:
    """Return the place of a cause: by outcome, then by what the agent itself may do differently.

    A step that only a forced change repairs, and that comes out the same when it is taken again,
    follows from an earlier one.
    """
    again = [one for one in cause.counterfactuals if one.name == RESAMPLE and one.significant]
    effects = [one.difference or 0.0 for one in (*again, *cause.counterfactuals)]
    free = effects[0] if again else 0.0
    return ORDER.index(cause.outcome), -free, -max(effects, default=0.0)


def _untested(suspect: Suspect, reason: str) -> TestedCause:
    return TestedCause(**suspect._asdict(), outcome="not testable", reason=reason)


def _tested(
    run: Run,
    trial: Trial,
    suspect: Suspect,
    arms: Mapping[str, ForkArm],
    run_trials: RunTrials,
    *,
    alpha: float,
    shares: Sequence[float],
    per_look: int,
    **options: Any,
) -> tuple[TestedCause, list[Trial], str]:
    """Run the arms of a suspect; return it, its trials, and why the run was stopped, if it was."""
    context, folder = prepare_fork(run, trial, arms, trials=per_look, name="why", **options)
    rounds = _rounds(context, folder, run_trials, per_look, len(shares))
    seen: list[Run] = []

    def observe() -> dict[str, ArmCount]:
        if not seen or not seen[-1].stopped:
            seen.append(next(rounds))
        counts = {name: [0, 0] for name in arms}
        for one in seen[-1].trials():
            counts[one.agent][0] += one.passed
            counts[one.agent][1] += one.status.judged
        return {name: ArmCount(*each) for name, each in counts.items()}

    changes = {
        name: "the step again" if arm.edit is None else str(arm.edit) for name, arm in arms.items()
    }
    figures, share = sequential(observe, changes, shares)
    done = list(seen[-1].trials())
    base = [one for one in done if one.agent == UNCHANGED]
    lost = [one for one in done if one.error is not None and one.error.type == DIVERGED]
    outcome = outcome_of(figures)
    reason = ""
    if outcome == "not testable":
        errors = [one.error.message for one in (*lost, *done) if one.error is not None]
        reason = errors[0] if errors else "too few trials were judged"
    cause = TestedCause(
        **suspect._asdict(),
        outcome=outcome,
        reason=reason,
        passed=sum(one.passed for one in base),
        judged=sum(one.status.judged for one in base),
        diverged=len(lost),
        level=1 - share,
        counterfactuals=tuple(
            one
            if one.p is None
            else msgspec.structs.replace(one, p=min(1.0, one.p * alpha / share))
            for one in figures
        ),
        run=str(folder.path),
    )
    return cause, done, seen[-1].stopped or ""


def _rounds(
    context: RunContext, folder: RunFolder, run_trials: RunTrials, per_look: int, looks: int
) -> Iterator[Run]:
    yield run_trials(context, folder)
    while True:
        yield run_trials(*extend(folder.path, per_look, looks=looks))


def _remember(run: Run, trial: Trial, cause: TestedCause) -> None:
    """Store a tested cause with the run, for its diagnosis."""
    best = cause.best
    if best is None or best.low is None or best.high is None:
        return
    text = (
        f"{cause.outcome}: with {best.name}, {best.passed} of {best.judged} pass instead of"
        f" {cause.passed} of {cause.judged} ({best.low:+.0%} to {best.high:+.0%})"
    )
    add_tested(run.path, Tested(trial.name, cause.step, cause.outcome, text))
