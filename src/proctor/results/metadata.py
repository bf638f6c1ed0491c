"""Cache the facts of a run in `facts.json`, so that a query need not parse its YAML.

    results/<experiment>/<date>_<seq>/facts.json      written when the run ends

Guarantees: it is used only while the spec is the one it was written from, and the Parquet file only
while it holds everything the journal does (see `check_files`); otherwise a query reads spec and
journal. So it can be deleted, copied or left behind at any time: an answer becomes slower, never
wrong.
"""

from __future__ import annotations

import glob
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from proctor.errors import ProctorError
from proctor.files import read_bounded, writing

if TYPE_CHECKING:
    from proctor.runs.folder import RunFolder
    from proctor.runs.run import Run
    from proctor.runs.trial import CellKey, Trial


# Accessors for documents of unknown origin (a spec, a log). They never raise; a value of the wrong
# type counts as absent.


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_text(value: Any) -> str | None:
    """Return the value as text; None stays None."""
    return None if value is None else str(value)


NAME = "facts.json"
VERSION = 4
"""Version of facts.json; other versions are ignored and the spec is read."""

CLUSTER = "cluster"
"""Case property that names its cluster (a shared fixture, a document)."""

STOPPING = "stopping_rules"
"""Where an imported run has the rules of its source, which are not applied again."""

MAX_FACTS = 64 << 20
"""Maximum size of facts.json: some 100,000 cases."""


class AgentFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts of an agent."""

    kind: str | None = None
    model: str | None = None


class CaseMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts of a case, to select and group by."""

    id: str
    tags: tuple[str, ...] = ()
    difficulty: str | None = None
    type: str | None = None
    properties: dict[str, Any] = {}
    threshold: float | None = None
    asked: int | None = None
    scenario: bool = False
    """Whether parameters make other instances of the case; those of other cases are the agent's."""


class StoppedRows(NamedTuple):
    """Rows of results.parquet of a cell that stopped early: [first, end).

    No figure counts those from `counted_end` on: they ended after the stop.
    """

    first: int
    counted_end: int
    end: int
    reason: str


class RunFacts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Facts of a run; `stopped_early` are its cells with an early stop."""

    version: int = VERSION
    format: int
    run_id: str
    name: str
    created: str | None = None
    stopped: str | None = None
    host: str | None = None
    user: str | None = None
    commit: str | None = None
    agents: dict[str, AgentFacts] = {}
    columns: tuple[str, ...] = ()
    stopped_early: tuple[StoppedRows, ...] = ()
    stopping_rules: str | None = None
    """Rules that could stop its cells early, whether or not they did."""
    damaged: int = 0
    """Unreadable lines of the journal, whose trials results.parquet lacks."""
    cases: msgspec.Raw = msgspec.Raw(b"[]")
    """`CaseMetadata`, decoded on first use."""

    def case_list(self) -> list[CaseMetadata]:
        """Decode the cases: a query that reads no case property need not."""
        return _CASES.decode(self.cases)


_CASES = msgspec.json.Decoder(list[CaseMetadata])
_FACTS = msgspec.json.Decoder(RunFacts)


def read_facts(run: Path) -> RunFacts | None:
    """Read the facts of a run; None when there are none of this version."""
    try:
        facts = _FACTS.decode(read_bounded(run / NAME, MAX_FACTS))
    except (OSError, ProctorError, msgspec.MsgspecError, RecursionError):
        return None
    return facts if facts.version == VERSION else None


def scenario_cases(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the cases of a run that are scenarios, by id."""
    experiment = as_mapping(spec.get("experiment"))
    return as_mapping(as_mapping(experiment.get("scenarios")).get("cases"))


def stopping_rules(spec: Mapping[str, Any]) -> str | None:
    """Return the rules that looked at every trial of a run, also before it was imported."""
    named = as_mapping(spec.get("options")).get("early_stop") or ()
    return ",".join(map(str, named)) or as_text(as_mapping(spec.get("imported")).get(STOPPING))


def facts_of_spec(spec: Mapping[str, Any]) -> RunFacts:
    """Read the facts from the spec."""
    suite = as_mapping(spec.get("suite"))
    written = {
        str(case.get("id")): case
        for case in map(as_mapping, cast("list[Any]", suite.get("cases") or ()))
    }
    scenarios = scenario_cases(spec)
    cases: dict[str, CaseMetadata] = {}
    for cell in map(as_mapping, cast("list[Any]", spec.get("cells") or ())):
        name = str(cell.get("case"))
        about = written.get(name, {})
        # A case has one cell for each agent and set of parameters; the first is as good as any.
        if name not in cases:
            cases[name] = CaseMetadata(
                id=name,
                tags=tuple(str(tag) for tag in about.get("tags") or ()),
                difficulty=as_text(about.get("difficulty")),
                type=as_text(about.get("type")),
                properties=dict(as_mapping(about.get("properties"))),
                threshold=cell.get("threshold"),
                asked=cell.get("trials"),
                scenario=name in scenarios,
            )
    provenance = as_mapping(spec.get("provenance"))
    git = as_mapping(provenance.get("git"))
    agents = as_mapping(spec.get("agents"))
    return RunFacts(
        format=int(spec["format"]),
        run_id=str(spec.get("run_id") or ""),
        name=str(spec.get("name") or ""),
        created=as_text(spec.get("created")),
        stopped=as_text(spec.get("stopped")),
        host=as_text(provenance.get("host")),
        user=as_text(provenance.get("user")),
        commit=as_text(git.get("commit")),
        agents={
            str(name): AgentFacts(
                as_text(as_mapping(config).get("kind")),
                model if isinstance(model := as_mapping(config).get("model"), str) else None,
            )
            for name, config in agents.items()
        },
        stopping_rules=stopping_rules(spec),
        # `str` for values of YAML that JSON does not have, such as dates.
        cases=msgspec.Raw(msgspec.json.encode([*cases.values()], enc_hook=str)),
    )


# -- writing -------------------------------------------------------------------------------------


def _stopped_rows(run: Run, stopped: Mapping[CellKey, tuple[int, str]]) -> tuple[StoppedRows, ...]:
    """Return the rows of results.parquet of each cell that stopped early, after how many trials.

    Rows of a cell are contiguous, in plan order, so each cell has one range.
    """
    import duckdb

    from proctor.runs.trial import CellKey, params_key

    query = """
        SELECT "case", agent, params::VARCHAR, min(file_row_number), count(*),
               max(file_row_number) - min(file_row_number) + 1
        FROM read_parquet(?, file_row_number = true) GROUP BY ALL
    """
    with duckdb.connect() as connection:
        rows = connection.execute(query, [glob.escape(str(run.folder.parquet_path))]).fetchall()
    ranges: list[StoppedRows] = []
    for case, agent, params, first, count, span in rows:
        decoded = cast("dict[str, Any]", msgspec.json.decode(params)) if params else {}
        used, reason = stopped.get(CellKey(case, agent, params_key(decoded)), (0, None))
        if reason is None:
            continue
        if span != count:
            raise ProctorError(
                "the rows of a cell are not contiguous", where=str(run.folder.parquet_path)
            )
        start = int(first)
        ranges.append(StoppedRows(start, start + min(used, count), start + int(count), reason))
    return tuple(sorted(ranges))


AT_ONCE = 1_000
"""Cases of a large data set whose facts are in memory."""


def _large_facts(run: Run, facts: RunFacts) -> Iterator[bytes]:
    """Yield the JSON of the facts of a large data set, some cases at a time."""
    mark = b'"cases"'
    text = msgspec.json.encode(msgspec.structs.replace(facts, cases=msgspec.Raw(mark)))
    before, after = text.rsplit(mark, 1)  # the cases are the last field
    yield before + b"["
    cases, separator = run.data_cases(), b""
    while some := list(islice(cases, AT_ONCE)):
        cells = [{**run.header["cells"], "case": case["id"]} for case in some]
        part = facts_of_spec({**run.header, "suite": {"cases": some}, "cells": cells})
        yield separator + bytes(part.cases)[1:-1]
        separator = b","
    yield b"]" + after


def finalise(
    folder: RunFolder,
    spec: dict[str, Any] | None = None,
    finished: Sequence[Trial] | None = None,
    *,
    in_order: bool = False,
) -> Run:
    """Write the derived files of a run, in their order, and return it for reading.

    Journal and spec are only read, so it can be repeated at any time. What the caller knows
    already need not be read: see `Run` and `write_parquet`.
    """
    from concurrent.futures import ThreadPoolExecutor

    from proctor.runs.folder import CHECKSUMS, write_checksums
    from proctor.runs.parquet import COLUMNS, write_parquet, write_summaries
    from proctor.runs.run import Run

    # First: those of an earlier end do not fit the files that are written now.
    (folder.path / CHECKSUMS).unlink(missing_ok=True)
    run = Run(folder.path, spec=spec, finished=finished)
    large = isinstance(run.header.get("cells"), dict)
    about = {key: run.header.get(key) for key in ("run_id", "name", "created", "stopped")}
    # The Parquet file takes longest, and DuckDB needs no Python, so the summaries are written at
    # the same time; not before it starts, or the two block each other for milliseconds at a time.
    under_way = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="parquet") as pool:
        job = pool.submit(write_parquet, folder, in_order=in_order, under_way=under_way)
        under_way.wait()
        if large:
            job.result()  # one after the other, so that their memory does not add up
        write_summaries(folder, run.cells, about)
        job.result()
    stopped = {c.cell: (c.trials, c.early_stop) for c in run.cells if c.early_stop is not None}
    facts = msgspec.structs.replace(
        facts_of_spec({**run.header, "suite": {}, "cells": ()} if large else run.spec),
        columns=tuple(COLUMNS),
        stopped_early=_stopped_rows(run, stopped) if stopped else (),
        damaged=run.damaged_lines,
    )
    parts = _large_facts(run, facts) if large else [msgspec.json.encode(facts)]
    with writing(folder.path / NAME) as file:
        file.writelines(parts)
        file.write(b"\n")
    write_checksums(folder)
    return run
