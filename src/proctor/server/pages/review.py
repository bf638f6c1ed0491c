"""Pages that compare runs and trials, label trials, and turn a failing trial into a case.

Only these pages write: labels into the run folder, cases into suite files below the folder that the
server runs in. Both need a request of our own page (`same_origin`) and a token that may write, and
every page says when it cannot.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from proctor.errors import ProctorError
from proctor.formatting import p_text, plural
from proctor.report import figures
from proctor.results.metadata import as_mapping
from proctor.results.outcomes import observe, trial_agreement
from proctor.runs import audit
from proctor.runs.annotations import (
    HumanLabel,
    LabelVerdict,
    SamplingRule,
    in_random_order,
    label,
    labels_of,
)
from proctor.runs.folder import address_of, all_runs, run_name
from proctor.runs.provenance import who
from proctor.server.auth import CHANGE, READS_ONLY, name_of, posted_form
from proctor.server.pages._conversation import turns_of
from proctor.server.pages._span_view import aligned
from proctor.server.pages.runs import CACHED_RUNS, TURNS_SHOWN, Runs, address_name, trial_at
from proctor.server.pages.templating import Missing, page, sent_on, suite_path

if TYPE_CHECKING:
    from starlette.requests import Request

    from proctor.results.compare import ArmComparison, CaseDifference, Comparison
    from proctor.results.gate import GateResult
    from proctor.runs.run import Run
    from proctor.runs.trial import Trial
    from proctor.trace import Trace

QUEUES: Mapping[str, str] = {
    "random": "random: a fair sample; only this one corrects pass rates",
    "uncertain": "judge uncertain: split votes, then scores next to the threshold",
    "disagreement": "disagreement: raters differ, or a label differs from the judge",
    "cluster": "new cluster: one trial of each kind of failure without a label",
}
"""The sampling rules of the queue, and what each brings up first."""

# Runs offered for comparison, the latest first.
MAX_RUNS = 200

# Runs compared at once, pair by pair: more pairs cannot be read.
MAX_COMPARED = 5

# Trials of a case whose traces are read for what failing ones do differently.
MAX_CONTRAST = 60

Direction = Literal["regressed", "improved", "unchanged", "not comparable"]


class ComparedCase(NamedTuple):
    """One case of two runs: what happened to it, and the evidence."""

    case: str
    direction: Direction
    found: CaseDifference | None
    why: str
    link: str | None


class ReviewPages(Runs):
    """The pages of one results folder, with those that compare, label and promote.

    Cases are promoted to suite files below `suites`, by default the folder the server runs in.
    """

    def __init__(self, root: Path, suites: Path | None = None) -> None:
        super().__init__(root)
        self._suites = suites
        # Tests of scores by permutation take longer than the rest of a page.
        self._comparison = lru_cache(maxsize=CACHED_RUNS)(compared_runs)

    def routes(self) -> list[Route]:
        """Return the routes; those of runs come last, because theirs match every path."""
        return [
            Route("/compare", self.compared),
            Route("/runs/{name:path}/compare", self.compare),
            Route("/runs/{name:path}/review", self.review),
            Route("/runs/{name:path}/review", self.labelled, methods=["POST"]),
            Route("/runs/{name:path}/review/figures", self.review_figures),
            Route("/runs/{name:path}/promote/{trial:str}", self.promote),
            Route("/runs/{name:path}/promote/{trial:str}", self.promoted, methods=["POST"]),
            *super().routes(),
        ]

    # -- review ------------------------------------------------------------------------------------

    def review(self, request: Request) -> Response:
        """Render the next trial of the queue with the form of its label."""
        run = self._run(request)
        asked = request.query_params
        rule = asked.get("rule", "random")
        rule = rule if rule in QUEUES else "random"
        rater = asked.get("rater", "").strip()[:200] or name_of(request) or who()
        blind = "blind" in asked
        agent = asked.get("agent", "")
        labels = labels_of(run.path)
        every = _judged(run)
        judged = [trial for trial in every if agent in ("", trial.agent)]
        mine = {each.trial: each for each in labels if each.rater == rater}
        queue = [trial for trial in queue_of(rule, run, judged, labels) if trial.name not in mine]
        wanted = asked.get("trial")
        trial = next((t for t in judged if address_name(t) == wanted), None) or next(
            iter(queue), None
        )
        settings = {
            "rule": rule,
            "rater": rater,
            "agent": agent,
            **({"blind": "1"} if blind else {}),
        }
        unreadable: list[str] = []
        trace = None if trial is None else run.readable_trace(trial, unreadable)
        turns = [] if trace is None or trial is None else turns_of(trace, trial.answer)
        if blind:  # the model, and what it costs, may say which agent it was
            turns = [replace(turn, model=None, author="", cost_usd=None) for turn in turns]
        before = list(mine)[-1] if mine else None
        by_name = {each.name: each for each in judged}
        base = self.link(run.path)
        return page(
            "review.html",
            request,
            name=self.name(run.path),
            base=base,
            here_query=urlencode(settings),
            rules=QUEUES,
            settings=settings,
            agents=sorted({t.agent for t in every}),
            trial=trial,
            trial_link=None if trial is None else f"{base}/trial/{address_name(trial)}",
            address=None if trial is None else address_name(trial),
            turns=turns[:TURNS_SHOWN],
            turn_count=len(turns),
            unreadable=unreadable,
            own=None if trial is None else mine.get(trial.name),
            others=[
                e
                for e in labels
                if trial is not None and e.trial == trial.name and e.rater != rater
            ],
            blind=blind,
            left=len(queue),
            done=len(mine),
            of=len(judged),
            back=address_name(by_name[before]) if before in by_name else None,
            categories=sorted({each.category for each in labels if each.category}),
            cannot_write=self._cannot_write(request, run.path),
            figures=review_figures(run, labels, every),
        )

    def review_figures(self, request: Request) -> Response:
        """Return agreement and corrected rates, for a page that shows them live."""
        run = self._run(request)
        return JSONResponse(review_figures(run, labels_of(run.path), _judged(run)))

    async def labelled(self, request: Request) -> Response:
        """Store a label and go on to the next trial."""
        return await self._written(request, self._label, self._folder(request.path_params["name"]))

    def _label(self, request: Request, form: Mapping[str, str]) -> Response:
        run = self._run(request)
        found = trial_at(run, form.get("trial"))
        if form.get("verdict") not in get_args(LabelVerdict) or form.get("rule") not in QUEUES:
            return PlainTextResponse(
                "a label is pass, fail or skip, under a rule of the queue", 400
            )
        rater = form.get("rater", "").strip()
        # A trial that the rater went back to, or opened from elsewhere, is not the queue's choice.
        chosen = cast("SamplingRule", "chosen" if form.get("opened") else form["rule"])
        own = [e for e in labels_of(run.path) if (e.trial, e.rater) == (found.name, rater)]
        given = label(
            run.path,
            found.name,
            cast("LabelVerdict", form["verdict"]),
            rater=rater,
            category=form.get("category", ""),
            comment=form.get("comment", ""),
            rule=own[0].rule if own else chosen,  # a label that replaces another keeps its rule
            blind="blind" in form,
        )
        request.scope[CHANGE] = ("label", f"{self.name(run.path)}/{found.name}: {given.verdict}")
        audit.record(
            "label",
            self._root,
            run=run.path,
            run_id=run.run_id,
            outcome=f"{given.trial}: {given.verdict} by {given.rater}",
        )
        keys = ("rule", "rater", "agent", "blind")
        after = urlencode({key: form[key] for key in keys if form.get(key)})
        return sent_on(request, f"{self.link(run.path)}/review?{after}")

    # -- promote -----------------------------------------------------------------------------------

    def promote(self, request: Request) -> Response:
        """Render the case that a trial makes, before it is written."""
        return self._promote(request, {})

    async def promoted(self, request: Request) -> Response:
        """Write the case into a suite file."""
        return await self._written(request, self._promote, Path())

    def _promote(self, request: Request, form: Mapping[str, str]) -> Response:
        from proctor.trials.regression_case import as_suite, case_from_trial, write_case

        run, trial = self._trial(request)
        made, problem, written = None, None, None
        target = form.get("file", "").strip() or "regression.yaml"
        try:
            made = case_from_trial(run, trial, name=form.get("id", "").strip() or None)
            if form.get("write"):
                write_case(made, suite_path(target, self._suites or Path.cwd()))
                written = target
                request.scope[CHANGE] = (
                    "promote",
                    f"{self.name(run.path)}/{trial.name}: {target}",
                )
                audit.record("case", self._root, run=run.path, run_id=run.run_id, outcome=target)
        except ProctorError as error:
            problem = error
        base = self.link(run.path)
        return page(
            "promote.html",
            request,
            status=409 if problem and form.get("write") else 200,
            name=self.name(run.path),
            run_link=base,
            trial=trial,
            trial_link=f"{base}/trial/{address_name(trial)}",
            here_link=f"{base}/promote/{address_name(trial)}",
            made=made,
            yaml=None if made is None else as_suite(made),
            problem=problem,
            target=target,
            written=written,
            cannot_write=self._cannot_write(request, Path()),
        )

    # -- compare -----------------------------------------------------------------------------------

    def compared(self, request: Request) -> Response:
        """Render runs case by case, pair by pair, or the form that selects two."""
        asked = request.query_params
        every = [self.name(path) for path in all_runs(self._root)]
        names = asked.getlist("run")[:MAX_COMPARED]
        if "swap" not in asked:
            # The older first, in whatever order a list of runs sends them; empty ones stay.
            names.sort(key=lambda name: every.index(name) if name in every else -1)
        problem: ProctorError | None = None
        comparison = gate = None
        pairs: list[tuple[ArmComparison, str, list[ComparedCase], Counter[str]]] = []
        if len(names) > 1 and all(names):
            try:
                runs = [self._run_named(name) for name in names]
                comparison, gate = self._comparison(*runs)
                for pair in comparison.pairs:
                    links = self._pair_links(pair, *runs) if len(runs) == 2 else {}
                    rows = compared_cases(pair, links)
                    counts = Counter(row.direction for row in rows)
                    pairs.append((pair, pair_title(pair, runs), rows, counts))
                # What got worse is why people compare.
                pairs.sort(key=lambda each: (-each[3]["regressed"], -each[3]["improved"]))
            except Missing as error:
                problem = ProctorError(f"no such run: {error.name}")
            except ProctorError as error:
                problem = error
        return page(
            "compare_runs.html",
            request,
            choices=every[::-1][:MAX_RUNS],
            names=names,
            swap=urlencode([*(("run", name) for name in reversed(names)), ("swap", "1")]),
            pairs=pairs,
            comparison=comparison,
            gate=gate,
            problem=problem,
            figures=figures,
            p_text=p_text,
        )

    def _pair_links(self, pair: ArmComparison, first: Run, second: Run) -> dict[str, str]:
        """Return, by case, the address of a passing and a failing trial, or of any two."""
        examples: list[dict[str, Trial]] = []
        for run, arm, passed in ((first, pair.first, True), (second, pair.second, False)):
            found: dict[str, Trial] = {}
            name = agent_of(arm, run)
            for trial in run.trials():
                ours = trial.trace is not None and name in (trial.agent, trial.cell.arm)
                if ours and (trial.case not in found or trial.passed is passed):
                    found[trial.case] = trial
            examples.append(found)
        one, other = examples
        return {
            case: f"{self.link(first.path)}/compare?"
            + urlencode(
                {
                    "a": address_name(one[case]),
                    "b": address_name(other[case]),
                    "with": self.name(second.path),
                }
            )
            for case in one.keys() & other.keys()
        }

    def compare(self, request: Request) -> Response:
        """Render two trials side by side, of one run or (`with`) of two."""
        asked = request.query_params
        run = self._run(request)
        other = self._run_named(asked["with"]) if asked.get("with") else run
        sides: list[tuple[str, Trial, str]] = []
        traces: list[Trace] = []
        for of, key in ((run, "a"), (other, "b")):
            trial = trial_at(of, asked.get(key))
            if (trace := of.readable_trace(trial, [])) is None:
                raise Missing("pair of trials with traces")
            sides.append((self.name(of.path), trial, f"{self.link(of.path)}/trial/{asked[key]}"))
            traces.append(trace)
        steps = aligned(*traces)
        return page(
            "compare.html",
            request,
            name=self.name(run.path),
            run_link=self.link(run.path),
            sides=sides,
            several=run.path != other.path,
            steps=steps,
            same=sum(line.same and not line.differs for line in steps),
            differ=sum(line.differs for line in steps),
            alone=sum(not line.same for line in steps),
            contrast=contrast_lines(
                {run.path: run, other.path: other}.values(), *(trial for _, trial, _ in sides)
            ),
        )

    # -- shared ------------------------------------------------------------------------------------

    def _cannot_write(self, request: Request, folder: Path) -> str | None:
        """Return why nothing can be written here; None where it can."""
        if READS_ONLY in request.scope:
            return "You may read and not write."
        if address := address_of(folder):
            return f"This is a copy of the run at {address}: label the original."
        if not os.access(folder, os.W_OK):
            return "The server may not write to this folder."
        return None

    async def _written(self, request: Request, write: Any, folder: Path) -> Response:
        """Call `write` with the form of a request that may write to a folder; answer the others."""
        form = await posted_form(request)
        if not isinstance(form, dict):
            return form
        if why := self._cannot_write(request, folder):
            return PlainTextResponse(why, 403)
        try:
            return await run_in_threadpool(write, request, form)
        except ProctorError as error:
            return PlainTextResponse(error.message, 400)


def _judged(run: Run) -> list[Trial]:
    """Return the trials that a rate counts."""
    seen = observe(run.trials(), run.spec)
    return [one.trial for one in seen if one.counted and one.trial.status.judged]


# -- the queue -------------------------------------------------------------------------------------


def queue_of(
    rule: str, run: Run, judged: Sequence[Trial], labels: Sequence[HumanLabel]
) -> list[Trial]:
    """Return the trials to label, the next one first; ties are in the random order."""
    order = in_random_order(judged, run.run_id)
    given: dict[str, list[str]] = defaultdict(list)
    for each in labels:
        if each.verdict != "skip":
            given[each.trial].append(each.verdict)
    if rule == "uncertain":
        needed = {(cell.case, cell.agent): cell.threshold for cell in run.cells}
        return sorted(order, key=lambda trial: _certainty(trial, needed))
    if rule == "disagreement":

        def disputed(trial: Trial) -> bool:
            return len({*given[trial.name], "pass" if trial.passed else "fail"}) > 1

        return [trial for trial in order if given[trial.name] and disputed(trial)]
    if rule == "cluster":
        groups: dict[str, list[Trial]] = defaultdict(list)
        for trial in order:
            if not trial.passed:
                groups[_kind_of_failure(trial)].append(trial)
        new = [group for group in groups.values() if not any(given[t.name] for t in group)]
        return [group[0] for group in sorted(new, key=len, reverse=True)]
    return order


def _certainty(trial: Trial, needed: Mapping[tuple[str, str], float]) -> tuple[bool, float]:
    """Return how sure a judge was: split votes first, then the distance to the threshold."""
    for check in trial.checks:
        votes = as_mapping(check.actual).get("votes_passed")
        if isinstance(votes, list) and len({bool(v) for v in cast("list[Any]", votes)}) > 1:
            return (False, 0.0)
    threshold = needed.get((trial.case, trial.agent), 0.8)
    return (True, 2.0 if trial.score is None else abs(trial.score - threshold))


def _kind_of_failure(trial: Trial) -> str:
    """Return what failed, without what varies between trials."""
    from proctor.diagnose.clusters import normalised

    failed = [f"{check.id}: {normalised(check.reason)}" for check in trial.checks if check.failed]
    return "; ".join(failed) or trial.category or trial.status.value


def review_figures(
    run: Run, labels: Iterable[HumanLabel], judged: Iterable[Trial]
) -> dict[str, list[str]]:
    """Return the agreement of raters and judge, and the corrected rates, as lines."""
    found = trial_agreement(labels, {trial.name: trial.passed for trial in judged})
    raters = [f"{rater}: {plural(count, 'label')}" for rater, count in found.raters.items()]
    return {
        "agreement": [*raters, *figures.agreement_lines(found)],
        "rates": list(figures.corrected_notes(run)),
    }


# -- comparison ------------------------------------------------------------------------------------


def compared_runs(*runs: Run) -> tuple[Comparison, GateResult | None]:
    """Return the comparison of runs, and of two the gate's verdict on the second."""
    from proctor.results.compare import compare_runs
    from proctor.results.gate import judge_runs

    return compare_runs(*runs), judge_runs(runs[1], runs[0]) if len(runs) == 2 else None


def agent_of(arm: str, run: Run) -> str:
    """Return the agent of an arm: arms of one name are labelled `agent @ run`."""
    name = arm.removesuffix(" (first)").removesuffix(" (second)")
    return name.removesuffix(f" @ {run_name(run.path)}")


def pair_title(pair: ArmComparison, runs: Sequence[Run]) -> str:
    """Return the heading of a pair: its agent once, and its runs where the page names more."""
    for first in runs:
        for second in runs:
            agent = agent_of(pair.second, second)
            if first is second or agent != agent_of(pair.first, first):
                continue
            if pair.first == pair.second or len(runs) == 2:
                return agent
            return f"{agent}: {run_name(second.path)} compared with {run_name(first.path)}"
    return f"{pair.second} compared with {pair.first}"


def compared_cases(pair: ArmComparison, links: Mapping[str, str]) -> list[ComparedCase]:
    """Return the cases of two arms by what happened to them: regressed first."""
    rows: list[ComparedCase] = []
    for found in pair.cases:
        change = found.difference.value or 0.0
        direction: Direction = "unchanged"
        if found.notable and change:
            direction = "improved" if change > 0 else "regressed"
        why = "" if direction != "unchanged" or not change else "may be noise"
        rows.append(ComparedCase(found.case, direction, found, why, links.get(found.case)))
    rows += [
        ComparedCase(case, "not comparable", None, why, None) for case, why in pair.left_out.items()
    ]
    order = get_args(Direction)
    return sorted(rows, key=lambda row: order.index(row.direction))


def contrast_lines(runs: Iterable[Run], *sides: Trial) -> list[str]:
    """Return what failing trials of these cells do and passing ones do not, the clearest first."""
    from proctor.diagnose.evidence import Trajectories

    found, read, case = Trajectories(), 0, sides[0].case
    cells = {side.cell for side in sides}
    for run in runs:
        for trial in run.trials():
            if trial.cell not in cells or not trial.status.judged or read >= MAX_CONTRAST:
                continue
            if (trace := run.readable_trace(trial, [])) is not None:
                # One group: the question is what passing trials do, whichever agent or run.
                found.add(case, "", trace, passed=trial.passed)
                read += 1
    lines = sorted(found.contrast(case, "").divergences(), key=lambda each: -abs(each.difference))
    return [str(each) for each in lines if each.difference > 0][:5]
