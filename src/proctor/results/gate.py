"""Gate a run on its baseline: REGRESSION, NO REGRESSION, INCONCLUSIVE or NOT COMPARABLE.

Guarantees: the stated error rate covers the whole gate. With several agents, or several looks
because an inconclusive gate may be extended, each test uses that rate divided by their number
(Bonferroni), so that the probability of any false alarm is at most the requested rate.
"""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import msgspec

from proctor.errors import ProctorError, did_you_mean
from proctor.formatting import plural, some
from proctor.results._comparability import changed_cases, remarks
from proctor.results.metadata import as_mapping
from proctor.results.outcomes import (
    AgentOutcomes,
    Ratings,
    by_case,
    corrected,
    estimand_line,
    outcomes_of,
    pair_agents,
    ratings_of,
)
from proctor.runs.folder import place_of
from proctor.runs.run import Run
from proctor.runs.trial import CellKey, Trial
from proctor.stats.gate import (
    CorrectedDrop,
    Flakiness,
    Gate,
    GateRule,
    Verdict,
    case_flakiness,
    corrected_drop,
    decide_corrected,
    infrastructure_flakiness,
    judge_flakiness,
    judge_gate,
)
from proctor.stats.types import STOPPED
from proctor.tables import Tabular, interval_chart

# Flakiness of each case by source: the agent, the judge and the infrastructure. Three rates with
# their own denominators, never one label. A judge is only known to be flaky where it voted more
# than once on one transcript (`votes`); otherwise its rate is None.


Votes = Mapping[CellKey, Sequence[Sequence[bool]]]
"""By cell, for each question to a judge: the results of its votes."""


class CaseFlakiness(msgspec.Struct, frozen=True, kw_only=True):
    """Flakiness of one case with one agent."""

    case: str
    agent: str
    params: str
    by_agent: Flakiness
    by_judge: Flakiness
    by_infrastructure: Flakiness

    @property
    def flaky(self) -> bool:
        """Whether the case is known to be flaky."""
        return any(part.flaky for part in (self.by_agent, self.by_judge, self.by_infrastructure))

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of flakiness."""
        parts = (self.by_agent, self.by_judge, self.by_infrastructure)
        return tuple(part.source for part in parts if part.flaky)


def flakiness_of(arm: AgentOutcomes, votes: Votes | None = None) -> tuple[CaseFlakiness, ...]:
    """Return the flakiness of every case of one agent; filter by `flaky` for those to look at."""
    votes = votes or {}
    return tuple(
        CaseFlakiness(
            case=case.case,
            agent=arm.agent,
            params=arm.params,
            by_agent=case_flakiness([each.counts for each in case.instances]),
            by_judge=judge_flakiness(
                [
                    vote
                    for params in dict.fromkeys(
                        each.params or arm.params for each in case.instances
                    )
                    for vote in votes.get(CellKey(case.case, arm.agent, params), ())
                ]
            ),
            by_infrastructure=infrastructure_flakiness(case.trials, case.infra),
        )
        for case in arm.cases
    )


def judge_votes(run: Run) -> Votes:
    """Return the judges' votes in a run; without a judge, skip the scan of its trials."""
    suite, settings = as_mapping(run.spec.get("suite")), as_mapping(run.spec.get("settings"))
    judged = suite.get("judge") or suite.get("judges") or settings.get("judge")
    return votes_of(run.trials()) if judged else {}


def votes_of(trials: Iterable[Trial]) -> Votes:
    """Return the votes stored with judged checks, by cell."""
    by_cell: dict[CellKey, list[Sequence[bool]]] = defaultdict(list)
    for trial in trials:
        for result in trial.checks:
            votes = as_mapping(result.actual).get("votes_passed")
            if isinstance(votes, list):
                by_cell[trial.cell].append([vote is True for vote in cast("list[Any]", votes)])
    return dict(by_cell)


Policy = Literal["pass", "fail", "extend"]
"""How to treat INCONCLUSIVE: exit 0, exit 1, or more trials (and 2 if still undecided)."""

_WORST_FIRST: tuple[Verdict, ...] = (
    "REGRESSION",
    "NOT COMPARABLE",
    "INCONCLUSIVE",
    "NO REGRESSION",
)


class RunRef(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a gated run and its provenance."""

    path: str
    run_id: str
    created: str | None
    commit: str | None
    changes: str | None = None
    """Uncommitted changes of the code: their hash, or that there are some."""

    @classmethod
    def of(cls, run: Run) -> RunRef:
        """Return the identity of a run for display."""
        git = as_mapping(as_mapping(run.spec.get("provenance")).get("git"))
        return cls(
            path=place_of(run.path),
            run_id=run.run_id,
            created=run.spec.get("created"),
            commit=git.get("commit"),
            changes=(git.get("changes") or "unknown") if git.get("dirty") else None,
        )


class ArmGate(msgspec.Struct, frozen=True, kw_only=True):
    """One agent compared with itself in the baseline."""

    name: str
    baseline_name: str
    gate: Gate
    broken: tuple[str, ...] = ()
    """Must-pass cases that failed."""
    corrected: CorrectedDrop | None = None
    """The drop of the pass rates that labels correct; None where neither run has labels."""

    @property
    def about(self) -> str:
        """One line that says what the verdict is about."""
        return estimand_line(self.gate.estimand, self.gate.cases, self.gate.instances)

    @property
    def too_many_errors(self) -> bool:
        """Whether infrastructure errors, not the agent, prevented a verdict."""
        limit = self.gate.rule.max_error_rate
        pairs = zip(self.gate.errors, self.gate.errored_of, strict=True)
        return any(of and errors / of > limit for errors, of in pairs)


class GateLook(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one look of a gate that may be extended."""

    number: int
    verdict: Verdict
    trials: int
    """Judged trials of both runs on the compared cases."""
    reason: str


class GateResult(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """The verdict over all agents, with the evidence behind it.

    `rule` is the requested rule, `alpha_each` the level of each single test.
    """

    verdict: Verdict
    reason: str
    baseline: RunRef
    candidate: RunRef
    arms: tuple[ArmGate, ...]
    rule: GateRule
    alpha_each: float
    looks: int
    incomparable: Mapping[str, str]
    only_baseline: tuple[str, ...]
    only_candidate: tuple[str, ...]
    flaky: tuple[CaseFlakiness, ...]
    history: tuple[GateLook, ...] = ()
    notes: tuple[str, ...] = ()
    incomplete: bool = False
    """Whether planned trials of a run are missing or lines of its journal cannot be read: the tests
    are over what is left, and the gate cannot pass."""

    def records(self) -> list[dict[str, Any]]:
        """Return a row per agent and case that changed; one without a case where none did."""
        return [
            {
                "agent": arm.name,
                "verdict": arm.gate.verdict,
                "reason": arm.gate.reason,
                "case": None if move is None else move.case,
                "baseline_passes": None if move is None else move.baseline.passes,
                "baseline_trials": None if move is None else move.baseline.trials,
                "candidate_passes": None if move is None else move.candidate.passes,
                "candidate_trials": None if move is None else move.candidate.trials,
                "change": None if move is None else -move.drop,
            }
            for arm in self.arms
            for move in [m for m in arm.gate.moves if m.drop] or [None]
        ]

    def _heading(self) -> str:
        return f"{self.verdict}: {self.reason}"

    def _chart(self) -> dict[str, Any]:
        rows = [{**row, "value": row["change"], "name": row["case"]} for row in self.records()]
        chart = interval_chart(rows, "change of the pass rate")
        chart["encoding"]["color"] = {"field": "agent", "type": "nominal"}
        chart["encoding"]["yOffset"] = {"field": "agent"}
        return {**chart, "layer": chart["layer"][:1]}

    @property
    def error_rate(self) -> str:
        """Describe how the error rate is controlled."""
        tests = max(1, len(self.arms)) * self.looks
        if tests == 1:
            return f"alpha {self.rule.alpha:g}, one-sided: one test, one look"
        parts = [f"{len(self.arms)} agents"] if len(self.arms) > 1 else []
        parts += [f"{self.looks} looks, fixed beforehand"] if self.looks > 1 else []
        return (
            f"alpha {self.rule.alpha:g} in all, one-sided: {' × '.join(parts)},"
            f" each test at {self.alpha_each:.3g} (Bonferroni)"
        )

    @property
    def unjudgeable(self) -> bool:
        """Whether infrastructure errors left the gate undecided."""
        return self.verdict == "INCONCLUSIVE" and any(arm.too_many_errors for arm in self.arms)

    @property
    def more_trials(self) -> int | None:
        """Trials per case (and seed), in both runs, that would decide it if the drop persists."""
        advised = [arm.gate.advice.more_trials for arm in self.arms if arm.gate.advice]
        return max((number for number in advised if number is not None), default=None)

    def exit_code(self, policy: Policy = "pass") -> int:
        """0: passed; 1: the gate failed; 2: it could not be decided."""
        if self.verdict == "REGRESSION":
            return 1
        if self.verdict == "NOT COMPARABLE" or self.unjudgeable or self.incomplete:
            return 2
        if self.verdict == "NO REGRESSION":
            return 0
        return {"pass": 0, "fail": 1, "extend": 2}[policy]


def judge_runs(
    candidate: Run,
    baseline: Run,
    *,
    rule: GateRule | None = None,
    looks: int = 1,
    must_pass: Sequence[str] = (),
    history: Sequence[GateLook] = (),
) -> GateResult:
    """Gate a run on its baseline.

    `looks` is the total number of times this pair may be tested; extended runs store it. Cases
    whose ids match `must_pass` have to pass in every judged trial of the candidate.
    """
    rule = rule or GateRule()
    # A run that was extended has already been tested that often.
    extensions = [*extensions_of(candidate.spec), *extensions_of(baseline.spec)]
    looks = max(looks, *(int(each.get("looks", 1)) for each in extensions), 1)
    before, after = outcomes_of(baseline), outcomes_of(candidate)
    arms = pair_agents(before, after)
    names = sorted({case.case for _, arm in arms.pairs for case in arm.cases})
    for pattern in must_pass:
        # A pattern with a typo would silently protect nothing.
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise ProctorError(
                f"no case of the run matches {pattern!r}",
                hint=did_you_mean(pattern, names) or f"cases are {', '.join(names[:5])}",
            )
    # Tagging the candidate as baseline before the gate is an easy mistake, and it would never fail.
    same_folder = baseline.folder.path.resolve() == candidate.folder.path.resolve()
    if baseline.run_id == candidate.run_id and same_folder:
        raise ProctorError(
            "candidate and reference are the same run: the same trials are no second observation",
            hint="tag the reference before the candidate runs, or name another run",
        )
    incomparable = changed_cases(baseline.spec, candidate.spec)
    # Bonferroni: a single false alarm, of any agent at any look, fails the whole gate.
    # NO REGRESSION must hold for every agent at once, so its bounds need no share of agents.
    each = replace(
        rule,
        alpha=rule.alpha / (max(1, len(arms.pairs)) * looks),
        bound_alpha=rule.alpha / looks,
    )
    rated = ratings_of(baseline), ratings_of(candidate)
    judged = tuple(
        judge_arm(
            old,
            new,
            each,
            incomparable,
            must_pass,
            (rated[0].get((old.agent, old.params), {}), rated[1].get((new.agent, new.params), {})),
        )
        for old, new in arms.pairs
    )
    verdict, reason = "NOT COMPARABLE", "no agent is in both runs"
    if judged:
        worst = min(judged, key=lambda arm: _WORST_FIRST.index(arm.gate.verdict))
        name = f"{worst.name}: " if len(judged) > 1 else ""
        verdict, reason = worst.gate.verdict, name + worst.gate.reason
    votes = judge_votes(candidate)
    missing = (
        *_unfinished("candidate", candidate, after),
        *_unfinished("reference", baseline, before),
    )
    if missing and verdict in ("NO REGRESSION", "INCONCLUSIVE"):
        # What is left may be what passed: no verdict on it is one on the run.
        verdict, reason = "INCONCLUSIVE", f"{missing[0]}; of what is left, {reason}"
    look = GateLook(
        number=len(history) + 1,
        verdict=verdict,
        trials=sum(arm.gate.n for arm in judged),
        reason=reason,
    )
    return GateResult(
        verdict=verdict,
        reason=reason,
        baseline=RunRef.of(baseline),
        candidate=RunRef.of(candidate),
        arms=judged,
        rule=rule,
        alpha_each=each.alpha,
        looks=looks,
        incomparable=incomparable,
        only_baseline=arms.only_first,
        only_candidate=arms.only_second,
        flaky=tuple(
            each for _, arm in arms.pairs for each in flakiness_of(arm, votes) if each.flaky
        ),
        history=(*history, look),
        notes=(
            *arms.notes,
            *remarks(baseline.spec, candidate.spec),
            *missing,
        ),
        incomplete=bool(missing),
    )


def judge_arm(
    before: AgentOutcomes,
    after: AgentOutcomes,
    rule: GateRule,
    incomparable: Mapping[str, str] | None = None,
    must_pass: Sequence[str] = (),
    ratings: tuple[Ratings, Ratings] = ({}, {}),
) -> ArmGate:
    """Compare one agent's cases with those of its baseline, instance by instance.

    `ratings` are the judged trials of both with their labels.
    """
    arms = (before.instances, after.instances)
    every = {each.label: each for arm in arms for each in arm}
    fractional = any(each.scores and not each.binary for arm in arms for each in arm)
    gate = judge_gate(
        {each.label: each.counts for each in arms[0]},
        {each.label: each.counts for each in arms[1]},
        rule=rule,
        incomparable={
            label: why
            for label, each in every.items()
            if (why := (incomparable or {}).get(each.case))
        },
        scores=(
            {each.label: each.scores for each in arms[0]},
            {each.label: each.scores for each in arms[1]},
        )
        if fractional
        else None,
        cases={label: each.case for label, each in every.items()},
        clusters={each.case: each.cluster_key for each in every.values()},
    )
    gate = replace(
        gate,
        left_out=by_case(
            [(every[label], why) for label, why in gate.left_out.items()],
            {move.case for move in gate.moves},
        ),
    )
    compared = {move.case for move in gate.moves}
    stopped = [
        case.case
        for arm in (before, after)
        for case in arm.cases
        if case.stopped and case.case in compared
    ]
    if stopped:
        reason = (
            f"{plural(len(stopped), 'cell')} stopped early ({some(stopped)}): such rates"
            " are biased and no test at a fixed number of trials is valid; run without --early-stop"
        )
        none = {"drop_at_most": None, "p_value": None, "adjusted": None}
        gate = replace(
            gate,
            verdict="NOT COMPARABLE",
            reason=reason,
            advice=None,
            score=None if gate.score is None else replace(gate.score, **none),
            detectable=replace(gate.detectable, effect=None, reason=STOPPED),
            **none,
        )
    found = None
    if any(ratings) or rule.corrected:
        # On the instances that the gate compares: judged in both runs, and unchanged.
        both = {each.label for each in arms[0] if each.trials} & {
            each.label for each in arms[1] if each.trials
        }
        old, new = (
            corrected(
                [each for each in arm if each.label in both and each.case in compared],
                rated,
                estimand=rule.estimand,
            )
            for arm, rated in zip(arms, ratings, strict=True)
        )
        found = corrected_drop(old, new, rule)
        if rule.corrected and not stopped:
            gate = decide_corrected(gate, found)
    # Last, because it overrides: one failure of a must-pass case needs no statistics.
    broken = tuple(
        case.case
        for case in after.cases
        if case.passes < case.trials
        and any(fnmatch.fnmatchcase(case.case, pattern) for pattern in must_pass)
    )
    if broken:
        reason = f"must-pass cases failed: {', '.join(broken)}"
        gate = replace(gate, verdict="REGRESSION", reason=reason, advice=None)
    return ArmGate(
        name=after.name, baseline_name=before.name, gate=gate, broken=broken, corrected=found
    )


def _unfinished(name: str, run: Run, arms: Sequence[AgentOutcomes]) -> Iterator[str]:
    """Yield what is missing: only trials that exist and can be read are tested."""
    if run.damaged:
        yield f"{plural(run.damaged, 'part')} of the {name} cannot be read"
    missing = sum(
        max(0, case.asked - case.trials - case.unjudged - case.cancelled - case.after_stop)
        for arm in arms
        for case in arm.cases
        # A cell that stopped early is complete.
        if case.asked is not None and not case.stopped
    )
    why = f" ({run.stopped})" if run.stopped else ""
    if "imported" in run.spec:
        if missing or why:
            yield f"the {name} was imported incomplete{why}"
    elif missing:
        are = "is" if missing == 1 else "are"
        missed = f"{plural(missing, 'planned trial')} of the {name} {are} missing{why}"
        yield f"{missed}: `proctor run --resume`"


def extensions_of(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return when a run was extended, by how many trials, and for how many looks."""
    return cast("list[dict[str, Any]]", list(spec.get("extensions") or ()))
