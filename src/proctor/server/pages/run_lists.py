"""Pages over many runs: the list of runs, and the history of one suite.

Guarantees: the first byte does not wait for thousands of journals. A request reads runs for a
fraction of a second and shows the others as being read; the page polls, each poll reads on, and a
run is read again only when its files have changed. Runs in progress are shown by their heartbeat.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proctor.errors import ProctorError
from proctor.report.figures import METRIC_WORDS, damage_note, figure
from proctor.results.gate import judge_runs
from proctor.results.history import (
    STRIP,
    AgentHistory,
    CaseStrip,
    HistoryPoint,
    RunFigures,
    SuiteHistory,
    agent_rows,
    run_figures,
    suite_history,
)
from proctor.runs.annotations import runs_tagged, tags_of
from proctor.runs.folder import all_runs
from proctor.runs.heartbeat import Life, look_at
from proctor.runs.run import Run
from proctor.runs.trial import CellKey
from proctor.server.pages.templating import Missing, Query, number_in, page

if TYPE_CHECKING:
    from starlette.requests import Request

# Seconds that a page may spend on reading runs, and a poll after it.
READ_FOR, POLL_FOR = 0.2, 1.0

# Runs on one page of the list.
PAGE = 50

# Runs of a history: the test of change points takes quadratic time.
MAX_HISTORY = 30

# Runs of a suite that its line in the list shows.
TREND = 20

# Rows of cases in a history.
MAX_CASES = 300

RUN_NAME = re.compile(r"\d{4}-\d{2}-\d{2}_\d{3,}")
"""The name that a run gets by default: its day and its number."""

SORTS = ("newest", "name", "worst", "costliest", "slowest")

FolderState = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and time of the files that a run is read from; None for one that is missing."""


def state_of(path: Path) -> FolderState:
    """Return what identifies the content of a run folder without reading it."""
    found: list[tuple[int, int, int] | None] = []
    for name in ("_spec_.yaml", "trials.jsonl", "notes.jsonl", "labels.jsonl"):
        try:
            stat = (path / name).stat()
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def cell_query(cell: CellKey) -> str:
    """Return the query of the page of a cell."""
    return urlencode({"case": cell.case, "agent": cell.agent, "params": cell.params})


class Listed(NamedTuple):
    """A row of the list of runs."""

    name: str
    link: str
    suite: str
    tags: tuple[str, ...] = ()
    life: str | None = None
    """The state of an unfinished run: alive, stalled, dead, …"""
    began: datetime | None = None
    """When a run in progress started."""
    done: int = 0
    planned: int = 0
    passed: int = 0
    judged: int = 0
    cost_usd: float | None = None
    unpriced: int = 0
    figures: RunFigures | None = None
    """None for a run that is not read yet, or cannot be."""
    problem: str | None = None

    @property
    def created(self) -> str:
        """When it started."""
        if self.figures is None:
            return "" if self.began is None else f"{self.began.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
        return self.figures.created[:19].replace("T", " ")

    @property
    def commit(self) -> str | None:
        """The commit it was made at."""
        return None if self.figures is None else self.figures.commit

    @property
    def duration_ms(self) -> float | None:
        """From the start of the first trial to the end of the last."""
        return None if self.figures is None else self.figures.duration_ms

    @property
    def rate(self) -> float | None:
        """The mean of the agents' pass rates."""
        if self.figures is None:
            return None
        rates = [each.value for each in self.figures.rates.values() if each.value is not None]
        return sum(rates) / len(rates) if rates else None

    @property
    def outcome(self) -> str:
        """What the filter by verdict calls it."""
        if self.life == Life.ALIVE:
            return "running"
        return self.figures.verdict if self.figures else ""

    def matches(self, query: Mapping[str, str]) -> bool:
        """Return whether a filter shows it."""
        agents = () if self.figures is None else self.figures.rates
        texts = (self.name, *self.tags, *agents, self.commit or "")
        return (
            query["text"].casefold() in " ".join(texts).casefold()
            and query["suite"] in ("", self.suite)
            and query["verdict"] in ("", self.outcome)
        )


class SuiteLine(NamedTuple):
    """A suite above the list of runs."""

    name: str
    link: str
    runs: int
    trend: list[float]
    gate: str | None
    """The verdict of the gate on its latest run."""
    why: str
    """Why there is no such verdict."""


class ResultsPages:
    """Names and addresses of the runs of one results folder."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def name(self, path: Path) -> str:
        """Return the name of a run: its path below the results folder."""
        return path.resolve().relative_to(self._root).as_posix()

    def link(self, path: Path) -> str:
        """Return the address of a run."""
        return "/runs/" + quote(self.name(path))

    def suite(self, path: Path) -> str:
        """Return the name of a run's suite."""
        return self.name(path).rpartition("/")[0]


class RunLists(ResultsPages):
    """The pages over all runs of one results folder."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(root)
        self._clock = clock
        self._figures: dict[Path, tuple[FolderState, RunFigures | str, str | None]] = {}
        self._points: dict[Path, tuple[FolderState, HistoryPoint]] = {}
        self._gates: dict[tuple[Any, ...], str] = {}
        self._newest_history: tuple[Sequence[HistoryPoint], SuiteHistory] | None = None

    def routes(self) -> list[Route]:
        """Return the routes; Starlette runs synchronous handlers in threads."""
        return [
            Route("/runs", self.listed),
            Route("/state/runs", self.listed_state),
            Route("/history/{name:path}", self.history),
            Route("/state/history/{name:path}", self.history_state),
        ]

    # -- the list -------------------------------------------------------------------------------

    def listed(self, request: Request) -> Response:
        """Render the list of runs, the latest first."""
        until = self._clock() + READ_FOR
        query = Query(request.query_params)
        paths, rows = self._rows(until)
        shown = [row for row in rows if row.matches(query)]
        by: dict[str, Callable[[Listed], Any]] = {
            "name": lambda row: row.name,
            "worst": lambda row: (row.rate is None, row.rate or 0.0),
            "costliest": lambda row: -(row.cost_usd or 0.0),
            "slowest": lambda row: -(row.duration_ms or 0.0),
        }
        sort = query["sort"] if query["sort"] in by else "newest"
        if sort in by:
            shown.sort(key=by[sort])
        asked = {key: query[key] for key in ("text", "suite", "verdict", "sort") if query[key]}
        offset = number_in(query["offset"], 0, max(0, len(shown) - 1)) // PAGE * PAGE

        def link(**changed: object) -> str:
            return "/runs?" + urlencode({**asked, **changed})

        suites = self._suites(paths, rows, until)
        return page(
            "runs.html",
            request,
            rows=shown[offset : offset + PAGE],
            root=str(self._root),
            suites=suites,
            query=Query({**asked, "sort": sort}),
            orders={each: link(sort=each) for each in SORTS},
            first=offset + 1,
            count=len(shown),
            earlier=link(offset=offset - PAGE) if offset else None,
            later=link(offset=offset + PAGE) if offset + PAGE < len(shown) else None,
            trend=TREND,
            state=_digest([*rows, *suites]),
            ask="/state/runs",
        )

    def listed_state(self, _request: Request) -> Response:
        """Return what changes when the list does; each call reads more of the runs."""
        until = self._clock() + POLL_FOR
        paths, rows = self._rows(until)
        return JSONResponse({"state": _digest([*rows, *self._suites(paths, rows, until)])})

    def _rows(self, until: float) -> tuple[list[Path], list[Listed]]:
        """Return all runs, the newest first, and their rows; runs are read until a time."""
        paths = list(reversed(all_runs(self._root)))
        # A copy, and no error if it is gone: another request may do the same at this moment.
        for gone in set(self._figures) - set(paths):
            self._figures.pop(gone, None)
            self._points.pop(gone, None)
        return paths, [self._row(path, until) for path in paths]

    def _row(self, path: Path, until: float) -> Listed:
        row = Listed(self.name(path), self.link(path), self.suite(path))
        sign = look_at(path)
        if sign.life == Life.ALIVE and (beat := sign.beat) is not None:
            return row._replace(
                tags=tags_of(path),
                life=str(sign.life),
                began=beat.began,
                done=beat.done,
                planned=beat.planned - beat.not_needed,
                passed=beat.passed,
                judged=beat.passed + beat.failed,
                cost_usd=beat.cost_usd,
                unpriced=beat.unpriced_calls,
            )
        found, damage = self._read(path, until)
        if isinstance(found, str):
            return row._replace(problem=found)
        if found is None:
            return row
        totals = found.totals
        return row._replace(
            tags=tags_of(path),
            life=str(sign.life) if totals.trials < found.planned else None,
            done=totals.trials,
            planned=found.planned,
            passed=totals.passed,
            judged=totals.judged,
            cost_usd=totals.cost_usd,
            unpriced=totals.unpriced_calls,
            figures=found,
            problem=damage,
        )

    def _read(self, path: Path, until: float) -> tuple[RunFigures | str | None, str | None]:
        """Return the figures of a run, or why it has none, and what is damaged in it.

        None: it is not read yet, and the time is up.
        """
        state, known = state_of(path), self._figures.get(path)
        if known is None or known[0] != state:
            if self._clock() >= until:
                return None, None
            damage: str | None = None
            found: RunFigures | str
            try:
                run = Run(path)
                found, damage = run_figures(run), damage_note(run) if run.problems else None
            except ProctorError as error:
                found = error.message
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                found = f"not a run spec: {error!r}"
            known = self._figures[path] = (state, found, damage)
        return known[1], known[2]

    def _suites(
        self, paths: Sequence[Path], rows: Sequence[Listed], until: float
    ) -> list[SuiteLine]:
        by_suite: dict[str, list[tuple[Path, Listed]]] = {}
        for path, row in zip(paths, rows, strict=True):
            by_suite.setdefault(row.suite, []).append((path, row))
        lines: list[SuiteLine] = []
        for name, own in by_suite.items():
            rates = [row.rate for _, row in own[:TREND]]
            gate, why = self._gate(own, until)
            trend = [rate for rate in reversed(rates) if rate is not None]
            link = f"/history/{quote(name)}"
            lines.append(SuiteLine(name, link, len(own), trend, gate, why))
        return lines

    def _gate(self, own: Sequence[tuple[Path, Listed]], until: float) -> tuple[str | None, str]:
        """Return the gate's verdict on the latest read run of a suite, or why there is none."""
        latest = next((each for each in own if each[1].figures is not None), None)
        if latest is None:
            going = any(row.life == Life.ALIVE for _, row in own)
            return None, "running" if going else "reading …"
        path = latest[0]
        baselines = runs_tagged(path.parent, "baseline")
        if path in baselines or not baselines:
            return None, "is the baseline" if baselines else "no baseline"
        base = baselines[-1]
        key = (path, state_of(path), base, state_of(base))
        if key not in self._gates:
            if self._clock() >= until:
                return None, "reading …"
            try:
                self._gates[key] = judge_runs(Run(path), Run(base)).verdict
            except ProctorError as error:
                return None, error.message
        return self._gates[key], ""

    # -- the history of a suite -----------------------------------------------------------------

    def history(self, request: Request) -> Response:
        """Render the history of a suite."""
        paths, running = self._runs_of(request)
        if not paths and not running:
            raise Missing("suite", request.path_params["name"])
        shown = paths[-MAX_HISTORY:]
        points = self._read_points(shown, self._clock() + READ_FOR)
        history = self._history(points)
        names = [self.name(each.path) for each in history.runs]
        name = self.suite([*paths, *running][0])
        return page(
            "history.html",
            request,
            name=name,
            history=history,
            running=[(self.name(path), self.link(path)) for path in running],
            older=len(paths) - len(shown),
            unread=len(shown) - len(points),
            plots=[_plot(history, metric) for metric in METRIC_WORDS],
            changes=[
                {
                    "agent": agent.name,
                    "change": change,
                    "run": names[change.at],
                    "link": self.link(history.runs[change.at].path),
                    "commit": history.runs[change.at].commit,
                    "previous": history.runs[change.at - 1].commit,
                }
                for agent in history.agents
                for change in agent.changes
            ],
            cases=[self._case(history, each) for each in history.cases[:MAX_CASES]],
            more_cases=max(0, len(history.cases) - MAX_CASES),
            strip=STRIP,
            table=[
                {
                    "name": self.name(run.path),
                    "link": self.link(run.path),
                    "commit": run.commit,
                    "verdict": run.verdict,
                    "agents": [
                        {
                            "name": agent.name,
                            "figures": [(name, agent.figures(name)[at]) for name in METRIC_WORDS],
                        }
                        for agent in history.agents
                        if agent.rows[at] is not None
                    ],
                }
                for at, run in reversed(list(enumerate(history.runs)))
            ],
            state=_digest([*points, *map(self.name, running)]),
            ask=f"/state/history/{quote(request.path_params['name'])}",
        )

    def history_state(self, request: Request) -> Response:
        """Return what changes when a history does; each call reads more of its runs."""
        paths, running = self._runs_of(request)
        points = self._read_points(paths[-MAX_HISTORY:], self._clock() + POLL_FOR)
        return JSONResponse({"state": _digest([*points, *map(self.name, running)])})

    def _runs_of(self, request: Request) -> tuple[list[Path], list[Path]]:
        """Return the runs of a suite that are over, and those in progress.

        A few trials of a run in progress would look like a change of the rates.
        """
        wanted = request.path_params["name"].rstrip("/")
        paths = [path for path in all_runs(self._root) if self.suite(path) == wanted]
        running = [path for path in paths if look_at(path).life == Life.ALIVE]
        return [path for path in paths if path not in running], running

    def _read_points(self, paths: Sequence[Path], until: float) -> list[HistoryPoint]:
        """Return the newest runs that are read, oldest first: a gap would look like a change."""
        found: list[HistoryPoint] = []
        for path in reversed(paths):
            state, known = state_of(path), self._points.get(path)
            if known is None or known[0] != state:
                figures, _ = self._read(path, until)
                if isinstance(figures, str):
                    continue
                # At least one run: a page of nothing would not say that it reads.
                if figures is None or (found and self._clock() >= until):
                    break
                known = self._points[path] = (state, HistoryPoint(figures, agent_rows(Run(path))))
            found.append(known[1])
        return found[::-1]

    def _history(self, points: Sequence[HistoryPoint]) -> SuiteHistory:
        # That of one suite: they are quick to make again.
        known = self._newest_history
        if known is None or [*map(id, known[0])] != [*map(id, points)]:
            known = self._newest_history = (points, suite_history(points))
        return known[1]

    def _case(self, history: SuiteHistory, each: CaseStrip) -> dict[str, Any]:
        runs = history.runs[-STRIP:]
        return {
            "case": each.case,
            "agent": each.agent,
            "flaky": each.flaky,
            "changed": each.changed,
            "broke": None
            if each.broke is None
            else {"name": self.name(each.broke.path), "link": self.link(each.broke.path)},
            "strip": [
                (
                    cell,
                    "" if cell is None else f"{self.link(run.path)}/cell?{cell_query(cell.cell)}",
                    self.name(run.path),
                )
                for cell, run in zip(each.strip, runs, strict=True)
            ],
        }


def _digest(seen: Iterable[Listed | SuiteLine | HistoryPoint | str]) -> str:
    def part(each: Listed | SuiteLine | HistoryPoint | str) -> object:
        match each:
            case Listed():
                read = each.figures is not None
                return each.name, each.life, each.done, each.tags, each.problem, read
            case SuiteLine():
                return each
            case str():
                return each
            case HistoryPoint():
                return str(each.figures.path), each.figures.totals.trials

    return hashlib.sha256(repr([part(each) for each in seen]).encode()).hexdigest()[:16]


# -- pictures --------------------------------------------------------------------------------------


def _plot(history: SuiteHistory, metric: str) -> dict[str, Any]:
    """Return one metric over runs: a series of points, with their intervals, for each agent."""
    width, height, left = 600, 200, 78
    top, bottom = 10, height - 24
    count = len(history.runs)
    step = (width - left - 40) / max(1, count - 1)

    def x(at: float) -> float:
        return round(left + 10 + step * at, 1)

    values = [each for agent in history.agents for each in agent.figures(metric) if each]
    ends = [end for each in values for end in (each.value, each.high) if end is not None]
    most = 1.0 if metric in ("pass_rate", "score") else max(ends, default=0.0) or 1.0

    def y(value: float) -> float:
        return round(bottom - (bottom - top) * min(1.0, value / most), 1)

    def points(agent: AgentHistory) -> list[dict[str, Any]]:
        # Side by side: equal figures of two agents would cover each other.
        aside = 4 * (history.agents.index(agent) - (len(history.agents) - 1) / 2) / max(1.0, step)
        return [
            {
                "x": x(at + aside),
                "y": y(each.value),
                "low": None if each.low is None else y(each.low),
                "high": None if each.high is None else y(each.high),
                "label": f"{agent.name}, {run.path.name}: {figure(metric, each.value)}",
            }
            for at, (run, each) in enumerate(zip(history.runs, agent.figures(metric), strict=True))
            if each is not None and each.value is not None
        ]

    every = max(1, -(-count // 8))
    names = [run.path.name for run in history.runs]
    days = [name[5:10] for name in names]

    def label(at: int) -> str:
        # The day of a usual name, and the number of the run where a day has several.
        if not RUN_NAME.fullmatch(names[at]):
            return names[at]
        return days[at] if days.count(days[at]) == 1 else f"{days[at]} {names[at][-3:]}"

    changes = {c.at for agent in history.agents for c in agent.changes}
    return {
        "title": METRIC_WORDS[metric].capitalize(),
        "width": width,
        "height": height,
        "left": left,
        "ticks": [(y(most * part), figure(metric, most * part)) for part in (0.0, 0.5, 1.0)],
        "runs": [(x(at), label(at)) for at in range(count) if (count - 1 - at) % every == 0],
        "series": [points(agent) for agent in history.agents],
        "changes": [x(at - 0.5) for at in sorted(changes)] if metric == "pass_rate" else [],
    }
