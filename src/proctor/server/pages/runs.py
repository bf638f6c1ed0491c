"""Pages of run folders: the list, one run, a cell, a trial with its trace.

A run is addressed by its path below the results folder; a path outside it, or to something that is
not a run, is not found. Folders are read again when they have changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from proctor.errors import ProctorError
from proctor.report.figures import counting_notes, damage_note
from proctor.results.metadata import as_mapping
from proctor.results.outcomes import case_properties
from proctor.runs import segments
from proctor.runs.folder import all_runs
from proctor.runs.heartbeat import Life, look_at
from proctor.runs.parquet import row_order
from proctor.runs.run import Run
from proctor.runs.summary import CellSummary
from proctor.runs.trial import CellKey, TraceRef, Trial
from proctor.sanitize import json_bytes, json_value, valid_unicode
from proctor.server.pages._conversation import ShownTurn, as_curl, as_yaml, diff_lines, turns_of
from proctor.server.pages._span_view import detail, outline, shown_texts
from proctor.server.pages.templating import page
from proctor.server.pages.traces import span_of
from proctor.trace import SpanKind

if TYPE_CHECKING:
    from starlette.requests import Request

    from proctor.trace import Trace

CACHED_RUNS = 4
# Traces kept in memory, so that viewing one span after another does not read the trace again.
CACHED_TRACES = 8
# Trials listed of one cell.
MAX_TRIALS = 500
# Turns of a conversation on one page: more take longer to open than to read.
TURNS_SHOWN = 50


class Listed(NamedTuple):
    """A row of the list of runs."""

    name: str
    link: str
    created: str
    agents: Sequence[str]
    done: int
    planned: int
    passed: int | None
    judged: int
    problem: str | None
    life: str | None = None
    """The state of an unfinished run: alive, stalled, dead, …"""


class Runs:
    """The pages of one results folder."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

        @lru_cache(maxsize=CACHED_RUNS)
        def read(path: Path, _state: FolderState) -> Run:
            return Run(path)

        @lru_cache(maxsize=CACHED_TRACES)
        def read_trace(run: Run, place: TraceRef) -> Trace:
            return segments.read_trace(run.folder.traces_path, place)

        self._read = read
        self._read_trace = read_trace
        self._rows: dict[Path, tuple[FolderState, Listed]] = {}

    def routes(self) -> list[Route]:
        """Return the routes; Starlette runs synchronous handlers in threads."""
        return [
            Route("/runs", self.listed),
            Route("/runs/{name:path}/progress", self.progress),
            Route("/runs/{name:path}/cell", self.cell),
            Route("/runs/{name:path}/trial/{trial:str}", self.trial),
            Route("/runs/{name:path}/trial/{trial:str}/outline", self.outlined),
            Route("/runs/{name:path}/trial/{trial:str}/copy/{form:str}", self.copied),
            Route("/runs/{name:path}/trial/{trial:str}/spans/{span_id:str}", self.span),
            Route("/runs/{name:path}", self.one),
        ]

    # -- pages ----------------------------------------------------------------------------------

    def listed(self, request: Request) -> Response:
        """Render the list of runs, the latest first."""
        rows: list[Listed] = []
        seen: dict[Path, tuple[FolderState, Listed]] = {}
        for path in reversed(all_runs(self._root)):
            state, known = _state_of(path), self._rows.get(path)
            # A run is read once: reading thousands of journals for each load takes seconds.
            seen[path] = known if known and known[0] == state else (state, self._line(path))
            row = seen[path][1]
            # A process may end without writing to its run.
            rows.append(row if row.life is None else row._replace(life=str(look_at(path).life)))
        self._rows = seen
        return page("runs.html", request, rows=rows, root=str(self._root))

    def one(self, request: Request) -> Response:
        """Render one run: verdicts, a heatmap of agents and cases, failures, progress."""
        run = self._run(request)
        if run is None:
            return _missing(request)
        # The trials that the page links to.
        examples = {sample.trial for failure in run.failures for sample in failure.samples[:1]}
        examples |= {error.trial for error in run.errors}
        return page(
            "run.html",
            request,
            run=run,
            base=self._link(run.path),
            name=self._name(run.path),
            board=_board(run),
            heat=_heat(run),
            failures=run.failures[:20],
            errors=run.errors[:20],
            addresses={t.name: address_name(t) for t in run.trials() if t.name in examples},
            totals=run.totals,
            planned=_planned(run),
            notes=list(counting_notes(run)),
        )

    def progress(self, request: Request) -> Response:
        """Return the progress of a run, for a page that follows it.

        While the run is active it comes from the heartbeat, at most a few seconds old: a page polls
        often, and reading a journal takes seconds for a large run.
        """
        path = self._path(request)
        if path is not None and (sign := look_at(path)).life == Life.ALIVE and sign.beat:
            beat = sign.beat
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
        if run is None:
            return JSONResponse({"error": "no such run"}, status_code=404)
        totals, planned = run.totals, _planned(run)
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
        if run is None:
            return _missing(request)
        key = CellKey(wanted.get("case", ""), wanted.get("agent", ""), wanted.get("params", ""))
        found = [cell for cell in run.cells if cell.cell == key]
        if not found:
            return page("missing.html", request, status=404, what="cell", name=str(key))
        trials = [trial for trial in run.trials() if trial.cell == key]
        trials.sort(key=lambda trial: (trial.axis_seed or 0, trial.index))
        return page(
            "cell.html",
            request,
            base=self._link(run.path),
            name=self._name(run.path),
            cell=found[0],
            trials=[(address_name(trial), trial) for trial in trials[:MAX_TRIALS]],
            count=len(trials),
        )

    def trial(self, request: Request) -> Response:
        """Render one trial: its conversation, checks, spans and changed files."""
        from proctor.trials.run_trial import WORKSPACE  # heavy, and only needed here

        run, trial = self._trial(request)
        if run is None or trial is None:
            return _missing(request, "trial")
        unreadable: list[str] = []
        trace = self._trace(run, trial, unreadable)
        turns = [] if trace is None else turns_of(trace, trial.answer)
        first = _number(request.query_params.get("from"), 1, max(1, len(turns)))
        first -= (first - 1) % TURNS_SHOWN
        trials = sorted(run.trials(), key=row_order)
        place = next(at for at, each in enumerate(trials) if each.key == trial.key)
        same: dict[str, list[tuple[str, Trial]]] = {}
        for other in trials:
            if other.case == trial.case:
                same.setdefault(other.cell.arm, []).append((address_name(other), other))
        base = self._link(run.path)
        workspace: Any = {} if trace is None else trace.metadata.get(WORKSPACE)
        return page(
            "trial.html",
            request,
            name=self._name(run.path),
            run_link=base,
            base=f"{base}/trial/{address_name(trial)}",
            trial=trial,
            input=None if trace is None else trace.query,
            cell_link=f"{base}/cell?{_cell_query(trial.cell)}",
            same=same,
            this=address_name(trial),
            earlier=None if place == 0 else address_name(trials[place - 1]),
            later=None if place + 1 == len(trials) else address_name(trials[place + 1]),
            place=place + 1,
            count=len(trials),
            checks=sorted(trial.checks, key=lambda check: not check.failed),
            turns=turns[first - 1 : first - 1 + TURNS_SHOWN],
            first=first,
            turn_count=len(turns),
            shown=TURNS_SHOWN,
            turn_of=_turn_links(turns, trace),
            calls_model=trace is not None and bool(trace.llm_calls),
            workspace=as_mapping(workspace),
            diff=diff_lines(str(as_mapping(workspace).get("diff") or "")),
            unreadable=unreadable,
        )

    def copied(self, request: Request) -> Response:
        """Return a trial as JSON, its case as a suite, or one of its model calls as a command."""
        run, trial = self._trial(request)
        trace = None if run is None or trial is None else self._trace(run, trial, [])
        text: str | None = None
        if run is not None and trial is not None:
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
        run, trial = self._trial(request)
        trace = None if run is None or trial is None else self._trace(run, trial, [])
        if run is None or trial is None or trace is None:
            return JSONResponse({"error": "no such trace"}, status_code=404)
        from proctor.diagnose.methods import diagnose_offline
        from proctor.report.diagnosis import evidence_of, trajectories_of

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
        links = _turn_links(turns_of(trace, trial.answer), trace)
        decisive = None if cause is None or trial.passed else shown_texts(cause.to_dict())
        return JSONResponse({**outline(trace, found, failed), "decisive": decisive, "turns": links})

    def span(self, request: Request) -> Response:
        """Return the details of one span of a trial."""
        run, trial = self._trial(request)
        trace = None if run is None or trial is None else self._trace(run, trial, [])
        found = None if trace is None else span_of(trace, request.path_params["span_id"])
        if found is None:
            return JSONResponse({"error": "no such span"}, status_code=404)
        return JSONResponse(detail(found))

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

    def _trial(self, request: Request) -> tuple[Run | None, Trial | None]:
        run, wanted = self._run(request), request.path_params["trial"]
        if run is None:
            return None, None
        return run, next((t for t in run.trials() if address_name(t) == wanted), None)

    def _path(self, request: Request) -> Path | None:
        return self._folder(request.path_params["name"])

    def _folder(self, name: str) -> Path | None:
        """Return the run folder of this name if it is below the results folder."""
        try:
            path = (self._root / name).resolve()
            inside = path.is_relative_to(self._root) and (path / "_spec_.yaml").is_file()
        except (OSError, ValueError):  # no file has such a name: too long, or with a NUL
            return None
        return path if inside else None

    def _run(self, request: Request) -> Run | None:
        return self._run_named(request.path_params["name"])

    def _run_named(self, name: str) -> Run | None:
        """Return the run of this name, read again when its files have changed."""
        path = self._folder(name)
        if path is None:
            return None
        try:
            return self._read(path, _state_of(path))
        except ProctorError:
            return None

    def _line(self, path: Path) -> Listed:
        link, name = self._link(path), self._name(path)
        try:
            run = Run(path)
            totals, damage = run.totals, damage_note(run) if run.problems else None
        except ProctorError as error:
            return Listed(name, link, "", (), 0, 0, None, 0, error.message)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return Listed(name, link, "", (), 0, 0, None, 0, f"not a run spec: {error!r}")
        agents = list(run.spec.get("agents") or {})
        created = str(run.spec.get("created", ""))[:19].replace("T", " ")
        done, planned = totals.trials, _planned(run)
        life = str(look_at(path).life) if done < planned else None
        passed, judged = totals.passed, totals.judged
        return Listed(name, link, created, agents, done, planned, passed, judged, damage, life)

    def _name(self, path: Path) -> str:
        return path.resolve().relative_to(self._root).as_posix()

    def _link(self, path: Path) -> str:
        return "/runs/" + quote(self._name(path))


FolderState = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and time of the files that a run is read from; None for one that is missing."""


def _state_of(path: Path) -> FolderState:
    found: list[tuple[int, int, int] | None] = []
    for name in ("_spec_.yaml", "trials.jsonl"):
        try:
            stat = (path / name).stat()
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def address_name(trial: Trial) -> str:
    """Return a trial's id in addresses: short and stable."""
    return hashlib.sha256(trial.key.encode()).hexdigest()[:16]


def _number(text: str | None, least: int, most: int) -> int:
    """Return a number of an address, moved into its range; the least for anything else."""
    return max(least, min(most, int(text))) if text and text.isdecimal() else least


def _turn_links(turns: Sequence[ShownTurn], trace: Trace | None) -> dict[str, tuple[int, str]]:
    """Return the number and the address of the turn that shows each span; of a root, the last."""
    links: dict[str, tuple[int, str]] = {}
    for turn in turns:
        start = turn.number - (turn.number - 1) % TURNS_SHOWN
        page = "" if len(turns) <= TURNS_SHOWN else f"?from={start}"
        roots = trace.roots if trace is not None and turn is turns[-1] else []
        for span_id in (*turn.span_ids, *(root.span.span_id for root in roots)):
            links.setdefault(span_id, (turn.number, f"{page}#turn-{turn.number}"))
    return links


def _missing(request: Request, what: str = "run") -> Response:
    name = request.path_params.get("name", "")
    return page("missing.html", request, status=404, what=what, name=name)


def _planned(run: Run) -> int:
    return sum(cell.planned for cell in run.cells)


class BoardRow(NamedTuple):
    """An agent on the board of a run, over its cells."""

    agent: str
    cells: int
    passed_cells: int
    judged: int
    passed: int
    score: float | None
    cost_usd: float | None
    unpriced: int


def _board(run: Run) -> list[BoardRow]:
    """Return agents by mean score of their cells; those without a score last."""
    by_agent: dict[str, list[CellSummary]] = {}
    for cell in run.cells:
        by_agent.setdefault(f"{cell.agent} {cell.params}".strip(), []).append(cell)
    rows: list[BoardRow] = []
    for agent, cells in by_agent.items():
        scores = [cell.score_mean for cell in cells if cell.score_mean is not None]
        costs = [cell.cost_usd for cell in cells if cell.cost_usd is not None]
        rows.append(
            BoardRow(
                agent,
                len(cells),
                sum(cell.verdict == "PASS" for cell in cells),
                sum(cell.judged for cell in cells),
                sum(cell.passed for cell in cells),
                sum(scores) / len(scores) if scores else None,
                sum(costs) if costs else None,
                sum(cell.unpriced_calls for cell in cells),
            )
        )
    return sorted(rows, key=lambda row: (row.score is None, -(row.score or 0), row.agent))


class Heat(NamedTuple):
    """Pass rates of agents (columns) on cases (rows), the worst cases first."""

    agents: list[str]
    rows: list[tuple[str, list[Any]]]


def _heat(run: Run) -> Heat:
    agents = sorted({(cell.agent, cell.params) for cell in run.cells})
    squares: dict[tuple[str, str, str], dict[str, Any]] = {}
    worst: dict[str, float] = {}
    for cell in run.cells:
        rate = cell.pass_rate
        # 2: cases without judged trials come last.
        worst[cell.case] = min(worst.get(cell.case, 2.0), 2.0 if rate is None else rate)
        shade = "rx" if rate is None else f"r{min(4, int(rate * 4.999))}"
        square = {"cell": cell, "shade": shade, "query": _cell_query(cell.cell)}
        squares[cell.case, cell.agent, cell.params] = square
    rows = [
        (case, [squares.get((case, *agent)) for agent in agents])
        for case in sorted(worst, key=lambda case: (worst[case], case))
    ]
    return Heat([f"{agent} {params}".strip() for agent, params in agents], rows)


def _cell_query(cell: CellKey) -> str:
    return urlencode({"case": cell.case, "agent": cell.agent, "params": cell.params})
