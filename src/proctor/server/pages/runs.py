"""Pages of one run: its summary, a cell, all trials, a trial with its trace.

A run is addressed by its path below the results folder; a path outside it, or to something that is
not a run, is not found. Folders are read again when they have changed.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from proctor.errors import ProctorError
from proctor.report.facts import ReportFacts, tagged_baseline
from proctor.report.html.trial_data import harm_first
from proctor.results.metadata import as_mapping
from proctor.results.outcomes import case_properties
from proctor.runs import segments
from proctor.runs.heartbeat import OVER, Life, look_at
from proctor.runs.plan_order import row_order
from proctor.runs.run import Run
from proctor.runs.summary import CellSummary, Verdict
from proctor.runs.trial import CellKey, TraceRef, Trial, TrialStatus
from proctor.sanitize import json_bytes, json_value, valid_unicode
from proctor.server.pages._conversation import (
    TURNS_SHOWN,
    ShownTurn,
    as_curl,
    as_yaml,
    diff_lines,
    turn_links,
    turns_of,
)
from proctor.server.pages._span_view import detail, outline, shown_texts
from proctor.server.pages.run_lists import FolderState, ResultsPages, cell_query, state_of
from proctor.server.pages.templating import Missing, Query, number_in, page
from proctor.server.pages.traces import span_of
from proctor.trace import SpanKind

if TYPE_CHECKING:
    from starlette.requests import Request

    from proctor.diagnose.clusters import SharedCause
    from proctor.trace import Trace

CACHED_RUNS = 4
# Traces kept in memory, so that viewing one span after another does not read the trace again.
CACHED_TRACES = 8
# Failing trials that are diagnosed for the clusters of a run: each takes milliseconds.
MAX_DIAGNOSED = 150
# Cases in the table of a run.
MAX_CASES = 400
# Trials on one page of the list of all.
TRIALS_SHOWN = 100
# Trials listed of one cell.
MAX_TRIALS = 500


class Runs(ResultsPages):
    """The pages of one results folder."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)

        @lru_cache(maxsize=CACHED_RUNS)
        def read(path: Path, _state: FolderState) -> Run:
            return Run(path)

        @lru_cache(maxsize=CACHED_TRACES)
        def read_trace(run: Run, place: TraceRef) -> Trace:
            return segments.read_trace(run.folder.traces_path, place)

        @lru_cache(maxsize=CACHED_TRACES)
        def read_turns(run: Run, place: TraceRef, answer: str | None) -> list[ShownTurn]:
            return turns_of(read_trace(run, place), answer)

        self._read = read
        self._read_trace = read_trace
        self._read_turns = read_turns
        self._read_facts = lru_cache(maxsize=CACHED_RUNS)(ReportFacts)
        self._causes = lru_cache(maxsize=1)(shared_causes)
        # The diagnosis of thousands of spans takes longer than the rest of a page.
        self._outline = lru_cache(maxsize=CACHED_TRACES)(self._outline_of)

    def routes(self) -> list[Route]:
        """Return the routes; Starlette runs synchronous handlers in threads."""
        return [
            Route("/runs/{name:path}/progress", self.progress),
            Route("/runs/{name:path}/cell", self.cell),
            Route("/runs/{name:path}/trials", self.trials),
            Route("/runs/{name:path}/clusters", self.clusters),
            Route("/runs/{name:path}/trial/{trial:str}", self.trial),
            Route("/runs/{name:path}/trial/{trial:str}/outline", self.outlined),
            Route("/runs/{name:path}/trial/{trial:str}/copy/{form:str}", self.copied),
            Route("/runs/{name:path}/trial/{trial:str}/spans/{span_id:str}", self.span),
            Route("/runs/{name:path}", self.one),
        ]

    # -- pages ----------------------------------------------------------------------------------

    def one(self, request: Request) -> Response:
        """Render one run: verdict, change, agents, failures, a table of cases and agents."""
        run = self._run(request)
        baseline = tagged_baseline(run)
        if baseline is not None:
            baseline = self._read(baseline.path, state_of(baseline.path))
        facts = self._read_facts(run, baseline=baseline)
        # The trials that the page links to.
        examples = {sample.trial for failure in facts.failures for sample in failure.samples[:1]}
        examples |= {error.trial for error in facts.errors}
        links: dict[tuple[str, str], str] = {}
        for cell in facts.cells:
            # The gate takes the parameters of a scenario together, so an arm may be an agent.
            for name in (cell.cell.arm, cell.agent):
                links.setdefault((name, cell.case), cell_query(cell.cell))
        suite = self.suite(run.path)
        sign = look_at(run.path)
        return page(
            "run.html",
            request,
            facts=facts,
            base=self.link(run.path),
            name=self.name(run.path),
            suite=suite,
            history=f"/history/{quote(suite)}",
            life=None if sign.life in OVER or facts.totals.trials >= facts.planned else sign.life,
            since=None if sign.life == Life.ALIVE else facts.since,
            baseline_name=None if baseline is None else self.name(baseline.path),
            baseline_link=None if baseline is None else self.link(baseline.path),
            board=facts.board,
            matrix=_matrix(facts),
            cell_links=links,
            failing=facts.totals.failed + facts.totals.hard_fail,
            failures=facts.failures[:20],
            errors=facts.errors[:20],
            addresses={t.name: address_name(t) for t in run.trials() if t.name in examples},
            totals=facts.totals,
        )

    def clusters(self, request: Request) -> Response:
        """Render the causes that failing trials share, as a part of the run's page."""
        run = self._run(request)
        causes, looked, failing = self._causes(run)
        named = {name for each in causes for name in each.where[:3]}
        return page(
            "clusters_part.html",
            request,
            causes=causes,
            looked=looked,
            failing=failing,
            base=self.link(run.path),
            addresses={t.name: address_name(t) for t in run.trials() if t.name in named},
        )

    def trials(self, request: Request) -> Response:
        """Render all trials of a run, with filters."""
        run = self._run(request)
        query = Query(request.query_params)
        every = sorted(run.trials(), key=row_order)
        found = [trial for trial in every if _wanted(trial, query)]
        by: dict[str, Callable[[Trial], Any]] = {
            "status": lambda trial: (trial.passed, trial.status),
            "score": lambda trial: (trial.score is None, trial.score or 0.0),
            "slowest": lambda trial: -(trial.latency_ms or trial.duration_ms),
            "costliest": lambda trial: -(trial.cost_usd or 0.0),
        }
        sort = query["sort"] if query["sort"] in by else "case"
        if sort in by:
            found.sort(key=by[sort])
        base = f"{self.link(run.path)}/trials"
        keys = ("text", "status", "agent", "check", "sort")
        asked = {key: query[key] for key in keys if query[key]}
        first = number_in(query["offset"], 0, max(0, len(found) - 1)) // TRIALS_SHOWN * TRIALS_SHOWN

        def link(**changed: object) -> str:
            return f"{base}?" + urlencode({**asked, **changed})

        return page(
            "trials.html",
            request,
            name=self.name(run.path),
            base=self.link(run.path),
            query=Query({**asked, "sort": sort}),
            orders={each: link(sort=each) for each in ("case", *by)},
            statuses=[status.value for status in TrialStatus],
            agents=sorted({trial.cell.arm for trial in every}),
            checks=sorted({c.id for trial in every for c in trial.checks if c.failed}),
            rows=[(address_name(t), t) for t in found[first : first + TRIALS_SHOWN]],
            first=first + 1,
            count=len(found),
            total=len(every),
            earlier=link(offset=first - TRIALS_SHOWN) if first else None,
            later=link(offset=first + TRIALS_SHOWN) if first + TRIALS_SHOWN < len(found) else None,
        )

    def progress(self, request: Request) -> Response:
        """Return the progress of a run, for a page that follows it.

        While the run is active it comes from the heartbeat, at most a few seconds old: a page polls
        often, and reading a journal takes seconds for a large run.
        """
        sign = look_at(self._folder(request.path_params["name"]))
        if sign.life == Life.ALIVE and (beat := sign.beat):
            return JSONResponse(
                {
                    "done": beat.done,
                    "planned": beat.planned - beat.not_needed,
                    "passed": beat.passed,
                    "judged": beat.passed + beat.failed,
                    "cost_usd": beat.cost_usd,
                    "ended": False,
                }
            )
        run = self._run(request)
        totals, planned = run.totals, sum(cell.planned for cell in run.cells)
        return JSONResponse(
            {
                "done": totals.trials,
                "planned": planned,
                "passed": totals.passed,
                "judged": totals.judged,
                "cost_usd": totals.cost_usd,
                "ended": run.folder.results_path.is_file() and totals.trials >= planned,
            }
        )

    def cell(self, request: Request) -> Response:
        """Render the trials of one cell."""
        run, wanted = self._run(request), request.query_params
        key = CellKey(wanted.get("case", ""), wanted.get("agent", ""), wanted.get("params", ""))
        found = [cell for cell in run.cells if cell.cell == key]
        if not found:
            raise Missing("cell", str(key))
        trials = [trial for trial in run.trials() if trial.cell == key]
        trials.sort(key=lambda trial: (trial.axis_seed or 0, trial.index))
        return page(
            "cell.html",
            request,
            base=self.link(run.path),
            name=self.name(run.path),
            cell=found[0],
            trials=[(address_name(trial), trial) for trial in trials[:MAX_TRIALS]],
            count=len(trials),
        )

    def trial(self, request: Request) -> Response:
        """Render one trial: its conversation, checks, spans and changed files."""
        from proctor.trials.run_trial import WORKSPACE  # heavy, and only needed here

        run, trial = self._trial(request)
        unreadable: list[str] = []
        trace = self._trace(run, trial, unreadable)
        turns: list[ShownTurn] = []
        if trace is not None and trial.trace is not None:
            turns = self._read_turns(run, trial.trace, trial.answer)
        first = number_in(request.query_params.get("from"), 1, max(1, len(turns)))
        first -= (first - 1) % TURNS_SHOWN
        trials = sorted(run.trials(), key=row_order)
        place = next(at for at, each in enumerate(trials) if each.key == trial.key)
        same: dict[str, list[tuple[str, Trial]]] = {}
        for other in trials:
            if other.case == trial.case:
                same.setdefault(other.cell.arm, []).append((address_name(other), other))
        # Compared first: the agent's next trial of this case that ended otherwise.
        others = [*same[trial.cell.arm], *(each for arm in same.values() for each in arm)]
        contrast = (key for key, other in others if other.passed != trial.passed)
        base = self.link(run.path)
        workspace: Any = {} if trace is None else trace.metadata.get(WORKSPACE)
        return page(
            "trial.html",
            request,
            name=self.name(run.path),
            run_link=base,
            base=f"{base}/trial/{address_name(trial)}",
            trial=trial,
            input=None if trace is None else trace.query,
            cell_link=f"{base}/cell?{cell_query(trial.cell)}",
            same=same,
            this=address_name(trial),
            contrast=next(contrast, None),
            earlier=None if place == 0 else address_name(trials[place - 1]),
            later=None if place + 1 == len(trials) else address_name(trials[place + 1]),
            place=place + 1,
            count=len(trials),
            checks=sorted(trial.checks, key=lambda check: not check.failed),
            turns=turns[first - 1 : first - 1 + TURNS_SHOWN],
            first=first,
            turn_count=len(turns),
            shown=TURNS_SHOWN,
            turn_of=turn_links(turns, trace),
            calls_model=trace is not None and bool(trace.llm_calls),
            workspace=as_mapping(workspace),
            diff=diff_lines(str(as_mapping(workspace).get("diff") or "")),
            unreadable=unreadable,
        )

    def copied(self, request: Request) -> Response:
        """Return a trial as JSON, its case as a suite, or one of its model calls as a command."""
        run, trial = self._trial(request)
        trace = self._trace(run, trial, [])
        text: str | None = None
        match request.path_params["form"]:
            case "json":
                both = {"trial": trial, "trace": trace}
                text = msgspec.json.format(json_bytes(both), indent=2).decode()
            case "case":
                case = case_properties(run.spec).get(trial.case)
                suite = {"version": 1, "cases": [json_value(case)]}
                text = None if case is None else as_yaml(suite)
            case "curl" if trace is not None:
                calls = [span for span in trace.index.spans if span.kind == SpanKind.LLM]
                wanted = request.query_params.get("span")
                found = [each for each in calls if wanted in (None, each.span_id)]
                text = as_curl(found[-1]) if found else None
            case _:
                pass
        if text is None:
            return PlainTextResponse("There is nothing to copy.", 404)
        return PlainTextResponse(valid_unicode(text))

    # -- the trace of a trial ---------------------------------------------------------------------

    def outlined(self, request: Request) -> Response:
        """Return the spans of a trial with the findings of its diagnosis."""
        return JSONResponse(self._outline(self._run(request), request.path_params["trial"]))

    def _outline_of(self, run: Run, address: str) -> dict[str, Any]:
        trial = trial_at(run, address)
        trace = self._trace(run, trial, [])
        if trace is None:
            raise Missing("trace", trial.name)
        from proctor.diagnose.methods import diagnose_offline
        from proctor.results.evidence import evidence_of, trajectories_of

        diagnosis = diagnose_offline(
            trace, evidence=evidence_of(trial, trajectories_of(run, {trial.case}))
        )
        # A failed check is a finding of its own kind below.
        found = [
            each.to_dict() for each in diagnosis.shown if not each.detector.startswith("check:")
        ]
        cause = diagnosis.decisive
        # Failed checks, once for each span they refer to, under the keys of a finding.
        failed = [
            {"category": c.id, "impact": "check", "description": c.reason, "location": span_id}
            for c in trial.checks
            if c.failed
            for span_id in c.span_ids
        ]
        assert trial.trace is not None
        links = turn_links(self._read_turns(run, trial.trace, trial.answer), trace)
        decisive = None if cause is None or trial.passed else shown_texts(cause.to_dict())
        return {**outline(trace, found, failed), "decisive": decisive, "turns": links}

    def span(self, request: Request) -> Response:
        """Return the details of one span of a trial."""
        trace = self._trace(*self._trial(request), [])
        return JSONResponse(detail(span_of(trace, request.path_params["span_id"])))

    def _trace(self, run: Run, trial: Trial, unreadable: list[str]) -> Trace | None:
        """Return the trace of a trial, as `Run.readable_trace` does, from a cache."""
        if trial.trace is None:
            return None
        try:
            return self._read_trace(run, trial.trace)
        except ProctorError as error:
            unreadable.append(f"{trial.name}: {error}")
            return None

    # -- finding ----------------------------------------------------------------------------------

    def _trial(self, request: Request) -> tuple[Run, Trial]:
        run = self._run(request)
        return run, trial_at(run, request.path_params["trial"])

    def _folder(self, name: str) -> Path:
        """Return the run folder of this name, which must be below the results folder."""
        # No file has a name that is too long, or has a NUL.
        with contextlib.suppress(OSError, ValueError):
            path = (self._root / name).resolve()
            if path.is_relative_to(self._root) and (path / "_spec_.yaml").is_file():
                return path
        raise Missing("run", name)

    def _run(self, request: Request) -> Run:
        return self._run_named(request.path_params["name"])

    def _run_named(self, name: str) -> Run:
        """Return the run of this name, read again when its files have changed."""
        path = self._folder(name)
        try:
            return self._read(path, state_of(path))
        except ProctorError:
            raise Missing("run", name) from None


def address_name(trial: Trial) -> str:
    """Return a trial's id in addresses: short and stable."""
    return hashlib.sha256(trial.key.encode()).hexdigest()[:16]


def trial_at(run: Run, address: str | None) -> Trial:
    """Return the trial that `address_name` gives this address."""
    for trial in run.trials():
        if address_name(trial) == address:
            return trial
    raise Missing("trial", address or "")


def _wanted(trial: Trial, query: Query) -> bool:
    """Return whether a filter shows a trial."""
    failed = [check for check in trial.checks if check.failed]
    error = "" if trial.error is None else f"{trial.error.type} {trial.error.message}"
    text = " ".join((trial.case, trial.answer or "", error, *(check.reason for check in failed)))
    return (
        query["status"] in ("", trial.status.value)
        and query["agent"] in ("", trial.cell.arm)
        and (not query["check"] or any(check.id == query["check"] for check in failed))
        and query["text"].casefold() in text.casefold()
    )


def shared_causes(run: Run) -> tuple[list[SharedCause], int, int]:
    """Return the causes of failing trials, how many were diagnosed, and how many there are."""
    from proctor.diagnose.clusters import SharedCauses
    from proctor.diagnose.methods import diagnose_offline
    from proctor.results.evidence import evidence_of, trajectories_of

    failing = [t for t in run.trials() if t.status.judged and not t.passed]
    order = harm_first((trial.status, trial.cell) for trial in failing)[:MAX_DIAGNOSED]
    chosen = [failing[at] for at in sorted(order)]
    trajectories = trajectories_of(run, {trial.case for trial in chosen})
    causes = SharedCauses()
    looked = 0
    for trial in chosen:
        if (trace := run.readable_trace(trial, [])) is not None:
            found = diagnose_offline(trace, evidence=evidence_of(trial, trajectories))
            causes.add(trial.name, trace, found, [c.id for c in trial.checks if c.status == "fail"])
            looked += 1
    return causes.all(), looked, len(failing)


def _matrix(facts: ReportFacts) -> dict[str, Any]:
    """Return cases (rows, the worst first) and agents (columns), and how many are not shown."""
    cells = {(cell.case, cell.cell.arm): cell for cell in facts.cells}
    cases = facts.worst_cases()
    rows = [
        (case, [_matrix_cell(cells.get((case, agent))) for agent in facts.names])
        for case in cases[:MAX_CASES]
    ]
    return {"agents": facts.names, "rows": rows, "more": len(cases) - len(rows)}


def _matrix_cell(cell: CellSummary | None) -> dict[str, Any] | None:
    """Return one cell: its verdict decides the colour, so that no failure looks like a pass."""
    if cell is None:
        return None
    rate, shade = cell.pass_rate, "v-odd"
    if cell.verdict == Verdict.NOT_RUN:
        shade = ""
    elif cell.verdict == Verdict.PASS:
        shade = "r4"
    elif rate is not None and cell.verdict in (Verdict.HARD_FAIL, Verdict.FAIL, Verdict.PARTIAL):
        # Only a cell that passed has the colour of passing; a hard failure has a bar as well.
        shade = f"r{min(3, int(rate * 4))}{' hard' * (cell.verdict == Verdict.HARD_FAIL)}"
    counts = {"passed": cell.passed, "judged": cell.judged, "rate": rate}
    return {**counts, "verdict": cell.verdict, "shade": shade, "query": cell_query(cell.cell)}
