"""Reduce trials to the input of estimators: observations per agent, parameters, case and instance.

Three levels: a case, its instances (the case under one seed of the experiment; one without seeds)
and their trials. Agents and runs are paired by instance.

Guarantees: every planned or finished trial is in exactly one count (judged, infrastructure error,
not judged, cancelled, after an early stop), so a reader can see what a figure leaves out. A planned
case without any trial is included with zeros: absent does not mean passed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec

from proctor.errors import ProctorError, did_you_mean
from proctor.formatting import plural
from proctor.results.metadata import CLUSTER, as_mapping, as_text, scenario_cases, stopping_rules
from proctor.runs.annotations import LABELS, HumanLabel, labels_of, sampled_labels
from proctor.runs.early_stop import CellPlan, FinishedTrial, find_stop, rules_named, stopped_early
from proctor.runs.journal import CountedLine
from proctor.runs.run import Run
from proctor.runs.trial import CellKey, Trial, TrialStatus, arm_name
from proctor.stats.intervals import CorrectedRate, RatedTrial, corrected_rate
from proctor.stats.types import (
    LEVEL,
    SUITE_DEFAULT,
    CaseCounts,
    DifferenceTest,
    Estimand,
    Interval,
    bias_of,
    mean,
)


class Excluded(msgspec.Struct, frozen=True):
    """Trials or cases that no estimate counts, and the reason."""

    what: str
    count: int
    why: str

    def __str__(self) -> str:
        return f"{plural(self.count, self.what.removesuffix('s'))}: {self.why}"


NOT_JUDGED = "not judged: the checks lacked what they need"
"""Why no figure counts trials without an error and without a verdict."""


class CaseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Observations of one case, or of one instance of it.

    Where the experiment has seeds, or parameters of a scenario, `parts` are the instances, one for
    each `seed` and set of `params`, and the case is their sum.

    `trials` are the judged ones: the denominator of the pass rate. `scores` are theirs in plan
    order, without the `unscored` ones (judged, but no check had a weight). `after_stop` trials
    ended after the cell was decided; only their cost counts. `latencies_ms` are of judged trials,
    `costs_usd` of all counted ones, each where known. `spent_usd` and `unpriced_calls` are of all
    attempts at all trials: each was paid for.
    """

    case: str
    passes: int
    trials: int
    scores: tuple[float, ...]
    unscored: int = 0
    infra: int = 0
    not_judged: int = 0
    undecided: int = 0
    """Not judged trials that other checks scored: had one of those failed, they would be judged."""
    cancelled: int = 0
    after_stop: int = 0
    asked: int | None = None
    threshold: float | None = None
    cluster: str | None = None
    stopped: str | None = None
    watched: bool = False
    """Whether a rule could have stopped the cell, even if it did not."""
    latencies_ms: tuple[float, ...] = ()
    costs_usd: tuple[float, ...] = ()
    spent_usd: tuple[float, ...] = ()
    unpriced_calls: int = 0
    seed: int | None = None
    params: str = ""
    parts: tuple[CaseOutcome, ...] = ()

    @property
    def instances(self) -> tuple[CaseOutcome, ...]:
        """The instances of the case; without seeds, the case itself."""
        return self.parts or (self,)

    @property
    def label(self) -> str:
        """The case, with its parameters and seed where it has them."""
        return instance_label(self.case, self.params, self.seed)

    @property
    def cluster_key(self) -> str:
        """The cluster that the case belongs to, or the case alone."""
        return cluster_key(self.case, self.cluster)

    @property
    def counts(self) -> CaseCounts:
        """Input of the estimators in `proctor.stats`."""
        return CaseCounts(self.passes, self.trials, self.unjudged)

    @property
    def pass_rate(self) -> float | None:
        """Passed over judged; None without judged trials."""
        return self.passes / self.trials if self.trials else None

    @property
    def passed(self) -> int:
        """Number of judged trials that passed."""
        return self.passes

    @property
    def unjudged(self) -> int:
        """Trials that ended without a verdict: infrastructure errors and not judged ones."""
        return self.infra + self.not_judged

    @property
    def known_cost_usd(self) -> float | None:
        """The known cost of all attempts; None where none has one."""
        return math.fsum(self.spent_usd) if self.spent_usd else None

    @property
    def mean_score(self) -> float | None:
        """The mean of the scores; None without scores."""
        return mean(self.scores)

    @property
    def binary(self) -> bool:
        """Whether the scores say no more than the passes, for which there is an exact test."""
        return set(self.scores) <= {0.0, 1.0} and self.scores.count(1.0) == self.passes

    @classmethod
    def merged(cls, parts: Sequence[CaseOutcome], asked: int | None = None) -> CaseOutcome:
        """Return the sum of some outcomes of one case, of which `asked` trials were planned."""
        if len(parts) == 1 and parts[0].label == parts[0].case:
            return msgspec.structs.replace(parts[0], asked=asked)
        sums: dict[str, Any] = {
            name: tuple(chain.from_iterable(getattr(part, name) for part in parts))
            if name in _LISTS
            else sum(getattr(part, name) for part in parts)
            for name in _ADDITIVE
        }
        several = any(part.label != part.case for part in parts)
        # Early stopping of any part biases the sum.
        sums["stopped"] = next((part.stopped for part in parts if part.stopped), None)
        sums["watched"] = any(part.watched for part in parts)
        return msgspec.structs.replace(
            parts[0], **sums, seed=None, params="", asked=asked, parts=tuple(parts) * several
        )


_LISTS = ("scores", "latencies_ms", "costs_usd", "spent_usd")

# Counts and lists of an outcome: those of two parts of one case are added.
_ADDITIVE = tuple(
    name
    for name in CaseOutcome.__struct_fields__
    if name not in ("case", "asked", "threshold", "cluster", "stopped", "watched")
    and name not in ("seed", "params", "parts")
)


class AgentOutcomes(msgspec.Struct, frozen=True, kw_only=True):
    """Observations of one agent under one set of parameters, by case id."""

    agent: str
    params: str
    cases: tuple[CaseOutcome, ...]

    @property
    def name(self) -> str:
        """The agent, with its parameters when it has any."""
        return arm_name(self.agent, self.params)

    @property
    def instances(self) -> tuple[CaseOutcome, ...]:
        """Every instance, case by case."""
        return tuple(instance for case in self.cases for instance in case.instances)

    @property
    def counts(self) -> tuple[CaseCounts, ...]:
        """Passes, judged trials and errors of each instance, in the order of `instances`."""
        return tuple(instance.counts for instance in self.instances)

    @property
    def clustering(self) -> Clustering:
        """The draw of each instance, in the order of `instances`."""
        return clustering_of((each.case, each.cluster, each.label) for each in self.instances)

    @property
    def trials(self) -> int:
        """Number of judged trials."""
        return sum(case.trials for case in self.cases)

    @property
    def passes(self) -> int:
        """Number of judged trials that passed."""
        return sum(case.passes for case in self.cases)

    @property
    def watched(self) -> bool:
        """Whether a rule could have stopped a cell."""
        return any(case.watched for case in self.cases)

    @property
    def unpriced_calls(self) -> int:
        """Calls whose price is not known: the cost is a lower bound."""
        return sum(case.unpriced_calls for case in self.cases)

    @property
    def known_cost_usd(self) -> float | None:
        """The known cost of all attempts; None where none has one."""
        costs = [cost for case in self.cases for cost in case.spent_usd]
        return math.fsum(costs) if costs else None

    @property
    def infra(self) -> int:
        """Number of infrastructure errors."""
        return sum(case.infra for case in self.cases)

    @property
    def not_judged(self) -> int:
        """Number of trials that their checks could not judge."""
        return sum(case.not_judged for case in self.cases)

    @property
    def cancelled(self) -> int:
        """Number of cancelled trials."""
        return sum(case.cancelled for case in self.cases)

    @property
    def left_out(self) -> tuple[Excluded, ...]:
        """Exclusions from all estimates, with reasons; empty when everything is counted."""
        unjudged = sum(not case.trials for case in self.cases)
        unscored = sum(case.unscored for case in self.cases)
        after = sum(case.after_stop for case in self.cases)
        parts = (
            Excluded(
                "trials", self.infra, "infrastructure error: the agent or a judge did not run"
            ),
            Excluded("trials", self.not_judged, NOT_JUDGED),
            Excluded("trials", self.cancelled, "cancelled"),
            Excluded("trials", after, "ended after an early stop had decided the cell"),
            Excluded("scores", unscored, "judged without a score: no check had a weight"),
            Excluded("cases", unjudged, "no judged trial"),
        )
        return tuple(part for part in parts if part.count)


def instance_label(case: str, params: str, seed: int | None) -> str:
    """Return the name of an instance: the case, with its parameters and seed where it has them."""
    marks = [params] if params else []
    marks += [] if seed is None else [f"seed {seed}"]
    return f"{case} [{', '.join(marks)}]" if marks else case


def cluster_key(case: str, cluster: str | None) -> str:
    """Return the cluster of a case; the prefix keeps a lone case out of a cluster of its name."""
    return cluster or f"case {case}"


class Clustering(NamedTuple):
    """The case of each instance of a figure, the draw it belongs to, and what a draw is."""

    cases: tuple[str, ...]
    keys: tuple[str, ...]
    unit: str

    @property
    def drawn(self) -> tuple[str, ...]:
        """What has one value of a population: the cases; of a single case, its instances."""
        return self.cases if len(set(self.cases)) > 1 else self.keys


def clustering_of(instances: Iterable[tuple[str, str | None, str]]) -> Clustering:
    """Return the draws of instances, each with its case, its cluster and its own label.

    Instances of one case are one draw, and so are cases of one cluster. With a single case the
    draws are its instances, and a claim is about instances of that case.
    """
    rows = list(instances)
    cases = tuple(case for case, *_ in rows)
    if any(cluster for _, cluster, _ in rows):
        keys = tuple(cluster_key(case, cluster) for case, cluster, _ in rows)
        return Clustering(cases, keys, "cluster")
    if len(set(cases)) > 1 or len(rows) == 1:
        return Clustering(cases, cases, "case")
    return Clustering(cases, tuple(label for *_, label in rows), "instance of one case")


JudgedTrial = TypeVar("JudgedTrial", Trial, CountedLine)


class ObservedTrial(NamedTuple, Generic[JudgedTrial]):
    """A trial, whether its cell still needed it, and otherwise the reason."""

    trial: JudgedTrial
    counted: bool
    stopped: str | None = None


def planned_cells(spec: Mapping[str, Any]) -> dict[CellKey, CellPlan]:
    """Return the plan of a run by cell."""
    return {
        CellKey(str(c["case"]), str(c["agent"]), str(c.get("params", ""))): CellPlan(
            int(c["trials"]), float(c["threshold"]), as_text(c.get("early_stop"))
        )
        for c in cast("list[dict[str, Any]]", spec.get("cells") or ())
    }


def observe(
    trials: Iterable[JudgedTrial], spec: Mapping[str, Any]
) -> Iterator[ObservedTrial[JudgedTrial]]:
    """Return trials by cell in plan order, each with whether it counts.

    The stopping point of a cell is derived from the trials, as in summaries: it is not stored.
    """
    plan = planned_cells(spec)
    options = cast("dict[str, Any]", spec.get("options") or {})
    rules = rules_named(options.get("early_stop") or ())
    by_cell: dict[CellKey, list[JudgedTrial]] = defaultdict(list)
    for trial in trials:
        by_cell[trial.cell].append(trial)
    for key in sorted(by_cell):
        # Plan order: sequential, concurrent and resumed runs must stop a cell at the same trial.
        ordered = sorted(by_cell[key], key=lambda t: (t.axis_seed or 0, t.index))
        cell = plan.get(key)
        stop, early = None, None
        if cell is not None:
            seen = [FinishedTrial(t.index, t.status, t.score) for t in ordered]
            stop = find_stop(seen, cell, rules)
            early = stopped_early(stop, cell)
        for place, trial in enumerate(ordered):
            yield ObservedTrial(trial, stop is None or place < stop.after, early)


def case_properties(spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the cases of a run as written in the suite, by id."""
    suite = cast("dict[str, Any]", spec.get("suite") or {})
    cases = cast("list[dict[str, Any]]", suite.get("cases") or ())
    return {str(case["id"]): case for case in cases if "id" in case}


def _clusters(spec: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the cluster that each case of a run names, if any."""
    return {
        name: as_text(as_mapping(case.get("properties")).get(CLUSTER))
        for name, case in case_properties(spec).items()
    }


def outcomes_of(run: Run, *, by_params: bool = False) -> tuple[AgentOutcomes, ...]:
    """Return the outcomes of a run by agent and parameters.

    Parameters of a scenario make other instances of it, which all agents share; those of other
    cases are the agent's. With `by_params` all of them are.
    """
    scenarios = scenario_cases(run.spec)
    plan, clusters = planned_cells(run.spec), _clusters(run.spec)
    seen: dict[CellKey, dict[int | None, list[ObservedTrial[Trial]]]] = {
        key: defaultdict(list) for key in plan
    }
    for one in observe(run.trials(), run.spec):
        seen.setdefault(one.trial.cell, defaultdict(list))[one.trial.axis_seed].append(one)
    instances: list[tuple[CellKey, CaseOutcome]] = []
    planned: Counter[CellKey] = Counter()
    for key in sorted(seen):
        params = "" if by_params or key.case not in scenarios else key.params
        group = key._replace(params="") if params else key
        cell = plan.get(key)
        planned[group] += 0 if cell is None else cell.trials
        for seed, trials in (seen[key] or {None: []}).items():
            about = {"params": params, "seed": seed, "cluster": clusters.get(key.case)}
            found = _instance(key.case, trials, None if cell is None else cell.threshold, run)
            instances.append((group, msgspec.structs.replace(found, **about)))
    return by_agent(instances, planned)


def by_agent(
    instances: Iterable[tuple[CellKey, CaseOutcome]], planned: Mapping[CellKey, int] | None = None
) -> tuple[AgentOutcomes, ...]:
    """Group instances by agent and parameters, and by case; parts of one instance are added."""
    cells: dict[CellKey, dict[str, list[CaseOutcome]]] = defaultdict(lambda: defaultdict(list))
    for key, each in instances:
        cells[key][each.label].append(each)
    arms: dict[tuple[str, str], list[CaseOutcome]] = defaultdict(list)
    for key, by_label in sorted(cells.items()):
        parts = [same_instance(each) for each in by_label.values()]
        asked = (planned or {}).get(key) or None
        arms[key.agent, key.params].append(CaseOutcome.merged(parts, asked))
    return tuple(
        AgentOutcomes(agent=agent, params=params, cases=tuple(cases))
        for (agent, params), cases in sorted(arms.items())
    )


def same_instance(parts: Sequence[CaseOutcome]) -> CaseOutcome:
    """Return the sum of the parts of one instance."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    whole = CaseOutcome.merged(parts)
    return msgspec.structs.replace(whole, seed=first.seed, params=first.params, parts=())


def _instance(
    case: str, seen: Sequence[ObservedTrial[Trial]], threshold: float | None, run: Run
) -> CaseOutcome:
    spent = [run.spent_on(one.trial) for one in seen]
    counted = [one.trial for one in seen if one.counted]
    judged = [trial for trial in counted if trial.status.judged]
    scores = tuple(trial.score for trial in judged if trial.score is not None)
    return CaseOutcome(
        case=case,
        passes=sum(trial.passed for trial in judged),
        trials=len(judged),
        scores=scores,
        unscored=len(judged) - len(scores),
        infra=sum(trial.status == TrialStatus.INFRA_ERROR for trial in counted),
        not_judged=sum(trial.status == TrialStatus.NOT_JUDGED for trial in counted),
        undecided=sum(
            trial.status == TrialStatus.NOT_JUDGED and trial.score is not None for trial in counted
        ),
        cancelled=sum(trial.status == TrialStatus.CANCELLED for trial in counted),
        after_stop=len(seen) - len(counted),
        threshold=threshold,
        stopped=seen[0].stopped if seen else None,
        watched=stopping_rules(run.spec) is not None,
        latencies_ms=tuple(t.latency_ms for t in judged if t.latency_ms is not None),
        costs_usd=tuple(t.cost_usd for t in counted if t.cost_usd is not None),
        spent_usd=tuple(cost for cost, _ in spent if cost is not None),
        unpriced_calls=sum(unpriced for _, unpriced in spent),
    )


Ratings = Mapping[str, Sequence[RatedTrial]]
"""The judged trials of one agent by instance: the judge's verdict, the label if there is one."""


def ratings_of(run: Run) -> dict[tuple[str, str], Ratings]:
    """Return the ratings of a run by agent and parameters; nothing where no trial is labelled."""
    if not run.saved or not (run.path / LABELS).is_file():
        return {}
    labels, scenarios = labels_of(run.path), scenario_cases(run.spec)
    clusters = _clusters(run.spec)
    by_arm: dict[tuple[str, str], list[tuple[str, str, Trial]]] = defaultdict(list)
    for trial, counted, _ in observe(run.trials(), run.spec):
        if counted and trial.status.judged:
            params = trial.cell.params
            own = params if trial.case in scenarios else ""
            label = instance_label(trial.case, own, trial.axis_seed)
            cluster = cluster_key(trial.case, clusters.get(trial.case))
            by_arm[trial.agent, "" if own else params].append((label, cluster, trial))
    found: dict[tuple[str, str], Ratings] = {}
    for arm, rows in by_arm.items():
        sample = sampled_labels([trial for *_, trial in rows], labels, run.run_id)
        rated: dict[str, list[RatedTrial]] = defaultdict(list)
        for instance, cluster, trial in rows:
            rated[instance].append(RatedTrial(float(trial.passed), sample.get(trial.name), cluster))
        found[arm] = rated
    return found


def corrected(
    arm: Iterable[CaseOutcome],
    ratings: Ratings,
    *,
    estimand: Estimand = "suite",
    level: float = LEVEL,
) -> CorrectedRate | None:
    """Return the pass rate of instances as people would judge them; None without any label.

    Instances have the same weight, as in the judge's own rate.
    """
    instances = list(arm)
    rated = [ratings.get(each.label, ()) for each in instances]
    trials = [one._replace(weight=1 / len(rows)) for rows in rated for one in rows]
    if all(one.label is None for one in trials):
        return None
    found = corrected_rate(trials, estimand=estimand, level=level)
    return replace(found, rate=unless_biased(found.rate, instances))


def corrected_rates(run: Run) -> dict[str, CorrectedRate]:
    """Return the pass rate of each agent as people would judge it; nothing without labels."""
    rated = ratings_of(run)
    arms = outcomes_of(run) if rated else ()
    found = {
        arm.name: corrected(arm.instances, rated.get((arm.agent, arm.params), {})) for arm in arms
    }
    return {name: rate for name, rate in found.items() if rate is not None}


class TrialAgreement(NamedTuple):
    """How raters agree with each other and with the judge, over the trials they labelled.

    `pairs` has each two raters with the trials both labelled, how often they agree, and Cohen's
    kappa; the judge is a rater named `judge`. `alpha` is Krippendorff's, of people alone.
    """

    raters: dict[str, int]
    pairs: tuple[tuple[str, str, int, int, float | None], ...]
    alpha: float | None
    doubly: int
    """Trials with labels of two raters or more."""


def trial_agreement(labels: Iterable[HumanLabel], judged: Mapping[str, bool]) -> TrialAgreement:
    """Return the agreement of labels, and of each rater with the judge's verdicts by trial."""
    from proctor.checks.judge_audit import cohen_kappa, krippendorff_alpha

    given: dict[str, dict[str, str]] = {}
    for each in labels:
        if each.verdict != "skip":
            given.setdefault(each.rater, {})[each.trial] = each.verdict
    raters = {rater: len(own) for rater, own in given.items()}
    units: dict[str, list[str]] = {}
    for own in given.values():
        for trial, verdict in own.items():
            units.setdefault(trial, []).append(verdict)
    verdicts = {trial: "pass" if passed else "fail" for trial, passed in judged.items()}
    pairs: list[tuple[str, str, int, int, float | None]] = []
    for (a, first), (b, second) in combinations([*given.items(), ("judge", verdicts)], 2):
        both = [trial for trial in first if trial in second]
        if both:
            left, right = [first[trial] for trial in both], [second[trial] for trial in both]
            agreed = sum(x == y for x, y in zip(left, right, strict=True))
            pairs.append((a, b, len(both), agreed, cohen_kappa(left, right)))
    doubly = sum(len(unit) > 1 for unit in units.values())
    return TrialAgreement(raters, tuple(pairs), krippendorff_alpha(units.values()), doubly)


def pick(
    every: Sequence[AgentOutcomes], agent: str | None = None, params: str | None = None
) -> AgentOutcomes:
    """Return the requested agent, or raise with the available ones."""
    matching = [
        one
        for one in every
        if (agent is None or one.agent == agent) and (params is None or one.params == params)
    ]
    if len(matching) == 1:
        return matching[0]
    # A misspelt name gets its own message: a list of all agents would hide the typo.
    names = sorted({one.agent for one in every})
    if agent is not None and agent not in names:
        known = sorted(one.name for one in every)
        raise ProctorError(
            f"no trial of an agent named {agent!r}",
            hint=did_you_mean(agent, [*names, *known]) or f"known: {', '.join(known) or 'none'}",
        )
    if not matching:
        known = ", ".join(one.name for one in every)
        none = "no trial has finished yet, or the filters match none"
        raise ProctorError("there are no trials", hint=f"agents: {known}" if known else none)
    raise ProctorError(
        f"{len(matching)} agents or sets of parameters; select one",
        hint=f"name one of: {', '.join(one.name for one in matching)}",
    )


class PairedOutcomes(NamedTuple):
    """Two arms on their common instances, at the same indices; and the instances of only one."""

    first: tuple[CaseOutcome, ...]
    second: tuple[CaseOutcome, ...]
    only_first: tuple[CaseOutcome, ...]
    only_second: tuple[CaseOutcome, ...]


def pair(first: AgentOutcomes, second: AgentOutcomes) -> PairedOutcomes:
    """Align two arms by instance: case id, parameters of a scenario and seed."""
    a = {each.label: each for each in first.instances}
    b = {each.label: each for each in second.instances}
    both = [key for key in a if key in b]
    return PairedOutcomes(
        tuple(a[key] for key in both),
        tuple(b[key] for key in both),
        tuple(each for key, each in a.items() if key not in b),
        tuple(each for key, each in b.items() if key not in a),
    )


def by_case(reasons: Sequence[tuple[CaseOutcome, str]], compared: set[str]) -> dict[str, str]:
    """Return why instances were left out, by case; seeds are named where others are compared."""
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for instance, why in reasons:
        seeds = groups[instance.case, instance.params, why]
        seeds += [] if instance.seed is None else [instance.seed]
    partly = compared | {
        case for case, times in Counter(case for case, *_ in groups).items() if times > 1
    }
    return {
        (f"{case} [{params}]" if params else case)
        + (
            f" ({plural(len(seeds), 'instance')}: {seed_list(seeds)})"
            if seeds and case in partly
            else ""
        ): why
        for (case, params, why), seeds in groups.items()
    }


# Maximum number of seeds listed individually.
_MAX_SEEDS_SHOWN = 5


def seed_list(seeds: Sequence[int]) -> str:
    """Format seeds briefly: `seeds 0..9`, or the first of them."""
    listed = sorted(seeds)
    if len(listed) == 1:
        return f"seed {listed[0]}"
    if listed == list(range(listed[0], listed[-1] + 1)):
        return f"seeds {listed[0]}..{listed[-1]}"
    shown = ", ".join(map(str, listed[:_MAX_SEEDS_SHOWN]))
    return f"seeds {shown}" if len(listed) <= _MAX_SEEDS_SHOWN else f"seeds {shown}, …"


def estimand_line(estimand: Estimand, cases: int, instances: int) -> str:
    """Return one line that says what the figures are about, and why that is the default."""
    if not cases:
        return f"estimand {estimand}: no case has a figure in both"
    size = plural(cases, "case")
    size += f" ({plural(instances, 'instance')})" if instances != cases else ""
    if estimand == "suite":
        return (
            f"{SUITE_DEFAULT}: exactly {'this' if cases == 1 else 'these'} {size};"
            " --estimand population is about cases like these"
        )
    if cases == 1:
        return (
            f"estimand population: instances like these of one case, clustered by instance ({size})"
        )
    return f"estimand population: cases like these, clustered by case ({size})"


class PairedAgents(NamedTuple):
    """Agents of two runs, paired by name and parameters; and the names in only one."""

    pairs: list[tuple[AgentOutcomes, AgentOutcomes]]
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def pair_agents(first: Sequence[AgentOutcomes], second: Sequence[AgentOutcomes]) -> PairedAgents:
    """Pair agents by name and parameters; two runs of one agent each pair regardless of names."""
    a = {(arm.agent, arm.params): arm for arm in first}
    b = {(arm.agent, arm.params): arm for arm in second}
    # One agent on each side under two names is usually one agent in two versions; the note tells.
    if len(a) == len(b) == 1 and a.keys() != b.keys():
        (old,), (new,) = a.values(), b.values()
        return PairedAgents([(old, new)], notes=(f"{new.name} is compared with {old.name}",))
    return PairedAgents(
        [(a[key], b[key]) for key in sorted(a.keys() & b.keys())],
        tuple(a[key].name for key in sorted(a.keys() - b.keys())),
        tuple(b[key].name for key in sorted(b.keys() - a.keys())),
    )


Estimate = TypeVar("Estimate", Interval, DifferenceTest)


def bias(cases: Iterable[CaseOutcome], metric: str = "pass_rate") -> str | None:
    """Return why no interval or test of a metric of these cases is valid; None where it is."""
    known = tuple(cases)
    # Costs are those of all trials, judged or not.
    undecided = 0 if metric == "cost_usd" else sum(case.undecided for case in known)
    trials = sum(case.trials + case.unjudged for case in known)
    return bias_of(any(case.stopped for case in known), undecided, trials)


def unless_biased(
    figure: Estimate, cases: Iterable[CaseOutcome], metric: str = "pass_rate"
) -> Estimate:
    """Return an interval or test, without its bounds or p-value where none is valid."""
    reason = bias(cases, metric)
    if reason is None:
        return figure
    if isinstance(figure, Interval):
        return figure.without_bounds(reason)
    return replace(figure, p_value=None, reason=reason)
