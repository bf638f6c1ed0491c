"""The plan of a run: a pure function of its cases, agents, axes and options.

Promise: the same spec gives the same trials with the same keys and seeds, on every machine and
whatever the order of cases, agents, axes or values in the file. A suite is planned in the order it
is written in; an experiment, which has axes, in the order of names, so that not even its journal
differs.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

import msgspec

from proctor.agents.base import AgentError
from proctor.agents.replay import Recordings, ReplayAgentConfig
from proctor.errors import ProctorError, did_you_mean
from proctor.files import read_bounded
from proctor.formatting import plural
from proctor.runs.early_stop import CellPlan
from proctor.runs.folder import OUTPUT, RunFolder, earlier_folders
from proctor.runs.run import Run
from proctor.runs.summary import CellSummary, plan_order
from proctor.runs.trial import CellKey, PlannedTrial, TrialStatus, params_key
from proctor.seeds import derive_seed, derive_seeds
from proctor.spec import Case, SourceLocation, SpecError, SpecProblem
from proctor.spec.experiment import Axis, Experiment, NumberRange
from proctor.spec.located import plain
from proctor.spec.suite import DataCases
from proctor.spec.yaml_reader import read
from proctor.trace import Trace
from proctor.trials.options import RunOptions

if TYPE_CHECKING:
    from proctor.trials.prepare import RunContext

MAX_PLANNED = 1_000_000
"""More trials in one run are a mistake in an axis; their journal would be hundreds of megabytes."""

_DRAWS_PER_SAMPLE = 100
"""Draws per sample before giving up: repeated combinations are drawn again."""


class Axes(NamedTuple):
    """What varies besides cases and agents. `seeds` is None for a suite."""

    seeds: tuple[int, ...] | None = None
    params: tuple[dict[str, Any], ...] = ({},)

    def first(self) -> Axes:
        """Return one seed and one combination, for a smoke run."""
        return Axes(None if self.seeds is None else self.seeds[:1], self.params[:1])

    def record(self) -> dict[str, Any]:
        """Return them as the run folder records them."""
        return {
            "seeds": None if self.seeds is None else list(self.seeds),
            "params": [dict(each) for each in self.params],
        }

    @classmethod
    def restored(cls, record: Mapping[str, Any] | None) -> Axes:
        """Return the axes that a run folder records."""
        if not record:
            return cls()
        seeds = record.get("seeds")
        params: list[dict[str, Any]] = record.get("params") or [{}]
        return cls(None if seeds is None else tuple(seeds), tuple(params))


def axes_of(experiment: Experiment, params: Mapping[str, Axis], fixed: Mapping[str, Any]) -> Axes:
    """Return the seeds and every combination of parameters; `fixed` ones are part of each."""
    found = [{**fixed, **each} for each in _combinations(experiment, params)]
    found.sort(key=params_key)
    for one, other in itertools.pairwise(found):
        if params_key(one) == params_key(other):
            raise ProctorError(
                f"the parameters {params_key(one)!r} occur twice",
                where=_where(experiment, "params"),
                hint="values with the same text cannot be distinguished in results",
            )
    return Axes(experiment.seeds, tuple(found))


def _combinations(experiment: Experiment, params: Mapping[str, Axis]) -> list[dict[str, Any]]:
    if not params:
        return [{}]
    axes = dict(sorted(params.items()))
    if any(isinstance(axis, NumberRange) for axis in axes.values()):
        return _drawn(experiment, axes)
    size = math.prod(len(axis) for axis in axes.values() if not isinstance(axis, NumberRange))
    if size > MAX_PLANNED:
        raise ProctorError(
            f"the grid has {size:,} combinations, at most {MAX_PLANNED:,} are planned",
            where=_where(experiment, "params"),
        )
    grid = [
        dict(zip(axes, values, strict=True))
        for values in itertools.product(
            *(axis for axis in axes.values() if not isinstance(axis, NumberRange))
        )
    ]
    if experiment.sample is None:
        return grid
    wanted = experiment.sample.n
    if wanted > len(grid):
        raise ProctorError(
            f"`sample` needs {wanted} combinations, the grid has {len(grid)}",
            where=_where(experiment, "sample"),
            hint="leave `sample` out to run all of them",
        )
    grid.sort(key=params_key)
    return Random(derive_seed(experiment.sample.seed, "grid")).sample(grid, wanted)  # noqa: S311 (repeatable chance)


def _drawn(experiment: Experiment, axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Draw along each axis independently.

    Each axis has its own random stream, so that adding one does not change the others.
    """
    sample = experiment.sample
    assert sample is not None
    found: dict[str, dict[str, Any]] = {}
    for number in range(sample.n * _DRAWS_PER_SAMPLE):
        draw = {
            name: _draw(axis, Random(derive_seed(sample.seed, name, number)))  # noqa: S311 (repeatable chance)
            for name, axis in axes.items()
        }
        found.setdefault(params_key(draw), draw)
        if len(found) == sample.n:
            return list(found.values())
    raise ProctorError(
        f"`sample` needs {sample.n} combinations, only {len(found)} different ones could be drawn",
        where=_where(experiment, "sample"),
    )


def _draw(axis: NumberRange | tuple[Any, ...], random: Random) -> Any:
    if not isinstance(axis, NumberRange):
        return random.choice(sorted(axis, key=lambda value: (str(value), repr(value))))
    if axis.log:
        value = math.exp(random.uniform(math.log(axis.low), math.log(axis.high)))
    elif axis.integer:
        return random.randint(math.ceil(axis.low), math.floor(axis.high))
    else:
        value = random.uniform(axis.low, axis.high)
    value = min(max(value, axis.low), axis.high)
    return round(value) if axis.integer else value


def _where(experiment: Experiment, step: str) -> str:
    return str(experiment.place_of(step) or experiment.name)


class Plan(NamedTuple):
    """Every trial of a run, and how many trials and which threshold each cell has."""

    trials: Sequence[PlannedTrial]
    cells: Mapping[CellKey, CellPlan]

    def record(self, *, rows: bool = False) -> list[dict[str, object]] | dict[str, object]:
        """Return the cells as the run folder records them.

        Those of a large data set are alike, and written once unless all `rows` are needed.
        """
        if isinstance(self.cells, DataCells) and not rows:
            return self.cells.record()
        return [
            {
                "case": key.case,
                "agent": key.agent,
                **({"params": key.params} if key.params else {}),
                "trials": cell.trials,
                "threshold": cell.threshold,
            }
            for key, cell in self.cells.items()
        ]


def breadth_first(trials: Iterable[PlannedTrial]) -> list[PlannedTrial]:
    """Return the first trial of every cell, then the second of every cell, and so on.

    With early stop the next trial of a cell is then decided on while other cells run, so that few
    trials start that the ones before them make needless. In plan order, all workers would be busy
    with one cell. The plan is in memory, which early stop can afford.
    """
    counts: dict[CellKey, int] = defaultdict(int)
    placed: list[PlannedTrial] = []
    for planned in trials:
        cell = planned.cell
        placed.append(msgspec.structs.replace(planned, position=counts[cell]))
        counts[cell] += 1
    placed.sort(key=attrgetter("position"))
    return placed


class DataCells(Mapping[CellKey, CellPlan]):
    """The cells of a large data set, which all have the same plan."""

    def __init__(self, cases: DataCases, agents: Sequence[str], plan: CellPlan) -> None:
        self._cases, self._agents, self._plan = cases, agents, plan

    def __getitem__(self, key: CellKey) -> CellPlan:
        if key.params or key.agent not in self._agents or self._cases.index_of(key.case) is None:
            raise KeyError(key)
        return self._plan

    def __iter__(self) -> Iterator[CellKey]:
        return (CellKey(case, agent, "") for case in self._cases.ids() for agent in self._agents)

    def __len__(self) -> int:
        return len(self._cases) * len(self._agents)

    def record(self) -> dict[str, object]:
        """Return them as the run folder records them, beside its rows."""
        plan = {"trials": self._plan.trials, "threshold": self._plan.threshold}
        return {"cases": len(self._cases), "agents": list(self._agents), **plan}


class PlannedTrials(Sequence[PlannedTrial]):  # noqa: PLW1641 (like a list, it has no hash)
    """The trials of a plan, generated on each iteration: a plan of a million takes no memory."""

    def __init__(
        self,
        cases: Sequence[tuple[str, int]] | DataCases,
        agents: Sequence[str],
        axes: Axes,
        base_seed: int,
        count: int = 0,
    ) -> None:
        self._cases = cases
        """Case ids with their repeats for each seed of the experiment."""
        self._count = count
        """The repeats of each case of a large data set."""
        self._agents = agents
        self._params = [dict(params) for params in axes.params]
        # A suite has no seeds as an axis: its trials derive theirs from the seed of the run.
        self._seeds = [(None, base_seed)] if axes.seeds is None else [(s, s) for s in axes.seeds]

    def __len__(self) -> int:
        if isinstance(self._cases, DataCases):
            repeats = self._count * len(self._cases)
        else:
            repeats = sum(count for _, count in self._cases)
        return repeats * len(self._agents) * len(self._params) * len(self._seeds)

    def __iter__(self) -> Iterator[PlannedTrial]:
        shared = len(self._agents) * len(self._params) > 1
        pairs = self._cases
        if isinstance(pairs, DataCases):
            pairs = zip(pairs.ids(), itertools.repeat(self._count))
        for case, count in pairs:
            # Agents and parameters are compared on the same seeds, so these are derived once.
            # With one agent the first trial does not wait for the seed of the last.
            seeds = [(axis, derive_seeds(count, base, case)) for axis, base in self._seeds]
            kept = [(axis, array("q", own) if shared else own) for axis, own in seeds]
            for agent in self._agents:
                for params in self._params:
                    for axis_seed, own in kept:
                        for index, seed in enumerate(own):
                            yield PlannedTrial(
                                case=case,
                                agent=agent,
                                index=index,
                                seed=seed,
                                params=params,
                                axis_seed=axis_seed,
                            )

    @overload
    def __getitem__(self, index: int) -> PlannedTrial: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PlannedTrial]: ...
    def __getitem__(self, index: int | slice) -> PlannedTrial | Sequence[PlannedTrial]:
        places = range(len(self))[index]
        if isinstance(places, int):
            return next(islice(self, places, None))
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(cast("Sequence[object]", other))


def plan_trials(
    cases: Sequence[Case], agents: Iterable[str], options: RunOptions, axes: Axes | None = None
) -> Plan:
    """Plan cases × agents × parameters × seeds × repeats.

    A trial's seed comes from the seed of the experiment, the case and the repeat alone, so agents
    and parameters are compared on the same draws.
    """
    axes = axes or Axes()
    names, chosen = list(agents), cases
    data = cases if isinstance(cases, DataCases) and axes == Axes() else None
    if axes.seeds is not None:
        names.sort()
        chosen = sorted(cases, key=lambda case: case.id)
    repeats: list[tuple[str, int]] = []
    for case in chosen if data is None else chosen[:1]:
        own = case.trials if "trials" in case.model_fields_set else None
        count = options.trials or own or options.default_trials or case.trials
        repeats.append((case.id, count + options.more_trials))
    each = repeats[0][1] if repeats else 0
    trials = PlannedTrials(repeats if data is None else data, names, axes, options.seed, each)
    if len(trials) > MAX_PLANNED:
        raise ProctorError(
            f"that would be {len(trials):,} trials, at most {MAX_PLANNED:,} are planned",
            hint="take fewer seeds, parameters or cases, or split the experiment",
        )
    if data is not None:
        return Plan(trials, DataCells(data, names, CellPlan(each, data[0].threshold)))
    combinations = [params_key(params) for params in axes.params]
    cells: dict[CellKey, CellPlan] = {}
    for case, (_, count) in zip(chosen, repeats, strict=True):
        cell = CellPlan(count * len(axes.seeds or (0,)), case.threshold)
        for agent in names:
            cells.update({CellKey(case.id, agent, key): cell for key in combinations})
    return Plan(trials, cells)


# -- estimated time and cost -----------------------------------------------------------------------


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the planned trials; None without an earlier run.

    `timed` and `priced` are the numbers of planned trials that the two figures cover, `uncalled`
    those of cells without any recorded model call, `kept` is how many of the `scenarios` to be
    built are in the cache.
    """

    trials: int
    seconds: float | None
    timed: int
    cost_usd: float | None
    priced: int
    runs: int
    scenarios: int = 0
    kept: int = 0
    uncalled: int = 0


class _Results(msgspec.Struct):
    cells: list[CellSummary]


def estimate(context: RunContext, root: Path, name: str) -> Estimate:
    """Estimate each cell from the newest earlier run under that name that has it."""
    wanted = dict(context.plan.cells)
    found: dict[CellKey, CellSummary] = {}
    runs = 0
    for cells in earlier_results(root, name, context.output):
        runs += 1
        for cell in cells:
            if cell.cell in wanted and cell.trials:
                found.setdefault(cell.cell, cell)
        if len(found) == len(wanted):
            break
    spent = [(found[key], plan.trials) for key, plan in wanted.items() if key in found]
    timed = [(c.latency_p50_ms, n) for c, n in spent if c.latency_p50_ms is not None]
    priced = [(c.cost_mean_usd, n) for c, n in spent if c.cost_mean_usd is not None]
    at_once = context.options.at_once(len(context.plan.trials))
    builds: list[bool] = []
    if (design := context.design) is not None:
        for scenario in (
            design.scenarios[case] for case in context.cases if case in design.scenarios
        ):
            for seed in design.axes.seeds or (0,):
                builds.extend(
                    scenario.template.is_cached(seed, params) for params in design.axes.params
                )
    return Estimate(
        trials=len(context.plan.trials),
        seconds=sum(ms * n for ms, n in timed) / 1000 / at_once if timed else None,
        timed=sum(n for _, n in timed),
        cost_usd=sum(usd * n for usd, n in priced) if priced else None,
        priced=sum(n for _, n in priced),
        runs=runs,
        scenarios=len(builds),
        kept=sum(builds),
        uncalled=sum(
            n for c, n in spent if c.cost_usd is None and not (c.unpriced_calls or c.tokens)
        ),
    )


MAX_RESULTS = 256 << 20
"""Maximum size of a results.json: some 100,000 cells."""


def earlier_results(root: Path, name: str, output: str = OUTPUT) -> Iterator[list[CellSummary]]:
    """Yield the cells of finished runs of an experiment, newest first; skip unreadable ones."""
    if not name:
        return
    decoder = msgspec.json.Decoder(_Results)
    for path in earlier_folders(root, output, name):
        try:
            content = read_bounded(RunFolder(path).results_path, MAX_RESULTS)
            yield decoder.decode(content).cells
        except (OSError, ProctorError, msgspec.MsgspecError, RecursionError):
            continue


# -- recorded traces in place of an agent ---------------------------------------------------------

Chosen = Mapping[str, str | list[str]]
"""Case id → its traces: trace ids or files."""


def recorded(traces: Sequence[str], chosen: Chosen | None = None) -> ReplayAgentConfig:
    """Return an agent that replays the traces of files, folders, globs or run folders.

    A run folder also holds traces of superseded attempts, so each of its trials is replayed once:
    the attempt that counts. The folder `traces` of a run is the run. Trials that ended without an
    answer are not judged by their traces: an error of the agent stays one, and so does one of the
    infrastructure. Trials that were cancelled or never ran are `missing`, not replayed.
    """
    config = ReplayAgentConfig(traces=list(traces), map=dict(chosen or {}))
    runs: dict[str, Path] = {}
    for name in traces:
        path = Path(name)
        parent = RunFolder(path.resolve().parent)
        folder = parent.path if parent.traces_path == path.resolve() else path
        if RunFolder(folder).spec_path.is_file():
            runs[name] = folder
    if not runs:
        return config
    others = [name for name in traces if name not in runs]
    recordings = Recordings(config.map)
    if others:
        recordings = ReplayAgentConfig(traces=others, map=config.map).recordings
    for path in dict.fromkeys(runs.values()):
        run = Run(path)
        if run.damaged:
            # Which trials these lines hold is unknown: what is left may well be only what passed.
            raise ProctorError(
                f"{plural(run.damaged, 'part')} of the run cannot be read: {run.problems[0]}",
                where=str(path),
                hint=f"`proctor run --resume {path}` runs the missing trials again",
            )
        for cell in run.cells:
            if left := cell.planned - cell.judged - cell.unjudged:
                recordings.missing.setdefault(cell.case, {})[str(cell.cell)] = left
        for trial in sorted(run.trials, key=lambda trial: (trial.case, *plan_order(trial))):
            if trial.status == TrialStatus.CANCELLED:
                continue
            trace, error = run.trace(trial), None
            if trace is None or (trial.error is not None and trial.error.place != "check"):
                why = "its trace is missing" if trial.error is None else trial.error.message
                error = AgentError(f"in the recorded run: {why}", category=trial.category)
            trace = trace or Trace(trace_id=trial.trace_id or trial.key)
            recordings.add(trace, str(run.path), case=trial.case, error=error)
    return config.with_recordings(recordings)


def plan_recorded(cases: Sequence[Case], agent: str, recordings: Recordings, plan: Plan) -> Plan:
    """Return a plan with one trial for each trace of a case.

    A case without any gets one, to report that, unless its trials never ended in the recorded run:
    these are part of the plan of its cell, and are missing here as they were there.
    """
    trials = [
        PlannedTrial(case=case.id, agent=agent, index=index, seed=derive_seed(0, case.id, index))
        for case in cases
        for index in range(
            len(recordings.of(case.id, case.input)) or int(not recordings.missing_of(case.id))
        )
    ]
    ended = Counter(trial.case for trial in trials)
    cells = {
        cell: each._replace(trials=ended[cell.case] + recordings.missing_of(cell.case))
        for cell, each in plan.cells.items()
    }
    return Plan(trials, cells)


def strangers(cases: Sequence[Case], recordings: Recordings) -> int:
    """Return how many traces belong to none of these cases."""
    ours = {id(trace) for case in cases for trace in recordings.of(case.id, case.input)}
    return sum(id(trace) not in ours for trace in recordings.traces)


def read_map(path: Path, cases: Sequence[Case]) -> dict[str, str | list[str]]:
    """Read a YAML map (`case-id: trace-id-or-file`, or a list); raise `SpecError` at its place."""
    document = read(path)
    problems = document.problems
    tree = document.tree
    if tree is not None and not isinstance(tree.value, dict):
        problems.append(SpecProblem(tree.place, "a map is written `case-id: trace-id-or-file`"))
    members = tree.value if tree is not None and isinstance(tree.value, dict) else {}
    known = [case.id for case in cases]
    for name, member in members.items():
        if name not in known:
            at = tree.keys.get(name, member.place) if tree is not None else member.place
            problems.append(
                SpecProblem(at, f"there is no case {name!r}", did_you_mean(name, known))
            )
        value = plain(member)
        traces = cast("list[Any]", value) if isinstance(value, list) else [value]
        if not traces or not all(isinstance(trace, str) and trace for trace in traces):
            message = "write a trace id, the name of a file, or a list of them"
            problems.append(SpecProblem(member.place, message))
    if tree is None or problems:
        raise SpecError(problems or [SpecProblem(SourceLocation(str(path)), "the map is empty")])
    return plain(tree)
